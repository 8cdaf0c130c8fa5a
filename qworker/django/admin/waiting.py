"""waiting: what a message of the queue tells of its task.

Comes from:  the rows of the queue.
Goes to:     the list of what waits, and the page of one message.
Thread:      that of the request.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from typing import Any

from qworker.django.admin.pickles import StandIn, Unreadable, read
from qworker.django.models import OrmQ
from qworker.django.signing import BadSignature, SignedPackage
from qworker.django.transports.packages import RUN

WRONG = "cannot be read"
"""The name of the reason, in the package of a message that cannot be read."""
OWN = frozenset({"id", "name", "group", "func", "args", "kwargs", WRONG})
"""What is shown by itself; the rest of a package are options."""


@dataclass(frozen=True)
class Headers:
    """What the headers say. args: as text, of a task that comes in no package."""

    task_id: str | None = None
    name: str | None = None
    func: str | None = None
    args: str | None = None


def headers_of(message: OrmQ) -> Headers:
    """Return what the headers of *message* say: nothing where they cannot be read."""
    try:
        found = json.loads(message.headers)
        if not isinstance(found, dict):
            return Headers()
        task, task_id, shadow, args = (found.get(key) for key in ("task", "id", "shadow", "argsrepr"))
        if task != RUN:
            return Headers(_text(task_id), None, _text(task), _text(args))
        (name,) = ast.literal_eval(str(args))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return Headers()
    return Headers(_text(task_id), _text(name), _text(shadow))


def package_of(message: OrmQ) -> dict[str, Any]:
    """Return the package of *message* by name, with stand-ins for what would have to be imported.

    {} for a message that has none; of one that cannot be read only why, under WRONG.
    """
    found: dict[str, Any] | None = message.__dict__.get("_looked_at")
    if found is None:
        found = message.__dict__["_looked_at"] = _read(message)
    return found


def _read(message: OrmQ) -> dict[str, Any]:
    if not message.payload:
        return {}
    try:
        found = read(SignedPackage.verified(message.payload))
    except BadSignature:
        return {WRONG: "BadSignature"}
    except (Unreadable, ValueError) as error:
        return {WRONG: str(error)}
    if not isinstance(found, dict):
        return {WRONG: found.path if isinstance(found, StandIn) else type(found).__name__}
    return {str(name): value for name, value in found.items()}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
