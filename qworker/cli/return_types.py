"""Return types: whether what a task says it returns can be stored as JSON.

Comes from:  doctor, with the function of a task.
Goes to:     the name of the first type that cannot, or None.
Thread:      pure, but for the user's annotations, which are evaluated.
"""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Set
from typing import Any, Protocol, Union, get_args, get_origin, get_type_hints

from kombu.utils import json as kombu_json

from qworker.tasks.forms import Forms

FORMS = Forms(exact=False)
"""Of what a task may return since it is dumped by its annotation."""
_PLAIN = (str, int, float, list, tuple, dict, bytes, types.NoneType)
_CONTAINERS = frozenset({list, tuple, dict})


def unserialisable(function: Callable[..., Any]) -> str | None:
    """Return the type in a function's return annotation that JSON does not keep; None when there is none, or
    it is not known."""
    try:
        hints = get_type_hints(function)
    except Exception:  # noqa: BLE001
        # Annotations are the user's code, and may name what only type checkers see.
        return None
    return _first_bad(hints.get("return", Any))


def _first_bad(annotation: Any, beside: bool = False) -> str | None:
    """beside: it is one of several, of which a worker cannot tell which one a value is."""
    if not beside and FORMS.of(annotation).typed:
        return None
    origin, parts = get_origin(annotation), get_args(annotation)
    if (is_union := origin in (Union, types.UnionType)) or origin in _CONTAINERS:
        within = beside or is_union
        return next((bad for part in parts if (bad := _first_bad(part, within)) is not None), None)
    plain = origin or annotation
    if not isinstance(plain, type) or _storable(plain):
        return None
    return f"{plain.__module__}.{plain.__qualname__}".removeprefix("builtins.")


def _storable(kind: type) -> bool:
    """Whether values of a class are, or may be, what the JSON encoder takes."""
    if kind is object or kind is Any or hasattr(kind, "__json__") or issubclass(kind, _PLAIN):
        return True
    if Protocol in kind.__mro__ or getattr(kind, "_is_protocol", False):
        return True
    if kind.__module__ in ("collections.abc", "typing"):  # Mapping and Sequence may be dict and list
        return issubclass(kind, Collection) and not issubclass(kind, (Set, Iterator, AsyncIterator))
    return any(issubclass(kind, known) for known in getattr(kombu_json, "_encoders", ()))
