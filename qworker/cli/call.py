"""`qworker call`: sends one task.

Comes from:  users and scripts.
Goes to:     `app.send_task`.
Thread:      main.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from qworker.app import QWorker
from qworker.cli.completion import queue_names, task_names
from qworker.cli.names import queues_in_use, queues_option, task_named
from qworker.cli.options import (
    DependentOption,
    Instant,
    JsonValue,
    Number,
    ParamType,
    SettingValue,
    app_option,
    json_option,
    loose,
    open_app,
)
from qworker.cli.output import print_json
from qworker.cli.result import EXIT_NOT_READY, refuse_to_ask, show
from qworker.control import looking
from qworker.errors import NotSupported, ResultTimeout
from qworker.naming import close_matches
from qworker.results.result import AsyncResult
from qworker.results.waiting import wait_for
from qworker.tasks.task import Task

_DURATION = SettingValue("worker_shutdown_timeout")


class _CallCommand(click.Command):
    """Explains how to write a negative number, which looks like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not error.option_name[1:2].isdigit():
                raise
            raise click.UsageError(
                f"No such option {error.option_name!r}. Write arguments that begin with - after --: qworker "
                "call TASK -- -1 2",
                ctx,
            ) from None


class _Until(ParamType):
    """A duration, as seconds from now; or a time."""

    name = "duration or time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | datetime:
        try:
            return float(_DURATION.convert(value, param, ctx))
        except click.BadParameter:
            return Instant().convert(value, param, ctx)


@click.command(
    cls=_CallCommand,
    epilog='Each ARGUMENT is JSON, or else text: `qworker call tasks.add 2 3`, `qworker call greet "Ada"`. '
    "A name may be shortened if it is unique: `add` for tasks.add.",
)
@click.argument("name", metavar="TASK", shell_complete=task_names)
@click.argument("arguments", nargs=-1)
@app_option
@click.option(
    "-a",
    "--args",
    type=JsonValue(list, "'[2, 3]'"),
    default="[]",
    help="Positional arguments as a JSON list.",
)
@click.option(
    "-k",
    "--kwargs",
    type=JsonValue(dict, """'{"x": 2}'"""),
    default="{}",
    help="Keyword arguments as a JSON object.",
)
@click.option(
    "-Q",
    "--queue",
    type=SettingValue("task_default_queue"),
    shell_complete=queue_names,
    help="Queue to send it to.",
)
@click.option("--priority", type=Number(0, 9), help="0 to 9; 9 is the most urgent.")
@click.option("--countdown", type=_DURATION, help="Run it after this long (10, 1h30m).")
@click.option("--eta", type=Instant(), help="Run it at this time (2030-01-31T08:00:00Z).")
@click.option("--expires", type=_Until(), help="Do not run it after this long, or after this time.")
@click.option("--task-id", metavar="ID", help="Id of the task; default: a new one.")
@click.option("--serializer", metavar="NAME", help="json, or another accepted serializer.")
@click.option("--by-name", is_flag=True, help="Send it even if this app does not know the task.")
@click.option("-w", "--wait", is_flag=True, help="Wait for the result and print it.")
@click.option(
    "--timeout", cls=DependentOption, requires="wait", type=_DURATION, default="60s", show_default=True,
    help="How long --wait waits.",
)  # fmt: skip
@json_option
def call(
    name: str,
    arguments: tuple[str, ...],
    app: str | None,
    args: list[Any],
    kwargs: dict[str, Any],
    by_name: bool,
    wait: bool,
    timeout: float,
    as_json: bool,
    **options: Any,
) -> int:
    """Send a task, and optionally wait for its result."""
    if arguments and args:
        raise click.UsageError("Give the arguments one by one or with --args, not both.")
    if options["eta"] is not None and options["countdown"] is not None:
        raise click.UsageError("Use --eta or --countdown, not both.")
    choice = open_app(app)
    task = name if by_name else task_named(choice.app, name)
    asked_for = {key: value for key, value in options.items() if value is not None}
    positional = args or [loose(text) for text in arguments]
    if wait:
        refuse_to_ask(choice.app, calls=True)
        _refuse_ignored(choice.app, task)
    if by_name:
        result = choice.app.send_task(task, positional, kwargs, **asked_for)
    else:
        result = _send(choice.app.tasks[task], positional, kwargs, asked_for)
    if not wait:
        print_json({"id": result.id, "task": task}) if as_json else click.echo(result.id)
        warn_without_worker(choice.app, result.queue)
        return 0
    try:
        warned = warn_without_worker(choice.app, result.queue)
        if not result.ignored:
            result.keep(wait_for(choice.app, result.id, result.queue, timeout, hinted=warned))
    except ResultTimeout:
        click.echo(f"Error: no result after {timeout:g} s{_later(choice.app, result.id)}", err=True)
        if as_json:
            show(result, as_json)
        return EXIT_NOT_READY
    except KeyboardInterrupt:
        click.echo(f"\nThe task continues{_later(choice.app, result.id)}", err=True)
        raise
    return show(result, as_json)


def _later(app: QWorker, task_id: str) -> str:
    """Return how to ask for the result later, if other processes can do so."""
    return f"; ask later: qworker result {task_id}" if app.backend.persistent else ""


def _refuse_ignored(app: QWorker, name: str) -> None:
    """Raise NotSupported when the result of the task *name* is not kept, as far as this app knows the
    task."""
    if name in app.tasks and app.tasks[name].ignore_result:
        raise NotSupported(
            f"{name} ignores its result (ignore_result, or the setting task_ignore_result), so there is "
            "nothing to wait for: leave out --wait. Nothing was sent"
        )


def _send(
    task: Task[..., Any], args: list[Any], kwargs: dict[str, Any], options: dict[str, Any]
) -> AsyncResult[Any]:
    try:
        return task.apply_async(args, kwargs, **options)
    except TypeError as error:  # the arguments do not fit the task
        raise click.UsageError(str(error)) from None


def warn_without_worker(app: QWorker, queue: str | None) -> bool:
    """Report on standard error when no worker consumes the queue of a task. Return whether it was
    reported."""
    if app.broker.presence is None:
        return False
    names = {name for worker in looking.workers(app) for name in worker.queues}
    if queue is None or queue in names:
        return False
    start = f"qworker start{queues_option(app, queue)}"
    click.echo(f"No worker consumes queue {queue!r} now. Start one with: {start}", err=True)
    in_use = queues_in_use(app)
    if guesses := [] if queue in in_use else close_matches(queue, sorted({*names, *in_use})):
        click.echo(f"Did you mean {' or '.join(map(repr, guesses))}?", err=True)
    return True
