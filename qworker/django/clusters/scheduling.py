"""scheduling: sends due rows of ``Schedule``, using beat's ledger and lease.

Comes from:  the worker of a cluster.
Goes to:     the table, read again each time; beat's schedule store, for the lease and slots; the broker.
Thread:      schedules.

Every cluster has a scheduler; among clusters with the same name, one leads. Each due time of a schedule is a
slot that can be taken once, so a crash before the row of the schedule is updated does not send a task twice.
If the ledger is not in the broker, a crash may leave a slot whose task may or may not have been sent. It is
sent again with the same id, and the worker checks whether it has run. Changes of the table, also by update(),
apply from the next read on. If a row is due at a slot that its last task, or an earlier one, has used,
it has been set back, so it gets a new slot, a microsecond later.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import Error, close_old_connections
from django.db.models import Min, Q
from django.utils import timezone

from qworker import QWorker
from qworker.beat.catalog import error_text
from qworker.beat.leadership import AWAY, Scheduling
from qworker.beat.store import EntryState, Firing, Lease, ScheduleStore
from qworker.beat.stores import open_store
from qworker.django.conf import conf, logger
from qworker.django.execution import connections as task_connections
from qworker.django.execution.calls import package_of, signed
from qworker.django.models import Schedule
from qworker.django.transports.packages import envelope_of, options_apart
from qworker.errors import PublishError
from qworker.process.crash_points import crash_point
from qworker.transports.lease import Envelope

NAMESPACE = uuid.UUID("3f0a8a0e-0d2a-5e64-8f6c-6d0a2b9a1c55")
MOST = 500
"""Schedules read at once."""
MOST_MISSED = 1000
"""Missed due times sent after one read, for all schedules together, but at least one for each."""
SENT_AT_ONCE = 100
"""Calls after which those collected are sent, and the lease is renewed."""
LONGEST_REST = 1.0
"""Seconds after which the table is read again, since it may have changed."""
MICROSECOND = 1e-6
MOST_SET_BACK = 1000
"""How many times a schedule may be set back to one due time."""
Ends = dict[str, tuple[Schedule, dict[str, Any]]]
"""Rows and the changes of their fields, by key."""
UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError)
"""Django's errors for a column with an invalid value, which SQLite allows."""


class Scheduler(Scheduling):
    """Sends due rows of the table. on_crash: as for ThreadComponent. store: None opens the app's."""

    name = "schedules"
    log = logger
    away = (*AWAY, Error)
    retry_seconds = 1.0
    longest_rest = LONGEST_REST

    def __init__(
        self, app: QWorker, on_crash: Callable[[str, BaseException], None], store: ScheduleStore | None = None
    ) -> None:
        self._scope = f"django.{conf.prefix}.{conf.cluster_name}"
        self._store = store or open_store(app, self._scope)
        super().__init__(app, on_crash, self._store)
        self._wrong: dict[int, str] = {}  # by key: why a schedule is not sent
        self._look_at = 0.0

    def step(self, now: float) -> float:
        rest = super().step(now)
        if self._away:
            task_connections.drop_broken()
        return rest

    def wrong(self) -> Iterator[str]:
        for key, text in self._wrong.items():
            yield f"the schedule {key} is not sent: {text:.500}"

    def lead(self, lease: Lease, now: float) -> float:
        if now < self._look_at:  # the lease is renewed more often than the table is read
            return self._look_at - now
        task_connections.begin()
        if self._unsure:
            self._send_pending(lease)
            self._unsure = False
        if self._send_due(lease):
            return 0.0
        self._sweep(now)
        try:
            rows = self._rows().exclude(pk__in=list(self._wrong))
            following = rows.aggregate(first=Min("next_run"))["first"]
        except UNREADABLE:  # a next_run that is not a time; _send_due() finds the others
            following = None
        rest = LONGEST_REST if following is None else _seconds(following) - self.clock.now()
        rest = min(rest, LONGEST_REST) if rest > 0 else 0.05
        self._look_at = now + rest
        return rest

    def _rows(self) -> Any:
        mine = Q(cluster=conf.cluster_name)
        if conf.cluster_name == conf.prefix:
            mine |= Q(cluster__isnull=True) | Q(cluster="")
        return Schedule.objects.filter(mine, next_run__isnull=False).exclude(repeats=0)

    def _send_due(self, lease: Lease) -> bool:
        """Send what is due; return whether there may be more."""
        now = _instant(self.clock.now())
        due = self._rows().filter(next_run__lte=now).order_by("next_run", "pk")
        if self._wrong:
            due = due.exclude(pk__in=self._changed_meanwhile())
        rows = self._read(due)
        most = max(1, min(SENT_AT_ONCE, MOST_MISSED // max(1, len(rows))))
        firings: list[Firing] = []
        ends: Ends = {}
        for row in rows:
            try:
                made, changes = self._calls(row, now, most)
            except Exception as error:  # noqa: BLE001 - an invalid schedule must not stop the others
                self._note_wrong(row, error)
                continue
            firings += made
            ends[str(row.pk)] = row, changes
            if len(firings) >= SENT_AT_ONCE:
                self._send(lease, firings, ends)
                lease, firings, ends = self._go_on_leading(), [], {}
        self._send(lease, firings, ends)
        return len(rows) == MOST

    def _send(self, lease: Lease, firings: list[Firing], ends: Ends) -> None:
        """Send *firings*, and update the rows."""
        refused = self._fire(lease, firings, ends)
        if firings:
            crash_point("schedules-sent")
        for row, changes in ends.values():
            if str(row.pk) in refused:
                self._note_wrong(row, refused[str(row.pk)])
                continue
            _change(row, changes)
            logger.info("schedule %s: sent %s", _called(row), changes.get("task"))

    def _send_pending(self, lease: Lease) -> None:
        """Send the tasks of slots left by a crash again: they may not have been sent."""
        slots = self._store.pending()
        rows = Schedule.objects.in_bulk([int(slot.name) for slot in slots])
        envelopes: list[Envelope] = []
        for slot in slots:
            row = rows.get(int(slot.name))
            if row is None:
                continue  # deleted meanwhile
            try:
                envelopes += self._firing(row, _instant(slot.due))[0].envelopes
            except Exception as error:  # noqa: BLE001 - as in _send_due()
                self._note_wrong(row, error)
        if envelopes:
            self.app.broker.sender.push(envelopes)
            logger.warning(
                "sent %d scheduled tasks again: a cluster ended, or its broker failed, while sending them",
                len(envelopes),
                extra={"event": "beat-sent-again"},
            )
        self._store.sent(lease, [(slot.name, slot.due) for slot in slots])

    def _fire(self, lease: Lease, firings: list[Firing], ends: Ends) -> dict[str, Exception]:
        """Send *firings* whose slots are free, and those whose schedule was set back to a past slot. Add the
        ids of the last tasks to *ends*. Return the broker's refusals by schedule name."""
        made, refused = self._sent(lease, firings)
        done = {(each.name, each.due) for each in made}
        again: list[Firing] = []
        for each in firings:
            if (each.name, each.due) not in done and each.name not in refused:
                again += self._set_back(ends[each.name][0], each)
        made, refused_again = self._sent(lease, again)
        for each in made:
            ends[each.name][1]["task"] = each.task_id
        return refused | refused_again

    def _sent(self, lease: Lease, firings: list[Firing]) -> tuple[list[Firing], dict[str, Exception]]:
        """Send *firings*; return those whose slots were free, and the broker's refusals by schedule name."""
        if not firings:
            return [], {}
        try:
            made = self._store.fire(lease, firings, self.app.broker.sender)
        except PublishError as error:
            if len({each.name for each in firings}) == 1:
                return [], {firings[0].name: error}
        else:
            return made, {}
        by_name: dict[str, list[Firing]] = {}
        for each in firings:
            by_name.setdefault(each.name, []).append(each)
        found = [self._sent(lease, some) for some in by_name.values()]
        return (
            [each for made, _ in found for each in made],
            {name: error for _, refused in found for name, error in refused.items()},
        )

    def _set_back(self, row: Schedule, taken: Firing) -> list[Firing]:
        """Return the firing of *row* for a *taken* slot if the row was set back to it. Else return []: the
        cluster that took it died before it updated the row."""
        slots = self._store.slots(taken.name, MOST_SET_BACK)
        noted = max((slot.due for slot in slots if slot.task_id == row.task), default=taken.due - 1)
        if noted < taken.due:
            return []
        times = sum(taken.due <= slot.due < taken.due + MOST_SET_BACK * MICROSECOND for slot in slots)
        return [self._firing(row, _instant(taken.due), times)[0]]

    def _read(self, due: Any) -> list[Schedule]:
        """Return the due rows, without those with invalid columns."""
        try:
            return list(due[:MOST])
        except UNREADABLE:
            return [row for key in due.values_list("pk", flat=True)[:MOST] if (row := self._read_one(key))]

    def _read_one(self, key: int) -> Schedule | None:
        try:
            found: Schedule | None = Schedule.objects.filter(pk=key).first()
        except UNREADABLE as error:
            self._note_wrong(Schedule(pk=key), error)
            return None
        return found

    def _changed_meanwhile(self) -> list[int]:
        """Return the keys of rows that are still invalid; rows that have changed are tried again."""
        self._wrong = {key: text for key, text in self._wrong.items() if self._is_same(key, text)}
        return list(self._wrong)

    def _is_same(self, key: int, text: str) -> bool:
        try:
            row = Schedule.objects.filter(pk=key).first()
        except UNREADABLE:
            return True
        return row is not None and text.endswith(_fingerprint(row))

    def _note_wrong(self, row: Schedule, error: Exception) -> None:
        text = error_text(error)
        logger.error("the schedule %s is not sent: %s", _called(row), text, extra={"event": "entry-wrong"})
        self._wrong[row.pk] = f"{text} {_fingerprint(row)}"

    def _calls(self, row: Schedule, now: datetime, most: int) -> tuple[list[Firing], dict[str, Any]]:
        """Return up to *most* of the calls of *row* that are due at *now*, and the changes of its fields."""
        repeats, due = row.repeats, row.next_run
        made: list[Firing] = []
        task_id = row.task
        for due in _dues(row, now, most):
            firing, task_id = self._firing(row, due)
            made.append(firing)
            repeats -= 1
            if repeats == 0 or row.schedule_type == Schedule.ONCE:
                break
        following = due if row.schedule_type == Schedule.ONCE else row.calculate_next_run(due)
        if not conf.catch_up:
            following = row.first_run_after(following, now)
        if row.schedule_type == Schedule.ONCE:
            repeats = -1 if row.repeats < 0 else 0
        return made, {"repeats": repeats, "next_run": following, "task": task_id}

    def _firing(self, row: Schedule, due: datetime, times: int = 0) -> tuple[Firing, str]:
        """Return the call of *row* for the time *due*, and the id of its task. times: how many calls were
        made for this time before."""
        at = _seconds(due) + times * MICROSECOND
        task_id = uuid.uuid5(NAMESPACE, f"{self._scope}\0{row.pk}\0{round(at * 1e6)}").hex
        kwargs, options = _call_of(row)
        if row.intended_date_kwarg:
            kwargs[row.intended_date_kwarg] = due.isoformat()
        package = package_of(row.func, row.parse_args(), kwargs, {**options, "id": task_id, "slot": at})
        text = signed(package)
        envelopes: list[Envelope] = [envelope_of(text, package, package.get("cluster") or conf.cluster_name)]
        state = EntryState("django", 0.0, at, self.clock.now(), task_id, 0, None)
        return Firing(str(row.pk), at, task_id, envelopes, state), task_id

    def closed(self) -> None:
        super().closed()
        close_old_connections()


def _call_of(row: Schedule) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keywords of *row*'s function, and the options of its tasks. The group and cluster come from
    the schedule or ``q_options``; keywords with these names are passed to the function."""
    given = row.parse_kwargs()
    options = {"group": row.name or str(row.pk), "cluster": None, **dict(given.get("q_options") or {})}
    if row.hook:
        options.setdefault("hook", row.hook)
    return options_apart({**given, "q_options": options})


def _dues(row: Schedule, now: datetime, most: int) -> Iterator[datetime]:
    """Yield the due times of *row* up to *now*, oldest first, at most *most*; only the first without
    ``catch_up``."""
    due = row.next_run
    for _ in range(most if conf.catch_up else 1):
        if due > now:
            return
        yield due
        following = row.calculate_next_run(due)
        if following <= due:
            return
        due = following


def _change(row: Schedule, changes: dict[str, Any]) -> None:
    """Update the row if it is as it was read. Concurrent changes of the repeats or the next run are kept; the
    due slot has passed in any case."""
    due = Schedule.objects.filter(pk=row.pk, next_run=row.next_run)
    same = due.filter(repeats=row.repeats)
    is_once = row.schedule_type == Schedule.ONCE
    if is_once and row.repeats < 0:
        if same.delete()[0]:
            return
    elif same.update(**changes):
        return
    past = {"repeats": 0} if is_once else {"next_run": changes["next_run"]}
    if not due.update(task=changes["task"], **past):
        Schedule.objects.filter(pk=row.pk).update(task=changes["task"])


def _instant(seconds: float) -> datetime:
    """Return epoch *seconds* as in the model: naive if USE_TZ is off."""
    found = datetime.fromtimestamp(seconds, UTC)
    return found if settings.USE_TZ else timezone.make_naive(found)


def _seconds(instant: datetime) -> float:
    aware = instant if timezone.is_aware(instant) else timezone.make_aware(instant)
    return aware.timestamp()


def _called(row: Schedule) -> Any:
    """Return the schedule's name for the log, always on one line."""
    name = row.name or row.pk
    return name if str(name).isprintable() else ascii(name)


def _fingerprint(row: Schedule) -> str:
    """Return a value that changes with the schedule."""
    fields = (
        row.func,
        row.args,
        row.kwargs,
        row.schedule_type,
        row.minutes,
        row.cron,
        row.hook,
        row.next_run,
    )
    return f"[{hash(fields):x}]"
