"""`qworker graph`: shows a workflow, given the id of any call in it.

Comes from:  users and scripts, with the id from `call`, `delay()` or a log.
Goes to:     the result store; `drawing`.
Thread:      main.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from qworker.app import QWorker
from qworker.cli import drawing
from qworker.cli.options import app_option, json_option, open_app
from qworker.cli.output import on_screen, print_json
from qworker.cli.result import EXIT_FAILED, EXIT_NOT_READY, NOT_STORED, refuse_missing, refuse_to_ask
from qworker.results.workflow import ENDED, Survey, Workflow
from qworker.states import IGNORED, SUCCESS

PAUSE = 0.5
"""Seconds between two reads of --watch."""


@click.command(
    epilog="Exit codes: 0 all of it succeeded; 1 a call failed, was revoked or cannot be read; 3 some have "
    "not ended, or nothing is stored of the id. "
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
        raise click.UsageError("choose one of --dot and --json")
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
        yield from drawing.dot(workflow, folded)
        return
    yield from drawing.tree(workflow, folded)
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
        text = "\n".join(drawing.plain(each) for each in lines) if self._plain else "\n".join(lines)
        click.echo(text, color=self._color)
        self._height = self._rows(lines)
        sys.stdout.flush()

    def _rows(self, lines: list[str]) -> int:
        """Return how many rows of the terminal *lines* have taken; 0 when they have scrolled out of it."""
        columns, rows = shutil.get_terminal_size()
        taken = sum(max(1, -(-len(click.unstyle(line)) // columns)) for line in lines)
        return taken if taken < rows else 0
