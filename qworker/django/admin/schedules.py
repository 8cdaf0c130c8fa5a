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

from qworker.django.admin.columns import instant
from qworker.django.admin.exposure import may_schedule_any
from qworker.django.admin.schedule_form import ScheduleForm
from qworker.django.models import Schedule, Task
from qworker.django.models.schedule import link_to

WHAT = ("name", "func", "hook", "args", "kwargs")
WHEN = ("schedule_type", "minutes", "cron", "next_run", "repeats")
LARGE = ("args", "kwargs")


class ScheduleAdmin(admin.ModelAdmin):
    """Schedules, with their last runs."""

    form = ScheduleForm
    list_display = (
        "id", "name", "func", "schedule_type", "repeats", "due", "last_run", "last_success", "cluster",
    )  # fmt: skip
    list_display_links = ("id", "name")
    list_filter = ("next_run", "schedule_type")
    search_fields = ("name", "func")
    show_full_result_count = False
    readonly_fields = ("last_run",)

    class Media:
        css = {"all": ["qworker/admin.css"]}

    def get_queryset(self, request: Any) -> Any:
        last = Task.objects.filter(id=OuterRef("task")).order_by()
        queryset = super().get_queryset(request)
        match = getattr(request, "resolver_match", None)
        if match is not None and (match.url_name or "").endswith("_changelist"):
            queryset = queryset.defer(*(set(LARGE) - set(map(str, self.get_list_display(request)))))
        return queryset.annotate(
            last_task_name=Subquery(last.values("name")),
            last_task_success=Subquery(last.values("success")),
        )

    def get_fieldsets(self, request: Any, obj: Any = None) -> Any:
        """What is called, when, and the rest; as a project has it, where that says so."""
        if self.fields or self.fieldsets:
            return super().get_fieldsets(request, obj)
        names = self.get_fields(request, obj)
        rest = [name for name in names if name not in WHAT + WHEN and (obj or name != "last_run")]
        parts = [(None, WHAT), (_("When"), WHEN)]
        return [
            *((heading, {"fields": [name for name in part if name in names]}) for heading, part in parts),
            (_("More"), {"fields": rest}),
        ]

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        return self._for_user(request, super().get_form(request, obj, change, **kwargs))

    def get_changelist_form(self, request: Any, **kwargs: Any) -> Any:
        """The form of a row, where a project lets rows be edited in the list: it refuses what the page
        does."""
        return self._for_user(request, super().get_changelist_form(request, **{"form": self.form, **kwargs}))

    def _for_user(self, request: Any, form: Any) -> Any:
        permission = f"{self.opts.app_label}.schedule_any_callable"
        return type(form.__name__, (form,), {"may_schedule_any": may_schedule_any(request.user, permission)})

    @admin.display(description=_("Next run"), ordering="next_run")
    def due(self, schedule: Schedule) -> str | None:
        """When it is due next; None for never."""
        return instant(schedule.next_run)

    @admin.display(description=_("Last run"))
    def last_run(self, schedule: Schedule) -> Any:
        """A link to the last task."""
        success = getattr(schedule, "last_task_success", None)
        if success is None:
            return self.get_empty_value_display()
        return link_to(schedule.task, schedule.last_task_name, success, self.admin_site.name)

    @admin.display(description=_("Success"), boolean=True)
    def last_success(self, schedule: Schedule) -> bool | None:
        """Whether the last task succeeded; None if there is none."""
        found: bool | None = getattr(schedule, "last_task_success", None)
        return found
