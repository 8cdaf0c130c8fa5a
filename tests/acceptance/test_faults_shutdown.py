"""Shutdowns: warm, by deadline and cold, rolling deploys, and signals without effect."""

from __future__ import annotations

import itertools
import random
import signal
import time

import pytest

from tests.acceptance.harness import Site
from tests.acceptance.invariants import check
from tests.acceptance.ledger import ENDED, STARTED

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

READY = "SELECT count(*) FROM message WHERE state = 0 AND deliveries = 0 AND owner IS NULL"


def test_rolling_deploy_loses_and_repeats_nothing(site: Site) -> None:
    """F-04: SIGTERM, then the next worker, twice; the gap is short."""
    site.send_many("work", [(number, 0.01) for number in range(300)])
    handovers, stopping = [], time.monotonic()
    for name, goal in (("one", 80), ("two", 160), ("three", 10_000)):
        worker = site.start(name=name)
        handovers.append(time.monotonic() - stopping)
        site.until(lambda goal=goal: len(site.records()) > goal or not site.waiting(), "tasks to run")
        stopping = time.monotonic()
        worker.stop()
    check(site)
    starts = site.records(kind=STARTED)
    assert len(starts) == 300
    times = sorted(record.monotonic for record in starts)
    gap = max(after - before for before, after in itertools.pairwise(times))
    assert gap < 2 * max(handovers) + 1.0, "no longer than stopping and starting take"


def test_warm_shutdown_waits_for_running_tasks(site: Site) -> None:
    """Tasks that have not started are returned to the queue before the worker exits."""
    worker = site.start()
    go = site.path / "go"
    running = [site.send("until_file", str(go)) for _ in range(2)]
    site.started(*running)
    waiting = [site.send("work", number) for number in range(10)]
    soon = [site.send("work", number, countdown=1.0) for number in range(3)]
    worker.signal(signal.SIGTERM)
    # They are also in the queue if the worker has not fetched them yet.
    site.until(lambda: "stopping: waiting" in worker.log, "the worker to have heard")
    site.until(
        lambda: site.query("SELECT count(*) FROM message WHERE owner IS NULL") == [(13,)],
        "the rest to go back",
    )
    assert worker.alive
    go.touch()
    assert worker.wait() == 0, worker.log
    assert {record.id for record in site.records(kind=ENDED)} == set(running)
    second = site.start(name="two")
    site.drained()
    second.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == len(running) + len(waiting) + len(soon)


@pytest.mark.parametrize(
    "orders",
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGQUIT,), (signal.SIGINT, signal.SIGINT)],
    ids=["TERM TERM", "QUIT", "INT INT"],
)
def test_cold_shutdown_returns_running_tasks(site: Site, orders: tuple[int, ...]) -> None:
    """F-05: a shutdown is not the task's failure: the task is returned without a delivery count, and the
    exit code is 3."""
    worker = site.start()
    go = site.path / "go"
    ids = [site.send("until_file", str(go)) for _ in range(5)]
    site.started(*ids[:2])
    worker.pool()
    for number, order in enumerate(orders):
        if number:
            # The worker must have handled the first one: two pending signals are merged into one.
            site.until(lambda: "stopping: waiting" in worker.log, "the worker to drain")
        worker.signal(order)
    assert worker.wait() == 3, worker.log  # the tasks would run forever
    assert site.query(READY) == [(5,)]
    second = site.start(name="two")
    site.started(*ids[:2], times=2)
    go.touch()
    site.drained()
    second.stop()
    check(site)
    assert {record.attempt for record in site.records()} == {1}


def test_shutdown_timeout_returns_running_tasks(site: Site) -> None:
    """A task that runs longer than the shutdown timeout is interrupted and returned to the queue, not
    failed."""
    worker = site.start(worker_shutdown_timeout=0.3)
    go = site.path / "go"
    ids = [site.send(task, str(go)) for task in ("until_file", "until_file_async")]
    site.started(*ids)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 3, worker.log
    assert "finished 0, given back 2, of these interrupted 2" in worker.log
    assert site.states() == {}
    assert site.query(READY) == [(2,)]
    second = site.start(name="two")
    go.touch()
    site.drained()
    second.stop()
    check(site)
    assert set(site.states().values()) == {"SUCCESS"}


def test_unresponsive_task_does_not_block_the_shutdown(site: Site) -> None:
    """It ignores the interruption: it is killed and returned to the queue."""
    worker = site.start(worker_shutdown_timeout=0.2)
    id = site.send("deaf", "ignore")
    site.started(id)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 3, worker.log
    assert site.query(READY) == [(1,)]
    site.client.AsyncResult(id).revoke()
    second = site.start(name="two")
    site.drained()
    second.stop()
    check(site)
    assert site.states() == {id: "REVOKED"}


def test_cold_shutdown_does_not_repeat_early_acked_tasks(site: Site) -> None:
    """acks_late=False: running tasks are lost with their process, those that have not started are not."""
    worker = site.start()
    ids = [site.send("once", number, 30.0) for number in range(2)]
    site.started(*ids)
    waiting = [site.send("once", number) for number in range(20)]
    site.until(lambda: len(site.query("SELECT tag FROM message WHERE owner IS NOT NULL")) < 20, "some acks")
    worker.signal(signal.SIGQUIT)
    worker.wait()
    second = site.start(name="two")
    site.ended(*waiting)
    site.drained()
    second.stop()
    check(site, lost=ids)


def test_sigterm_during_startup(site: Site) -> None:
    worker = site.start(ready=False)
    id = site.send("work", 1)
    site.until(lambda: "qworker" in worker.log, "the first line")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.log
    second = site.start(name="two")
    site.ended(id)
    second.stop()
    check(site)


def test_many_signals_without_meaning(site: Site) -> None:
    """F-19: a thousand of them have no effect."""
    worker = site.start()
    site.send_many("work", [(number, 0.002) for number in range(400)])
    harmless = ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTTIN", "SIGTTOU", "SIGCHLD")
    chance = random.Random(19)
    for _ in range(1000):
        worker.signal(getattr(signal, chance.choice(harmless)))
        time.sleep(0.0005)
    site.drained()
    worker.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == 400
    assert "Traceback" not in worker.log


def test_two_workers_with_the_same_name(site: Site) -> None:
    """F-22b: their messages are kept apart, and the second's end does not affect the first."""
    first, second = site.start(), site.start()
    go = site.path / "go"
    site.send_many("until_file", [(str(go),)] * 6)
    site.until(lambda: len(site.records(kind=STARTED)) == 4, "both to be busy")
    second.signal(signal.SIGQUIT)
    assert second.wait() == 3
    go.touch()
    site.drained()
    first.stop()
    check(site)
    assert {record.attempt for record in site.records()} == {1}
