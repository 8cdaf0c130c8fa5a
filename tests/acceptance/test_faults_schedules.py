"""Schedulers that are killed and frozen, and schedule stores that are down or silent: every due time is
called once.

``TEST_QWORKER_BEAT_SECONDS=120`` injects faults for that long; the default is ten seconds.
``TEST_QWORKER_BEAT_STEPS=40`` loses that many requests and responses, one after the other.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.beats import Beats, Run, runs
from tests.acceptance.brokers import Broken, RemoteSite
from tests.acceptance.harness import REPOSITORY, Site
from tests.acceptance.proxy import Proxy
from tests.support.cases import cases

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(300)]

SECONDS = float(os.environ.get("TEST_QWORKER_BEAT_SECONDS", "10"))
STEPS = int(os.environ.get("TEST_QWORKER_BEAT_STEPS", "5"))
PLACES: dict[str, tuple[str, ...]] = {
    "sqlite": (),
    "redis": ("redis",),
    "postgresql": ("postgresql",),
    "mariadb": ("mariadb",),
    "rabbitmq, redis": ("rabbitmq", "redis"),
}
"""The servers for the messages, and for everything else."""
APART_PLACES: dict[str, tuple[str, ...]] = {
    "rabbitmq, postgresql": ("rabbitmq", "postgresql"),
    "rabbitmq, mariadb": ("rabbitmq", "mariadb"),
}
"""Further pairs, since a call has other steps if messages and schedules are in different stores."""
EVERY = {"often": 0.2, "sometimes": 0.5, "seldom": 1.3}
SCHEDULE = {
    name: {"task": "periodic", "schedule": seconds, "catch_up": 1000} for name, seconds in EVERY.items()
}
TOGETHER, APART = ("entries-published",), ("slots-pending", "entries-sent")
"""The crash points of a call after its slot is taken, with messages in the same store and elsewhere."""
LEASE = 2.5
"""Seconds: longer than a lease."""
PROMPT = 10.0
"""Seconds after its due time within which a call runs normally; one that is only found by the full scan
takes a minute."""
TAKEOVER = 4.0
"""Seconds for a takeover on a busy machine; see the benchmarks for typical values."""


@pytest.fixture(params=PLACES)
def servers(
    request: pytest.FixtureRequest, _private_servers: Callable[[str, str], Broken]
) -> Iterator[list[Broken]]:
    kinds = (PLACES | APART_PLACES)[request.param]
    with ExitStack() as stack:
        found = [_private_servers(kind, "broker") for kind in kinds]
        for each in found:
            stack.enter_context(each.exposed())
        yield found


def result_url(store: str) -> str:
    """The URL of the result backend in the same store as the schedules."""
    return f"db+{store}" if store.startswith(("postgresql", "mysql")) else store


@pytest.fixture
def site(tmp_path: Path, servers: list[Broken]) -> Iterator[RemoteSite]:
    file = f"sqlite:///{tmp_path}/broker.db"
    broker = servers[0].direct if servers else file
    store = servers[-1].direct if servers else file
    results = result_url(store)
    settings = {"beat_schedule": json.dumps(SCHEDULE), "worker_lease_seconds": 2, "task_max_deliveries": 50}
    with RemoteSite(tmp_path, broker, broker, results, **settings) as site:
        yield site


@pytest.fixture
def beats(site: RemoteSite) -> Iterator[Beats]:
    beats = Beats(site)
    yield beats
    beats.close()


def check_due_times(site: RemoteSite) -> dict[str, list[Run]]:
    """Every due time from the first to the last was called once, with one message."""
    by_due: dict[tuple[str, datetime], list[Run]] = defaultdict(list)
    for run in runs(site):
        by_due[run.name, run.due].append(run)
    for (name, due), found in by_due.items():
        assert len({run.id for run in found}) == 1, (name, due, found)
        assert len({run.tag for run in found}) == 1, (name, due, found)
    by_name: dict[str, list[Run]] = defaultdict(list)
    for (name, _), found in sorted(by_due.items()):
        by_name[name].append(found[0])
    for name, seconds in EVERY.items():
        dues = [run.due for run in by_name[name]]
        wanted = [dues[0] + count * timedelta(seconds=seconds) for count in range(len(dues))]
        assert dues == wanted, f"{name}: due times are missing"
    return by_name


def proxied_settings(servers: Sequence[Broken]) -> dict[str, str]:
    """The settings of a process that connects to the servers through their proxies."""
    if not servers:
        return {}
    store = servers[-1].url
    return {"broker_url": servers[0].url, "result_backend": result_url(store)}


@contextmanager
def silent_store(site: Site, servers: Sequence[Broken], answers: bool = True) -> Iterator[None]:
    """The store does not answer: its connections stay open, but nothing passes; a file is locked. What was
    sent arrives afterwards; answers=False: it arrives, but the answers are lost."""
    if not servers:
        with closing(sqlite3.connect(site.path / "broker.db", timeout=30, isolation_level=None)) as file:
            file.execute("BEGIN EXCLUSIVE")
            yield
            file.execute("ROLLBACK")
        return
    for each in servers:
        each.proxy.down.open = False
        each.proxy.up.open = not answers
    yield
    for each in servers:
        if not answers:
            each.proxy.cut()
        each.proxy.heal()


def test_every_due_time_is_called_once(site: RemoteSite, servers: list[Broken], beats: Beats) -> None:
    """With two schedulers and four workers with --beat, during all kinds of faults."""
    chance = random.Random(sum(map(ord, site.url.partition(":")[0])))
    given = proxied_settings(servers)
    for _ in range(2):
        beats.start(**given)
    workers = [site.start("-B", "-c", "1", name=f"w{number}", **given) for number in range(4)]
    site.until(lambda: len(runs(site)) > 3, "the first calls")
    harms: dict[str, int] = defaultdict(int)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.2, 1.0))
        harm = chance.choice(("beat", "leader", "worker", "freeze", "server", "silence", "lost answers"))
        harms[harm] += 1
        if harm in ("beat", "leader"):
            leading = [each for each in beats.running if each.leads]
            beats.kill(leading[0] if harm == "leader" and leading else chance.choice(beats.running))
            beats.start(**given)
        elif harm == "worker":
            number = chance.randrange(len(workers))
            workers[number].kill()
            workers[number] = site.start("-B", "-c", "1", name=f"w{number}", ready=False, **given)
        elif harm == "freeze":
            frozen = chance.choice([*beats.running, *workers])
            frozen.process.send_signal(signal.SIGSTOP)
            time.sleep(LEASE)
            frozen.process.send_signal(signal.SIGCONT)
        elif harm == "server" and servers:
            server = chance.choice(servers).server
            server.kill()
            time.sleep(chance.uniform(0.0, 1.0))
            server.start()
        else:
            broken = [chance.choice(servers)] if servers else []
            with silent_store(site, broken, answers=harm != "lost answers"):
                time.sleep(chance.uniform(1.0, 4.0))
    seen = len(runs(site))
    site.until(lambda: len(runs(site)) > seen + 5, "the calls to go on")
    beats.close()
    for worker in workers:
        if worker.alive:
            worker.process.terminate()
    for worker in workers:
        worker.process.wait(40)
    last = site.start(name="last")
    site.drained()
    last.stop()
    found = check_due_times(site)
    called = sum(map(len, found.values()))
    print(f"{called} due times called, in {len(runs(site))} runs; {sum(harms.values())} harms: {dict(harms)}")
    assert {name: len(every) > 3 for name, every in found.items()} == dict.fromkeys(EVERY, True), harms


def test_all_crash_points_of_schedules_are_known() -> None:
    sources = (REPOSITORY / "qworker" / "beat").glob("*.py")
    found = {name for path in sources for name in re.findall(r'crash_point\("([^"]+)"\)', path.read_text())}
    assert found == {"slots-taken", *TOGETHER, *APART}


@pytest.mark.parametrize(
    "servers",
    cases([*PLACES, *APART_PLACES], ["sqlite", "postgresql", "rabbitmq, redis", "rabbitmq, mariadb"]),
    indirect=True,
)
def test_crash_at_each_point_calls_each_due_time_once(
    site: RemoteSite, servers: list[Broken], beats: Beats
) -> None:
    """If messages are elsewhere, one that was sent twice runs once."""
    worker = site.start()
    for point in ("slots-taken", *(APART if len(servers) > 1 else TOGETHER)):
        hit = site.path / f"hit-{point}"
        crashing = beats.start(f"{point}@{hit}")
        site.until(hit.exists, f"the crash at {point}")
        crashing.process.wait(20)
        beats.running.clear()
        following = beats.start()
        site.until(lambda following=following: following.leads, "the next to lead")  # type: ignore[misc]
        seen = len(runs(site))
        site.until(lambda seen=seen: len(runs(site)) > seen + 3, "the next to go on")  # type: ignore[misc]
        assert following.end() == 0
        beats.running.clear()
    site.drained()
    worker.stop()
    assert len(runs(site)) == sum(map(len, check_due_times(site).values()))


def test_follower_takes_over_from_a_killed_leader(site: RemoteSite, beats: Beats) -> None:
    worker = site.start()
    for _ in range(2):
        beats.start()
    for _ in range(3):
        leader = beats.leader()
        site.until(beats.all_wait, "the other to wait")
        site.until(lambda: len(runs(site)) > 2, "calls")
        beats.kill(leader)
        at = time.time()
        beats.leader()
        assert time.time() - at < TAKEOVER
        beats.start()
    beats.close()
    site.drained()
    worker.stop()
    assert len(runs(site)) == sum(map(len, check_due_times(site).values()))


def test_frozen_leader_calls_nothing_twice(site: RemoteSite, beats: Beats) -> None:
    worker = site.start()
    beats.start()
    frozen = beats.leader()
    site.until(lambda: len(runs(site)) > 2, "calls")
    frozen.process.send_signal(signal.SIGSTOP)
    follower = beats.start()
    site.until(lambda: follower.leads, "another to lead")
    seen = len(runs(site))
    site.until(lambda: len(runs(site)) > seen + 3, "the other to call")
    frozen.process.send_signal(signal.SIGCONT)
    site.until(lambda: not frozen.leads, "it to notice")
    beats.close()
    site.drained()
    worker.stop()
    assert len(runs(site)) == sum(map(len, check_due_times(site).values()))


# -- lost requests and lost responses --


def lose_requests(proxy: Proxy, step: int) -> None:
    heard = proxy.down.pieces + step  # then nothing is in transit: half a request would be another fault
    proxy.up.lose_when(lambda: proxy.down.pieces >= heard)


def lose_responses(proxy: Proxy, step: int) -> None:
    heard = proxy.down.pieces + step
    proxy.down.lose_when(lambda: proxy.down.pieces > heard)


def hold_requests(proxy: Proxy, step: int) -> None:
    heard = proxy.down.pieces + step
    proxy.up.hold_when(lambda: proxy.down.pieces >= heard)


def hold_responses(proxy: Proxy, step: int) -> None:
    heard = proxy.down.pieces + step
    proxy.down.hold_when(lambda: proxy.down.pieces >= heard)


HOLES = {
    "questions are lost": lose_requests,
    "answers are lost": lose_responses,
    "questions come late": hold_requests,
    "answers come late": hold_responses,
}
"""What happens to requests or responses after a number of responses, including within a transaction."""
ON_SERVERS = [place for place, kinds in PLACES.items() if kinds]


def _always(hole: str, place: str) -> bool:
    """Each fault with transactions and without; and delayed responses on each server, since they are the
    most dangerous."""
    return place in ("redis", "postgresql") or hole == "answers come late"


@pytest.mark.parametrize(
    ("hole", "servers"),
    [
        pytest.param(hole, place, marks=() if _always(hole, place) else pytest.mark.more_cases)
        for hole in HOLES
        for place in ON_SERVERS
    ],
    indirect=["servers"],
)
def test_other_scheduler_leads_while_the_store_is_silent_for_one(
    site: RemoteSite, servers: list[Broken], beats: Beats, hole: str
) -> None:
    """The leader's connection falls silent, the other's works. Requests of the first may arrive when the
    other leads already: they have no effect."""
    worker = site.start()
    first = beats.start(**proxied_settings(servers))
    for step in range(3, STEPS + 1, 3):
        site.until(lambda: first.leads, "the first to lead")
        other = beats.start()
        site.until(lambda other=other: other.follows, "the other to wait")  # type: ignore[misc]
        seen = len(runs(site))
        site.until(lambda seen=seen: len(runs(site)) > seen + 2, "calls")  # type: ignore[misc]
        for each in servers:
            HOLES[hole](each.proxy, step)
        at = time.monotonic()
        site.until(lambda other=other: other.leads, "the other to lead")  # type: ignore[misc]
        took = time.monotonic() - at
        seen = len(runs(site))
        site.until(lambda seen=seen: len(runs(site)) > seen + 3, "the other to call")  # type: ignore[misc]
        for each in servers:
            if "lost" in hole:
                each.proxy.cut()
            each.proxy.heal()
        site.until(lambda: not first.leads, "the first to notice")
        assert took < TAKEOVER, f"after {step} pieces"
        assert other.end() == 0
        beats.running.remove(other)
    site.until(lambda: first.leads, "the first to lead again")
    beats.close()
    site.drained()
    worker.stop()
    assert len(runs(site)) == sum(map(len, check_due_times(site).values()))


@pytest.mark.parametrize("servers", cases(ON_SERVERS, ["redis", "postgresql", "mariadb"]), indirect=True)
@pytest.mark.parametrize("lose", [lose_requests, lose_responses])
def test_lost_response_causes_no_second_call(
    site: RemoteSite, servers: list[Broken], beats: Beats, lose: Callable[[Proxy, int], None]
) -> None:
    """At each step of a call and of a renewal a request or response is lost; then the connection is cut."""
    worker = site.start()
    beat = beats.start(**proxied_settings(servers))
    site.until(lambda: len(runs(site)) > 2, "calls")
    for broken in servers:
        for step in range(1, STEPS + 1):
            proxy = broken.proxy
            lose(proxy, step)
            site.until(lambda proxy=proxy: proxy.up.is_lost or proxy.down.is_lost, "a loss")  # type: ignore[misc]
            seen = len(runs(site))
            proxy.cut()
            proxy.heal()
            site.until(lambda seen=seen: len(runs(site)) > seen, "calls to go on")  # type: ignore[misc]
    assert beat.end() == 0
    site.drained()
    worker.stop()
    found = check_due_times(site)
    assert max(run.late for every in found.values() for run in every) < PROMPT
    assert len(runs(site)) == sum(map(len, found.values()))


@pytest.mark.parametrize("servers", ON_SERVERS, indirect=True)
def test_lost_confirmation_of_a_call(site: RemoteSite, servers: list[Broken], beats: Beats) -> None:
    """The lost response is always the one that confirms a committed call."""
    worker = site.start()
    beat = beats.start(**proxied_settings(servers))
    site.until(lambda: len(runs(site)) > 2, "calls")
    site.client.conf.update(beat_scope="faults")
    store, proxy = site.client.schedules.store, servers[-1].proxy

    def newest() -> float:
        return max(slot.due for name in EVERY for slot in store.slots(name, 1))

    for _ in range(STEPS):
        known, seen = newest(), len(runs(site))
        proxy.down.lose_when(lambda known=known: newest() > known)  # type: ignore[misc]
        site.until(lambda: proxy.down.is_lost, "a loss")
        proxy.cut()
        proxy.heal()
        site.until(lambda seen=seen: len(runs(site)) > seen + 1, "calls to go on")  # type: ignore[misc]
    assert beat.end() == 0
    site.drained()
    worker.stop()
    found = check_due_times(site)
    assert max(run.late for every in found.values() for run in every) < PROMPT
    assert len(runs(site)) == sum(map(len, found.values()))
