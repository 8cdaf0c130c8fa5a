"""Retention: of the tasks that succeeded, the newest are kept.

Comes from:  the worker of a cluster, which has one.
Goes to:     the table of ``Task``; what iterables wait with is seen to by ``execution/parts.py``.
Thread:      retention.

``save_limit`` is how many stay, of all or of each group, name or function. A few more may stand there for a
moment: they are deleted together, once a second, and not one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import Error, close_old_connections
from django.db.models import Count

from qworker import QWorker
from qworker.components.component import ThreadComponent
from qworker.django.conf import conf, logger
from qworker.django.execution import connections as task_connections
from qworker.django.execution import parts
from qworker.django.models import Success
from qworker.errors import BackendError
from qworker.interrupts import let_pass

LOOK_SECONDS = 1.0
TIDY_SECONDS = 60.0
"""Between two looks for iterables that nobody ends."""
SHARE = 0.03
"""Of the time that may be spent looking, where a look takes long."""
MOST = 1000
"""Tasks that are deleted in one step."""


class Retention(ThreadComponent):
    """Deletes successes beyond the limit. on_crash: as a ThreadComponent's."""

    name = "retention"

    def __init__(self, app: QWorker, on_crash: Callable[[str, BaseException], None]) -> None:
        super().__init__(app.clock, on_crash)
        self._clock = app.clock
        self._tidy_at = 0.0  # this thread

    def step(self, now: float) -> float:
        task_connections.begin()
        began = self._clock.monotonic()
        try:
            if now >= self._tidy_at:
                parts.tidy()
                self._tidy_at = now + TIDY_SECONDS
            if conf.save_limit <= 0:
                return LOOK_SECONDS * 10
            deleted = sweep()
        except (Error, BackendError) as error:
            let_pass(error)
            task_connections.drop_broken()
            logger.warning("nothing that is old is deleted for now: %s", error)
            return LOOK_SECONDS * 10
        return rest_after(self._clock.monotonic() - began, deleted)

    def quiet(self) -> None:
        """Nothing is taken, and nothing has to end."""

    def closed(self) -> None:
        close_old_connections()


def rest_after(seconds: float, deleted: int) -> float:
    """How long to wait after a look that took so many *seconds*: one of each group reads a whole table."""
    return max(0.0 if deleted >= MOST else LOOK_SECONDS, seconds / SHARE)


def sweep(most: int = MOST) -> int:
    """Delete successes beyond ``save_limit``, about so many of each kind; return how many."""
    limit, field = conf.save_limit, conf.save_limit_per
    if limit <= 0:
        return 0
    if not field:
        return _beyond(Success.objects.all(), limit, most)
    full = (
        Success.objects.order_by().values(field).annotate(number=Count("id")).filter(number__gt=limit)[:most]
    )
    return sum(_beyond(Success.objects.filter(**_same(field, each[field])), limit, most) for each in full)


def _same(field: str, value: Any) -> dict[str, Any]:
    return {f"{field}__isnull": True} if value is None else {field: value}


def _beyond(tasks: Any, limit: int, most: int) -> int:
    """Delete of *tasks* those beyond the newest so many, up to *most*, and what has ended along with the last
    of these. Only the ends of the portion come here: a cluster that is busy has better things to do."""
    ends = tasks.order_by("-stopped", "-id").values_list("stopped", "id")
    newest, oldest = ends[limit:].first(), ends[limit + most - 1 :].first()
    if newest is None:
        return 0
    gone = tasks.filter(stopped__lte=newest[0]).exclude(stopped=newest[0], id__gt=newest[1])
    if oldest is not None:
        gone = gone.filter(stopped__gte=oldest[0])
    return int(gone.order_by()._raw_delete(tasks.db) or 0)
