"""Exceptions: converts them to data in Celery's format, and back.

Comes from:  execution and the worker (``exception_to_dict``), results (``exception_from_dict``).
Goes to:     the result store; the caller of ``AsyncResult.get``.
Thread:      any.

For security, reading a stored exception imports no module, and calls only exception classes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from qworker import errors, states
from qworker.interrupts import reraise_interrupt
from qworker.message.kombu_json import dumps, too_deep
from qworker.safe_repr import printable, safe_repr

MAX_ARGUMENT = 16 * 1024
"""Maximum characters of JSON for one argument of an exception; longer arguments are cut."""
_LONGEST_NAME = 200
_MANY = 100  # maximum arguments and notes of one exception, and members of its groups in total
_DEEPEST = 20  # maximum nesting of groups
GROUP = "qworker_group"
"""Key for a group's message and members. Only qworker reads it."""
NOTES = "qworker_notes"
"""Key for notes added with add_note(). Only qworker reads it."""

_OURS = {names: kind for kind, names in errors.CELERY_NAMES.items() if kind is not errors.TaskExpired}


def exception_to_dict(exc: BaseException) -> dict[str, Any]:
    """Return ``{"exc_type": name, "exc_message": [arguments], "exc_module": module}`` in kombu's JSON
    dialect. Notes, and the message and members of a group, are under other keys, which Celery ignores.

    Arguments that JSON does not support, or that are very long, are replaced by a short representation.
    """
    return _described(exc, 0, [_MANY])


def _described(exc: BaseException, depth: int, left: list[int]) -> dict[str, Any]:
    """depth: the number of groups around *exc*. left: the number of group members that may still be kept."""
    kind = type(exc)
    name, module = errors.CELERY_NAMES.get(kind) or (kind.__qualname__, kind.__module__)
    try:
        args = tuple(exc.args)[:_MANY]
    except Exception as error:  # noqa: BLE001 - may be a property of a user's class
        reraise_interrupt(error)
        args = ()
    plain: dict[str, Any]
    plain = {"exc_type": name, "exc_message": [_argument(value) for value in args], "exc_module": module}
    try:
        if isinstance(exc, BaseExceptionGroup) and depth < _DEEPEST:
            plain[GROUP] = _members(exc, depth + 1, left)
        notes = getattr(exc, "__notes__", None)
    except Exception as error:  # noqa: BLE001 - as above, or a __getattr__()
        reraise_interrupt(error)
        notes = None
    if isinstance(notes, list):
        plain[NOTES] = [_argument(note) for note in notes[:_MANY] if isinstance(note, str)]
    return plain


def _members(group: BaseExceptionGroup[Any], depth: int, left: list[int]) -> dict[str, Any]:
    members: list[dict[str, Any]] = []
    for each in group.exceptions:
        if left[0] <= 0:
            more = len(group.exceptions) - len(members)
            members.append(exception_to_dict(Exception(f"{more} more of the group are not kept")))
            break
        left[0] -= 1
        members.append(_described(each, depth, left))
    return {"message": _argument(group.message), "exceptions": members}


def _argument(value: Any) -> Any:
    if type(value) is str and len(value) <= MAX_ARGUMENT:
        return value
    try:
        text = dumps(value)
        if len(text) <= MAX_ARGUMENT and not too_deep(text.encode()):
            return value
    except Exception as error:  # noqa: BLE001 - not JSON; user code may raise anything
        reraise_interrupt(error)
    return value[:MAX_ARGUMENT] if type(value) is str else safe_repr(value)


def exception_from_dict(stored: Any) -> BaseException:
    """Return the exception described by `stored`, which `exception_to_dict` or Celery made.

    The class is looked up in imported modules. If it is missing, or not an exception class, it is replaced by
    a class with the same name. A group is restored with its members. Never raises.
    """
    if not isinstance(stored, dict):
        return Exception(stored)
    name, module = _text(stored.get("exc_type"), "Exception"), _text(stored.get("exc_module"), "builtins")
    message = stored.get("exc_message")
    args = tuple(message) if isinstance(message, list | tuple) else () if message is None else (message,)
    kind = _OURS.get((name, module)) or _loaded_class(name, module)
    if kind is errors.TaskRevoked and args == ("expired",):
        kind = errors.TaskExpired
    group = stored.get(GROUP)
    error = _group(kind, name, module, group) if isinstance(group, Mapping) else None
    if error is None:
        error = _instance(kind or _stand_in(name, module), args)
    notes = stored.get(NOTES)
    for note in notes if isinstance(notes, list) else ():
        if isinstance(note, str):
            BaseException.add_note(error, note)
    return error


def _group(
    kind: type[BaseException] | None, name: str, module: str, stored: Mapping[str, Any]
) -> BaseException | None:
    """Return the group with the members in *stored*; None if there are none."""
    found = stored.get("exceptions")
    if not isinstance(found, list) or not found:
        return None
    # Every member is an Exception, because others, such as KeyboardInterrupt, were replaced.
    members = [each for each in map(exception_from_dict, found) if isinstance(each, Exception)]
    if not members:
        return None
    message = str(stored.get("message", ""))
    if kind is not None and issubclass(kind, ExceptionGroup):
        try:
            made = kind(message, members)
            if isinstance(made, ExceptionGroup) and len(made.exceptions) == len(members):
                return made
        except (Exception, SystemExit) as failure:  # noqa: BLE001 - of a user's constructor
            reraise_interrupt(failure)
    if (name, module) == ("BaseExceptionGroup", "builtins"):
        return ExceptionGroup(message, members)
    return _stand_in(name, module, _StandInGroup)(message, members)


def _text(value: Any, default: str) -> str:
    return printable(value)[:_LONGEST_NAME] if isinstance(value, str) and value else default


def _loaded_class(name: str, module: str) -> type[BaseException] | None:
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        # Not getattr(), because the __getattr__ of a module or metaclass might import something.
        try:
            value = vars(value).get(part)
        except TypeError:
            return None
    return value if isinstance(value, type) and issubclass(value, Exception) else None


@lru_cache(256)  # return the same class for the same name, so that `except type(error)` works
def _stand_in(name: str, module: str, base: type[BaseException] | None = None) -> type[BaseException]:
    return type(name.rpartition(".")[2], (base or _StandIn,), {"__module__": module, "__qualname__": name})


class _StandIn(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return exception_from_dict, (exception_to_dict(self),)


class _StandInGroup(ExceptionGroup[Exception]):
    def __reduce__(self) -> tuple[Any, ...]:
        return exception_from_dict, (exception_to_dict(self),)


def _instance(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    try:
        error = kind(*args)
        if isinstance(error, BaseException):
            return error
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - of a user's constructor
        reraise_interrupt(failure)
    try:
        error = kind.__new__(kind, *args)
        error.args = args
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - a user's __new__
        reraise_interrupt(failure)
        return _stand_in(kind.__qualname__, kind.__module__)(*args)
    return error


class RemoteTraceback(Exception):
    """The worker's traceback, as the cause of an exception that is raised in the client."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def exception_of(meta: Mapping[str, Any]) -> BaseException:
    """Return the exception of a failed or revoked task from its metadata, with the worker's traceback as its
    cause."""
    stored = meta["result"]
    if stored is None and meta["status"] == states.REVOKED:
        return errors.TaskRevoked("revoked")
    error = stored if isinstance(stored, BaseException) else exception_from_dict(stored)
    if meta.get("traceback") and error.__cause__ is None:
        error.__cause__ = RemoteTraceback(meta["traceback"])
    return error
