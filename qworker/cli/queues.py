"""`qworker queues`: how the queues stand.

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
def queues(app: str | None, as_json: bool) -> None:
    """Show the queues: how many messages wait, are due later, are being run,
    are dead; how old the oldest is."""
    choice = open_app(app)
    store = choice.app.broker
    now = choice.app.clock.now()
    workers = store.admin.workers()
    # What the broker does not tell is left empty: a 0 would be a lie.
    unknown = {"delayed", "leased", "oldest"} if "counts" in store.lacks else set()
    unknown |= {"workers"} if "workers" in store.lacks else set()
    rows = []
    for info in store.admin.queues():
        working = sum(info.queue in worker.queues for worker in workers)
        oldest = None if info.oldest is None else max(now - info.oldest, 0.0)
        row = {**info._asdict(), "oldest_age": oldest, "workers": working}
        rows.append({key: None if key in unknown else value for key, value in row.items()})
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(f"All queues of {mask_urls(store.url)} are empty.")
        return
    heads = ("queue", "ready", "delayed", "running", "dead", "oldest", "workers")
    keys = ("queue", "ready", "delayed", "leased", "dead")
    table = [(*(row[key] for key in keys), age(row["oldest_age"]), row["workers"]) for row in rows]
    print_table(heads, table, right="ready delayed running dead oldest workers")
