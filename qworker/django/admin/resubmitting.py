"""resubmitting: tasks that have ended are sent again, just as they were.

Comes from:  the action of the lists of tasks.
Goes to:     ``calls``, which enqueues them.
Thread:      that of the request.

The row of a failure, or of a task with options, has the package that was run: the function may have changed
its arguments since, and no other column has the rest of a chain. What cannot be sent as it was stays.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.db import router, transaction
from django.utils.translation import gettext_lazy as _

from qworker.django.admin.columns import PICKLED, as_text
from qworker.django.execution.calls import enqueue
from qworker.django.humanhash import humanize
from qworker.django.models import Failure, Task
from qworker.django.signing import PickleSerializer, SignedPackage
from qworker.errors import QWorkerError
from qworker.interrupts import let_pass

PORTION = 100
"""Tasks whose arguments are read at a time."""
NOT_A_CALL = _("its arguments cannot be read")
OF_THE_RUN = frozenset(["id", "name", "func", "args", "kwargs", "started", "slot"])
"""Keys of a package that are no options for another run."""


class Call(NamedTuple):
    """What enqueue() takes."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]


@dataclass
class Resubmission:
    """sent: the tasks that were sent again. errors: of others the names, and why they were not."""

    sent: list[Task] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)


def resubmit(queryset: Any) -> Resubmission:
    """Send the tasks of *queryset* again, with the same arguments and options, and the rest of their chains.

    A failure goes from its table in the transaction in which it is sent, so that two people who ask at once
    send it once. Where the broker cannot take one the others stay, too.
    """
    done = Resubmission()
    alias = queryset._db or router.db_for_write(queryset.model)
    rows = queryset.model._base_manager.using(alias)
    keys = list(queryset.order_by("started").values_list("pk", flat=True))
    for start in range(0, len(keys), PORTION):
        texts = {f"{name}_text": as_text(name) for name in ("args", "kwargs")}
        found = rows.defer(*PICKLED).annotate(**texts).in_bulk(keys[start : start + PORTION])
        for task in (found[key] for key in keys[start : start + PORTION] if key in found):
            try:
                call = _call_of(task)
            except Exception as error:  # noqa: BLE001 - it may hold anything, and the others are sent
                let_pass(error)
                done.errors.append((str(task), f"{NOT_A_CALL}: {type(error).__name__}: {error}"[:200]))
                continue
            try:
                if _send(rows, alias, task, call):
                    done.sent.append(task)
            except QWorkerError as error:
                done.errors.append((str(task), str(error)))
                return done
    return done


def _send(rows: Any, alias: str, task: Task, call: Call) -> bool:
    with transaction.atomic(using=alias):
        is_failure = issubclass(type(task), Failure)
        if is_failure and not rows.filter(pk=task.pk, success=False).delete()[0]:
            return False
        enqueue(*call)
    return True


def _call_of(task: Any) -> Call:
    """Raises what unpickling raises, and TypeError for what cannot be sent as it was."""
    if task.package:
        package = SignedPackage.loads(task.package)
        options = {name: value for name, value in package.items() if name not in OF_THE_RUN}
        if package["name"] != humanize(package["id"]):
            options["task_name"] = package["name"]
        return Call(package["func"], tuple(package["args"]), dict(package["kwargs"]), options)
    args, kwargs = (
        () if text is None else PickleSerializer.loads(b64decode(text))
        for text in (task.args_text, task.kwargs_text)
    )
    if isinstance(args, list):
        raise TypeError("it is the result of an iterable; call async_iter() again")
    if task.package is not None or not isinstance(args, tuple) or not isinstance(kwargs or {}, Mapping):
        raise TypeError("they were not kept")
    options = {"hook": task.hook, "group": task.group, "cluster": task.cluster}
    return Call(task.func, args, dict(kwargs or {}), options)
