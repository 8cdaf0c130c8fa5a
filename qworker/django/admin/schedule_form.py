"""schedule_form: what may be saved as a schedule, and by whom.

Comes from:  the admin's page of a schedule.
Goes to:     the model Schedule, which checks its arguments; ``exposure``, which knows what may be chosen.
Thread:      that of the request.

A user without the permission ``schedule_any_callable`` chooses among the functions that are exposed. What
else a schedule calls, that user can only leave as it is, pause, or delete: function, hook and arguments
together say what is run, and the times how often.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.utils.translation import gettext_lazy as _

from qworker.django.admin.exposure import exposed_names, is_exposed, is_harmless
from qworker.django.models import Schedule, literals
from qworker.django.transports.packages import options_apart
from qworker.errors import InvalidSchedule

CALLED = ("func", "hook")
ARGUMENTS = ("args", "kwargs", "intended_date_kwarg")
CALL = CALLED + ARGUMENTS


class ScheduleForm(forms.ModelForm):
    """The form. may_schedule_any: whether its user may name any function; the admin sets it."""

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
        """A list to choose from, in place of the text field *name*: what is exposed, and what was there."""
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
        """Refuse what the user may not name. Errors are those of the form."""
        values: dict[str, Any] = super().clean() or {}
        if self.may_schedule_any or self.errors:
            return values
        # What the form does not ask for stays as it is.
        call = {name: values.get(name, self._before[name]) or "" for name in CALL}
        changed = [name for name in CALL if call[name] != (self._before[name] or "")]
        wrong = [name for name in CALLED if call[name] and not is_exposed(call[name])]
        # When and how often it is called is not for this user either, but to pause it.
        changed = changed or [
            name for name in self._before.keys() & values if self._is_changed(name, values[name])
        ]
        if changed and (wrong or not self._options_are_harmless(call["kwargs"])):
            for name in changed:
                self.add_error(name if name in self.fields else None, self._refusal(name, wrong))
        return values

    def _is_changed(self, name: str, value: Any) -> bool:
        """Whether *value* is another than in the database, and does more than pause. (The form would compare
        with what the browser sends along.)"""
        before = self._before[name]
        if isinstance(before, datetime):
            before = before.replace(microsecond=0)  # the form shows none
        return (before or "") != (value or "") and not (name == "repeats" and value == 0)

    @staticmethod
    def _refusal(name: str, wrong: list[str]) -> Any:
        if name not in ARGUMENTS or not wrong:
            return _("You may not schedule this function.")
        return _("You may not change the arguments of this function.")

    @staticmethod
    def _options_are_harmless(kwargs: str) -> bool:
        """Whether the options among the arguments name nothing that is called."""
        try:
            given = literals.keywords(kwargs)
        except InvalidSchedule:
            return True  # the model says so, and nothing is saved
        if not isinstance(given.get("q_options") or {}, dict):
            return False
        return is_harmless(options_apart(given)[1])
