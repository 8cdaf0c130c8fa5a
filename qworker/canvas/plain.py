"""Plain: convert the arguments of workflows to the form that tasks send, and their times to seconds.

Comes from:  signatures with assigned ids, which may be written into a message or a join long before they are
             published.
Goes to:     ``tasks/task.py``, which converts the arguments.
Thread:      the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from operator import is_
from typing import Any, TypeVar

from qworker.contracts import App, Task

S = TypeVar("S", bound=dict[str, Any])
"""A kind of Signature."""

_LINKS = frozenset(["link", "link_error"])
_TIMES = frozenset(["countdown", "expires"])
"""Options that may be timedeltas, counted from the call and written as seconds."""
_TOLD = _LINKS | _TIMES
MOST_NESTED = 200
"""Maximum depth of links and nesting in a signature: deeper JSON is refused."""


def known_task(call: Mapping[str, Any], app: App | None) -> Task | None:
    """Return the task of *call*, if *app* knows it now."""
    return None if app is None or not app.finalized else app.tasks.get(call["task"])


def sendable(call: S, task: Task | None, kind: type[S]) -> S:
    """Return plain() of *call*. Most calls need no change and are returned at once. task: None if unknown."""
    nothing = (task is None or not task.dumps_arguments) and _TOLD.isdisjoint(call["options"])
    return call if nothing else _plain_signature(call, kind, 0)


def timed(options: Mapping[str, Any]) -> Any:
    """Return *options* with timedeltas converted to seconds; unchanged if there are none."""
    found = {name: options[name] for name in _TIMES & options.keys() if isinstance(options[name], timedelta)}
    if not found:
        return options
    return {**options, **{name: length.total_seconds() for name, length in found.items()}}


def plain(part: Any, kind: type[dict[str, Any]], depth: int = 0) -> Any:
    """Return *part*, a signature (of *kind*) or a part of a workflow, with arguments in the form that tasks
    send, including linked signatures. Unchanged if nothing needs conversion.

    depth: its nesting level. Parts deeper than MOST_NESTED are left unchanged: writing them is refused, and a
    dict received in a message is plain already.
    """
    if depth > MOST_NESTED:
        return part
    if isinstance(part, kind):
        return _plain_signature(part, kind, depth)
    if isinstance(part, list | tuple):
        items: Any = [plain(each, kind, depth) for each in part]
        return part if all(map(is_, items, part)) else items
    if type(part) is dict:
        items = {name: plain(each, kind, depth + 1) for name, each in part.items()}
        return part if all(map(is_, items.values(), part.values())) else items
    return part


def _plain_signature(call: Any, kind: type[dict[str, Any]], depth: int) -> Any:
    args, kwargs, options = call["args"], call["kwargs"], timed(call["options"])
    if call["subtask_type"] is not None:
        kwargs = plain(kwargs, kind, depth)
    elif (task := known_task(call, call._app)) is not None and task.dumps_arguments:
        args, kwargs = task.dump_arguments(args, kwargs, options, partial=not call["immutable"])
    for name in _LINKS:
        linked = options.get(name)
        if linked and (made := plain(linked, kind, depth + 1)) is not linked:
            options = {**options, name: made}
    if args is call["args"] and kwargs is call["kwargs"] and options is call["options"]:
        return call
    changed = call._copy()
    changed.update(args=args, kwargs=kwargs, options=options)
    return changed
