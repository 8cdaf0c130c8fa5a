"""Fleets with schedules: what is due is called once, whatever happens."""

from __future__ import annotations

import pytest

from qworker.beat.service import Beat
from tests.simulation.case import Case, Edit, Entry, Fault, Timetable, World
from tests.simulation.checks import problems
from tests.simulation.nodes import IN_TRANSACTIONS
from tests.simulation.run import run
from tests.simulation.search import Drawing
from tests.simulation.timetables import scheduled_of

SEEDS = 15


@pytest.mark.parametrize("seed", [*range(SEEDS), 392178280])  # the last: results expire behind slow tasks
def test_what_is_due_is_called_once(seed: int) -> None:
    case = scheduled_of(seed)
    found = problems(run(case))
    assert not found, f"{case!r}\n" + "\n".join(found)


def test_no_order_is_made_in_a_transaction_where_the_world_is_given_no_database() -> None:
    drawing = Drawing((("stores", "memory"),))
    drawn, given = (
        {order.how for seed in range(100) for order in draw(seed).orders}
        for draw in (scheduled_of, lambda seed: drawing.case(-seed))
    )
    assert drawn >= {*IN_TRANSACTIONS}
    assert given.isdisjoint(IN_TRANSACTIONS)


def test_a_case_with_schedules_runs_the_same_way_each_time() -> None:
    entries = (Entry("e0", ("every", 1.0)), Entry("e1", ("every", 4.0), "slow", fields={"overlap": "skip"}))
    case = Case(
        World("sqlite", workers=1),
        faults=(Fault("kill after", "beat0", "beat.fire", 3), Fault("away", "results", at=8.0, seconds=3.0)),
        schedules=Timetable(2, "other", seconds=20.0, entries=entries),
    )
    assert run(case).log == run(case).log


def test_the_oracle_tells_of_what_is_missed_repeated_and_not_due() -> None:
    case = Case(
        World("sqlite", workers=1),
        schedules=Timetable(1, seconds=22.0, entries=(Entry("e0", ("every", 5.0)),)),
    )
    seen = run(case)
    story = seen.schedules
    assert story is not None
    assert story.slots is not None
    assert not problems(seen)
    (*runs, last), slots = story.runs, story.slots["e0"]
    story.runs[:] = [*runs, runs[0]]
    assert len(problems(seen)) == 2  # one twice, one not at all
    story.runs[:] = runs
    story.slots["e0"] = [slot for slot in slots if slot[0] != last.due]
    assert problems(seen) == ["e0 was not called for 20.000000"]
    story.runs[:] = [*runs, last]
    story.slots["e0"] = [*slots, (last.due - 1.0, last.due, "id")]
    assert "e0 was called for 19.000000, when it was not due" in problems(seen)


@pytest.mark.parametrize("edit", [Edit("remove", at=35.0), Edit("pause", at=21.0)])
def test_the_oracle_tells_of_a_call_that_was_owed_and_dropped(
    edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Fault("away", "broker", at=19.8, seconds=10.0)
    table = Timetable(store="other", entries=(Entry("e0"),), edits=(edit,))
    assert problems(run(Case(faults=(away,), schedules=table))) == []
    monkeypatch.setattr(Beat, "_left_behind", lambda self, slot: [])
    assert problems(run(Case(faults=(away,), schedules=table))) == [
        "e0 was called for 20.000000, and did not run"
    ]


def test_overlaps_that_need_revocations_are_refused_where_there_are_none() -> None:
    replaces = {"overlap": "replace"}
    edits = (
        Edit("add", "e1", 2.0, Entry("e1", ("every", 1.0), source="hand", fields=replaces)),
        Edit("set", "e0", 4.0, fields=replaces),
    )
    entries = (Entry(when=("every", 5.0)), Entry("e2", ("every", 1.0), "slow", fields=replaces))
    table = Timetable(beats=1, store="other", seconds=20.0, entries=entries, edits=edits)
    seen = run(Case(World("kombu+memory"), schedules=table))
    assert problems(seen) == []
    assert seen.schedules is not None
    assert [done.error for done in seen.schedules.edits] == ["InvalidSchedule"] * 2
