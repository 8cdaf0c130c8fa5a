"""results: the lists of tasks that succeeded and that failed, and what can be done with them.

Comes from:  Django's admin.
Goes to:     the models Success and Failure; ``resubmitting``, to send a task again.
Thread:      that of the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_permission_codename
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from qworker.django.admin import columns
from qworker.django.admin.filters import ClusterFilter, GroupFilter
from qworker.django.admin.paging import CappedPaginator, IndexedChangeList
from qworker.django.admin.pickles import shown
from qworker.django.admin.resubmitting import Resubmission, resubmit
from qworker.django.models import Task

ON_PAGE = {"args": "shown_args", "kwargs": "shown_kwargs", "result": "shown_result"}
"""Columns that hold pickles, each with what is shown in its place, also where a project names the column."""
IN_LIST = {"args": "short_args", "kwargs": "short_kwargs", "result": "short_result"}
"""The same, of lists."""
TRACE = " : Traceback "
"""What parts an error from where it came from."""
MOST_TOLD = 5
"""Errors of one action that are shown."""


@admin.action(description=_("Resubmit selected tasks to queue"), permissions=["resubmit"])
def resubmit_tasks(model_admin: Any, request: Any, queryset: Any) -> None:
    """Send the chosen tasks again. A failure is deleted as it is sent."""
    done: Resubmission = resubmit(queryset)
    for name, error in done.errors[:MOST_TOLD]:
        model_admin.message_user(request, _("%s was not sent: %s") % (name, error), messages.ERROR)
    if not done.sent:
        return
    LogEntry.objects.log_actions(request.user.pk, done.sent, CHANGE, str(_("Resubmitted to the queue.")))
    told = ngettext("%d task was resubmitted.", "%d tasks were resubmitted.", len(done.sent)) % len(done.sent)
    model_admin.message_user(request, told, messages.SUCCESS)


def _short(name: str, heading: Any) -> Any:
    """The beginning of a pickled column, for lists."""

    @admin.display(description=heading)
    def short(self: Any, task: Task) -> str | None:
        return columns.text_of(task, name, columns.MOST_OF_LIST)

    return short


def _shown(name: str, heading: Any) -> Any:
    """A pickled column, for the page of a task."""

    @admin.display(description=heading)
    def whole(self: Any, task: Task) -> Any:
        text = columns.text_of(task, name, columns.MOST_OF_PAGE)
        return columns.block(text) or self.get_empty_value_display()

    return whole


def _replaced(names: Iterable[Any], places: Mapping[str, str]) -> list[Any]:
    """*names* with what is shown in place of pickles."""
    return [places.get(name, name) if isinstance(name, str) else name for name in names]


class ResultAdmin(admin.ModelAdmin):
    """What the lists of both kinds have in common. Results can be read, sent again and deleted."""

    actions = [resubmit_tasks]
    search_fields = ("name", "func", "group")
    list_filter = (GroupFilter, ClusterFilter)
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    """They count the whole table once for each choice."""
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
        """The rows, without their pickles but for the text of those that the page shows."""
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
        """Whether the user may send tasks again, just as they were: whoever has the permission to change
        them, which allows nothing else here."""
        codename = get_permission_codename("change", self.opts)
        return bool(request.user.has_perm(f"{self.opts.app_label}.{codename}"))

    @admin.display(description=_("Started"), ordering="started")
    def started_at(self, task: Task) -> str | None:
        """When it was sent."""
        return columns.instant(task.started)

    @admin.display(description=_("Stopped"), ordering="stopped")
    def stopped_at(self, task: Task) -> str | None:
        """When it ended."""
        return columns.instant(task.stopped)

    @admin.display(description=_("Time taken"))
    def duration(self, task: Task) -> str:
        """From sending to the end."""
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
    """Tasks that failed; the list shows the error of each, without where it came from."""

    list_display = ("name", "func", "short_result", "started_at", "stopped_at", "group", "cluster")

    @admin.display(description=_("Result"))
    def short_result(self, task: Task) -> str | None:
        """The beginning of the error."""
        text = columns.text_of(task, "result", columns.LARGEST_OF_LIST)
        if text is None:
            return None
        said = text.partition(TRACE)[0].strip()
        # An error without words has at least a name, in the last line.
        return shown(said or text.strip().rpartition("\n")[2], columns.MOST_OF_LIST)
