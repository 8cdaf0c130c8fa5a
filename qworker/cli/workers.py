"""`qworker workers`: the running workers and their states.

Comes from:  users, and scripts that monitor or scale.
Goes to:     the broker's administration.
Thread:      main.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from qworker.cli.options import app_option, json_option, nothing_there, open_app, open_sent
from qworker.cli.output import age, count, size, table
from qworker.cli.watching import Picture, show, watch_options
from qworker.conf import mask_urls
from qworker.control import looking
from qworker.transports.presence import Presence, RunningTask

_HEADS = (
    "name", "host", "pid", "status", "queues", "running", "waiting", "finished", "memory", "qworker",
    "python", "up for", "seen ago",
)  # fmt: skip


@click.command()
@app_option
@watch_options
@json_option
def workers(app: str | None, watch: bool, every: float, as_json: bool) -> None:
    """Show the live workers: where each is, what it does, how many tasks it runs and holds, and when it last
    reported. Below: which process runs which task, and for how long."""
    application = (open_app if watch else open_sent)(app, tasks=False).app
    broker = application.broker

    def look() -> Picture:
        if reason := nothing_there(application):
            return Picture([reason], [])
        found = looking.workers(application)
        value = [worker.plain() for worker in found]
        where = mask_urls(broker.url)
        if "workers" in broker.lacks:
            return Picture([f"{where} does not report its workers."], value, is_last=True)
        if not found:
            return Picture([f"No worker is running on {where}."], value)
        return Picture(lines(found, application.clock.now()), value)

    show(look, as_json, watch, every)


def lines(found: Sequence[Presence], now: float) -> list[str]:
    """Return the text lines for workers. now: epoch seconds."""
    rows = [_row(worker, now) for worker in found]
    shown = table(_HEADS, rows, right="pid running waiting finished memory")
    runs = [_run(worker, task, now) for worker in found for task in worker.running]
    if runs:
        shown += ["", *table(("child", "memory", "worker", "task", "id", "for"), runs, right="child memory")]
    more = sum(worker.busy - len(worker.running) for worker in found)
    return [*shown, f"… and {count(more, 'more task')}"] if more > 0 else shown


def _row(worker: Presence, now: float) -> tuple[object, ...]:
    return (
        worker.name,
        worker.host,
        worker.pid,
        worker.status,
        ",".join(worker.queues),
        f"{worker.busy}/{worker.concurrency}",
        worker.waiting,
        worker.totals.get("finished", 0),
        size(worker.memory + sum(worker.pool_memory)),
        worker.version,
        worker.python,
        age(now - worker.started),
        age(now - worker.seen),
    )


def _run(worker: Presence, task: RunningTask, now: float) -> tuple[object, ...]:
    memory = dict(zip(worker.pool, worker.pool_memory, strict=False)).get(task.pid, 0)
    return task.pid or "", size(memory), worker.name, task.name, task.id, age(now - task.started)
