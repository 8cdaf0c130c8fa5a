"""Failures: the record of a failed task, kept with its message: one line for the error, then the traceback.

Comes from:  ``components/ending/outcomes.py``.
Goes to:     the reason that a broker keeps with the message; ``control/failed.py`` reads it.
Thread:      any; pure functions.
"""

from __future__ import annotations

LONGEST_ERROR = 1000
LONGEST_TRACEBACK = 16 * 1024
"""Maximum characters of each. A longer traceback is cut in the middle."""


def about_failure(error: str, traceback: str | None) -> str:
    """Return the text of the record. error: the ``repr()`` of the exception."""
    line = " ".join(error.split("\n"))
    line = line if len(line) <= LONGEST_ERROR else f"{line[: LONGEST_ERROR - 1]}…"
    shown = traceback or ""
    if len(shown) > LONGEST_TRACEBACK:
        shown = f"{shown[: LONGEST_TRACEBACK // 2]}\n...\n{shown[-LONGEST_TRACEBACK // 2 :]}"
    return f"{line}\n{shown}" if shown else line


def error_and_traceback(text: str) -> tuple[str, str]:
    """Split the text of about_failure(); the traceback is "" if there is none."""
    error, _, traceback = text.partition("\n")
    return error, traceback
