"""Hints: the annotations of a function or a dataclass, evaluated as far as they can be.

Comes from:  ``typed_calls``, with the function of a task; ``forms``, with a dataclass.
Goes to:     the same, by the names of parameters and fields.
Thread:      any; evaluating annotations runs the user's code.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from typing import Any

from qworker.interrupts import let_pass


def hints_of(thing: Any) -> dict[str, Any]:
    """Return the annotations of a function or dataclass, evaluated, by name. Those that cannot be are left
    out: they may name what is there for type checkers only."""
    try:
        return typing.get_type_hints(thing)
    except Exception as error:  # noqa: BLE001 - annotations are the user's code
        let_pass(error)
    if isinstance(thing, type):
        written = {field.name: field.type for field in dataclasses.fields(thing)}
        names = getattr(sys.modules.get(thing.__module__), "__dict__", {})
    else:
        written, names = _annotations(thing), getattr(thing, "__globals__", {})
    hints: dict[str, Any] = {}
    for name, annotation in written.items():
        try:
            one = types.SimpleNamespace(__annotations__={name: annotation})
            hints |= typing.get_type_hints(one, names)
        except Exception as error:  # noqa: BLE001 - as above
            let_pass(error)
    return hints


def _annotations(function: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
    return dict(getattr(function, "__annotations__", {}))
