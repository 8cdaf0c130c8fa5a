"""Workers on RabbitMQ, which reports little about received acks and nothing about dead consumers, so the
worker must track both."""

from __future__ import annotations

import pytest

from tests.acceptance.brokers import Broken, RemoteSite, Stream
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.fault,
    pytest.mark.timeout(120),
    pytest.mark.parametrize("broken", ["rabbitmq"], indirect=True),
]


def repeats(site: RemoteSite) -> int:
    starts = [record.id for record in site.records(kind=STARTED)]
    return len(starts) - len(set(starts))


def cut_often(broken: Broken, remote: RemoteSite) -> None:
    for _ in range(8):
        ran = len(remote.records(kind=STARTED))
        remote.until(lambda ran=ran: len(remote.records(kind=STARTED)) >= ran + 20, "some tasks to run")
        broken.proxy.cut()


def test_lost_connections_do_not_repeat_finished_tasks(broken: Broken, remote: RemoteSite) -> None:
    worker = remote.start()
    remote.send_many("work", [(number, 0.005) for number in range(400)])
    cut_often(broken, remote)
    remote.drained()
    worker.stop()
    check(remote)
    assert repeats(remote) == 0


def test_early_acked_tasks_never_run_twice(broken: Broken, remote: RemoteSite) -> None:
    """If it is unknown whether the ack arrived, the task fails without running; all others run, or are in
    the queue after the worker has stopped."""
    worker = remote.start()
    remote.send_many("once", [(number, 0.005) for number in range(400)])
    cut_often(broken, remote)
    remote.until(lambda: not remote.waiting(), "the queue to be empty")
    worker.stop()
    assert repeats(remote) == 0
    ran = {record.id for record in remote.records(kind=STARTED)}
    states = remote.states()
    assert ran == {id for id, state in states.items() if state == "SUCCESS"}
    pending = remote.pending()
    assert {states[id] for id in states.keys() - ran - pending} <= {"FAILURE"}
    remote.until(lambda: remote.waiting() >= len(pending), "what was given back to be in the queue")


@pytest.mark.slow
def test_acks_lost_in_a_server_kill_do_not_repeat_tasks(broken: Broken, remote: RemoteSite) -> None:
    worker = remote.start()
    remote.ended(remote.send("work"))
    stream = Stream(remote)
    for _ in range(2):
        ran = len(remote.records(kind=STARTED))
        remote.until(lambda ran=ran: len(remote.records(kind=STARTED)) >= ran + 20, "some tasks to run")
        broken.server.kill()
        broken.server.start()
        broken.server.wait()
    stream.stop()
    remote.drained(but=remote.unsure)
    worker.stop()
    check(remote)
    sure = [record.id for record in remote.records(kind=STARTED) if record.id not in remote.unsure]
    assert len(sure) == len(set(sure))


def set_permissions(broken: Broken, pattern: str) -> None:
    """Set what the user may configure, write and read in the virtual host of the test."""
    host = broken.direct.rpartition("/")[2]
    broken.server.do(
        "eval",
        f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{host}">>, '
        f'<<"{pattern}">>, <<"{pattern}">>, <<"{pattern}">>, <<"test">>).',
    )


@pytest.mark.slow
def test_temporarily_revoked_permissions_do_not_end_a_worker(broken: Broken, remote: RemoteSite) -> None:
    worker = remote.start()
    # Enough to outlast the rabbitmqctl command, which may take seconds.
    remote.send_many("work", [(number, 0.05) for number in range(300)])
    remote.until(lambda: len(remote.records(kind=STARTED)) >= 20, "some tasks to run")
    set_permissions(broken, "^$")
    broken.proxy.cut()
    remote.until(lambda: "refused" in worker.log.lower(), "the worker to be refused")
    assert worker.alive
    set_permissions(broken, ".*")
    remote.drained()
    worker.stop()
    check(remote)
    assert repeats(remote) == 0


@pytest.mark.slow
def test_deleted_queue_is_recreated_by_its_worker(broken: Broken, remote: RemoteSite) -> None:
    worker = remote.start()
    remote.ended(remote.send("work"))
    host = broken.direct.rpartition("/")[2]
    for _ in range(3):
        broken.server.do(
            "eval",
            f'{{ok, Q}} = rabbit_amqqueue:lookup({{resource, <<"{host}">>, queue, <<"celery">>}}), '
            'rabbit_amqqueue:delete(Q, false, false, <<"test">>).',
        )
        remote.ended(remote.send("work"))
    worker.stop()


def test_task_that_kills_the_main_process_becomes_a_dead_letter(remote: RemoteSite) -> None:
    """Each worker dies while it runs this task; the other messages it holds are not counted."""
    settings = {"task_max_deliveries": 3, "worker_prefetch_multiplier": 4}
    poison = remote.send("until_file", str(remote.path / "never"))
    # The poison task waits for the only process: the tasks before it must take less time than the timeout.
    good = [remote.send("work", number, 3.0) for number in range(2)]
    for death in range(3):
        worker = remote.start("-c", "1", name=f"victim{death}", **settings)
        remote.started(poison, times=death + 1)
        worker.kill()
    last = remote.start("-c", "1", name="last", **settings)
    remote.until(lambda: poison in remote.dead(), "the poison to be given up")
    (reason,) = [reason for id, reason in remote.dead().items() if id == poison]
    assert "3 deaths" in reason
    assert remote.states()[poison] == "FAILURE"
    assert set(remote.dead()) == {poison}
    remote.started(good[0])
    last.kill()
