"""Arguments: check that a function accepts them, without calling it.

Comes from:  make_task, once per task.
Goes to:     apply_async and similar methods, so that a call with wrong arguments fails in the caller, not in
             the worker.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

Checker = Callable[..., None]

_VARARGS, _VARKEYWORDS, _GENERATOR, _COROUTINE, _ASYNC_GENERATOR = (
    0x04,
    0x08,
    0x20,
    0x80,
    0x200,
)  # code flags; importing inspect takes 10 ms


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return whether *function* is an ``async def``, also through functools.wraps and partial."""
    return bool(_flags(function) & _COROUTINE)


def is_generator_function(function: Callable[..., Any]) -> bool:
    """Return whether *function* is a generator, sync or async, so that calling it runs none of its code."""
    return bool(_flags(function) & (_GENERATOR | _ASYNC_GENERATOR))


def _flags(function: Callable[..., Any]) -> int:
    """Return the code flags of *function*; 0 if it has no code."""
    seen = 0
    while seen < 100 and not hasattr(function, "__code__"):
        inner = getattr(function, "func", None) or getattr(function, "__func__", None)
        if inner is None:
            function = type(function).__call__
            break
        function, seen = inner, seen + 1
    return int(getattr(getattr(function, "__code__", None), "co_flags", 0))


def positional(name: str, args: Any) -> tuple[Any, ...]:
    """Return the ``args=`` of a call of the task *name* as a tuple; () for None.

    Raises TypeError for anything but a sequence of arguments. Text is not one.
    """
    if args is None:
        return ()
    if isinstance(args, str | bytes | Mapping) or not hasattr(args, "__iter__"):
        raise TypeError(
            f"calling {name}: args={args!r:.200} must be a tuple or list of arguments; did you mean "
            f"[{args!r:.200}]?"
        )
    return tuple(args)


def keywords(name: str, kwargs: Any) -> dict[str, Any]:
    """Return the ``kwargs=`` of a call of the task *name* as a dict; {} for None.

    Raises TypeError for anything but a mapping with names as keys.
    """
    if not kwargs:
        return {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise TypeError(f"calling {name}: kwargs={kwargs!r:.200} must be a mapping with names as keys")
    return dict(kwargs)


_PLAIN = frozenset({None, Any, type(None), bool, int, float, str, list, tuple, dict, object})
_PLAIN_NAMES = frozenset({"None", "Any", *(kind.__name__ for kind in _PLAIN if isinstance(kind, type))})


def has_plain_annotations(function: Callable[..., Any]) -> bool:
    """Return whether all annotations of *function*, without evaluation, are types that JSON supports; False
    if they have to be evaluated."""
    try:
        written = getattr(function, "__annotations__", {})
        return all(each in _PLAIN or each in _PLAIN_NAMES for each in written.values())
    except Exception:  # noqa: BLE001 - annotations are the user's code
        return False


def _nothing() -> None:
    pass


def argument_checker(function: Callable[..., Any], bound: bool = False) -> Checker | None:
    """Return a function that raises the same TypeError as a call of *function*.

    It is an empty function with the same parameters, so a check is one call. None for anything but a plain
    Python function. bound: the task passes the first parameter (self).
    """
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not isinstance(function, FunctionType):
        return None
    stars = code.co_flags & (_VARARGS | _VARKEYWORDS)
    count = code.co_argcount + code.co_kwonlyargcount + stars.bit_count()
    empty = _nothing.__code__.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_nlocals=count,
        co_varnames=code.co_varnames[:count],
        co_flags=_nothing.__code__.co_flags | stars,
        co_name=function.__name__,
        co_qualname=function.__qualname__,
    )
    check = FunctionType(empty, {}, function.__name__, function.__defaults__)
    check.__kwdefaults__ = function.__kwdefaults__
    return MethodType(check, None.__class__) if bound else check
