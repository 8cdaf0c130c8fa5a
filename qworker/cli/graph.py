"""`qworker graph`: shows a workflow as a tree or for Graphviz, given the id of any call in it.

Comes from:  users and scripts, with the id from `call`, `delay()` or a log.
Goes to:     the result store; the terminal.
Thread:      main.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import click

from qworker import states
from qworker.app import QWorker
from qworker.cli.options import app_option, json_option, open_app
from qworker.cli.output import on_screen, print_json, visible
from qworker.cli.result import EXIT_FAILED, EXIT_NOT_READY, NOT_STORED, refuse_missing, refuse_to_ask
from qworker.results.tree import state_of_many
from qworker.results.workflow import ENDED, UNREADABLE, Step, Survey, Workflow
from qworker.states import IGNORED, SUCCESS

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


def graphviz(workflow: Workflow, folded: bool = True) -> Iterator[str]:
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


PAUSE = 0.5
"""Seconds between two reads of --watch."""


@click.command(
    epilog="Exit codes: 0 all of it succeeded; 1 a call failed, was revoked or cannot be read; 3 some have "
    "not ended, or nothing is stored for the id. "
    "PENDING also means that a result was ignored or has expired."
)
@click.argument("task_id", metavar="ID")
@app_option
@click.option("-b", "--result-backend", metavar="URL", help="The result store, instead of the app's.")
@click.option("--dot", is_flag=True, help="Print it for Graphviz.")
@json_option
@click.option("--all", "unfolded", is_flag=True, help="Show every member of large groups.")
@click.option("--watch", is_flag=True, help="Show it again whenever it changes, until all calls have ended.")
def graph(
    task_id: str,
    app: str | None,
    result_backend: str | None,
    dot: bool,
    as_json: bool,
    unfolded: bool,
    watch: bool,
) -> int:
    """Show a whole workflow by the id of a call or group in it: its calls and their states."""
    if dot and as_json:
        raise click.UsageError("Use --dot or --json, not both.")
    identity = task_id.strip()
    if not identity:
        raise click.UsageError("The id is empty.")
    application = _app(app, result_backend)
    refuse_to_ask(application)
    refuse_missing(application, watch=watch)
    survey = Survey(application, identity)
    screen = _Screen()
    while True:
        workflow = survey.look()
        if workflow is None:
            text = f"nothing is stored for {identity!r:.200}"
            if not watch:
                click.echo(
                    f"Error: {text}: {NOT_STORED}",
                    err=True,
                )
                return EXIT_NOT_READY
            screen.show([f"{text} yet"])
        else:
            if as_json:
                screen.show_json(fields(workflow))
            else:
                screen.show(list(_lines(workflow, dot, not unfolded)))
            if not watch or workflow.counts().keys() <= ENDED:
                return exit_code(workflow)
        time.sleep(PAUSE)


def _app(option: str | None, url: str | None) -> QWorker:
    if option is None and url is not None:
        app = QWorker("graph", set_as_current=False)
    else:
        app = open_app(option, tasks=False).app
    app.conf.command_line({"result_backend": url}, "option -b")
    return app


def _lines(workflow: Workflow, dot: bool, folded: bool) -> Iterator[str]:
    if dot:
        yield from graphviz(workflow, folded)
        return
    yield from tree(workflow, folded)
    yield from (f"Not known: {sentence}." for sentence in workflow.unknown)


def fields(workflow: Workflow) -> dict[str, Any]:
    """Return a workflow as JSON: flat, because a chain may be long."""
    steps = [step._asdict() for step in workflow.steps.values()]
    return {
        "id": workflow.asked,
        "root": workflow.root,
        "counts": workflow.counts(),
        "steps": steps,
        "unknown": workflow.unknown,
    }


def exit_code(workflow: Workflow) -> int:
    """Return the exit code for a workflow."""
    found = workflow.counts().keys() - {SUCCESS, IGNORED}
    if not found:
        return 0
    return EXIT_FAILED if found & ENDED else EXIT_NOT_READY


class _Screen:
    """Shows changes: on a terminal in place of the previous output, elsewhere below it."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._height = 0
        self._is_terminal = on_screen()
        self._plain = "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()
        self._color = None if self._is_terminal else False

    def show_json(self, value: dict[str, Any]) -> None:
        """Print *value*, unless it equals the previous one."""
        if value != self._shown:
            self._shown = value
            print_json(value)

    def show(self, lines: list[str]) -> None:
        """Print *lines*, unless they equal the previous ones."""
        if lines == self._shown:
            return
        again, self._shown = self._shown is not None, lines
        if again and not self._is_terminal:
            click.echo()
        if again and self._is_terminal and self._height:
            click.echo(f"\x1b[{self._height}F\x1b[J", nl=False, color=True)
        text = "\n".join(plain(each) for each in lines) if self._plain else "\n".join(lines)
        click.echo(text, color=self._color)
        self._height = self._rows(lines)
        sys.stdout.flush()

    def _rows(self, lines: list[str]) -> int:
        """Return how many rows of the terminal *lines* have taken; 0 when they have scrolled out of it."""
        columns, rows = shutil.get_terminal_size()
        taken = sum(max(1, -(-len(click.unstyle(line)) // columns)) for line in lines)
        return taken if taken < rows else 0
