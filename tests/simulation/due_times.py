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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from tests.simulation.case import Case, Edit, Entry, Fault
from tests.simulation.schedules import SLEEP_SECONDS, Done, Run, Story

SEEN_SECONDS = 1.0
"""Within this time the leader sees an edit."""
TAKEOVER_SECONDS = 4.0
"""Within this time after a trouble there is a leader, and it has called what was due."""
LATE_SECONDS = 60.0
TOLERANCE = 0.002
Instants = list[float]


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
    unsure: bool = False
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
        self.kinds = {fault.kind for _, fault in fired}
        self.only_beats = all(
            fault.node.startswith(("beat", "caller")) or fault.node == "schedules" for _, fault in fired
        )
        self.troubles = [
            (at - TOLERANCE, at + fault.seconds + TAKEOVER_SECONDS)
            for at, fault in fired
            if fault.node.startswith("beat") or fault.node in ("schedules", "broker")
        ]
        self.silences = [
            (at, at + fault.seconds + TAKEOVER_SECONDS) for at, fault in fired if fault.node == "results"
        ]
        """Times when it is unknown whether the previous call has ended."""
        self.jumps = [(at, fault.seconds) for at, fault in fired if fault.kind == "jump"]
        self.skew = sum(abs(seconds) for _, seconds in self.jumps)
        self.damaged: set[str] = set()
        """Entries with a damaged result: their previous call may count as ended."""
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
                each.unsure |= each.refused
            known.unsure = True
            return
        wanted = self._refusal(edit, known)
        if (done.error or "") != wanted and not known.unsure:
            self.found.append(
                f"{edit!r} ended with {done.error or 'no error'}, not {wanted or 'without one'}"
            )
        if edit.what == "damage":
            self.damaged.add(edit.name)
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

    def _wall(self, at: float) -> float:
        return self.story.base + at

    def _seen(self, at: float) -> float:
        """Return when the leader must have seen what happened at *at*."""
        until = at + SEEN_SECONDS
        while end := max((end for start, end in self.troubles if start <= until < end), default=0.0):
            until = end + SEEN_SECONDS
        return until

    def _silent(self, entry: Entry) -> list[tuple[float, float]]:
        more = self.silences if entry.fields.get("overlap", "allow") != "allow" else []
        return _merged([*self.troubles, *more])

    def _dues(self, when: tuple[Any, ...], low: float, high: float, anchor: float | None) -> Instants:
        """Return all due times in (*low*, *high*]."""
        kind, *given = when
        if kind == "every":
            if anchor is None:
                return []
            first = max(1, int((low - anchor) // given[0]))
            found = (anchor + (first + n) * given[0] for n in range(int((high - low) / given[0]) + 3))
        elif kind == "at":
            found = iter([self._wall(given[0])])
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
        forgets = not story.shared and bool(self.troubles)
        loses = not (self.only_beats or self.case.world.acks_late)
        if known.unsure or forgets or (slots is None and (loses or any(map(self._is_unseen, every)))):
            return
        left = set(dues)
        for life in known.lives:
            before = next(each for each in known.lives if each.identity == life.identity)
            left -= set(self._life(name, life, before, known, dues))
        for due in sorted(left):
            self.found.append(f"{name} was called for {self._shown(due)}, when it was not due")
        self._ran(name, known, dues, runs)
        self._limits(name, known, dues)

    def _shown(self, due: float) -> str:
        return f"{due - self.story.base:.6f}"

    def _slots(self, name: str, known: Name, slots: list[tuple[float, float, str]]) -> None:
        """Check that calls were made in order, and in time."""
        calls = sorted((at, due) for due, at, _ in slots)
        if not self.jumps and [due for _, due in calls] != sorted(due for _, due in calls):
            self.found.append(f"{name} was not called in the order of its due times: {calls}")
        said = [each for life in known.lives for each in life.says]
        says = [entry.fields for _, entry in said]
        unsure = [done.edit for done in self.story.edits if done.edit.name == name and done.unsure]
        says += [edit.fields if edit.entry is None else edit.entry.fields for edit in unsure]
        jitter = max((fields.get("jitter", 0.0) for fields in says), default=0.0)
        for at, due in calls:
            late = at - due
            second = due - self.story.base
            troubled = any(start <= second + jitter and second <= end for start, end in self.troubles)
            if late < -TOLERANCE - self.skew:
                self.found.append(f"{name} was called {-late:.3f} s before {self._shown(due)}")
            edited = any(second <= since <= second + late + TOLERANCE for since, _ in said)
            excused = troubled or edited or known.unsure or self.jumps or self.silences
            if late > jitter + 1.0 and not excused:
                self.found.append(f"{name} was called {late:.3f} s after {self._shown(due)}")

    def _life(self, name: str, life: Life, before: Life, known: Name, dues: Instants) -> Instants:
        """Return those of *dues* that this life explains; report those that are missing."""
        seen, gone = self._wall(self._seen(life.begin)), self._wall(self._seen(life.end))
        end = self._wall(life.end)
        low = self._wall(before.begin if life.again else life.begin) - TOLERANCE
        low, gone = low - self.skew, gone + self.skew
        entry = life.says[-1][1]
        anchor = None
        if entry.when[0] == "every":
            every = entry.when[1]
            own = [due for due in dues if seen < due <= end]
            ahead = sum(abs(seconds) for at, seconds in self.jumps if at < life.end)
            # Others may belong to the life before, or after this one: clocks were set.
            sure = [due for due in own if seen + ahead < due <= end - ahead]
            if not sure:
                first = seen + every
                bounded = any({"start", "end"} & each.fields.keys() for _, each in life.says)
                if (
                    not (own or bounded)
                    and self._must(life, [first], end)
                    and not self._excused(known, life, first, dues, name)
                ):
                    self.found.append(f"{name} was never called from {life.begin} to {life.end}")
                return [due for due in dues if low < due <= gone]
            back = (sure[0] - low) // every
            anchor = sure[0] - back * every
            if not low <= anchor <= seen + TOLERANCE + self.skew and not life.again:
                self.found.append(
                    f"{name} is due {self._shown(sure[0])}, which was not counted from when it was seen, "
                    f"{life.begin}"
                )
        valid = {round(due, 6) for due in self._dues(entry.when, low, gone, anchor)}
        explained = [due for due in dues if any(round(due + bit, 6) in valid for bit in (0, 1e-6, -1e-6))]
        explained = [due for due in explained if self._may(life, due)]
        for due in self._must(life, self._dues(entry.when, seen, end, anchor), end):
            if not any(abs(due - each) < TOLERANCE for each in dues) and not self._excused(
                known, life, due, dues, name
            ):
                self.found.append(f"{name} was not called for {self._shown(due)}")
        return explained

    def _says(self, life: Life, second: float) -> Iterator[Entry]:
        """Yield the entries that may have applied at *second*."""
        for number, (since, entry) in enumerate(life.says):
            until = life.says[number + 1][0] if number + 1 < len(life.says) else float("inf")
            if since <= second + self.skew and second <= self._seen(until) + self.skew:
                yield entry

    def _may(self, life: Life, due: float) -> bool:
        """Return whether *due* is allowed by an entry that applied then, or later before it was called."""
        second = due - self.story.base
        later = [entry for since, entry in life.says if since > second]
        return any(_within(entry, second) for entry in (*self._says(life, second), *later, life.says[0][1]))

    def _must(self, life: Life, dues: Instants, end: float) -> Instants:
        """Return those of *dues* that must be called in spite of faults."""
        found: Instants = []
        end = min([end, *(self._wall(at) for at, _ in self.jumps)])
        open_: dict[tuple[float, float], list[tuple[float, Entry | None]]] = {}
        for number, due in enumerate(dues):
            second = due - self.story.base
            says = list(self._says(life, second))
            if not any(_within(each, second) for each in says) or any(
                _at_bound(each, second) for each in says
            ):
                continue
            entry, sure = says[0], len(says) == 1
            jitter = entry.fields.get("jitter", 0.0) if sure else 0.0
            # An edit before the call is made applies to it.
            sure &= not any(second < since <= second + jitter + TOLERANCE for since, _ in life.says)
            expires = entry.fields.get("expires")
            if due + jitter + TOLERANCE >= end or (jitter and expires is not None and expires <= jitter):
                continue
            following = dues[number + 1] if number + 1 < len(dues) else float("inf")
            if jitter and (
                following <= due + jitter or (entry.when[0] == "every" and jitter >= entry.when[1])
            ):
                continue  # one call may be made for both
            windows = self._silent(entry)
            hit = [each for each in windows if each[0] <= second + jitter and second <= each[1]]
            if not hit:
                found += [due] * sure
            elif len(hit) == 1 and not jitter and self._wall(hit[0][1]) < end:
                # An edit before the first call after the trouble applies to it, too.
                sure &= all(_within(each, second) for since, each in life.says if second < since <= hit[0][1])
                open_.setdefault(hit[0], []).append((due, entry if sure else None))
        for (start, until), missed in open_.items():
            if any(at < until for at, _ in self.jumps):
                continue  # the latest one is unknown
            last = next((entry for _, entry in reversed(missed) if entry is not None), Entry())
            catch_up = last.fields.get("catch_up", "latest")
            alone = last.fields.get("overlap", "allow") != "allow"
            count = catch_up if isinstance(catch_up, int) and not alone else 1
            for due, said in missed[-count:]:  # optional ones count, too
                if said is None:
                    continue
                wait = self._wall(until) - due
                if said.fields.get("expires") is not None and wait >= said.fields["expires"]:
                    continue
                if catch_up == "skip" and until - start > LATE_SECONDS:
                    continue
                found.append(due)
        return found

    def _excused(self, known: Name, life: Life, due: float, dues: Instants, name: str) -> bool:
        """Return whether the previous call had not ended, or ``max_runs`` was reached."""
        second = due - self.story.base
        says = list(self._says(life, second))
        limits = [entry.fields.get("max_runs") for each in known.lives for _, entry in each.says]
        if any(limit is not None and len(dues) >= limit for limit in limits):
            return True
        if not any(entry.fields.get("overlap") == "skip" and not self._is_hindered(entry) for entry in says):
            return False
        place = bisect_right(dues, due)
        if not place:
            return False
        previous = [run for run in self.story.runs if run.name == name and run.due == dues[place - 1]]
        last = max((run.ended for run in previous if run.ended is not None), default=float("inf"))
        # It ends with the calls that replace it; an edit may have given the entry another task since.
        is_replaced = any(run.task in ("chorded", "grouped") for run in previous)
        if is_replaced and self._is_busy:  # those may wait behind a slow task
            return True
        return last + (3 * SLEEP_SECONDS if is_replaced else 1.0) >= second or not self.only_beats

    @property
    def _is_busy(self) -> bool:
        """Whether a slow task has occupied a worker."""
        return any(run.ended != run.started for run in self.story.runs)

    def _is_unseen(self, entry: Entry) -> bool:
        """Return whether its calls may never run, for example if they expire behind a slow task."""
        expires = self._is_busy and entry.fields.get("expires") is not None
        return expires or entry.task == "nobody" or self._replaces(entry)

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
        counted = Counter(round(run.due, 6) for run in runs)
        most = 1 if self.only_beats else 1 + 3 * max(1, len(self.kinds) * 4)
        if any(entry.task == "quiet" for entry in every) and not self.story.together:
            most += len(self.troubles)
        can_miss = any(
            entry.task in ("nobody", "raising")
            or entry.fields.get("expires") is not None
            or self._replaces(entry)
            for entry in every
        ) or (not self.only_beats and not self.case.world.acks_late)
        for due in dues:
            count = counted[round(due, 6)]
            if count > most:
                self.found.append(f"{name} ran {count} times for {self._shown(due)}")
            if not (count or can_miss or self._was_owed(name, known, due)):
                self.found.append(f"{name} was called for {self._shown(due)}, and did not run")
        # For add_periodic_task() it is an option of the call, and counts from the call.
        expires = [None if entry.source == "code" else entry.fields.get("expires") for entry in every]
        if self.only_beats and not self.jumps and self.case.world.acks_late and None not in expires:
            self.found += [
                f"{name} began for {self._shown(run.due)} {late:.3f} s later, with expires={max(expires)}"
                for run in runs
                if (late := self._wall(run.given) - run.due) > max(expires) + TOLERANCE
            ]
        shown = {tuple(entry.fields.get("args", ())) for entry in every}
        self.found += [
            f"{name} ran with {run.args}"
            for run in runs
            if tuple(run.args) not in shown | self._args_while_paused(known, run)
        ]
        if self.only_beats and not self.jumps and self.story.together and self._is_alone:
            later = [run.due for run in sorted(runs, key=lambda run: run.started)]
            if later != sorted(later):
                self.found.append(f"{name} ran in another order than it was due: {later}")
        quiet = self.only_beats and not (self.troubles or self.jumps or self.silences)
        if quiet and name not in self.damaged:
            self._replaced(name, every, runs)
        if (
            self.only_beats
            and name not in self.damaged
            and all(entry.fields.get("overlap") == "skip" and not self._is_hindered(entry) for entry in every)
        ):
            ordered = sorted(runs, key=lambda run: run.due)
            self.found += [
                f"{name} ran for {self._shown(later.due)} before that for {self._shown(run.due)} had ended"
                for run, later in pairwise(ordered)
                if run.ended is None or run.ended > later.started
            ]

    def _was_owed(self, name: str, known: Name, due: float) -> bool:
        """Return whether the entry was removed before the message for *due* could be sent."""
        if self.story.together or self.story.slots is None:
            return False
        called = [at - self.story.base for each, at, _ in self.story.slots[name] if abs(each - due) < 1e-5]
        return any(
            start - self.skew <= at <= end + self.skew and at - SEEN_SECONDS <= gone <= end + SEEN_SECONDS
            for at in called
            for start, end in self.troubles
            for gone in known.gone
        )

    def _args_while_paused(self, known: Name, run: Run) -> set[tuple[Any, ...]]:
        """Return the arguments that *run* may have, if its leader died before the message was sent and the
        entry was paused before the next one sent it."""
        if self.story.together or not self.troubles:
            return set()
        second = run.due - self.story.base
        return {
            tuple(entry.fields.get("args", ()))
            for at, entry in known.paused
            if second - self.skew <= at <= run.given + self.skew
        }

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
            began = [run.started for run in runs if abs(run.due - due) < TOLERANCE]
            if began and self._wall(max(began)) > replaced_at + SEEN_SECONDS:
                self.found.append(f"{name} ran for {self._shown(due)} after another call had replaced it")


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


def _merged(windows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in sorted(windows):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


# -- crontabs --

_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def _field(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        numbers, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if numbers == "*" else numbers).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def crontab_dues(text: str, zone: str, low: float, high: float) -> Instants:
    """Return the due times of the crontab *text* (no names, at most one day field) in (*low*, *high*]."""
    parts = text.split()
    fields = [_field(part, *ends) for part, ends in zip(parts, _FIELDS, strict=True)]
    weekdays = {day % 7 for day in fields[4]}

    def matches(wall: datetime) -> bool:
        values = (wall.minute, wall.hour, wall.day, wall.month)
        return all(map(set.__contains__, fields, values)) and wall.isoweekday() % 7 in weekdays

    follows = parts[0].startswith("*") or parts[1].startswith("*")
    return wall_dues(matches, (0,), follows, zone, low, high)


def wall_dues(
    matches: Callable[[datetime], bool],
    seconds: Sequence[int],
    follows: bool,
    zone: str,
    low: float,
    high: float,
) -> Instants:
    """Return the times in (*low*, *high*] at *seconds* of local minutes in *zone* that *matches* accepts.
    follows: use each local time as it occurs; else a skipped time is due when the clock continues, and a
    repeated time only once."""
    tz = ZoneInfo(zone)
    found: set[float] = set()
    shown: set[datetime] = set()
    last: datetime | None = None
    for instant in range(int(low // 60) * 60 - 3 * 3600, int(high) + 60, 60):
        wall = datetime.fromtimestamp(instant, UTC).astimezone(tz).replace(tzinfo=None)
        if follows:
            if matches(wall):
                found |= {float(instant + second) for second in seconds}
            continue
        passed = wall if last is None else min(wall, last + timedelta(minutes=1))
        while passed <= wall:
            if matches(passed) and passed not in shown:
                found |= {float(instant + second * (passed == wall)) for second in seconds}
            shown.add(passed)
            passed += timedelta(minutes=1)
        last = wall
    return sorted(each for each in found if low < each <= high)
