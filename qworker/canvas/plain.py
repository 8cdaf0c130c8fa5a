"""Plain: workflows with the arguments of their calls as the tasks send them, and times as they are written.

Comes from:  signatures whose ids are settled: they may be written into a message or a join long before their
             own messages are made.
Goes to:     ``tasks/task.py``, which says how its arguments are sent.
Thread:      the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from operator import is_
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.canvas.signatures import Signature
    from qworker.tasks.task import Task

_LINKS = frozenset(["link", "link_error"])
_TIMES = frozenset(["countdown", "expires"])
"""Options that may be timedeltas: they count from when the call is made, and are written as seconds."""
_TOLD = _LINKS | _TIMES
MOST_NESTED = 200
"""How deep a signature may be linked to others, or stand in them: JSON that is deeper is refused."""


def known_task(call: Signature, app: QWorker | None) -> Task[..., Any] | None:
    """The task of *call*, as far as *app* knows it by now."""
    return None if app is None or not app.finalized else app.tasks.get(call["task"])


def sendable(call: Signature, task: Task[..., Any] | None, kind: type[Signature]) -> Signature:
    """What plain() returns of *call*, which calls *task*; None where that is not known. Most have nothing
    that could be another, which is told here at once."""
    nothing = (task is None or not task.dumps_arguments) and _TOLD.isdisjoint(call["options"])
    return call if nothing else _plain_signature(call, kind, 0)


def timed(options: Mapping[str, Any]) -> Any:
    """*options* with seconds in place of timedeltas; itself where there are none."""
    found = {name: options[name] for name in _TIMES & options.keys() if isinstance(options[name], timedelta)}
    if not found:
        return options
    return {**options, **{name: length.total_seconds() for name, length in found.items()}}


def plain(part: Any, kind: type[Signature], depth: int = 0) -> Any:
    """Return *part*, a signature (of *kind*) or what workflows have of it, with the arguments as their tasks
    send them, those of what is linked to it as well. Itself, where they are so already.

    depth: how deep it stands in others. What is deeper than MOST_NESTED is left as it is: who writes it
    refuses it, and a dict that came in a message has nothing that is not plain.
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


def _plain_signature(call: Signature, kind: type[Signature], depth: int) -> Signature:
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
    changed: Signature = call._copy()
    changed.update(args=args, kwargs=kwargs, options=options)
    return changed
