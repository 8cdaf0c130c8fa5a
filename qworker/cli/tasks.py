"""`qworker tasks`: running, waiting and delayed tasks.

Comes from:  users, and scripts that monitor.
Goes to:     ``qworker.control.looking``.
Thread:      main.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import cast

import click

from qworker.cli.names import doubt_queues
from qworker.cli.options import (
    QUEUE_NAMES,
    Number,
    app_option,
    json_option,
    nothing_there,
    open_app,
    open_sent,
)
from qworker.cli.output import age, cut, table
from qworker.cli.watching import Picture, show, watch_options
from qworker.conf import mask_urls
from qworker.control.looking import STATES, State, TaskSeen, peek

LONGEST_ARGUMENTS = 40
"""Maximum characters of displayed arguments; --json has all that is known."""
_HEADS = ("state", "task", "arguments", "id", "queue", "priority", "attempt", "when", "worker", "child")


@click.command()
@app_option
@click.option(
    "-Q", "--queues", type=QUEUE_NAMES, help="Only these queues, separated by commas; default: all."
)
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only this state; may be repeated."
)
@click.option(
    "--limit", type=Number(min=1), default=20, show_default=True,
    help="How many of each state and queue.",
)  # fmt: skip
@watch_options
@json_option
def tasks(
    app: str | None,
    queues: tuple[str, ...] | None,
    states: tuple[str, ...],
    limit: int,
    watch: bool,
    every: float,
    as_json: bool,
) -> None:
    """Show running, waiting and delayed tasks.

    No task is taken or changed. A "reserved" one has been taken by a worker that has not begun it. "attempt"
    counts runs, including those that ended in a retry or a death.
    """
    application = (open_app if watch else open_sent)(app, tasks=False).app
    broker = application.broker
    chosen = cast("tuple[State, ...]", states or STATES)

    def look() -> Picture:
        if reason := nothing_there(application):
            return Picture([reason], [])
        found = peek(application, queues, states=chosen, limit=limit)
        value = [task._asdict() for task in found]
        if note := _unseen(broker.lacks, broker.url, chosen):
            shown = lines(found, limit, application.clock.now()) if found else ["No task is running."]
            return Picture([*shown, "", note], value)
        if not found:
            return Picture(["There are no such tasks." if queues or states else "There are no tasks."], value)
        return Picture(lines(found, limit, application.clock.now()), value)

    if not nothing_there(application):
        doubt_queues(application, queues)
    show(look, as_json, watch, every)


def _unseen(lacks: Collection[str], url: str, states: Collection[State]) -> str:
    """Return a note that waiting tasks are missing if the broker cannot show messages; "" if none are
    missing."""
    if "peek" not in lacks or states == ("running",):
        return ""
    return (
        f"{mask_urls(url)} cannot show messages without delivering them: waiting ones are missing here. "
        "`qworker queues` shows how many there are."
    )


def lines(found: Sequence[TaskSeen], limit: int, now: float) -> list[str]:
    """Return the text lines for tasks. limit: of each state and queue. now: epoch seconds."""
    shown = table(_HEADS, [_row(task, now) for task in found], right="priority attempt child")
    if max(Counter((task.state, task.queue) for task in found).values()) >= limit:
        shown.append(f"… and perhaps more: these are the first {limit:,} of each state and queue (--limit).")
    return shown


def _row(task: TaskSeen, now: float) -> tuple[object, ...]:
    arguments = " ".join(each for each in (task.args, task.kwargs) if each and each not in ("()", "{}"))
    return (
        task.state,
        task.name or "?",
        cut(arguments, LONGEST_ARGUMENTS),
        task.id or "?",
        task.queue,
        task.priority,
        task.retries + task.deliveries + 1,
        _when(task, now),
        task.worker,
        task.pid or "",
    )


def _when(task: TaskSeen, now: float) -> str:
    if task.started is not None:
        return f"for {age(now - task.started)}"
    if task.state == "delayed" and task.eta is not None:
        return f"in {age(task.eta - now)}"
    return "" if task.sent is None else f"{age(now - task.sent)} ago"
