"""Outlines: of which calls a workflow is made, kept in the result store so that it can be looked at.

Comes from:  publishing, which keeps the outline of a workflow with joins when it is called; with the setting
             ``result_extended`` that of every workflow.
Goes to:     ``workflow``, which looks at the calls that it names.
Thread:      any.

An outline is plain data: the steps of a line of calls, in their order. A step is ``[id, name]``, with
``"IGNORED"`` behind it when its result is not kept, or ``[id of a group, None, [line of each member]]``. A
graph is a group of its nodes, with ``{name: [names that it waits for]}`` behind it, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker import states
from qworker.errors import DamagedResult, NotSupported

if TYPE_CHECKING:
    from qworker.backends.base import Backend

Line = Sequence[Sequence[Any]]
"""Where it is made, of tuples for the many members of a group, which take less memory; where it is read, of
lists."""

_KEY = "qworker-workflow-"
MOST_GROUPS = 16
"""So many groups of one line lead to its outline."""


class Outline(NamedTuple):
    """line: the steps, in their order. parent: the id of the task that called the workflow, if one did."""

    line: Line
    parent: str | None


def outlined(step: Mapping[str, Any], is_ignored: Callable[[Any], bool]) -> Line:
    """Return the line of *step*, a signature or workflow whose ids are settled."""
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
    """Tell whether something follows a group in *steps*: then no call that has ended names those after it."""
    return any(name is None for _, name, *_ in steps[:-1])


def keep(backend: Backend, line: Line, parent: str | None, kept: float = 0.0) -> None:
    """Store the outline of a workflow, under the id of its last step and those of the groups before it, for
    as long as results are kept, and *kept* seconds longer. Raises BackendError, and EncodeError when it is
    too large."""
    last = line[-1][0]
    backend.save_group(_KEY + last, {"line": line, "parent": parent}, kept)
    groups = [step[0] for step in line[:-1] if step[1] is None]
    for group in groups[:MOST_GROUPS]:
        backend.save_group(_KEY + group, {"of": last}, kept)


def read(backend: Backend, identity: str) -> Outline | None:
    """Return the outline of the workflow that ends in the call, or has the group, *identity*; None when none
    is kept that can be read. Raises BackendError."""
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
    """Delete what is kept under *identity*, if anything is."""
    backend.delete_group(_KEY + identity)


def _is_line(value: Any) -> bool:
    """Whether *value* has the form of a line, with all that stands in it."""
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
    """Whether *after* says of so many nodes of a graph for which of them each waits."""
    return (
        isinstance(after, dict)
        and len(after) == count
        and all(isinstance(names, list) for names in after.values())
        and all(isinstance(name, str) and name in after for names in after.values() for name in names)
    )
