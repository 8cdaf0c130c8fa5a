"""`qworker move`: moves waiting messages from one broker to another.

Comes from:  users who change their broker.
Goes to:     `transports/transfer.py`.
Thread:      main.
"""

from __future__ import annotations

import sys
from contextlib import closing

import click

from qworker.cli.names import slips
from qworker.cli.options import QUEUE_NAMES, SettingValue, app_option, open_app
from qworker.cli.output import count, on_screen, print_table
from qworker.cli.purge import confirm
from qworker.conf import Settings, mask_urls
from qworker.errors import ConfigurationError
from qworker.transports import open_broker
from qworker.transports.lease import Broker, QueueInfo
from qworker.transports.transfer import Report, move, same_place, waiting

_LINE_EVERY = 10_000


@click.command(
    "move",
    epilog="Stop the workers first, and send new calls to TO_URL. If a move is interrupted, run it again: "
    "nothing is lost, and at most 100 messages are duplicated.",
)
@click.argument("from_url", type=SettingValue("broker_url"))
@click.argument("to_url", type=SettingValue("broker_url"))
@app_option
@click.option("-Q", "--queues", type=QUEUE_NAMES, help="Queues to move, separated by commas; default: all.")
@click.option("--dead", is_flag=True, help="Move the dead letters too.")
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be moved.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def move_(
    from_url: str,
    to_url: str,
    app: str | None,
    queues: tuple[str, ...] | None,
    dead: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Move waiting and delayed messages from one broker to another, without loss.

    FROM_URL and TO_URL are broker URLs, as in broker_url. Ids, priorities, due times, expiry and signatures
    are kept. Running messages are not moved. Other settings of the brokers are those of the app.
    """
    conf = open_app(app, tasks=False).app.conf
    if same_place(from_url, to_url):
        raise ConfigurationError(f"{mask_urls(from_url)} and {mask_urls(to_url)} are the same place")
    with closing(open_broker(from_url, conf)) as source, closing(open_broker(to_url, conf)) as target:
        if source.missing:
            raise ConfigurationError(
                f"there is nothing at {mask_urls(from_url)}: there is no {source.missing}"
            )
        infos = waiting(source, queues)
        _show(infos, dead)
        _warn(source, target)
        total = sum(info.ready + info.delayed for info in infos)
        letters = sum(info.dead for info in infos) if dead else 0
        if dry_run:
            return 0
        leased = any(info.leased for info in infos)  # perhaps by a move that was killed: they come back
        if not (total or letters or leased or "counts" in source.lacks):
            click.echo("There is nothing to move.")
            for slip in slips(queues or (), [info.queue for info in source.admin.queues()]):
                click.echo(slip, err=True)
            return 0
        target.admin.queues()  # an unavailable target is noticed before anything is taken
        question = f"Move {count(total, 'message')}"
        question += f" and {count(letters, 'dead letter')}" if dead else ""
        confirm(f"{question} from {mask_urls(source.url)} to {mask_urls(target.url)}?", yes)
        try:
            return _print_report(_run(source, target, queues, dead, total, conf), dead)
        except KeyboardInterrupt:
            click.echo("\nNothing is lost: run this again to move the rest.", err=True)
            raise


def _run(
    source: Broker,
    target: Broker,
    queues: tuple[str, ...] | None,
    dead: bool,
    total: int,
    conf: Settings,
) -> Report:
    """Run the move, with a progress bar on a terminal, and some lines elsewhere."""
    if not on_screen(errors=True):
        reported = 0

        def report_progress(moved: int) -> None:
            nonlocal reported
            if moved - reported >= _LINE_EVERY:
                reported = moved
                click.echo(f"{moved} of {max(total, moved)} messages moved", err=True)

        return move(source, target, queues, dead, conf.worker_lease_seconds, report_progress)
    with click.progressbar(length=total, label="Moving", file=sys.stderr) as bar:
        return move(
            source,
            target,
            queues,
            dead,
            conf.worker_lease_seconds,
            lambda moved: bar.update(moved - bar.pos),
        )


def _show(infos: list[QueueInfo], dead: bool) -> None:
    if infos:
        heads = ("queue", "ready", "delayed", "running", "dead")
        rows = [(info.queue, info.ready, info.delayed, info.leased, info.dead) for info in infos]
        print_table(heads, rows, right="ready delayed running dead")
    if not dead and (letters := sum(info.dead for info in infos)):
        click.echo(f"{count(letters, 'dead letter')} will stay; --dead moves them too.", err=True)


def _warn(source: Broker, target: Broker) -> None:
    if source.presence is None:
        click.echo("This broker does not report whether workers are running; stop them first.", err=True)
    elif workers := source.presence.admin.workers():
        names = ", ".join(worker.name for worker in workers[:5])
        verb = "is" if len(workers) == 1 else "are"
        text = f"Warning: {count(len(workers), 'worker')} {verb} running on the old broker ({names}): "
        click.echo(text + "the messages they hold stay with them.", err=True)
    if "counts" in source.lacks:
        text = (
            "This broker only delivers delayed messages when they are due: they stay. Run this again later "
            "for them."
        )
        click.echo(text, err=True)


def _print_report(report: Report, dead: bool) -> int:
    letters = f" and {count(report.dead, 'dead letter')}" if dead else ""
    click.echo(f"Moved {count(report.moved, 'message')}{letters}.")
    if report.twice:
        text = f"Another process took {report.twice} of them at the same time: these may run twice."
        click.echo(text, err=True)
    remaining = [info for info in report.left if info.ready or info.delayed or info.leased]
    for info in remaining:
        left = f"{info.ready} ready, {info.delayed} delayed, {info.leased} running"
        click.echo(f"Left in queue {info.queue!r}: {left}.", err=True)
    return 1 if any(info.ready or info.delayed for info in remaining) else 0
