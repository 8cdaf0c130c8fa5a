"""paging: pages of a list whose rows are not all counted, nor sorted.

Comes from:  the lists of tasks.
Goes to:     the database.
Thread:      that of the request.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.utils.functional import cached_property

MOST = 10_000
"""So many rows are counted, and can be paged through; filters and the search lead to all others."""


class IndexedChangeList(ChangeList):
    """A list that is put in the order of the columns in ``sortable_by`` only, also where the address asks for
    others: they have an index, and to sort a million rows without one takes seconds."""

    def get_ordering_field(self, field_name: Any) -> Any:
        return super().get_ordering_field(field_name) if field_name in self.sortable_by else None

    def get_ordering(self, request: Any, queryset: Any) -> list[Any]:
        found: list[Any] = super().get_ordering(request, queryset)
        return found if found != ["-pk"] else [*self._get_default_ordering(), *found]


class AtLeast(int):
    """A number that stands for itself and for all above it."""

    def __str__(self) -> str:
        return f"{int(self)}+"


class CappedPaginator(Paginator):
    """Counts no more than the rows that it pages through: what a count costs does not grow with the table."""

    @cached_property
    def count(self) -> int:
        found: Any = self.object_list
        if not hasattr(found, "query"):
            return int(super().count)
        number = int(found.order_by().values("pk")[: MOST + 1].count())  # none of their large columns
        return AtLeast(MOST) if number > MOST else number
