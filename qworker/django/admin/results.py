"""results: the lists of tasks that succeeded and that failed, and their actions.

Comes from:  Django's admin.
Goes to:     the models Success and Failure; ``execution/calls.py``, to send a task again.
Thread:      that of the request.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_permission_codename
from django.db import router, transaction
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from qworker.django.admin import columns
from qworker.django.admin.columns import PICKLED, CappedPaginator, IndexedChangeList, as_text
from qworker.django.admin.pickles import shown
from qworker.django.execution.calls import enqueue
from qworker.django.humanhash import humanize
from qworker.django.models import Failure, Task
from qworker.django.signing import PickleSerializer, SignedPackage
from qworker.errors import QWorkerError
from qworker.interrupts import reraise_interrupt
from qworker.transports.portions import portions

# -- filters: choices from the values of a column, without reading the whole table --

NEWEST = 1000
"""How many of the newest tasks are searched for values, so the cost does not grow with the table."""

MOST = 40
"""Values offered for a column; others can be searched for."""


class RecentValues(admin.SimpleListFilter):
    """Filters by a value that a column of the newest tasks has. Subclasses set title, and parameter_name to
    the column."""

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """Return the latest values with their labels, including the chosen one."""
        rows = model_admin.get_queryset(request).order_by("-stopped", "-id")
        recent = rows.values_list(self.parameter_name, flat=True)[:NEWEST]
        found = set(islice(dict.fromkeys(value for value in recent if value), MOST))
        if self.value():
            found.add(self.value())
        return [(value, value) for value in sorted(found)]

    def queryset(self, request: Any, queryset: Any) -> Any:
        """Return the rows with the chosen value; all if none is chosen."""
        return queryset.filter(**{self.parameter_name: self.value()}) if self.value() else queryset


class GroupFilter(RecentValues):
    """Filters by group."""

    title = _("group")
    parameter_name = "group"


class ClusterFilter(RecentValues):
    """Filters by cluster."""

    title = _("cluster")
    parameter_name = "cluster"


ON_PAGE = {"args": "shown_args", "kwargs": "shown_kwargs", "result": "shown_result"}
"""Pickled columns and the methods that display them, also where a project names the column."""
IN_LIST = {"args": "short_args", "kwargs": "short_kwargs", "result": "short_result"}
"""The same, for lists."""
TRACE = " : Traceback "
"""Separates an error from its traceback."""
MOST_SHOWN = 5
"""Errors shown for one action."""


@admin.action(description=_("Resubmit selected tasks to queue"), permissions=["resubmit"])
def resubmit_tasks(model_admin: Any, request: Any, queryset: Any) -> None:
    """Send the chosen tasks again. A failure is deleted when it is sent."""
    done: Resubmission = resubmit(queryset)
    for name, error in done.errors[:MOST_SHOWN]:
        model_admin.message_user(request, _("%s was not sent: %s") % (name, error), messages.ERROR)
    if not done.sent:
        return
    LogEntry.objects.log_actions(request.user.pk, done.sent, CHANGE, str(_("Resubmitted to the queue.")))
    sent = len(done.sent)
    text = ngettext("%d task was resubmitted.", "%d tasks were resubmitted.", sent) % sent
    model_admin.message_user(request, text, messages.SUCCESS)


def _short(name: str, heading: Any) -> Any:
    """Return a list column with the beginning of a pickled column."""

    @admin.display(description=heading)
    def short(self: Any, task: Task) -> str | None:
        return columns.text_of(task, name, columns.MOST_OF_LIST)

    return short


def _shown(name: str, heading: Any) -> Any:
    """Return a pickled column for the page of a task."""

    @admin.display(description=heading)
    def whole(self: Any, task: Task) -> Any:
        text = columns.text_of(task, name, columns.MOST_OF_PAGE)
        return columns.block(text) or self.get_empty_value_display()

    return whole


def _replaced(names: Iterable[Any], places: Mapping[str, str]) -> list[Any]:
    """Return *names* with pickled columns replaced by the methods that display them."""
    return [places.get(name, name) if isinstance(name, str) else name for name in names]


class ResultAdmin(admin.ModelAdmin):
    """The base of both lists. Results can be read, resubmitted and deleted."""

    actions = [resubmit_tasks]
    search_fields = ("name", "func", "group")
    list_filter = (GroupFilter, ClusterFilter)
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    """Facets count the whole table once for each choice."""
    paginator = CappedPaginator
    sortable_by = ("stopped_at",)
    fields = (
        "id", "name", "func", "hook", "args", "kwargs", "result", "group", "cluster", "started_at",
        "stopped_at", "duration", "success", "attempt_count",
    )  # fmt: skip
    readonly_fields = ("started_at", "stopped_at", "duration")

    class Media:
        css = {"all": ["qworker/admin.css"]}

    def get_queryset(self, request: Any) -> Any:
        """Return the rows without pickles, but with the text of those that are displayed."""
        queryset = super().get_queryset(request).defer(*columns.PICKLED, "package")
        match = getattr(request, "resolver_match", None)
        page = (match.url_name or "") if match is not None and request.method == "GET" else ""
        if page.endswith("_changelist"):
            places = self.get_list_display(request)
            names = [name for name, place in IN_LIST.items() if place in places]
            return columns.with_texts(queryset, names, columns.LARGEST_OF_LIST)
        if page.endswith("_change"):
            return columns.with_texts(queryset, columns.PICKLED, columns.LARGEST_OF_PAGE)
        return queryset

    def get_changelist(self, request: Any, **kwargs: Any) -> Any:
        return IndexedChangeList

    def get_list_display(self, request: Any) -> Any:
        return _replaced(super().get_list_display(request), IN_LIST)

    def get_fields(self, request: Any, obj: Any = None) -> Any:
        return _replaced(super().get_fields(request, obj), ON_PAGE)

    def get_readonly_fields(self, request: Any, obj: Any = None) -> Any:
        return _replaced([*super().get_readonly_fields(request, obj), *ON_PAGE], ON_PAGE)

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_resubmit_permission(self, request: Any) -> bool:
        """Return whether the user may resubmit tasks unchanged: with the permission to change them, which
        allows nothing else here."""
        codename = get_permission_codename("change", self.opts)
        return bool(request.user.has_perm(f"{self.opts.app_label}.{codename}"))

    @admin.display(description=_("Started"), ordering="started")
    def started_at(self, task: Task) -> str | None:
        """Return when it was sent."""
        return columns.instant(task.started)

    @admin.display(description=_("Stopped"), ordering="stopped")
    def stopped_at(self, task: Task) -> str | None:
        """Return when it ended."""
        return columns.instant(task.stopped)

    @admin.display(description=_("Time taken"))
    def duration(self, task: Task) -> str:
        """Return the time from sending to the end."""
        return columns.duration(task.time_taken())

    short_args = _short("args", _("Arguments"))
    short_kwargs = _short("kwargs", _("Keyword arguments"))
    short_result = _short("result", _("Result"))
    shown_args = _shown("args", _("Arguments"))
    shown_kwargs = _shown("kwargs", _("Keyword arguments"))
    shown_result = _shown("result", _("Result"))


class TaskAdmin(ResultAdmin):
    """Tasks that succeeded."""

    list_display = ("name", "func", "started_at", "stopped_at", "duration", "group", "cluster")


class FailAdmin(ResultAdmin):
    """Tasks that failed; the list shows the error of each without its traceback."""

    list_display = ("name", "func", "short_result", "started_at", "stopped_at", "group", "cluster")

    @admin.display(description=_("Result"))
    def short_result(self, task: Task) -> str | None:
        """Return the beginning of the error."""
        text = columns.text_of(task, "result", columns.LARGEST_OF_LIST)
        if text is None:
            return None
        description = text.partition(TRACE)[0].strip()
        # An error without a message has at least a name, in the last line.
        return shown(description or text.strip().rpartition("\n")[2], columns.MOST_OF_LIST)


# -- resubmitting: sends ended tasks again, unchanged --
# Rows of failures and of tasks with options store the original package: the function may have changed its
# arguments, and no other column has the rest of a chain. Tasks that cannot be sent unchanged are not sent.

PORTION = 100
"""Tasks whose arguments are read at once."""
NOT_A_CALL = _("its arguments cannot be read")
OF_THE_RUN = frozenset(["id", "name", "func", "args", "kwargs", "started", "slot"])
"""Keys of a package that are not options for another run."""


class EnqueueCall(NamedTuple):
    """The arguments of enqueue()."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]


@dataclass
class Resubmission:
    """sent: the tasks that were sent. errors: names of the others, and why they were not sent."""

    sent: list[Task] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)


def resubmit(queryset: Any) -> Resubmission:
    """Send the tasks of *queryset* again, with their arguments, options and the rest of their chains.

    A failure is deleted in the transaction in which it is sent, so concurrent requests send it once. Stops at
    the first task that the broker refuses.
    """
    done = Resubmission()
    alias = queryset._db or router.db_for_write(queryset.model)
    rows = queryset.model._base_manager.using(alias)
    keys = list(queryset.order_by("started").values_list("pk", flat=True))
    for some in portions(keys, PORTION):
        texts = {f"{name}_text": as_text(name) for name in ("args", "kwargs")}
        found = rows.defer(*PICKLED).annotate(**texts).in_bulk(some)
        for task in (found[key] for key in some if key in found):
            try:
                call = _call_of(task)
            except Exception as error:  # noqa: BLE001 - a package may contain anything
                reraise_interrupt(error)
                done.errors.append((str(task), f"{NOT_A_CALL}: {type(error).__name__}: {error}"[:200]))
                continue
            try:
                if _send(rows, alias, task, call):
                    done.sent.append(task)
            except QWorkerError as error:
                done.errors.append((str(task), str(error)))
                return done
    return done


def _send(rows: Any, alias: str, task: Task, call: EnqueueCall) -> bool:
    with transaction.atomic(using=alias):
        is_failure = issubclass(type(task), Failure)
        if is_failure and not rows.filter(pk=task.pk, success=False).delete()[0]:
            return False
        enqueue(*call)
    return True


def _call_of(task: Any) -> EnqueueCall:
    """Return the call of *task*. Raises errors of unpickling, and TypeError if it cannot be sent
    unchanged."""
    if task.package:
        package = SignedPackage.loads(task.package)
        options = {name: value for name, value in package.items() if name not in OF_THE_RUN}
        if package["name"] != humanize(package["id"]):
            options["task_name"] = package["name"]
        return EnqueueCall(package["func"], tuple(package["args"]), dict(package["kwargs"]), options)
    args, kwargs = (
        () if text is None else PickleSerializer.loads(b64decode(text))
        for text in (task.args_text, task.kwargs_text)
    )
    if isinstance(args, list):
        raise TypeError("it is the result of an iterable; call async_iter() again")
    if task.package is not None or not isinstance(args, tuple) or not isinstance(kwargs or {}, Mapping):
        raise TypeError("they were not kept")
    options = {"hook": task.hook, "group": task.group, "cluster": task.cluster}
    return EnqueueCall(task.func, args, dict(kwargs or {}), options)
