"""Drawings of a workflow: a tree in text, and Graphviz.

Comes from:  `qworker graph`, with the known part of a workflow.
Goes to:     `qworker graph`, as lines.
Thread:      main.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import click

from qworker import states
from qworker.cli.output import visible
from qworker.results.tree import state_of_many
from qworker.results.workflow import ENDED, UNREADABLE, Step, Workflow

FOLDED = 12
"""With more parallel calls than this, some are folded."""
SHOWN = 10
_COLORS = {
    states.SUCCESS: "green",
    states.IGNORED: "green",
    states.FAILURE: "red",
    states.REJECTED: "red",
    states.REVOKED: "magenta",
    UNREADABLE: "red",
    states.PENDING: "bright_black",
}
_RUNNING = "yellow"
_FILLS = {
    "green": "palegreen", "red": "lightcoral", "magenta": "plum", "bright_black": "white", "yellow": "khaki",
}  # fmt: skip
_SIGNS = {"├─": "+-", "└─": "`-", "│": "|", "↓": "v", "…": "...", "←": "<-"}
"""Replacements for terminals without these characters."""


def tree(workflow: Workflow, folded: bool = True) -> Iterator[str]:
    """Return the workflow as a tree in text, one line for each call. Below a call are those made by its task,
    below a group its members; the call that gets its value follows with an arrow."""
    steps = workflow.steps
    waiting: list[tuple[str | None, str, str]] = [(workflow.root, "", "")]
    while waiting:
        identity, head, before = waiting.pop()
        if identity is None:
            yield head
            continue
        step = steps[identity]
        mark = "  ←" if identity == workflow.asked != workflow.root else ""
        description = f"{identity}  {_state(step, workflow)}{_after(step, workflow)}"
        yield f"{head}{_label(step, workflow)}  {description}{mark}"
        then, calls = step.then, step.calls
        if not then and len(calls) == 1 and not step.is_group:
            then, calls = calls, ()
        waiting += [(each, f"{before}↓ ", before) for each in reversed(then)]
        shown, more = fold(workflow, calls) if folded else (calls, {})
        below: list[tuple[str | None, str, str]] = []
        for place, each in enumerate(shown):
            last = place == len(shown) - 1 and not more
            below.append((each, before + ("└─ " if last else "├─ "), before + ("   " if last else "│  ")))
        if more:
            below.append((None, f"{before}└─ … {_counted(more)}", ""))
        waiting += reversed(below)


def fold(workflow: Workflow, calls: tuple[str, ...]) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """Choose which of *calls* are shown, failed ones first, and count the states of the others. All nodes of
    a graph are shown, because arrows connect them."""
    if len(calls) <= FOLDED or workflow.steps[calls[0]].node is not None:
        return calls, {}
    ends = {each: state_of_many(step.state for step in workflow.line(each)) for each in calls}
    failed = [each for each in calls if ends[each] in states.PROPAGATE_STATES]
    asked = [workflow.asked] if workflow.asked in ends else []
    chosen = set(list(dict.fromkeys([*asked, *failed[:SHOWN], *calls[:SHOWN]]))[:SHOWN])
    shown = tuple(each for each in calls if each in chosen)
    return shown, Counter(state for each, state in ends.items() if each not in chosen)


def plain(line: str) -> str:
    """Return *line* in ASCII."""
    for sign, instead in _SIGNS.items():
        line = line.replace(sign, instead)
    return line


def _label(step: Step, workflow: Workflow) -> str:
    label = visible(step.name or "task")
    if step.is_group:
        is_graph = any(workflow.steps[each].node is not None for each in step.calls)
        label = "graph" if is_graph else "group"
    return label if step.node is None else f"{visible(step.node)}: {label}"


def _after(step: Step, workflow: Workflow) -> str:
    names = (visible(workflow.steps[each].node or each) for each in step.after)
    return f"  after {', '.join(names)}" if step.after else ""


def _state(step: Step, workflow: Workflow) -> str:
    text = click.style(visible(step.state), _color(step.state), bold=step.state in states.PROPAGATE_STATES)
    if step.is_group:
        ended = 0
        for each in step.calls:
            *_, last = workflow.line(each)
            ended += last.state in ENDED
        text += f"  {ended:,} of {len(step.calls):,} ended"
    return text


def _color(state: str) -> str:
    return _COLORS.get(state, _RUNNING)


def _counted(more: Mapping[str, int]) -> str:
    counts = ", ".join(f"{count:,} {visible(state)}" for state, count in sorted(more.items()))
    return f"{sum(more.values()):,} more: {counts}"


# -- Graphviz --


def dot(workflow: Workflow, folded: bool = True) -> Iterator[str]:
    """Return the workflow in Graphviz's language. A solid arrow leads to a call that follows another, and to
    the nodes of a graph that wait for one; a dashed one to the calls of a task, or to members."""
    yield "digraph workflow {"
    yield '    node [shape=box, style="rounded,filled", fontname="sans-serif"];'
    waiting = [workflow.root]
    while waiting:
        identity = waiting.pop()
        step = workflow.steps[identity]
        label = _quoted(_label(step, workflow), identity, visible(step.state))
        yield f"    {_quoted(identity)} [label={label}, fillcolor={_FILLS[_color(step.state)]}];"
        shown, more = fold(workflow, step.calls) if folded else (step.calls, {})
        yield from (f"    {_quoted(identity)} -> {_quoted(each)} [style=dashed];" for each in shown)
        yield from (f"    {_quoted(identity)} -> {_quoted(each)};" for each in step.then)
        for each in step.after:
            *_, last = workflow.line(each)
            yield f"    {_quoted(last.id)} -> {_quoted(identity)};"
        if more:
            rest = _quoted(f"{identity} more")
            yield f"    {rest} [label={_quoted(f'… {_counted(more)}')}, fillcolor=white];"
            yield f"    {_quoted(identity)} -> {rest} [style=dashed];"
        waiting += reversed([*shown, *step.then])
    yield "}"


def _quoted(*lines: str) -> str:
    """Return a Graphviz string of these lines."""
    escaped = (visible(each).replace("\\", "\\\\").replace('"', '\\"') for each in lines)
    return '"' + "\\n".join(escaped) + '"'
