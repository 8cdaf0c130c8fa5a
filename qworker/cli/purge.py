"""`qworker purge`: empties queues.

Comes from:  users.
Goes to:     the broker's administration.
Thread:      main.
"""

from __future__ import annotations

import sys

import click

from qworker.cli.names import doubt_queues, misspelt_queues
from qworker.cli.options import QUEUE_NAMES, app_option, open_sent
from qworker.cli.output import count
from qworker.conf import mask_urls


@click.command()
@app_option
@click.option("-Q", "--queues", type=QUEUE_NAMES, help="Queues to empty, separated by commas; default: all.")
@click.option("-X", "--exclude-queues", type=QUEUE_NAMES, default=(), help="Queues to keep.")
@click.option("-y", "-f", "--yes", "--force", "yes", is_flag=True, help="Do not ask.")
def purge(
    app: str | None, queues: tuple[str, ...] | None, exclude_queues: tuple[str, ...], yes: bool
) -> None:
    """Remove the waiting messages of queues. Running messages and dead letters stay."""
    application = open_sent(app).app
    if doubts := misspelt_queues(application, exclude_queues):
        raise click.UsageError(f"{doubts[0]} Nothing was removed.")
    store = application.broker
    # Some brokers only report requested queues, or those in the settings.
    infos = store.admin.queues() if queues is None else store.admin.depths(queues)
    known = {info.queue: info for info in infos}
    chosen = [name for name in queues or known if name not in exclude_queues]
    infos = [known[name] for name in chosen if name in known]
    leased = sum(info.leased for info in infos) if store.admin.purges_leased else 0
    waiting = sum(info.ready + info.delayed for info in infos) + leased
    if not waiting:
        click.echo("There is nothing to remove.")
        doubt_queues(application, queues)
        return
    messages = f"{count(waiting, 'message')} of {', '.join(chosen)}"
    if leased:
        messages += f", {leased} of them delayed or running,"
    confirm(f"Remove {messages} from {mask_urls(store.url)}, for good?", yes)
    removed = sum(store.admin.purge(name) for name in chosen)
    click.echo(f"Removed {count(removed, 'message')}.")


def confirm(question: str, yes: bool) -> None:
    """Ask the user. Raises click's Exit, with code 1, when the answer is no, and UsageError without a
    terminal or --yes."""
    if yes:
        return
    if not sys.stdin or not sys.stdin.isatty():
        raise click.UsageError("Cannot ask for confirmation without a terminal; use --yes.")
    if not click.confirm(question):
        click.echo("Nothing was done.", err=True)
        raise click.exceptions.Exit(1)
