"""Tables in a terminal: column widths and truncation."""

from __future__ import annotations

import io

import pytest

from qworker.django.monitor import COLUMNS, MEMORY_COLUMNS
from qworker.django.monitoring.screen import Cell, Page, Table, lines_of, show


def lines(headings: tuple[str, ...], *rows: tuple[str, ...], width: int = 79) -> list[str]:
    table = Table(headings, [[Cell(text) for text in row] for row in rows])
    return lines_of(Page([table]), width)


def test_columns_have_equal_widths_if_they_fit() -> None:
    head, row = lines(COLUMNS, ("vm", "18076", "Working", "2", "0", "0", "0", "0:00:08"), width=80)
    assert head.split() == list(COLUMNS)
    for heading, text in zip(COLUMNS, row.split(), strict=True):
        assert head.index(heading) // 10 == row.index(text) // 10 or text == "0"


@pytest.mark.parametrize("width", [85, 90, 120])
def test_memory_headings_fit_the_terminal(width: int) -> None:
    values = ("vm", "18076", "90.8", "21891.84", "24105.55", "57.26", "-", "93.94")
    head, row = lines(MEMORY_COLUMNS, values, width=width)
    assert "  ".join(MEMORY_COLUMNS).split() == head.split()
    assert row.split() == list(values)
    assert max(map(len, (head, row))) <= width


@pytest.mark.parametrize("width", [40, 60])
def test_wide_cells_are_truncated_and_separated(width: int) -> None:
    (head, row) = lines(MEMORY_COLUMNS, ("a-very-long-name-of-a-host", *["1"] * 7), width=width)
    assert len(head) <= width
    assert row.split()[0].startswith("a-v")
    assert len(row.split()) == 8


def test_empty_table() -> None:
    assert lines((), width=40) == []


def test_page_is_printed_once_without_a_terminal() -> None:
    made: list[Page] = []

    def page() -> Page:
        made.append(Page([Table(("A",), [[Cell("1")]])], title="title"))
        return made[-1]

    out = io.StringIO()
    show(page, out=out)
    assert len(made) == 1
    assert out.getvalue().split() == ["title", "A", "1"]
