"""schedules: the list of schedules, and the page of one.

Comes from:  Django's admin.
Goes to:     the model Schedule; the last tasks, by one subquery for each column.
Thread:      that of the request.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, Subquery
from django.utils.translation import gettext_lazy as _

from qworker.django.admin.schedule_form import ScheduleForm
from qworker.django.models import Schedule, Task
from qworker.django.models.schedule import link_to


class ScheduleAdmin(admin.ModelAdmin):
    """Schedules, with their last runs."""

    form = ScheduleForm
    list_display = (
        "id", "name", "func", "schedule_type", "repeats", "cluster", "next_run", "last_run", "last_success",
    )  # fmt: skip
    list_display_links = ("id", "name")
    list_filter = ("next_run", "schedule_type")
    search_fields = ("name", "func")
    show_full_result_count = False

    def get_queryset(self, request: Any) -> Any:
        last = Task.objects.filter(id=OuterRef("task")).order_by()
        return (
            super()
            .get_queryset(request)
            .annotate(
                last_task_name=Subquery(last.values("name")),
                last_task_success=Subquery(last.values("success")),
            )
        )

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        made = super().get_form(request, obj, change, **kwargs)
        permission = f"{self.opts.app_label}.schedule_any_callable"
        return type(made.__name__, (made,), {"may_schedule_any": request.user.has_perm(permission)})

    @admin.display(description=_("Last run"))
    def last_run(self, schedule: Schedule) -> str | None:
        """A link to the last task; None if there is none."""
        if schedule.last_task_success is None:
            return None
        return link_to(schedule.task, schedule.last_task_name, schedule.last_task_success)

    @admin.display(description=_("Success"), boolean=True)
    def last_success(self, schedule: Schedule) -> bool | None:
        """Whether the last task succeeded; None if there is none."""
        found: bool | None = schedule.last_task_success
        return found
