"""The simulator: it finds faults, is deterministic, and finds nothing with these seeds.

``python -m tests.simulation`` tries many more.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from itertools import chain, combinations, islice, product, repeat
from pathlib import Path
from queue import Queue
from random import Random, SystemRandom
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.transport.memory import Channel

from qworker.backends.base import Backend
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.components import assembly
from qworker.components import request as requests
from qworker.components.ending import result_writer, settler
from qworker.components.ending.outcomes import OUTCOMES
from qworker.components.ending.result_writer import ResultWriter, _stripped
from qworker.components.receiving import listener
from qworker.components.receiving.ack_buffer import AckBuffer
from qworker.components.receiving.ledger import WorkerState
from qworker.components.receiving.listener import RevocationReader
from qworker.components.receiving.settlements import Settlements
from qworker.components.status.counters import Counters
from qworker.conf import Settings
from qworker.control.failed import Failed as FailedTasks
from qworker.control.letters import Retried
from qworker.errors import BrokerUnavailable
from qworker.message import protocol, reading
from qworker.message.reading import body_of
from qworker.message.signing import Signer
from qworker.publishing import body_messages, publisher, workflows
from qworker.publishing import call as publishing
from qworker.publishing.routing import Router
from qworker.results import result
from qworker.results.group_result import GroupResult
from qworker.tasks import copies, execution, followup, next_attempt
from qworker.tasks.outcome import LOST, SUCCESS, UNREADABLE
from qworker.testing import MemoryStore
from qworker.testing.memory_queues import MemoryQueues, Message
from qworker.transports import transfer
from qworker.transports.lease import Ack, Admin, Dead, Release
from qworker.transports.sql.embedded import consumer
from tests.simulation import case as cases
from tests.simulation import checks, drawing, nodes, seams, search, shrinking
from tests.simulation import run as running
from tests.simulation.case import (
    Call,
    Case,
    Chain,
    Chord,
    Django,
    Entry,
    Errback,
    Fault,
    Graph,
    Group,
    Job,
    Node,
    Order,
    Timetable,
    World,
)
from tests.simulation.checks import problems
from tests.simulation.covering import Covered, labels, shown
from tests.simulation.drawing import BLOCK, CHOICES, case_of
from tests.simulation.figures import Figures
from tests.simulation.nodes import QUEUES, Asked
from tests.simulation.program import CARRIED, EXPIRES, Hooked
from tests.simulation.run import Running, Seen, run
from tests.simulation.seams import FORGETS, Process
from tests.simulation.search import Drawing, find, parsed, report, trace
from tests.simulation.shrinking import as_test, kind_of, shrunk, written
from tests.simulation.tracing import Trace
from tests.simulation.waiting import Watcher
from tests.simulation.world import Actor, Clock, Time
from tests.support.flows import PENDING, Failed, numbered

CASES = 20
"""Cases in each chunk of seeds."""
FRESH = SystemRandom()
FRESH_CASES = 20
SHRINKING = 20.0
"""Seconds for shrinking a failing case."""
DRAWING = Drawing()
MORE = pytest.mark.more_cases


def failing(seeds: range) -> dict[str, list[str]]:
    """Return the problems of the cases of *seeds*, by the command that shows more."""
    found = {f"python -m tests.simulation --case {seed}": problems(run(case_of(seed))) for seed in seeds}
    return {command: texts for command, texts in found.items() if texts}


@pytest.mark.parametrize("chunk", range(BLOCK // CASES))
def test_the_same_seeds_each_time(chunk: int) -> None:
    assert failing(range(chunk * CASES, (chunk + 1) * CASES)) == {}


@pytest.mark.parametrize("chunk", [*range(3), *(pytest.param(each, marks=MORE) for each in range(3, 20))])
def test_fresh_seeds_each_time(chunk: int, pytestconfig: pytest.Config) -> None:
    """A failing seed comes first the next time, so that a rerun finds it again."""
    cache, place = getattr(pytestconfig, "cache", None), f"simulation/failed/{chunk}"
    before = cache.get(place, []) if cache else []
    told = told_of([*before, *islice(DRAWING.seeds(FRESH.randrange(10**9)), FRESH_CASES)])
    if cache:
        cache.set(place, list(told))
    if told:
        pytest.fail("\n".join(told.values()), pytrace=False)


def told_of(seeds: Iterable[int]) -> dict[int, str]:
    """Return the first failing seed of *seeds* with its report; {} if none fails."""
    for seed in seeds:
        if (found := find(DRAWING, seed)).problems:
            command = f"seed {seed} fails: python -m tests.simulation --case {seed}"
            return {seed: f"{command}\n{report(DRAWING, found, SHRINKING)}"}
    return {}


def test_a_seed_that_fails_is_told_with_its_case_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counters, "count", lambda *_: None)
    ((seed, text),) = told_of(range(100)).items()
    assert text.startswith(f"seed {seed} fails: python -m tests.simulation --case {seed}\n")
    assert f"again: python -m tests.simulation --case {seed}\n" in text
    assert "--- made smaller by " in text
    assert f"def test_seed_{seed}() -> None:\n    case = Case(" in text


@pytest.mark.parametrize("chunk", range(2))
def test_cases_with_many_orders(chunk: int) -> None:
    found = {seed: problems(run(case_of(seed, orders=25))) for seed in range(3 * chunk, 3 * chunk + 3)}
    assert {seed: texts for seed, texts in found.items() if texts} == {}


@pytest.mark.more_cases
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_cases_that_hypothesis_draws(random: Random) -> None:
    case = drawing.case(random)
    assert problems(run(case)) == [], written(case)


# -- determinism --

SEEDS = range(200, 208)
LOGS = "from tests.simulation.test_simulation import SEEDS, digest; print(*map(digest, SEEDS))"


def digest(seed: int) -> str:
    return hashlib.sha256("\n".join(run(case_of(seed)).log).encode()).hexdigest()


def test_tasks_of_django_have_the_same_ids_each_time() -> None:
    case = Case(World("django"), django=Django(jobs=(Job("iter", size=2), Job())))
    logs = [run(case, Trace()).log for _ in range(2)]
    assert logs[0] == logs[1]


def test_a_case_runs_the_same_each_time_and_in_each_process() -> None:
    here = [digest(seed) for seed in SEEDS]
    assert here == [digest(seed) for seed in SEEDS]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    there = subprocess.run(
        [sys.executable, "-c", LOGS], env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.split() == here


def test_a_case_does_not_depend_on_the_uptime_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group([Call(number=number) for number in range(3)])
    faults = (Fault("away", "broker", at=2.8505, seconds=10.0), Fault("restart", "worker0", at=2.852))
    case = Case(World("sqlite", workers=1), (Order(group, at=2.85),), faults, seed=39)
    monotonic, logs = time.monotonic, []
    for uptime in (300.0, 1e6):
        since = monotonic() - uptime
        monkeypatch.setattr(time, "monotonic", lambda since=since: monotonic() - since)
        logs.append(run(case).log)
    assert logs[0] == logs[1]


def test_messages_held_at_the_end_do_not_reach_the_next_case() -> None:
    run(case_of(2026113308))
    assert Channel.queues == {}


def test_messages_of_other_tests_do_not_reach_a_case() -> None:
    Channel.queues["celery"] = Queue()
    Channel.queues["celery"].put("nonsense")
    assert problems(run(Case(World("kombu+memory"), (Order(Call(number=0)),)))) == []


def test_a_case_can_be_pasted() -> None:
    names: dict[str, Any] = {name: getattr(cases, name) for name in cases.__all__}
    for seed in range(50):
        case = case_of(seed)
        assert eval(repr(case), dict(names)) == case
        assert eval(written(case), dict(names)) == case


@pytest.mark.parametrize("stores", ["memory", "sqlite"])
def test_only_who_is_woken_steps(stores: str) -> None:
    """All components of a worker stepped after each change: some ten times for each call."""
    flow = numbered(Chain([Call() for _ in range(40)]))
    assert run(Case(World(stores), (Order(flow),))).turns < 40 * 6


# -- faults are noticed --


def test_a_run_that_was_not_asked_for_is_noticed() -> None:
    seen = run(Case(orders=(Order(numbered(Chain([Call(), Call()]))),)))
    assert problems(seen) == []
    first = seen.record.runs["f0"][0]
    seen.record.runs["f0"].append(first)
    assert problems(seen) == [
        "f0: call 0 ran 2 times; expected 1 and 0 repeats",
        "f0: ran {0: 2, 1: 1}, not {0: 1, 1: 1}",
        "f0: call 0 ran 2 times, of which signals tell 1, {'SUCCESS': 1}",
    ]


def test_a_run_that_is_missing_is_noticed() -> None:
    seen = run(Case(orders=(Order(numbered(Group([Call(), Call()]))),)))
    del seen.record.runs["f0"][1]
    assert kind_of(problems(seen)[0]) == "ran not none"


@pytest.mark.parametrize("faults", [(), (Fault("move"), Fault("stranger"))])
def test_what_is_done_late_is_noticed(faults: tuple[Fault, ...]) -> None:
    """As if a component of a worker was not woken, and only polled later."""
    seen = run(Case(orders=(Order(numbered(Chord([Call()], Call()))),), faults=faults))
    assert problems(seen) == []
    seen.rested = 4.0
    assert problems(seen) == ["all is quiet only 4.0 s after the last call"]


def test_what_still_waits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Running, "joins", lambda _: 2)
    found = problems(run(Case(orders=(Order(Call(number=0)),))))
    assert found[0] == "it does not end: something still waits (open joins: 2)"


@pytest.mark.parametrize("kind", ["after", "kill after"])
@pytest.mark.parametrize("stores", ["sqlite+memory", "kombu+memory"])
def test_a_body_that_runs_twice_after_a_lost_answer_is_noticed(
    stores: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its joiner sent it again; only a fault at the body's own run explains a second run."""
    flow = numbered(Chord([Call(), Call()], Call()))
    case = Case(World(stores, workers=1), (Order(flow),), (Fault(kind, "worker0", "push"),))
    assert problems(run(case)) == []
    monkeypatch.setattr(copies, "refused", lambda *_: None)
    found = problems(run(case))
    assert re.fullmatch("f0: call 2 ran 2 times with the id .* explain only 1 of them", found[-1])
    sent_twice = "f0: call 2, the body of a join, was sent 2 times, not 1, as "
    assert [each.startswith(sent_twice) for each in found[:-1]] == [True] * stores.startswith("sqlite")


@pytest.mark.parametrize("tag", [0, 1])
def test_a_body_that_is_sent_twice_is_noticed_whatever_explains_a_second_run(tag: int) -> None:
    """A worker that did not answer for longer than a lease may run the message of a body again."""
    stall = Fault("stall", "worker0", "settle", 2, seconds=12.0)
    flow = numbered(Chord([Call(), Call()], Call()))
    seen = run(Case(World("sqlite", workers=1), (Order(flow),), (stall,), seed=1))
    ((_, body),) = [each for each in seen.record.executions["f0"] if each[0] == 2]
    seen.record.executions["f0"].append((2, replace(body, tag=body.tag + tag, place=len(seen.log))))
    seen.record.runs["f0"].append(next(each for each in seen.record.runs["f0"] if each[0] == 2))
    assert problems(seen) == [f"f0: call 2, the body of a join, was sent 2 times, not 1, as {body.id}"][:tag]


@pytest.mark.parametrize(("name", "is_explained"), [("f0", False), ("f1", True)])
def test_only_a_fault_at_its_own_ack_explains_a_repeat(name: str, is_explained: bool) -> None:
    orders = (Order(Call(number=0)), Order(Call(number=0), at=1.0))
    seen = run(Case(World("kombu+memory", workers=1), orders, (Fault("before", "worker0", "settle", 2),)))
    assert problems(seen) == []
    ((_, once),) = seen.record.executions[name]
    seen.record.executions[name].append((0, replace(once, place=len(seen.log))))
    seen.record.runs[name] *= 2
    wanted = f"{name}: call 0 ran 2 times with the id {once.id}; "
    wanted += "the call itself, faults and repeats of its sender explain only 1 of them"
    assert problems(seen) == ([] if is_explained else [wanted])


def test_a_repeat_of_a_replaced_task_does_not_explain_one_of_a_link_of_its_replacement() -> None:
    """The two share an id."""
    steps = [Call(number=1), Call(links=[Call(number=3)], number=2)]
    seen = run(Case(orders=(Order(Call(instead=Chain(steps), number=0)),)))
    assert problems(seen) == []
    executions, runs = seen.record.executions["f0"], seen.record.runs["f0"]
    for number, id in ((0, None), (3, "other")):
        once = dict(executions)[number]
        executions.append((number, replace(once, id=id or once.id, place=len(seen.log))))
        runs.append(next(each for each in runs if each[0] == number))
    assert "f0: call 3 ran 2 times; expected 1 and 0 repeats" in problems(seen)


def test_only_the_node_that_is_cut_off_explains_a_repeat() -> None:
    cut = Fault("cut", "worker0", "broker", at=2.5, seconds=10.0)
    orders = (Order(Call(number=0), at=2.4),)
    seen = run(Case(World(workers=2, concurrency=1, long=1.0), orders, (cut,), seed=1))
    assert seen.record.ran("f0") == {0: 2}
    assert problems(seen) == []
    seen.met = [met._replace(fault=replace(cut, node="caller0")) for met in seen.met]
    assert "explain only 1 of them" in problems(seen)[0]


def test_a_restart_that_loses_acks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    restart = Fault("restart", "worker0", at=1.001)
    world = World("sqlite", workers=1, flush=0.1)
    case = Case(world, (Order(numbered(Group([Call(), Call()])), at=1.0),), (restart,))
    assert problems(run(case)) == []
    end = AckBuffer.end

    def forgetful(acks: AckBuffer, *given: Any) -> None:
        acks.collect(0.0)
        acks._orders.clear()
        end(acks, *given)

    monkeypatch.setattr(AckBuffer, "end", forgetful)
    assert "explain only 1 of them" in problems(run(case))[0]


def test_a_death_after_the_ack_does_not_explain_a_repeat() -> None:
    kill = Fault("kill", "worker0", at=2.0)
    seen = run(Case(World(workers=1), (Order(Call(number=0)),), (kill,)))
    assert problems(seen) == []
    ((_, once),) = seen.record.executions["f0"]
    seen.record.executions["f0"].append((0, replace(once, at=3.0, place=len(seen.log))))
    seen.record.runs["f0"] *= 2
    assert "explain only 1 of them" in problems(seen)[0]
    once.settled = 2.0
    assert problems(seen) == []


def test_a_wrong_value_beside_a_lost_one_is_noticed() -> None:
    flow = numbered(Group([Call(calls=Call()), Call()]))
    lost = Fault("child before", "worker", "push")
    seen = run(Case(World(acks_late=False), (Order(flow),), (lost,)))
    assert problems(seen) == []
    assert Failed("WorkerLost") in seen.values["f0"][0]
    seen.values["f0"] = [["wrong", Failed("WorkerLost")]]
    assert problems(seen)[0].startswith("f0: result 0 is ['wrong', ")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("twice", "caller0", "push"),
        Fault("before", "caller0", "push", 2),
        Fault("stall", "worker0", "store_rows", seconds=0.1),
        Fault("retry failed", at=2.0),
        Fault("child before", "worker", "push"),
        Fault("limit before", "worker", "push"),
    ],
)
def test_a_fault_that_loses_no_task_of_an_order_explains_no_lost_value(fault: Fault) -> None:
    world = World(workers=1, acks_late=False)
    orders = (Order(Call(number=0)), Order(Call(calls=Call(number=1), number=0)), Order(Call(number=0)))
    seen = run(Case(world, orders, (fault,)))
    assert seen.fired
    assert problems(seen) == []
    seen.values["f0"] = [Failed("WorkerLost")]
    assert problems(seen)[0].startswith("f0: result 0 is Failed(")


def test_a_wrong_value_that_expires_soon_is_noticed() -> None:
    world = World(workers=1, result_expires=60.0)
    seen = run(Case(world, (Order(Call(number=0)),), (Fault("restart", "worker0", at=1.0),)))
    assert problems(seen) == []
    seen.values["f0"] = ["wrong"]
    assert problems(seen) == ["f0: result 0 is 'wrong', not '0()'"]


def test_a_call_that_begins_too_early_is_noticed_beside_a_fault() -> None:
    chain = numbered(Chain([Call(), Call()]))
    orders = (Order(chain), Order(Call(number=0), at=1.0))
    seen = run(Case(World(workers=1), orders, (Fault("kill before", "worker", "settle", 3),)))
    assert seen.fired
    assert problems(seen) == []
    (_, *times), (_, *others) = seen.record.runs["f0"]
    seen.record.runs["f0"] = [(0, *others), (1, *times)]
    assert "f0: call 1 began before 0 had ended" in problems(seen)


@pytest.mark.parametrize("now", [True, False])
def test_an_errback_that_no_fault_repeats_is_noticed(now: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = numbered(Call(fails=True, errbacks=[Errback(now=now)]))
    case = Case(orders=(Order(flow),), faults=(Fault("restart", "worker0", at=1.0),))
    assert problems(run(case)) == []
    failed = followup.failed

    def twice(*given: Any, **named: Any) -> None:
        failed(*given, **named)
        failed(*given, **named)

    monkeypatch.setattr(followup, "failed", twice)
    (problem,) = problems(run(case))
    assert problem.startswith("f0: call 1 ran 2 times")


@pytest.mark.parametrize("faults", [(), (Fault("move"), Fault("jump", "worker0", seconds=5.0))])
def test_an_errback_that_is_told_before_the_end_is_stored_is_noticed(
    faults: tuple[Fault, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(orders=(Order(numbered(Call(fails=True, errbacks=[Errback(now=True)])), 1.0),), faults=faults)
    assert problems(run(case)) == []
    monkeypatch.setattr(execution, "store_now", lambda *_: False)
    (problem,) = problems(run(case))
    assert re.fullmatch("f0: who hears of the end of .* finds it PENDING", problem)


@pytest.mark.parametrize("now", [True, False])
def test_a_lost_ack_explains_that_an_errback_is_told_again(now: bool) -> None:
    flow = numbered(Call(fails=True, errbacks=[Errback(now=now)]))
    killed = Fault("kill before", "worker0", "settle")
    seen = run(Case(World(workers=1), (Order(flow),), (killed,)))
    assert problems(seen) == []
    assert seen.record.told["f0"] == {1: 2}


@pytest.mark.parametrize(
    ("module", "name", "text"),
    [
        ("work", "enqueue", "call 1 ran 2 times with the id "),
        ("endings", "_call_hook", "hook of call 0 ran 2 times; expected 1"),
    ],
)
def test_a_repeat_in_a_cluster_that_no_fault_explains_is_noticed(
    module: str, name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    restart = Fault("restart", "worker0", at=5.0)
    case = Case(World("django"), faults=(restart,), django=Django((Job("chain", size=2, hook=True),)))
    assert problems(run(case)) == []
    of_work = import_module(f"qworker.django.execution.{module}")  # Django is set up by now
    once = getattr(of_work, name)

    def twice(*given: Any) -> Any:
        once(*given)
        return once(*given)

    monkeypatch.setattr(of_work, name, twice)
    assert any(each.startswith(f"j0: {text}") for each in problems(run(case)))


def test_links_of_a_django_chain_that_get_other_ids_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = Fault("kill after", "worker", "push")
    case = Case(World("django"), faults=(kill,), django=Django((Job("chain", at=1.0, size=2),)))
    assert problems(run(case)) == []
    endings = import_module("qworker.django.execution.endings")  # Django is set up by now
    monkeypatch.setattr(endings, "uuid5", lambda *_: uuid.uuid4())
    assert any("its links have the ids" in problem for problem in problems(run(case)))


def test_an_error_in_the_log_of_a_cluster_is_noticed_after_a_jump() -> None:
    jump = Fault("jump", "worker0", seconds=5.0)
    seen = run(Case(World("django"), faults=(jump,), django=Django((Job(),))))
    assert problems(seen) == []
    seen.errors.append("odd")
    assert problems(seen) == ["the log has an error that nothing explains: odd"]


@pytest.mark.parametrize("stores", ["sqlite", "sqlite+other", "sqlite+memory", "sqlite+files"])
def test_what_is_rolled_back_is_not_there(stores: str) -> None:
    flow = numbered(Chord([Call()], Call(errbacks=[Errback()])))
    case = Case(World(stores), (Order(flow, how="rollback"),), linger=True)
    seen = run(case)
    assert problems(seen) == []
    seen.record.runs["f0"].append((0, 1, 2))
    assert "f0: ran {0: 1} and told {}, though it was rolled back" in problems(seen)
    assert problems(run(replace(case, orders=(Order(flow, how="commit"),)))) == []


def test_each_option_that_is_drawn_is_checked() -> None:
    otherwise = {"headers", "countdown", "queue", "retry"}  # by what happens
    assert {name for options in drawing.OPTIONS for name in options} == CARRIED.keys() | otherwise


def test_headers_that_the_next_attempt_loses_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(orders=(Order(Call(number=0, retries=1, options={"headers": {"own": 2}})),))
    assert problems(run(case)) == []
    make = publishing._next_defaults
    monkeypatch.setattr(publishing, "_next_defaults", lambda *given: {**make(*given), "headers": None})
    assert problems(run(case)) == [
        "f0: the next attempt of 0 has lost the headers {'own'}",
        "f0: 0 lacks the headers {'own'}",
    ]


def test_a_join_that_waits_in_vain_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails when it expires, before the run is over, which is what callers might expect."""
    chord = Chord(header=[Call(does="ignore")], body=Call(fails=True))
    longer = Order(numbered(Call()), at=70.0)
    case = Case(World(acks_late=False, result_expires=60.0), (Order(numbered(chord)), longer))
    assert problems(run(case)) == []
    make = settler._order

    def order(request: Any, end: Any) -> Any:
        return make(request, end._replace(parts=()) if request.acked else end)

    monkeypatch.setattr(settler, "_order", order)
    assert any(re.fullmatch("join .* of f0 waited in vain", text) for text in problems(run(case)))


@pytest.mark.parametrize("faults", [(), (Fault("jump", "worker0", seconds=5.0),)])
def test_a_caller_who_is_not_told_is_noticed(faults: tuple[Fault, ...]) -> None:
    seen = run(Case(orders=(Order(Call(number=0), ask="then"),), faults=faults))
    assert problems(seen) == []
    seen.asked[0].told.clear()
    assert problems(seen) == ["f0: the caller was told 0 times, not 1"]


def test_slow_tasks_of_schedules_explain_only_as_much_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Timetable(entries=(Entry(when=("every", 1.0), task="slow"),), seconds=10.0)
    case = Case(World(workers=1), (Order(Call(number=0), at=3.6),), schedules=table)
    seen = run(case)
    assert problems(seen) == []
    assert seen.record.runs["f0"][0][1][0] > 10.0
    monkeypatch.setattr(publishing, "_due", lambda *given: given[2] + 100.0)
    assert any(re.fullmatch("f0: 0 began .* s late", text) for text in problems(run(case)))


@pytest.mark.parametrize("stores", ["memory", "sqlite", "kombu+memory"])
@pytest.mark.parametrize(("factor", "text"), [(0.9, "2.0 s before it was due"), (1.5, "10.0 s late")])
def test_a_call_that_begins_at_another_time_is_noticed(
    stores: str, factor: float, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Call(options={"countdown": 20.0})
    case = Case(
        World(stores),
        (Order(numbered(Chain([Call(), later]))), Order(Call(number=0), options=later.options)),
        (Fault("restart", "worker0", at=5.0),) if factor < 1 else (),
    )
    assert problems(run(case)) == []
    due = publishing._due

    def other(name: str, options: Any, now: float, timezone: str) -> float | None:
        return now + ((due(name, options, now, timezone) or now) - now) * factor

    monkeypatch.setattr(publishing, "_due", other)
    assert {f"f0: 1 began {text}", f"f1: 0 began {text}"} <= {*problems(run(case))}


@pytest.mark.parametrize("stores", ["memory", "sqlite", "kombu+memory"])
def test_a_call_that_runs_when_it_has_expired_is_noticed(
    stores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = numbered(Chain([Call(), Group([Call(), Call(does="outdated")])]))
    case = Case(World(stores), (Order(flow),))
    seen = run(case)
    assert problems(seen) == []
    assert seen.values["f0"] == [["1(0())", Failed("TaskExpired")]]
    moment = publishing._moment
    monkeypatch.setattr(publishing, "_moment", lambda *given: (when := moment(*given)) and when + 0.2)
    found = problems(run(case))
    assert "f0: ran {0: 1, 1: 1, 2: 1}, not {0: 1, 1: 1}" in found


@pytest.mark.parametrize("stores", ["memory", "sqlite+other", "kombu+memory"])
def test_a_call_that_runs_again_when_it_has_expired_is_noticed(
    stores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is killed in its first run, which began in time."""
    order = Order(Call(number=0), options={"expires": 1.0})
    faults = Fault("kill", "worker0", at=0.5), Fault("away", "broker", at=0.6, seconds=9.0)
    case = Case(World(stores, workers=1, long=1.0), (order,), faults)
    seen = run(case)
    assert problems(seen) == []
    assert (seen.record.ran("f0"), seen.values["f0"]) == ({}, [Failed("TaskExpired")])
    receive = requests.receive

    def lasting(app: Any, leased: Any, *more: Any) -> Any:
        request = receive(app, leased, *more)
        request.expires = None
        return request

    monkeypatch.setattr(requests, "receive", lasting)
    assert any("after it had expired" in each for each in problems(run(case)))


def test_a_call_that_expires_without_reason_is_noticed() -> None:
    order = Order(Call(number=0), options={"expires": 1.0})
    seen = run(Case(orders=(order,)))
    assert problems(seen) == []
    seen.values["f0"] = [Failed("TaskExpired")]
    assert problems(seen) != []


def test_expiring_calls_are_drawn() -> None:
    seen = [run(case_of(seed)) for seed in range(3000, 3400) if _expires(case_of(seed))]
    assert {bool(begun) for each in seen for asked in each.asked for begun in _begun(each, asked)} == {
        True,
        False,
    }


def _expires(case: Case) -> bool:
    return any(order.options.get("expires", EXPIRES) < EXPIRES for order in case.orders)


def _begun(seen: Seen, asked: Asked) -> Iterator[list[float]]:
    """Yield when each expiring call of *asked* began."""
    return (seen.record.begun[id] for id in asked.expires)


def test_a_call_in_another_queue_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Call(number=0, options={"queue": "far"})
    case = Case(orders=tuple(Order(far) for _ in range(8)))
    assert problems(run(case)) == []
    lease, push = MemoryStore.lease, MemoryStore.push
    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "lease", lambda this, _, *more: lease(this, QUEUES, *more))
        assert "f0: call 0 ran in a worker that does not consume far" in problems(run(case))

    def elsewhere(this: Any, sent: Any, *more: Any) -> None:
        push(this, [each._replace(queue="celery") for each in sent], *more)

    monkeypatch.setattr(MemoryStore, "push", elsewhere)
    assert "f0: 0 came from the queue celery" in problems(run(case))


@pytest.mark.parametrize("stores", ["memory", "sqlite"])
def test_a_broker_without_priorities_is_noticed(stores: str, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = tuple(Order(Call(number=0), at=1.0, options={"priority": number % 3}) for number in range(12))
    world, frozen = (
        World(stores, workers=1, concurrency=1, prefetch=1),
        Fault("freeze", "worker0", seconds=2.0),
    )
    case = Case(world, orders, (frozen,))
    assert problems(run(case)) == []
    monkeypatch.setattr(Message, "urgency", property(lambda this: (0, this.tag)))
    claim = consumer.CLAIM.replace("priority DESC, ", "")
    monkeypatch.setattr(consumer, "CLAIM", claim)
    assert "celery: priority 0 was taken before 2" in problems(run(case))


@pytest.mark.parametrize("kind", ["failed", "dead"])
@pytest.mark.parametrize("stores", ["memory", "sqlite"])
def test_a_task_that_is_not_sent_again_is_noticed(
    stores: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Call(number=0, fails=True) if kind == "failed" else Call(number=0, does="reject")
    case = Case(World(stores), (Order(flow),), (Fault(f"retry {kind}", at=5.0),))
    seen = run(case)
    assert problems(seen) == []
    assert seen.record.ran("f0") == {0: 2}
    monkeypatch.setattr(FailedTasks, "retry", lambda _: Retried(0, {}))
    monkeypatch.setattr(Admin, "dead_retry", lambda _: 0)
    assert any("was sent again at 5.000 s, and has not run since" in text for text in problems(run(case)))


@pytest.mark.parametrize("stores", ["memory", "sqlite"])
def test_a_move_that_leaves_everything_is_noticed(stores: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(
        World(stores), (Order(Call(number=0), options={"countdown": 90.0}),), (Fault("move", at=1.0),)
    )
    seen = run(case)
    assert problems(seen) == []
    monkeypatch.setattr(running, "move", lambda *_, **__: transfer.Report(0, 0, 0, []))
    assert "0 of 1 messages were moved, and 0 are there" in problems(run(case))


@pytest.mark.parametrize("stores", ["memory", "sqlite", "sqlite+other", "sqlite+files"])
@pytest.mark.parametrize(("factor", "text"), [(0.9, "is gone before it expires"), (1.1, "has not expired")])
def test_a_result_that_expires_at_another_time_is_noticed(
    stores: str, factor: float, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(World(stores), (Order(numbered(Chord([Call()], Call()))),))
    assert problems(run(case)) == []
    settings_of = nodes.settings_of

    def other(*given: Any) -> dict[str, Any]:
        made = settings_of(*given)
        return {**made, "result_expires": made["result_expires"] * factor}

    monkeypatch.setattr(nodes, "settings_of", other)
    assert any(text in problem for problem in problems(run(case)))


@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_calls_that_expire_at_another_time_are_noticed(shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their route, which their options do not show."""
    case = Case(World(route_expires=EXPIRES), tuple(Order(numbered(Call()), at=at) for at in (0.0, 5.0)))
    assert problems(run(case)) == []
    moment = publishing._moment

    def moved(*given: Any) -> float | None:
        made = moment(*given)
        return None if made is None else made + shift

    monkeypatch.setattr(publishing, "_moment", moved)
    assert any("expires in" in problem for problem in problems(run(case)))


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_route_without_its_priority_is_noticed(coroutine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = numbered(Call(coroutine=coroutine))
    case = Case(World(route_priority=5), (Order(flow), Order(flow, options={"priority": 0})))
    assert problems(run(case)) == []
    monkeypatch.setattr(Router, "_priority", lambda this, priority, name: 0)
    assert [text.split(" is shown")[0] for text in problems(run(case))] == ["f0: 0 of {}"]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (
            "result",
            {"exc_type": "Expected", "exc_module": "x", "exc_message": ["as", 7]},
            "Expected('as', 7)",
        ),
        ("traceback", "ValueError: 1\n", "has no traceback of its ValueError"),
        ("children", [], "and has no children"),
        ("date_done", "2024-02-29T00:00:00+00:00", "and ended at 9164800.0"),
        ("date_done", "2023-11-14T00:00:00+00:00", "and ended at -"),
    ],
)
def test_results_with_wrong_metadata_are_noticed(
    field: str, value: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Group([Call(fails=True), Call(does="expected"), Call(does="several"), Call(calls=Call())])
    case = Case(orders=(Order(numbered(flow)),))
    assert problems(run(case)) == []
    make = Backend.meta

    def other(*given: Any, **named: Any) -> Any:
        meta = make(*given, **named)
        return {**meta, field: value} if field != "result" or meta["status"] == "FAILURE" else meta

    monkeypatch.setattr(Backend, "meta", other)
    assert any(text in problem for problem in problems(run(case)))


@pytest.mark.parametrize(
    "call",
    [
        Call(does="untrailed", calls=Call()),
        Call(does="untrailed", calls=Group([Call()])),
        Call(does="untrailed", links=[Call()]),
    ],
)
def test_children_of_a_task_without_a_trail_are_noticed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(orders=(Order(numbered(call)),))
    assert problems(run(case)) == []
    for module in (publisher, workflows):
        monkeypatch.setattr(
            module, "add_children", lambda context, *results: context.children.extend(results)
        )
    assert any("and no trail" in problem for problem in problems(run(case)))


def test_an_ack_before_the_result_is_stored_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = (Fault("before", "worker0", "store_rows"), Fault("kill before", "worker0", "store_rows", 2))
    case = Case(World("sqlite+other", workers=1), (Order(numbered(Call())),), faults)
    assert problems(run(case)) == []
    store = ResultWriter._store

    def acked(writer: ResultWriter, batch: Any) -> Any:
        writer._post([_stripped(order) for order in batch])
        return store(writer, batch)

    monkeypatch.setattr(ResultWriter, "_store", acked)
    assert problems(run(case))


@pytest.mark.parametrize(
    ("stores", "kind", "place", "name", "fault"),
    [
        ("sqlite", "refused", Settlements, "_settle_otherwise", lambda *given: set()),
        ("sqlite", "refused twice", Settlements, "_others", lambda *given: iter(())),
        ("sqlite", "refused", Settlements, "_failure_row", lambda *given: None),
        ("memory", "refused", result_writer, "store_why_not", lambda *given: True),
        ("memory", "refused twice", result_writer, "_left", lambda order, unstored: _stripped(order)),
        ("memory", "refused", result_writer, "_failed", lambda parts: []),
    ],
)
def test_a_refused_result_of_which_nothing_is_told_is_noticed(
    stores: str, kind: str, place: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = Order(numbered(Chord([Call(), Call()], Call())))
    cases = [Case(World(stores), (order,), (Fault(kind, "worker", "row"),), seed) for seed in range(6)]
    seen = list(map(run, cases))
    assert [each.fired for each in seen] == [list(case.faults) for case in cases]
    assert list(map(problems, seen)) == [[]] * len(cases)
    monkeypatch.setattr(place, name, fault)
    assert any(map(problems, map(run, cases)))


def test_a_refused_result_explains_nothing_of_other_orders() -> None:
    seen = run(Case(orders=(Order(Call(number=0)),) * 2, faults=(Fault("refused", "worker", "row"),)))
    assert problems(seen) == []
    assert sorted(map(repr, seen.values.values())) == ["['0()']", "[Failed(error='BackendError')]"]
    for name in seen.values:
        seen.values[name] = [Failed("BackendError")]
    assert len(problems(seen)) == 1


def test_results_that_are_given_up_in_a_long_outage_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault("away", "results", at=0.5, seconds=60.0)
    case = Case(World(workers=1), (Order(numbered(Call()), at=1.0),), (fault,))
    assert problems(run(case)) == []
    try_later = ResultWriter._try_later

    def given_up(writer: ResultWriter, now: float, how: str) -> float:
        if writer._failures < 12:
            return try_later(writer, now, how)
        writer._post([_stripped(order) for order in writer._waiting])
        writer._waiting.clear()
        writer._units = 0
        return 1.0

    monkeypatch.setattr(ResultWriter, "_try_later", given_up)
    assert problems(run(case)) == ["f0: result 0 has not ended"]


def test_long_outages_are_drawn() -> None:
    lasts = {
        fault.seconds for case in map(case_of, range(2000)) for fault in case.faults if fault.kind == "away"
    }
    assert lasts >= {60.0, 600.0}


def test_a_worker_dies_before_it_has_tried_again() -> None:
    ends = set()
    for case in map(case_of, range(500)):
        for first, end in combinations(case.faults, 2):
            at_next_call = end.method and end.method == first.method and first.nth < end.nth <= first.nth + 2
            away = first.kind in ("away", "full") and 0 <= end.at - first.at <= 1
            if first.kind in ("before", "away", "full") and (at_next_call or away):
                ends.add((first.kind, end.kind))
    assert {("before", "kill before"), ("before", "kill after"), ("away", "kill"), ("away", "freeze")} <= ends


def test_a_new_crash_point_changes_only_deaths_that_happen_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> list[tuple[Fault, float]]:
        """Deaths, and what is drawn next."""
        randoms = map(Random, range(1000))
        return [(drawing.death(each, "sqlite", "worker0"), each.random()) for each in randoms]

    before, points = drawn(), drawing.points
    monkeypatch.setattr(drawing, "points", lambda *given: (*points(*given)[::-1], "new"))
    changed = {
        (other.method, replace(other, method=one.method) == one, following == then)
        for (one, then), (other, following) in zip(before, drawn(), strict=True)
        if (one, then) != (other, following)
    }
    assert changed == {("new", True, True)}
    assert {fault.method for fault, _ in before} == {*points("sqlite", "worker")}


def test_a_forged_join_excuses_only_its_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = tuple(Order(numbered(Chord([Call()], Call())), at) for at in (0.0, 2.0))
    lost = Fault("after", "worker0", "push", 2)
    case = Case(
        World("sqlite+memory", workers=1, key="signed"),
        orders,
        (Fault("forge", "caller0", "join.open"), lost),
    )
    seen = run(case)
    assert problems(seen) == []
    assert {fault.kind for fault in seen.fired} == {"forge", "after"}
    seen.odd = ["f0: odd", "f1: odd"]
    assert problems(seen) == ["f1: odd"]
    monkeypatch.setattr(copies, "refused", lambda *_: None)
    names = {text.partition(":")[0] for text in problems(run(case))}
    assert names == {"f1"}


@pytest.mark.parametrize("inner", [[Call(), Call()], [Group([Call()]), Chord([Call()], Call())]])
def test_the_join_of_a_replacing_group_belongs_to_an_order(inner: list[Any]) -> None:
    """A stranger who writes to it made the checks of all orders end."""
    flows = Call(instead=Group(inner)), Chord([Call()], Call())
    forge = Fault("forge", "worker0", "join.open")
    orders = tuple(Order(numbered(flow), at) for at, flow in enumerate(flows))
    seen = run(Case(World("sqlite+memory", workers=1, key="signed"), orders, (forge,)))
    assert problems(seen) == []
    assert seen.fired == [forge]
    assert seen.record.joins.keys() == seen.record.opened.keys()
    seen.odd = ["f0: odd", "f1: odd"]
    assert problems(seen) == ["f1: odd"]
    seen.record.joins.clear()
    assert problems(seen) == []
    seen.left["joins"] = 1
    assert problems(seen) == ["1 joins are left"]


def test_repeats_without_a_result_store_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = numbered(Call(calls=Group([Call(), Call()])))
    case = Case(World("memory+disabled"), (Order(flow),))
    assert problems(run(case)) == []
    settle = MemoryQueues.settle

    def forgetful(queues: MemoryQueues, generation: int, settlement: Any, now: float) -> bool:
        if not isinstance(settlement, Ack) or (message := queues.messages[settlement.tag]).requeued:
            return settle(queues, generation, settlement, now)
        message.requeued, message.owner = 1, 0
        return True

    monkeypatch.setattr(MemoryQueues, "settle", forgetful)
    assert any("explain only 1 of them" in text for text in problems(run(case)))


def test_dead_letters_after_a_freeze_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze = Fault("freeze", "worker0", at=1.005, seconds=6.0)
    case = Case(World(concurrency=1), tuple(Order(Call(number=0), at=1.0) for _ in range(4)), (freeze,))
    assert problems(run(case)) == []
    give_up = MemoryQueues.give_up

    def bury(queues: MemoryQueues, generation: int) -> bool:
        for each in queues.held_by(generation):
            letter = Dead(each.tag, "celery", "buried", 0.0, 0, *each.envelope[1:4])
            queues.dead[each.tag] = letter, 0
        return give_up(queues, generation)

    monkeypatch.setattr(MemoryQueues, "give_up", bury)
    assert any("dead letters: ['buried'" in text for text in problems(run(case)))


REVOKED = Order(Call(number=0), options={"countdown": 20.0}, revoke_at=0.5)


@pytest.mark.parametrize("stores", ["memory", "sqlite"])
@pytest.mark.parametrize(
    "faults", [(), (Fault("restart", "worker0", at=1.0), Fault("away", "broker", at=2.0))]
)
def test_a_worker_that_ignores_revocations_is_noticed(
    stores: str, faults: tuple[Fault, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(World(stores), (REVOKED,), faults)
    seen = run(case)
    assert problems(seen) == []
    assert (seen.values["f0"], seen.record.ran("f0")) == ([Failed("TaskRevoked")], {})
    monkeypatch.setattr(RevocationReader, "read", lambda this: setattr(this, "pending", False))
    assert problems(run(case)) == ["f0: a call began 19.5 s after it was revoked"]


def test_a_worker_that_does_not_revoke_what_it_holds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(orders=(replace(REVOKED, options={"countdown": 4.0}),))
    assert problems(run(case)) == []
    monkeypatch.setattr(WorkerState, "revoke", lambda *_: [])
    assert problems(run(case)) == ["f0: a call began 3.5 s after it was revoked"]


def test_a_revocation_that_is_lost_is_noticed() -> None:
    lost = Fault(FORGETS, "caller0", "revoke")
    assert problems(run(Case(orders=(REVOKED,), faults=(lost,)))) != []


def test_revocations_that_are_not_read_again_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(numbered(Call()), options={"countdown": 20.0}, revoke_at=0.5)
    case = Case(World(workers=1), (order,), (Fault("before", "worker0", "revoked_since"),))
    seen = run(case)
    assert seen.fired
    assert problems(seen) == []
    read = RevocationReader.read

    def once(reader: RevocationReader) -> None:
        try:
            read(reader)
        except BrokerUnavailable:
            reader._cursor = 10**18
            raise

    monkeypatch.setattr(RevocationReader, "read", once)
    assert problems(run(case)) == ["f0: a call began 19.5 s after it was revoked"]


def test_a_broker_that_cannot_revoke_runs_it() -> None:
    seen = run(Case(World("kombu+memory"), (REVOKED,)))
    assert problems(seen) == []
    seen.record.runs.clear()
    assert "f0: ran {}, not {0: 1}" in problems(seen)


def test_a_revoked_call_that_ends_otherwise_is_noticed() -> None:
    seen = run(Case(orders=(REVOKED,)))
    seen.values["f0"] = ["0()"]
    assert problems(seen) == ["f0: a revoked call that never ran is '0()'", "f0: ran {}, not {0: 1}"]
    seen.values["f0"] = [Failed("ValueError")]
    assert problems(seen) == ["f0: result 0 is Failed(error='ValueError'), not '0()'"]
    seen.values["f0"], seen.ready["f0"] = [PENDING], [False]
    assert problems(seen) == ["f0: result 0 has not ended"]


def test_a_revoked_order_does_not_run_more_often() -> None:
    seen = run(Case(orders=(Order(numbered(Group([Call(), Call()])), revoke_at=0.5),)))
    assert seen.asked[0].revoked
    assert problems(seen) == []
    first, *_ = seen.record.runs["f0"]
    seen.record.runs["f0"].append(first)
    assert "f0: ran {0: 2, 1: 1}, not {0: 1, 1: 1}" in problems(seen)
    seen.values["f0"] = [[Failed("TaskRevoked"), "1()"]]
    assert "f0: call 0 ran 2 times; expected 1 and 0 repeats" in problems(seen)


FORGETFUL = World(result_expires=60.0)


@pytest.mark.parametrize("fault", [Fault("jump", "worker0", at=1.0, seconds=5.0), Fault("freeze", "worker0")])
def test_runs_are_checked_where_results_expire_soon(fault: Fault) -> None:
    orders = (Order(numbered(Chain([Call(), Call()]))), Order(numbered(Chord([Call(), Call()], Call()))))
    seen = run(Case(FORGETFUL, orders, (fault,)))
    assert problems(seen) == []
    assert seen.fired == [fault]
    made = {name: seen.record.runs[name] for name in ("f0", "f1")}
    for times in (0, 9):
        for name, runs in made.items():
            seen.record.runs[name] = runs * times
            assert [text for text in problems(seen) if text.startswith(f"{name}: ")] != []
            seen.record.runs[name] = runs


@pytest.mark.parametrize("kind", ["stranger", "retry failed", "forge"])
@pytest.mark.parametrize("stores", ["memory", "sqlite", "sqlite+other"])
def test_a_stranger_gets_nothing_run(stores: str, kind: str) -> None:
    flow = numbered(Chord([Call(), Call()], Call()))
    fault = Fault(kind, "caller0", "join.open") if kind == "forge" else Fault(kind, at=1.0)
    seen = run(Case(World(stores, key="signed"), (Order(flow),), (fault,)))
    assert problems(seen) == []
    assert seen.fired == [fault]


@pytest.mark.parametrize("stores", ["memory", "sqlite"])
def test_a_worker_that_obeys_unsigned_revocations_is_noticed(
    stores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = replace(REVOKED, revoke_at=None)
    case = Case(World(stores, key="signed"), (order,), (Fault("stranger", at=1.0),))
    assert problems(run(case)) == []
    wrong = "f0: result 0 is Failed(error='TaskRevoked'), not '0()'"
    with monkeypatch.context() as patch:
        patch.setattr(listener, "verified", lambda signer, given: given)
        assert wrong in problems(run(case))
    monkeypatch.setattr(Signer, "is_order", lambda *_: True)
    assert wrong in problems(run(case))


@pytest.mark.parametrize("stores", ["memory", "sqlite", "kombu+memory"])
def test_what_was_sent_before_there_was_a_key_is_refused(
    stores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = numbered(Chain([Call(), Call(options={"countdown": 0.5})]))
    case = Case(World(stores, key="late"), (Order(flow), Order(flow, at=1.0)))
    seen = run(case)
    assert problems(seen) == []
    assert (seen.unsigned, seen.values["f0"], seen.record.ran("f0")) == (1, [PENDING], {0: 1})
    assert seen.record.ran("f1") == {0: 1, 1: 1}
    monkeypatch.setattr(Signer, "verify", lambda *_: None)
    assert "f0: call 1 ran, or was told, and is not signed" in problems(run(case))


@pytest.mark.parametrize("stores", [each for each in CHOICES["stores"] if "disabled" not in each])
def test_a_store_that_loses_a_message_is_noticed(stores: str) -> None:
    order = Order(numbered(Chain([Call(), Call()])))
    lost = Fault(FORGETS, "caller0", "push")
    found = problems(run(Case(World(stores=stores), (order,), (lost,))))
    assert "f0: result 0 has not ended" in found


@pytest.mark.parametrize("call", [Call(retries=1, delay=0.5, number=0), Call(does="again", number=0)])
def test_an_attempt_that_begins_too_early_is_noticed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(World(base="hooked"), (Order(call),))
    assert problems(run(case)) == []
    publish = next_attempt._publish

    def early(task: Any, request: Any, attempt: Any, options: Any) -> None:
        publish(task, request, attempt, {**options, "countdown": 0.05})

    monkeypatch.setattr(next_attempt, "_publish", early)
    assert "f0: attempt 1 of 0 began" in problems(run(case))[0]


def test_a_retry_whose_hook_is_not_called_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(World(base="hooked"), (Order(numbered(Chain([Call(retries=1), Call(retries=1)]))),))
    assert problems(run(case)) == []
    hook = Hooked.on_retry

    def missed(self: Any, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        if kwargs["number"]:
            hook(self, exc, task_id, args, kwargs, einfo)

    monkeypatch.setattr(Hooked, "on_retry", missed)
    assert problems(run(case)) == ["f0: on_retry() of 0 was called 0 times"]


@pytest.mark.parametrize("acks_late", [True, False])
@pytest.mark.parametrize("key", ["", "signed"])
@pytest.mark.parametrize("stores", ["memory", "sqlite", "kombu+memory"])
def test_what_no_worker_can_run_becomes_dead_letters(
    stores: str, key: str, acks_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = numbered(Chain([Call(), Call()]))
    case = Case(
        World(stores, key=key, acks_late=acks_late),
        (Order(flow, at=0.9), Order(flow, at=1.1)),
        (Fault("poison", at=1.0),),
    )
    seen = run(case)
    assert problems(seen) == []
    assert len(seen.left["dead"]) == seen.poison == len(running.POISON)
    lost = OUTCOMES[UNREADABLE]._replace(message=OUTCOMES[SUCCESS].message)
    monkeypatch.setitem(OUTCOMES, UNREADABLE, lost)
    assert "dead letters: " in problems(run(case))[0]


def test_a_get_that_gives_up_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = numbered(Chain([Call(options={"countdown": 3.0}), Call()]))
    case = Case(World(), (Order(flow, ask="impatient"),))
    assert problems(run(case)) == []
    wait_for = result.wait_for

    def hasty(app: Any, id: str, queue: Any, limit: float | None, *more: Any) -> Any:
        return wait_for(app, id, queue, limit and limit / 2, *more)

    monkeypatch.setattr(result, "wait_for", hasty)
    assert "f0: get() gave up before its timeout of 0.3 s" in problems(run(case))


@pytest.mark.parametrize("stores", ["memory", "sqlite", "sqlite+files", "kombu+memory"])
def test_a_saved_group_that_is_not_deleted_is_noticed(stores: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = numbered(Chain([Call(), Group([Call(), Call(fails=True), Group([Call()])])]))
    case = Case(World(stores), (Order(flow, ask="saved"),))
    assert problems(run(case)) == []
    monkeypatch.setattr(GroupResult, "delete", lambda *_: None)
    assert "f0: saved as " in problems(run(case))[0]


@pytest.mark.parametrize("seconds", [0.0, -3.0, 30.0])
def test_a_rate_limit_that_is_exceeded_is_noticed(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds on the clock of the worker, which may go too fast or too slowly."""
    flow = numbered(Chord([Call() for _ in range(20)], Call()))
    drift = Fault("drift", "worker0", at=0.1, seconds=seconds)
    case = Case(World(workers=1, concurrency=4, rate=20.0), (Order(flow),), (drift,) if seconds else ())
    assert problems(run(case)) == []
    monkeypatch.setattr(assembly, "rate_per_second", lambda rate: 40.0 if rate else None)
    assert problems(run(case)) == ["worker0 took two of call within 0.0250 s"]


@pytest.mark.parametrize(("how", "links"), [("celery", 1), ("celery 1", 0)])
def test_what_celery_sends_without_its_links_is_noticed(
    how: str, links: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Chain([Call(errbacks=[Errback()], fails=not links), *[Call(links=[Call()])] * links])
    case = Case(World("kombu+memory"), (Order(numbered(flow), how=how, ask="get"),))
    assert problems(run(case)) == []

    def read(args: Any, kwargs: Any, embed: Any) -> Any:
        return body_of(args, kwargs, {})

    monkeypatch.setattr(reading, "body_of", read)
    monkeypatch.setattr(protocol, "body_of", read)
    assert problems(run(case)) != []


@pytest.mark.parametrize("stores", ["sqlite+memory", "kombu+rpc"])
def test_a_store_that_loses_a_result_is_noticed(stores: str) -> None:
    order = Order(numbered(Chain([Call(), Call()])))
    lost = tuple(Fault(FORGETS, worker, "store_rows") for worker in ("worker0", "worker1"))
    assert problems(run(Case(World(stores), (order,), lost))) != []


@pytest.mark.parametrize(
    "other",
    [
        Order(Call(number=0), at=1.0, revoke_at=0.0),
        Order(numbered(Chord([Call()], Call())), at=1.0, how="rollback"),
        Order(Call(wrong=True, number=0), at=1.0),
    ],
)
def test_a_join_that_is_left_is_noticed_whatever_else_is_called(other: Order) -> None:
    """An order that leaves joins, or was revoked, excused those of all others."""
    chord = Order(numbered(Chord([Call()], Call())))
    case = Case(World("sqlite+other", workers=1), (chord, other))
    assert problems(run(case)) == []
    lost = Fault(FORGETS, "worker0", "join.add")
    assert "1 joins are left" in problems(run(replace(case, faults=(lost,))))
    revoked = replace(chord, options={"countdown": 20.0}, revoke_at=0.5)
    assert "1 joins are left" in problems(run(replace(case, orders=(revoked,), faults=(lost,))))


@pytest.mark.parametrize("faults", [(), (Fault("jump", "worker0", seconds=5.0), Fault("move", at=1.0))])
def test_figures_that_do_not_add_up_are_noticed(
    faults: tuple[Fault, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(orders=(Order(Call(number=0)), REVOKED), faults=faults)
    seen = run(case)
    seen.record.figures.began.clear()
    assert problems(seen) == ["f0: call 0 ran 1 times, of which signals tell 0, {'SUCCESS': 1}"]
    monkeypatch.setattr(Counters, "count", lambda *_: None)
    assert problems(run(case)) == ["metrics count 0 as success, and signals 1"]
    monkeypatch.setattr(Figures, "_tells", lambda *_: lambda **_: None)
    assert "f0: 0 has ended as {'SUCCESS': 1}, and signals tell {}" in problems(run(case))


@pytest.mark.parametrize("stores", ["memory", "sqlite", "kombu+memory"])
def test_a_move_that_leaves_messages_in_both_places_is_noticed(
    stores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = tuple(Order(Call(number=0)) for _ in range(8))
    case = Case(World(stores, workers=1, concurrency=1, prefetch=1), orders, (Fault("move"),))
    assert problems(run(case)) == []
    monkeypatch.setattr(transfer, "_acknowledge", lambda *_: 0)
    assert "f0: ran {0: 2}, not {0: 1}" in problems(run(case))


def test_an_order_that_the_simulator_cannot_carry_out_is_told() -> None:
    """An error in the simulator is not a success."""
    (problem,) = problems(run(Case(orders=(Order("no flow"),))))
    assert problem.startswith("the simulator failed: ")


# -- shrinking --


def test_a_case_becomes_as_small_as_what_is_wrong_with_it() -> None:
    flow = numbered(Chain([Group([Call(retries=1), Call(coroutine=True)]), Call(links=[Call()])]))
    forgets = Fault(FORGETS, "caller0", "push")
    case = Case(
        World("sqlite", workers=3, skew=2.0),
        (Order(flow, 1.5, how="dicts", options={"priority": 3}), *(Order(flow, at) for at in (2.25, 3.0))),
        (Fault("restart", "worker1", at=2.0), forgets, Fault("jump", "worker0", at=1.0, seconds=5.0)),
        seed=99,
    )
    small = shrunk(case, 60, kinds=["result has not ended"])
    assert small.finished
    assert small.case == Case(orders=(Order(Call(number=0)),), faults=(forgets,))
    assert "f0: result 0 has not ended" in small.problems


def test_what_is_in_a_graph_stays_a_node() -> None:
    members = [Node(Call()), Node(Chord([Call()], Call()), after=[1])]
    smaller = shrinking._candidates(Case(orders=(Order(numbered(Graph(members))),)))
    graphs = [each.orders[0].flow for each in smaller if each.orders]
    shown = [repr(graph) for graph in graphs if isinstance(graph, Graph)]
    assert "Graph(nodes=[Node(call=Call(number=0)), Node(call=Call(number=1), after=[1])])" in shown
    kinds = {type(node) for graph in graphs if isinstance(graph, Graph) for node in graph.nodes}
    assert kinds == {Node}


def test_a_case_that_does_not_fail_is_left_as_it_is() -> None:
    case = Case(orders=(Order(Call(number=0)),))
    assert shrunk(case).case is case


def test_shrinking_ends_when_its_time_is_over() -> None:
    """The orders that the problems name are tried first."""
    order = Order(numbered(Chain([Call(), Call()])))
    small = shrunk(Case(orders=(order, order), faults=(Fault(FORGETS, "caller0", "push"),)), 0.0)
    assert not small.finished
    assert small.case.orders == (order,)


def test_a_smaller_case_that_the_checks_cannot_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(Call(number=0))
    case = Case(orders=(order, order), faults=(Fault(FORGETS, "caller0", "push"),))

    def check(seen: Seen, *more: object) -> list[str]:
        if seen.case != case:
            raise KeyError("a flow that is never drawn")
        return ["result 0 has not ended"]

    monkeypatch.setattr(checks, "_order", check)
    small = shrunk(case)
    assert small.finished
    assert small.case == case
    assert small.runs > 1
    (problem,) = problems(run(replace(case, faults=())))
    assert problem.startswith("the checks failed: ")
    assert "a flow that is never drawn" in problem


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f0: call 3 ran 2 times, not 1", "f12: call 14 ran 7 times, not 3"),
        ("f0: result 0 is '1(x)', not '2(0(x))'", "f1: result 1 is '7#ab01cd', not '3()'"),
        ("f0: ran {0: 1}, not {0: 1, 1: 1}", "f2: ran {}, not {4: 2}"),
        (
            "f0: result 0 is ['1()', Failed(error='ValueError')], not ['1()', Failed(error='ChordError')]",
            "f1: result 2 is [Failed(error=\"ValueError('x')\")], not [Failed(error='ChordError')]",
        ),
        ("dead letters: ['lost', \"it's\"]", "dead letters: ['refused']"),
        ("it failed: Traceback\n  line 3\nKeyError: 'a'", "it failed: Traceback\n  file x\nKeyError: 'b'"),
    ],
)
def test_the_kind_of_a_problem_is_its_words(one: str, other: str) -> None:
    assert kind_of(one) == kind_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f0: result 0 has not ended", "f0: result 0 is '1', not '2'"),
        ("f0: result 0 is Failed(error='ValueError'), not '2'", "f0: result 0 is '1', not '2'"),
        ("it failed: Traceback\n  line 3\nKeyError: 'a'", "it failed: Traceback\n  line 3\nTypeError: 'a'"),
        (
            "f0: result 0 is Failed(error='ValueError'), not '2'",
            "f0: result 0 is Failed(error='Killed'), not '2'",
        ),
        (
            "f0: result 0 is '2', not Failed(error='Killed')",
            "f0: result 0 is '2', not Failed(error='Ignore')",
        ),
        ("f0: ran {0: 2}, not {0: 1}", "f0: ran {}, not {0: 1}"),
        ("f0: ran {0: 1}, not {0: 2}", "f0: ran {}, not {0: 2}"),
        ("f0: call 0 ran 2 times, not 1", "f0: call 0 ran 0 times, not 1"),
        (
            "the log has an error that nothing explains: no event: it failed [KeyError('a')]",
            "the log has an error that nothing explains: no event: it failed [ValueError('a')]",
        ),
        (
            "the log has an error that nothing explains: join-failed: it failed",
            "the log has an error that nothing explains: result-lost: it failed",
        ),
    ],
)
def test_other_words_are_another_kind(one: str, other: str) -> None:
    assert kind_of(one) != kind_of(other)


def test_a_test_that_is_printed_runs_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "test_printed.py"
    flow = numbered(Group([Chain([Call(retries=1), Call()]) for _ in range(5)]))
    case = Case(orders=(Order(flow, how="dicts"),), faults=(Fault(FORGETS, "caller0", "push"),))
    for printed, code in ((replace(case, faults=()), 0), (case, 1)):
        path.write_text(as_test(printed, "it", "Found."))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code, done.stdout
    assert "result 0 has not ended" in done.stdout


# -- coverage --


def test_a_hundred_seeds_cover_all_pairs_of_dimensions_and_options() -> None:
    options = {name for each in drawing.OPTIONS for name in each}
    values = {(name, value) for name, values in CHOICES.items() for value in values}
    wanted = set(drawing.pairs(CHOICES)) | set(product(values, options))
    for block in (0, 1, 12345):
        met: set[Any] = set()
        for case in map(case_of, range(block * BLOCK, (block + 1) * BLOCK)):
            dimensions = [(name, getattr(case.world, name)) for name in CHOICES]
            found = {name for _, feature, name in labels(case, []) if feature == "Call.options"}
            met.update(combinations(dimensions, 2), product(dimensions, found))
        assert wanted - met == set()


def test_faults_are_drawn_at_each_call_of_a_store() -> None:
    """Except at those that no node of a case makes, and those that the stores make of themselves."""
    letters = {f"{kind}.{name}" for kind in ("dead", "failed") for name in seams.LETTERS}
    every = {*seams.BROKER, *seams.BACKEND, *(f"join.{name}" for name in seams.JOINS), *letters}
    drawn = {
        *drawing.METHODS,
        *drawing.CALLER_METHODS,
        *drawing.CHILD_METHODS,
        *chain(*drawing.LETTERS.values()),
    }
    drawn.add("join.grow")  # where tasks add to their chord
    assert drawn <= every
    assert every - drawn == {
        "add", "dead.discard", "dead.page", "dead.push", "dead.send_again", "delete", "failed.discard",
        "failed.push", "forget_many", "incr", "purge", "store", "workers",
    }  # fmt: skip


def test_a_fault_that_nobody_has_given_seconds_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would last for no time, do nothing, and count as covered."""
    monkeypatch.setattr(drawing, "HAPPENINGS", {"nap": "a node sleeps for some seconds"})
    with pytest.raises(ValueError, match="seconds of 'nap'"):
        list(map(drawing.fault, [Random(0)] * 100, repeat(2)))


def test_blocks_of_seeds_have_worlds_of_their_own() -> None:
    assert drawing.plans(0) != drawing.plans(1)


def test_the_table_tells_what_never_met() -> None:
    covered = Covered()
    case = Case(orders=(Order(numbered(Chain([Call(), Call(retries=1)]))),))
    covered.add(labels(case, [Fault("kill")]))
    table = covered.table(most=10**6)
    assert "Group" in table.partition("never drawn, or never fired: ")[2].splitlines()[0]
    met = next(line for line in table.splitlines() if line.startswith("world x world")).split()[3]
    assert int(met) == len(list(combinations(CHOICES, 2)))
    covered.add(labels(replace(case, world=World(workers=3)), []))
    assert "  kill with workers=3" in covered.table(most=10**6).splitlines()
    never = table.partition("never drawn, or never fired: ")[2].splitlines()[0].split(", ")
    assert {"Call.does.hard", "Call.options.queue", "Entry.task", "Django.save_limit_per"} <= {*never}
    assert {shown(each) for each in labels(case, [])} >= {"Chain", "Call.retries", "workers=2"}


# -- the log --


def test_a_trace_has_the_tasks_of_one_order() -> None:
    flow = numbered(Chain([Call(), Call()]))
    told = Trace()
    seen = run(Case(orders=(Order(flow), Order(flow, at=1.0, options={"countdown": 3.0}))), told)
    first, second = told.lines(seen.log, "f0"), told.lines(seen.log, "f1")
    assert [line.split(maxsplit=2)[2] for line in first if " runs " in line] == ["runs f0 0", "runs f0 1"]
    assert not set(first) & set(second)
    assert any("caller1 push" in line for line in second)
    assert trace(seen.case, ["f1: result 0 has not ended"]) == second


def test_a_trace_has_the_faults_and_not_what_the_simulator_itself_reads() -> None:
    faults = (Fault("before", "worker0", "lease"), Fault("cut", "worker0", "broker", at=2.0, seconds=3.0))
    lines = trace(Case(World(workers=1), (Order(Call(number=0)),), faults), [])
    texts = [line.partition(" ")[2] for line in lines]
    assert {"worker0 lease: fault before", "happens: cut worker0 broker 3 s"} <= {*texts}
    assert not any(text.startswith("observer get ") for text in texts)


def test_a_trace_has_malformed_messages() -> None:
    case = Case(World("sqlite"), (Order(Call(number=0)),), (Fault("stranger", at=1.0),))
    assert problems(run(case, Trace())) == []


@pytest.mark.parametrize("size", [1, 40])
def test_a_trace_has_the_tasks_of_one_job(size: int) -> None:
    jobs = (Job("iter", size=size), Job(at=1.0))
    case = Case(World("django"), django=Django(jobs=jobs))
    for name, other in (("j0", "j1"), ("j1", "j0")):
        lines = trace(case, [f"{name}: it has not ended"])
        assert any(" push " in line for line in lines), lines
        assert any(f"runs {name}" in line for line in lines), lines
        assert not any(other in line for line in lines)
    every = trace(case, ["it does not end"])
    assert all(any(f"runs {name}" in line for line in every) for name in ("j0", "j1"))


def test_a_trace_has_the_tasks_of_one_entry() -> None:
    entries = (Entry("e0", ("every", 5.0)), Entry("e1", ("every", 7.0)))
    case = Case(schedules=Timetable(seconds=20.0, entries=entries))
    first, second = (trace(case, [f"{name} was not called for 5.000000"]) for name in ("e0", "e1"))
    for name, lines in (("e0", first), ("e1", second)):
        assert any(" push " in line for line in lines), lines
        assert any(f"runs {name}" in line for line in lines), lines
    assert not {*first} & {*second}
    assert {*first, *second} <= {*trace(case, ["it does not end"])}


def test_results_outlast_the_runs_of_a_busy_worker() -> None:
    """Some 80 runs of 1.6 s by one process took longer than results are kept."""
    worlds = [case_of(seed).world for seed in (*range(2000), 8100274)]
    assert any(world.long == 1.0 for world in worlds)
    assert [world for world in worlds if world.forgets and world.long == 1.0] == []


# -- the command --


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments], capture_output=True, text=True
    )


def test_the_command_runs_seeds_and_tells_what_it_covered(tmp_path: Path) -> None:
    out = tmp_path / "report"
    options = "--seed 300 --cases 6 --jobs 2 --world workers=1 --shrink 0 --out"
    done = command(*options.split(), str(out))
    failed, total = re.findall(r"(\d+) of (\d+) cases fail", done.stdout)[0]
    assert (total, done.returncode) == ("6", int(failed != "0")), done.stdout + done.stderr
    assert "world x world" in done.stdout
    assert out.read_text() == done.stdout


def test_the_command_runs_the_case_of_schedules_that_was_asked_for() -> None:
    for options in (["--only", "schedules", "--case", "7"], ["--case", "-7"]):
        assert "schedules=Timetable(" in command(*options, "--shrink", "0").stdout


def test_the_command_shows_the_log_of_a_case_that_passes() -> None:
    quiet, told = (command("--case", "4", *more).stdout for more in ([], ["--log"]))
    assert "def test_seed_4() -> None:\n    case = Case(\n" in quiet
    assert " runs f" in told
    assert " runs f" not in quiet
    assert told.endswith("\nall is well\n")


def test_a_command_repeats_a_case_with_its_options() -> None:
    drawing = Drawing((("key", ""), ("rate", 20.0), ("stores", "sqlite")), 25)
    words = shlex.split(drawing.again(-7))[3:]
    assert words == ["--case", "-7", "--orders", "25", "--world", "key=", "rate=20.0", "stores=sqlite"]
    options = parsed(words)
    assert (Drawing(tuple(options.world), options.orders), options.case) == (drawing, -7)


def test_a_case_that_is_not_made_smaller_is_run_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "shrunk", lambda *_: pytest.fail("it is made smaller"))
    assert "--- as drawn\n" in report(DRAWING, replace(find(DRAWING, 3), problems=("bad",)), 0.0)


@pytest.mark.parametrize("log", [False, True])
def test_a_case_is_told_before_it_is_made_smaller(log: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    found = find(DRAWING, 3)

    def shrunk(case: Case, *_: Any) -> shrinking.Shrunk:
        said.append("it is made smaller")
        return shrinking.Shrunk(case, ("bad",))

    monkeypatch.setattr(search, "find", lambda *_: replace(found, problems=("bad",)))
    monkeypatch.setattr(search, "shrunk", shrunk)
    assert search.one(DRAWING, 3, 1.0, log, said.append)
    before = said.index("it is made smaller") if "it is made smaller" in said else len(said)
    assert "problem: bad" in said[before - 1]
    assert "--- as drawn" in said[before - 1]
    assert len(said) - before == (0 if log else 2)  # with the whole log, it stays as it is


@pytest.mark.parametrize("shrink", [0.0, 1.0])
def test_a_search_goes_on_after_a_failure(shrink: float, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = find(DRAWING, 3)
    reports: list[float] = []
    monkeypatch.setattr(search, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(
        search, "find", lambda _, seed: replace(passed, seed=seed, problems=("bad",) * (seed == 1))
    )
    monkeypatch.setattr(search, "report", lambda _, found, seconds: reports.append(seconds) or "a report")
    looking = search.Search(DRAWING, 1, shrink, [].append)
    looking.run(iter(range(20)), 60.0)
    assert (looking.cases, [found.seed for found in looking.failed]) == (20, [1])
    assert reports == ([0, shrink] if shrink else [0])


def test_only_after_many_cases_is_told_what_they_never_had() -> None:
    looking = search.Search(DRAWING, 1, 0.0, print)
    for seed in (3, 8, 9):
        looking._add(find(DRAWING, seed))
    assert "never" not in looking.table().replace("what never met", "")
    looking.cases = search.ENOUGH
    pairs = re.findall("^  (.*) with ", looking.table(), re.MULTILINE)
    assert 10 < len({*pairs}) <= len(pairs) <= search.MOST_MISSING


def test_the_command_refuses_a_dimension_that_is_none() -> None:
    done = command("--world", "wrkers=1")
    assert done.returncode == 2
    assert "a world has no dimension 'wrkers', but stores, workers, " in done.stderr


@pytest.mark.parametrize("text", ["stores=redis", "workers=99", "workers=", "key=other"])
def test_the_command_refuses_a_value_that_is_not_drawn(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["--world", text])
    assert f"{text.partition('=')[0]} is one of " in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["away", "full"])
@pytest.mark.parametrize("stores", ["memory", "sqlite"])
def test_a_worker_that_starts_does_not_reach_a_store_that_is_away(stores: str, kind: str) -> None:
    faults = (Fault(kind, "broker", at=1.0, seconds=10.0), Fault("kill", "worker0", at=2.0))
    seen = run(Case(World(stores, workers=1), (Order(Call(number=0), at=20.0),), faults))
    assert problems(seen) == []
    at = [float(line.split()[0]) for line in seen.log if line.endswith("worker0 register")]
    assert [each for each in at if 1.0 < each < 11.0] == []
    assert at[-1] >= 11.0


def test_the_key_is_set_while_the_broker_is_away() -> None:
    orders = (Order(Call(number=0)), Order(Call(number=0), at=10.0))
    seen = run(Case(World(key="late"), orders, (Fault("away", "broker", at=0.002, seconds=2.0),)))
    assert problems(seen) == []
    assert any("the key is set" in line for line in seen.log)


HEADER = Call(instead=Call(), links=[Call()])
DYING = Case(
    World("sqlite+files", workers=1),
    (
        Order(numbered(Chord([HEADER, Call(retries=1)], Call())), ask="get"),
        Order(Call(number=0, options={"countdown": 0.5}), at=0.1),
    ),
)
REACHED = (
    *("acking", "body-made", "body-sent", "calls-sent", "claimed", "claiming", "dispatched", "dispatching"),
    *("forgetting-join", "heap push", "join-claimed", "joins-opened", "offering", "parts-recorded"),
    *("published", "publishing", "recording-parts", "renewing", "replacement-made"),
    *("replacement-sent", "settled", "settling"),
)


@pytest.mark.parametrize("point", REACHED)
def test_a_worker_dies_at_a_crash_point(point: str) -> None:
    seen = run(replace(DYING, faults=(death := Fault("die", "worker0", point),)))
    assert seen.fired == [death]
    assert problems(seen) == []


@pytest.mark.parametrize("point", ["joins-opened", "publishing", "published", "calls-sent"])
def test_a_caller_dies_at_a_crash_point(point: str) -> None:
    """All of its call is carried out, or nothing."""
    seen = run(replace(DYING, faults=(Fault("die", "caller0", point),)))
    assert bool(seen.record.ran("f0")) == (point in ("published", "calls-sent"))
    assert seen.asked[0].cut
    assert problems(seen) == []
    if runs := seen.record.runs["f0"]:
        runs[:] = [each for each in runs if each[0] != 0]
        assert any(text.startswith("f0: call 0 ran 0 times") for text in problems(seen))


def test_a_beat_dies_at_a_crash_point() -> None:
    table = Timetable(1, seconds=20.0, entries=(Entry(when=("every", 4.0)),))
    seen = run(Case(World("sqlite"), schedules=table, faults=(Fault("die", "beat0", "entries-published"),)))
    assert [fault.method for fault in seen.fired] == ["entries-published"]
    assert problems(seen) == []


@pytest.mark.parametrize("stores", ["memory", "sqlite", "sqlite+files"])
def test_stores_are_made_anew(stores: str) -> None:
    """What was called before is lost; what is called afterwards is carried out."""
    waiting = Order(numbered(Call(options={"countdown": 3})), ask="later")
    later = Order(numbered(Chord([Call(), Call()], Call())), at=2.0, ask="get")
    seen = run(Case(World(stores), (waiting, later), (Fault("lost", at=1.0),)))
    assert problems(seen) == []
    assert len(seen.record.ran("f1")) == 3
    seen.asked[0].forgotten = False
    assert "f0: result 0 has not ended" in problems(seen)


def began(seen: Seen) -> list[float]:
    """Return when runs began, in order."""
    return sorted(at for times in seen.record.begun.values() for at in times)


def test_a_store_that_is_away_twice_is_back_when_both_times_are_over() -> None:
    away = Fault("away", "broker", at=1.0, seconds=6.0), Fault("away", "broker", at=2.0, seconds=1.0)
    seen = run(Case(orders=(Order(Call(number=0), at=4.0),), faults=away))
    assert problems(seen) == []
    assert began(seen) >= [7.0]


def test_only_one_node_is_cut_off() -> None:
    orders = tuple(Order(Call(number=0), at=at) for at in (1.5, 1.6))
    seen = run(Case(orders=orders, faults=(Fault("cut", "caller0", "broker", at=1.0, seconds=3.0),)))
    assert problems(seen) == []
    assert 1.6 <= began(seen)[0] < 2.0
    assert began(seen)[1] >= 4.0


def test_clocks_of_one_node_gain_seconds() -> None:
    order, drift = Order(Call(number=0), at=11.0), Fault("drift", "worker0", at=0.0, seconds=3.0)
    running = Running(Case(orders=(order,), faults=(drift,)), Path("unused"), None)
    running.go()
    gained = running.workers["worker0"].clock.gained, running.workers["worker1"].clock.gained
    running.close()
    assert gained == (pytest.approx(3.0), 0.0)


@pytest.mark.parametrize("ask", ["get", "await"])
def test_a_caller_dies_while_it_waits(ask: str) -> None:
    """Its next call is made by another process."""
    orders = tuple(Order(numbered(Call(options={"countdown": 3})), at, ask=ask) for at in (0.0, 0.1, 2.0))
    seen = run(Case(orders=orders, faults=(Fault("kill", "caller0", at=1.0),)))
    assert problems(seen) == []
    assert [bool(asked.told) for asked in seen.asked] == [False, True, True]


def test_a_task_that_kills_its_process_is_delivered_so_often() -> None:
    for late, often in ((True, 3), (False, 1)):
        seen = run(Case(World(acks_late=late), (Order(Call(does="dies", number=0)),)))
        assert problems(seen) == []
        assert (seen.record.ran("f0")[0], len(seen.left["dead"])) == (often, late)


def test_too_many_deliveries_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(orders=(Order(Call(does="dies", number=0)),))
    with monkeypatch.context() as patch:
        patch.setattr(requests, "is_poisoned", lambda leased, limit: leased.deliveries >= limit - 1)
        assert any("ran {0: 2}, not {0: 3}" in text for text in problems(run(case)))

    def again(request: Any, outcome: Any, now: float) -> Release:
        return Release(request.tag, None, counted=True)

    monkeypatch.setitem(OUTCOMES, LOST, OUTCOMES[LOST]._replace(message=again))
    assert any(text.startswith("delivered once more: ") for text in problems(run(case)))


def test_calls_of_other_threads_are_seen_while_one_is_paused_in_a_call() -> None:
    """They were taken for parts of the call that had been paused: no fault met them, and the checks saw no
    state STARTED that they stored."""
    time = Time(1)
    process = Process("worker0", time, [], [])
    stored: list[str] = []
    process.starts = stored.extend

    def store() -> None:
        assert process.execution is None
        assert not process.in_child
        process.call("results", "store_rows", lambda rows: None, ([("id", "STARTED")],), {})

    def run() -> None:
        process.in_child = True
        process.call("results", "join.finish", lambda: process.pause(0.1), (), {})
        assert process.in_child

    time.actors.append(Actor("other", "writer", store, 0.0))
    run()
    assert stored == ["id"]
    assert process.calls["store_rows"] == 1
    assert not process.child_calls["store_rows"]


def test_locked_row_of_a_worker_delays_nothing() -> None:
    """It cannot renew its lease while another transaction has locked its row."""
    faults = (Fault("locked", "worker", "extend", seconds=3.0),)
    seen = run(
        Case(World(acks_late=False, long=1.0), (Order(Call(number=0)), Order(Call(number=0), at=2.0)), faults)
    )
    assert (problems(seen), [met.fault for met in seen.met]) == ([], list(faults))


CHAIN = Order(Chain([Call(number=0), Call(number=1)]), at=1.0)
REJECTED = Order(Call(does="reject"), at=1.0)


def stop(seen: Seen) -> None:
    seen.stuck = "something still waits (ready messages of celery: 7)"


def lose_result(seen: Seen) -> None:
    seen.ready["f0"], seen.values["f0"] = [False], [PENDING]


def refuse(seen: Seen) -> None:
    seen.asked[0].refused.append(BrokerUnavailable("the connection was lost"))


def run_again(seen: Seen) -> None:
    number, run = seen.record.executions["f0"][0]
    seen.record.executions["f0"].append((number, replace(run, place=run.place + 1)))


def lose_letter(seen: Seen) -> None:
    seen.left["dead"].clear()


def log(seen: Seen) -> None:
    seen.errors.append("no event: KeyError('id')")


def rest_late(seen: Seen) -> None:
    seen.rested = 51.0


@pytest.mark.parametrize(
    ("acks_late", "order", "fault", "harm"),
    [
        (False, CHAIN, Fault("away", "broker", at=1.0, seconds=0.5), stop),
        (False, CHAIN, Fault("kill", "worker0", at=1.001), stop),
        (False, CHAIN, Fault("away", "results", at=1.0, seconds=3.0), lose_result),
        (False, CHAIN, Fault("kill", "worker0", at=0.5), lose_result),  # it was called later
        (True, CHAIN, Fault("before", "caller0", "push"), refuse),
        (True, CHAIN, Fault("before", "worker", "settle"), refuse),
        (True, Order(Call(), at=1.0), Fault("away", "results", at=1.0005, seconds=3.0), run_again),
        (True, CHAIN, Fault("before", "worker", "settle"), run_again),
        (True, CHAIN, Fault("cut", "worker0", "broker", at=1.0, seconds=0.5), run_again),
        (True, REJECTED, Fault("before", "worker", "settle"), lose_letter),
        (True, CHAIN, Fault("before", "worker", "settle"), log),
        (True, Order(Chord([Call(), Call()], Call())), Fault("before", "worker", "join.finish"), rest_late),
    ],
)
def test_faults_excuse_only_what_they_may_cause(
    acks_late: bool, order: Order, fault: Fault, harm: Callable[[Seen], None]
) -> None:
    order = replace(order, flow=numbered(order.flow))
    seen = run(Case(World("sqlite+memory", workers=1, acks_late=acks_late), (order,), (fault,)))
    assert (problems(seen), len(seen.met)) == ([], 1)
    harm(seen)
    assert len(problems(seen)) == 1


def test_a_join_that_fails_for_an_unexpected_reason_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its body fails with the error, as that of a member does that fails as it has to."""
    case = Case(World(workers=1), (Order(numbered(Chord([Call(fails=True), Call()], Call()))),))
    assert problems(run(case)) == []

    def broken(*_: Any) -> Any:
        raise TypeError("none of the program's")

    monkeypatch.setattr(body_messages, "messages_of", broken)
    good = replace(case, orders=(Order(numbered(Chord([Call(), Call()], Call()))),))
    assert any(
        "the log has an error that nothing explains: join-failed" in each for each in problems(run(good))
    )


def test_a_call_is_due_at_its_eta() -> None:
    seen = run(Case(orders=(Order(Call(number=0), options={"countdown": 20.0}),)))
    assert problems(seen) == []
    ((_, begun, _),) = seen.record.runs["f0"]
    assert 20.0 <= begun[0] < 20.5


def test_a_case_with_many_waiting_callers_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait was nested in the one before; below the deepest, only time passed."""
    monkeypatch.setattr(search, "PATIENCE", 20)
    flow = Call(options={"countdown": 5.0}, number=0)
    orders = tuple(Order(flow, at=number / 100, ask="get") for number in range(80))
    assert search.look(Case(World(), orders, seed=1))[1] == []


@pytest.mark.parametrize("timeout", [1e-13, 0.0])
def test_a_very_short_wait_ends(timeout: float) -> None:
    """It did not change the virtual time, so a caller that waited again never ended."""
    time = Time(1)
    time.now = before = 946.871
    backend = MemoryBackend("memory://", Settings({}), Clock(time))
    assert Watcher(time, "caller0", backend).wait(["missing"], timeout) == {}
    assert (1000 + time.now > 1000 + before) is bool(timeout)
