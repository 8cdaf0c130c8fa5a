"""Outline: the structure of a workflow, stored so that its progress can be displayed.

Comes from:  publishing, which stores the outline of a called workflow with joins, or of every workflow with
             the setting ``result_extended``.
Goes to:     ``workflow``, which reads the results of the calls in it.
Thread:      any.

An outline is plain data: the steps of a line of calls, in order. A call is ``[id, name]``, followed by
``"IGNORED"`` if its result is not kept. A group is ``[id, None, [line of each member]]``. A graph is a group
of its nodes, followed by ``{name: [names that it waits for]}`` in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker import states
from qworker.errors import DamagedResult, NotSupported

if TYPE_CHECKING:
    from qworker.backends.base import Backend

Line = Sequence[Sequence[Any]]
"""Tuples when made, because they take less memory for large groups; lists when read."""

_KEY = "qworker-workflow-"
MOST_GROUPS = 16
"""Maximum number of groups in one line whose ids refer to its outline."""


class Outline(NamedTuple):
    """line: the steps in order. parent: the id of the task that called the workflow, if any."""

    line: Line
    parent: str | None


def outlined(step: Mapping[str, Any], is_ignored: Callable[[Any], bool]) -> Line:
    """Return the line of *step*, a signature or workflow with assigned ids."""
    kind, kwargs, identity = step["subtask_type"], step["kwargs"], step["options"].get("task_id")
    if kind == "chain":
        return [each for member in kwargs["tasks"] for each in outlined(member, is_ignored)]
    if kind == "chord":
        return [*outlined(kwargs["header"], is_ignored), *outlined(kwargs["body"], is_ignored)]
    if kind == "group":
        return [[identity, None, [outlined(each, is_ignored) for each in kwargs["tasks"]]]]
    if kind == "graph":
        nodes = [outlined(each, is_ignored) for each in kwargs["nodes"].values()]
        after = {name: sorted({*kwargs["after"].get(name, {}).values()}) for name in kwargs["nodes"]}
        gathered = kwargs.get("gathered")
        return [[identity, None, nodes, after], *(outlined(gathered, is_ignored) if gathered else ())]
    call = identity, step["task"]
    return ((*call, states.IGNORED) if is_ignored(step) else call,)


def has_joins(steps: Line) -> bool:
    """Return whether a call follows a group in *steps*; then no result names the calls after the group."""
    return any(name is None for _, name, *_ in steps[:-1])


def keep(backend: Backend, line: Line, parent: str | None, kept: float = 0.0) -> None:
    """Store the outline of a workflow, with the ids of its last step and of the groups before it as keys, for
    *kept* seconds longer than results. Raises BackendError, and EncodeError if it is too large."""
    last = line[-1][0]
    backend.save_group(_KEY + last, {"line": line, "parent": parent}, kept)
    groups = [step[0] for step in line[:-1] if step[1] is None]
    for group in groups[:MOST_GROUPS]:
        backend.save_group(_KEY + group, {"of": last}, kept)


def read(backend: Backend, identity: str) -> Outline | None:
    """Return the outline of the workflow that ends with the call *identity*, or contains the group; None if
    there is no readable one. Raises BackendError."""
    try:
        found = backend.get_group(_KEY + identity)
        if isinstance(found, dict) and isinstance(found.get("of"), str):
            found = backend.get_group(_KEY + found["of"])
    except (DamagedResult, NotSupported):
        return None
    if not isinstance(found, dict) or not _is_line(found.get("line")):
        return None
    parent = found.get("parent")
    return Outline(found["line"], parent if isinstance(parent, str) else None)


def forget(backend: Backend, identity: str) -> None:
    """Delete the outline with the key *identity*, if there is one."""
    backend.delete_group(_KEY + identity)


def _is_line(value: Any) -> bool:
    """Return whether *value* is a valid line, including nested ones."""
    waiting = [value]
    while waiting:
        line = waiting.pop()
        if not isinstance(line, list) or not line:
            return False
        for step in line:
            if not isinstance(step, list) or not 2 <= len(step) <= 4 or not isinstance(step[0], str):
                return False
            if step[1] is None:
                if len(step) < 3 or not isinstance(step[2], list):
                    return False
                if len(step) == 4 and not _are_names(step[3], len(step[2])):
                    return False
                waiting += step[2]
            elif not isinstance(step[1], str) or len(step) == 4:
                return False
    return True


def _are_names(after: Any, count: int) -> bool:
    """Return whether *after* maps *count* nodes of a graph to the nodes that they wait for."""
    return (
        isinstance(after, dict)
        and len(after) == count
        and all(isinstance(names, list) for names in after.values())
        and all(isinstance(name, str) and name in after for names in after.values() for name in names)
    )
