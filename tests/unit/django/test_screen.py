"""Tables in a terminal: how wide their columns are, and what is cut."""

from __future__ import annotations

import io

import pytest

from qworker.django.monitor import COLUMNS, MEMORY_COLUMNS
from qworker.django.monitoring.screen import Cell, Page, Table, lines_of, show


def lines(headings: tuple[str, ...], *rows: tuple[str, ...], width: int = 79) -> list[str]:
    table = Table(headings, [[Cell(text) for text in row] for row in rows])
    return lines_of(Page([table]), width)


def test_columns_are_alike_where_all_fits_so() -> None:
    head, row = lines(COLUMNS, ("vm", "18076", "Working", "2", "0", "0", "0", "0:00:08"), width=80)
    assert head.split() == list(COLUMNS)
    for heading, text in zip(COLUMNS, row.split(), strict=True):
        assert head.index(heading) // 10 == row.index(text) // 10 or text == "0"


@pytest.mark.parametrize("width", [85, 90, 120])
def test_headings_of_the_memory_fit_a_terminal(width: int) -> None:
    values = ("vm", "18076", "90.8", "21891.84", "24105.55", "57.26", "-", "93.94")
    head, row = lines(MEMORY_COLUMNS, values, width=width)
    assert "  ".join(MEMORY_COLUMNS).split() == head.split()
    assert row.split() == list(values)
    assert max(map(len, (head, row))) <= width


@pytest.mark.parametrize("width", [40, 60])
def test_what_is_too_wide_is_cut_and_parted(width: int) -> None:
    (head, row) = lines(MEMORY_COLUMNS, ("a-very-long-name-of-a-host", *["1"] * 7), width=width)
    assert len(head) <= width
    assert row.split()[0].startswith("a-v")
    assert len(row.split()) == 8


def test_nothing_is_an_empty_table() -> None:
    assert lines((), width=40) == []


def test_what_is_no_terminal_gets_the_page_once() -> None:
    made: list[Page] = []

    def page() -> Page:
        made.append(Page([Table(("A",), [[Cell("1")]])], title="title"))
        return made[-1]

    out = io.StringIO()
    show(page, out=out)
    assert len(made) == 1
    assert out.getvalue().split() == ["title", "A", "1"]
