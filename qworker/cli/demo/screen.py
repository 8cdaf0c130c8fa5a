"""The demo's terminal output: one line that is redrawn while work runs, or plain lines if there is no
terminal.

Comes from:  driver.
Goes to:     a text stream.
Thread:      main.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TextIO

BLOCKS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 24
PLAIN_STEPS = 4


def bar(fraction: float, width: int, *, ascii_only: bool = False) -> str:
    """Return a bar of *width* characters, *fraction* (0 to 1) of it filled, to an eighth of a character."""
    fraction = min(max(fraction, 0.0), 1.0)
    if ascii_only:
        return ("#" * round(fraction * width)).ljust(width)
    eighths = round(fraction * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (BLOCKS[rest] if rest else "")).ljust(width)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; columns of numbers are right-aligned."""
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    right = [all(cell[:1].isdigit() or cell in ("", "–") for cell in column[1:]) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return [line(headings), line(["─" * width for width in widths]), *(line(row) for row in rows)]


class Screen:
    """Writes to *stream*, depending on whether it is a terminal and can show block characters."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live = stream.isatty()
        encoding = (stream.encoding or "ascii").lower()
        self.ascii_only = not encoding.startswith("utf")
        self._drawn = 0
        self._step = 0

    def say(self, text: str = "") -> None:
        """Print a permanent line."""
        self._clear()
        if self.ascii_only:
            text = (
                text.replace("─", "-").replace("·", "-").replace("–", "-").encode("ascii", "replace").decode()
            )
        self.stream.write(text + "\n")
        self.stream.flush()

    def progress(self, done: int, total: int, note: str) -> None:
        """Redraw the progress line, or, without a terminal, print it at each quarter."""
        fraction = done / total if total else 1.0
        if self.live:
            drawn = bar(fraction, BAR_WIDTH, ascii_only=self.ascii_only)
            text = f"  {done:>5}/{total}  [{drawn}]  {note}"[: shutil.get_terminal_size().columns - 1]
            self.stream.write("\r" + text.ljust(self._drawn))
            self.stream.flush()
            self._drawn = len(text)
        elif int(fraction * PLAIN_STEPS) > self._step:
            self._step = int(fraction * PLAIN_STEPS)
            self.say(f"  {done:>5}/{total}  {note}")

    def _clear(self) -> None:
        if self._drawn:
            self.stream.write("\r" + " " * self._drawn + "\r")
            self._drawn = 0
