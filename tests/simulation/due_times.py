"""due_times: the oracle of which due times are called, in plain Python from the documentation.

Comes from:  ``checks``, with the Story of a run.
Goes to:     ``checks``, with a list of problems.
Thread:      any; pure.

An entry has *lives*: each begins with an edit that restarts its due times, and ends with the next such edit.
The leader sees an edit within a second, except during troubles (faults). So each life has due times that must
be called, and some near its ends that may be called.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.simulation.case import Case, Edit, Entry, Fault
from tests.simulation.leading_clock import TOLERANCE, LeadingClock
from tests.simulation.local_times import Instants, crontab_dues, wall_dues
from tests.simulation.schedules import SLEEP_SECONDS, Done, Run, Story

SEEN_SECONDS = 1.0
"""Within this time the leader sees an edit."""
TAKEOVER_SECONDS = 4.0
"""Within this time after a trouble there is a leader, and it has called what was due."""
REPEATED_SECONDS = 10.0
"""Within this time after a fault of a worker or store, the calls that it interrupted have run again."""
LATE_SECONDS = 60.0


@dataclass
class Life:
    """begin, end: seconds of the world. says: the entries, with the times from which they apply. again:
    whether due times may be counted from an earlier life. identity: differs between lives."""

    begin: float
    says: list[tuple[float, Entry]]
    identity: Any
    end: float = float("inf")
    again: bool = False


@dataclass
class Name:
    """What is known of the entry with a name."""

    base: Entry | None = None
    hand: Entry | None = None
    number: int = -1
    """Counts entries added by hand, each of which starts a new life; -1 for entries without a creation
    mark."""
    changes: dict[str, Any] = field(default_factory=dict)
    removed: bool = False
    refused: bool = False
    strange: Entry | None = None
    unsure: float = float("inf")
    """From this second on it is unknown whether an edit was made."""
    lives: list[Life] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)
    """When it was removed, or replaced by an entry that cannot be called."""
    paused: list[tuple[float, Entry]] = field(default_factory=list)
    """Its paused entries, with the times from which they apply."""

    @property
    def there(self) -> bool:
        return self.base is not None or self.hand is not None or self.refused

    def entry(self) -> Entry | None:
        """Return the current entry; None if it is never called."""
        found = self.hand or (None if self.removed else self.base)
        if found is None or found.wrong or self.refused:
            return None
        changes = dict(self.changes)
        when, task = changes.pop("schedule", found.when), changes.pop("task", found.task)
        return dataclasses.replace(found, when=when, task=task, fields={**found.fields, **changes})

    def clear(self) -> None:
        self.hand, self.changes, self.removed, self.refused, self.strange = None, {}, False, False, None


class Oracle:
    """Checks the *story* of *case*. fired: the triggered faults, with their times."""

    def __init__(self, case: Case, story: Story, fired: list[tuple[float, Fault]]) -> None:
        self.case = case
        self.story = story
        self.table = story.table
        self.found: list[str] = []
        self.disturbed = [
            (at - TOLERANCE, at + fault.seconds + REPEATED_SECONDS)
            for at, fault in fired
            if not fault.node.startswith(("beat", "caller")) and fault.node != "schedules"
        ]
        """Times when calls may be lost, or run again."""
        self.only_beats = not self.disturbed
        self.troubles = [
            (at - TOLERANCE, at + fault.seconds + TAKEOVER_SECONDS)
            for at, fault in fired
            if (fault.node.startswith("beat") and fault.kind != "jump")
            or fault.node in ("schedules", "broker")
        ]
        self.silences = [
            (at, at + fault.seconds + TAKEOVER_SECONDS) for at, fault in fired if fault.node == "results"
        ]
        """Times when it is unknown whether the previous call has ended."""
        self.clock = LeadingClock(story.led)
        self.shifts = [(since - TOLERANCE, until + SEEN_SECONDS) for since, until in self.clock.shifts]
        """Times when due times are skipped, or are not reached again yet."""
        restarts = [at for at, fault in fired if fault.node.startswith("beat") and _ends(fault.kind)]
        self.forgotten = float("inf") if story.shared else min(restarts, default=float("inf"))
        """From this second on a new leader may have started afresh, without a store that others share."""
        self.damaged: list[tuple[str, float]] = []
        """Entries, and when the result of their last call was damaged: it may count as ended."""
        self.names = {each.name: Name(each) for each in self.table.entries}
        for known in self.names.values():
            self._live(known, 0.0, known.entry())

    def problems(self) -> list[str]:
        for done in self.story.edits:
            self._edited(done)
        for name, known in self.names.items():
            self._live(known, self.story.ended, None)
            self._check(name, known)
        return self.found

    # -- edits --

    def _edited(self, done: Done) -> None:
        edit = done.edit
        known = self.names.setdefault(edit.name, Name())
        is_odd = known.base is not None and known.base.wrong in (
            "fails",
            "arguments",
            "options",
            "raises",
            "waits",
        )
        if done.unsure or (is_odd and edit.what in ("set", "pause", "resume", "run")):
            for each in self.names.values() if edit.what == "sign" else ():
                each.unsure = min(each.unsure, done.at if each.refused else float("inf"))
            known.unsure = min(known.unsure, done.at)
            return
        wanted = self._refusal(edit, known)
        if (done.error or "") != wanted and known.unsure > done.at:
            self.found.append(
                f"{edit!r} ended with {done.error or 'no error'}, not {wanted or 'without one'}"
            )
        if edit.what == "damage":
            self.damaged.append((edit.name, done.at))
        if done.error or edit.what in ("run", "damage"):
            return
        if edit.what == "sign":
            for each in self.names.values():
                if each.refused and each.strange is not None:
                    strange = each.strange
                    each.clear()
                    each.hand, each.number = strange, -1
                    self._live(each, done.at, each.entry())
            return
        self._change(edit, known)
        if known.entry() is None:
            known.gone.append(done.at)
        self._live(known, done.at, known.entry())

    def _refusal(self, edit: Edit, known: Name) -> str:
        """Return the error that *edit* must end with; "" for none."""
        entry = known.entry()
        if edit.what in ("stranger", "damage"):
            return ""
        if edit.what == "sign":
            return "" if self.case.world.key else "NotSupported"
        if edit.what == "add":
            assert edit.entry is not None
            if self._is_hindered(edit.entry):
                return "InvalidSchedule"
            if not self.story.shared:
                return "NotSupported"
            return "InvalidSchedule" if known.there and (not known.removed or known.refused) else ""
        if edit.what != "run" and not self.story.shared:
            return "NotSupported"
        if not known.there:
            return "NoSuchEntry"
        if edit.what == "remove":
            return ""
        if edit.what == "reset":
            return "" if known.base is not None else "InvalidSchedule"
        if entry is None:
            return "InvalidSchedule"
        changed = dataclasses.replace(entry, fields={**entry.fields, **edit.fields})
        return "InvalidSchedule" if "overlap" in edit.fields and self._is_hindered(changed) else ""

    def _change(self, edit: Edit, known: Name) -> None:
        if edit.what == "stranger":
            if not self.story.shared:
                return
            known.clear()
            known.refused = bool(self.case.world.key) or edit.entry is None
            known.strange = edit.entry
            if not known.refused:
                known.hand, known.number = edit.entry, -1
        elif edit.what == "add":
            known.clear()
            known.hand, known.number = edit.entry, len(known.lives) + 1
        elif edit.what == "remove":
            known.clear()
            known.removed = known.base is not None
        elif edit.what == "reset":
            known.clear()
        else:
            fields = {"pause": {"enabled": False}, "resume": {"enabled": True}}.get(edit.what, edit.fields)
            known.changes.update(fields)

    def _live(self, known: Name, at: float, entry: Entry | None) -> None:
        """Note that the entry is *entry* from *at* on; None if it does not exist."""
        last = known.lives[-1] if known.lives else None
        alive = last is not None and last.end == float("inf")
        if entry is not None and not entry.fields.get("enabled", True):
            known.paused.append((at, entry))
            entry = None
        identity = entry and (entry.when, known.number if known.hand else -1)
        if entry is not None and alive and last is not None and last.identity == identity:
            last.says.append((at, entry))
            return
        if alive and last is not None:
            last.end = at
        if entry is not None:
            # What was in between may not have been seen, or not been readable.
            again = any(each.identity == identity for each in known.lives)
            known.lives.append(Life(at, [(at, entry)], identity, again=again))

    # -- time --

    def _passed(self, due: float) -> float:
        """Return the second of the world in which the leader's clock showed *due*."""
        return self.clock.passed(due - self.story.base)

    def _shown_in(self, begin: float, end: float) -> tuple[float, float]:
        """Return the earliest and the latest time that the leader's clock showed from *begin* to *end*."""
        first, last = self.clock.span(begin, end)
        return self.story.base + first, self.story.base + last

    def _seen(self, at: float) -> float:
        """Return when the leader must have seen what happened at *at*."""
        until = at + SEEN_SECONDS
        while end := max((end for start, end in self.troubles if start <= until < end), default=0.0):
            until = end + SEEN_SECONDS
        return until

    def _silent(self, entry: Entry) -> list[tuple[float, float]]:
        more = self.silences if entry.fields.get("overlap", "allow") != "allow" else []
        return _merged([*self.troubles, *self.shifts, *more])

    def _dues(self, when: tuple[Any, ...], low: float, high: float, anchor: float | None) -> Instants:
        """Return all due times in (*low*, *high*]."""
        kind, *given = when
        if kind == "every":
            if anchor is None:
                return []
            first = max(1, int((low - anchor) // given[0]))
            found = (anchor + (first + n) * given[0] for n in range(int((high - low) / given[0]) + 3))
        elif kind == "at":
            found = iter([self.story.base + given[0]])
        elif kind == "rule":
            found = iter(wall_dues(lambda wall: True, given[0], False, self.table.timezone, low, high))
        else:
            found = iter(crontab_dues(given[0], given[1] or self.table.timezone, low, high))
        return [each for each in found if low < each <= high + TOLERANCE]

    # -- calls --

    def _check(self, name: str, known: Name) -> None:
        story = self.story
        ours = {done.result for done in story.edits if done.result}
        runs = [run for run in story.runs if run.name == name and run.task_id not in ours]
        called = Counter(round(run.due, 6) for run in runs)
        slots = story.slots.get(name, []) if story.slots is not None else None
        if slots is not None:
            self._slots(name, known, slots)
            strange = called.keys() - {round(due, 6) for due, *_ in slots}
            self.found += [f"{name} ran for {self._shown(due)}, which has no slot" for due in sorted(strange)]
        dues = sorted(called if slots is None else {round(due, 6) for due, *_ in slots})
        every = [entry for life in known.lives for _, entry in life.says]
        loses = not (self.only_beats or self.case.world.acks_late)
        known.unsure = min(known.unsure, self.forgotten)
        if slots is None and (loses or any(map(self._is_unseen, every))):
            return
        left = set(dues)
        for life in known.lives:
            before = next(each for each in known.lives if each.identity == life.identity)
            if life.begin < known.unsure:
                left -= set(self._life(name, life, before, known, dues))
        sure, _ = self._shown_in(min(known.unsure, story.ended), story.ended)
        for due in sorted(left):
            if due < sure or known.unsure > story.ended:
                self.found.append(f"{name} was called for {self._shown(due)}, when it was not due")
        if known.unsure <= story.ended:
            return
        self._ran(name, known, dues, runs)
        self._limits(name, known, dues)

    def _shown(self, due: float) -> str:
        return f"{due - self.story.base:.6f}"

    def _slots(self, name: str, known: Name, slots: list[tuple[float, float, str]]) -> None:
        """Check that calls were made in order, and in time."""
        calls = sorted((at, due) for due, at, _ in slots)
        ordered = [due for at, due in calls if not self.clock.is_repeated(at - self.story.base)]
        if ordered != sorted(ordered):
            self.found.append(f"{name} was not called in the order of its due times: {calls}")
        said = [each for life in known.lives for each in life.says]
        says = [entry.fields for _, entry in said]
        unsure = [
            done.edit
            for done in self.story.edits
            if done.edit.name == name and (done.unsure or done.at >= known.unsure)
        ]
        says += [edit.fields if edit.entry is None else edit.entry.fields for edit in unsure]
        jitter = max((fields.get("jitter", 0.0) for fields in says), default=0.0)
        waits = any(fields.get("overlap", "allow") != "allow" for fields in says)
        windows = [*self.troubles, *self.shifts, *(self.silences if waits else ())]
        for at, due in calls:
            late, since, until = at - due, self._passed(due), self._passed(due + jitter)
            if late < -TOLERANCE and not self._is_shifting(at):
                self.found.append(f"{name} was called {-late:.3f} s before {self._shown(due)}")
            edits = (*(each for each, _ in said), known.unsure)
            excused = _overlap(windows, since, until) or any(
                since <= each <= since + late + TOLERANCE for each in edits
            )
            if late > jitter + 1.0 and not excused:
                self.found.append(f"{name} was called {late:.3f} s after {self._shown(due)}")

    def _is_shifting(self, at: float) -> bool:
        """Return whether the leader's clock may have been set while it showed *at*."""
        second = self._passed(at)
        return bool(_overlap(self.shifts, second, second))

    def _life(self, name: str, life: Life, before: Life, known: Name, dues: Instants) -> Instants:
        """Return those of *dues* that this life explains; report those that are missing."""
        seen, end = self._seen(life.begin), min(life.end, known.unsure)
        _, since = self._shown_in(life.begin, seen)
        low, gone = self._shows(life)
        if life.again:
            low = min(low, self._shows(before)[0])
        low -= TOLERANCE
        entry = life.says[-1][1]
        anchor = None
        if entry.when[0] == "every":
            every = entry.when[1]
            own = [due for due in dues if seen < self._passed(due) <= end]
            others = [self._shows(each) for each in known.lives if each is not life]
            if known.unsure <= self.story.ended:  # a new leader may count afresh, and see old times again
                others.append(self._shown_in(known.unsure, self.story.ended))
            sure = [due for due in own if not any(first < due <= last for first, last in others)]
            if not sure:
                first = since + every
                bounded = any({"start", "end"} & each.fields.keys() for _, each in life.says)
                if (
                    not (own or bounded)
                    and self._must(life, [first], seen, end)
                    and not self._excused(known, life, first, dues, name)
                ):
                    self.found.append(f"{name} was never called from {life.begin} to {life.end}")
                return [due for due in dues if low < due <= gone]
            back = (sure[0] - low) // every
            anchor = sure[0] - back * every
            if not low <= anchor <= since + TOLERANCE and not life.again:
                self.found.append(
                    f"{name} is due {self._shown(sure[0])}, which was not counted from when it was seen, "
                    f"{life.begin}"
                )
        valid = {round(due, 6) for due in self._dues(entry.when, low, gone, anchor)}
        explained = [due for due in dues if any(round(due + bit, 6) in valid for bit in (0, 1e-6, -1e-6))]
        explained = [due for due in explained if self._may(life, due)]
        for due in self._must(life, self._dues(entry.when, low, gone, anchor), seen, end):
            if not any(abs(due - each) < TOLERANCE for each in dues) and not self._excused(
                known, life, due, dues, name
            ):
                self.found.append(f"{name} was not called for {self._shown(due)}")
        return explained

    def _shows(self, life: Life) -> tuple[float, float]:
        """Return the earliest and the latest time that leaders who knew *life* may have seen."""
        return self._shown_in(life.begin, self._seen(life.end))

    def _says(self, life: Life, second: float) -> Iterator[Entry]:
        """Yield the entries that may have applied at *second*."""
        for number, (since, entry) in enumerate(life.says):
            until = life.says[number + 1][0] if number + 1 < len(life.says) else float("inf")
            if since <= second <= self._seen(until):
                yield entry

    def _may(self, life: Life, due: float) -> bool:
        """Return whether *due* is allowed by an entry that applied then, or later before it was called."""
        shown, second = due - self.story.base, self._passed(due)
        later = [entry for since, entry in life.says if since > second]
        return any(_within(entry, shown) for entry in (*self._says(life, second), *later, life.says[0][1]))

    def _must(self, life: Life, dues: Instants, seen: float, end: float) -> Instants:
        """Return those of *dues* that must be called in spite of faults. seen, end: seconds between which
        they were passed."""
        found: Instants = []
        open_: dict[tuple[float, float], list[tuple[float, Entry | None]]] = {}
        dues = [due for due in dues if seen < self._passed(due) <= end]
        for number, due in enumerate(dues):
            shown, second = due - self.story.base, self._passed(due)
            says = list(self._says(life, second))
            if not any(_within(each, shown) for each in says) or any(_at_bound(each, shown) for each in says):
                continue
            entry, sure = says[0], len(says) == 1
            jitter = entry.fields.get("jitter", 0.0) if sure else 0.0
            latest = self._passed(due + jitter)
            # An edit before the call is made applies to it.
            sure &= not any(second < since <= latest + TOLERANCE for since, _ in life.says)
            expires = entry.fields.get("expires")
            if latest + TOLERANCE >= end or (jitter and expires is not None and expires <= jitter):
                continue
            following = dues[number + 1] if number + 1 < len(dues) else float("inf")
            if jitter and (
                following <= due + jitter or (entry.when[0] == "every" and jitter >= entry.when[1])
            ):
                continue  # one call may be made for both
            windows = self._silent(entry)
            hit = [each for each in windows if each[0] <= latest and second <= each[1]]
            if not hit:
                found += [due] * sure
            elif len(hit) == 1 and not jitter and hit[0][1] < end:
                # An edit before the first call after the trouble applies to it, too.
                later = [each for since, each in life.says if second < since <= hit[0][1]]
                sure &= all(_within(each, shown) and each.fields.get("expires") is None for each in later)
                open_.setdefault(hit[0], []).append((due, entry if sure else None))
        for (start, until), missed in open_.items():
            shifts = [each for each in self.clock.shifts if each[0] < until and start < each[1]]
            if self.clock.backwards.intersection(shifts) or (shifts and seen > start):
                continue  # the latest one is unknown
            last = next((entry for _, entry in reversed(missed) if entry is not None), Entry())
            catch_up = last.fields.get("catch_up", "latest")
            alone = last.fields.get("overlap", "allow") != "allow"
            count = catch_up if isinstance(catch_up, int) and not alone else 1
            for due, said in missed[-count:]:  # optional ones count, too
                if said is None:
                    continue
                wait = self._shown_in(start, until)[1] - due
                if said.fields.get("expires") is not None and wait >= said.fields["expires"]:
                    continue
                if catch_up == "skip" and wait > LATE_SECONDS:
                    continue
                found.append(due)
        return found

    def _excused(self, known: Name, life: Life, due: float, dues: Instants, name: str) -> bool:
        """Return whether the previous call had not ended, or ``max_runs`` was reached."""
        second = self._passed(due)
        says = list(self._says(life, second))
        count = sum(self._passed(each) <= self._seen(second) for each in dues)
        limits = [entry.fields.get("max_runs") for each in known.lives for _, entry in each.says]
        if any(limit is not None and count >= limit for limit in limits):
            return True
        if not any(entry.fields.get("overlap") == "skip" and not self._is_hindered(entry) for entry in says):
            return False
        place = bisect_right(dues, due)
        if not place:
            return False
        previous = [run for run in self.story.runs if run.name == name and run.due == dues[place - 1]]
        last = max((run.ended for run in previous if run.ended is not None), default=float("inf"))
        begin = self._passed(dues[place - 1])
        # It ends with the calls that replace it; an edit may have given the entry another task since.
        is_replaced = any(run.task in ("chorded", "grouped") for run in previous)
        if is_replaced and self._is_busy(begin, second):  # those may wait behind a slow task
            return True
        longer = 3 * SLEEP_SECONDS if is_replaced else 1.0
        if last + longer >= second or _overlap(self.disturbed, begin, second):
            return True
        # By the leader's clock its result has expired; without one it seems to run until that has passed
        # since it was called.
        shown, expires = due - self.story.base, self.case.world.result_expires
        called = max(self.clock.span(run.started, run.started)[1] for run in previous)
        return last + expires <= shown + 1.0 and shown <= called + expires + 1.0

    def _is_busy(self, begin: float, end: float) -> bool:
        """Return whether a slow task occupied a worker between *begin* and *end*."""
        return any(
            run.started <= end and (run.ended is None or begin <= run.ended != run.started)
            for run in self.story.runs
        )

    def _is_unseen(self, entry: Entry) -> bool:
        """Return whether its calls may never run, for example if they expire behind a slow task, or while
        results cannot be stored."""
        waits = self._is_busy(0.0, self.story.ended) or bool(self.silences)
        return (
            (waits and entry.fields.get("expires") is not None)
            or entry.task == "nobody"
            or self._replaces(entry)
        )

    def _is_hindered(self, entry: Entry) -> bool:
        """Whether its overlap cannot work: without a result, or revocations."""
        if entry.fields.get("overlap") == "replace":
            return self.case.world.stores.startswith("kombu")
        return entry.fields.get("overlap") == "skip" and (entry.task == "quiet" or not self.case.world.joins)

    def _replaces(self, entry: Entry) -> bool:
        return entry.fields.get("overlap") == "replace" and not self._is_hindered(entry)

    def _limits(self, name: str, known: Name, dues: Instants) -> None:
        for number in {life.identity[1] for life in known.lives}:
            lives = [life for life in known.lives if life.identity[1] == number]
            limits = [entry.fields.get("max_runs") for life in lives for _, entry in life.says]
            if len({life.identity[1] for life in known.lives}) > 1:
                continue  # each of them has its own limit
            if None not in limits and limits and len(dues) > max(limits):
                self.found.append(f"{name} was called {len(dues)} times, with max_runs={max(limits)}")

    def _ran(self, name: str, known: Name, dues: Instants, runs: list[Run]) -> None:
        """Check that each call ran once, with the entry's arguments."""
        if not known.lives:
            return
        every = [entry for life in known.lives for _, entry in life.says]
        for due in dues:
            same = [run for run in runs if round(run.due, 6) == round(due, 6)]
            begin = self._passed(due)
            end = max((run.started for run in same), default=begin)
            twice = any(entry.task == "quiet" for entry in every) and not self.story.together
            again = 12 * _overlap(self.disturbed, begin, end) + twice * _overlap(self.troubles, begin, end)
            if len(same) > 1 + again:
                self.found.append(f"{name} ran {len(same)} times for {self._shown(due)}")
            following = next((each for each in dues if each > due), due)
            if not (same or self._can_miss(name, known, due, following)):
                self.found.append(f"{name} was called for {self._shown(due)}, and did not run")
        # For add_periodic_task() it is an option of the call, and counts from the call.
        expires = [None if entry.source == "code" else entry.fields.get("expires") for entry in every]
        if self.only_beats and self.case.world.acks_late and None not in expires:
            self.found += [
                f"{name} began for {self._shown(run.due)} {late:.3f} s later, with expires={max(expires)}"
                for run in runs
                if (late := self.story.base + run.given - run.due) > max(expires) + TOLERANCE
            ]
        self.found += [
            f"{name} ran with {run.args}" for run in runs if run.args not in self._args(known, run)
        ]
        if self.only_beats and self.story.together and self._is_alone:
            later = [run.due for run in sorted(runs, key=lambda run: run.started)]
            later = [due for due in later if not self.clock.is_repeated(due - self.story.base)]
            if later != sorted(later):
                self.found.append(f"{name} ran in another order than it was due: {later}")
        if not self.only_beats:
            return
        self._replaced(name, every, runs)
        if all(entry.fields.get("overlap") == "skip" and not self._is_hindered(entry) for entry in every):
            ordered = sorted(runs, key=lambda run: run.due)
            self.found += [
                f"{name} ran for {self._shown(later.due)} before that for {self._shown(run.due)} had ended"
                for run, later in pairwise(ordered)
                if (run.ended is None or run.ended > later.started)
                and not self._is_damaged(name, self._passed(run.due), later.started)
            ]

    def _is_damaged(self, name: str, begin: float, end: float) -> bool:
        return any(each == name and begin <= at <= end for each, at in self.damaged)

    def _applied(self, known: Name, begin: float, end: float) -> Iterator[Entry]:
        """Yield the entries that may have applied at some time from *begin* to *end*."""
        for life in known.lives:
            until = [*(since for since, _ in life.says[1:]), life.end]
            for (since, entry), last in zip(life.says, until, strict=True):
                if since <= end and begin <= self._seen(last):
                    yield entry

    def _can_miss(self, name: str, known: Name, due: float, following: float) -> bool:
        """Return whether the call for *due* may never run. following: the next one may replace it."""
        begin, made = self._passed(due), self._made(name, due)
        sent = made[1] if self.story.together else self._seen(made[1])
        replacing = self._applied(known, begin, max(sent, self._made(name, following)[1]))
        if any(map(self._replaces, replacing)) or any(
            entry.task in ("nobody", "raising") or entry.fields.get("expires") is not None
            for entry in self._applied(known, begin, sent)
        ):
            return True
        if not self.case.world.acks_late:
            last = self.story.ended if self._is_busy(begin, self.story.ended) else made[1] + TAKEOVER_SECONDS
            if _overlap(self.disturbed, begin, last):
                return True
        return self._was_owed(known, *made)

    def _made(self, name: str, due: float) -> tuple[float, float]:
        """Return the seconds between which the call for *due* was made."""
        slots = (self.story.slots or {}).get(name, ())
        shown = max((at for each, at, _ in slots if abs(each - due) < 1e-5), default=due)
        second = self._passed(shown)
        is_known = not (self.clock.is_repeated(shown - self.story.base) or self._is_shifting(shown))
        return second, second if is_known else self.story.ended

    def _was_owed(self, known: Name, first: float, last: float) -> bool:
        """Return whether the entry was removed before the message of a call, made between *first* and *last*,
        could be sent."""
        return not self.story.together and any(
            start <= last and first <= end and first - SEEN_SECONDS <= gone <= end + SEEN_SECONDS
            for start, end in self.troubles
            for gone in known.gone
        )

    def _args(self, known: Name, run: Run) -> set[tuple[Any, ...]]:
        """Return the arguments that *run* may have. Its entry may be paused before its message is sent: the
        leader died, and the next one sends it."""
        begin = self._passed(run.due)
        entries = list(self._applied(known, begin, run.given))
        if not self.story.together and self.troubles:
            entries += [entry for at, entry in known.paused if begin <= at <= run.given]
        return {tuple(entry.fields.get("args", ())) for entry in entries}

    @property
    def _is_alone(self) -> bool:
        """Whether only one task runs at a time."""
        return self.case.world.workers == self.case.world.concurrency == 1

    def _replaced(self, name: str, every: list[Entry], runs: list[Run]) -> None:
        """Check that no call starts after another has replaced it."""
        if self.story.slots is None or not all(map(self._replaces, every)):
            return
        slots = sorted((due, at) for due, at, _ in self.story.slots.get(name, ()))
        for (due, _), (_, replaced_at) in pairwise(slots):
            began = max((run.started for run in runs if abs(run.due - due) < TOLERANCE), default=0.0)
            begin = self._passed(due)
            is_known = not (
                self.clock.is_repeated(replaced_at - self.story.base) or self._is_damaged(name, begin, began)
            )
            windows = (*self.troubles, *self.shifts)
            over = [until for since, until in windows if since <= began and begin <= until]
            if is_known and began > max(self._passed(replaced_at), *over, 0.0) + SEEN_SECONDS:
                self.found.append(f"{name} ran for {self._shown(due)} after another call had replaced it")


def _ends(kind: str) -> bool:
    """Return whether a fault of this *kind* ends a process."""
    return kind in ("restart", "die") or kind.startswith("kill")


def _within(entry: Entry, second: float) -> bool:
    """Return whether *second* is between the entry's start and end."""
    start, end = entry.fields.get("start"), entry.fields.get("end")
    return (start is None or second >= start - TOLERANCE) and (end is None or second <= end + TOLERANCE)


def _at_bound(entry: Entry, second: float) -> bool:
    """Return whether *second* is so close to the start or end that rounding decides."""
    return any(
        bound is not None and 1e-7 < abs(second - bound) < TOLERANCE
        for bound in (entry.fields.get("start"), entry.fields.get("end"))
    )


def _overlap(windows: Iterable[tuple[float, float]], begin: float, end: float) -> int:
    """Return how many of *windows* overlap the time from *begin* to *end*."""
    return sum(start <= end and begin <= until for start, until in windows)


def _merged(windows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in sorted(windows):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
