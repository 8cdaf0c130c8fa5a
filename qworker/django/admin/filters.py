"""filters: the values of a column to choose from, without reading the whole table.

Comes from:  the lists of tasks.
Goes to:     the side of the list.
Thread:      that of the request.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

NEWEST = 1000
"""So many of the newest tasks are looked at for values: their number does not grow with the table."""

MOST = 40
"""Values of a column to choose from; the search finds all others."""


class RecentValues(admin.SimpleListFilter):
    """The values of a column of the newest tasks. Subclasses say title, and the column: parameter_name."""

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """The values that came last, each with itself to be shown; also the one that was chosen."""
        rows = model_admin.get_queryset(request).order_by("-stopped", "-id")
        recent = rows.values_list(self.parameter_name, flat=True)[:NEWEST]
        found = set(islice(dict.fromkeys(value for value in recent if value), MOST))
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
