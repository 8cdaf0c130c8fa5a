"""`qworker queues`: the states of the queues.

Comes from:  users, and scripts that monitor or scale.
Goes to:     the broker's administration.
Thread:      main.
"""

from __future__ import annotations

from typing import Any

import click

from qworker.app import QWorker
from qworker.cli.names import doubt_queues
from qworker.cli.options import QUEUE_NAMES, app_option, json_option, nothing_there, open_app, open_sent
from qworker.cli.output import age, table
from qworker.cli.watching import Picture, show, watch_options
from qworker.conf import mask_urls
from qworker.control import looking

_HEADS = ("queue", "ready", "delayed", "running", "dead", "oldest", "workers")
_KEYS = ("queue", "ready", "delayed", "leased", "dead")


@click.command()
@app_option
@click.option(
    "-Q", "--queues", "names", type=QUEUE_NAMES, help="Names separated by commas; default: all with messages."
)
@watch_options
@json_option
def queues(app: str | None, names: tuple[str, ...] | None, watch: bool, every: float, as_json: bool) -> None:
    """Show the queues: how many messages are waiting, due later, running, dead; how old the oldest is."""
    application = (open_app if watch else open_sent)(app).app

    def look() -> Picture:
        if reason := nothing_there(application):
            return Picture([reason], [])
        rows = _rows(application, names)
        if not rows:
            return Picture([_nothing(application)], rows)
        cells = [(*(row[key] for key in _KEYS), age(row["oldest_age"]), row["workers"]) for row in rows]
        return Picture(table(_HEADS, cells, right="ready delayed running dead oldest workers"), rows)

    if not nothing_there(application):
        doubt_queues(application, names)
    show(look, as_json, watch, every)


def _nothing(app: QWorker) -> str:
    """Explain what is known when no reported queue has messages."""
    where = mask_urls(app.broker.url)
    if "counts" in app.broker.lacks:
        note = "This broker does not report delayed or running messages."
        return f"No message is ready in any queue of {where}. {note}"
    return f"All queues of {where} are empty."


def _rows(app: QWorker, names: tuple[str, ...] | None) -> list[dict[str, Any]]:
    lacks, now = app.broker.lacks, app.clock.now()
    workers = looking.workers(app)
    # Unknown values are left empty, because a 0 would be wrong.
    unknown = {"delayed", "leased", "oldest"} if "counts" in lacks else set()
    unknown |= {"dead"} if names and "counts" in lacks else set()
    unknown |= {"workers"} if "workers" in lacks else set()
    rows = []
    for info in looking.queues(app, names):
        working = sum(info.queue in worker.queues for worker in workers)
        oldest = None if info.oldest is None else max(now - info.oldest, 0.0)
        row = {**info._asdict(), "oldest_age": oldest, "workers": working}
        rows.append({key: None if key in unknown else value for key, value in row.items()})
    return rows
