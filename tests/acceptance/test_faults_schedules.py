"""Schedules while those who look after them are killed and stand still, and while their store is away: every
due time is called once.

``TEST_QWORKER_BEAT_SECONDS=120`` does harm for so long; ten seconds are the usual.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.beats import Beats, Run, runs
from tests.acceptance.brokers import Broken, RemoteSite
from tests.acceptance.harness import REPOSITORY

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(300)]

SECONDS = float(os.environ.get("TEST_QWORKER_BEAT_SECONDS", "10"))
PLACES: dict[str, tuple[str, ...]] = {
    "sqlite": (),
    "redis": ("redis",),
    "postgresql": ("postgresql",),
    "rabbitmq, redis": ("rabbitmq", "redis"),
}
"""The servers: of the messages, and of all else."""
EVERY = {"often": 0.2, "sometimes": 0.5, "seldom": 1.3}
SCHEDULE = {
    name: {"task": "periodic", "schedule": seconds, "catch_up": 1000} for name, seconds in EVERY.items()
}
TOGETHER, APART = ("entries-published",), ("slots-pending", "entries-sent")
"""The steps of a call after its slot is taken, with messages in the same store and elsewhere."""
TAKEOVER = 4.0
"""Seconds within which another process is to have taken over, on a machine that does much else; see the
benchmarks for what it takes."""


@pytest.fixture(params=PLACES)
def servers(
    request: pytest.FixtureRequest, _private_servers: Callable[[str, str], Broken]
) -> Iterator[list[Broken]]:
    with ExitStack() as stack:
        found = [_private_servers(kind, "schedules") for kind in PLACES[request.param]]
        for each in found:
            stack.enter_context(each.exposed())
        yield found


@pytest.fixture
def site(tmp_path: Path, servers: list[Broken]) -> Iterator[RemoteSite]:
    file = f"sqlite:///{tmp_path}/broker.db"
    broker = servers[0].direct if servers else file
    store = servers[-1].direct if servers else file
    results = f"db+{store}" if store.startswith("postgresql") else store
    settings = {"beat_schedule": json.dumps(SCHEDULE), "worker_lease_seconds": 2, "task_max_deliveries": 50}
    with RemoteSite(tmp_path, broker, broker, results, **settings) as site:
        yield site


@pytest.fixture
def beats(site: RemoteSite) -> Iterator[Beats]:
    beats = Beats(site)
    yield beats
    beats.close()


def reckon(site: RemoteSite) -> dict[str, list[Run]]:
    """Every due time was called once, from the first to the last: by one message, and none was left out."""
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


def test_every_due_time_is_called_once(site: RemoteSite, servers: list[Broken], beats: Beats) -> None:
    chance = random.Random(sum(map(ord, site.url.partition(":")[0])))
    for _ in range(2):
        beats.start()
    workers = [site.start("-B", name=f"w{number}") for number in range(2)]
    site.until(lambda: len(runs(site)) > 3, "the first calls")
    harms: dict[str, int] = defaultdict(int)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.2, 1.0))
        harm = chance.choice(("beat", "leader", "worker", "freeze", "server"))
        harms[harm] += 1
        if harm in ("beat", "leader") and beats.running:
            leading = [each for each in beats.running if each.leads]
            beats.kill(leading[0] if harm == "leader" and leading else chance.choice(beats.running))
            beats.start()
        elif harm == "worker":
            number = chance.randrange(len(workers))
            workers[number].kill()
            workers[number] = site.start("-B", name=f"w{number}", ready=False)
        elif harm == "freeze":
            frozen = chance.choice(beats.running)
            frozen.process.send_signal(signal.SIGSTOP)
            time.sleep(2.5)
            frozen.process.send_signal(signal.SIGCONT)
        elif servers:
            server = chance.choice(servers).server
            server.kill()
            time.sleep(chance.uniform(0.0, 1.0))
            server.start()
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
    found = reckon(site)
    assert {name: len(every) > 3 for name, every in found.items()} == dict.fromkeys(EVERY, True), harms


def test_there_are_points() -> None:
    sources = (REPOSITORY / "qworker" / "beat").glob("*.py")
    found = {name for path in sources for name in re.findall(r'crash_point\("([^"]+)"\)', path.read_text())}
    assert found == {"slots-taken", *TOGETHER, *APART}


def test_a_crash_at_each_step_leaves_each_due_time_called_once(
    site: RemoteSite, servers: list[Broken], beats: Beats
) -> None:
    """Where messages are kept elsewhere, one that was sent twice runs once."""
    worker = site.start()
    for point in ("slots-taken", *(APART if len(servers) > 1 else TOGETHER)):
        hit = site.path / f"hit-{point}"
        crashing = beats.start(f"{point}@{hit}")
        site.until(hit.exists, f"the crash at {point}")
        crashing.process.wait(20)
        beats.running.clear()
        seen = len(runs(site))
        following = beats.start()
        site.until(lambda seen=seen: len(runs(site)) > seen + 3, "the next to go on")  # type: ignore[misc]
        assert following.end() == 0
        beats.running.clear()
    site.drained()
    worker.stop()
    assert len(runs(site)) == sum(map(len, reckon(site).values()))


def test_another_takes_over_from_one_that_is_killed(site: RemoteSite, beats: Beats) -> None:
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
    assert len(runs(site)) == sum(map(len, reckon(site).values()))


def test_one_that_stood_still_calls_nothing_twice(site: RemoteSite, beats: Beats) -> None:
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
    assert len(runs(site)) == sum(map(len, reckon(site).values()))
