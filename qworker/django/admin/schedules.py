"""schedules: the pages of schedules, and which functions users may schedule.

Comes from:  Django's admin; the setting QWORKER_SCHEDULE_ALLOW and the registered tasks.
Goes to:     the model Schedule; their last tasks, by one subquery for each column.
Thread:      that of the request.

A user who may schedule any importable function can run any program on the workers' machines. That requires a
separate permission; without it, users choose among functions that the project names.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.db.models import OuterRef, Subquery
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

import qworker
from qworker.django.admin.columns import instant
from qworker.django.models import Schedule, Task, literals
from qworker.django.models.schedule import link_to
from qworker.django.transports.packages import options_apart
from qworker.errors import ConfigurationError, InvalidSchedule
from qworker.naming import own_tasks

SETTING = "QWORKER_SCHEDULE_ALLOW"
NOBODY = "exposed"
"""The value of the setting that disables the permission, also for superusers."""
_HARMLESS = frozenset({"hook", "group", "save", "timeout", "cached", "ack_failure", "cluster", "task_name"})
_BUILT_IN = ("celery.", "qworker.")


def may_schedule_any(user: Any, permission: str) -> bool:
    """Return whether *user* may name any function: with *permission*, unless the setting is "exposed"."""
    return getattr(settings, SETTING, ()) != NOBODY and bool(user.has_perm(permission))


def exposed_names() -> list[str]:
    """Return the paths that can be chosen, sorted: the registered tasks, and full names in the setting."""
    registered = own_tasks(_registered())
    return sorted({*registered} | {path for path in _allowed() if "*" not in path})


def is_exposed(path: str) -> bool:
    """Return whether the dotted *path* can be chosen.

    In the setting, ``*`` matches any characters. A pattern covers functions defined in the modules that it
    matches, not functions that they import.
    """
    if path in exposed_names():
        return True
    return any(fnmatchcase(path, pattern) for pattern in _allowed()) and _is_at_home(path)


def is_harmless(options: Mapping[str, Any]) -> bool:
    """Return whether the options of a task name no callables other than exposed hooks."""
    hook = options.get("hook")
    return options.keys() <= _HARMLESS and (hook is None or (isinstance(hook, str) and is_exposed(hook)))


def _is_at_home(path: str) -> bool:
    """Return whether *path* is a callable that is defined there."""
    try:
        found = import_string(path)
    except ImportError:
        return False
    home = f"{getattr(found, '__module__', None)}.{getattr(found, '__qualname__', None)}"
    return callable(found) and home == path


def _registered() -> list[str]:
    """Return the names of the current app's tasks; [] without an app."""
    try:
        return list(qworker.current_app.tasks)
    except ConfigurationError:
        return []


def _allowed() -> tuple[str, ...]:
    found = getattr(settings, SETTING, ())
    return () if isinstance(found, str) else tuple(found)


# -- schedules: who may save what --
# A user without the permission ``schedule_any_callable`` chooses among the exposed functions, and can only
# pause or delete schedules of other functions: function, hook and arguments determine what is run, and the
# times how often.

CALLED = ("func", "hook")
ARGUMENTS = ("args", "kwargs", "intended_date_kwarg")
CALL = CALLED + ARGUMENTS


class ScheduleForm(forms.ModelForm):
    """The form of a schedule. may_schedule_any: whether the user may name any function; set by the admin."""

    may_schedule_any = False

    class Meta:
        model = Schedule
        fields = "__all__"
        widgets = {
            "func": AdminTextInputWidget(attrs={"class": "vLargeTextField"}),
            "hook": AdminTextInputWidget(attrs={"class": "vLargeTextField"}),
            "args": AdminTextareaWidget(attrs={"rows": 3}),
            "kwargs": AdminTextareaWidget(attrs={"rows": 3}),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = {*CALL, *self.fields}
        self._before = {
            name: getattr(self.instance, name, None) if self.instance.pk else None for name in names
        }
        if not self.may_schedule_any:
            for name in CALLED:
                if name in self.fields:
                    self.fields[name] = self._choice(name)

    def _choice(self, name: str) -> forms.ChoiceField:
        """Return a choice field in place of the text field *name*, with the exposed functions and the
        previous value."""
        text = self.fields[name]
        given = self.data.get(self.add_prefix(name)) if self.is_bound else None
        values = {*exposed_names(), *filter(None, (self._before[name], given))}
        return forms.ChoiceField(
            choices=[("", "---------"), *((value, value) for value in sorted(values))],
            required=text.required,
            label=text.label,
            help_text=text.help_text,
        )

    def clean(self) -> dict[str, Any]:
        """Add errors for functions that the user may not schedule."""
        values: dict[str, Any] = super().clean() or {}
        if self.may_schedule_any or self.errors:
            return values
        # Fields that are not in the form stay unchanged.
        call = {name: values.get(name, self._before[name]) or "" for name in CALL}
        changed = [name for name in CALL if call[name] != (self._before[name] or "")]
        wrong = [name for name in CALLED if call[name] and not is_exposed(call[name])]
        # The user may not change the times either, except to pause it.
        changed = changed or [
            name for name in self._before.keys() & values if self._is_changed(name, values[name])
        ]
        if changed and (wrong or not self._options_are_harmless(call["kwargs"])):
            for name in changed:
                self.add_error(name if name in self.fields else None, self._refusal(name, wrong))
        return values

    def _is_changed(self, name: str, value: Any) -> bool:
        """Return whether *value* differs from the database and does more than pause. (The form's own check
        compares with values sent by the browser.)"""
        before = self._before[name]
        if isinstance(before, datetime):
            before = before.replace(microsecond=0)  # the form does not show them
        return (before or "") != (value or "") and not (name == "repeats" and value == 0)

    @staticmethod
    def _refusal(name: str, wrong: list[str]) -> Any:
        if name not in ARGUMENTS or not wrong:
            return _("You may not schedule this function.")
        return _("You may not change the arguments of this function.")

    @staticmethod
    def _options_are_harmless(kwargs: str) -> bool:
        """Return whether no option among the arguments names a callable."""
        try:
            given = literals.keywords(kwargs)
        except InvalidSchedule:
            return True  # the model reports it, and nothing is saved
        if not isinstance(given.get("q_options") or {}, dict):
            return False
        return is_harmless(options_apart(given)[1])


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
        """Return the fieldsets for the call, the times and the rest; the project's own, if set."""
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
        """Return the form for rows that a project makes editable in the list, with the page's checks."""
        return self._for_user(request, super().get_changelist_form(request, **{"form": self.form, **kwargs}))

    def _for_user(self, request: Any, form: Any) -> Any:
        permission = f"{self.opts.app_label}.schedule_any_callable"
        return type(form.__name__, (form,), {"may_schedule_any": may_schedule_any(request.user, permission)})

    @admin.display(description=_("Next run"), ordering="next_run")
    def due(self, schedule: Schedule) -> str | None:
        """Return when it is due next; None for never."""
        return instant(schedule.next_run)

    @admin.display(description=_("Last run"))
    def last_run(self, schedule: Schedule) -> Any:
        """Return a link to the last task."""
        success = getattr(schedule, "last_task_success", None)
        if success is None:
            return self.get_empty_value_display()
        return link_to(schedule.task, schedule.last_task_name, success, self.admin_site.name)

    @admin.display(description=_("Success"), boolean=True)
    def last_success(self, schedule: Schedule) -> bool | None:
        """Return whether the last task succeeded; None if there is none."""
        found: bool | None = getattr(schedule, "last_task_success", None)
        return found
