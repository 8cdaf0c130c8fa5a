"""parts: stores the ended calls of an iterable until all have ended, and then makes one task of them.

Comes from:  ``endings.py``, with a call that has ended; ``clusters/retention.py``, for abandoned iterables.
Goes to:     the table of ``Part``; for the whole iterable, the table of ``Task`` or the cache.
Thread:      the one that ran the call; retention.

``save_limit`` does not delete parts. Ended calls are counted separately: if a part was deleted, the iterable
fails instead of waiting forever. The row of a collected iterable stays for a while, to recognize redelivered
calls.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import Error, router, transaction
from django.db.models import F
from django.utils import timezone

from qworker.django.conf import logger
from qworker.django.execution import cached
from qworker.django.execution.running import TEXT, is_kept, unpacked, values_of
from qworker.django.models import Part, Task
from qworker.django.signing import SignedPackage
from qworker.django.transports import task_rows
from qworker.django.transports.packages import Package
from qworker.errors import EncodeError, Reject
from qworker.interrupts import reraise_interrupt
from qworker.safe_repr import safe_repr

COLLECTED_DAYS = 7.0
"""How long redelivered calls of a collected iterable are recognized."""
HELD_DAYS = 1.0
"""How long the row that locked a schedule's name stays: longer than any transaction."""
SILENT_DAYS = 30.0
"""An iterable fails if no call has ended for that long: its messages are lost."""
MOST = 100
"""Iterables that tidy() handles in one step."""


def add(package: Package) -> None:
    """Store the ended call *package*; the last call makes the task of the iterable.

    Of a repeated call, a success or else the latest end is kept. Nothing is stored once the task was made.
    """
    whole, now, parts = package["group"], timezone.now(), _parts()
    call = {"whole": whole, "started": package["started"], "changed": now}
    if not parts.filter(pk=whole).exists():
        counter = {"row": _whole_of(package), "needed": package["iter_count"], "ended": 0}
        parts.bulk_create([Part(pk=whole, **call, **counter)], ignore_conflicts=True)
    call["row"] = task_rows.pack(values_of(package), parts.db)
    with transaction.atomic(parts.db):
        # The first statement writes, to lock the row, or the SQLite file, before anything is read.
        if not parts.filter(pk=whole, ended__gte=0).update(changed=now):
            return
        there = parts.filter(pk=package["id"]).first()
        if there is None:
            parts.create(pk=package["id"], **call)
            parts.filter(pk=whole).update(ended=F("ended") + 1)
        elif not task_rows.is_success(bytes(there.row)):
            parts.filter(pk=there.pk).update(**call)
    if parts.filter(pk=whole, ended__gte=F("needed")).exists():
        _collect(whole, package)


def tidy() -> int:
    """Import calls that an older cluster has stored as tasks; fail iterables that were silent for
    SILENT_DAYS, and delete those collected long ago; return how many."""
    now, parts = timezone.now(), _parts()
    wholes = parts.filter(needed__isnull=False)
    for whole in wholes.filter(ended__gte=0).order_by("changed").values_list("pk", flat=True)[:MOST]:
        _take_in(whole)
    silent = wholes.filter(ended__gte=0, changed__lt=now - timedelta(days=SILENT_DAYS))
    given_up = list(silent.values_list("pk", flat=True)[:MOST])
    for whole in given_up:
        _give_up(whole)
    held_names = parts.filter(pk=F("whole"), needed=None, changed__lt=now - timedelta(days=HELD_DAYS))
    held_names.delete()  # see schedule()
    old = wholes.filter(ended=Part.COLLECTED, changed__lt=now - timedelta(days=COLLECTED_DAYS))
    gone = list(old.values_list("pk", flat=True)[:MOST])
    parts.filter(pk__in=gone).delete()
    return len(given_up) + len(gone)


def _take_in(whole: str) -> None:
    """Import calls of *whole* that are stored as tasks, as by versions before this table existed: during an
    upgrade, an older cluster may still do that."""
    parts = _parts()
    tasks = Task.objects.using(parts.db).filter(group=whole).exclude(pk=whole)
    try:
        rows = [(task, task_rows.pack(_values_of(task), parts.db)) for task in tasks]
    except Error:
        raise
    except Exception as error:  # noqa: BLE001 - the user's classes
        reraise_interrupt(error)
        logger.error("the results of async_iter() %s cannot be read: %s", whole, safe_repr(error))
        return
    if not rows:
        return
    with transaction.atomic(parts.db):
        if not parts.filter(pk=whole, ended__gte=0).update(changed=timezone.now()):
            return
        for task, row in rows:
            if not parts.filter(pk=task.pk).exists():
                parts.create(pk=task.pk, whole=whole, started=task.started, changed=task.stopped, row=row)
                parts.filter(pk=whole).update(ended=F("ended") + 1)
            tasks.filter(pk=task.pk).delete()
        if parts.filter(pk=whole, ended__gte=F("needed")).exists():
            _give_up(whole)


def _values_of(task: Task) -> dict[str, Any]:
    return {name: getattr(task, name) for name in task_rows.COLUMNS}


def _parts() -> Any:
    return Part.objects.using(router.db_for_write(Part))


def _whole_of(package: Package) -> bytes:
    """Return the package of the iterable that *package* is a call of, without arguments and result."""
    whole = {**package, "id": package["group"], "args": (), "group": None, "hook": None, "result": None}
    whole |= {"cached": package.get("iter_cached"), "iter_count": None, TEXT: None}
    return SignedPackage.dumps(whole).encode()


def _collect(whole: str, package: Package) -> None:
    """Make one task of the parts of *whole*, unless another process has done it, and delete them in the same
    transaction."""
    parts = _parts()
    with transaction.atomic(parts.db):
        if parts.filter(pk=whole, ended__gte=F("needed")).update(changed=timezone.now()):
            store(_made_of(whole, unpacked(_whole_of(package).decode())))
            _forget_parts(whole)


def _give_up(whole: str) -> None:
    """Make a task of the ended calls of *whole*; a failure, unless all have ended."""
    parts = _parts()
    with transaction.atomic(parts.db):
        if not parts.filter(pk=whole, ended__gte=0).update(changed=timezone.now()):
            return
        try:
            store(_made_of(whole, unpacked(bytes(parts.get(pk=whole).row).decode())))
        except Reject as error:
            logger.error("async_iter() %s ends without a result: %s", whole, error)
        _forget_parts(whole)


def _forget_parts(whole: str) -> None:
    parts = _parts()
    parts.filter(whole=whole).exclude(pk=whole).delete()
    parts.filter(pk=whole).update(ended=Part.COLLECTED, row=b"")


def _made_of(whole: str, package: Package) -> Package:
    """Return *package*, that of *whole*, with the results of its calls."""
    parts = _parts()
    calls = list(parts.filter(whole=whole).exclude(pk=whole).order_by("changed", "id"))
    needed = parts.values_list("needed", flat=True).get(pk=whole)
    try:
        found = [task_rows.values_of(bytes(call.row)) for call in calls]
    except Exception as error:  # noqa: BLE001 - the user's classes
        reraise_interrupt(error)
        found, lost = [], f"a result cannot be read: {safe_repr(error)}"
    else:
        lost = f"{needed - len(found)} of {needed} results are missing" if len(found) < needed else ""
    if lost:
        logger.error("async_iter() %s fails: %s", whole, lost)
    return package | {
        "args": [each["args"] for each in found],
        "result": lost or [each["result"] for each in found],
        "success": not lost and all(each["success"] for each in found),
        "started": min((call.started for call in calls), default=package["started"]),
        "stopped": timezone.now(),
    }


def store(whole: Package) -> None:
    """Store the ended iterable *whole* in the cache or the table, if it is to be stored."""
    if whole.get("cached"):
        cached.put(whole)
    elif is_kept(whole):
        try:
            task_rows.save(values_of(whole))
        except EncodeError as error:  # larger than the database accepts
            task_rows.save(values_of({**whole, "success": False, "result": str(error)}))
