"""Checking: validate the dict of a signature, including everything nested in it.

Comes from:  untrusted data: messages, options, and dicts built by hand.
Goes to:     ``signatures``, which makes signatures from checked dicts; ``plan`` and ``tasks/replacement.py``,
             before they examine a workflow.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qworker import canvas
from qworker.errors import PublishError
from qworker.safe_repr import safe_repr

MAX_NESTING = 64
"""Maximum nesting of workflows. A chain in a chain is one chain, and counts once."""
_LISTS = (tuple, list)
_MAPPINGS = (dict, Mapping)
"""isinstance() is fast for a dict and slow for a Mapping."""


def check(value: Any) -> None:
    """Raise PublishError unless *value* is a valid dict of a signature, including everything nested in it.

    No recursion, and every signature is visited once, because dicts may come from untrusted senders.
    """
    waiting: list[tuple[Iterable[Any], int, str]] = [((value,), 0, "a signature")]
    while waiting:
        some, depth, what = waiting.pop()
        if depth > MAX_NESTING:
            raise PublishError(
                f"workflows are nested more than {MAX_NESTING} deep: flatten some, or call the inner ones "
                "from a task"
            )
        for fields in some:
            if (
                not isinstance(fields, Mapping)
                or not isinstance(fields.get("task"), str)
                or not fields["task"]
            ):
                raise PublishError(
                    f"{what} is {safe_repr(fields, 100)}, not a signature: expected task.s(…) or a dict with "
                    "'task'"
                )
            _check_parts(fields["task"], fields, _PARTS)
            options = fields.get("options")
            if options:
                _check_parts(fields["task"], options, _OPTIONS)
                if following := options.get("chain"):
                    waiting.append((following, depth + 1, "a call in a chain"))
            kind = fields.get("subtask_type")
            if kind is None:
                continue
            kwargs = fields.get("kwargs") or {}
            if kind == "graph":
                waiting.append((canvas.graph.members_in(kwargs), depth + 1, "a node of a graph"))
            for name, several in _MEMBERS.get(kind, {}).items():
                if name not in kwargs and several:
                    raise PublishError(f"a {kind} has no {name}: {safe_repr(fields, 100)}")
                members = kwargs.get(name)
                if several and isinstance(members, list | tuple):
                    waiting.append((members, depth + 1, f"a member of a {kind}"))
                elif members is not None or several:
                    waiting.append(((members,), depth + 1, f"the {name} of a {kind}"))


_MEMBERS = {"chain": {"tasks": True}, "group": {"tasks": True}, "chord": {"header": True, "body": False}}
"""The kwargs of each workflow that hold its members, and whether a list is allowed."""


def _check_parts(task: str, fields: Mapping[str, Any], parts: tuple[tuple[str, Any, str], ...]) -> None:
    for name, kinds, expected in parts:
        part = fields.get(name)
        if part is not None and not isinstance(part, kinds):
            raise PublishError(
                f"{name} in the signature of {task:.200} is {safe_repr(part, 100)}, not {expected}"
            )


_PARTS: tuple[tuple[str, Any, str], ...] = (
    ("args", _LISTS, "a list"),
    ("kwargs", _MAPPINGS, "a mapping"),
    ("options", _MAPPINGS, "a mapping"),
    ("subtask_type", str, "text"),
)
_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("task_id", str, "text"),
    ("group_id", str, "text"),
    ("headers", _MAPPINGS, "a mapping"),
    ("chain", _LISTS, "a list of signatures"),
    ("chord", _MAPPINGS, "a signature"),
    ("reply_to", str, "text"),
)
