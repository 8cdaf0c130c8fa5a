"""queue: waiting messages, if the project's database is the broker.

Comes from:  the broker's tables, through the views ``qworker_ormq`` and ``qworker_ormq_owner``.
Goes to:     the admin, and other readers of the queue.
Thread:      any.

Rows are added only by the broker. They can be changed and deleted here.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import connections, models
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from qworker.django.conf import conf
from qworker.django.function_names import function_name
from qworker.django.models.task import shown_as
from qworker.django.signing import SignedPackage
from qworker.errors import QWorkerError
from qworker.transports.sql.schema import DELAYED, LEASED, READY

VIEW, OWNER_VIEW = "qworker_ormq", "qworker_ormq_owner"
_OWN_COLUMNS = frozenset({"id", "name", "group", "func", "args", "kwargs"})
NOT_SAVED = "a row of the queue cannot be saved: use async_task() or Broker.enqueue()"
_TRIGGERED = "sqlite"
"""The database whose views are updated by triggers, which do not report how many rows were changed."""


class QueueRows(models.QuerySet):
    """Messages of the queue."""

    def update(self, **values: Any) -> int:
        """Change the messages; return how many there were."""
        count = self.count() if connections[self.db].vendor == _TRIGGERED else None
        changed = super().update(**values)
        return int(changed if count is None else count)

    update.alters_data = True  # type: ignore[attr-defined]

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete the messages; return their number, and the number by model."""
        count = self.count() if connections[self.db].vendor == _TRIGGERED else None
        deleted, kinds = super().delete()
        return (
            (deleted, kinds) if count is None else (count, {self.model._meta.label: count} if count else {})
        )

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]


class QueueManager(models.Manager.from_queryset(QueueRows)):  # type: ignore[misc]
    """Reads the broker's database: that of ``orm``, or else the router's."""

    def get_queryset(self) -> Any:
        rows = super().get_queryset().select_related("owner")
        return rows if self._db or not conf.orm else rows.using(conf.orm)


class QueueOwner(models.Model):
    """A consumer of the queue, which holds messages until ``lease_until`` (epoch seconds)."""

    id = models.BigIntegerField(primary_key=True)
    name = models.TextField()
    lease_until = models.FloatField()

    class Meta:
        managed = False
        db_table = OWNER_VIEW
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.name)


class OrmQ(models.Model):
    """A message of the queue.

    key: the queue's name. state: 0 waits, 1 waits until ``due``, 2 is held by ``owner``. due and sent are
    epoch seconds. headers and body are the message itself.
    """

    id = models.BigAutoField(primary_key=True)
    key = models.CharField(max_length=100, verbose_name=_("Cluster key"), help_text=_("Name of the queue"))
    state = models.SmallIntegerField(default=READY, editable=False)
    due = models.FloatField(null=True, editable=False)
    owner = models.ForeignKey(
        QueueOwner,
        null=True,
        editable=False,
        db_column="owner",
        db_constraint=False,
        on_delete=models.DO_NOTHING,
        related_name="+",
    )
    sent = models.FloatField(editable=False)
    deliveries = models.IntegerField(default=0, editable=False)
    headers = models.TextField(editable=False)
    body = models.BinaryField()

    objects = QueueManager()
    _lock_was_set = False

    class Meta:
        managed = False
        db_table = VIEW
        verbose_name = _("Queued task")
        verbose_name_plural = _("Queued tasks")
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.key} {self.pk}"

    def save(self, *_args: Any, using: str | None = None, **_kwargs: Any) -> None:
        """Save the queue's name, and the lock only if it was set: a cluster that has taken the message
        meanwhile keeps it. Does nothing if the message no longer exists.

        using: alias of the database; None is the one that it was read from. Raises QWorkerError for a new
        message, which must be sent instead.
        """
        if self._state.adding:
            raise QWorkerError(NOT_SAVED)
        changed: dict[str, Any] = {"key": self.key}
        if self._lock_was_set:
            changed |= {"state": self.state, "due": self.due, "owner": None}
        OrmQ.objects.using(using or self._state.db).filter(pk=self.pk).update(**changed)
        self._lock_was_set = False

    @property
    def lock(self) -> datetime | None:
        """Until when no cluster takes it: the end of its cluster's lease, or the time that it waits for. None
        if it can be taken now. Aware if USE_TZ is set.

        Setting it takes the message from its cluster, which loses the result: with None, any cluster can take
        it at once, with a time, it waits until then.
        """
        if self.state == LEASED:
            owner = self.owner if self.owner_id is not None else None
            return None if owner is None else _instant(owner.lease_until)
        return _instant(self.due) if self.state == DELAYED and self.due is not None else None

    @lock.setter
    def lock(self, until: datetime | None) -> None:
        self._lock_was_set = True
        self.owner = None
        self.state = READY if until is None else DELAYED
        self.due = None if until is None else _aware(until).timestamp()

    @property
    def payload(self) -> str:
        """Return the signed package, as text; "" for a message without one."""
        try:
            ((package,), *_rest) = json.loads(bytes(self.body))
        except (ValueError, TypeError, RecursionError):
            return ""
        return package if isinstance(package, str) else ""

    @payload.setter
    def payload(self, _: str) -> None:
        """Raise QWorkerError: a package cannot be changed here."""
        raise QWorkerError(NOT_SAVED)

    @cached_property
    def task(self) -> dict[str, Any]:
        """Return the content of the package by name; {} for a message without one. If it cannot be read,
        ``id`` is a star and the name of the error."""
        if not self.payload:
            return {}
        try:
            found = SignedPackage.loads(self.payload)
        except Exception as error:  # noqa: BLE001 - a package may contain anything
            return {"id": f"*{type(error).__name__}"}
        return found if isinstance(found, dict) else {"id": f"*{type(found).__name__}"}

    @shown_as(_("Function"))
    def func(self) -> str | None:
        """Return the dotted path of the function; None for a message without a package."""
        function = self.task.get("func")
        return function_name(function) if callable(function) else None if function is None else str(function)

    @shown_as(_("Task id"))
    def task_id(self) -> str | None:
        """Return the id of the task, or a star and an error; see ``task``."""
        return _text(self.task.get("id"))

    @shown_as(_("Name"))
    def name(self) -> str | None:
        """Return the name of the task; None if it has none."""
        return _text(self.task.get("name"))

    @shown_as(_("Group"))
    def group(self) -> str | None:
        """Return the group of the task; None if it has none."""
        return _text(self.task.get("group"))

    @shown_as(_("Arguments"))
    def args(self) -> Any:
        """Return the positional arguments; None for a message without a package."""
        return self.task.get("args")

    @shown_as(_("Keyword arguments"))
    def kwargs(self) -> Any:
        """Return the keyword arguments; None for a message without a package."""
        return self.task.get("kwargs")

    @shown_as(_("Queue options"))
    def q_options(self) -> dict[str, Any]:
        """Return the package's other options, by name."""
        return {name: value for name, value in self.task.items() if name not in _OWN_COLUMNS}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _instant(seconds: float) -> datetime:
    found = datetime.fromtimestamp(seconds, UTC)
    return found if settings.USE_TZ else timezone.make_naive(found, timezone.get_default_timezone())


def _aware(instant: datetime) -> datetime:
    return timezone.make_aware(instant) if timezone.is_naive(instant) else instant
