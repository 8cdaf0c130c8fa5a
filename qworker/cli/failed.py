"""`qworker failed`: the tasks that have failed for good.

Comes from:  people who want to know what failed and why, and have it run again.
Goes to:     ``app.failed``.
Thread:      main.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from qworker.app import QWorker
from qworker.cli.completion import queue_names, task_names
from qworker.cli.groups import SuggestingGroup
from qworker.cli.names import doubt_queues, numbers_of
from qworker.cli.options import JsonValue, Number, app_option, json_option, open_sent
from qworker.cli.output import age, count, newest, print_json, print_table, visible
from qworker.cli.purge import confirm
from qworker.control.failed import ALL, FailedTask
from qworker.naming import DJANGO_PACKAGES, near_tasks

_LONGEST_ERROR = 60
_F = TypeVar("_F", bound=Callable[..., Any])


def _selection(command: _F) -> _F:
    """The words that say which failed tasks are meant."""
    for option in (
        click.option(
            "-Q", "--queue", metavar="NAME", shell_complete=queue_names, help="Only those of this queue."
        ),
        click.option("--error", metavar="TEXT", help="Only those whose error has this text in it."),
        click.option("--task", metavar="NAME", shell_complete=task_names, help="Only those of this task."),
    ):
        command = option(command)
    return command


@click.group(cls=SuggestingGroup)
def failed() -> None:
    """Look at tasks that have failed for good. Retry or discard them."""


@failed.command("list")
@app_option
@_selection
@click.option("--limit", type=Number(min=1), default=100, show_default=True, help="How many, newest first.")
@json_option
def list_(app: str | None, limit: int, as_json: bool, **chosen: Any) -> None:
    """List failed tasks, newest first."""
    choice = open_sent(app, tasks=False)
    _meant(choice.app, chosen)
    found = choice.app.failed.list(limit=limit + 1, **chosen)
    is_cut = len(found) > limit
    found = found[:limit]
    if as_json:
        print_json([_fields(each) for each in found])
        return
    if not found:
        click.echo("No failed task is like that." if any(chosen.values()) else "No failed task is kept.")
        if DJANGO_PACKAGES in choice.app.tasks:
            click.echo(
                "Failures of what async_task() called are in the project's database: see Failed tasks in the "
                "admin, or qworker.django.models.Failure.",
                err=True,
            )
        return
    now = choice.app.clock.now()
    rows = [
        (each.tag, each.queue, each.task or "?", each.attempts, age(now - each.failed_at), _short(each.error))
        for each in found
    ]
    print_table(("tag", "queue", "task", "attempts", "age", "error"), rows, right="tag attempts age")
    if is_cut:
        click.echo(newest(limit), err=True)
    click.echo(
        "\nMore: qworker failed show TAG. Then: qworker failed retry TAG, or qworker failed discard TAG.",
        err=True,
    )


@failed.command()
@click.argument("tag", metavar="TAG")
@app_option
@json_option
def show(tag: str, app: str | None, as_json: bool) -> None:
    """Show one failed task: its arguments, as logs show them, its attempts and its traceback.

    TAG is its number in `qworker failed list`, or the id of the call.
    """
    application = open_sent(app, tasks=False).app
    found = application.failed.get(_numbers(application, (tag,))[0])
    if as_json:
        print_json(_fields(found))
        return
    fields = _fields(found)
    traceback = fields.pop("traceback")
    for name, value in fields.items():
        click.echo(f"{name}: {visible(str(value))}")
    for line in traceback.splitlines():
        click.echo(visible(line))


@failed.command()
@click.argument("tags", metavar="[TAG]...", nargs=-1)
@app_option
@_selection
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("-a", "--args", type=JsonValue(list, "'[2, 3]'"), help="Other positional arguments, for one.")
@click.option(
    "-k", "--kwargs", type=JsonValue(dict, """'{"x": 2}'"""), help="Other keyword arguments, for one."
)
def retry(
    tags: tuple[str, ...],
    app: str | None,
    everything: bool,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    **chosen: Any,
) -> int:
    """Send failed tasks again, with all their retries before them.

    TAG is the number of one in `qworker failed list`, or the id of the call. Exit code 1 when all that was
    meant is refused.
    """
    _which(tags, everything, chosen)
    if (args is not None or kwargs is not None) and len(tags) != 1:
        raise click.UsageError("--args and --kwargs are for one failed task, named by its tag.")
    application = open_sent(app, tasks=False).app
    numbers = _numbers(application, tags)
    _meant(application, chosen)
    done = application.failed.retry(numbers or None, args=args, kwargs=kwargs, **chosen)
    click.echo(f"Sent {count(done.number, 'task')} again.")
    for tag, why in done.refused.items():
        which = f"failed task {tag} "
        text = why if why.startswith(which) else f"{which}stays: {why}"
        click.echo(f"Error: {visible(text)}", err=True)
    return 1 if done.refused and not done.number else 0


@failed.command()
@click.argument("tags", metavar="[TAG]...", nargs=-1)
@app_option
@_selection
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def discard(tags: tuple[str, ...], app: str | None, everything: bool, yes: bool, **chosen: Any) -> None:
    """Delete failed tasks for good.

    TAG is the number of one in `qworker failed list`, or the id of the call.
    """
    _which(tags, everything, chosen)
    application = open_sent(app, tasks=False).app
    numbers = _numbers(application, tags)
    _meant(application, chosen)
    if not tags:
        confirm("Delete all failed tasks?" if everything else "Delete all failed tasks like that?", yes)
    click.echo(f"Deleted {count(application.failed.discard(numbers or None, **chosen), 'failed task')}.")


def _which(tags: tuple[str, ...], everything: bool, chosen: dict[str, str | None]) -> None:
    if tags and any(value is not None for value in chosen.values()):
        raise click.UsageError("A tag and --task, --error or --queue do not go together.")
    if chosen["error"] == "":  # each text has it, as that of a variable of a shell that is not set
        raise click.UsageError("--error is empty: give a part of the error, or use --all.")
    ways = [bool(tags), everything, any(value is not None for value in chosen.values())]
    if sum(ways) != 1:
        raise click.UsageError(
            "Name failed tasks by the tags that `qworker failed list` shows, or by --task, --error and "
            "--queue, or use --all."
        )


def _meant(app: QWorker, chosen: dict[str, Any]) -> None:
    """Write the whole name of a task that was shortened into *chosen*. What is spelled like nothing that has
    failed is told on standard error."""
    name, queue = chosen["task"], chosen["queue"]
    if queue is not None:
        doubt_queues(app, [queue])
    if name is None:
        return
    known = {each.task for each in app.failed.list(limit=ALL)}
    ending = [each for each in known if each.endswith(f".{name}")]
    if name in known:
        return
    if len(ending) == 1:
        chosen["task"] = ending[0]
    elif guesses := sorted(ending) or near_tasks(name, known):
        meant = " or ".join(map(repr, guesses))
        click.echo(f"No {name!r:.200} has failed. Did you mean {meant}?", err=True)


def _numbers(app: QWorker, tags: tuple[str, ...]) -> list[int]:
    if not tags:
        return []
    return numbers_of(
        ((each.tag, each.id) for each in app.failed.list(limit=ALL)), tags, "failed task", "failed"
    )


def _short(error: str) -> str:
    return error if len(error) <= _LONGEST_ERROR else f"{error[: _LONGEST_ERROR - 1]}…"


def _fields(each: FailedTask) -> dict[str, Any]:
    return {**asdict(each), "failed_at": datetime.fromtimestamp(each.failed_at, UTC)}
