"""function_names: the names of functions in tables and logs.

Comes from:  code that calls a function, schedules it, or displays waiting tasks.
Goes to:     rows, messages and logs.
Thread:      any; pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def function_name(func: str | Callable[..., Any]) -> str:
    """Return the dotted path of *func*, or its repr() if it has no name."""
    if isinstance(func, str):
        return func
    owner = getattr(func, "__self__", None)
    if not inspect.isclass(owner):
        owner = getattr(func, "__objclass__", None)  # methods of built-in types, such as str.upper
    if owner is not None:
        return f"{owner.__module__}.{owner.__qualname__}.{getattr(func, '__name__', '')}"
    module, name = getattr(func, "__module__", None), getattr(func, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(func)
