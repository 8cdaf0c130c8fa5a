"""queue: the list of what waits, where the project's database is the broker.

Comes from:  Django's admin.
Goes to:     the model OrmQ, in the database that is the broker.
Thread:      that of the request.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AdminSplitDateTime
from django.utils.translation import gettext_lazy as _

from qworker.django.models import OrmQ
from qworker.transports.sql.schema import DELAYED, LEASED, READY


class QueueForm(forms.ModelForm):
    """The queue of a message, and until when it waits."""

    lock = forms.SplitDateTimeField(
        required=False,
        label=_("Lock until"),
        widget=AdminSplitDateTime,
        help_text=_("No cluster takes it before this. Whoever has it loses it when this is changed."),
    )

    class Meta:
        model = OrmQ
        fields = ("key",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["lock"] = self.instance.lock

    def save(self, commit: bool = True) -> Any:
        """Put what was changed into the message."""
        if "lock" in self.changed_data:
            self.instance.lock = self.cleaned_data["lock"]
        return super().save(commit)


class StateFilter(admin.SimpleListFilter):
    """By state."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, Any]]:
        """The states of a message."""
        return [(str(READY), _("Waits")), (str(DELAYED), _("Waits for its time")), (str(LEASED), _("Held"))]

    def queryset(self, request: Any, queryset: Any) -> Any:
        """The messages in the chosen state; all of them when none was chosen."""
        known = self.value() in {str(READY), str(DELAYED), str(LEASED)}
        return queryset.filter(state=int(self.value())) if known else queryset


class QueueAdmin(admin.ModelAdmin):
    """Messages that wait or are held."""

    form = QueueForm
    list_display = ("id", "key", "task_id", "name", "func", "group", "locked_until")
    fields = ("key", "lock", "task_id", "name", "group", "func", "args", "kwargs", "q_options")
    readonly_fields = ("task_id", "name", "group", "func", "args", "kwargs", "q_options")
    list_filter = (StateFilter,)
    search_fields = ("key",)
    show_full_result_count = False

    def has_add_permission(self, request: Any) -> bool:
        return False

    @admin.display(description=_("Lock until"))
    def locked_until(self, message: OrmQ) -> Any:
        """Until when no cluster takes it."""
        return message.lock
