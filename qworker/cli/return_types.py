"""Return types: whether what a task says it returns can be stored.

Comes from:  doctor, with the function of a task.
Goes to:     the words for the first type that cannot, or None.
Thread:      pure, but for the user's annotations, which are evaluated.
"""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

# What no text format can keep; other classes may have taught the JSON encoder about themselves.
_REFUSED: tuple[type, ...] = (
    complex,
    Generator,
    Iterator,
    AsyncIterator,
    types.FunctionType,
    types.ModuleType,
    memoryview,
    type,
)
_CONTAINERS = frozenset({list, tuple, dict})


def unserialisable(function: Callable[..., Any]) -> str | None:
    """The type in a function's return annotation that no text serializer keeps, in words; None when all is well."""
    try:
        hints = get_type_hints(function)
    except Exception:  # annotations are the user's code, and may name what only type checkers see
        return None
    return _first_bad(hints.get("return"))


def _first_bad(annotation: Any) -> str | None:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType) or origin in _CONTAINERS:
        return next((bad for part in get_args(annotation) if (bad := _first_bad(part)) is not None), None)
    plain = origin or annotation
    if isinstance(plain, type) and issubclass(plain, _REFUSED) and plain is not object:
        return f"{plain.__module__}.{plain.__qualname__}".removeprefix("builtins.")
    return None
