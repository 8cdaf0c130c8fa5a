"""columns: what lists and pages show of large columns and of times.

Comes from:  the lists and pages of tasks.
Goes to:     the database, for the text of pickled columns; ``pickles``, for their content.
Thread:      that of the request.

A pickled column is read as the text that it is, together with its row, and only up to a size.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Case, ExpressionWrapper, F, TextField, When
from django.db.models.functions import Length
from django.template.defaultfilters import filesizeformat
from django.utils import formats, timezone
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from qworker.django.admin.pickles import Unreadable, read_column, shown, spread

LARGEST_OF_PAGE = 1_000_000
"""Characters of a column that the page of one task reads."""
LARGEST_OF_LIST = 64_000
MOST_OF_PAGE = 10_000
"""Characters of a value that the page of one task shows."""
MOST_OF_LIST = 100
PICKLED = ("args", "kwargs", "result")


def as_text(name: str) -> Any:
    """Return the pickled column *name* as an expression, which is not unpickled when it is read."""
    return ExpressionWrapper(F(name), output_field=TextField())


def with_texts(queryset: Any, names: Iterable[str], largest: int) -> Any:
    """Have the pickled columns *names* read as text along with each row, up to so many characters."""
    found = {}
    for name in names:
        size = Length(as_text(name))
        found[f"{name}_size"] = size
        found[f"{name}_text"] = Case(When(**{f"{name}_size__lte": largest}, then=as_text(name)))
    return queryset.annotate(**found)


def text_of(task: Any, name: str, most: int) -> str | None:
    """Return the content of *task*'s pickled column *name* as text of at most *most* characters; None without
    any.

    Never fails because of the column's content.
    """
    if not hasattr(task, f"{name}_size"):  # it came by a queryset of somebody else
        rows = type(task)._base_manager.using(task._state.db).filter(pk=task.pk)
        task = with_texts(rows, [name], LARGEST_OF_PAGE).only("pk").first()
    size, text = (getattr(task, f"{name}_{what}", None) for what in ("size", "text"))
    if text is None:
        return None if size is None else str(_("(too large to be shown: %s)") % filesizeformat(size))
    try:
        value = read_column(text)
    except Unreadable as error:
        return str(_("(cannot be read: %s)") % error)
    return None if value is None else (shown if most <= MOST_OF_LIST else spread)(value, most)


def block(text: str | None) -> Any:
    """Text as HTML that keeps its lines; None for none."""
    return None if text is None else format_html('<pre class="qworker-block">{}</pre>', text)


def instant(value: datetime | None) -> str | None:
    """A time in the user's zone and way of writing, short, with seconds; None for none."""
    if value is None:
        return None
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    return f"{formats.date_format(local, 'SHORT_DATE_FORMAT')} {local:%H:%M:%S}"


def duration(seconds: float) -> str:
    """Seconds in the user's way of writing: three decimals below a minute, none above an hour."""
    decimals = 3 if seconds < 60 else 1 if seconds < 3600 else 0
    return f"{formats.number_format(round(seconds, decimals), decimals)} s"


# -- paging: pages of a list whose rows are not all counted, nor sorted --

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
    """Counts only the rows that it pages through, so that the cost of a count does not grow with the
    table."""

    @cached_property
    def count(self) -> int:
        found: Any = self.object_list
        if not hasattr(found, "query"):
            return int(super().count)
        number = int(found.order_by().values("pk")[: MOST + 1].count())  # none of their large columns
        return AtLeast(MOST) if number > MOST else number
