"""checks: what must hold when everything is quiet.

- The run ends, no worker crashes, and without faults all is done soon after the last call.
- Each result, and what callbacks, errbacks and callers are told, is what ``expected()`` says.
- Each call runs as often as that, and more often only as far as a fault explains it (``repeats``); not before
  those that it waits for, nor before its countdown is over, nor faster than its rate limit.
- What is refused, revoked, rolled back or not signed does not run.
- No join, and nothing that expires, is left; each rejected call is a dead letter.
- Signals and counters add up (``figures``), and the log has no error that nothing explains.
- Entries of schedules are called when due (``due_times``), and Django's rows and hooks are right
  (``django_checks``).

Comes from:  ``run``.
Goes to:     the caller: a list of problems, [] if there are none.
Thread:      any; pure.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

from qworker import states
from qworker.backends.joins import PUSH_SECONDS
from qworker.canvas.plan import SEGMENT
from tests.simulation import figures
from tests.simulation.case import Fault
from tests.simulation.django_checks import django_problems
from tests.simulation.due_times import Oracle
from tests.simulation.nodes import IN_TRANSACTIONS, LONG_RUN, Asked, is_by_celery
from tests.simulation.program import Moment
from tests.simulation.repeats import HARMLESS, OF_ROW, OPERATORS, Met, Repeats
from tests.simulation.run import CALLERS, OF_LISTENERS, OVERDUE, ROUNDING, Seen
from tests.simulation.world import LEASE_SECONDS
from tests.support.flows import (
    PENDING,
    RUNS,
    Call,
    Chain,
    Chord,
    Errback,
    Expected,
    Failed,
    Graph,
    Group,
    Pipe,
    expected,
    has_failed,
    is_line,
    needs_joins,
    parts_of,
)  # fmt: skip

LOST = frozenset(
    Failed(error)
    for error in ("WorkerLost", "ChordError", "BackendError", "BrokerUnavailable", "TimeLimitExceeded")
) | {PENDING}
"""Values of tasks acknowledged early that a fault interrupted, or that exceeded their time limit."""
UNREAD = frozenset({"DamagedResult", "ChordError"})
"""Errors of unsigned results, and of joins that wait for them."""
PROMPT = 3.0
"""Seconds within which all work ends without faults. A component that is not woken takes longer."""
SLOW = 15.0
"""Seconds after the last fault within which all work ends: leases have expired, and what failed was tried
again. (In 2,300 cases it took 10.3 s at most.)"""
GIVEN_UP = 31.0
"""Seconds for which a refused result may hold up others: where the error is the store's own, it is tried
twenty times, 0.1 s apart at first, and at last 2 s."""
KEEPING = HARMLESS - {"retry dead"} | {
    "after", "away", "before", "cut", "freeze", "full", "kill", "kill after", "kill before", "locked",
    "restart", "stall",
}  # fmt: skip
"""Faults after which each rejected call is a dead letter."""
REFUSED = frozenset({Failed("BackendError"), Failed("ChordError"), Failed("EncodeError")})
"""Values of tasks whose result a store refuses, and of joins that wait for them."""
LIMITS = frozenset({"limit before", "limit after"})
LASTING = frozenset({"move", "poison", "stranger", "retry dead"})
"""Faults that neither delay anything nor let it expire early."""
HEARD = 1.5
"""Seconds within which all workers hear of a revocation: they are told at once, and ask each second."""
RECOVERED = 4.0
"""Seconds after a fault in which workers may not have heard yet: they connect again within two, and are
restarted after one."""
CANCELLED = frozenset(map(Failed, ("TaskRevoked", "TaskExpired", "Terminated", "ChordError")))
"""The values of revoked and expired calls, and of those that follow them."""
AT_WORK = re.compile(r" messages of | is busy")
"""What does not end, however many tasks were lost."""
AT_DEATHS = "it was running at"
"""The reason of dead letters that were delivered once more than their ``max_deliveries``."""
CUT = frozenset({"before", "after", "twice"}) | LIMITS
"""Connection faults, after which the broker still knows who holds what; and ends that the worker notices."""

SILENCES = frozenset({
    "after", "away", "before", "crash", "cut", "freeze", "full", "late", "locked", "lost", "restart", "stall",
})  # fmt: skip
"""Faults with many consequences in the log: after them, only unexpected exceptions are reported."""
REFUSALS = frozenset({"refused", "refused twice"})
ERRORS: tuple[tuple[str, frozenset[str]], ...] = (
    (" cannot be run: ", frozenset({"poison", "stranger"})),
    ("join-failed: ", frozenset({"kill", "kill after", "kill before"})),
    ("it may have killed", frozenset({"child after", "child before", "die", "limit after", "limit before"})),
    ("ended and will run again", REFUSALS),
    ("the result store raised an unexpected error", REFUSALS),
    (" cannot be stored", REFUSALS),
    ("the broker refused its outcome", REFUSALS),
    (" cannot be reported: ", REFUSALS),
)
"""Errors in the log, and the faults of which one explains them."""
UNEXPECTED = re.compile(r"\b(Assertion|Attribute|Index|Key|Name|Recursion|Type|UnboundLocal)Error\b")
OF_ENTRIES = ("entry-", "task-unknown", "unknown-task")
"""Errors expected of schedules: invalid entries and unknown tasks."""


def problems(seen: Seen) -> list[str]:
    """Return the problems of a run. An error in the checks is a problem, too, and does not end the search."""
    try:
        return _problems(seen)
    except Exception:  # noqa: BLE001 - a shrunk case may be one that is never drawn
        return [f"the checks failed: {traceback.format_exc()}"]


def _problems(seen: Seen) -> list[str]:
    if seen.broken:
        return [seen.broken]
    found = [f"a worker crashed: {text}" for text in seen.crashed]
    if seen.case.django is not None:
        return found + django_problems(seen)
    lost = any(asked.forgotten or _may_vanish(seen, asked) for asked in seen.asked)
    if seen.stuck and not (lost and not AT_WORK.search(seen.stuck)):
        found.append(f"it does not end: {seen.stuck}")
    forged = _forged(seen)
    exact = all(fault.kind in HARMLESS for fault in seen.fired)
    sent_again = any(fault.kind == "retry dead" for fault in seen.fired)
    moved = any(fault.kind == "move" for fault in seen.fired)
    dead = range(1)  # possible numbers of dead letters: a revoked task need not run
    for asked in seen.asked:
        if asked.name in forged:  # what follows a failed join may become a dead letter without a run
            dead = range(dead.start, dead.stop + sum(_letters(seen, asked, _wanted(seen, asked))))
            continue
        if asked.name in seen.record.unsigned:
            found += [f"{asked.name}: {text}" for text in _unsigned(seen, asked)]
            continue
        want = _wanted(seen, asked)
        found += [
            f"{asked.name}: {text}"
            for text in _order(
                seen,
                asked,
                want,
                exact and not (sent_again and want.dead) and not (moved and _puts_back(asked.order.flow)),
            )
        ]
        letters, more = _letters(seen, asked, want)
        dead = range(dead.start + (0 if _may_end_early(seen, asked) else letters), dead.stop + letters + more)
    if seen.schedules is not None:
        found += Oracle(seen.case, seen.schedules, [(met.at, met.fault) for met in seen.met]).problems()
    found += seen.record.wrong
    found += _too_many(seen)
    jumps = sum(abs(fault.seconds) for fault in seen.fired if fault.kind in ("drift", "jump"))
    found += [f"{what} began {by:.3f} s too early" for what, by in seen.record.early if by > jumps + ROUNDING]
    revoked = any(asked.revoked for asked in seen.asked)
    dead = range(dead.start + (0 if revoked else seen.unsigned), dead.stop + seen.unsigned)
    kinds = {fault.kind for fault in seen.fired}
    if not exact:  # a call that is rejected again leaves another
        most = max(dead.stop, _rejected(seen) + seen.unsigned + 1)
        dead = range(dead.start if kinds <= KEEPING and not seen.may_lose else 0, most)
    elif sent_again and seen.case.world.acks_late:  # a dead letter that runs again may call others
        dead = range(dead.start, max(dead.stop, _rejected_calls(seen) + seen.unsigned + 1))
    # A call that is revoked never begins; it has two messages if it was made twice.
    refusals = 2 * len(_refusals(seen)) + sum(len(seen.record.begun[id]) for id in seen.refused)
    dead = range(dead.start, dead.stop + refusals)
    known = seen.poison if seen.case.world.key != "late" else 0  # else it may be in seen.unsigned
    dead = range(dead.start + known, dead.stop + seen.poison)
    sure = "stranger" not in kinds and (exact or not (seen.poison or seen.case.world.key == "late"))
    if sure and len(seen.left["dead"]) not in dead:
        found.append(f"dead letters: {seen.left['dead']}, not {dead.start} to {dead[-1]}")
    found += _unrefused(seen)
    found += [text for text in seen.odd if text.partition(":")[0] not in forged]
    found += _unrepeated(seen)
    if not kinds & {"stranger", "poison"}:
        found += _overdue(seen)
    if all(map(_repeats_nothing, seen.fired)):
        found += seen.record.again
    if seen.left["joins"]:
        found.append(f"{seen.left['joins']} joins are left")
    found += [f"{kind} are left for ever: {count}" for kind, count in seen.left_for_ever.items()]
    joins = bool(seen.record.joins) or any(needs_joins(asked.order.flow) for asked in seen.asked)
    slow = SLOW + jumps + _limited(seen) + (2 * _claim(seen) if joins else 0.0)
    if seen.case.world.forgets and (lost or any(asked.refused for asked in seen.asked)):
        slow += (
            seen.case.world.result_expires
        )  # until the join of a lost member, or of a refused call, expires
    slow += seen.case.world.skew * (seen.case.world.workers + len(CALLERS))
    slow += GIVEN_UP * len(_refusals(seen))
    if seen.schedules is None and seen.rested > slow:
        found.append(f"all is quiet only {seen.rested:.1f} s after the last call or fault")
    if exact:
        found += [f"delivered once more: {reason}" for reason in seen.left["dead"] if AT_DEATHS in reason]
        in_time = kinds <= LASTING and not seen.case.world.skew
        in_time &= kinds == {"poison"} or not seen.poison  # unknown tasks that are moved are put back anew
        if in_time and seen.schedules is None and seen.rested > PROMPT + _limited(seen):
            found.append(f"all is quiet only {seen.rested:.1f} s after the last call")
        told = seen.record.figures
        kept = told.kept if seen.case.world.keep_failed and seen.case.world.acks_late else 0
        fewer = kept if seen.record.terminated else 0
        if not kept - fewer <= seen.left.get("failed", kept) <= kept:
            found.append(f"{seen.left['failed']} failed tasks are kept, not {kept}")
        if told.rejected < seen.poison * 12 // 14:
            found.append(f"signals tell {told.rejected} rejections of {seen.poison} messages")
        found += figures.wrong(seen.record.figures, seen.asked, seen.record, seen.case.world.joins)
        # Of two calls with the same ids, one may be revoked and then see the success of the other.
        halves = [repr(each.name) for each in seen.asked if each.revoked and each.order.how == "twice"]
        found += [text for text in seen.record.unseen if not any(name in text for name in halves)]
    return found + [f"the log has an error that nothing explains: {text}" for text in _unexplained(seen)]


def _unexplained(seen: Seen) -> Iterator[str]:
    """Yield the errors in the log that none of the faults explains."""
    kinds = {fault.kind for fault in seen.fired}
    for text in seen.errors:
        known = OVERDUE in text or (seen.schedules is not None and text.startswith(OF_ENTRIES))
        known |= seen.case.world.key == "late" and "not signed" in text
        known |= bool(kinds & SILENCES) and not UNEXPECTED.search(text)
        if not known and not any(part in text and kinds & explaining for part, explaining in ERRORS):
            yield text


def _claim(seen: Seen) -> float:
    """Return for how many seconds a worker may keep a join that it has not finished."""
    died = any(fault.kind.startswith(("kill", "die", "crash")) for fault in seen.fired)
    return PUSH_SECONDS if died else LEASE_SECONDS


def _overdue(seen: Seen) -> list[str]:
    """Return the joins that have waited for members in vain, of calls that have not lost any. A revoked task
    that has opened a join does not send its members when it is delivered again."""
    if _may_forget(seen) and any(fault.seconds >= seen.case.world.result_expires for fault in seen.fired):
        return []  # the joins have expired meanwhile
    ids = {id for text in seen.errors if OVERDUE in text for id in text.split() if id in seen.record.joins}
    excused = {
        asked.name for asked in seen.asked if seen.excuses(asked) or (asked.revoked and seen.disturbed)
    }
    names = {id: seen.record.joins[id] for id in ids}
    return [f"join {id} of {name} waited in vain" for id, name in names.items() if name not in excused]


def _forged(seen: Seen) -> set[str]:
    """Return the orders with joins that a stranger has written to, who can make them fail; all of them if
    that of a join is not known. Nobody does so where there is no key."""
    if not seen.case.world.key:
        return set()
    joins = [met.about & seen.record.joins.keys() for met in seen.met if met.fault.kind == "forge"]
    every = [asked.name for asked in seen.asked]
    return {name for ids in joins for name in ([seen.record.joins[id] for id in ids] or every)}


def _wanted(seen: Seen, asked: Asked) -> Expected:
    order, world = asked.order, seen.case.world
    return expected(order.flow, order.given, world.acks_late, is_by_celery(order, world))


def _letters(seen: Seen, asked: Asked, want: Expected) -> tuple[int, int]:
    """Return how many calls become dead letters, and how many more may do so without a run, because what is
    before them has failed."""
    letters = want.dead * len(asked.results) * seen.case.world.acks_late * (not asked.rolled_back)
    parts = [part for part in asked.parts if isinstance(part, Call)]
    more = sum(part.does == "unacked" and not want.runs[part.number] for part in parts)
    dies = any(part.does == "dies" for part in parts)
    times = (3 if dies else 1) + len(seen.fired)  # each of its deliveries may call them
    return letters, len(asked.results) * times * more


def _rejected(seen: Seen) -> int:
    """Return how many runs were rejected."""
    return sum(
        seen.record.ran(asked.name)[number] for asked in seen.asked for number in _rejecting(asked.order.flow)
    )


def _rejected_calls(seen: Seen) -> int:
    """Return how many different calls were rejected."""
    return sum(
        len({run.id for number, run in seen.record.executions[asked.name] if number in rejecting})
        * len(asked.results)
        for asked in seen.asked
        if (rejecting := _rejecting(asked.order.flow))
    )


def _rejecting(flow: Any) -> set[int]:
    """Return the calls of *flow* that are rejected."""
    return {
        part.number
        for part in parts_of(flow)
        if (does := getattr(part, "does", "")) in ("reject", "requeue", "unacked", "dies")
        and (does == "unacked" or not part.fails)
    }


def _limited(seen: Seen) -> float:
    """Return the seconds that all runs take under their rate limit."""
    return seen.tasks / seen.case.world.rate if seen.case.world.rate else 0.0


def _too_many(seen: Seen) -> Iterator[str]:
    """Yield runs of limited tasks that a worker took sooner after another than their rate allows."""
    for (process, name), times in seen.record.taken.items():
        apart = [later - earlier for earlier, later in pairwise(times.values())]
        if apart and min(apart) < 1 / seen.case.world.rate - ROUNDING:
            yield f"{process.name} took two of {name} within {min(apart):.4f} s"


def _order(seen: Seen, asked: Asked, want: Expected, exact: bool) -> list[str]:
    found: list[str] = []
    ran, told = seen.record.ran(asked.name), seen.record.told[asked.name]
    if asked.rolled_back:
        known = any(map(_is_known, seen.values.get(asked.name, ())))
        if ran or told or known:
            found.append(f"ran {dict(ran)} and told {dict(told)}, though it was rolled back")
        return found
    if want.refused:
        if asked.results:
            found.append("was taken, though it cannot be called")
        if ran:
            found.append(f"ran {dict(ran)}, though it was refused")
        return found
    found += _too_often(seen, asked, want)
    if _fails_to_join(seen, asked):
        return found
    if asked.refused and not _may_be_refused(seen, asked):
        return [f"cannot be called: {asked.refused[0]!r}"]
    if asked.unanswered and exact:
        found.append(f"cannot be asked for: {asked.unanswered[0]!r}")
    found += _too_early(asked, want, ran)
    found += _despite(seen, asked)
    found += _expired(seen, asked)
    found += _untimely(seen, asked, want)
    lossy = seen.may_lose_of(asked) or _may_forget(seen)
    refused = _refused_of(seen, asked)
    # What runs whatever becomes of others does not show that these were revoked or lost.
    may_lack = asked.revoked or seen.may_lose_of(asked) or refused
    unsure = _after_losses(asked.order.flow) if may_lack else frozenset()
    excused = {*(LOST if lossy else ()), *(CANCELLED if asked.revoked else ()), *refused}

    def is_right(value: Any, want: Any) -> bool:
        return _is_but_for(excused, _but(value, unsure), _but(want, unsure))

    forgets = seen.case.world.forgets or asked.name in seen.record.dropped
    for number, ready in enumerate(seen.ready.get(asked.name, ())):
        gone = asked.forgotten or asked.cut or _has_died(seen, asked) or forgets
        if not ready and (gone or not want.pending):
            if not _may_vanish(seen, asked) and not gone and PENDING not in refused:
                found.append(f"result {number} has not ended")
            continue
        value = _in_segments(seen.values[asked.name][number], want.value, seen)
        if any(fault.kind == "retry failed" for fault in seen.fired):
            value = _with_forgotten(value, want.value)
        if not is_right(value, want.value):
            found.append(f"result {number} is {value!r}, not {want.value!r}")
        elif not seen.may_lose_of(asked) and not asked.forgotten:
            found += _unrun(seen, asked, asked.results[number], value, refused)
    for number, value in (
        seen.called.get(asked.name, ()) if not (forgets or seen.case.world.by_messages) else ()
    ):
        value = _in_segments(value, want.called.get(number), seen)
        if not asked.forgotten and not _is_but_for(
            {*(LOST if seen.may_lose_of(asked) else ()), *refused}, value, want.called.get(number)
        ):
            found.append(f"what call {number} called is {value!r}, not {want.called.get(number)!r}")
    if exact and not want.pending and len(asked.told) < asked.promised:
        found.append(f"the caller was told {len(asked.told)} times, not {asked.promised}")
    for value in asked.told:
        raises = asked.order.ask in ("await", "raise")
        right = (raises and _errors(want.value, want)) or [want.value]
        if raises and want.causes and any(fault.kind == "retry failed" for fault in seen.fired):
            right = [*right, Failed("ChordError")]  # a member's error is gone while it runs again
        if any(fault.kind == "retry failed" for fault in seen.fired):
            value = _with_forgotten(value, want.value)
        if not any(is_right(value, each) for each in right):
            found.append(f"the caller was told {value!r}, not {' or '.join(map(repr, right))}")
    return found + _runs(seen, asked, want, exact)


def _refusals(seen: Seen) -> list[Met]:
    return [met for met in seen.met if met.fault.method == OF_ROW]


def _refused_of(seen: Seen, asked: Asked) -> frozenset[Any]:
    """Return the values that tasks of *asked* may have because a result was refused."""
    kinds = seen.refusals_of(asked)
    return frozenset((*(REFUSED if kinds else ()), *([PENDING] if "refused twice" in kinds else ())))


def _unrefused(seen: Seen) -> Iterator[str]:
    """Yield tasks whose result a store has refused, and that did not become a failure that says why, or, if
    that was refused, too, a dead letter. Other faults may let them run again."""
    if len(seen.met) > len(_refusals(seen)) or seen.case.world.key == "late":
        return
    gone = seen.case.world.forgets or seen.record.dropped or seen.case.world.by_messages
    left = set()
    for met in _refusals(seen):
        for id in met.about & seen.refused.keys() if met.about & states.READY_STATES else ():
            end = seen.refused[id]
            if len(seen.record.begun[id]) > 1:  # it was called twice, or retried
                continue
            if id in seen.refused_twice:  # failed tasks are kept elsewhere
                lost = (
                    met.fault.kind == "refused twice" or end is None
                )  # else two faults met one attempt each
                if lost and states.SUCCESS in met.about and seen.case.world.acks_late:
                    left.add(id)
            elif not gone and (end is None or "refused" not in str(end["result"])):
                yield f"the result of {id} was refused, and it ends as {end}"
    letters = sum("refused" in reason for reason in seen.left["dead"])
    if letters < len(left):
        yield f"no results of {left} are stored, and there are {letters} dead letters of them"


def _may_forget(seen: Seen) -> bool:
    """Return whether results may expire before they are needed."""
    return seen.case.world.forgets and any(fault.kind not in LASTING for fault in seen.fired)


def _has_died(seen: Seen, asked: Asked) -> bool:
    """Return whether the results of *asked* were messages to a caller that has died."""
    caller = CALLERS[int(asked.name[1:]) % 2]
    died = any(fault.kind in ("die", "kill") and fault.node == caller for fault in seen.fired)
    return seen.case.world.by_messages and died


def _ended_with_their_child(flow: Any) -> set[int]:
    """Return the calls that fail, or run once less, when their child dies, also before they run; and those
    that they make."""
    doomed = (part for part in parts_of(flow) if isinstance(part, Call) and part.does in ("lost", "dies"))
    made = (each for part in doomed for each in (part, part.calls, part.adds) if each is not None)
    return {each.number for call in made for each in parts_of(call) if hasattr(each, "number")}


def _spared(seen: Seen, asked: Asked) -> set[int]:
    """Return the errbacks that run in place of calls with which two processes died. These may have died of
    the errbacks, which are not called any more."""
    deadly = [met for met in seen.met if met.fault.kind.startswith(("child", "die"))]
    deaths = Counter(id for met in deadly for id in met.about)
    dead = {number for number, run in seen.record.executions[asked.name] if deaths[run.id] > 1}
    return {
        each.number
        for part in asked.parts
        for each in getattr(part, "errbacks", ())
        if each.now and not dead.isdisjoint(getattr(one, "number", -1) for one in parts_of(part))
    }


def _runs(seen: Seen, asked: Asked, want: Expected, exact: bool) -> list[str]:
    """Return what ran too often, or not often enough."""
    found: list[str] = []
    world, flow = seen.case.world, asked.order.flow
    calls = 2 if asked.order.how == "twice" else 1
    ran, told = seen.record.ran(asked.name), seen.record.told[asked.name]
    sent_once = is_line(flow) or world.stores in ("memory", "sqlite")  # else a body may go twice
    if not world.acks_late and sent_once and all(map(_repeats_nothing, seen.fired)):
        found += [
            f"call {number} ran {ran[number]} times, not at most {count * calls}, though acknowledged first"
            for number, count in want.runs.items()
            if ran[number] > count * calls
        ]
    forgets = _may_forget(seen)
    if (
        asked.refused
        or asked.forgotten
        or (asked.cut and (not ran or asked.order.how in ("twice", "eager")))  # else all of it is sent
        or (seen.may_lose_of(asked) and (forgets or _lost(seen.values.get(asked.name, []))))
        or seen.refusals_of(asked)
    ):
        return found
    runs = {number: count * calls for number, count in (+want.runs).items()}
    tells = {number: count * calls for number, count in (+want.told).items()}
    least, tells_all = runs, True
    if asked.revoked and not _is_complete(seen, asked, want):
        least, tells_all = {}, False
    elif forgets and not is_line(flow):  # joins may expire before their members have ended
        later = {other for _, other in want.before}
        least, tells_all = {number: runs[number] for number in runs if number not in later}, False
    if exact and least is runs:
        if dict(ran) != runs:
            found.append(f"ran {dict(ran)}, not {runs}")
        if dict(told) != tells:
            found.append(f"errbacks were told {dict(told)}, not {tells}")
    elif all(fault.kind in LIMITS for fault in seen.fired) and seen.fired:
        found += [
            f"call {number} did not run, and what it is linked to has succeeded"
            for number in _linked(flow)
            if not (asked.revoked or has_failed(want.value))  # another failure would hide that of the call
            and asked.name in seen.values
            and not any(getattr(part, "ignored", False) for part in parts_of(flow))  # nobody sees its end
            and runs.get(number)
            and not ran[number]
        ]
    elif not seen.may_lose_of(asked):
        unrun = _ended_with_their_child(flow) if seen.kills_children_of(asked) else set()
        for number, count in least.items():
            if ran[number] < count and number not in unrun:
                found.append(f"call {number} ran {ran[number]} times, not {count}")
        spared = _spared(seen, asked)
        for number, count in tells.items() if tells_all else ():
            if told[number] < count and number not in spared:
                found.append(f"errback {number} was told {told[number]} times, not {count}")
        found += [f"call {number} ran, which must not" for number in ran if number not in runs]
        if tells_all:
            found += [f"errback {number} was told, which must not" for number in told if number not in tells]
        found += _by_count(seen, asked, runs, want.dead) if not seen.record.every else []
    if calls == 1 and dict(ran) == runs and not seen.may_lose_of(asked):  # as often as without faults
        found += _order_kept(seen, asked, want)
    return found


def _untimely(seen: Seen, asked: Asked, want: Expected) -> Iterator[str]:
    """Yield calls that began before their countdown was over; without faults also those that began late."""
    order, skew = asked.order, seen.case.world.skew * (seen.case.world.workers + len(CALLERS) + 1)
    if seen.may_lose_of(asked) and _goes_on(order.flow):  # a call that was lost may also run later
        return
    starts: dict[int, float] = {}
    ends: dict[int, list[float]] = {}
    for number, start, end in seen.record.runs[asked.name]:
        starts[number] = min(start[0], starts.get(number, start[0]))
        ends.setdefault(number, []).append(end[0])
    makers = {
        getattr(each, "number", -1): part
        for part in asked.parts
        for made in (getattr(part, "calls", None), getattr(part, "adds", None))
        if made
        for each in parts_of(made)
    }
    undelayed = _of_empty_chords(order.flow)
    if any(getattr(part, "does", "") == "expired" for part in asked.parts):
        # It ends at once, without a run; what follows it need not wait for the countdown of the order.
        undelayed |= {getattr(part, "number", -1) for part in asked.parts} - _first(order.flow)
    for part in asked.parts if order.how != "eager" else ():
        if not isinstance(part, Call) or part.number not in starts:
            continue
        began, maker = starts[part.number], makers.get(part.number)
        befores = [ends[one] for one, other in want.before if other == part.number and one in ends]
        own = part.options.get("countdown", 0.0)
        given = None if befores or maker or part.number in undelayed else order.options.get("countdown")
        made = [starts[maker.number]] if maker else []
        since = max([asked.called_at, *made, *map(min, befores)])
        jumps = sum(abs(each.seconds) for each in seen.fired if each.kind in ("drift", "jump"))
        due = since + (own if given is None else given)
        if began < due - skew - jumps - ROUNDING:
            yield f"{part.number} began {due - began:.1f} s before it was due"
        if seen.disturbed or (maker and maker.does in RUNS):  # which of its runs has called it is not known
            continue
        if part.number in undelayed and not befores:  # when those before it ended is not known
            continue
        sent = asked.sent_at if seen.case.world.pauses else 0.0  # a paused caller lets others finish first
        since = max([since, sent, *map(max, befores), *(ends[maker.number] if maker else ())])
        late = began - since - own - (given or 0.0) - skew - seen.took - _limited(seen)
        if late > PROMPT:
            yield f"{part.number} began {late:.1f} s late"


def _first(flow: Any) -> set[int]:
    """Return the numbers of the calls with which *flow* begins."""
    match flow:
        case Chain(steps=[first, *_]) | Pipe(steps=[first, *_]):
            return _first(first)
        case Group(members=members) | Chord(header=members):
            return set().union(*map(_first, members))
        case Graph():
            return {node.call.number for node, waits in flow.waits() if not waits}
    return {getattr(flow, "number", -1)}


def _of_empty_chords(flow: Any) -> set[int]:
    """Return the numbers of calls in the bodies of chords without a header, which countdowns do not delay."""
    bodies = [part.body for part in parts_of(flow) if isinstance(part, Chord) and not part.header]
    return {getattr(part, "number", -1) for body in bodies for part in parts_of(body)}


def _unrepeated(seen: Seen) -> Iterator[str]:
    """Yield tasks that an operator has sent again and that did not run again."""
    revoked = {id for asked in seen.asked for id in asked.stopped}
    if seen.may_lose or seen.case.world.key == "late" or any(fault.kind == "crash" for fault in seen.fired):
        return
    lost = max((met.at for met in seen.met if met.fault.kind == "lost"), default=-1.0)
    for id, when in seen.again.items():
        if id not in revoked and when > lost and max(seen.record.begun[id]) < when:
            yield f"{id} was sent again at {when:.3f} s, and has not run since"


def _too_often(seen: Seen, asked: Asked, want: Expected) -> Iterator[str]:
    """Yield repeated runs that no fault explains."""
    record, world = seen.record, seen.case.world
    flow = record.flow(asked.name)
    if flow is None or not record.every:
        return
    more_fail = asked.revoked or seen.may_lose_of(asked) or _fails_to_join(seen, asked)
    more_fail |= bool(seen.refusals_of(asked))
    due = want.runs if more_fail else want.runs + want.told
    happened = record.ran(asked.name) + record.told[asked.name]
    executions = [*record.executions[asked.name], *record.tellings[asked.name]]
    if happened == due and sum(happened.values()) == len(happened) == len(executions):
        return
    calls = 2 if asked.order.how == "twice" or _made_twice(seen, asked) else 1
    delivered = {
        number: RUNS[part.does]
        for number, part in flow.parts.items()
        if getattr(part, "does", "") in ("requeue", "dies") and not part.fails and world.acks_late
    }
    errbacks = {number for number, part in flow.parts.items() if isinstance(part, Errback)}
    # Any call before it may fail again, and then what follows fails without a run.
    callers = dict.fromkeys(errbacks, flow.parts.keys() - errbacks)
    mets = _explaining(seen)
    tagged = world.acks_late and not world.stores.startswith(
        "kombu"
    )  # an early acknowledged one is sent anew
    repeats = Repeats(executions, record.every, mets, record.bodies, calls, delivered, callers, tagged)
    yield from repeats.problems()
    right = {number: count * calls for number, count in due.items()}
    items = {number: max(1, getattr(part, "items", 1)) for number, part in flow.parts.items()}
    yield from repeats.beyond(happened, right, items)


def _made_twice(seen: Seen, asked: Asked) -> bool:
    """Return whether Celery made a call twice, with two ids, because its push was repeated."""
    caller = CALLERS[int(asked.name[1:]) % 2]
    return is_by_celery(asked.order, seen.case.world) and any(
        (met.node, met.fault.method, met.fault.kind) == (caller, "push", "twice") for met in seen.met
    )


def _explaining(seen: Seen) -> list[Met]:
    """Return the faults that may make tasks run again. One that is alone, and over before a lease is, costs
    no worker its lease, if the broker knows who holds what."""
    mets = [met for met in seen.met if met.fault.kind not in HARMLESS]
    if len(mets) != 1 or seen.case.world.stores.startswith("kombu"):
        return seen.met
    (fault,) = (met.fault for met in mets)
    answer = fault.kind in ("before", "after") and fault.method in OF_LISTENERS
    short = fault.kind == "cut" and fault.seconds < 1.0 and not any(run.failed for run in seen.record.every)
    return [met for met in seen.met if met not in mets] if answer or short else seen.met


def _by_count(seen: Seen, asked: Asked, runs: Mapping[int, int], dead: int) -> Iterator[str]:
    """Yield calls that ran more often than faults of this number explain, on real servers, which do not tell
    which message a run belongs to. dead: how many dead letters there are without faults; operators may resend
    them."""
    repeating = HARMLESS - OPERATORS if dead else HARMLESS
    faults = sum(fault.kind not in repeating for fault in seen.fired)
    away = sum(fault.seconds for fault in seen.fired if fault.kind == "away")  # retried each second
    # If a worker dies before it has settled a chain of messages, each is redelivered and sends the next one
    # again, so the n-th runs up to n + 1 more times. Earlier calls have lower numbers.
    earlier = {number: sum(runs[each] for each in runs if each < number) for number in runs}
    ran = seen.record.ran(asked.name)
    for number, count in runs.items():
        if ran[number] > count * (1 + max(3, 1 + earlier[number]) * faults + away):
            yield f"call {number} ran {ran[number]} times, not {count}, which {faults} faults do not explain"


def _despite(seen: Seen, asked: Asked) -> Iterator[str]:
    """Yield calls that began when every worker had to know that they were revoked, or ended as usual after
    their termination. A long run waits before it does anything, so none is ended within its work."""
    ran = seen.record.executions[asked.name] if asked.order.terminate else ()
    for id, since in asked.stopped.items():
        for what, times in (
            ("began", seen.record.begun[id]),
            ("worked", [run.at for _, run in ran if run.id == id]),
        ):
            late = [at - since for at in times if at > since + HEARD and not _deaf(seen, since, at)]
            if late:
                yield f"a call {what} {max(late):.1f} s after it was revoked"


def _expired(seen: Seen, asked: Asked) -> Iterator[str]:
    """Yield calls that began after they had expired. A worker checks that before it gives a task to its pool,
    where the task may have to wait for long runs."""
    jumps = sum(abs(fault.seconds) for fault in seen.fired if fault.kind in ("drift", "jump"))
    held = sum(fault.seconds for fault in seen.fired if fault.kind in ("freeze", "stall", "locked"))
    soon = 0.1 + (seen.case.world.prefetch * LONG_RUN if seen.case.world.long else 0.0)
    if seen.case.schedules is not None and any(each.task == "slow" for each in seen.case.schedules.entries):
        soon += seen.took
    for id, until in asked.expires.items():
        by = max(seen.record.ran_at(asked.name, id), default=0.0) - until
        if by > soon + jumps + held + seen.case.world.skew and not seen.record.may_lack_expiry(id):
            yield f"a call began {by:.1f} s after it had expired"


def _deaf(seen: Seen, since: float, at: float) -> bool:
    """Return whether a worker may not know at the time *at* what was revoked at the time *since*: a crash has
    undone it, or a fault has just kept the worker from hearing of it."""
    for fault, when, *_ in seen.met:
        if since <= when and (fault.kind == "lost" or (fault.kind == "crash" and fault.at <= since)):
            return True
        if fault.kind not in HARMLESS and when <= at <= when + fault.seconds + RECOVERED:
            return True
    return False


def _unrun(seen: Seen, asked: Asked, result: Any, value: Any, refused: Collection[Any]) -> Iterator[str]:
    """Yield revoked calls of *result* that never ran, if *value* does not say so. refused: the values that
    they may have because a store has refused that."""
    if isinstance(value, list) and hasattr(result, "results"):
        for each in zip(result.results, value, strict=True):
            yield from _unrun(seen, asked, *each, refused)
    elif getattr(result, "id", None) in {*asked.stopped, *asked.expires} and not seen.record.begun[result.id]:
        alone = isinstance(asked.order.flow, Call)
        if (
            not result.ignored
            and value not in refused
            and not (
                isinstance(value, Failed) and (not alone or value.error in ("TaskRevoked", "TaskExpired"))
            )
        ):
            yield f"a revoked call that never ran is {value!r}"


def _is_but_for(excused: Collection[Failed], value: Any, want: Any) -> bool:
    """Return whether *value* is *want*, but for *excused* failures."""
    if isinstance(value, list) and isinstance(want, list) and len(value) == len(want):
        return all(_is_but_for(excused, *each) for each in zip(value, want, strict=True))
    return bool(value == want) or (isinstance(value, Failed) and value in excused)


def _is_complete(seen: Seen, asked: Asked, want: Expected) -> bool:
    """Return whether the results of a revoked order show that all of it has run."""
    flow, values = asked.order.flow, seen.values.get(asked.name)
    if asked.order.how == "twice" or isinstance(flow, Graph) or has_failed(want.value) or not values:
        return False
    if seen.case.world.forgets or any(getattr(part, "ignored", False) for part in parts_of(flow)):
        return False
    return bool(values == [want.value])


def _too_early(asked: Asked, want: Expected, ran: Counter[int]) -> list[str]:
    """Return calls that ran although a call that they wait for did not, such as a lost member of a chord."""
    flow = asked.order.flow
    if _goes_on(flow):
        return []
    return [
        f"call {other} ran, and {one} before it never did"
        for one, other in sorted(want.before)
        if ran[other] and want.runs.get(one) and not ran[one]
    ]


def _goes_on(flow: Any) -> bool:
    """Return whether calls in *flow* run after a call that was lost."""
    return isinstance(flow, Graph) and any(node.always for node in flow.nodes)


def _repeats_nothing(fault: Fault) -> bool:
    """Return whether *fault* does not make anything be sent twice: it affects a worker, or a listener's
    call."""
    if fault.method:
        return fault.method in OF_LISTENERS and fault.kind not in ("twice", "late")
    return fault.kind in ("drift", "freeze", "jump", "kill", "poison", "restart")


def _unsigned(seen: Seen, asked: Asked) -> Iterator[str]:
    """Yield problems of an order called before the key was set: its tasks must not run any more, see Record,
    and its results must not be readable, except signed results of later failures."""
    want = _wanted(seen, asked)
    yield from (
        f"call {number} ran, which must not"
        for number in seen.record.ran(asked.name)
        if want.refused or number not in want.runs
    )
    values = seen.values.get(asked.name, ()) if asked.order.how != "eager" else ()
    yield from (f"{value!r} is read of it, and is not signed" for value in values if not _is_unread(value))


def _is_unread(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_unread, value))
    return value in (None, PENDING) or (isinstance(value, Failed) and value.error in UNREAD)


def _puts_back(flow: Any) -> bool:
    """Return whether a task in *flow* requeues its message once, by its tag, which a move changes."""
    return any(getattr(part, "does", "") == "requeue" for part in parts_of(flow))


def _may_end_early(seen: Seen, asked: Asked) -> bool:
    """Return whether calls of *asked* may not run: it is revoked, or what they wait for may be gone or is not
    stored."""
    world = seen.case.world
    return asked.revoked or _fails_to_join(seen, asked) or (world.forgets and bool(seen.fired))


def _fails_to_join(seen: Seen, asked: Asked) -> bool:
    """Return whether calls of *asked* fail because there are no joins."""
    return not seen.case.world.joins and needs_joins(asked.order.flow)


def _may_vanish(seen: Seen, asked: Asked) -> bool:
    """Return whether lost tasks may leave no trace."""
    vanishes = seen.may_vanish_of(asked) or PENDING in _refused_of(seen, asked)
    return vanishes or _counts_what_is_not_sent(seen, asked)


def _may_be_refused(seen: Seen, asked: Asked) -> bool:
    """Return whether a fault explains that *asked* was not called: outside of transactions, its publisher
    tries again after one that fails."""
    once = {"before", "after", "late", "twice"}
    pushes = others = 0
    for met in seen.met:
        by_caller = not (met.node or met.fault.node).startswith(("worker", "beat"))
        if by_caller and met.fault.kind not in HARMLESS:
            is_push = met.fault.method == "push" and met.fault.kind in once
            pushes, others = pushes + is_push, others + (not is_push)
    order = asked.order
    given = [order.options, *(getattr(part, "options", {}) for part in asked.parts)]
    unretried = order.how in IN_TRANSACTIONS or is_by_celery(order, seen.case.world)
    unretried |= any(options.get("retry") is False for options in given)
    return bool(others) or pushes > (0 if unretried else 1)


def _counts_what_is_not_sent(seen: Seen, asked: Asked) -> bool:
    """Return whether a task may have ended between counting a call in its chord and sending it, by its time
    limit, or with its child if it was acknowledged: the chord waits until its join expires."""
    adding = {part.number for part in asked.parts if getattr(part, "adds", None) is not None}
    ids = {run.id for number, run in seen.record.executions[asked.name] if number in adding}
    who = ("limit",) if seen.case.world.acks_late else ("limit", "child")
    cuts = {
        (f"{each} {when}", method)
        for each in who
        for when, method in (
            ("after", "join.grow"), ("before", "push"), ("before", "save_group"), ("after", "save_group"),
        )
    }  # fmt: skip
    return any(
        (met.fault.kind, met.fault.method) in cuts and not ids.isdisjoint(met.about) for met in seen.met
    )


def _errors(value: Any, want: Expected) -> list[Any]:
    """Return what may be raised instead of *value*: the error of any member and, for a body, the error of a
    member of its header. As in Celery, errors of tasks before members are not raised, except of those before
    all members."""
    if isinstance(value, list):
        found = [error for each in value for error in _errors(each, want)]
        if any(map(has_failed, value)):  # with the error of any failed member of a header
            found += [Failed(error) for error in sorted(want.causes)]
        return found if want.early else [*found, *(each for each in value if isinstance(each, Failed))]
    if value == Failed("ChordError"):
        return [Failed(error) for error in sorted(want.causes)]
    return [value] if isinstance(value, Failed) else []


def _with_forgotten(value: Any, right: Any) -> Any:
    """*value*, with the errors of *right* in the place of "something before it has failed": what that was is
    forgotten while it runs again."""
    if isinstance(value, list) and isinstance(right, list) and len(value) == len(right):
        return [_with_forgotten(each, other) for each, other in zip(value, right, strict=True)]
    return right if value == Failed("ChordError") and isinstance(right, Failed) else value


def _lost(value: Any) -> bool:
    """Return whether something in *value* was lost."""
    if isinstance(value, list):
        return any(map(_lost, value))
    return isinstance(value, Failed) and value in LOST


def _in_segments(value: Any, want: Any, seen: Seen) -> Any:
    """Return *value*, with PENDING for a chain segment that failed because the last call before it was
    ignored. In a single message that failure is not visible."""
    if isinstance(value, list) and isinstance(want, list) and len(value) == len(want):
        return [_in_segments(*each, seen) for each in zip(value, want, strict=True)]
    short = seen.case.world.segment < SEGMENT
    return PENDING if short and want == PENDING and value == Failed("ChordError") else value


def _linked(flow: Any) -> Iterator[int]:
    """Yield the links of the calls that the value of *flow* comes from."""
    if isinstance(flow, Graph) or getattr(flow, "ignored", False):  # some failures do not show
        return
    yield from (link.number for link in getattr(flow, "links", ()) if isinstance(link, Call))
    for name in ("members", "steps", "header"):
        for each in getattr(flow, name, ()):
            yield from _linked(each)
    yield from _linked(flow.body) if isinstance(flow, Chord) else ()


def _is_known(value: Any) -> bool:
    """Return whether a call has ended; ignored calls have no value."""
    return any(map(_is_known, value)) if isinstance(value, list) else value not in (None, PENDING)


def _after_losses(flow: Any) -> frozenset[int]:
    """Return the indexes of a graph's nodes whose values may depend on a loss that their own states do not
    show."""
    places: set[int] = set()
    for place, (node, others) in enumerate(flow.waits() if isinstance(flow, Graph) else ()):
        if (node.always and others) or places.intersection(others):
            places.add(place)
    return frozenset(places)


def _but(value: Any, places: frozenset[int]) -> Any:
    """Return *value*; a list without the items at *places*."""
    if not places or not isinstance(value, list):
        return value
    return [each for place, each in enumerate(value) if place not in places]


def _order_kept(seen: Seen, asked: Asked, want: Expected) -> list[str]:
    first: dict[int, Moment] = {}
    last: dict[int, tuple[Moment, Moment]] = {}
    for number, start, end in seen.record.runs[asked.name]:
        first[number] = min(start, first.get(number, start))
        last[number] = max((start, end), last.get(number, (start, end)))
    return [
        f"call {other} began before {one} had ended"
        for one, other in sorted(want.before)
        if one in last and other in first and last[one][1] >= first[other]
    ]
