"""Workers on broker servers: killed, frozen, and several at a time. (See test_faults_death.py for the
embedded broker.)"""

from __future__ import annotations

import signal
import time
from itertools import product
from pathlib import Path

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
    everything_runs_exactly_once,
    few_early_acked_tasks_are_lost,
    few_tasks_repeat_when_workers_are_killed_at_full_speed,
    frozen_worker_blocks_no_others,
    killed_worker_is_taken_over_by_another,
    repeated,
    short_tasks_do_not_wait_behind_a_long_one,
    two_workers_share_a_queue,
    worker_frozen_while_dispatching_starts_nothing,
    worker_thawed_after_its_lease_starts_nothing,
)
from tests.support.cases import cases

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


def test_everything_runs_once_without_faults(remote: RemoteSite) -> None:
    """F-00: the baseline."""
    everything_runs_exactly_once(remote)


def test_killed_main_process_is_replaced_without_waiting_for_its_lease(remote: RemoteSite) -> None:
    """F-02: its children die at once; another worker gets all its messages; only tasks that were running
    run again."""
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


def test_main_process_killed_while_short_tasks_stream(remote: RemoteSite) -> None:
    """F-02 at full speed, three times: batches of acks may be lost with the process, but no message."""
    few_tasks_repeat_when_workers_are_killed_at_full_speed(remote)


def test_killed_child_is_replaced_and_its_task_runs_again(remote: RemoteSite) -> None:
    """F-01: at once, with a delivery count; the worker itself is not affected."""
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


def test_requeued_task_is_marked_redelivered_and_increasingly_delayed(remote: RemoteSite) -> None:
    """Celery's own example ends at its second run; a task that requeues itself forever does not keep the
    worker busy."""
    worker = remote.start()
    once, always = remote.send("back_once"), remote.send("back_always")
    remote.until(lambda: remote.states().get(once) == "SUCCESS", "the task to run again")
    assert len(remote.records(once, STARTED)) == 2
    remote.started(always, times=4)
    at = [record.monotonic for record in remote.records(always, STARTED)]
    assert at[2] - at[1] > 0.8, "the second time it waits for a second"
    assert at[3] - at[2] > 1.8
    worker.stop()


def test_poison_task_becomes_a_dead_letter(remote: RemoteSite) -> None:
    """F-10: a task that kills its process each time is given up, and others run meanwhile."""
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


def test_killed_worker_is_taken_over_by_another(remote: RemoteSite) -> None:
    killed_worker_is_taken_over_by_another(remote)
    assert repeated(remote) == 2


def test_short_tasks_do_not_wait_behind_a_long_one(remote: RemoteSite) -> None:
    short_tasks_do_not_wait_behind_a_long_one(remote)


def test_few_early_acked_tasks_are_lost(remote: RemoteSite) -> None:
    few_early_acked_tasks_are_lost(remote)


@pytest.mark.parametrize("broken", ["redis", "postgresql"], indirect=True)
def test_worker_thawed_after_its_lease_starts_nothing(remote: RemoteSite) -> None:
    worker_thawed_after_its_lease_starts_nothing(remote)


@pytest.mark.parametrize(
    ("broken", "point"),
    cases(
        product(("postgresql", "mariadb"), ("acking", "recording-parts")),
        [("postgresql", "recording-parts"), ("mariadb", "acking"), ("mariadb", "recording-parts")],
    ),
    indirect=["broken"],
)
def test_frozen_worker_blocks_no_others(broken: Broken, tmp_path: Path, point: str) -> None:
    """These settle in a transaction of several statements, with the results."""
    with broken.exposed(), RemoteSite(tmp_path, broken.url, broken.direct, f"db+{broken.url}") as site:
        frozen_worker_blocks_no_others(site, point)


@pytest.mark.parametrize("whole", [False, True], ids=["worker", "tree"])
@pytest.mark.parametrize("broken", ["redis", "postgresql"], indirect=True)
def test_worker_frozen_while_dispatching_starts_nothing(remote: RemoteSite, whole: bool) -> None:
    worker_frozen_while_dispatching_starts_nothing(remote, "dispatching", whole)


@pytest.mark.parametrize("broken", ["redis", "postgresql"], indirect=True)
def test_sigterm_during_a_broker_outage(broken: Broken, remote: RemoteSite) -> None:
    """Tasks that end during the outage are settled after it; they do not run again."""
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


def test_sigterm_during_a_permanent_broker_outage(broken: Broken, remote: RemoteSite) -> None:
    """The worker waits until the shutdown timeout; then it names the tasks that will run again."""
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
    remote.started(*ids, times=2)  # RabbitMQ does not count what a worker holds
    remote.drained()
    second.stop()
    check(remote)


def test_lost_early_ack_prevents_the_start(broken: Broken, remote: RemoteSite) -> None:
    """An early-acked task only starts after the broker has confirmed the ack."""
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


def test_unreadable_early_acked_message_becomes_a_dead_letter(remote: RemoteSite) -> None:
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
def test_early_ack_survives_a_broker_kill(broken: Broken, remote: RemoteSite) -> None:
    """Broker and worker are killed right after the start of the task: it is lost, and does not run again.
    (RabbitMQ does not persist acks at once.)"""
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


def freeze_until_another_is_done(remote: RemoteSite) -> tuple[WorkerProcess, WorkerProcess, list[int]]:
    """A worker frozen while working, the one that did all the work meanwhile, and the process ids to thaw."""
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
def test_frozen_worker_loses_its_lease(remote: RemoteSite) -> None:
    """F-06: another takes over; when the first is thawed, its late results and acks are refused."""
    remote.settings["worker_lease_seconds"] = 2
    first, second, frozen = freeze_until_another_is_done(remote)
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
def test_frozen_worker_misses_rabbitmq_heartbeats(remote: RemoteSite) -> None:
    """F-06 where the server's heartbeat is the lease."""
    remote.settings["broker_heartbeat"] = 2
    first, second, frozen = freeze_until_another_is_done(remote)
    for pid in frozen:
        kill(pid, signal.SIGCONT)
    more = [remote.send("work", number, 0.05) for number in range(10)]
    remote.drained()
    remote.ended(*more)
    first.signal(signal.SIGTERM)
    assert first.wait() in (0, 3)  # 3: it learned only now that others run its tasks
    second.stop()
    check(remote, overlaps=True)
    assert repeated(remote) <= 4, "what ran, and what its frozen children were given"


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["redis", "postgresql"], indirect=True)
def test_broker_outage_longer_than_the_lease_repeats_nothing(broken: Broken, remote: RemoteSite) -> None:
    """Both workers survive, and neither considers the other dead."""
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


def test_task_longer_than_the_lease_is_not_repeated(remote: RemoteSite) -> None:
    """F-64, F-57: a live worker renews its lease; no other takes its running or delayed tasks."""
    # On a busy machine a worker may stand still for most of a second, so the lease is longer than that.
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
def test_deploys_under_load_repeat_nothing(remote: RemoteSite) -> None:
    """F-04: SIGTERM and a new worker, three times, during a stream of tasks."""
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
