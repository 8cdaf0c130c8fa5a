"""Tasks that could harm others or be redelivered forever: only they are counted."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Site
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


def test_async_tasks_cancelled_by_their_own_code_fail(anywhere: Site) -> None:
    worker = anywhere.start()
    before = worker.wait_pool()
    ids = [anywhere.send("cancel_itself", how) for how in ("itself", "library", "future")]
    good = [anywhere.send("work_async", number, 0.01) for number in range(20)]
    anywhere.finished(*ids, *good)
    states = anywhere.states()
    assert [states[id] for id in (*ids, *good)] == ["FAILURE"] * 3 + ["SUCCESS"] * 20
    assert all("not by the worker" in str(anywhere.error(id)) for id in ids)
    assert sorted(worker.pool()) == sorted(before)
    worker.stop()
    check(anywhere)
    assert len(anywhere.records(kind=STARTED)) == len(anywhere.sent), "nothing was repeated"


def test_revoking_one_async_task_does_not_affect_others(anywhere: Site) -> None:
    worker = anywhere.start("-c", "1")
    before = worker.wait_pool(1)
    go = anywhere.path / "go"
    ids = [anywhere.send("until_file_async", str(go)) for _ in range(6)]
    anywhere.started(*ids)
    anywhere.client.AsyncResult(ids[2]).revoke(terminate=True)
    anywhere.finished(ids[2])
    assert anywhere.states()[ids[2]] == "REVOKED"
    go.touch()
    anywhere.finished(*ids)
    assert worker.pool() == before
    worker.stop()
    check(anywhere)
    assert len(anywhere.records(kind=STARTED)) == len(ids), "nobody else was touched"


def test_async_task_that_ignores_its_revocation(anywhere: Site) -> None:
    """Its process is killed after some seconds; tasks that shared it run again, without a delivery count."""
    worker = anywhere.start("-c", "1")
    go = anywhere.path / "go"
    deaf = anywhere.send("deaf_async")
    beside = [anywhere.send("until_file_async", str(go)) for _ in range(3)]
    anywhere.started(deaf, *beside)
    anywhere.client.AsyncResult(deaf).revoke(terminate=True)
    anywhere.finished(deaf)
    assert anywhere.states()[deaf] == "REVOKED"
    starts = anywhere.started(*beside, times=2)
    assert {start.attempt for start in starts} == {1}
    go.touch()
    anywhere.finished(*beside)
    worker.stop()
    check(anywhere)


@pytest.mark.parametrize("habit", ["kill group", "kill parent"])
def test_task_that_kills_the_forking_process(anywhere: Site, habit: str) -> None:
    """It is counted like any death; the worker continues, and all other tasks end."""
    worker = anywhere.start(task_max_deliveries=3)
    pill = anywhere.send("misbehave", habit)
    good = [anywhere.send("work", number, 0.005) for number in range(100)]
    anywhere.finished(pill, *good)
    states = anywhere.states()
    assert states[pill] == "FAILURE"
    assert {states[id] for id in good} == {"SUCCESS"}
    assert type(anywhere.error(pill)).__name__ == "WorkerLost"
    assert worker.alive
    worker.wait_pool()
    worker.stop()
    check(anywhere)
    assert [record.attempt for record in anywhere.records(pill, STARTED)] == [1, 2, 3]
    assert list(anywhere.dead()) == [pill]
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("options", [(), ("--pool", "threads")], ids=["prefork", "threads"])
def test_task_that_kills_the_main_process(anywhere: Site, options: tuple[str, ...]) -> None:
    """The worker is restarted each time until the task is given up; no other task is, whatever ran at the
    same time."""
    pill = anywhere.send("misbehave", "kill worker")
    good = [anywhere.send("work", number, 0.05) for number in range(100)]
    good += [anywhere.send("work_async", number, 0.3) for number in range(20)]
    worker = anywhere.start("-c", "4", *options, ready=False)

    def given_up() -> bool:
        nonlocal worker
        if not worker.alive:
            worker = anywhere.start("-c", "4", *options, ready=False)
        states = anywhere.states()
        return all(states.get(id) in ("SUCCESS", "FAILURE") for id in (pill, *good))

    anywhere.until(given_up, "the task to be given up", 100)
    states = anywhere.states()
    assert states[pill] == "FAILURE"
    assert {states[id] for id in good} == {"SUCCESS"}
    assert list(anywhere.dead()) == [pill]
    worker.wait_ready().stop()
    # Tasks that had ended without an ack run again after each of the five deaths, without being counted.
    check(anywhere, deliveries=6)
    assert [record.attempt for record in anywhere.records(pill, STARTED)] == [1, 2, 3, 4, 5]
    assert max(record.attempt for id in good for record in anywhere.records(id, STARTED)) <= 3
