"""Output: tables, ages, JSON.

Comes from:  the commands.
Goes to:     standard output.
Thread:      main.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def on_screen(errors: bool = False) -> bool:
    """Return whether standard output is a terminal whose cursor can be moved. errors: check standard error
    instead."""
    stream = sys.stderr if errors else sys.stdout
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def print_json(value: Any) -> None:
    """Print a value as JSON: see to_json()."""
    click.echo(to_json(value))


def to_json(value: Any, indent: int | None = 2) -> str:
    """Return a value as JSON; None puts it on one line. Instants are ISO 8601, NaN and infinity are null, and
    values without a JSON type are text."""
    try:
        text = json.dumps(value, indent=indent, default=_text, ensure_ascii=False, allow_nan=False)
    except ValueError:  # a task may return NaN or infinity, which JSON does not have
        value = json.loads(json.dumps(value, default=_text), parse_constant=lambda name: None)
        text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which no stream can write
        text = json.dumps(value, indent=indent, default=_text)
    return text


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[Any]], right: str = "") -> None:
    """Print the table of table()."""
    for line in table(heads, rows, right):
        click.echo(line)


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]], right: str = "") -> list[str]:
    """Return the lines of a table with columns as wide as needed. *right* names the columns of numbers."""
    texts = [[visible("" if cell is None else str(cell)) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(heads), *texts]) for column in range(len(heads))]
    numbers = [head in right.split() for head in heads]
    lines = []
    for line in [list(heads), *texts]:
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def visible(text: str) -> str:
    """Return the text with unprintable characters escaped: received text must not move the cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def age(seconds: float | None) -> str:
    """Return a duration in its largest suitable unit ("3.2 s", "5 min", "2 d"); "" for None."""
    if seconds is None:
        return ""
    seconds = max(seconds, 0.0)
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def size(number: int) -> str:
    """Return a number of bytes in whole megabytes ("23 MB"); "" for 0, which means unknown."""
    return f"{number / 1e6:,.0f} MB" if number else ""


def cut(text: str, most: int) -> str:
    """Return at most *most* characters of a text; the last one is an ellipsis if it was longer."""
    return text if len(text) <= most else text[: most - 1] + "…"


def newest(limit: int) -> str:
    """Return the line below a truncated list."""
    return f"… and more: these are the newest {limit:,} (--limit)."


def count(number: int, noun: str, plural: str = "") -> str:
    """Return "1 message", "2 messages". plural: that of a noun that does not form it with "s"."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
