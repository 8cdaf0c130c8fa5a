"""`qworker workers`: which workers there are, and what they do.

Comes from:  people, and scripts that watch or scale.
Goes to:     the broker's administration.
Thread:      main.
"""

from __future__ import annotations

import click

from qworker.cli.options import app_option, json_option, open_app
from qworker.cli.output import age, print_json, print_table
from qworker.conf import mask_urls


@click.command()
@app_option
@json_option
def workers(app: str | None, as_json: bool) -> None:
    """Show the workers that live: where each is, what it does, how many
    tasks it runs and holds, and when it last told of itself."""
    application = open_app(app, tasks=False).app
    broker, now = application.broker, application.clock.now()
    found = sorted(broker.admin.workers(), key=lambda worker: (worker.name, worker.started))
    if as_json:
        print_json([worker.plain() for worker in found])
        return
    where = mask_urls(broker.url)
    if "workers" in broker.lacks:
        click.echo(f"{where} does not tell which workers there are.")
        return
    if not found:
        click.echo(f"No worker is running on {where}.")
        return
    heads = (
        "name", "host", "pid", "status", "queues", "running", "waiting", "finished", "up since", "seen ago",
    )  # fmt: skip
    table = [
        (
            worker.name,
            worker.host,
            worker.pid,
            worker.status,
            ",".join(worker.queues),
            f"{worker.busy}/{worker.concurrency}",
            worker.waiting,
            worker.totals.get("finished", 0),
            age(now - worker.started),
            age(now - worker.seen),
        )
        for worker in found
    ]
    print_table(heads, table, right="pid running waiting finished")
