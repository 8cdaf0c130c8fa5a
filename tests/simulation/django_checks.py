"""django_checks: what must hold for a Django project when everything is quiet, by Django-Q's manual.

Comes from:  ``checks``, for cases with ``django``.
Goes to:     its list of problems.
Thread:      any; pure.
"""

from __future__ import annotations

from calendar import monthrange
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from tests.simulation.case import Django, Job
from tests.simulation.local_times import crontab_dues
from tests.simulation.nodes import Asked
from tests.simulation.repeats import HARMLESS, Repeats
from tests.simulation.run import Seen
from tests.simulation.world import START

ALWAYS = 1000
"""A task that fails in this many attempts always fails."""
MINUTE = 60.0
PASSING = {"I": timedelta(minutes=1), "H": timedelta(hours=1)}
DAYS = {"D": 1, "W": 7, "BW": 14}
MONTHS = {"M": 1, "BM": 2, "Q": 3, "Y": 12}


def django_problems(seen: Seen) -> list[str]:
    """Return the problems of a run."""
    django = seen.case.django
    assert django is not None
    found = [f"it does not end: {seen.stuck}"] if seen.stuck else []
    found += seen.record.wrong
    for asked in seen.asked:
        found += [f"{asked.name}: {text}" for text in _Job(seen, django, asked).problems()]
    known = not any(asked.refused or asked.forgotten for asked in seen.asked)
    if seen.left["parts"] and known and not seen.stuck:
        found.append(f"{seen.left['parts']} parts of iterables are left")
    if seen.left["dead"]:
        found.append(f"dead letters: {seen.left['dead']}")
    found += _beyond(seen, django, known)
    found += [f"{kind} are left for ever: {count}" for kind, count in seen.left_for_ever.items()]
    if all(fault.kind in HARMLESS for fault in seen.fired):
        found += [f"the log has an error that nothing explains: {text}" for text in seen.errors]
    return found


def attempts_of(job: Job, django: Django, number: int) -> tuple[int, bool]:
    """Return how often the call *number* of *job* runs, and whether it succeeds in the end."""
    fails = max(0, job.fails) if job.kind in ("task", "schedule") else ALWAYS * (job.fails == number)
    acked = django.ack_failures
    if job.kind in ("task", "chain", "group") and job.ack_failure is not None:
        acked = job.ack_failure
    if acked or job.sync:
        return 1, not fails
    most = django.max_attempts or ALWAYS + 1
    return min(fails + 1, most), fails < most


def ended(job: Job, django: Django) -> Iterator[tuple[int, int, bool]]:
    """Yield the calls of *job* that end: number, runs, and whether it succeeds."""
    for number in range(job.size):
        runs, success = attempts_of(job, django, number)
        yield number, runs, success
        if job.kind == "task" or (job.kind == "chain" and not success):
            return


def rows_of(job: Job, django: Django) -> list[bool]:
    """Return for each row stored for *job*, without limits, whether it is a success."""
    if job.cached or job.atomic == "rollback":
        return []
    keeps = django.save_limit >= 0
    if job.kind == "schedule":
        _, success = attempts_of(job, django, 0)
        rows = [success] * (1 if job.once else job.size)
    elif job.kind == "iter":
        rows = [all(success for *_, success in ended(job, django))]
    else:
        rows = [success for *_, success in ended(job, django)]
        keeps = keeps if job.save is None else job.save
    return [each for each in rows if keeps or not each]


def dues_of(job: Job, django: Django) -> Iterator[datetime]:
    """Yield when the schedule *job* is due, without missed times that are skipped."""
    asked = datetime.fromtimestamp(START + job.at, UTC)
    due = datetime.fromtimestamp(START + job.at + job.due, UTC)
    if job.crontab:
        due = following(job.every, asked, django.time_zone)
    yield due
    while True:
        due = following(job.every, due, django.time_zone)
        if django.catch_up or due > asked:
            yield due


def following(every: str, due: datetime, zone: str) -> datetime:
    """Return when a schedule that was due at *due* is due next. Minutes and hours are elapsed time, the
    others local time."""
    if every in PASSING:
        return due + PASSING[every]
    if every not in DAYS and every not in MONTHS:
        second = due.timestamp()
        return datetime.fromtimestamp(crontab_dues(every, zone, second, second + 3600.0)[0], UTC)
    wall = due.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    if every in DAYS:
        wall += timedelta(days=DAYS[every])
    else:
        year, month = divmod(wall.year * 12 + wall.month - 1 + MONTHS[every], 12)
        wall = wall.replace(year, month + 1, min(wall.day, monthrange(year, month + 1)[1]))
    while (found := wall.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)).astimezone(ZoneInfo(zone)).replace(
        tzinfo=None
    ) != wall:  # skipped when the clock goes forward
        wall = wall.replace(second=0, microsecond=0) + timedelta(minutes=1)
    return found


class _Job:
    """Checks a job."""

    def __init__(self, seen: Seen, django: Django, asked: Asked) -> None:
        self.seen = seen
        self.django = django
        self.asked = asked
        self.job: Any = asked.order
        self.name = asked.name
        self.exact = all(fault.kind in HARMLESS for fault in seen.fired)
        self.told_time = not seen.fired and not seen.case.world.skew
        self.calls = Counter({n: runs for n, runs, _ in ended(self.job, django)})
        if self.job.kind == "schedule":
            runs, _ = attempts_of(self.job, django, 0)
            self.calls = Counter({0: runs * (1 if self.job.once else self.job.size)})
        self.rows = [row for row in seen.left["rows"].values() if self._is_mine(row)]

    def _is_mine(self, row: Any) -> bool:
        if self.job.kind == "iter":
            return row.pk in self.asked.results
        return bool(row.args) and row.args[0] == self.name

    def problems(self) -> Iterator[str]:
        asked, job, record, met = self.asked, self.job, self.seen.record, self.seen.met
        repeats = Repeats(record.executions[self.name], record.every, met, record.bodies)
        hooks = Repeats(record.tellings[self.name], record.every, met, record.bodies)
        ran, told = record.ran(self.name), record.told[self.name]
        if job.atomic == "rollback":
            if ran or self.rows:
                yield f"ran {dict(ran)}, though its transaction was rolled back"
            return
        if asked.refused:
            if self.exact:
                yield f"cannot be called: {asked.refused[0]!r}"
            return
        if asked.unanswered and self.exact:
            yield f"cannot be asked for: {asked.unanswered[0]!r}"
        if asked.forgotten or self.seen.stuck:
            return
        if job.kind == "schedule":
            yield from self._schedule(ran)
        yield from (*repeats.problems(), *(f"hook of {text}" for text in hooks.problems()))
        if not asked.revoked:
            yield from self._counts("ran", ran, self.calls)
            yield from repeats.beyond(ran, self.calls)
        ends = Counter(dict.fromkeys(self.calls if job.kind != "iter" else (), 1))
        if job.kind == "schedule":
            ends = Counter({0: 1 if job.once else job.size})
        hooked = ends if job.hook else Counter()
        if job.kind == "chain":
            ids = {(number, run.id) for number, run in record.executions[self.name]}
            if len(ids) > len({number for number, _ in ids}):
                yield f"its links have the ids {sorted(ids)}"
        if not asked.revoked:
            if self.seen.case.seed % 2:
                yield from self._counts("post_execute was sent for", record.post_executed[self.name], ends)
            yield from self._counts("the hook was told", told, hooked)
            yield from (f"hook of {text}" for text in hooks.beyond(told, hooked))
        yield from self._values()

    def _counts(self, what: str, found: Counter[int], want: Counter[int]) -> Iterator[str]:
        if self.exact:
            if +found != +want:
                yield f"{what} {dict(found)}, not {dict(want)}"
            return
        for number, count in (+want).items():
            if found[number] < count:
                yield f"{what} {number} {found[number]} times, not {count}"
        yield from (f"{what} {number}, which must not" for number in found if not want[number])

    def _values(self) -> Iterator[str]:
        job, wanted = self.job, rows_of(self.job, self.django)
        for row in self.rows:
            if job.kind == "iter":
                yield from self._whole(row.result, row.success, row.args)
            elif not self._is_value(row.result, row.args[1], row.success):
                yield f"{row.args[1]} has the result {row.result!r}, success {row.success}"
            elif self.exact and row.attempt_count != attempts_of(job, self.django, row.args[1])[0]:
                yield f"{row.args[1]} has {row.attempt_count} attempts"
        found = Counter(row.success for row in self.rows)
        for success, count in Counter(wanted).items():
            if (
                found[success] < count
                and not (success and self.django.save_limit > 0)
                and not self.asked.revoked
            ):
                yield f"{found[success]} rows have success {success}, not {count}"
        if self.exact and not self.asked.revoked and (extra := +(found - Counter(wanted))):
            yield f"too many rows: {dict(extra)}"
        if job.cached and (self.calls or job.kind == "iter"):
            yield from self._told("the cache has", self.seen.values.get(self.name, [None])[0])
        for told in self.asked.told:
            if job.kind == "task" and self.calls[0] > 1 and str(told).startswith(f"{self.name}:0 fails"):
                continue  # an attempt that failed
            yield from self._told("the caller was told", told)
        if job.kind in ("chain", "group"):
            tasks = sorted(row.pk for row in self.rows)
            if (left := self.seen.left["groups"][self.name]) != (
                want := (tasks, len(tasks), 0, len(tasks) * (len(tasks) % 2))
            ):
                yield f"its group is found and deleted as {left}, not {want}"
        if self.rows and job.kind in ("chain", "group"):
            counts = len(self.rows), sum(not row.success for row in self.rows)
            if self.seen.left["counts"][self.name] != counts:
                yield f"count_group() is {self.seen.left['counts'][self.name]}, not {counts}"

    def _is_value(self, value: Any, number: int, success: bool) -> bool:
        if attempts_of(self.job, self.django, number)[1] != success:
            return False
        text = f"{self.name}:{number}"
        return bool(value == text) if success else str(value).startswith(f"{text} fails")

    def _whole(self, value: Any, success: bool, args: Any) -> Iterator[str]:
        """Check the result of an iterable; *args* has its calls' arguments in the order in which they
        ended."""
        calls = list(ended(self.job, self.django))
        if success != all(each for *_, each in calls):
            yield f"the whole has success {success}: {value!r}"
        elif sorted(number for _, number, *_ in args) != [number for number, *_ in calls]:
            yield f"the whole has the arguments {args!r}"
        elif len(value) != len(args) or not all(
            self._is_value(each, number, attempts_of(self.job, self.django, number)[1])
            for each, (_, number, *_) in zip(value, args, strict=True)
        ):
            yield f"the whole is {value!r}, of {args!r}"

    def _told(self, what: str, value: Any) -> Iterator[str]:
        """Check results returned by result() and result_group()."""
        calls = {number: success for number, _, success in ended(self.job, self.django)}
        values = [value] if self.job.kind == "task" else value
        if not isinstance(values, list) or len(values) != len(calls):
            yield f"{what} {value!r}"
            return
        left = dict(calls)
        for each in values:
            number = next((n for n, success in left.items() if self._is_value(each, n, success)), None)
            if number is None:
                yield f"{what} {value!r}"
                return
            del left[number]
        if (
            self.job.kind == "chain"
            and self.told_time
            and [n for each in values for n in calls if self._is_value(each, n, calls[n])] != list(calls)
        ):
            yield f"{what} {value!r}, in another order"

    def _schedule(self, ran: Counter[int]) -> Iterator[str]:
        job, slots = self.job, self.seen.record.slots[self.name]
        row = self.seen.left["schedules"].get(self.name)
        size = 1 if job.once else job.size
        if self.asked.revoked:
            if job.change == "delete" and row is not None and self.exact:
                yield "was deleted, and is there"
            most = size * attempts_of(job, self.django, 0)[0]
            if self.exact and (ran[0] > most or (job.change == "now" and ran[0] < most)):
                yield f"ran {ran[0]} times, not {most}"
            return
        if job.once and row is not None:
            yield "is for once, and its row is there still"
        if not job.once and (row is None or row.repeats != 0):
            yield f"is left as {row and vars(row)}"
        if not job.intended:
            return
        dues = [each.isoformat()[:21] for each in islice(dues_of(job, self.django), size)]
        if self.told_time:
            # A job before it may take some microseconds.
            if [each[:21] for each in sorted(set(slots))] != dues:
                yield f"was sent for {sorted(set(slots))}, not {dues}"
        elif len(set(slots)) != size:
            yield f"was sent for {sorted(set(slots))}, of which there should be {size}"


def _beyond(seen: Seen, django: Django, known: bool) -> Iterator[str]:
    """Check that as many successes are kept as the limit allows."""
    limit, field = django.save_limit, django.save_limit_per
    if limit <= 0 or seen.stuck:
        return
    there: Counter[Any] = Counter()
    for row in seen.left["rows"].values():
        if row.success:
            there[getattr(row, field) if field else ""] += 1
    yield from (
        f"{count} successes of {key!r} are kept, not {limit}" for key, count in there.items() if count > limit
    )
    if not known or field == "name" or any(asked.revoked for asked in seen.asked):
        return
    want: Counter[Any] = Counter()
    for asked in seen.asked:
        job: Any = asked.order
        key = asked.name if job.kind in ("chain", "group", "schedule") else None
        want[key if field == "group" else "" if field is None else "all"] += sum(rows_of(job, django))
    if field == "func":
        there = Counter(all=there.total())
    for key, count in want.items():
        if there[key] != min(count, limit):
            yield f"{there[key]} successes of {key!r} are kept, not {min(count, limit)} of {count}"
