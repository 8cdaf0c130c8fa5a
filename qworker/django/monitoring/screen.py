"""screen: shows tables in a terminal, once or live.

Comes from:  ``monitor.py``, which makes the pages.
Goes to:     the terminal, through ``blessed``; any other file, as plain text.
Thread:      main.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

try:
    import blessed
except ImportError:  # then pages are printed once
    blessed = None  # type: ignore[assignment]

REFRESH_SECONDS = 1.0
NARROWEST = 40
WIDTH = 79
"""Width if the output is not a terminal."""
QUIT = ("q", "Q", "\x03")
GAP = "   "
"""Between the cells of a footer."""
HINT = "[Press q to quit]"
NOT_LIVE = "For a live view, install blessed: pip install blessed"

Paint = Callable[[str, str], str]
"""Colors a text. The color is blessed's name, or "" for none."""


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and its color."""

    text: str
    color: str = ""


@dataclass(frozen=True)
class Table:
    """headings: one for each column, or none. rows: each with a cell for each column."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]] = ()


@dataclass(frozen=True)
class Page:
    """title: at the top; "" for none. tables: below each other. footer: lines at the bottom."""

    tables: Sequence[Table]
    title: str = ""
    footer: Sequence[Sequence[Cell]] = field(default_factory=tuple)


def plain(text: str, color: str) -> str:
    """Return *text* without a color."""
    return text


def lines_of(page: Page, width: int, paint: Paint = plain) -> list[str]:
    """Return the lines of *page*, with tables of at most *width* characters (at least 2 per column)."""
    found = [paint(page.title.center(width).rstrip(), "bold")] if page.title else []
    for table in page.tables:
        headings = [Cell(heading, "bold") for heading in table.headings]
        rows = [headings, *table.rows] if headings else table.rows
        if rows:
            widths = _widths(rows, width)
            found += [_line(row, widths, paint) for row in rows]
    if page.footer:
        found.append("")
    return [*found, *(GAP.join(paint(cell.text, cell.color) for cell in row) for row in page.footer)]


def _widths(rows: Sequence[Sequence[Cell]], width: int) -> list[int]:
    """Return the widths of the columns: equal if everything fits, else as wide as their content; the widest
    shrink if that is too much."""
    needed = [max(len(row[place].text) for row in rows) + 1 for place in range(len(rows[0]))]
    alike = max(2, width // len(needed))
    if max(needed) <= alike:
        return [alike] * len(needed)
    while sum(needed) > width and max(needed) > 2:
        needed[needed.index(max(needed))] -= 1
    spare = max(0, width - sum(needed)) // len(needed)
    return [each + spare for each in needed]


def _line(row: Sequence[Cell], widths: Sequence[int], paint: Paint) -> str:
    # Text that is too long for its column is cut; a space separates columns.
    cells = [
        paint(cell.text[: room - 1].center(room - 1), cell.color) + " "
        for cell, room in zip(row, widths, strict=True)
    ]
    return "".join(cells).rstrip()


def show(make: Callable[[], Page], run_once: bool = False, out: TextIO | None = None) -> None:
    """Show the page returned by *make*, refreshed each second until q is pressed.

    run_once: show it once. It is also shown once if *out* (None: standard output) is not the terminal.
    """
    stream = out or sys.stdout
    if run_once or blessed is None or not _is_the_terminal(stream):
        _print(make(), stream)
        if blessed is None and not run_once and stream.isatty():
            stream.write(f"{NOT_LIVE}\n")
        return
    # Not *stream*: a command's stream adds line ends, and blessed reads keys only with standard output.
    terminal = blessed.Terminal()
    try:
        with terminal.fullscreen(), terminal.cbreak(), terminal.hidden_cursor():
            while True:
                _draw(make(), terminal)
                if str(terminal.inkey(timeout=REFRESH_SECONDS)) in QUIT:
                    return
    except KeyboardInterrupt:
        return


def _is_the_terminal(stream: TextIO) -> bool:
    """Return whether *stream* is the terminal whose keys are read."""
    if not (stream.isatty() and sys.stdin.isatty() and sys.__stdout__ is not None):
        return False
    return stream.fileno() == sys.__stdout__.fileno()


def _print(page: Page, stream: TextIO) -> None:
    paint: Callable[[str, str], str] = plain
    width = WIDTH
    if blessed is not None and stream.isatty():
        terminal = blessed.Terminal(stream=stream)
        width, paint = max(NARROWEST, terminal.width), _painter(terminal)
    stream.write("\n".join(lines_of(page, width, paint)) + "\n")


def _draw(page: Page, terminal: Any) -> None:
    width = max(NARROWEST, terminal.width)
    lines = [*lines_of(page, width, _painter(terminal)), "", HINT.center(width).rstrip()]
    # Written over the old screen line by line: clearing it first would flicker.
    text = "".join(f"{line}{terminal.clear_eol}\r\n" for line in lines[: terminal.height - 1])
    terminal.stream.write(f"{terminal.home}{text}{terminal.clear_eos}")
    terminal.stream.flush()


def _painter(terminal: Any) -> Paint:
    return lambda text, color: str(getattr(terminal, color)(text)) if color else text
