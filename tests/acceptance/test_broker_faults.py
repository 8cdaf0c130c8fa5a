"""Faults of broker servers and of the network: killed, frozen, cut, slow, silent and full servers, with
workers that use them.

Every test sends a steady stream of tasks during a fault and checks the same guarantees: every accepted
call ends with a result; repeats are bounded by a given number; work continues within RECOVERY seconds of
the fault's end; the worker is the same process and has not grown; nothing is left behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qworker import AsyncResult, QWorker, Signature, chord
from qworker.errors import BrokerUnavailable, QWorkerError
from tests.acceptance.brokers import Broken, RemoteSite, Stream
from tests.acceptance.harness import WorkerProcess
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED, messages_run
from tests.acceptance.private_servers import BROKERS
from tests.acceptance.processes import open_files, resident
from tests.acceptance.proxy import BLACK_HOLE, REFUSE
from tests.support.cases import cases

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(120)]

RECOVERY = 5.0
"""Seconds after the end of a fault in which the next task must start."""
GROWTH = 48 << 20
"""Bytes that a worker's main process may grow by."""
IN_FLIGHT = 8
"""Tasks that may run again because a fault came between their end and their ack: those of one flush and
two processes."""
WAIT = 2.5
"""Seconds that a fault lasts: long enough for the worker to notice it and to retry several times."""


# -- faults: each breaks a broker, and repairs it before it returns --


def killed(broken: Broken) -> None:
    broken.server.kill()
    time.sleep(WAIT)
    broken.server.start()


def stopped(broken: Broken) -> None:
    broken.server.stop()
    time.sleep(WAIT)
    broken.server.start()


def frozen(broken: Broken) -> None:
    broken.server.freeze()
    time.sleep(7.0)
    broken.server.thaw()


def cut(broken: Broken) -> None:
    for _ in range(5):
        broken.proxy.cut()
        time.sleep(0.5)


def ended(broken: Broken) -> None:
    for _ in range(3):
        broken.proxy.cut(fin=True)
        time.sleep(0.5)


def refused(broken: Broken) -> None:
    broken.proxy.mode = REFUSE
    broken.proxy.cut()
    time.sleep(WAIT)
    broken.proxy.heal()


def answers_held(broken: Broken) -> None:
    """Half-open: requests arrive, but answers do not."""
    broken.proxy.down.open = False
    time.sleep(4.0)
    broken.proxy.mode = REFUSE
    broken.proxy.cut()
    broken.proxy.heal()


def questions_held(broken: Broken) -> None:
    """Half-open the other way: requests only arrive later, when nothing waits for the answers any more."""
    broken.proxy.up.open = False
    time.sleep(4.0)
    broken.proxy.heal()


def black_hole(broken: Broken) -> None:
    """Open and new connections get no answers; at the end they are reset."""
    broken.proxy.mode = BLACK_HOLE
    broken.proxy.up.lost = broken.proxy.down.lost = True
    time.sleep(5.0)
    broken.proxy.cut()
    broken.proxy.heal()


def stranded(broken: Broken) -> None:
    """A router forgets the connections: only the silence shows it."""
    broken.proxy.strand()
    time.sleep(6.0)


def slow(broken: Broken) -> None:
    for link in (broken.proxy.up, broken.proxy.down):
        link.delay, link.rate = 0.1, 64_000.0
    time.sleep(4.0)
    broken.proxy.heal()


class Fault(NamedTuple):
    """repeats: how many runs there may be beyond one per call, not counting calls that were unsure. halts:
    no task can start during the fault, which proves that it took effect."""

    act: Callable[[Broken], None]
    repeats: int = IN_FLIGHT
    halts: bool = True


FAULTS = [
    Fault(killed),
    Fault(stopped),
    Fault(frozen),
    Fault(cut, 5 * IN_FLIGHT, halts=False),
    Fault(ended, 3 * IN_FLIGHT, halts=False),
    Fault(refused),
    Fault(answers_held),
    Fault(questions_held),
    Fault(black_hole),
    Fault(slow, 0, halts=False),
]


ON_ALL_SERVERS = (killed, frozen, cut, answers_held, black_hole)
"""Faults that each server and its client library handle in their own way. The other faults are tested on
one server only: a stopped server behaves like a killed one, and so on."""


def _always(kind: str, fault: Fault) -> bool:
    return kind == "redis" or fault.act in ON_ALL_SERVERS


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        pytest.param(
            kind,
            fault,
            id=f"{kind}-{fault.act.__name__}",
            marks=() if _always(kind, fault) else pytest.mark.more_cases,
        )
        for kind in BROKERS
        for fault in FAULTS
    ],
    indirect=["broken"],
)
def test_task_stream_survives(fault: Fault, broken: Broken, remote: RemoteSite) -> None:
    _survives(fault, broken, remote)


@pytest.mark.parametrize("broken", ["redis", "rabbitmq"], indirect=True)
def test_task_stream_survives_silent_connections(broken: Broken, remote: RemoteSite) -> None:
    """Not on PostgreSQL: its statement timeout of 30 s would have to pass."""
    _survives(Fault(stranded), broken, remote)


# -- faults of one kind of server --


def clients_killed(broken: Broken) -> None:
    for _ in range(5):
        for kind in ("normal", "pubsub"):
            broken.server.do("CLIENT", "KILL", "TYPE", kind)
        time.sleep(0.5)


def clients_paused(broken: Broken) -> None:
    broken.server.do("CLIENT", "PAUSE", 4000, "ALL")
    time.sleep(4.0)


def writes_paused(broken: Broken) -> None:
    broken.server.do("CLIENT", "PAUSE", 4000, "WRITE")
    time.sleep(4.0)


def memory_full(broken: Broken) -> None:
    broken.server.do("CONFIG", "SET", "maxmemory", "1")
    time.sleep(WAIT)
    broken.server.do("CONFIG", "SET", "maxmemory", "0")


def scripts_forgotten(broken: Broken) -> None:
    for _ in range(30):
        broken.server.do("SCRIPT", "FLUSH")
        time.sleep(0.1)


def made_a_replica(broken: Broken) -> None:
    """A failover after which this server is a read-only replica whose master is down."""
    broken.server.do("REPLICAOF", "127.0.0.1", 1)
    time.sleep(WAIT)
    broken.server.do("REPLICAOF", "NO", "ONE")


REDIS_FAULTS = [
    Fault(clients_killed, 5 * IN_FLIGHT, halts=False),
    Fault(clients_paused),
    Fault(writes_paused),
    Fault(memory_full),
    Fault(scripts_forgotten, 0, halts=False),
    Fault(made_a_replica),
]


@pytest.mark.parametrize("broken", ["redis"], indirect=True)
@pytest.mark.parametrize("fault", REDIS_FAULTS, ids=lambda fault: fault.act.__name__)
def test_task_stream_survives_on_redis(fault: Fault, broken: Broken, remote: RemoteSite) -> None:
    _survives(fault, broken, remote)


def connections_closed(broken: Broken) -> None:
    for _ in range(3):
        broken.server.do("close_all_connections", "--global", "said so by a test")


def memory_alarm(broken: Broken) -> None:
    """Blocks publishers, but not consumers."""
    broken.server.do("set_vm_memory_high_watermark", "absolute", "1MB")
    time.sleep(WAIT)
    broken.server.do("set_vm_memory_high_watermark", "absolute", "1GB")


RABBITMQ_FAULTS = [
    Fault(connections_closed, 3 * IN_FLIGHT, halts=False),
    Fault(memory_alarm),
]


@pytest.mark.parametrize("broken", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("fault", RABBITMQ_FAULTS, ids=lambda fault: fault.act.__name__)
def test_task_stream_survives_on_rabbitmq(fault: Fault, broken: Broken, remote: RemoteSite) -> None:
    _survives(fault, broken, remote)


def backends_terminated(broken: Broken) -> None:
    for _ in range(5):
        broken.server.terminate_backends()
        time.sleep(0.5)


def table_locked(broken: Broken) -> None:
    """A migration holds the table lock for longer than the statement timeout."""
    broken.server.do("BEGIN; LOCK TABLE qworker_message IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(8); COMMIT")


POSTGRESQL_FAULTS = [
    Fault(backends_terminated, 5 * IN_FLIGHT, halts=False),
    Fault(table_locked),
]


@pytest.mark.parametrize("broken", ["postgresql"], indirect=True)
@pytest.mark.parametrize("fault", POSTGRESQL_FAULTS, ids=lambda fault: fault.act.__name__)
def test_task_stream_survives_on_postgresql(fault: Fault, broken: Broken, remote: RemoteSite) -> None:
    _survives(fault, broken, remote)


# -- several faults --


def test_task_stream_survives_many_restarts(broken: Broken, remote: RemoteSite) -> None:
    """RabbitMQ takes 5 s to start, so it is restarted less often."""
    count = 3 if broken.server.binary == "rabbitmq-server" else 10

    def restarts() -> None:
        for _ in range(count):
            broken.server.kill()
            broken.server.start()
            time.sleep(0.3)

    worker = remote.start()
    survives(remote, worker, restarts, count * IN_FLIGHT)


@pytest.mark.parametrize("broken", ["redis"], indirect=True)
def test_full_redis_refuses_calls_but_accepts_acks(broken: Broken, remote: RemoteSite) -> None:
    """F-32: new calls fail with the reason; tasks that end are acknowledged, which frees memory."""
    worker = remote.start()
    go = remote.path / "go"
    ids = [remote.send("until_file", str(go)) for _ in range(2)]
    remote.started(*ids)
    broken.server.do("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(BrokerUnavailable, match="memory is full"):
        remote.send("work", 1, retry=False)
    go.touch()
    remote.until(lambda: remote.waiting() == 0, "the two to be acknowledged")
    broken.server.do("CONFIG", "SET", "maxmemory", "0")
    remote.ended(remote.send("work", 2))
    remote.drained()
    assert worker.alive
    finish(remote, 0)


def test_result_backend_outage_delays_acks(broken: Broken, results: Broken, tmp_path: Path) -> None:
    """F-65: nothing is acknowledged without its result; broker and worker continue, and in the end every
    call has one."""
    with (
        broken.exposed(),
        RemoteSite(tmp_path, broken.url, broken.direct, results.url) as site,
    ):
        worker = site.start()

        def away() -> None:
            results.server.kill()
            time.sleep(5.0)
            results.server.start()

        survives(site, worker, away, IN_FLIGHT)
        assert "the result store answers again" in worker.log
        assert "the broker answers again" not in worker.log


def test_join_survives_a_result_backend_outage(broken: Broken, results: Broken, tmp_path: Path) -> None:
    """Some parts are counted before and some after the outage; the body runs once, with all values."""
    with broken.exposed(), RemoteSite(tmp_path, broken.url, broken.direct, results.url) as site:
        worker = site.start("--concurrency", "3")
        go, app = tmp_path / "go", site.client
        inner = chord(
            [Signature("work", (1,), app=app), _waits(app, go)], Signature("close", app=app), app=app
        )
        header = [inner, _waits(app, go), *(Signature("work", (number,), app=app) for number in range(4))]
        result = chord(header, Signature("close", app=app), app=app).apply_async()
        site.until(lambda: len(site.records(kind=STARTED)) == 7, "all members to start")
        results.server.kill()
        go.touch()
        site.until(lambda: "the result store" in worker.log, "the worker to notice")
        results.server.start()
        site.until(lambda: _has_ended(result), "the chord to end")
        assert result.get(timeout=10) == [[1, str(go)], str(go), 0, 1, 2, 3]
        site.drained()
        site.until(lambda: app.backend.joins.count() == 0, "the joins to be done")
        worker.stop()
        assert [len(tags) for tags in messages_run(tmp_path / "bodies").values()] == [1, 1]


def _waits(app: QWorker, go: Path) -> Signature:
    return Signature("until_file", (str(go),), app=app)


def _has_ended(result: AsyncResult[Any]) -> bool:
    with suppress(QWorkerError):  # the backend may not answer yet
        return result.ready()
    return False


@pytest.mark.parametrize("how", cases(["raise", "die", "replace", "retry"], ["die", "retry"]))
def test_follow_up_messages_are_sent_after_a_broker_outage(
    broken: Broken, remote: RemoteSite, tmp_path: Path, how: str
) -> None:
    """Errbacks of a task that fails or whose process dies during the outage; its next attempt; its
    replacement."""
    worker = remote.start(task_publish_timeout=1)
    file = tmp_path / "go"
    ids = [remote.send("end_with_file", str(file), how, link_error=Signature("close")) for _ in range(2)]
    remote.until(lambda: len(remote.records(kind=STARTED)) == 2, "both to run")
    broken.server.kill()
    file.touch()
    # RabbitMQ requeues unacked messages at once: then there is nothing to report.
    said = ("cannot be reported now", "go to others") if how == "die" else ("cannot be sent",)
    remote.until(lambda: any(words in worker.log for words in said), "the first to end")
    broken.server.start()
    remote.ended(*ids)
    remote.drained()
    assert set(remote.states().values()) == {"FAILURE" if how in ("raise", "die") else "SUCCESS"}
    if how != "retry":
        remote.until(lambda: len(messages_run(tmp_path / "bodies")) >= 2, "the errbacks to run")
    assert worker.alive


# -- common assertions --


def _survives(fault: Fault, broken: Broken, site: RemoteSite) -> None:
    # Short heartbeats and timeouts, so that silent connections are noticed soon.
    site.settings["broker_heartbeat"] = 3
    site.settings["broker_transport_options"] = '{"socket_timeout": 3.0}'
    worker = site.start()
    survives(site, worker, lambda: fault.act(broken), fault.repeats)
    if fault.halts:
        starts = [record.wall for record in site.records(kind=STARTED)]
        assert max(after - before for before, after in pairwise(starts)) > 2.0, "there was no fault"


def survives(site: RemoteSite, worker: WorkerProcess, fault: Callable[[], None], repeats: int) -> None:
    """Send tasks during *fault*; assert every guarantee in the module docstring."""
    stream = Stream(site)
    site.until(lambda: len(site.records(kind=STARTED)) > 20, "the stream to flow")
    memory, files = resident(worker.pid), open_files(worker.pid)
    fault()
    over = time.time()
    recovered(site, over)
    stream.stop()
    assert stream.slowest < 15.0, "a call is answered, or refused, in time"
    ids = [site.send("work", number) for number in range(20)]
    site.drained()
    site.ended(*ids)
    assert resident(worker.pid) - memory < GROWTH
    assert open_files(worker.pid) <= files + 6
    finish(site, repeats)


def recovered(site: RemoteSite, over: float) -> float:
    """Wait until a task has started after the instant *over*; return the seconds, RECOVERY at most."""
    first = site.until(
        lambda: next((record.wall for record in site.records(kind=STARTED) if record.wall > over), None),
        "work to go on",
    )
    assert first - over <= RECOVERY
    return first - over


def finish(site: RemoteSite, repeats: int, overlaps: bool = True) -> None:
    """Stop all workers; check the invariants and that at most *repeats* runs were repetitions."""
    for worker in site.workers:
        if worker.alive:
            worker.stop()
    check(site, overlaps=overlaps)
    starts = [record.id for record in site.records(kind=STARTED) if record.id in site.sent]
    again = len(starts) - len(set(starts))
    assert again <= repeats, f"{again} runs were repeated"
