"""results: the lists of tasks that succeeded and that failed, and what can be done with them.

Comes from:  Django's admin.
Goes to:     the models Success and Failure; ``tasks.py``, to send a task again.
Thread:      that of the request.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_permission_codename
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from qworker.django.admin.filters import ClusterFilter, GroupFilter
from qworker.django.models import Failure, Task
from qworker.django.tasks import async_task
from qworker.errors import QWorkerError

BLOBS = ("args", "kwargs", "result")
"""Columns that may be large; a list leaves them in the database."""


def resubmit(task: Task) -> str:
    """Send *task* again, with the same arguments, hook, group and cluster; return the new id.

    Its options go as ``q_options``, so that arguments which are named like options stay arguments.
    """
    options = {"hook": task.hook, "group": task.group, "cluster": task.cluster}
    given = {name: value for name, value in options.items() if value is not None}
    return async_task(task.func, *(task.args or ()), q_options=given, **(task.kwargs or {}))


@admin.action(description=_("Resubmit selected tasks to queue"), permissions=["resubmit"])
def resubmit_tasks(model_admin: Any, request: Any, queryset: Any) -> None:
    """Send the chosen tasks again. A failure is deleted once it has been sent."""
    sent = []
    for task in queryset.defer("result"):
        try:
            resubmit(task)
        except QWorkerError as error:
            model_admin.message_user(request, _("%s was not sent: %s") % (task, error), messages.ERROR)
            break
        sent.append(task)
    if not sent:
        return
    LogEntry.objects.log_actions(request.user.pk, sent, CHANGE, str(_("Resubmitted to the queue.")))
    if issubclass(queryset.model, Failure):
        queryset.model.objects.filter(pk__in=[task.pk for task in sent]).delete()
    told = ngettext("%d task was resubmitted.", "%d tasks were resubmitted.", len(sent)) % len(sent)
    model_admin.message_user(request, told, messages.SUCCESS)


class ResultAdmin(admin.ModelAdmin):
    """What the lists of both kinds have in common. Results can be read, sent again and deleted."""

    actions = [resubmit_tasks]
    search_fields = ("name", "func", "group")
    list_filter = (GroupFilter, ClusterFilter)
    show_full_result_count = False
    fields = (
        "id", "name", "func", "hook", "args", "kwargs", "result", "group", "cluster", "started", "stopped",
        "time_taken", "success", "attempt_count",
    )  # fmt: skip
    readonly_fields = ("time_taken",)

    def get_list_queryset(self, queryset: Any) -> Any:
        """The rows of a list without what it does not show."""
        return queryset.defer(*BLOBS)

    def get_queryset(self, request: Any) -> Any:
        queryset = super().get_queryset(request)
        match = getattr(request, "resolver_match", None)
        is_list = match is not None and (match.url_name or "").endswith("_changelist")
        # Who sends them again reads the arguments, but of what was chosen only.
        return self.get_list_queryset(queryset) if is_list and request.method == "GET" else queryset

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_resubmit_permission(self, request: Any) -> bool:
        """Whether the user may send tasks again: whoever has the permission to change them."""
        codename = get_permission_codename("change", self.opts)
        return bool(request.user.has_perm(f"{self.opts.app_label}.{codename}"))


class TaskAdmin(ResultAdmin):
    """Tasks that succeeded."""

    list_display = ("name", "func", "started", "stopped", "time_taken", "group", "cluster")


class FailAdmin(ResultAdmin):
    """Tasks that failed; the list shows the beginning of each error."""

    list_display = ("name", "func", "started", "stopped", "group", "cluster", "short_result")

    def get_list_queryset(self, queryset: Any) -> Any:
        return queryset.defer("args", "kwargs")

    @admin.display(description=_("Result"))
    def short_result(self, task: Task) -> str:
        """The beginning of the error."""
        return task.short_result
