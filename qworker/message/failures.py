"""What is noted of a failed task beside its message: the error in a line, and the traceback below it.

Comes from:  ``components/ending/outcomes.py``.
Goes to:     the reason that a broker keeps with the message; ``control/failed.py`` reads it.
Thread:      any; pure functions.
"""

from __future__ import annotations

LONGEST_ERROR = 1000
LONGEST_TRACEBACK = 16 * 1024
"""Characters that are kept of either; of a traceback the beginning and the end."""


def about_failure(error: str, traceback: str | None) -> str:
    """The text that says both. error: as ``repr()`` has it."""
    line = " ".join(error.split("\n"))
    line = line if len(line) <= LONGEST_ERROR else f"{line[: LONGEST_ERROR - 1]}…"
    told = traceback or ""
    if len(told) > LONGEST_TRACEBACK:
        told = f"{told[: LONGEST_TRACEBACK // 2]}\n...\n{told[-LONGEST_TRACEBACK // 2 :]}"
    return f"{line}\n{told}" if told else line


def error_and_traceback(text: str) -> tuple[str, str]:
    """Undo about_failure(); "" for no traceback."""
    error, _, traceback = text.partition("\n")
    return error, traceback
