"""Faults found by the simulator, each with its smallest case. Docstrings describe the fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.case import (
    Call,
    Case,
    Chain,
    Chord,
    Chunks,
    Django,
    Edit,
    Entry,
    Errback,
    Fault,
    Graph,
    Group,
    Job,
    Mapping,
    Node,
    Order,
    Pipe,
    Timetable,
    World,
)
from tests.simulation.checks import problems
from tests.simulation.program import EXPIRES
from tests.simulation.run import Seen
from tests.simulation.run import run as run_any
from tests.simulation.seams import FORGETS, Process
from tests.simulation.world import START
from tests.support.flows import Failed, numbered


def case_of(*flows: object, **options: object) -> Case:
    """Return a case in which each of *flows* is called once. options: of the Case."""
    return Case(orders=tuple(Order(numbered(each)) for each in flows), **options)  # type: ignore[arg-type]


def run(case: Case) -> Seen:
    """Run *case*, whose faults must all happen."""
    seen = run_any(case)
    assert [fault for fault in case.faults if fault not in seen.fired] == []
    return seen


def test_a_group_of_one_chain_follows_a_chord() -> None:
    """``chord | group([chain(a, b)])`` raised "too many values to unpack"."""
    header = Chord([Call()], Call())
    assert problems(run(case_of(Pipe([header, Group([Chain([Call(), Call()])])])))) == []
    assert problems(run(case_of(Pipe([header, Group([Chain([Call(), Group([Call(), Call()])])])])))) == []


def test_a_chord_that_follows_an_eager_call_is_joined() -> None:
    """For an eager call, a chord in its links, or in a chain there, opened a join in the result store whose
    members were never counted: its body did not run."""
    chord = Chord([Call(), Call()], Call())
    line = Chain([Call(), Group([Call(), Call()]), Call(links=[chord])])
    for link in (chord, line, Chain([Call(fails=True), Call()])):
        order = Order(numbered(Call(links=[link])), how="eager")
        assert problems(run(Case(orders=(order,)))) == []


def test_a_member_that_is_ignored_after_an_early_ack_fails_its_chord() -> None:
    """The body waited for it until results expire: once its message was gone, its part of the join was
    recorded only with a result."""
    early = World(acks_late=False)
    chord = Chord([Call(does="ignore"), Call()], Call())
    assert problems(run(case_of(chord, world=early))) == []
    for stores in ("sqlite", "memory+sqlite"):
        assert problems(run(case_of(chord, world=World(acks_late=False, stores=stores)))) == []


def test_a_task_that_cannot_be_put_back_fails() -> None:
    """``Reject(requeue=True)`` after an early ack: the message is gone, and the task stayed PENDING."""
    chord = Chord([Call(does="requeue"), Call()], Call(errbacks=[Errback()]))
    for flow in (Call(does="requeue"), Chain([Call(does="requeue"), Call()]), chord):
        assert problems(run(case_of(flow, world=World(acks_late=False)))) == []


def test_nothing_follows_a_value_that_cannot_be_stored() -> None:
    """If the next call of a chain is immutable, it was sent before the value was found not to be JSON: it ran
    although its chain had failed. A join that it opened was left."""
    assert problems(run(case_of(Chain([Call(does="set"), Call(immutable=True)])))) == []
    chunks = Chain([Call(does="set"), Chunks(items=4, each=2)])
    assert problems(run(case_of(Chord([chunks], Call())))) == []


def test_a_chord_with_an_errback_is_called_as_the_link_of_a_body() -> None:
    """A message's links were read without the app: "no app has been made yet", or with another app."""
    link = Chain([Chord([Call()], Call()), Call()], [Errback()])
    assert problems(run(case_of(Chord([Call()], Call(links=[link]))))) == []


def test_a_rule_is_due_after_an_hour_that_came_twice() -> None:
    """In that hour, a rule returned a due time an hour earlier, so its entry was considered invalid."""
    case = Case(
        schedules=Timetable(
            beats=1,
            store="other",
            timezone="Australia/Lord_Howe",
            start=1_712_417_270.0 - START,  # 130 s before the end of the half-hour that comes twice there
            seconds=140.0,
            entries=(Entry(when=("rule", (0,))),),
        )
    )
    seen = run(case)
    assert problems(seen) == []
    assert seen.schedules is not None
    assert seen.schedules.runs


def test_what_is_fetched_ahead_and_revoked_still_fails_what_follows() -> None:
    """A worker that returned excess messages ended revoked calls among them without failing their successors:
    the last call of the chain stayed PENDING for ever."""
    members = [Call(), Call(), Pipe([Mapping(1), Call()])]
    order = Order(
        numbered(Group(members, [Errback()])), ask="get", options={"countdown": 20.0}, revoke_at=0.0
    )
    world = World(concurrency=1, prefetch=1)
    assert problems(run(Case(world, (Order(numbered(Mapping(2))), order)))) == []


def test_a_chain_of_nothing_but_a_group_becomes_a_header() -> None:
    """As in Celery, even if the group has one member: the oracle passed on the member's value, not a list."""
    for header in (Chain([Group([Call()])]), Chain([Group([Call(fails=True)])]), Chain([Chunks(2, 2)])):
        assert problems(run(case_of(Pipe([header, Call()])))) == []
        assert problems(run(case_of(Pipe([header, Group([Call()]), Call()])))) == []
        assert problems(run(case_of(Pipe([Pipe([Pipe([header])]), Call()])))) == []


def test_the_next_attempt_of_a_link_has_the_same_parent() -> None:
    """It was its own parent, and found the state RETRY when it checked its parent."""
    case = Case(orders=(Order(Call(links=[Call(retries=1, number=1)], number=0)),), seed=1)
    assert problems(run(case)) == []


def test_an_iterable_without_calls_is_in_the_cache() -> None:
    """``async_iter(f, [], cached=True)`` kept its result in the database; ``result(…, cached=True)`` does not
    look there."""
    assert problems(run(Case(django=Django((Job("iter", size=0, cached=True),))))) == []


def test_a_failed_attempt_does_not_outlast_a_success_that_is_not_kept() -> None:
    """With ``ack_failure=False, save=False``, the row of a failed attempt stayed when the next one succeeded,
    so ``result()`` and the admin showed a failure."""
    job = Job(fails=1, hook=True, save=False, ack_failure=False)
    assert problems(run(Case(django=Django((job,))))) == []


@pytest.mark.parametrize("seed", range(12))
def test_a_caller_may_wait_while_a_task_does(seed: int) -> None:
    """In the simulator, actors that step while a task waits were considered to be in that task: callers "must
    not wait for the result of another", and waited for ever for the same worker."""
    calling = Order(numbered(Call(links=[Call()])), at=0.1)
    waiting = Order(Call(number=0), at=0.16, ask="await")
    lost = Fault("before", "worker", "push")
    assert problems(run(Case(orders=(calling, waiting), faults=(lost,), seed=seed))) == []


def test_a_look_that_meets_a_fault_does_not_fail_the_task() -> None:
    """The simulator's tasks check the state of their predecessor, and failed if the store did not answer."""
    lost = Fault("before", "worker", "get")
    assert problems(run(case_of(Call(links=[Call(errbacks=[Errback()])]), faults=(lost,)))) == []


def test_a_chord_fails_with_its_header_also_when_its_body_has_expired() -> None:
    """The body of a failed chord was revoked as expired, without a ChordError or errbacks. A body with a
    countdown failed only after it."""
    failing = Chord([Call(fails=True)], Call(does="expired", errbacks=[Errback()]), [Errback(now=True)])
    assert problems(run(case_of(failing))) == []
    seen = run(case_of(Chord([Call(fails=True)], Call(options={"countdown": 90}, errbacks=[Errback()]))))
    assert problems(seen) == []
    assert seen.seconds < 90.0


def test_what_several_attempts_call_runs_side_by_side() -> None:
    """The oracle expected the calls of one attempt to end before those of the next attempt begin."""
    again = Call(does="again", calls=Call(links=[Call()]))
    assert all(problems(run(case_of(again, seed=seed))) == [] for seed in range(4))


def test_a_task_that_is_revoked_need_not_become_a_dead_letter() -> None:
    """The checks expected one for a task that rejects its message, although it never ran."""
    order = Order(numbered(Call(does="reject")), revoke_at=0.0)
    assert problems(run(Case(orders=(order,)))) == []


def test_a_task_that_cannot_call_after_an_early_ack_fails_with_that() -> None:
    """The simulator's tasks requeued their messages, which were gone: the checks took that for the task's own
    failure."""
    flow = Call(calls=Chord([Call()], Call()))
    full = Fault("full", "results", seconds=10.0)
    assert problems(run(case_of(flow, world=World(acks_late=False), faults=(full,)))) == []


def test_a_join_is_left_where_a_task_is_killed_that_has_opened_it() -> None:
    """The checks expected that no join is left until it expires, but the task's next run opens another
    one."""
    killed = Fault("kill after", "worker0", "join.open")
    flow = Call(calls=Chord([Call()], Call()))
    assert problems(run(case_of(flow, faults=(killed,), seed=2))) == []


def test_an_operator_sends_what_was_rejected_again() -> None:
    """It runs again, and orders lost by a crash of the stores stay unknown: the oracle expected neither."""
    again = (Fault("retry dead", at=5.0),)
    assert problems(run(case_of(Call(does="reject"), faults=again))) == []
    forgotten = Order(numbered(Chord([Call(does="ignore")], Call())), at=1.8)
    assert problems(run(Case(orders=(forgotten,), faults=(Fault("crash", at=1.0, seconds=1.0),)))) == []


def test_a_task_with_a_link_is_killed_where_no_results_are_kept() -> None:
    """Reading its result raised NotSupported, so its errbacks were not called."""
    call = Call(does="hard", links=[Call()], errbacks=[Errback()])
    assert problems(run(case_of(call, world=World("memory+disabled")))) == []


def test_an_early_ack_that_was_never_confirmed_fails_its_task() -> None:
    """It was given up with the start deadline of its lost lease, which had passed: the pool returned it, and
    the worker started it again, in a busy loop."""
    lost = Fault("before", "worker0", "confirm")
    order = Order(numbered(Chain([Call(), Call()])), at=1.0)
    assert problems(run(Case(World("kombu+memory", acks_late=False), (order,), (lost,)))) == []


def test_what_two_crashes_forget() -> None:
    """After the second crash, the simulator expected orders that the first one had lost."""
    crashes = Fault("crash", at=0.6, seconds=1.0), Fault("crash", at=1.9)
    assert problems(run(Case(orders=(Order(Call(number=0), at=1.5),), faults=crashes))) == []


def test_the_body_of_a_body_ends_in_a_group_that_something_follows() -> None:
    """If that group was alone in a chain, it did not become a header, and its successor's errbacks were not
    called."""
    for body in (Chain([Group([Call(), Call()])]), Chain([Chord([Call(), Call()], Chunks(1, 1))])):
        inner = Chord([Call(fails=True)], body)
        for follows in (Group([Call(errbacks=[Errback()]), Call()]), Call(errbacks=[Errback()])):
            assert problems(run(case_of(Pipe([Chord([Call()], inner), follows])))) == []


def test_an_errback_of_a_chain_is_not_for_a_body_that_becomes_a_header() -> None:
    """If a group follows the chord, it was also called for the members of a body that is a group."""
    for members in ([Call(fails=True)], [Call(fails=True), Call()]):
        chord = Chord([Call()], Group(members))
        assert problems(run(case_of(Chain([chord, Chunks(2, 1)], [Errback()])))) == []


def test_a_crash_takes_back_what_a_project_has_just_called() -> None:
    """The checks expected it nevertheless, or after another crash."""
    crashes = (Fault("crash", at=2.5, seconds=1.0), Fault("crash", at=5.0))
    assert problems(run(Case(faults=crashes, django=Django((Job(at=3.06),))))) == []


def test_a_worker_is_killed_when_a_transaction_has_just_begun() -> None:
    """The simulator left it open, so the next worker waited for the database for ever."""
    killed = Fault("kill after", "worker0", "orm.write")
    case = Case(World(workers=1), faults=(killed,), django=Django((Job("schedule", size=2, once=True),)))
    assert problems(run(case)) == []


def test_a_join_is_claimed_by_somebody_whose_clock_is_ahead() -> None:
    """The simulator did not wait for the end of that claim, which is later by the same time."""
    calling = Order(numbered(Call(calls=Chord([Call()], Call()))))
    killed = Order(numbered(Chord([Call()], Call())), at=1.0)
    faults = Fault("jump", "worker0", at=0.5, seconds=60.0), Fault("kill after", "worker0", "read_many", 2)
    assert problems(run(Case(World(workers=1), (calling, killed), faults))) == []


def test_a_child_is_killed_that_tells_what_follows_a_kill() -> None:
    """No other child took over: the task's errbacks were not called, and its successor never ended."""
    killed = Fault("child before", "worker0", "push")
    flow = Chain([Call(does="hard", errbacks=[Errback()]), Call()])
    assert problems(run(case_of(flow, world=World(workers=1), faults=(killed,)))) == []


def test_a_graph_that_is_called_twice_loses_a_node_once() -> None:
    """Once the other call had succeeded, the loss was invisible: the checks expected its value in the node
    that always runs."""
    nodes = [Node(Call(links=[Call()])), Node(Call(links=[Call()]), [1]), Node(Call(), [1], always=True)]
    lost = Fault("child after", "worker0", "get")
    world = World(acks_late=False, base="hooked")
    order = Order(numbered(Graph(nodes)), how="twice")
    seen = run(Case(world, (order,), (lost,), seed=2))
    assert problems(seen) == []
    seen.values["f0"][0][1] = "another"  # of a node that does not run always
    assert len(problems(seen)) == 1


def test_the_next_attempt_of_a_job_ends_before_the_one_that_failed_is_settled() -> None:
    """If a clock is ahead, the failure was stored with its ack and replaced the later end."""
    ahead = Fault("jump", "worker2", at=3.86, seconds=5.0)
    jobs = (
        Job(at=4.0, fails=2, ack_failure=False),
        Job(at=3.86, ack_failure=False, ask="wait"),
        Job("group", at=2.45, size=5, hook=True, ask="wait"),
    )
    project = Django(jobs, save_limit=0, max_attempts=2)
    case = Case(World(workers=3, concurrency=4), faults=(ahead,), seed=381145149, django=project)
    assert problems(run(case)) == []


def test_a_due_time_is_missed_around_an_edit() -> None:
    """The oracle ignored the due time just after the edit, and expected the previous one to be made up
    for."""
    table = Timetable(1, "other", entries=(Entry(when=("every", 1.0)),), edits=(Edit("reset"),))
    assert problems(run(Case(faults=(Fault("kill", "beat0", at=3.0),), schedules=table))) == []


def test_calls_expire_while_a_slow_task_keeps_the_worker() -> None:
    """The oracle expected them to run if there are no slots to check."""
    entries = (Entry(task="slow"), Entry("e1", ("every", 1.0), fields={"expires": 2.0}))
    case = Case(World(workers=1, concurrency=1), schedules=Timetable(1, entries=entries))
    assert problems(run(case)) == []


def test_an_attempt_that_a_crash_takes_back_fails_again() -> None:
    """The simulator's tasks counted runs instead of attempts, so the next run succeeded."""
    project = Django((Job(fails=2),), ack_failures=False, max_attempts=2)
    assert problems(run(Case(faults=(Fault("crash", at=5.0, seconds=4.0),), django=project))) == []


def test_all_that_waited_for_the_broker_is_sent_when_it_is_back() -> None:
    """When the first call was sent, others in their retry pause counted as sent, too: they were sent up to a
    minute later."""
    entries = (
        Entry("e0", ("every", 1.0), fields={"overlap": "skip"}),
        Entry("e1", ("every", 1.0), "grouped", fields={"jitter": 3.0}),
    )
    away = Fault("away", "broker", at=7.18, seconds=5.0)
    case = Case(faults=(away,), schedules=Timetable(1, "other", seconds=20.0, entries=entries))
    assert problems(run(case)) == []


def test_a_member_that_is_ignored_after_an_attempt_does_not_fail_with_retry() -> None:
    """A body that is a group failed with ``Retry``, the member's last stored state."""
    ignored = Call(retries=1, instead=Call(does="ignore"))
    assert problems(run(case_of(Chord([ignored], Group([Call()]))))) == []


def test_a_chain_of_one_group_with_an_errback_is_a_header() -> None:
    """A group of one was unrolled, so its successor did not receive a list."""
    for header in (Group([Call()]), Group([Call(fails=True)]), Chunks(1, 1)):
        flow = Pipe([Chain([header], [Errback()]), Call(errbacks=[Errback()])])
        assert problems(run(case_of(flow))) == []


def test_what_needs_joins_where_there_are_none_need_not_become_a_dead_letter() -> None:
    """The checks expected one for a body that rejects its message, but never runs."""
    body = Chord([Call()], Call(does="reject"))
    assert problems(run(case_of(Call(instead=body), world=World("memory+disabled")))) == []


def test_a_chain_of_one_group_after_a_group_becomes_a_header() -> None:
    """If something follows it; the oracle unrolled it."""
    for inner in (Group([Call()]), Group([Call(fails=True)])):
        flow = Pipe([Group([Call()]), Chain([inner]), Call(errbacks=[Errback()])])
        assert problems(run(case_of(flow))) == []


def test_one_of_two_calls_with_the_same_ids_is_revoked() -> None:
    """Its hooks were called for a failure and saw the success of the other, which the checks did not
    expect."""
    chord = numbered(Chord([Call(retries=1)], Call()))
    order = Order(chord, how="twice", ask="then", revoke_at=0.5)
    assert problems(run(Case(World(base="hooked", skew=2.0), (order,), seed=1))) == []


def test_the_cause_of_a_failure_is_waited_for_while_the_store_is_away() -> None:
    """The caller got ``ChordError`` instead of the member's error, which could not be read at that moment."""
    chord = Chord([Call(does="soft")], Call())
    orders = tuple(Order(numbered(flow), at=2.0, ask="await") for flow in (Call(), chord))
    away = Fault("away", "results", at=2.5, seconds=3.0)
    assert problems(run(Case(orders=orders, faults=(away,)))) == []


def test_an_interval_is_changed_before_or_after_the_clock_is_set() -> None:
    """The oracle counted from a due time of the previous interval, which a clock that is ahead reports
    later."""
    table = Timetable(
        1,
        entries=(Entry(when=("every", 4.0)),),
        edits=(
            Edit(at=6.1),
            Edit("resume", at=7.0),
            Edit("set", at=12.3, fields={"schedule": ("every", 2.5)}),
        ),
    )
    for at in (0.8, 30.0):
        ahead = Fault("jump", "beat0", at=at, seconds=5.0)
        assert problems(run(Case(World("sqlite"), faults=(ahead,), schedules=table))) == []


@pytest.mark.parametrize("ask", ["raise", "await"])
def test_a_group_after_several_chords_raises_what_failed_first(ask: str) -> None:
    """It raised the ChordError of a header in between, and left a task in the event loop."""
    flow = Chord([Call(), Call(fails=True)], Chord([Call()], Group([Call(), Call()])))
    assert problems(run(Case(orders=(Order(numbered(flow), ask=ask),)))) == []


def test_a_call_that_waits_for_the_broker_counts() -> None:
    """It was due again before the broker was back, and the pending call was forgotten: ``max_runs`` was
    exceeded by one."""
    table = Timetable(1, "other", entries=(Entry(when=("every", 4.0), fields={"max_runs": 5}),))
    assert problems(run(Case(faults=(Fault("away", "broker", seconds=10.0),), schedules=table))) == []


def test_an_edit_begins_before_another_has_ended() -> None:
    """The oracle applied them in the order in which they ended."""
    table = Timetable(
        1,
        entries=(Entry(),),
        edits=(Edit("remove"), Edit("add", entry=Entry(when=("every", 2.5), source="hand"))),
    )
    assert problems(run(Case(World("sqlite", pauses=0.5), seed=9, schedules=table))) == []


def test_a_task_fails_before_its_process_would_be_killed() -> None:
    """The oracle considered it killed, which metrics do not count as a failure."""
    assert problems(run(case_of(Call(fails=True, does="hard")))) == []


def test_a_worker_is_killed_before_the_rest_of_a_failed_chain_is_stored() -> None:
    """Its message was settled first, so the results of the calls after it never ended."""
    failed = Group([Call(), Mapping(1, fails=True)])
    case = case_of(
        Chain(
            [failed, Chain([Chord([], Chain([Call(errbacks=[Errback()])])), Chain([Chunks(2, 1), Call()])])]
        ),
        faults=(Fault("kill after", "worker1", "settle"),),
        seed=7,
    )
    assert problems(run(case)) == []


def test_a_schedule_begins_later_by_an_edit_while_its_call_waits_for_its_jitter() -> None:
    entry = Entry("e1", ("cron", "* * * * *", ""), fields={"jitter": 3.0})
    edit = Edit("set", "e1", 3.0, fields={"start": 9.5})
    timetable = Timetable(store="other", start=12415598.0, entries=(entry,), edits=(edit,))
    assert problems(run(Case(schedules=timetable))) == []


def test_missed_calls_that_may_not_overlap_are_made_up_for_by_one() -> None:
    """As many as ``catch_up`` allows were made at once."""
    entry = Entry(when=("every", 2.0), fields={"jitter": 3.0, "catch_up": 2, "overlap": "skip"})
    frozen = Fault("freeze", "beat1", at=12.6, seconds=6.0)
    table = Timetable(store="other", start=-3912202.0, entries=(entry,))
    assert problems(run(Case(World(workers=1), faults=(frozen,), schedules=table, seed=2820040155))) == []


def test_a_call_whose_result_is_damaged_is_not_replaced() -> None:
    """An unreadable result counts as ended: a call that waits behind a slow task still runs."""
    entries = (
        Entry("e1", ("every", 1.0), fields={"overlap": "replace"}),
        Entry("e0", ("every", 1.0), "slow"),
    )
    edits = (Edit("damage", "e1", at=4.16), Edit("remove", "e2", at=4.16))
    table = Timetable(store="other", entries=entries, edits=edits)
    for seed in range(4):
        assert problems(run(Case(World(workers=1), schedules=table, seed=seed))) == []


def test_a_group_of_an_entry_waits_behind_slow_tasks() -> None:
    """With overlap="skip" it is not called again before its members have ended."""
    slow = {"jitter": 3.0, "catch_up": 3, "overlap": "replace"}
    group = {"expires": 30.0, "catch_up": 3, "overlap": "skip"}
    edits = (
        Edit("stranger", "e5", entry=Entry("e0", ("every", 1.0), "slow", "hand", slow)),
        Edit("add", "e2", 17.15, Entry("e2", ("every", 2.5), "grouped", "hand", group)),
        Edit("pause", "e5", 17.35),
        Edit("stranger", "e3", 17.35),
        Edit("sign", "e3", 17.45),
    )
    table = Timetable(store="other", edits=edits)
    assert problems(run(Case(World(key="signed"), schedules=table))) == []


def test_a_process_dies_before_the_hook_of_a_scheduled_task_is_called() -> None:
    """When its message was redelivered, the task had already run, and the hook was never called."""
    died = Fault("child after", "worker1", "orm.write")
    job = Job("schedule", at=4.35, size=2, hook=True, due=-130.0, intended=True)
    seen = run(Case(faults=(died,), django=Django((job,))))
    assert problems(seen) == []
    assert seen.fired == [died]


def test_an_edit_that_is_not_answered_may_have_set_jitter() -> None:
    edit = Edit("set", "e2", 2.86, fields={"jitter": 3.0, "catch_up": 1})
    table = Timetable(entries=(Entry("e2"),), edits=(edit,))
    lost = Fault("after", "caller0", "beat.edit")
    assert problems(run(Case(World("sqlite+memory"), faults=(lost,), schedules=table))) == []


def test_a_run_is_ended_while_its_worker_is_told_to_end() -> None:
    header = [Call(), Call(links=[Call()]), Call(coroutine=True)]
    order = Order(numbered(Chord(header, Call())), 0.9)
    late = Fault("late", "worker2", "push")
    assert problems(run(Case(World(workers=3, key="late"), (order,), (late,), seed=2636530819))) == []


@pytest.mark.parametrize(
    "flow",
    [
        Chain([Call(does="ignore"), Call(), Call()]),
        Chord([Chain([Call(does="ignore"), Call()]), Call()], Call()),
        Chain([Chord([Call()], Call(does="ignore")), Group([Call(), Call()])]),
    ],
)
def test_a_task_that_ignores_itself_keeps_no_join_open(flow: object) -> None:
    """The calls after it never ended, and their join waited until results expire."""
    assert problems(run(case_of(flow, world=World(segment=2)))) == []


def test_a_cluster_is_frozen_while_tasks_end() -> None:
    """The simulator considered all quiet while no cluster could delete excess results."""
    frozen = Fault("freeze", "worker0", at=0.8, seconds=15.0)
    group = Django(
        (Job("group", at=1.55, size=3, sync=True, save=True),), save_limit=2, save_limit_per="group"
    )
    assert problems(run(Case(World(workers=1, skew=2.0), faults=(frozen,), django=group))) == []


@pytest.mark.parametrize(
    ("world", "entry", "store", "removed", "away_at"),
    [
        (World("memory+sqlite"), Entry("e2", ("every", 1.0)), "", 5.0, 0.0),
        (World(), Entry("e2"), "other", 21.0, 19.8),
    ],
)
def test_an_entry_is_removed_before_its_message_can_be_sent(
    world: World, entry: Entry, store: str, removed: float, away_at: float
) -> None:
    away = Fault("away", "broker", at=away_at, seconds=10.0)
    table = Timetable(store=store, entries=(entry,), edits=(Edit("remove", "e2", removed),))
    assert problems(run(Case(world, faults=(away,), schedules=table))) == []


def test_a_call_waits_for_the_result_store_among_calls_of_nobody() -> None:
    """The simulator considered all quiet before its requeued message was due again."""
    away = Fault("away", "results", at=9.6, seconds=10.0)
    edits = (
        Edit(entry=Entry(task="nobody")),
        Edit("add", at=11.0, entry=Entry(when=("every", 1.0), fields={"overlap": "skip"})),
    )
    table = Timetable(store="other", seconds=20.0, edits=edits)
    assert problems(run(Case(faults=(away,), schedules=table))) == []


@pytest.mark.parametrize(("store", "signed"), [("", 14.0), ("other", 17.0)])
def test_an_entry_is_called_late_once_it_is_signed(store: str, signed: float) -> None:
    """Its due times continue from the last call before a stranger's edit."""
    entry = Entry("e1", ("every", 2.5))
    edits = (Edit("stranger", "e1", entry=entry), Edit("sign", at=signed))
    table = Timetable(store=store, entries=(entry,), edits=edits)
    assert problems(run(Case(World("sqlite", key="signed"), schedules=table))) == []


def test_an_entry_is_removed_while_a_call_by_hand_waits_for_the_broker() -> None:
    """The oracle assumed that the removal, made meanwhile by the same caller, came first."""
    away = Fault("away", "broker", at=6.0, seconds=10.0)
    edits = (Edit("add", entry=Entry()), Edit("run", at=12.0), Edit("pause"), Edit("remove", at=13.0))
    assert problems(run(Case(World("sqlite"), faults=(away,), schedules=Timetable(edits=edits)))) == []


def test_a_call_without_a_result_may_be_replaced_and_then_keeps_no_other_waiting() -> None:
    """Once the entry had "skip" and a task with results, it was not called until results expire."""
    entry = Entry("e4", task="quiet", fields={"overlap": "replace"})
    edit = Edit("stranger", "e4", 11.7, Entry(fields={"overlap": "skip"}))
    table = Timetable(store="other", entries=(entry,), edits=(edit,))
    assert problems(run(Case(schedules=table))) == []


@pytest.mark.parametrize(
    ("stores", "seed"), [("memory", 7), ("kombu+memory", 7), ("sqlite", 8), ("sqlite", 9)]
)
def test_a_worker_is_restarted_while_the_broker_is_away(stores: str, seed: int) -> None:
    """What waited when the worker shut down was run by its pool a second time."""
    at = 0.801 if stores == "sqlite" else 0.802
    retried = Call(retries=1, coroutine=True, errbacks=[Errback()])
    faults = (Fault("away", "broker", at=at, seconds=0.5), Fault("restart", "worker0", at=at))
    world = World(stores, workers=1, base="hooked", track_started=True)
    orders = (Order(numbered(Graph([Node(retried), Node(Call())])), at=0.8),)
    assert problems(run(Case(world, orders=orders, faults=faults, seed=seed))) == []


def test_an_early_ack_is_answered_while_the_worker_closes() -> None:
    """The task was neither started nor redelivered, so it was lost."""
    faults = (Fault("restart", "worker2", at=0.81), Fault("after", "worker2", method="settle"))
    case = Case(World(workers=3, acks_late=False), orders=(Order(numbered(Call()), at=0.8),), faults=faults)
    assert problems(run(case)) == []


def test_a_worker_is_restarted_once_what_runs_has_ended() -> None:
    """The simulator restarted it during its pool's run, which was then started again."""
    faults = (Fault("away", "broker", at=0.801, seconds=0.5), Fault("restart", "worker0", at=0.801))
    orders = (Order(numbered(Call(retries=1, coroutine=True)), at=0.8),)
    world = World("memory", workers=1, base="hooked", track_started=True)
    assert problems(run(Case(world, orders=orders, faults=faults, seed=16))) == []


def test_a_member_of_a_failed_header_runs_again_while_the_body_is_awaited() -> None:
    """Its error, which the caller normally receives, is gone until it has failed again."""
    body = Chord([], Chain([Mapping(items=2), Mapping(items=2, star=True)]))
    orders = (Order(numbered(Chord([Call(fails=True)], body)), at=4.56, ask="await"),)
    faults = (Fault("retry failed", at=4.59),)
    assert (
        problems(run(Case(World(pauses=0.1, long=0.1), orders=orders, faults=faults, seed=695571721))) == []
    )


def test_a_failed_node_runs_again_before_those_after_it_have_failed() -> None:
    """These fail with a ChordError: the error of the node is forgotten."""
    flow = Graph([Node(Call(fails=True)), Node(Call()), Node(Call(), after=[2])])
    faults = (Fault("restart", "worker0", at=2.411), Fault("retry failed", at=2.44))
    orders = (Order(numbered(flow), at=2.41),)
    assert problems(run(Case(World(workers=1, pauses=0.05), orders=orders, faults=faults, seed=1))) == []


def test_what_comes_before_a_group_in_a_group_is_cancelled_with_it() -> None:
    """``group(chord | group(…)).revoke()`` revoked only the members of the inner group: what came before them
    ran."""
    later = {"countdown": 20.0}
    inner = Chord([Call(options=later)], Chunks(items=1, each=1))
    first = Pipe([Call(options=later), Chunks(items=2, each=1)])
    for member in (inner, first):
        order = Order(numbered(Group([member])), revoke_at=0.0)
        assert problems(run(Case(orders=(order,)))) == []


def test_a_killed_task_calls_a_group_without_a_result_store() -> None:
    """Only what waits for the group's members needs a store."""
    flow = Call(does="hard", calls=Group([Call(), Call()]))
    assert problems(run(Case(World("memory+disabled"), orders=(Order(numbered(flow)),)))) == []


def test_a_worker_is_restarted_twice_at_once() -> None:
    """The simulator began the second restart during the first, and started two workers of that name."""
    faults = (
        Fault("stall", "worker0", method="extend", seconds=6.0),
        Fault("restart", "worker0", at=1.133),
        Fault("restart", "worker0", at=1.133),
    )
    orders = (
        Order(numbered(Call(does="hard")), ask="await"),
        Order(numbered(Pipe([Call(links=[Call()]), Call()])), at=2.0, ask="get"),
    )
    world = World(acks_late=False, pauses=0.1)
    assert problems(run(Case(world, orders=orders, faults=faults, seed=2))) == []


@pytest.mark.parametrize("at", [5.1, 6.1])
def test_a_beat_that_stops_is_restarted_again(at: float) -> None:
    """In the simulator, the second restart killed it before it had resigned."""
    stall = Fault("stall", "beat0", "beat.resign", seconds=3.0)
    faults = (stall, Fault("restart", "beat0", at=5.1), Fault("restart", "beat0", at=at))
    table = Timetable(beats=1, seconds=20.0, entries=(Entry(when=("every", 5.0)),))
    seen = run(Case(World("sqlite"), faults=faults, schedules=table))
    assert problems(seen) == []
    words = [line.split(maxsplit=1)[1] for line in seen.log]
    assert words.index("beat0 beat.resign") < words.index("beat0 is killed")


def test_no_worker_stalls_while_another_is_paused_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the simulator, the paused one could not renew its lease until the end of the stall."""
    steps, pause = [], Process.pause

    def noted(self: Process, seconds: float) -> None:
        if seconds == 6.0:
            steps.append(self.time.at_work)
        pause(self, seconds)

    monkeypatch.setattr(Process, "pause", noted)
    stall = Fault("stall", "worker1", "lease", 3, seconds=6.0)
    for seed in range(20):
        world = World("sqlite", workers=2, concurrency=1, long=1.0, pauses=0.3)
        orders = (Order(Call(number=0), at=2.0), Order(Call(number=0), at=2.1))
        assert problems(run_any(Case(world, orders, (stall,), seed=seed))) == []
    assert set(steps) == {1}


def test_a_worker_is_killed_again_before_it_is_replaced() -> None:
    """The simulator started two workers of that name."""
    faults = (Fault("kill", "worker0", at=1.0), Fault("kill", "worker0", at=1.5))
    seen = run(case_of(Call(), world=World(workers=1), faults=faults))
    assert problems(seen) == []
    assert [line for line in seen.log if line.endswith("worker0 register")][2:] == []


def test_an_entry_is_called_in_the_moment_of_its_reset() -> None:
    """The call was late by a rounding error more than the reset explains."""
    edits = (Edit("stranger", "e3"), Edit("reset", "e3", 13.3))
    table = Timetable(store="other", entries=(Entry("e3"),), edits=edits)
    assert problems(run(Case(schedules=table))) == []


def test_a_caller_does_not_wait_for_what_a_crash_undid_during_its_call() -> None:
    """In the simulator, it waited for ever if it paused in its call until the crash was over."""
    chain = Chain([Call(links=[Call(number=1)], number=0), Call(number=2)])
    orders = Order(Chord([], Call(number=0)), at=2.48, ask="get"), Order(chain, at=2.0)
    crash = Fault("crash", at=1.48, seconds=1.0)
    world = World(segment=1, pauses=0.1)
    assert problems(run(Case(world, orders, (crash,), seed=1305351937))) == []


def test_a_task_that_cannot_call_what_it_returns_runs_again() -> None:
    """The simulator's task failed when the broker refused the call."""
    full = Fault("full", "broker", at=0.3, seconds=10.0)
    returns = Order(numbered(Call(retries=1, delay=0.5, does="result")))
    assert problems(run(Case(orders=(returns,), faults=(full,)))) == []


def test_limited_tasks_whose_acks_are_late_start_no_faster() -> None:
    """Each took its turn before its early ack, so that those acked at the same time started together."""
    world = World(workers=1, acks_late=False, rate=20.0)
    stall = Fault("stall", "worker0", method="settle", seconds=1.0)
    assert problems(run(case_of(Group([Call(), Call(), Call()]), world=world, faults=(stall,)))) == []


def test_a_worker_takes_nothing_before_the_new_store_knows_it() -> None:
    """Its lease was of no worker that was known there: it gave the running task back when it noticed."""
    world = World("sqlite+memory", workers=2, concurrency=1, long=1.0)
    orders = (Order(Call(number=0), at=2.9),)
    assert problems(run(Case(world, orders, (Fault("lost", at=2.78),)))) == []


def test_a_limited_call_is_taken_again() -> None:
    """A revocation took it back from the pool: it had had its turn, which the simulator counted twice."""
    chain = Chain([Call(links=[Call()]), Call(), Call()])
    world = World(segment=2, pauses=0.1, rate=20.0)
    assert problems(run(Case(world, (Order(numbered(chain), at=0.5, revoke_at=0.0),), seed=116))) == []


def test_a_stranger_calls_what_runs_and_what_cannot_run() -> None:
    """Both had the same id: the simulator expected what was a dead letter to run, as the other one had."""
    faults = (Fault("stranger", at=1.0), Fault("retry dead", at=2.0))
    assert problems(run(Case(faults=faults))) == []


def test_an_errback_within_a_workflow_of_a_repeated_task_is_called_again() -> None:
    """Each run of the task calls another chord; its body never ran, which the checks took for no sender."""
    chord = Chord([Call(does="expected")], Call(errbacks=[Errback()]))
    kill = Fault("kill after", "worker1", "store_rows")
    assert problems(run(case_of(Call(calls=chord), faults=(kill,)))) == []


def test_a_paused_caller_sends_its_call_late() -> None:
    """It continued after another order of the callers, which took 20 s: its call did not begin late."""
    orders = (
        Order(Call(number=0), at=1.0),
        Order(Call(number=0), at=1.0, ask="raise", options={"countdown": 20.0}),
    )
    assert problems(run(Case(World(workers=1, pauses=0.3), orders, seed=4))) == []


def test_a_task_that_cannot_be_replaced_runs_again_at_once() -> None:
    """The checks expected it to run again only after a second."""
    order = Order(Call(instead=Chunks(items=1, each=1, number=1), number=0), at=2.0)
    assert problems(run(Case(orders=(order,), faults=(Fault("away", "results", at=2.0, seconds=0.5),)))) == []


def test_who_calls_a_chord_of_nothing_runs_again() -> None:
    """The empty map ran nothing: the checks did not find who had sent the body that ran again."""
    calls = Call(calls=Chord([Mapping(0, number=3)], Call(number=4)), number=2)
    order = Order(Pipe([Call(instead=Chunks(items=1, each=1, number=1), number=0), calls]))
    die = Fault("die", "worker", method="acking", nth=3)
    assert problems(run(Case(World("sqlite+other"), (order,), (die,)))) == []


def test_a_death_is_counted_if_its_message_was_kept_and_given_back() -> None:
    """The worker kept the message until it was due, with the new count, and then gave back the old one."""
    orders = tuple(Order(Call(number=0), at=1.0 + place / 4) for place in range(5))
    world = World("kombu+memory", workers=1, concurrency=1, prefetch=1, long=0.5)
    case = Case(world, (Order(Call(does="dies", number=0), at=1.0), *orders), seed=3)
    assert problems(run(case)) == []


def test_the_errback_of_a_body_is_called_again_after_a_crash() -> None:
    """The chord was finished again with a member that ran again; its body runs neither time."""
    chord = Chord([Call(fails=True)], Call(errbacks=[Errback()]))
    crash = Fault("crash", at=5.0, seconds=1.0)
    assert problems(run(Case(orders=(Order(numbered(chord), at=5.0),), faults=(crash,)))) == []


def test_a_task_that_exceeded_its_limit_after_its_retry_succeeds_later() -> None:
    """The graph went on with the failure, as documented; the checks expected the value of the retry."""
    after = Node(Call(number=1), after=[1], always=True)
    order = Order(Graph([Node(Call(retries=1, number=0)), after]), at=0.3)
    assert problems(run(Case(orders=(order,), faults=(Fault("limit after", "worker0", "push"),)))) == []


def test_a_linked_map_of_nothing_is_called_again() -> None:
    """The empty map ran nothing: the checks did not find who had sent the call after it again."""
    body = Call(links=[Pipe([Mapping(0, number=2), Call(number=3)])], number=1)
    order = Order(Chord([Call(options={"countdown": 0.5}, number=0)], body), at=2.5)
    crash = Fault("crash", at=3.0, seconds=4.0)
    assert problems(run(Case(World("sqlite"), (order,), (crash,)))) == []


def test_an_errback_of_a_group_is_told_that_there_are_no_joins() -> None:
    """A task could not be replaced by a group: the checks did not expect its errback to be called, too."""
    replaced = Call(instead=Group([Call()]))
    group = Group([Call(fails=True), replaced], errbacks=[Errback()])
    assert problems(run(case_of(group, world=World("memory+disabled")))) == []


def test_a_call_that_was_lost_runs_later() -> None:
    """It was called twice, and what always follows it ran after the loss, before the other call."""
    nodes = [
        Node(Call(number=0)),
        Node(Call(number=1), after=[1]),
        Node(Call(number=2), after=[1], always=True),
    ]
    order = Order(Graph(nodes), how="twice")
    lost = Fault("child after", "worker", "join.hold")
    assert problems(run(Case(World(acks_late=False), (order,), (lost,), seed=1))) == []


def test_what_follows_a_nested_chord_is_sent_again() -> None:
    """The body of the inner chord had no number: the checks did not find who had sent what follows it."""
    chord = Chord([Chord([], Chunks(items=1, each=1, number=2))], Call(number=3))
    order = Order(Pipe([Call(number=0), Call(links=[chord], number=1)]))
    die = Fault("die", "worker1", method="settling")
    assert problems(run(Case(orders=(order,), faults=(die,)))) == []


@pytest.mark.parametrize("acks_late", [True, False])
@pytest.mark.parametrize("does", ["hard", "dies"])
def test_an_end_while_a_worker_stops_is_reported(does: str, acks_late: bool) -> None:
    """A task was killed, or exceeded its time limit, when its worker was stopping: its chain never ended, and
    its errbacks were not called."""
    flow = Chain([Call(does=does, number=1, errbacks=[Errback(number=0)]), Call(number=2)])
    world = World(workers=1, acks_late=acks_late)
    for seed in range(6):
        for at in (2.850, 2.851, 2.852, 2.853):
            case = Case(world, (Order(flow, at=2.85),), (Fault("restart", "worker0", at=at),), seed=seed)
            assert problems(run(case)) == []


def test_the_calls_of_a_body_keep_their_headers() -> None:
    """The marks of the join were headers of the group, and replaced those of its calls."""
    body = Group([Call(options={"headers": {"own": 2}}, number=1)])
    assert problems(run(Case(orders=(Order(Chord([Call(number=0)], body)),)))) == []


def test_the_next_attempt_shows_the_arguments_that_its_caller_chose() -> None:
    call = Call(retries=1, options={"argsrepr": "some"}, number=0)
    assert problems(run(Case(orders=(Order(call),)))) == []


def test_a_message_from_celery_is_requeued_once() -> None:
    """When it was sent again it had another tag, and the task requeued it once more."""
    order = Order(Call(does="requeue", number=0), how="celery")
    assert problems(run(Case(World("kombu+memory"), (order,)))) == []


@pytest.mark.parametrize(
    "flow",
    [
        Chain([Call(), Group([Chunks(2, 1), Call()])]),
        Chain([Call(), Group([Group([Call(), Group([Call(), Call()])]), Call()])]),
        Group([Group([Call(), Call()]), Call()]),
    ],
)
def test_a_group_in_a_group_that_celery_calls(flow: Any) -> None:
    """Celery's client reverses the calls of the inner group, unless it calls the outer one by itself. The
    oracle expected the values as they are written."""
    order = Order(numbered(flow), how="celery")
    assert problems(run(Case(World("kombu+memory"), (order,)))) == []


def test_a_due_time_whose_call_was_lost_counts() -> None:
    """Without a list of calls, the checks did not see that max_runs had been reached."""
    entry = Entry(when=("rule", (0, 1)), fields={"max_runs": 1})
    chord = Chord([Chord([Call()], Pipe([Call(), Call()]))], Chain([Call(), Call()]))
    kill = Fault("kill after", "worker0", "lease", nth=8)
    timetable = Timetable(beats=1, start=10053939.0, entries=(entry,))
    case = Case(World(acks_late=False), (Order(numbered(chord)),), (kill,), seed=3, schedules=timetable)
    assert problems(run(case)) == []


def test_a_message_with_the_id_of_one_that_was_requeued_is_requeued_too() -> None:
    """The order was called twice: the simulator's task ran at once when the other message was redelivered."""
    body = Chord([Call(does="requeue", number=1), Call(number=2)], Call(number=3))
    order = Order(Chord([Call(number=0)], body), how="twice")
    die = Fault("die", "worker0", method="parts-recorded")
    assert problems(run(Case(orders=(order,), faults=(die,), seed=1))) == []


def test_a_call_that_is_revoked_writes_into_results_of_another() -> None:
    """What would have followed had no group yet; the checks expected that of the other call."""
    chain = numbered(Chain([Call(), Chord([Call(retries=1)], Call())]))
    twice = Order(chain, at=4.0, how="twice", revoke_at=0.0)
    orders = (Order(Call(number=0), at=2.7), twice, Order(Call(number=0), at=3.0, ask="await"))
    assert problems(run(Case(World(pauses=0.05), orders, seed=818984722))) == []


def test_a_member_that_a_revoked_task_has_added_is_not_sent() -> None:
    """Its worker was killed when it had counted the call, and the message was revoked when it came again: the
    chord waits until its join expires, as documented."""
    chord = Chord([Call(adds=Call(number=1), number=0)], Call(number=2))
    kill = Fault("kill after", "worker", "join.grow")
    assert problems(run(Case(orders=(Order(chord, revoke_at=0.0),), faults=(kill,), seed=1))) == []


def test_requests_whose_end_is_reported_come_before_urgent_ones() -> None:
    """They do not run: the checks expected the one of priority 1 to be taken first."""
    group = Group([Call(errbacks=[Errback(number=1)], number=0), Call(links=[Call(number=3)], number=2)])
    orders = (
        Order(Call(number=0), at=3.0, options={"priority": 1}),
        Order(Call(number=0)),
        Order(group, at=2.5, revoke_at=0.0),
        Order(Call(number=0), at=2.0),
    )
    assert problems(run(Case(World(key="late"), orders))) == []


def test_started_is_stored_after_the_task_has_stored_its_progress() -> None:
    """It replaced the progress, which the task had not found again at once."""
    world = World("kombu+memory", flush=0.0, track_started=True, pauses=0.1)
    orders = (Order(numbered(Call(does="progress"))),)
    assert problems(run(Case(world, orders=orders, seed=75))) == []


def test_a_failed_task_is_sent_again_without_its_expiry() -> None:
    """The checks expected ``expires``, which `qworker failed retry` removes."""
    orders = (Order(Call(fails=True, options={"expires": 3000.0}, number=0)),)
    assert problems(run(Case(orders=orders, faults=(Fault("retry failed", at=0.1),)))) == []


@pytest.mark.parametrize("route_expires", [0.0, EXPIRES])
def test_a_failed_task_that_is_sent_again_may_come_once_more_with_its_expiry(route_expires: float) -> None:
    """Its caller sends it again, too. The checks expected that no message with its id expires."""
    options = {} if route_expires else {"expires": EXPIRES}
    call = Call(does="tagged", options=options, number=0)
    world, orders = World(route_expires=route_expires), (Order(call, at=2.1),)
    faults = (Fault("retry failed", at=2.111), Fault("late", "caller0", "push"))
    assert problems(run(Case(world, orders, faults))) == []


def test_a_task_that_fails_with_its_child_has_not_run() -> None:
    """The child died in the call that comes before the run; the checks expected a run."""
    pipe = Pipe([Call(number=0), Call(number=1), Call(does="lost", number=2)])
    killed = Fault("child before", "worker0", "join.hold")
    assert problems(run(Case(World(segment=2), (Order(pipe),), (killed,), seed=2))) == []


def test_a_task_is_terminated_after_it_has_told_of_its_end() -> None:
    """Its child has stored SUCCESS and sent the signal, but metrics count the end as revoked."""
    waiting = Graph([Node(Call(number=0)), Node(Call(number=1), after=[1])])
    failing = Call(fails=True, errbacks=[Errback(number=3)], number=2)
    body = Chunks(items=3, each=1, number=4)
    chord = Chord([Call(number=1), failing], body, errbacks=[Errback(number=0)])
    orders = (Order(waiting, at=1.0, revoke_at=0.0, terminate=True), Order(chord))
    world = World(concurrency=1, base="hooked", flush=0.0, pauses=0.1)
    assert problems(run(Case(world, orders, seed=2))) == []


def test_delays_after_a_fault_begin_later() -> None:
    """The checks expected the end of the countdown by the time of the call, though faults had held up the
    step before it for as long as they allow for recovery."""
    steps = [Call(number=0), Call(options={"countdown": 15}, number=1)]
    orders = (Order(Pipe(steps)), Order(Call(number=0)))
    faults = (
        Fault("freeze", "worker0", at=3.0, seconds=15.0),
        Fault("stall", "worker0", "settle", seconds=6.0),
    )
    assert problems(run(Case(World(workers=1), orders, faults, seed=2))) == []


def test_a_caller_that_waits_for_a_lost_task_does_not_delay_the_others() -> None:
    """Nobody knows of the task, which was acknowledged early: its caller waited until the end of the world.
    The checks took that for the time that work took."""
    orders = (Order(Call(number=0), ask="await"), Order(Call(options={"countdown": 130}, number=0)))
    kill = Fault("kill after", "worker0", "settle")
    seen = run(Case(World(workers=1, acks_late=False), orders, (kill,)))
    assert problems(seen) == []
    assert seen.stuck


def test_the_link_of_what_replaces_a_task_is_called_again() -> None:
    """The chain's last call has the id of the task that it replaces, and was taken for it: the checks did not
    find who had sent the link again."""
    steps = [Call(instead=Call(number=2), number=1), Call(links=[Call(number=4)], number=3)]
    order = Order(Call(instead=Chain(steps), number=0))
    die = Fault("die", "worker1", "replacement-sent", 2)
    assert problems(run(Case(orders=(order,), faults=(die,)))) == []


def test_a_worker_starts_while_others_are_restarted_with_the_key() -> None:
    """The simulator failed: a worker was added to those that it restarted."""
    killed = Fault("kill before", "worker0", "register")
    away = Fault("away", "results", at=0.5, seconds=0.5)
    order = Order(Call(number=0), at=0.9)
    assert problems(run(Case(World(key="late"), (order,), (killed, away)))) == []


def test_a_worker_that_was_starting_when_the_key_was_set_has_it() -> None:
    """It was not restarted, and its results were not signed."""
    killed = Fault("kill before", "worker0", "register")
    stall = Fault("stall", "worker0", "register", seconds=1.0)
    orders = (Order(Call(number=0), at=1.2), Order(Call(number=0), at=3.0))
    assert problems(run(Case(World(key="late", workers=1), orders, (killed, stall)))) == []


@pytest.mark.parametrize(
    ("kind", "acks_late", "error"),
    [
        ("limit before", True, "TimeLimitExceeded"),
        ("limit before", False, "TimeLimitExceeded"),
        ("child before", False, "WorkerLost"),
    ],
)
def test_a_success_is_sent_after_the_callbacks(kind: str, acks_late: bool, error: str) -> None:
    """With ``rpc://`` it was sent before them: its task then failed without them, and its caller did not see
    the failure."""
    order = Order(Call(links=[Call(number=1)], number=0))
    killed = Fault(kind, "worker", "push")
    seen = run(Case(World("kombu+rpc", acks_late=acks_late), (order,), (killed,)))
    assert problems(seen) == []
    assert seen.values["f0"] == [Failed(error)]


def test_a_group_that_fails_with_the_rejection_of_its_header_is_kept() -> None:
    """Its members raise ``Reject``, but only the header becomes a dead letter. The checks took them for dead
    letters, too."""
    assert problems(run(case_of(Chord([Call(does="reject")], Group([Call()]))))) == []


def test_a_scheduled_task_is_lost_after_it_has_opened_a_join() -> None:
    """It is acknowledged early, so nothing fills the join, which the checks awaited."""
    killed = Fault("child before", "worker1", "push")
    timetable = Timetable(entries=(Entry(task="grouped"),))
    assert problems(run(Case(World(acks_late=False), faults=(killed,), schedules=timetable))) == []


def test_a_call_that_a_mapping_replaces_is_sent_again() -> None:
    """The mapping, the body of a join, has its id. The checks took the call for that body, which is sent
    once."""
    replaced = Call(instead=Pipe([Call(), Mapping(items=1)]))
    late = Fault("late", "caller0", "push")
    assert problems(run(Case(World(segment=1), (Order(numbered(replaced)),), (late,)))) == []


@pytest.mark.parametrize("ask", ["raise", "await"])
def test_a_body_fails_for_a_member_that_its_caller_cannot_know_failed(ask: str) -> None:
    """The member was added, or is ignored and stays pending: the body's own error is raised. The checks
    expected none from the group that follows, or that of another chord or "pending"."""
    failing = Chord([Call(fails=True)], Call())
    for member in (
        Call(adds=Call(fails=True)),
        Call(adds=failing),
        Call(adds=Call(does="ignore")),
        Call(instead=Call(adds=Call(fails=True))),
        Call(links=[failing], adds=Call(fails=True)),
        Call(does="ignore"),
    ):
        for flow in (Chord([member], Call()), Pipe([Chord([member], Call()), Group([Call(), Call()])])):
            seen = run(Case(orders=(Order(numbered(flow), ask=ask),)))
            assert problems(seen) == []
            assert seen.asked[0].told == [Failed("ChordError")]


def test_a_dead_letter_that_is_sent_again_calls_another_that_is_rejected() -> None:
    """The checks expected as many dead letters as without the operator."""
    flow = Call(does="unacked", calls=Call(does="reject"))
    seen = run(case_of(flow, faults=(Fault("retry dead", at=0.2),)))
    assert problems(seen) == []
    seen.left["dead"].append("another")
    assert any("dead letters: " in text for text in problems(seen))


def test_a_dead_letter_is_sent_again_on_a_real_server() -> None:
    """The checks did not expect that its task runs again."""
    seen = run(case_of(Call(does="reject"), faults=(Fault("retry dead", at=0.2),)))
    seen.record.every = []  # as on real servers
    assert seen.record.ran(seen.asked[0].name) == {0: 2}
    assert problems(seen) == []
    seen.record.runs[seen.asked[0].name] *= 3
    assert any("call 0 ran 6 times" in text for text in problems(seen))


def test_a_dead_letter_is_sent_again_beside_a_lost_answer() -> None:
    """The checks forgot the operator, since a single lost answer explains no repeat."""
    faults = (Fault("after", "worker0", "reclaim"), Fault("retry dead", at=3.0))
    seen = run(case_of(Call(does="unacked"), faults=faults))
    assert problems(seen) == []
    (kept,) = seen.asked
    assert seen.record.ran(kept.name) == {0: 2}
    seen.met[:] = [met for met in seen.met if met.fault.kind != "retry dead"]
    assert any("explain only 1 of them" in text for text in problems(seen))


def test_a_join_is_finished_again_after_its_results_were_forgotten() -> None:
    """Its worker died after it had sent the body. The next one found no result of the header and wrote a
    failure of the body, which had also been forgotten: the checks missed the body's parent in it."""
    graph = Graph([Node(Call(number=0)), Node(Call(number=1)), Node(Call(number=2), after=[1])])
    died = Fault("die", "worker", "published")
    case = Case(World("sqlite+other"), (Order(graph, ask="forget"),), (died,), seed=1)
    assert problems(run(case)) == []


def test_a_chain_of_several_segments_is_called_by_a_task_that_is_killed() -> None:
    """Its join is left, and the task's next run opens another: the checks expected that only of chords and
    groups, and then not of chains with a map."""
    for called in (Chain([Call(), Call()]), Pipe([Call(), Mapping(items=1)])):
        flow = Call(retries=1, calls=called)
        killed = Fault("kill after", "worker0", "join.open")
        assert problems(run(case_of(flow, world=World(segment=1), faults=(killed,), seed=2))) == []


def test_an_entry_is_paused_and_changed_before_its_call_is_sent() -> None:
    """The leader died before it sent the message. The next one sends it with the entry's new arguments, which
    the checks did not expect of a paused entry."""
    timetable = Timetable(
        store="other",
        entries=(Entry(when=("every", 1.0)),),
        edits=(Edit("stranger", at=4.0, entry=Entry(fields={"enabled": False, "args": [None]})),),
    )
    died = Fault("die", "beat1", "slots-pending", 3)
    assert problems(run(Case(faults=(died,), schedules=timetable))) == []


@pytest.mark.parametrize("kind", ["child after", "limit after"])
def test_an_ignored_call_runs_after_a_killed_task_that_was_retried(kind: str) -> None:
    """The calls after the killed task failed with it. Its next attempt ran, and so did they, but they store
    no result: the failures stayed."""
    flow = Chain([Call(retries=1, delay=0.5), Call(ignored=True), Call(ignored=True)])
    case = case_of(flow, world=World(acks_late=False, workers=1), faults=(Fault(kind, "worker0", "push"),))
    assert problems(run(case)) == []


def test_what_was_sent_again_is_lost_with_the_stores() -> None:
    """The worker that had received it was killed, and then all stores lost what they held. The checks
    expected that it runs."""
    order = Order(Call(does="set", number=0))
    faults = (Fault("retry failed", at=0.3), Fault("die", "worker", "offering", 2), Fault("lost", at=2.0))
    assert problems(run(Case(orders=(order,), faults=faults))) == []


@pytest.mark.parametrize("method", ["settle", "confirm"])
@pytest.mark.parametrize(
    "silent",
    [Fault("freeze", "worker1", at=2.0, seconds=6.0), Fault("stall", "worker1", "settle", 2, seconds=6.0)],
)
def test_a_worker_loses_its_lease_before_it_knows_of_its_acknowledgement(method: str, silent: Fault) -> None:
    """Its tasks fail without a run, as documented. The checks expected that they run: a lost answer alone
    loses no task, nor does a lost lease."""
    order = Order(Chunks(items=3, each=1, number=0), at=1.99)
    case = Case(World(acks_late=False), (order,), (Fault("after", "worker1", method), silent))
    seen = run(case)
    assert problems(seen) == []
    assert seen.values["f0"] == [[Failed("WorkerLost"), Failed("WorkerLost"), ["0(2)"]]]
    seen.met[:] = [met for met in seen.met if met.fault.kind != silent.kind]
    assert "f0: call 0 ran 1 times, not 3" in problems(seen)


def test_an_errback_is_sent_after_children_died_that_reported_a_failure() -> None:
    """After the second death, which an errback that runs in place may have caused, no errback was called any
    more, not even those that are sent."""
    flow = Chain([Call(), Call(does="lost")], errbacks=[Errback()])
    faults = (Fault("child after", "worker", "store_rows"), Fault("child before", "worker", "push", 2))
    assert problems(run(case_of(flow, faults=faults))) == []


def test_an_errback_that_may_have_killed_two_processes_is_called_no_more() -> None:
    """The checks expected it, though the processes died before they called it. After one death it is called,
    and others are sent all the same."""
    flow = Call(does="lost", errbacks=[Errback(now=True), Errback()])
    faults = tuple(Fault("child before", "worker", "store_rows", nth) for nth in (1, 2))
    seen = run(case_of(flow, faults=faults))
    assert problems(seen) == []
    assert sum(seen.record.told["f0"].values()) == 1
    seen = run(case_of(flow, faults=faults[:1]))
    assert problems(seen) == []
    assert sum(seen.record.told["f0"].values()) == 2
    seen.record.told["f0"].clear()
    assert len(problems(seen)) == 2


def test_a_body_becomes_a_dead_letter_when_a_stranger_has_made_its_join_fail() -> None:
    """It does not run. The checks expected no dead letters of orders with such joins."""
    flow = Chord([Call()], Chord([Call()], Call(does="unacked")))
    forge = Fault("forge", "worker0", "join.open")
    seen = run(case_of(flow, world=World(key="signed"), faults=(forge,), seed=1))
    assert problems(seen) == []
    assert len(seen.left["dead"]) == 1
    seen.left["dead"].append("another")
    assert any("dead letters: " in text for text in problems(seen))


def test_an_ignored_call_runs_after_the_task_that_has_sent_it_is_lost() -> None:
    """Its failure with that task was stored. Its run stores nothing, so the failure stayed."""
    steps = [Call(errbacks=[Errback(number=1)], number=0), Call(ignored=True, number=2)]
    killed = Fault("child after", "worker", "push")
    assert problems(run(Case(World(acks_late=False), (Order(Chain(steps)),), (killed,), seed=7))) == []


def test_workers_register_again_when_the_stores_were_lost() -> None:
    """One got the number of another, which went on renewing the lease of both when it was killed: numbers are
    microseconds of the wall clock, and the clocks of the two differed by exactly the time between."""
    faults = (Fault("lost", at=1.0), Fault("kill before", "worker", "store_rows"))
    order = Order(numbered(Chord([Call()], Call())), at=3.0)
    assert problems(run(Case(World("sqlite+other", skew=2.0), (order,), faults, seed=1))) == []


def test_a_request_acked_late_follows_one_whose_early_ack_was_not_answered() -> None:
    """Both started at the same moment, though their rate is limited."""
    faults = (Fault("stranger", at=1.7), Fault("after", "worker2", "confirm"))
    case = Case(World(workers=3, acks_late=False, pauses=0.1, rate=20.0), faults=faults, seed=1)
    assert problems(run(case)) == []


def test_a_running_call_is_replaced_long_before_it_ends() -> None:
    """It is passed to the pool once more, to be ended: the checks took that for the time of its start."""
    every = Entry(when=("every", 2.0), task="slow", fields={"expires": 2.0, "overlap": "replace"})
    schedules = Timetable(store="other", entries=(every,))
    assert problems(run(Case(World(key="signed", serializer="pickle"), schedules=schedules))) == []


def test_a_worker_registers_again_when_the_answer_was_lost() -> None:
    """The broker had given it a new generation, but the worker went on with the old one: it received
    messages, and each settlement came too late."""
    faults = (Fault("after", "worker0", "register", nth=2), Fault("lost"))
    order = Order(Call(number=0), at=5.0)
    seen = run(Case(World("sqlite", workers=1), (order,), faults))
    assert problems(seen) == []
    assert {met.fault.kind for met in seen.met} == {"after", "lost"}


def test_a_rolled_back_order_leaves_its_join_beside_schedules() -> None:
    """The checks took it for one that was not lost with a killed worker, because it was opened later."""
    orders = (Order(numbered(Chord([Call()], Call())), 1.64, how="rollback"),)
    faults = (Fault("kill after", "worker1", "register"),)
    world = World("sqlite+files", workers=2, acks_late=False)
    assert problems(run(Case(world, orders, faults, schedules=Timetable(seconds=20.0)))) == []


@pytest.mark.parametrize(
    ("kind", "method", "waits"),
    [("limit after", "save_group", True), ("limit before", "push", True), ("limit after", "push", False)],
)
def test_a_chord_waits_for_a_call_that_a_time_limit_has_kept_from_being_sent(
    kind: str, method: str, waits: bool
) -> None:
    """The checks did not know that it is counted before it is sent."""
    flow = Chord([Call(adds=Call())], Call())
    seen = run(case_of(flow, world=World(key="signed"), faults=(Fault(kind, "worker", method),)))
    assert problems(seen) == []
    assert seen.ready["f0"] == [not waits]
    seen.ready["f0"] = [False]
    assert bool(problems(seen)) is not waits


def test_a_time_limit_ends_a_task_in_a_call_that_it_makes() -> None:
    """It exceeded a limit that it did not have, and the reason of its dead letter shows the limit."""
    call = Call(does="unacked", errbacks=[Errback()])
    limit = Fault("limit after", "worker", "push")
    assert problems(run(case_of(call, world=World(acks_late=True), faults=(limit,)))) == []


def test_a_request_starts_when_the_one_before_it_was_revoked() -> None:
    """The pool had taken the revoked one for its free slot, and nobody looked for the next one for ten
    seconds."""
    members = [Call(fails=True, errbacks=[Errback()]), *(Call() for _ in range(5))]
    for seed in range(20):
        order = Order(numbered(Group(members)), revoke_at=0.0)
        world = World(workers=1, concurrency=1, acks_late=False, base="hooked")
        assert problems(run(Case(world, (order,), seed=seed))) == []


@pytest.mark.parametrize("keep_failed", [False, True])
def test_a_failed_task_is_terminated_before_its_failure_is_settled(keep_failed: bool) -> None:
    """Of two calls with the same id, one was terminated when it had called its errback: it is revoked, and
    does not become a failed task. The checks expected both."""
    failing = Call(fails=True, retries=1, errbacks=[Errback(number=4)], number=3)
    nodes = [Node(Call(number=0)), Node(Call(number=1), after=[1]), Node(Call(number=2)), Node(failing)]
    order = Order(Graph(nodes), at=2.4, how="twice", revoke_at=0.0, terminate=True)
    world = World(workers=3, concurrency=4, pauses=0.05, keep_failed=keep_failed)
    assert problems(run(Case(world, (order,), seed=2960043154))) == []


def test_a_failed_chord_hides_that_a_time_limit_has_ended_another_member() -> None:
    """The checks expected the link of the member, because the value was the failure that they expected."""
    inner = Chord([Call(number=2), Call(links=[Call(number=4)], number=3)], Call(number=5))
    header = [Call(does="unacked", number=0), Chord([Call(number=1)], inner)]
    order = Order(Chord(header, Group([Call(number=6)])))
    limit = Fault("limit before", "worker", "join.hold")
    assert problems(run(Case(orders=(order,), faults=(limit,), seed=1))) == []


def test_a_clock_jumps_between_a_due_time_and_its_call() -> None:
    """The entry has jitter, and the clock went back by more than what was left of the run. The checks
    expected the call."""
    every = Entry(when=("every", 7.0), source="code", fields={"jitter": 3.0})
    schedules = Timetable(beats=1, store="other", seconds=20.0, entries=(every,))
    jump = Fault("jump", "beat0", at=14.4, seconds=-5.0)
    assert problems(run(Case(World(workers=1), faults=(jump,), schedules=schedules, seed=1))) == []


def test_the_last_attempt_of_a_compressed_call_is_sent_again() -> None:
    """As in Celery, it was not compressed. It is the first attempt now, and the checks expected it to be."""
    order = Order(Call(fails=True, retries=1, options={"compression": "gzip"}, number=0))
    case = Case(orders=(order,), faults=(Fault("retry failed", at=6.0),))
    assert problems(run(case)) == []


@pytest.mark.parametrize("nth", [1, 2])
def test_an_iterable_whose_parts_were_not_all_sent_is_deleted_in_the_end(nth: int) -> None:
    """It is given up after a month, and its row is deleted a week later. The checks had only one chance of
    both."""
    cut = Fault("after", "caller0", "push", nth)
    case = Case(faults=(cut,), linger=True, django=Django(jobs=(Job(kind="iter", size=3),)))
    assert problems(run(case)) == []


@pytest.mark.parametrize("task", ["chorded", "grouped"])
def test_an_entry_follows_a_call_whose_replacement_waits_behind_a_slow_task(task: str) -> None:
    """Someone replaced the entry by one with another task, while the previous call waited. The checks knew
    the new task only, and expected that call to have ended when its task had."""
    slow = Entry(task="slow", source="code", when=("every", 1.0), fields={"overlap": "skip"})
    old = Entry("e1", ("every", 1.0), task, "code")
    new = Entry("e1", ("every", 1.0), source="hand", fields={"overlap": "skip"})
    edits = (Edit("stranger", "e1", 2.84, new),)
    table = Timetable(beats=1, seconds=12.0, entries=(slow, old), edits=edits)
    assert problems(run(Case(World("sqlite+files", workers=1, prefetch=1), schedules=table))) == []


def test_an_errback_is_called_again_when_a_crash_makes_a_body_fail_again() -> None:
    """The body does not run, because the header has expired. The checks expected one call of its errback."""
    chord = Chord([Call(does="outdated")], Call(errbacks=[Errback()]))
    crash = Fault("crash", at=3.7, seconds=0.2)
    seen = run(Case(orders=(Order(numbered(chord), at=2.9),), faults=(crash,), seed=3))
    assert problems(seen) == []
    assert len(seen.record.tellings["f0"]) == 2
    seen.met.clear()
    assert any("ran 2 times" in text for text in problems(seen))


@pytest.mark.parametrize("errback", [Errback(), Errback(now=True)])
def test_a_chord_body_keeps_the_error_of_its_header_when_its_process_dies(errback: Errback) -> None:
    """It calls its errbacks only. Its result became WorkerLost."""
    flow = Chord([Call(), Call(fails=True)], Call(does="lost", errbacks=[errback]))
    for kind in ("child before", "child after"):
        assert problems(run(case_of(flow, faults=(Fault(kind, "worker", "store_rows"),)))) == []


def test_an_end_that_is_set_while_no_scheduler_runs_applies_to_what_was_missed() -> None:
    entries = (Entry("e1", ("every", 2.5), "tick"), Entry("e2", ("every", 7.0), "tick", "code"))
    edit = Edit("set", "e2", 14.99, fields={"end": 11.0})
    table = Timetable(beats=1, store="other", seconds=40.0, entries=entries, edits=(edit,))
    died = Fault("die", "beat0", "entries-sent", nth=6)
    assert problems(run(Case(World("memory+sqlite", workers=1), faults=(died,), schedules=table))) == []


def test_a_call_that_runs_again_sends_another_that_becomes_a_dead_letter() -> None:
    """Its child was killed when it had called the chord. The checks expected one dead letter."""
    flow = Call(calls=Chord([Call(fails=True)], Call(does="unacked")))
    assert problems(run(case_of(flow, faults=(Fault("child after", "worker", "push"),)))) == []


def test_an_ignored_call_at_the_end_does_not_show_that_another_has_failed() -> None:
    """A time limit ended the first; nobody saw it, and the checks thought that all had succeeded."""
    last = Pipe([Call(), Call(ignored=True)])
    flow = Chain([Call(), Chord([Call(links=[Call()])], last)])
    assert problems(run(case_of(flow, faults=(Fault("limit before", "worker", "push"),)))) == []


def test_a_scheduled_task_has_expired_when_it_comes_again_after_it_had_opened_a_join() -> None:
    """Its members could not be sent: the join is left until it expires. The checks expected none."""
    entry = Entry("e1", ("every", 4.0), "grouped", fields={"expires": 2.0})
    away = Fault("away", "broker", at=8.001, seconds=10.0)
    world = World("sqlite+memory", workers=1, key="signed", pauses=0.05, long=0.1)
    case = Case(world, faults=(away,), schedules=Timetable(beats=1, entries=(entry,), seconds=24.0), seed=1)
    assert problems(run(case)) == []


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("does", ["", "ignore", "reject", "unacked"])
def test_a_graph_goes_on_after_an_ignored_node(does: str, late: bool) -> None:
    """The parts of a task that was acknowledged first and has no result could be lost unnoticed; what follows
    a failed one has a ChordError, because its error is not stored."""
    for ignored in (False, True):
        node = Call(does=does, ignored=ignored, fails=does == "unacked")
        graph = Graph([Node(node), Node(Call(immutable=True), [1]), Node(Call(), [2], always=True)])
        assert problems(run(case_of(graph, world=World(acks_late=late)))) == []


@pytest.mark.parametrize("ignored", [False, True])
def test_an_error_passes_an_ignored_node_of_a_graph_that_did_not_run(ignored: bool) -> None:
    """The oracle expected ChordError after each ignored node that fails, also after one that did not run."""
    first, ended = Call(fails=True, ignored=ignored), Call(ignored=True, immutable=True)
    graph = Graph([Node(first), Node(ended, [1]), Node(Call(immutable=True), [1])])
    seen = run(case_of(graph))
    assert problems(seen) == []
    ((value,),) = seen.values.values()
    assert value[2] == Failed("ChordError" if ignored else "ValueError")


@pytest.mark.parametrize("flow", [Call(links=[Call()]), Call(links=[Chord([Call()], Call())])])
def test_a_revoked_task_that_had_succeeded_calls_its_callbacks(flow: Call) -> None:
    """Its worker was killed when it had stored the success, and the task was revoked when it came again."""
    kill = Fault("kill before", "worker", "push")
    seen = run(Case(World(workers=1), (Order(numbered(flow), revoke_at=0.5),), (kill,)))
    assert problems(seen) == []
    assert seen.values["f0"] == ["0()"]


@pytest.mark.parametrize(
    "flow", [Chain([Call(), Chord([Call()], Call())]), Call(instead=Chord([Call()], Call()))]
)
@pytest.mark.parametrize("linger", [False, True])
def test_a_join_whose_members_a_revoked_task_has_not_sent_is_left(flow: Any, linger: bool) -> None:
    """Its worker was killed when it had opened the join, and the message was revoked when it came again: the
    join is left until it expires, as documented. The checks expected none."""
    case = Case(World(workers=1), (Order(numbered(flow), revoke_at=0.5),), linger=linger)
    assert problems(run(replace(case, faults=(Fault("kill before", "worker", "push"),)))) == []
    sent = replace(case.orders[0], revoke_at=20.0)
    lost = Fault(FORGETS, "worker", "join.add")
    assert "1 joins are left" in problems(run(replace(case, orders=(sent,), faults=(lost,), linger=False)))


def test_a_call_that_dies_makes_its_calls_once_less_if_a_fault_kills_its_child_first() -> None:
    """That death counts, too: the call is delivered three times in all."""
    died = Fault("die", "worker0", "joins-opened")
    flow = Call(does="dies", calls=Chunks(items=1, each=1))
    assert problems(run(case_of(flow, faults=(died,), seed=2))) == []


@pytest.mark.parametrize("stores", ["memory+disabled", "sqlite"])
def test_a_revoked_call_of_a_killed_worker_lingers(stores: str) -> None:
    """The simulator asked a store without joins for them."""
    order = Order(numbered(Call()), revoke_at=0.0)
    assert problems(run(Case(World(stores), (order,), (Fault("kill"),), linger=True))) == []


def test_others_take_messages_while_an_operator_moves_them() -> None:
    """The check of the counts expected that nobody else works meanwhile."""
    flow = numbered(Chord([Call(), Call()], Call(options={"queue": "far"})))
    case = Case(World(pauses=0.6), (Order(flow), Order(flow)), (Fault("move"),), seed=492)
    assert problems(run(case)) == []


def test_a_lost_claim_on_a_join_keeps_the_record_of_an_added_member() -> None:
    """The body failed, because a worker whose claim had expired deleted the record."""
    flow = Chain([Call(calls=Chord([Call(adds=Call()), Call()], Call())), Call()])
    world = World(workers=3, key="signed", flush=0.0, skew=2.0, pauses=0.05, long=0.1, rate=20.0)
    away = Fault("away", "broker", at=2.47, seconds=3.0)
    case = Case(world, (Order(numbered(flow), at=2.46, ask="saved"),), (away,), seed=4159096232)
    assert problems(run(case)) == []


def test_a_crash_repeats_both_messages_of_a_call_that_was_sent_twice() -> None:
    """The checks counted one repeat for each fault."""
    faults = (Fault("crash", at=1.603), Fault("twice", "caller0", "push"))
    assert problems(run(Case(orders=(Order(numbered(Call()), at=1.6),), faults=faults))) == []


def test_an_operator_moves_messages_while_another_sends_failed_tasks_again() -> None:
    """The call that the simulator makes fail as a stranger was moved away, and then ready for ever."""
    faults = (Fault("restart", "worker0"), Fault("move", at=0.13), Fault("retry failed", at=0.13))
    assert problems(run(Case(World(key="signed", pauses=0.1), faults=faults, seed=2))) == []


def test_nobody_waits_for_a_call_that_an_overdue_crash_will_undo() -> None:
    """The stall of another process had delayed the crash beyond its time."""
    orders = (
        Order(numbered(Call())),
        Order(numbered(Call()), ask="saved"),
        Order(numbered(Call(options={"queue": "far"}))),
    )
    faults = (Fault("stall", "worker0", "register", seconds=6.0), Fault("crash"))
    assert problems(run(Case(orders=orders, faults=faults, seed=2))) == []


def test_an_attempt_of_a_killed_worker_is_revoked_after_its_retry_was_sent() -> None:
    """The checks expected the parent of the retry in its result."""
    flow = numbered(Call(fails=True, retries=1, links=[Call()]))
    kill = Fault("kill before", "worker", "settle")
    case = Case(World(workers=2), (Order(flow, revoke_at=0.5),), (kill,))
    assert problems(run(case)) == []


def test_an_attempt_is_lost_after_its_retry_was_sent() -> None:
    """As above: its end was reported after that of the next attempt, which was lost, too."""
    several = Group([Call(retries=2), Call(), Chunks(items=4, each=1)], errbacks=[Errback()])
    flow = numbered(Chord([several, Call(retries=1, delay=3.0), Call()], Call()))
    world = World(workers=3, concurrency=4, acks_late=False, pauses=0.1)
    faults = (Fault("child after", "worker", "push"), Fault("child before", "worker", "push", nth=3))
    assert problems(run(Case(world, (Order(flow),), faults, seed=2902408854))) == []


def test_each_delivery_of_a_call_that_dies_may_call_what_becomes_a_dead_letter() -> None:
    """The checks expected one dead letter of its calls, and itself."""
    body = Call(does="unacked")
    flow = numbered(Call(does="dies", calls=Chord([Call(fails=True)], body)))
    assert problems(run(Case(orders=(Order(flow),)))) == []


@pytest.mark.parametrize("does", ["hard", "lost", "dies"])
def test_an_extended_result_of_a_killed_task_has_its_call(does: str) -> None:
    """Results that a worker stored for a killed child had neither name nor arguments."""
    assert problems(run(Case(World(extended=True), (Order(numbered(Call(does=does))),)))) == []


def test_bodies_take_arguments_that_results_cannot_contain() -> None:
    """Joins were refused, and an errback of a failed body was not sent."""
    world = World(key="signed", serializer="pickle")
    for flow in (
        Chord([Call()], Chord([Call(), Call()], Call(fails=True))),
        Graph([Node(Call()), Node(Call(), [1])]),
    ):
        assert problems(run(Case(world, (Order(numbered(flow)),)))) == []
    failing = numbered(Chord([Call(fails=True)], Call(), errbacks=[Errback()]))
    assert problems(run(Case(world, (Order(failing),)))) == []


def test_links_within_a_pickled_body_belong_to_its_app() -> None:
    """They were restored from pickle as calls of the current app, and there was none."""
    inner = Chain([Group([Call(), Call()])], errbacks=[Errback()])
    flow = numbered(Chord([Call()], Group([Call(), Call(links=[inner])])))
    assert problems(run(Case(World(key="signed", serializer="pickle"), (Order(flow),)))) == []


def test_a_pickled_body_is_that_of_a_call() -> None:
    """The checks knew of no join, and did not wait for the claim of a worker that cannot send its body."""
    flow = numbered(Chord([Call()], Call(fails=True)))
    away = Fault("away", "broker", at=0.001, seconds=3.0)
    case = Case(World(key="signed", serializer="pickle"), (Order(flow),), (away,))
    seen = run(case)
    assert problems(seen) == []
    assert [*seen.record.joins.values()] == ["f0"]


def test_a_leader_with_a_clock_that_was_set_back_sees_a_change_early() -> None:
    """The checks took the first due time after the change for one before it."""
    edits = (
        Edit("add", "e1", 13.0, Entry(when=("every", 15.0))),
        Edit("set", "e1", 23.0, fields={"schedule": ("every", 4.0)}),
    )
    back = Fault("jump", "beat0", at=5.0, seconds=-5.0)
    assert problems(run(Case(faults=(back,), seed=2, schedules=Timetable(store="other", edits=edits)))) == []


@pytest.mark.parametrize("fails", [True, False])
def test_a_child_that_dies_after_a_stored_end_does_not_change_it(fails: bool) -> None:
    """The failure became WorkerLost when its errback had been sent with the error of the task."""
    does = "lost" if fails else ""
    flow = numbered(Call(fails=fails, does=does, links=[Call()], errbacks=[Errback()]))
    fault = Fault("child after", "worker", "push")
    assert problems(run(Case(orders=(Order(flow),), faults=(fault,), seed=1))) == []


@pytest.mark.parametrize("does", ["hard", "lost"])
@pytest.mark.parametrize("stores", ["memory", "sqlite", "sqlite+other", "kombu+memory", "kombu+rpc"])
def test_an_end_that_a_stopping_worker_cannot_report_is_stored(stores: str, does: str) -> None:
    """The thread that stores results in a store of their own had ended before."""
    world = World(stores=stores, workers=1, acks_late=False)
    faults = (Fault("restart", "worker0", at=4.0), Fault("stall", "worker0", method="settle", seconds=6.0))
    assert problems(run(Case(world, (Order(numbered(Call(does=does, links=[Call()]))),), faults))) == []


def test_each_attempt_may_wait_for_the_clock_of_another_worker() -> None:
    """The checks allowed for the difference of two clocks once."""
    body = Chord([Call()], Chain([Call(fails=True, retries=2), Call(retries=2)]))
    flow = Call(instead=Chord([Chain([Call(retries=2, delay=0.5), Call()])], body))
    world = World(workers=3, flush=0.0, skew=2.0)
    for seed in range(20):
        assert problems(run(Case(world, (Order(numbered(flow), at=3.16),), seed=seed))) == []


def test_an_end_is_remembered_until_it_is_settled() -> None:
    """The worker forgot it with the first redelivery, lost its lease once more, and ran the task again."""
    stalls = tuple(Fault("stall", "worker0", method="settle", nth=nth, seconds=6.0) for nth in (2, 1))
    assert problems(run(Case(orders=(Order(numbered(Call(coroutine=True))),), faults=stalls))) == []


def test_children_are_kept_if_reporting_a_failure_is_interrupted() -> None:
    """The failure was stored once more, without them."""
    failing = Call(fails=True, calls=Call(number=2), number=1)
    flow = Group(members=[failing], errbacks=[Errback(now=True, number=0)])
    fault = Fault("limit before", "worker", "get")
    assert problems(run(Case(orders=(Order(flow),), faults=(fault,)))) == []


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_a_task_acknowledged_first_runs_once_after_a_lost_lease(seed: int) -> None:
    """Its ack was repeated under the new lease, where the message that another worker had run was missing, as
    after an ack of ours."""
    faults = (
        Fault("locked", "worker", "settle", seconds=10.0),
        Fault("freeze", "worker1", at=1.634, seconds=6.0),
    )
    order = Order(Call(number=0), at=1.63)
    assert problems(run(Case(World(acks_late=False, flush=0.0), (order,), faults, seed=seed))) == []


def test_a_task_that_has_failed_is_not_revoked_when_it_comes_again() -> None:
    """Its errback, which was called meanwhile, found it REVOKED."""
    flow = Chain(steps=[Call(fails=True, number=1)], errbacks=[Errback(now=True, number=0)])
    stall = Fault("stall", "worker1", "get", seconds=6.0)
    assert problems(run(Case(orders=(Order(flow, revoke_at=0.5),), faults=(stall,)))) == []


@pytest.mark.parametrize("seed", [44, 57, 101])
def test_a_second_revocation_does_not_keep_a_chord_waiting(seed: int) -> None:
    """It ended the child that reported the first one to the calls after the task."""
    body = Chord(header=[Pipe(steps=[Call(number=0), Call(number=1)])], body=Call(number=2))
    order = Order(body, at=4.0, how="twice", revoke_at=0.0, terminate=True)
    assert problems(run(Case(World(pauses=0.2), (order,), seed=seed))) == []


def test_a_chord_may_not_know_its_cause_while_an_operator_has_a_member_run_again() -> None:
    """The checks allowed for that where the caller asks for one value, not for a list."""
    members: list[Any] = [Call(number=0), Call(does="again", number=1)]
    flow = Chord(header=members, body=Group(members=[Call(number=2)]))
    faults = Fault("retry failed", at=5.0), Fault("kill", "worker0", at=1.2)
    case = Case(World(long=0.1), (Order(flow, at=1.0, ask="native"),), faults, seed=2365520874)
    assert problems(run(case)) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_unreadable_messages_become_dead_letters_in_busy_workers(workers: int) -> None:
    """A worker with early acks sent such a message again, gave it back before its turn came, forgot that it
    could not be read, and sent it again for ever."""
    world = World(workers=workers, concurrency=1, acks_late=False, long=1.0)
    assert problems(run(Case(world, (Order(Call(number=0)),), (Fault("poison", at=1.0),)))) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stores", ["memory", "sqlite", "kombu+rpc"])
@pytest.mark.parametrize("kind", ["refused", "refused twice"])
@pytest.mark.parametrize("acks_late", [True, False])
def test_a_result_is_refused(kind: str, stores: str, acks_late: bool, seed: int) -> None:
    """A chord waited in vain for a member whose result a result store had refused with an error of its own,
    and, after an early ack, for one whose result and failure the broker had refused. A task of which a result
    store cannot encode the failure either left no dead letter. With rpc://, the caller never heard of the
    failure."""
    world = World(stores, acks_late=acks_late)
    flow = Call() if stores == "kombu+rpc" else Chord([Call(), Call()], Call())
    order = Order(numbered(flow), ask="get" if kind == "refused" else "later")
    assert problems(run(Case(world, (order,), (Fault(kind, "worker", "row"),), seed))) == []


def test_what_fails_with_a_dead_worker_may_run_all_the_same() -> None:
    """Its early acknowledged task had sent what replaces it. The checks took the stored failure of the
    chain's last call, which ignores its result, for that of its run."""
    flow = Chain([Call(instead=Call()), Chain([Call(), Call(does="ignore")])])
    case = Case(
        World(workers=3, acks_late=False), (Order(numbered(flow)),), (Fault("die", "worker2", "calls-sent"),)
    )
    assert problems(run(case)) == []


def test_job_runs_again_if_a_full_database_refused_its_result() -> None:
    """The checks looked for the refused call at the store of results only."""
    fault = Fault("full", "results", seconds=10.0)
    jobs = (Job(fails=1, ack_failure=False),)
    assert problems(run(Case(faults=(fault,), seed=1, django=Django(jobs=jobs)))) == []


def test_a_worker_that_ends_before_a_refused_result_is_settled_says_so() -> None:
    """The checks did not expect that error."""
    orders = (Order(flow=Call(number=0), at=3.0), Order(flow=Call(number=0), at=4.0))
    case = Case(World(key="late"), orders, (Fault("refused", "worker0", "row"),), seed=1)
    assert problems(run(case)) == []


def test_a_late_body_runs_again_if_the_broker_has_forgotten_that_it_had_it() -> None:
    """The checks expected it to know."""
    graph = Graph(nodes=[Node(call=Call(number=0)), Node(call=Call(number=1), after=[1])])
    orders = (Order(Chain(steps=[Call(number=0), Call(number=1)])), Order(graph, at=0.4))
    late = Fault("late", "worker0", "push", 2, seconds=30.0)
    assert problems(run(Case(orders=orders, faults=(Fault("lost", at=4.0), late), seed=2))) == []
    assert problems(run(Case(orders=orders, faults=(late,), seed=2))) == []


def test_calls_after_a_lost_member_are_made_when_their_join_expires() -> None:
    """The checks expected them earlier."""
    world = World(acks_late=False, skew=2.0, result_expires=60.0, long=0.1)
    chord = Chord([Call(adds=Call(number=1), number=0)], Chunks(items=3, each=1, number=2))
    faults = Fault("child after", "worker", "join.grow"), Fault("restart", "worker0", at=1.3)
    assert problems(run(Case(world, (Order(chord),), faults, seed=1))) == []


@pytest.mark.parametrize("stores", ["sqlite", "sqlite+files"])
@pytest.mark.parametrize("acks_late", [True, False])
def test_two_faults_may_refuse_a_result_and_its_failure(acks_late: bool, stores: str) -> None:
    """The checks expected the failure to be stored. Results in another store are tried again."""
    faults = Fault("refused", "worker0", "row", 1), Fault("refused", "worker0", "row", 2)
    world = World(stores, workers=1, acks_late=acks_late)
    assert problems(run(Case(world, (Order(Call(number=0)),), faults, seed=1))) == []


@pytest.mark.parametrize("seed", [5, 13, 18])
def test_another_worker_takes_over_a_join_from_one_that_is_cut_off(seed: int) -> None:
    """Each attempt extended the claim: the body ran when the connection was back."""
    order = Order(numbered(Chord([Call(), Call()], Call())))
    cut = Fault("cut", "worker0", "broker", at=0.0015, seconds=300.0)
    seen = run(Case(World("sqlite+other", workers=2), (order,), (cut,), seed=seed))
    assert problems(seen) == []
    assert max(start[0] for _, start, _ in seen.record.runs["f0"]) < 50.0


def test_a_worker_sends_the_joins_that_it_has_claimed_before_it_ends() -> None:
    """They waited until its claims expired, 30 seconds later."""
    order = Order(numbered(Chord([Call(), Call()], Call())))
    faults = Fault("before", "worker0", "push", 1), Fault("restart", "worker0", at=0.3)
    assert problems(run(Case(World("sqlite+other", workers=1), (order,), faults, seed=3))) == []


def test_what_follows_a_call_whose_failure_is_refused_fails_as_well() -> None:
    """The joiner did not record the failure of a call that the store refused: the join after it waited until
    it expired."""
    nodes = [Node(Call(number=0)), Node(Call(number=1), after=[1]), Node(Call(number=2), after=[1])]
    faults = Fault("refused twice", "worker0", "row", 3), Fault("refused", "worker0", "row")
    assert problems(run(Case(World("sqlite"), (Order(Graph(nodes)),), faults, seed=2))) == []


def test_a_failed_task_sent_again_may_lack_its_expiry_whatever_the_simulator_saw() -> None:
    """A fault hit the call by which the simulator finds out what an operator sends again."""
    faults = Fault("retry failed", at=2.0), Fault("before", "observer", "failed.page")
    order = Order(Call(fails=True, number=0))
    assert problems(run(Case(World(route_expires=EXPIRES), (order,), faults))) == []


def test_both_messages_of_a_revoked_call_are_dead_letters_if_its_end_is_refused() -> None:
    """The checks expected one, because it never began."""
    chain = Chain(steps=[Call(retries=1, number=1)], errbacks=[Errback(number=0)])
    order = Order(Chord(header=[chain], body=Call(number=2)), at=3.0, how="twice", revoke_at=0.0)
    refused = Fault("refused twice", "worker0", "row")
    assert problems(run(Case(orders=(order,), faults=(refused,), seed=3))) == []


def test_first_call_in_a_transaction_creates_the_tables() -> None:
    """It raised "no such table", because no worker and no other publisher had opened the file before."""
    case = Case(
        World("sqlite", workers=1),
        (Order(Call(number=0), how="commit"),),
        (Fault("kill before", "worker0", "register"),),
    )
    assert problems(run(case)) == []


def test_a_copy_whose_result_was_deleted_does_not_look_as_if_it_ran() -> None:
    """The second message of a call stored the state STARTED, which nothing ended: the entry was skipped for
    ever."""
    entries = (Entry(when=("every", 4.0)),)
    edits = Edit("damage"), Edit(), Edit("set", fields={"overlap": "skip"}), Edit("resume")
    faults = Fault("after", "beat2", "push"), Fault("kill before", "beat2", "beat.sent")
    table = Timetable(3, "other", entries=entries, edits=edits)
    assert problems(run(Case(World(track_started=True), faults=faults, seed=1, schedules=table))) == []


def test_a_call_of_an_entry_may_expire_while_results_cannot_be_stored() -> None:
    """The checks expected it to run."""
    away = Fault("away", "results", at=39.0, seconds=10.0)
    table = Timetable(entries=(Entry(fields={"expires": 2.0}),))
    assert problems(run(Case(faults=(away,), schedules=table))) == []


def test_a_late_call_of_an_entry_may_expire_because_of_an_edit_meanwhile() -> None:
    """The checks expected it to run."""
    entries = (
        Entry(when=("every", 7.0)), Entry("e1", ("every", 2.5)), Entry("e2", ("every", 15.0)),
    )  # fmt: skip
    table = Timetable(
        1,
        "other",
        seconds=20.0,
        entries=entries,
        edits=(Edit("set", "e2", at=17.0, fields={"expires": 2.0}),),
    )
    killed = Fault("kill before", "beat0", "beat.fire", nth=8)
    assert problems(run(Case(faults=(killed,), schedules=table))) == []


def test_a_restarted_worker_may_store_a_refused_result_for_longer_than_its_lease() -> None:
    """The checks did not expect that another worker then runs the task again."""
    order = Order(Chord(header=[Call(number=0)], body=Call(number=1)))
    faults = Fault("refused", "worker0", "row"), Fault("restart", "worker0", at=6.0)
    assert problems(run(Case(orders=(order,), faults=faults, seed=1))) == []


def test_errbacks_of_a_failed_chain_are_called_once_if_a_failure_in_it_is_refused() -> None:
    """The joiner, which could not store the failure, called them again, as those of the body of a chord."""
    instead = Chain([Chain([Call(does="reject", number=4), Call(number=5)])], [Errback(number=3)])
    pipe = Pipe([Call(number=1), Call(instead=instead, number=2)])
    case = Case(
        World(workers=1, segment=1),
        (Order(Group(members=[pipe], errbacks=[Errback(number=0)])),),
        (Fault("refused", "worker0", "row", nth=3),),
        seed=3,
    )
    assert problems(run(case)) == []


def test_call_of_celery_whose_message_is_sent_twice_may_run_with_two_ids() -> None:
    """The simulator makes the whole call twice."""
    orders = Order(Call(number=0)), Order(Call(number=0), how="celery")
    case = Case(World("kombu+memory"), orders, (Fault("twice", "caller1", "push"),))
    assert problems(run(case)) == []


def test_join_of_a_call_that_was_refused_in_an_outage_waits_until_it_expires() -> None:
    """The checks expected rest before that."""
    chord = Chord(header=[Call(options={"retry": False}, number=0)], body=Call(number=1))
    orders = Order(chord, at=2.6), Order(Call(retries=2, delay=3.0, number=0), at=3.0, how="twice")
    world = World(acks_late=False, skew=2.0, result_expires=60.0, long=0.1)
    case = Case(world, orders, (Fault("away", "broker", seconds=10.0),), seed=922085554)
    assert problems(run(case)) == []


def test_callers_may_wait_for_what_all_stores_have_lost() -> None:
    """Only those whose own order was lost were expected to, and not if they waited in the call of another."""
    order = Order(Chord(header=[Call(number=0)], body=Call(number=1)), ask="other")
    faults = Fault("stall", "worker0", "register", seconds=6.0), Fault("lost")
    assert problems(run(Case(orders=(order,), faults=faults))) == []


def test_delays_of_an_order_count_from_its_call() -> None:
    """They counted from when it was planned, and its caller still waited for another order then."""
    replaced = Call(coroutine=True, instead=Call(retries=1, delay=0.5, number=1), number=0)
    orders = (
        Order(replaced, at=4.0, ask="saved"),
        Order(Call(options={"countdown": 14}, number=0), at=5.0, ask="forget"),
        Order(Pipe([Call(number=0), Call(options={"countdown": 200.0}, number=1)]), at=2.3),
    )
    faults = Fault("full", "broker", seconds=3.0), Fault("freeze", "worker0", at=1.3, seconds=3.0)
    assert problems(run(Case(orders=orders, faults=faults))) == []


def test_a_call_acknowledged_early_may_expire_behind_slow_tasks_in_the_pool() -> None:
    """The checks expected it to begin in time."""
    orders = (
        Order(Call(number=0), at=3.0, options={"expires": 4.0}),
        Order(Graph([Node(Call(number=0)), Node(Call(number=1), after=[1])])),
    )
    table = Timetable(3, entries=(Entry(when=("every", 1.0), task="slow"),), edits=(Edit(),))
    assert problems(run(Case(World(acks_late=False), orders, seed=1, schedules=table))) == []


def test_a_call_does_not_fail_because_another_caller_waits_in_vain() -> None:
    """While one call paused, another caller waited for a result that the store had refused for good."""
    orders = (
        Order(Group(members=[Call(number=0), Call(number=1)]), at=2.0, ask="then"),
        Order(Call(number=0), at=0.03),
        Order(Call(number=0), at=0.5, ask="all"),
        Order(Call(number=0), at=2.0, ask="forget"),
    )
    faults = Fault("refused twice", "worker2", "row", 3), Fault("stall", "worker0", "extend", seconds=3.0)
    seen = run(Case(World(workers=3, pauses=0.05), orders, faults, seed=1899471026))
    assert seen.stuck
    assert problems(seen) == []


@pytest.mark.parametrize(
    "flow",
    [
        Chain(steps=[Call(number=0), Call(does="expired", number=1), Call(number=2)]),
        Chord(header=[Call(number=0), Call(number=1)], body=Call(does="expired", number=2)),
        Chord(header=[], body=Call(number=0)),
    ],
    ids=["after", "body", "no header"],
)
def test_countdown_of_a_workflow_is_for_the_calls_that_begin_it(flow: Any) -> None:
    """The checks expected it to be over before the body of an empty chord, and no countdown at all where some
    later call expires."""
    assert problems(run(Case(orders=(Order(flow, options={"countdown": 20.0}),)))) == []


def test_a_call_may_expire_in_a_pool_that_is_busy_with_slow_tasks() -> None:
    """The checks counted it as begun, although its function did not run."""
    entries = (Entry(when=("every", 1.0), task="slow", fields={"jitter": 0.4}),)
    order = Order(Call(number=0), at=3.0, options={"expires": 4.0})
    case = Case(
        World(workers=1, rate=20.0), (order,), seed=2, schedules=Timetable(store="other", entries=entries)
    )
    seen = run(case)
    assert problems(seen) == []
    (id,) = seen.asked[0].expires
    assert seen.record.begun[id]


def test_a_refused_failure_of_what_follows_a_join_is_replaced_by_another() -> None:
    """The joiner stored none in its place: callers waited for ever."""
    nodes = [Node(Call(does="ignore", number=0), after=[1]), Node(Call(number=1), after=[1])]
    case = Case(orders=(Order(Graph(nodes), at=0.3),), faults=(Fault("refused", "worker1", "row"),), seed=1)
    assert problems(run(case)) == []


def test_what_follows_an_expired_call_does_not_wait_for_the_countdown_of_the_order() -> None:
    """The checks expected that, because the call never ran."""
    nodes = [Node(Call(does="expired", number=0)), Node(Call(number=1), after=[1], always=True)]
    assert problems(run(Case(orders=(Order(Graph(nodes), options={"countdown": 0.5}),)))) == []


def test_the_end_of_an_expired_call_may_be_refused() -> None:
    """The checks expected that it is always stored."""
    order = Order(Call(number=0), options={"expires": 0.2, "countdown": 0.5})
    assert problems(run(Case(World("sqlite"), (order,), (Fault("refused", "worker0", "row"),), seed=2))) == []


def test_the_end_of_a_call_in_doubt_replaces_a_result_that_may_be_of_an_earlier_call() -> None:
    """The checks expected that a worker can tell them apart, although their id is the same."""
    flow = Chain([Call(number=0), Call(fails=True, number=1)])
    faults = (
        Fault("before", "worker1", "settle", nth=2),
        Fault("stall", "worker1", "settle", nth=3, seconds=6.0),
    )
    case = Case(World(acks_late=False), (Order(flow, how="twice"),), faults, seed=1)
    seen = run(case)
    assert Failed("WorkerLost") in seen.values["f0"]
    assert problems(seen) == []
