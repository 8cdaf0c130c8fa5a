"""schedule_form: what may be saved as a schedule, and by whom.

Comes from:  the admin's page of a schedule.
Goes to:     the model Schedule, which checks its arguments; ``exposure``, which knows what may be chosen.
Thread:      that of the request.

A user without the permission ``schedule_any_callable`` chooses among the functions that are exposed. What
else a schedule calls, that user can only leave as it is: function, hook and arguments, as these say what is
run, too.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from qworker.django import literals
from qworker.django.exposure import exposed_names, hooks_in, is_exposed
from qworker.django.models import Schedule
from qworker.errors import InvalidSchedule

CALLED = ("func", "hook")
ARGUMENTS = ("args", "kwargs")


class ScheduleForm(forms.ModelForm):
    """The form. may_schedule_any: whether its user may name any function; the admin sets it."""

    may_schedule_any = False

    class Meta:
        model = Schedule
        fields = "__all__"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._before = {
            name: getattr(self.instance, name) if self.instance.pk else None for name in CALLED + ARGUMENTS
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
        if self.may_schedule_any:
            return values
        for name in CALLED:
            value = values.get(name)
            if value and value != self._before[name] and not is_exposed(value):
                self.add_error(name, _("You may not schedule this function."))
        if not is_exposed(values.get("func") or ""):
            for name in ARGUMENTS:
                if name in values and (values[name] or "") != (self._before[name] or ""):
                    self.add_error(name, _("You may not change the arguments of this function."))
        self._refuse_hidden_hooks(values)
        return values

    def _refuse_hidden_hooks(self, values: dict[str, Any]) -> None:
        """Arguments can hold options, and these a hook."""
        if "kwargs" not in values or values["kwargs"] == self._before["kwargs"]:
            return
        try:
            hooks = hooks_in(literals.keywords(values["kwargs"]))
        except InvalidSchedule:
            return  # the model says so
        if not all(map(is_exposed, hooks)):
            self.add_error("kwargs", _("You may not schedule this function."))
