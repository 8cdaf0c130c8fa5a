"""filters: the values of a column to choose from, without reading the whole table.

Comes from:  the lists of tasks.
Goes to:     the side of the list.
Thread:      that of the request.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

NEWEST = 1000
"""So many of the newest tasks are looked at for values: their number does not grow with the table."""


class RecentValues(admin.SimpleListFilter):
    """The values of a column of the newest tasks. Subclasses say title, and the column: parameter_name."""

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """Each value, with itself to be shown; also the one that was chosen."""
        rows = model_admin.model.objects.order_by("-stopped", "-id")
        found = set(rows.values_list(self.parameter_name, flat=True)[:NEWEST]) - {None, ""}
        if self.value():
            found.add(self.value())
        return [(value, value) for value in sorted(found)]

    def queryset(self, request: Any, queryset: Any) -> Any:
        """The rows that have the chosen value; all of them when none was chosen."""
        return queryset.filter(**{self.parameter_name: self.value()}) if self.value() else queryset


class GroupFilter(RecentValues):
    """By group."""

    title = _("group")
    parameter_name = "group"


class ClusterFilter(RecentValues):
    """By cluster."""

    title = _("cluster")
    parameter_name = "cluster"
