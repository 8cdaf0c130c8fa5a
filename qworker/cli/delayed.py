"""`qworker delayed`: the messages that are due later.

Comes from:  users who inspect them, or return to workers that only read the queues themselves.
Goes to:     the broker's administration.
Thread:      main.
"""

from __future__ import annotations

import click

from qworker.cli.groups import SuggestingGroup
from qworker.cli.names import doubt_queues
from qworker.cli.options import app_option, json_option, open_sent
from qworker.cli.output import age, count, print_json, print_table
from qworker.cli.purge import confirm
from qworker.conf import mask_urls
from qworker.errors import ConfigurationError, LeaseLost, NotSupported
from qworker.transports.lease import Broker, Delayed


@click.group(cls=SuggestingGroup)
def delayed() -> None:
    """Show messages with an ETA, which the broker keeps apart until they are due; move them to their
    queues."""


@delayed.command("list")
@app_option
@json_option
def list_(app: str | None, as_json: bool) -> None:
    """Show how many messages of each queue are due later, and when the next one is."""
    choice = open_sent(app)
    store = choice.app.broker
    if store.delayed is None:
        raise ConfigurationError(f"{mask_urls(store.url)} does not report delayed messages")
    now, later = choice.app.clock.now(), store.delayed
    rows = [
        {
            "queue": info.queue,
            "delayed": info.delayed,
            "next_due": _next_due(store, later, info.queue),
        }
        for info in store.admin.queues()
        if info.delayed
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo("There are no delayed messages.")
    else:
        lines = [(row["queue"], row["delayed"], _in(row["next_due"], now)) for row in rows]
        print_table(("queue", "delayed", "next due in"), lines, right="delayed")


def _next_due(store: Broker, delayed: Delayed, queue: str) -> float | None:
    try:
        return delayed.next_due([queue])
    except LeaseLost:  # some brokers only report to registered consumers
        store.consumer.register("qworker-delayed", [queue], 0)
        try:
            return delayed.next_due([queue])
        finally:
            store.consumer.deregister()


def _in(due: object, now: float) -> str:
    return age(due - now) if isinstance(due, float) else ""


@delayed.command()
@app_option
@click.option("-Q", "--queue", metavar="NAME", help="Only those of this queue; default: all queues.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def flush(app: str | None, queue: str | None, yes: bool) -> None:
    """Move delayed messages to their queues before they are due, for workers that only read the queues.

    Their headers still contain the due times, which Celery's workers respect. First stop the qworker workers
    of these queues: they would delay the messages again.
    """
    application = open_sent(app).app
    store = application.broker
    if queue is not None:
        doubt_queues(application, [queue])
    if store.delayed is None:
        raise NotSupported("this broker only delivers delayed messages when they are due")
    queues = [queue] if queue is not None else [info.queue for info in store.admin.queues() if info.delayed]
    if not queues:
        click.echo("There are no delayed messages.")
        return
    confirm(f"Move the delayed messages of {', '.join(queues)} to the queues themselves?", yes)
    flushed = sum(store.delayed.flush_delayed(name) for name in queues)
    click.echo(f"Moved {count(flushed, 'message')}.")
