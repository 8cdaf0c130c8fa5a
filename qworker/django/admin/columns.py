"""columns: displays large columns and times in lists and pages.

Comes from:  the lists and pages of tasks.
Goes to:     the database, for the text of pickled columns; ``pickles``, for their content.
Thread:      that of the request.

A pickled column is read as text with its row, only up to a size.
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
    """Return an expression for the pickled column *name* that is not unpickled when it is read."""
    return ExpressionWrapper(F(name), output_field=TextField())


def with_texts(queryset: Any, names: Iterable[str], largest: int) -> Any:
    """Add the text of the pickled columns *names* to each row, if it has at most *largest* characters."""
    found = {}
    for name in names:
        size = Length(as_text(name))
        found[f"{name}_size"] = size
        found[f"{name}_text"] = Case(When(**{f"{name}_size__lte": largest}, then=as_text(name)))
    return queryset.annotate(**found)


def text_of(task: Any, name: str, most: int) -> str | None:
    """Return the content of *task*'s pickled column *name* as text of at most *most* characters; None if it
    is empty. Never fails because of the content.
    """
    if not hasattr(task, f"{name}_size"):  # it was read by another queryset
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
    """Return *text* as HTML that keeps its lines; None for None."""
    return None if text is None else format_html('<pre class="qworker-block">{}</pre>', text)


def instant(value: datetime | None) -> str | None:
    """Return a time in the user's time zone and format, with seconds; None for None."""
    if value is None:
        return None
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    return f"{formats.date_format(local, 'SHORT_DATE_FORMAT')} {local:%H:%M:%S}"


def duration(seconds: float) -> str:
    """Return *seconds* in the user's format: three decimals below a minute, none from an hour on."""
    decimals = 3 if seconds < 60 else 1 if seconds < 3600 else 0
    return f"{formats.number_format(round(seconds, decimals), decimals)} s"


# -- paging: of lists that are too long to count or sort --

MOST = 10_000
"""Rows that are counted and can be paged through; others are found by filters and the search."""


class IndexedChangeList(ChangeList):
    """A list that can be sorted only by the columns in ``sortable_by``, even if the URL requests others: only
    these have an index, without which sorting a million rows takes seconds."""

    def get_ordering_field(self, field_name: Any) -> Any:
        return super().get_ordering_field(field_name) if field_name in self.sortable_by else None

    def get_ordering(self, request: Any, queryset: Any) -> list[Any]:
        found: list[Any] = super().get_ordering(request, queryset)
        return found if found != ["-pk"] else [*self._get_default_ordering(), *found]


class AtLeast(int):
    """A number shown with a plus sign: there may be more."""

    def __str__(self) -> str:
        return f"{int(self)}+"


class CappedPaginator(Paginator):
    """Counts only the rows that can be paged through, so the cost does not grow with the table."""

    @cached_property
    def count(self) -> int:
        found: Any = self.object_list
        if not hasattr(found, "query"):
            return int(super().count)
        number = int(found.order_by().values("pk")[: MOST + 1].count())  # without their large columns
        return AtLeast(MOST) if number > MOST else number
