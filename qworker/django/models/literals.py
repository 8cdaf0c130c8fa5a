"""literals: parses arguments that are written as text in a form.

Comes from:  the model Schedule, whose arguments are text.
Goes to:     ``ast``; no code is executed.
Thread:      any; pure.
"""

from __future__ import annotations

import ast
from typing import Any

from qworker.errors import InvalidSchedule

_MISTAKES = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
"""Errors of ``ast`` for text that is not a literal."""


def positional(text: str | None) -> tuple[Any, ...]:
    """Return positional arguments from Python literals, such as ``2, -2`` or ``'John'``.

    A tuple has all arguments; anything else is the only one. Empty text means no arguments. Raises
    InvalidSchedule for text that is not a literal.
    """
    if not (text or "").strip():
        return ()
    try:
        value = ast.literal_eval((text or "").strip())
    except _MISTAKES as error:
        raise InvalidSchedule(
            f"{text!r:.200} is not a list of arguments: separate literals by commas, as in 2, -2, 'John'"
        ) from error
    return value if isinstance(value, tuple) else (value,)


def keywords(text: str | None) -> dict[str, Any]:
    """Return keyword arguments from text such as ``word='django', n=2`` or ``{'word': 'django', 'n': 2}``.

    Empty text means no arguments. Raises InvalidSchedule for other text, and for names that are not text.
    """
    text = (text or "").strip()
    if not text:
        return {}
    try:
        return _dictionary(text) if text.startswith("{") else _assignments(text)
    except _MISTAKES as error:
        raise InvalidSchedule(
            f"{text!r:.200} is not a list of keyword arguments: write word='django', n=2 "
            "or {'word': 'django'}"
        ) from error


def _dictionary(text: str) -> dict[str, Any]:
    value = ast.literal_eval(text)
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError("not a dictionary with strings as keys")
    return value


def _assignments(text: str) -> dict[str, Any]:
    call = ast.parse(f"call({text})", mode="eval").body
    if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
        raise ValueError("not only keyword arguments")
    found: dict[str, Any] = {}
    for given in call.keywords:
        if given.arg is None or given.arg in found:
            raise ValueError("a name is missing or given twice")
        found[given.arg] = ast.literal_eval(given.value)
    return found
