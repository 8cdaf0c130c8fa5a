"""queue: the list of waiting tasks, if the project's database is the broker.

Comes from:  Django's admin.
Goes to:     the model OrmQ, in the broker's database.
Thread:      that of the request.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AdminSplitDateTime
from django.utils.translation import gettext_lazy as _

from qworker.django.admin.columns import MOST_OF_LIST, MOST_OF_PAGE, CappedPaginator, block, instant
from qworker.django.admin.pickles import StandIn, Unreadable, read, shown, spread
from qworker.django.models import OrmQ
from qworker.django.signing import BadSignature, SignedPackage
from qworker.django.transports.packages import RUN
from qworker.transports.sql.schema import DELAYED, LEASED, READY

OF_PACKAGES = frozenset({"group", "args", "kwargs", "q_options"})
"""Fields that only the body of a message has."""


class QueueForm(forms.ModelForm):
    """Edits the queue of a message, and until when it is locked."""

    lock = forms.SplitDateTimeField(
        required=False,
        label=_("Lock until"),
        widget=AdminSplitDateTime,
        help_text=_(
            "No cluster runs the task before this time. A change takes the task away from the cluster that "
            "holds it."
        ),
    )

    class Meta:
        model = OrmQ
        fields = ("key",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["lock"] = self.instance.lock

    def save(self, commit: bool = True) -> Any:
        """Save the message with the changes."""
        if "lock" in self.changed_data:
            self.instance.lock = self.cleaned_data["lock"]
        return super().save(commit)


class StateFilter(admin.SimpleListFilter):
    """Filters by state."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the states of a message."""
        return [(str(READY), _("Waiting")), (str(DELAYED), _("Delayed")), (str(LEASED), _("Held"))]

    def queryset(self, request: Any, queryset: Any) -> Any:
        """Return the messages in the chosen state; all if none is chosen."""
        known = self.value() in {str(READY), str(DELAYED), str(LEASED)}
        return queryset.filter(state=int(self.value())) if known else queryset


class QueueAdmin(admin.ModelAdmin):
    """Messages that wait or are held. The list reads only headers. The page of a message reads its package
    without importing anything."""

    form = QueueForm
    list_display = ("id", "key", "name", "func", "locked_until", "task_id")
    fields = ("key", "lock", "task_id", "name", "group", "func", "args", "kwargs", "q_options")
    readonly_fields = ("task_id", "name", "group", "func", "args", "kwargs", "q_options")
    list_filter = (StateFilter,)
    search_fields = ("key", "headers")
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = CappedPaginator

    class Media:
        css = {"all": ["qworker/admin.css"]}

    def get_queryset(self, request: Any) -> Any:
        """Return the messages, in a list without the body if no shown column needs it."""
        queryset = super().get_queryset(request)
        match = getattr(request, "resolver_match", None)
        is_list = match is not None and (match.url_name or "").endswith("_changelist")
        shows_packages = OF_PACKAGES & set(map(str, self.get_list_display(request)))
        return queryset.defer("body") if is_list and not shows_packages else queryset

    def has_add_permission(self, request: Any) -> bool:
        return False

    @admin.display(description=_("Lock until"))
    def locked_until(self, message: OrmQ) -> str | None:
        """Return until when no cluster takes it."""
        return instant(message.lock)

    @admin.display(description=_("Task id"))
    def task_id(self, message: OrmQ) -> Any:
        """Return the id of the task."""
        return self._or_empty(headers_of(message).task_id)

    @admin.display(description=_("Name"))
    def name(self, message: OrmQ) -> Any:
        """Return the name of the task; empty for tasks that are not packages."""
        return self._or_empty(headers_of(message).name)

    @admin.display(description=_("Function"))
    def func(self, message: OrmQ) -> Any:
        """Return the function that is called."""
        return self._or_empty(headers_of(message).func)

    @admin.display(description=_("Group"))
    def group(self, message: OrmQ) -> Any:
        """Return the group of the task."""
        found = package_of(message).get("group")
        return self._or_empty(None if found is None else shown(found, MOST_OF_LIST))

    @admin.display(description=_("Arguments"))
    def args(self, message: OrmQ) -> Any:
        """Return the positional arguments, or the reason that they cannot be read."""
        package = package_of(message)
        if WRONG in package:
            return str(_("(cannot be read: %s)") % package[WRONG])
        return self._or_empty(block(_value(package, "args") or headers_of(message).args))

    @admin.display(description=_("Keyword arguments"))
    def kwargs(self, message: OrmQ) -> Any:
        """Return the keyword arguments."""
        return self._or_empty(block(_value(package_of(message), "kwargs")))

    @admin.display(description=_("Queue options"))
    def q_options(self, message: OrmQ) -> Any:
        """Return the package's other options, one on each line."""
        package = package_of(message)
        lines = [f"{name}: {_value(package, name)}" for name in package if name not in OWN]
        return self._or_empty(block("\n".join(lines) or None))

    def _or_empty(self, value: Any) -> Any:
        return self.get_empty_value_display() if value is None else value


def _value(package: dict[str, Any], name: str) -> str | None:
    return None if package.get(name) is None else spread(package[name], MOST_OF_PAGE)


# -- the task of a waiting message --

WRONG = "cannot be read"
"""The key of the reason that a package cannot be read."""
OWN = frozenset({"id", "name", "group", "func", "args", "kwargs", WRONG})
"""Fields with their own display; the others are options."""


@dataclass(frozen=True)
class Headers:
    """The fields in the headers. args: as text, for a task without a package."""

    task_id: str | None = None
    name: str | None = None
    func: str | None = None
    args: str | None = None


def headers_of(message: OrmQ) -> Headers:
    """Return the fields in *message*'s headers; empty if they cannot be read."""
    try:
        found = json.loads(message.headers)
        if not isinstance(found, dict):
            return Headers()
        task, task_id, shadow, args = (found.get(key) for key in ("task", "id", "shadow", "argsrepr"))
        if task != RUN:
            return Headers(_text(task_id), None, _text(task), _text(args))
        (name,) = ast.literal_eval(str(args))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return Headers()
    return Headers(_text(task_id), _text(name), _text(shadow))


def package_of(message: OrmQ) -> dict[str, Any]:
    """Return the fields of *message*'s package, with stand-ins for objects that would have to be imported.

    {} if it has no package. If it cannot be read, only the reason under WRONG.
    """
    found: dict[str, Any] | None = message.__dict__.get("_looked_at")
    if found is None:
        found = message.__dict__["_looked_at"] = _read(message)
    return found


def _read(message: OrmQ) -> dict[str, Any]:
    if not message.payload:
        return {}
    try:
        found = read(SignedPackage.verified(message.payload))
    except BadSignature:
        return {WRONG: "BadSignature"}
    except (Unreadable, ValueError) as error:
        return {WRONG: str(error)}
    if not isinstance(found, dict):
        return {WRONG: found.path if isinstance(found, StandIn) else type(found).__name__}
    return {str(name): value for name, value in found.items()}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
