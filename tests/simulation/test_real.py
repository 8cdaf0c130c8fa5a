"""One case on each real server, and tests of its tools. ``make simulate REAL=all`` runs more."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qworker import QWorker, states
from qworker.tasks import execution
from tests.servers import new_prefix, require
from tests.simulation.case import Call, Case, Chord, Errback, Fault, Group, Order, Pipe
from tests.simulation.checks import problems
from tests.simulation.nodes import Asked
from tests.simulation.program import define
from tests.simulation.real import SLOWER, RealRunning, RealSearch, run_real, sailing
from tests.simulation.real_drawing import cases_of, world_of
from tests.simulation.real_record import KeptRecord
from tests.simulation.real_servers import STORES, results_url
from tests.simulation.real_worker import Place, Process, RealWorld, SlowStores
from tests.support.flows import canvas, numbered, parts_of


def place_of(stores: str, directory: Path) -> Place:
    """Return a place on the servers that tests share."""
    kind, results = STORES[stores]
    url = require({"mariadb": "mysql"}.get(kind, kind))
    prefix: dict[str, Any] = {"global_keyprefix": new_prefix()}
    settings = {"broker_transport_options": prefix} if kind == "redis" else {}
    other = url
    if "redis" in (kind, results):
        settings["result_backend_transport_options"] = prefix
        other = require("redis")
    queue = f"simulated-{uuid.uuid4().hex[:12]}"
    return Place(url, results_url(url, results, other), str(directory), queue, True, settings)


@pytest.mark.integration
@pytest.mark.parametrize("stores", ["redis", "postgresql", "mariadb", "rabbitmq+redis", "nats+redis"])
def test_all_is_as_in_plain_python_though_a_worker_is_killed(stores: str, tmp_path: Path) -> None:
    body = Group([Call(retries=1), Call(instead=Call())])
    flows = [
        Chord([Call(), Pipe([Call(coroutine=True), Call()])], body),
        Pipe([Group([Call(), Call(fails=True)]), Call(errbacks=[Errback()])]),
        Call(calls=Call(), does="dict", links=[Call()]),
    ]
    orders = [
        Order(numbered(flow), ask=ask) for flow, ask in zip(flows, ("get", "await", "other"), strict=True)
    ]
    world = RealWorld(stores, key="signed")
    with sailing(world, place_of(stores, tmp_path)) as fleet:
        seen = run_real(Case(world, tuple(orders)), fleet)
        assert problems(seen) == []
        seen.asked[0].order = orders[2]  # as if the first had been called like the last
        assert any("f0: ran" in text for text in problems(seen))
        case = Case(world, tuple(orders), (Fault("kill", "worker0", at=0.02),))
        assert problems(run_real(case, fleet)) == []
        assert fleet.workers[0].process.returncode == -9


def test_what_ran_is_kept_when_a_process_dies_over_it(tmp_path: Path) -> None:
    """A line that a kill has truncated is ignored, and the next line is complete."""
    record, app = KeptRecord(tmp_path), QWorker("looks", set_as_current=False)
    with record.running("f0", 3):
        pass
    with (tmp_path / "record").open("a") as file:
        file.write('["start", "f0", 4, "12-')
    record.tell("f0", 1)
    found = record.read(app)
    ((number, start, end),) = found.runs["f0"]
    assert (number, start < end) == (3, True)
    assert found.told["f0"] == {1: 1}


def test_a_case_does_not_end_right_after_connections_were_cut(tmp_path: Path) -> None:
    """Errors of a worker without a server were reported in the next case."""
    noted: list[Any] = []
    faults = SimpleNamespace(begin=noted.append)
    fleet: Any = SimpleNamespace(record=KeptRecord(tmp_path), note=lambda *_: None, faults=faults, joins=None)
    cut = Fault("cut", "broker")
    running = RealRunning(Case(faults=(cut,)), fleet)
    running._begin(cut)
    assert noted == [cut]
    assert running._busy() == "workers may be without their server"


def test_a_real_case_that_is_quiet_late_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds in which it was called, or in which calls were put off, do not count."""
    order = Order(Call(number=0), options={"countdown": 2.0})
    fleet: Any = SimpleNamespace(record=KeptRecord(tmp_path), joins=None)
    running = RealRunning(Case(RealWorld("redis"), (order,)), fleet)
    monkeypatch.setattr(running, "_busy", lambda: "")
    running.seen.left = {"dead": [], "joins": 0}
    for ago, late in ((30.0, True), (10.0, False)):
        running.last = time.monotonic() - ago
        running._rest()
        assert running.seen.rested == pytest.approx(ago - 2.0 - SLOWER, abs=1.0)
        assert any("all is quiet only" in text for text in problems(running.seen)) is late


class Killable:
    """A worker that can be killed."""

    def tree(self) -> list[int]:
        return []

    def kill(self) -> None:
        """There is no process."""


def test_what_was_called_before_a_worker_was_killed_may_be_lost(tmp_path: Path) -> None:
    record = KeptRecord(tmp_path)
    fleet: Any = SimpleNamespace(
        record=record,
        note=lambda *_: None,
        joins=None,
        running={"worker0": Killable()},
        start=lambda name: None,
    )
    running = RealRunning(Case(RealWorld("redis", acks_late=False)), fleet)
    before, after = (Asked(Order(Call(number=0)), name) for name in ("f0", "f1"))
    before.called_at = record.now()
    running._begin(Fault("kill", "worker0"))
    after.called_at = record.now()
    assert running.seen.may_vanish_of(before)
    assert not running.seen.may_vanish_of(after)


@pytest.mark.parametrize(("late", "again"), [(True, states.SUCCESS), (False, states.REJECTED)])
def test_both_messages_of_a_call_are_rejected_after_early_acks(
    late: bool, again: str, tmp_path: Path
) -> None:
    """The caller sent another one because the answer of the broker was lost; it succeeded."""
    record = KeptRecord(tmp_path)
    app = QWorker("looks", set_as_current=False, task_acks_late=late)
    define(app, Process("worker0", record), record, "plain")  # type: ignore[arg-type]
    record.keep("f0", Order(Call(does="requeue", number=0)))
    call = canvas(Call(does="requeue", number=0), app.tasks, "f0")
    assert [call.clone().apply(task_id="a").state for _ in range(2)] == [states.REJECTED, again]


@pytest.mark.integration
def test_faults_go_on_while_a_worker_stops(tmp_path: Path) -> None:
    """Waiting for a worker that waited for a mute server delayed the end of that fault."""
    world = RealWorld("redis")
    orders = tuple(
        Order(Call(does="hard", number=0, options={"time_limit": 2.0}), ask="get") for _ in range(6)
    )
    faults = (Fault("restart", "worker0", at=0.5), Fault("kill", "worker0", at=0.7))
    with sailing(world, place_of("redis", tmp_path)) as fleet:
        assert problems(run_real(Case(world, orders, faults), fleet)) == []
        codes = [worker.process.returncode for worker in fleet.workers if worker.name == "worker0"]
    assert codes == [-9, None]


def test_an_unexpected_error_does_not_end_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    found = RealSearch(["redis"], said.append)

    def fail(kind: str, seed: int) -> None:
        raise AssertionError(f"round {seed}")

    monkeypatch.setattr(found, "round", fail)
    found.run(count(1), 60.0, 2)
    assert [text.splitlines()[-1] for text in found.failed] == [f"AssertionError: round {n}" for n in (1, 2)]
    assert said[1].endswith("0 cases  0 tasks  1 fail")


def test_a_failed_call_that_is_retried_may_lack_its_expiry(tmp_path: Path) -> None:
    """Workers did not know that it was, and complained."""
    worker, observer = KeptRecord(tmp_path), KeptRecord(tmp_path)
    assert not worker.may_lack_expiry("a")
    observer.trouble = True
    assert worker.may_lack_expiry("a")


def test_a_store_that_answers_late_is_a_trouble(tmp_path: Path) -> None:
    """The calls after a task then see it PENDING, as documented."""
    record, answer = KeptRecord(tmp_path), threading.Event()
    logger, handler = logging.getLogger(execution.__name__), SlowStores(record)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for wait, late in ((lambda rows: None, False), (lambda rows: answer.wait(60), True)):
            app: Any = SimpleNamespace(backend=Waiting(wait), stores=SimpleNamespace(sends_results=False))
            assert execution.store_now(app, ("id", states.SUCCESS), 0.05 if late else 60.0) is not late
            assert record.trouble is late
    finally:
        answer.set()
        logger.removeHandler(handler)
        logger.setLevel(before)


class Waiting:
    """A result store. store_rows: called to store rows."""

    def __init__(self, store_rows: Any) -> None:
        self.store_rows = store_rows


def test_joins_that_an_earlier_case_left_are_not_of_this_one(tmp_path: Path) -> None:
    """Their members were lost with a worker, which excuses them in that case only."""
    joins = SimpleNamespace(count=lambda: 2)
    fleet: Any = SimpleNamespace(record=KeptRecord(tmp_path), joins=joins)
    running = RealRunning(Case(), fleet)
    assert running._joins() == 0
    joins.count = lambda: 3
    assert running._joins() == 1


def test_a_seed_makes_the_same_cases_each_time() -> None:
    for kind in ("redis", "rabbitmq"):
        assert cases_of(world_of(kind, 7), 7, 3) == cases_of(world_of(kind, 7), 7, 3)
        assert len({repr(cases_of(world_of(kind, seed), seed, 1)) for seed in range(20)}) == 20


def test_no_task_is_killed_beside_coroutines_that_were_acknowledged_early() -> None:
    drawn = set()
    for seed in range(300):
        world = world_of("redis", seed)
        for case in cases_of(world, seed, 3):
            for each in (part for order in case.orders for part in parts_of(order.flow)):
                drawn |= {world.acks_late} if getattr(each, "does", "") == "hard" else set()
    assert drawn == {True}
