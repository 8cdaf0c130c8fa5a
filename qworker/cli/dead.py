"""`qworker dead`: the dead letters.

Comes from:  people who want to know why a message was given up, and what to do with it.
Goes to:     the broker's administration.
Thread:      main.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from qworker.app import QWorker
from qworker.cli.completion import queue_names
from qworker.cli.groups import SuggestingGroup
from qworker.cli.names import doubt_queues, numbers_of
from qworker.cli.options import Beside, Number, app_option, json_option, open_sent
from qworker.cli.output import age, count, cut, newest, print_json, print_table, visible
from qworker.cli.purge import confirm
from qworker.control.dead_letters import ALL, unsigned
from qworker.control.dead_letters import retry as retry_letters
from qworker.transports.lease import Dead

_LONGEST_REASON = 60
_LONGEST_BODY = 4096


@click.group(cls=SuggestingGroup)
def dead() -> None:
    """Look at dead letters: messages that no worker could run. Retry or discard them."""


@dead.command("list")
@app_option
@click.option("-Q", "--queue", metavar="NAME", shell_complete=queue_names, help="Only those of this queue.")
@click.option("--limit", type=Number(min=1), default=100, show_default=True, help="How many, newest first.")
@json_option
def list_(app: str | None, queue: str | None, limit: int, as_json: bool) -> None:
    """List dead letters, newest first."""
    choice = open_sent(app)
    if queue is not None:
        doubt_queues(choice.app, [queue])
    letters = choice.app.broker.admin.dead(queue, limit + 1)
    is_cut = len(letters) > limit
    letters = letters[:limit]
    if as_json:
        print_json([_fields(letter) for letter in letters])
        return
    if not letters:
        click.echo("There are no dead letters." if queue is None else f"Queue {queue!r} has no dead letters.")
        return
    now = choice.app.clock.now()
    rows = []
    for letter in letters:
        reason = cut(letter.reason, _LONGEST_REASON)
        rows.append(
            (letter.tag, letter.queue, _task(letter), letter.deliveries, age(now - letter.died_at), reason)
        )
    print_table(("tag", "queue", "task", "deliveries", "age", "reason"), rows, right="tag deliveries age")
    if is_cut:
        click.echo(newest(limit), err=True)
    click.echo(
        "\nMore: qworker dead show TAG. Then: qworker dead retry TAG, or qworker dead discard TAG.", err=True
    )


@dead.command()
@click.argument("tag", metavar="TAG")
@app_option
@json_option
def show(tag: str, app: str | None, as_json: bool) -> None:
    """Show one dead letter whole: why it died, its headers and its body.

    TAG is its number in `qworker dead list`, or the id of the call.
    """
    letters = open_sent(app).app.broker.admin.dead(None, ALL)
    number = _numbers(letters, (tag,))[0]
    letter = next(each for each in letters if each.tag == number)
    if as_json:
        print_json(_fields(letter))
        return
    fields = _fields(letter)
    body = fields.pop("body")
    headers = fields.pop("headers")
    for name, value in fields.items():
        click.echo(f"{name}: {visible(str(value))}")
    click.echo("headers:")
    if isinstance(headers, dict):
        for name, value in headers.items():
            click.echo(f"  {visible(name)}: {visible(json.dumps(value, ensure_ascii=False))}")
    else:
        click.echo(f"  {visible(str(headers))}")
    cut = "…" if len(body) > _LONGEST_BODY else ""
    click.echo(f"body ({len(letter.body)} bytes): {visible(body[:_LONGEST_BODY])}{cut}")


@dead.command()
@click.argument("tags", metavar="[TAG]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--sign", is_flag=True, help="Sign those that are not signed with a key of security_key.")
@click.option("-y", "--yes", cls=Beside, beside="sign", is_flag=True, help="With --sign: do not ask.")
@app_option
def retry(tags: tuple[str, ...], everything: bool, sign: bool, yes: bool, app: str | None) -> None:
    """Put dead letters back into their queues, as if they had never been delivered.

    TAG is the number of one in `qworker dead list`, or the id of the call.

    With a security_key those that are not signed with it stay: workers would refuse them again. Whoever can
    write to the broker can have sent them, so look at them before you sign them.
    """
    _which(tags, everything)
    application = open_sent(app).app
    if sign and application.signer is None:
        raise click.UsageError("--sign needs a security_key, and the app has none.")
    chosen = _existing(application, tags)
    letters = unsigned(application, chosen) if sign else []
    for letter in letters:
        click.echo(f"{letter.tag}: {_task(letter)}, queue {visible(letter.queue)}")
    if letters:
        confirm(f"Sign {count(len(letters), 'dead letter')}?", yes)
    # Only what was shown: meanwhile anybody may have sent more.
    done = retry_letters(application, chosen, sign={letter.tag for letter in letters})
    click.echo(f"Put {count(done.number, 'message')} back.")
    for tag, why in done.refused.items():
        click.echo(f"Error: dead letter {tag} stays: {visible(why)}", err=True)
    if done.refused:
        click.echo(
            "Look at them: qworker dead show TAG. Then: qworker dead retry TAG --sign, if you trust who sent "
            "it, or qworker dead discard TAG.",
            err=True,
        )
        raise click.exceptions.Exit(1)


@dead.command()
@click.argument("tags", metavar="[TAG]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@app_option
def discard(tags: tuple[str, ...], everything: bool, yes: bool, app: str | None) -> None:
    """Delete dead letters for good.

    TAG is the number of one in `qworker dead list`, or the id of the call.
    """
    _which(tags, everything)
    application = open_sent(app).app
    chosen = _existing(application, tags)
    if chosen is None:
        confirm("Delete all dead letters?", yes)
    click.echo(f"Deleted {count(application.broker.admin.dead_discard(chosen), 'dead letter')}.")


def _which(tags: tuple[str, ...], everything: bool) -> None:
    if everything == bool(tags):
        raise click.UsageError("Name dead letters by the tags that `qworker dead list` shows, or use --all.")


def _existing(app: QWorker, tags: tuple[str, ...]) -> list[int] | None:
    """Return the numbers of those that *tags* name, None for all."""
    return _numbers(app.broker.admin.dead(None, ALL), tags) if tags else None


def _numbers(letters: Sequence[Dead], tags: tuple[str, ...]) -> list[int]:
    return numbers_of(
        ((letter.tag, _headers(letter).get("id")) for letter in letters), tags, "dead letter", "dead"
    )


def _task(letter: Dead) -> str:
    return visible(str(_headers(letter).get("task") or "?"))


def _headers(letter: Dead) -> dict[str, Any]:
    """Return the headers as they are. They are {} when they are no JSON object, which may be why the message
    is a dead letter."""
    try:
        headers = json.loads(letter.headers)
    except (ValueError, RecursionError):
        return {}
    return headers if isinstance(headers, dict) else {}


def _fields(letter: Dead) -> dict[str, Any]:
    return {
        "tag": letter.tag,
        "id": _headers(letter).get("id"),
        "queue": letter.queue,
        "reason": letter.reason,
        "died_at": datetime.fromtimestamp(letter.died_at, UTC),
        "deliveries": letter.deliveries,
        "headers": _headers(letter) or letter.headers,
        "properties": letter.properties,
        "body": letter.body.decode("utf-8", "backslashreplace"),
    }
