"""Workers of a broker that is a server: killed, frozen, and beside each other. (test_faults_death.py has the
file's.)"""

from __future__ import annotations

import signal
import time

import pytest

from qworker.transports.lease import Envelope
from tests.acceptance.brokers import Broken, RemoteSite, Stream
from tests.acceptance.harness import WorkerProcess
from tests.acceptance.invariants import check
from tests.acceptance.ledger import ENDED, STARTED
from tests.acceptance.processes import gone, kill
from tests.acceptance.proxy import REFUSE
from tests.acceptance.together import (
    A_DAY,
    another_takes_over_from_who_is_killed,
    everything_runs_exactly_once,
    little_is_lost_that_must_not_run_twice,
    little_runs_again_when_workers_are_killed_at_full_speed,
    nobody_waits_behind_a_long_task,
    repeated,
    two_workers_share_a_queue,
    who_is_frozen_on_the_way_to_the_pool_starts_nothing,
    who_wakes_after_its_lease_starts_nothing,
)

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


def test_nothing_happens(remote: RemoteSite) -> None:
    """F-00: the anchor. Without a fault everything runs exactly once and all is clean."""
    everything_runs_exactly_once(remote)


def test_main_is_killed_with_work_in_flight(remote: RemoteSite) -> None:
    """F-02: its children go at once; another worker has everything back; only what ran is run again. On one
    host nobody waits for a lease to end."""
    remote.settings["worker_lease_seconds"] = A_DAY
    first = remote.start()
    go = remote.path / "go"
    long = [remote.send("until_file", str(go)) for _ in range(2)]
    remote.started(*long)
    short = remote.send_many("work", [(number, 0.002) for number in range(200)])
    later = [remote.send("work", number, countdown=1.5) for number in range(5)]
    first.kill()
    for pid in first.seen:
        remote.until(lambda pid=pid: gone(pid), "the children to go with their worker")
    second = remote.start(name="two")
    remote.started(*long, times=2)
    go.touch()
    remote.drained()
    second.stop()
    check(remote)
    assert repeated(remote) == 2, "only what was running ran twice"
    assert len(remote.states()) == len(short) + len(later) + 2


def test_main_is_killed_while_short_tasks_stream(remote: RemoteSite) -> None:
    """F-02 at full speed, three times over: batches of acks are lost with the process, never a message."""
    little_runs_again_when_workers_are_killed_at_full_speed(remote)


def test_a_busy_child_is_killed(remote: RemoteSite) -> None:
    """F-01: noticed at once, run again at once, counted; the worker itself is not disturbed."""
    worker = remote.start()
    go = remote.path / "go"
    id = remote.send("until_file", str(go))
    before = worker.wait_pool()
    for times in (1, 2, 3):
        (start,) = remote.started(id, times=times)
        kill(start.pid)
        killed = time.monotonic()
        (again,) = remote.started(id, times=times + 1)
        assert again.monotonic - killed <= (2.0 if times == 1 else 6.0), "I-10; after more deaths it waits"
        assert again.attempt == times + 1
    assert len(set(worker.wait_pool()) & set(before)) <= 1
    go.touch()
    remote.drained()
    worker.stop()
    check(remote)


def test_what_a_task_puts_back_comes_marked_and_ever_later(remote: RemoteSite) -> None:
    """Celery's own example ends at its second run; a task that never stops putting itself back keeps nobody
    busy."""
    worker = remote.start()
    once, always = remote.send("back_once"), remote.send("back_always")
    remote.until(lambda: remote.states().get(once) == "SUCCESS", "the task to run again")
    assert len(remote.records(once, STARTED)) == 2
    remote.started(always, times=4)
    at = [record.monotonic for record in remote.records(always, STARTED)]
    assert at[2] - at[1] > 0.8, "the second time it waits for a second"
    assert at[3] - at[2] > 1.8
    worker.stop()


def test_a_poison_task_is_given_up(remote: RemoteSite) -> None:
    """F-10: a task that kills its process each time ends among the dead letters,
    and good ones run meanwhile."""
    worker = remote.start()
    id = remote.send("misbehave", "kill")
    good = [remote.send("work", number, 0.01) for number in range(30)]
    remote.ended(*good)
    remote.until(lambda: id in remote.dead(), "the task to be given up")
    remote.drained()
    worker.stop()
    check(remote)
    assert len(remote.records(id, STARTED)) == 5
    assert remote.states()[id] == "FAILURE"


def test_two_workers_share_a_queue(remote: RemoteSite) -> None:
    two_workers_share_a_queue(remote)


def test_a_worker_is_killed_beside_another(remote: RemoteSite) -> None:
    another_takes_over_from_who_is_killed(remote)
    assert repeated(remote) == 2


def test_nobody_waits_behind_a_long_task(remote: RemoteSite) -> None:
    nobody_waits_behind_a_long_task(remote)


def test_little_is_lost_that_must_not_run_twice(remote: RemoteSite) -> None:
    little_is_lost_that_must_not_run_twice(remote)


@pytest.mark.parametrize("broken", ["redis", "postgresql"], indirect=True)
def test_who_wakes_after_its_lease_starts_nothing(remote: RemoteSite) -> None:
    who_wakes_after_its_lease_starts_nothing(remote)


@pytest.mark.parametrize("whole", [False, True], ids=["worker", "tree"])
@pytest.mark.parametrize("broken", ["redis", "postgresql"], indirect=True)
def test_who_is_frozen_on_the_way_to_the_pool_starts_nothing(remote: RemoteSite, whole: bool) -> None:
    who_is_frozen_on_the_way_to_the_pool_starts_nothing(remote, "dispatching", whole)


@pytest.mark.parametrize("broken", ["redis", "postgresql"], indirect=True)
def test_term_while_the_broker_is_away(broken: Broken, remote: RemoteSite) -> None:
    """What ends meanwhile is settled when the broker is back; it does not run again."""
    worker = remote.start()
    go = remote.path / "go"
    ids = [remote.send("until_file", str(go)) for _ in range(2)]
    remote.started(*ids)
    broken.proxy.mode = REFUSE
    broken.proxy.cut()
    worker.signal(signal.SIGTERM)
    remote.until(lambda: "stopping: waiting" in worker.log, "it to stop")
    go.touch()
    remote.until(lambda: "settlements wait" in worker.log, "the pool to be done")
    broken.proxy.heal()
    assert worker.wait() == 0, worker.log
    second = remote.start(name="two")
    remote.drained()
    second.stop()
    check(remote)
    assert repeated(remote) == 0


def test_term_while_the_broker_stays_away(broken: Broken, remote: RemoteSite) -> None:
    """It is waited for as long as the shutdown may take; then what will run again is named."""
    worker = remote.start(worker_shutdown_timeout=1)
    go = remote.path / "go"
    ids = [remote.send("until_file", str(go)) for _ in range(2)]
    remote.started(*ids)
    broken.proxy.mode = REFUSE
    broken.proxy.cut()
    remote.until(lambda: "the broker does not answer" in worker.log, "it to notice")
    go.touch()
    remote.ended(*ids)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 3, worker.log
    assert "2 tasks ended and will run again" in worker.log
    assert all(worker.log.count(id) for id in ids)
    broken.proxy.heal()
    second = remote.start(name="two")
    remote.drained()
    second.stop()
    check(remote)


def test_an_early_ack_that_does_not_arrive(broken: Broken, remote: RemoteSite) -> None:
    """A task that is acknowledged first does not start before the broker is known to have heard it."""
    first = remote.start()
    remote.ended(remote.send("once", 1))
    remote.drained()
    broken.proxy.up.lost = True
    with RemoteSite(remote.path, broken.direct, broken.direct) as beside:
        beside.send("once", 2)
        remote.sent.update(beside.sent)
    time.sleep(1.0)
    first.kill()
    broken.proxy.cut()
    broken.proxy.heal()
    second = remote.start(name="two")
    remote.drained()
    second.stop()
    check(remote)
    assert repeated(remote) == 0
    assert len(remote.records(kind=STARTED)) == 2


def test_what_is_unreadable_after_its_early_ack_becomes_a_dead_letter(remote: RemoteSite) -> None:
    """Either worker may get it when it is sent again."""
    workers = remote.start(), remote.start(name="two")
    headers = '{"task": "once", "id": "cut off"}'
    cut = Envelope(remote.client.conf.task_default_queue, headers, None, b"[[1]")
    remote.client.broker.sender.push([cut])
    remote.until(lambda: "cut off" in remote.dead(), "the dead letter")
    remote.drained()
    for worker in workers:
        worker.stop()
    assert remote.client.AsyncResult("cut off").state == "FAILURE"


@pytest.mark.parametrize("broken", ["redis", "postgresql"], indirect=True)
def test_an_early_ack_outlives_the_broker(broken: Broken, remote: RemoteSite) -> None:
    """The broker is killed when the task has just begun, and its worker too: the task is lost, and not run
    again. (RabbitMQ writes down acks when it likes.)"""
    first = remote.start()
    ids = [remote.send("once", number, 2.0) for number in range(2)]
    remote.started(*ids)
    broken.server.kill()
    first.kill()
    broken.server.start()
    second = remote.start(name="two")
    remote.ended(remote.send("work", 1))
    remote.drained(but={"once"})
    second.stop()
    check(remote, lost=ids)
    assert repeated(remote) == 0


def frozen_until_another_is_done(remote: RemoteSite) -> tuple[WorkerProcess, WorkerProcess, list[int]]:
    """A worker that is frozen while it works, the one that did all that work then, and whom to thaw."""
    first = remote.start()
    ids = [remote.send("work", number, 0.4) for number in range(6)]
    remote.started(ids[0])
    frozen = first.tree()
    for pid in frozen:
        kill(pid, signal.SIGSTOP)
    second = remote.start(name="two")
    remote.drained()
    return first, second, frozen


@pytest.mark.parametrize("broken", ["redis", "postgresql"], indirect=True)
def test_a_frozen_worker_loses_its_lease(remote: RemoteSite) -> None:
    """F-06: another takes over; when the first wakes, its late results and acks are refused."""
    remote.settings["worker_lease_seconds"] = 2
    first, second, frozen = frozen_until_another_is_done(remote)
    taken = len(remote.records(kind=STARTED))
    for pid in frozen:
        kill(pid, signal.SIGCONT)
    remote.until(lambda: "silent" in first.log or "lease was lost" in first.log, "it to notice")
    more = [remote.send("work", number, 0.05) for number in range(10)]
    remote.drained()
    remote.ended(*more)
    remote.until(
        lambda: len(remote.records(kind=STARTED)) == len(remote.records(kind=ENDED)),
        "the thawed tasks to end",
    )
    first.stop()
    second.stop()
    check(remote, overlaps=True)
    assert len(remote.records(kind=STARTED)) <= taken + 10 + 2, (
        "what had not started when it froze is not run twice"
    )


@pytest.mark.parametrize("broken", ["rabbitmq"], indirect=True)
def test_a_frozen_worker_falls_silent_for_rabbitmq(remote: RemoteSite) -> None:
    """F-06 where the server's heartbeat is the lease."""
    remote.settings["broker_heartbeat"] = 2
    first, second, frozen = frozen_until_another_is_done(remote)
    for pid in frozen:
        kill(pid, signal.SIGCONT)
    more = [remote.send("work", number, 0.05) for number in range(10)]
    remote.drained()
    remote.ended(*more)
    first.signal(signal.SIGTERM)
    assert first.wait() in (0, 3)  # 3: what it had run was told only now that others had it
    second.stop()
    check(remote, overlaps=True)
    assert repeated(remote) <= 4, "what ran, and what its frozen children were given"


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["redis", "postgresql"], indirect=True)
def test_an_outage_longer_than_the_lease(broken: Broken, remote: RemoteSite) -> None:
    """Both workers live through it, and neither takes the other for dead: nothing runs twice."""
    remote.settings["worker_lease_seconds"] = 3
    workers = [remote.start(name=name) for name in ("one", "two")]
    ids = remote.send_many("work", [(number, 9.0) for number in range(4)])
    remote.started(*ids)
    broken.server.freeze()
    time.sleep(5.0)
    broken.server.thaw()
    remote.drained()
    remote.ended(*ids)
    assert repeated(remote) == 0
    for worker in workers:
        assert "is dead" not in worker.log
        worker.stop()


def test_a_task_longer_than_the_lease(remote: RemoteSite) -> None:
    """F-64, F-57: a live worker renews; nobody else takes what it runs, or what it holds for later."""
    # A crowded machine has let a worker stand still for most of a second: two of them are more than that.
    remote.settings["worker_lease_seconds"] = 2
    workers = [remote.start(name=name) for name in ("one", "two")]
    ids = [remote.send("work", number, 5.0) for number in range(3)]
    later = [remote.send("work", number, countdown=4.0) for number in range(10)]
    remote.drained()
    remote.ended(*ids, *later)
    for worker in workers:
        worker.stop()
        assert "is dead" not in worker.log, worker.log
    check(remote)
    assert repeated(remote) == 0


@pytest.mark.slow
def test_deploys_under_load(remote: RemoteSite) -> None:
    """F-04: TERM and a new worker, three times, while tasks stream in: nothing runs twice."""
    stream = Stream(remote, rate=50.0)
    for number in range(3):
        worker = remote.start(name=f"worker{number}")
        goal = len(remote.records()) + 60
        remote.until(lambda goal=goal: len(remote.records()) > goal, "tasks to run")
        worker.stop()
    stream.stop()
    last = remote.start(name="last")
    remote.drained()
    last.stop()
    check(remote)
    assert not remote.unsure
    assert repeated(remote) == 0
