"""Fleets with schedules: what is due is called once, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

import pytest

from qworker.beat.agenda import Agenda
from qworker.beat.service import Beat
from tests.simulation.case import Case, Edit, Entry, Fault, Timetable, World
from tests.simulation.checks import problems
from tests.simulation.leading_clock import LeadingClock
from tests.simulation.nodes import IN_TRANSACTIONS
from tests.simulation.run import run
from tests.simulation.schedules import Led, Story
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


@pytest.mark.parametrize("seconds", [5.0, -5.0, 70.0])
def test_the_oracle_tells_of_what_is_missed_after_the_clock_was_set(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Timetable(beats=1, seconds=30.0, entries=(Entry(when=("every", 1.0)),))
    case = Case(
        World("sqlite", workers=1),
        faults=(Fault("jump", "beat0", at=10.0, seconds=seconds),),
        schedules=table,
    )
    assert problems(run(case)) == []
    lead = Beat.lead

    def forgets(self: Beat, *given: Any) -> float:
        if abs(self.clock.now() - self._wall) > 3.0 and self._agenda is not None:
            self._agenda = Agenda()
        return lead(self, *given)

    monkeypatch.setattr(Beat, "lead", forgets)
    assert f"e0 was not called for {20 + max(seconds, 0):.6f}" in problems(run(case))


def test_due_times_are_counted_anew_after_a_restart_that_corrects_the_clock() -> None:
    """Found by the simulator with seed -55100405: the times of the new scheduler had been shown before."""
    faults = (Fault("jump", "beat0", at=11.06, seconds=70.0), Fault("restart", "beat0", at=50.93))
    table = Timetable(beats=1, seconds=90.0, entries=(Entry(when=("every", 15.0)),))
    assert problems(run(Case(World(workers=1), faults=faults, schedules=table))) == []


def test_an_outage_and_a_set_clock_excuse_no_late_call_at_another_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    due = Agenda.due
    monkeypatch.setattr(
        Agenda, "due", lambda self, now, most: due(self, now, most) if int(now) % 20 == 0 else []
    )
    faults = (Fault("away", "results", at=1.0, seconds=0.5), Fault("jump", "beat0", at=75.0, seconds=5.0))
    table = Timetable(beats=1, seconds=79.0, entries=(Entry(when=("every", 22.0)),))
    found = problems(run(Case(World("sqlite+other", workers=1), faults=faults, schedules=table)))
    assert "e0 was called 18.000 s after 22.000000" in found
    assert "e0 was called 16.000 s after 44.000000" in found


def _without(due: float) -> Callable[[Story], None]:
    """Return what removes the call for second *due* of the world."""

    def remove(story: Story) -> None:
        _unrun(due)(story)
        if story.slots is not None:
            story.slots["e0"] = [each for each in story.slots["e0"] if round(each[0] - story.base) != due]

    return remove


def _unrun(due: float) -> Callable[[Story], None]:
    def remove(story: Story) -> None:
        story.runs[:] = [each for each in story.runs if round(each.due - story.base) != due]

    return remove


def _moved(due: float, seconds: float) -> Callable[[Story], None]:
    """Return what makes the call for second *due* of the world one for a time that is *seconds* later."""

    def move(story: Story) -> None:
        assert story.slots is not None
        was = story.base + due

        def moved(at: float) -> float:
            return at + seconds if abs(at - was) < 1.0 else at

        story.slots["e0"] = [(moved(each), moved(at), task_id) for each, at, task_id in story.slots["e0"]]
        story.runs[:] = [changed(each, due=moved(each.due)) for each in story.runs]

    return move


def _rerun(due: float, **fields: Any) -> Callable[[Story], None]:
    """Return what adds a run, with these *fields*, for second *due* of the world."""

    def again(story: Story) -> None:
        first = next(each for each in story.runs if round(each.due - story.base) == due)
        _unrun(due)(story)
        story.runs += [changed(first, **fields)] if fields else [first, first]

    return again


SQLITE = World("sqlite")
EARLY = World("sqlite", workers=1, acks_late=False)
KILLED = Fault("kill", "worker0", at=5.0)
UNHEARD = Fault("after", "caller0", "beat.edit", 1)
RESTARTED = Fault("restart", "beat0", at=75.0)
RESTARTED_AT_41 = Fault("restart", "beat0", at=41.0)
SET = Fault("jump", "beat0", at=75.0, seconds=5.0)
PLAIN, SKIPS, REPLACES = Entry(), Entry(fields={"overlap": "skip"}), Entry(fields={"overlap": "replace"})
EXPIRES, LIMITED = Entry(fields={"expires": 2.0}), Entry(fields={"max_runs": 5})
PAUSED, DAMAGED = Edit("pause", at=75.0), Edit("damage", at=75.0)
HURRIED, GIVEN = Edit("set", at=75.0, fields={"expires": 30.0}), Edit("set", at=25.0, fields={"args": [1]})


@pytest.mark.parametrize(
    ("world", "fault", "entry", "edit", "spoil", "problem"),
    [
        (SQLITE, UNHEARD, PLAIN, PAUSED, _without(40), "was not called for 40"),
        (SQLITE, None, LIMITED, None, _moved(40, 20), "was not called for 40"),
        (World(), RESTARTED, PLAIN, None, _without(40), "was not called for 40"),
        (SQLITE, KILLED, SKIPS, None, _without(40), "was not called for 40"),
        (SQLITE, KILLED, PLAIN, None, _rerun(40), "ran 2 times for 40"),
        (EARLY, KILLED, PLAIN, None, _unrun(40), "called for 40.000000, and did not run"),
        (SQLITE, None, PLAIN, HURRIED, _unrun(40), "called for 40.000000, and did not run"),
        (SQLITE, None, PLAIN, GIVEN, _rerun(40, args=()), "ran with ()"),
        (SQLITE, SET, EXPIRES, None, _rerun(40, given=43.0), "with expires=2.0"),
        (SQLITE, None, SKIPS, DAMAGED, _rerun(40, ended=51.0), "before that for 40.000000 had ended"),
        (SQLITE, RESTARTED, REPLACES, None, _rerun(40, started=52.0), "after another call had replaced it"),
        (
            SQLITE,
            RESTARTED_AT_41,
            REPLACES,
            None,
            _rerun(40, started=52.0),
            "after another call had replaced it",
        ),
    ],
)
def test_a_fault_or_an_edit_excuses_no_problem_at_another_time(
    world: World,
    fault: Fault | None,
    entry: Entry,
    edit: Edit | None,
    spoil: Callable[[Story], None],
    problem: str,
) -> None:
    table = Timetable(beats=1, seconds=90.0, entries=(entry,), edits=(edit,) if edit else ())
    seen = run(Case(world, faults=(fault,) if fault else (), schedules=table))
    assert problems(seen) == []
    assert [met.fault for met in seen.met] == ([fault] if fault else [])
    assert seen.schedules is not None
    spoil(seen.schedules)
    assert any(problem in each for each in problems(seen))


def test_a_skipped_time_is_passed_when_the_clock_is_set_and_a_repeated_one_the_first_time() -> None:
    clock = LeadingClock([Led(0.0, 0.0, 10.0), Led(5.0, 10.5, 20.0), Led(-5.0, 20.5, 30.0)])
    shown = {9.0: 9.0, 12.0: 10.5, 16.0: 11.0, 25.0: 20.0, 26.0: 31.0}
    assert {each: clock.passed(each) for each in shown} == shown
    assert [clock.is_repeated(each) for each in (9.0, 12.0, 15.4, 15.6, 24.0, 26.0)] == [
        False, True, False, True, True, False,
    ]  # fmt: skip
    assert clock.span(5.0, 10.2) == (5.0, 15.2)
    assert clock.span(25.0, 30.0) == (20.0, 25.0)
    assert LeadingClock([]).passed(7.0) == 7.0


def test_an_entry_that_could_not_be_called_is_late_by_the_jitter_that_it_was_given() -> None:
    """The checks did not know that jitter, because they do not follow edits of such an entry."""
    edits = Edit("set", fields={"jitter": 3.0}), Edit("set", fields={"args": []})
    table = Timetable(store="other", entries=(Entry(wrong="arguments"),), edits=edits)
    assert problems(run(Case(schedules=table))) == []
