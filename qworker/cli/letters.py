"""`qworker dead` and `qworker failed`: messages that could not be run, and tasks that have failed for good.

Comes from:  users who investigate failures.
Goes to:     ``app.failed``; ``control/dead_letters.py``; the broker's dead letters.
Thread:      main.

list, show and discard are the same for both kinds; the differences are in ``LetterCommands``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

import click

from qworker.app import QWorker
from qworker.cli.completion import queue_names, task_names
from qworker.cli.groups import SuggestingGroup
from qworker.cli.names import doubt_queues, numbers_of
from qworker.cli.options import DependentOption, JsonValue, Number, app_option, json_option, open_sent
from qworker.cli.output import age, count, cut, newest, print_json, print_table, visible
from qworker.cli.purge import confirm
from qworker.control import dead_letters
from qworker.control.failed import FailedTask
from qworker.control.letters import chosen
from qworker.errors import ConfigurationError
from qworker.naming import DJANGO_PACKAGES, close_tasks
from qworker.transports.lease import Dead
from qworker.transports.own_headers import headers_in

_LONGEST_WHY = 60
_LONGEST_BODY = 4096
_F = TypeVar("_F", bound=Callable[..., Any])

_QUEUE = click.option(
    "-Q", "--queue", metavar="NAME", shell_complete=queue_names, help="Only those of this queue."
)
_TAGS = click.argument("tags", metavar="[TAG]...", nargs=-1)


def _selection(command: _F) -> _F:
    """Add the options that select failed tasks."""
    command = click.option("--error", metavar="TEXT", help="Only those whose error contains this text.")(
        _QUEUE(command)
    )
    return click.option("--task", metavar="NAME", shell_complete=task_names, help="Only those of this task.")(
        command
    )


def _no_selection(command: _F) -> _F:
    return command


def _all(what: str) -> Callable[[_F], _F]:
    return click.option("--all", "everything", is_flag=True, help=what)


@dataclass(frozen=True)
class LetterCommands:
    """The differences between the commands of the two kinds of letters.

    - name: of the group of commands. noun: what one is called. shows: the help of `show`.
    - tasks: whether the app's tasks are loaded. selects: the selecting options of `list` and the other
      commands; by: these options in words. everything: the help of --all.
    - meant: completes the selection. find: the newest selected letters, newest first. get: one, by its
      number. discard: delete those with these numbers (None: all selected) and return their number.
    - heads, numbers, row: the table. fields: one as JSON. show: print it in full. nothing: print that there
      is none.
    """

    name: str
    noun: str
    shows: str
    tasks: bool
    selects: tuple[Callable[[Any], Any], Callable[[Any], Any]]
    by: str
    everything: str
    meant: Callable[[QWorker, dict[str, Any]], None]
    find: Callable[[QWorker, dict[str, Any]], Iterable[Any]]
    get: Callable[[QWorker, int], Any]
    discard: Callable[[QWorker, list[int] | None, dict[str, Any]], int]
    heads: tuple[str, ...]
    numbers: str
    row: Callable[[Any, float], tuple[Any, ...]]
    fields: Callable[[Any], dict[str, Any]]
    show: Callable[[Any], None]
    nothing: Callable[[QWorker, dict[str, Any]], None]

    def open(self, app: str | None) -> QWorker:
        return open_sent(app, tasks=self.tasks).app

    def check(self, tags: tuple[str, ...], everything: bool, words: dict[str, Any]) -> None:
        """Raise UsageError unless exactly one way of selecting was used."""
        selected = any(value is not None for value in words.values())
        if tags and selected:
            raise click.UsageError("A tag cannot be combined with --task, --error or --queue.")
        if words.get("error") == "":  # every error contains it; often an unset variable of the shell
            raise click.UsageError("--error is empty: give a part of the error, or use --all.")
        if everything and (tags or selected):
            raise click.UsageError("--all selects everything: leave it out, or the tags and other options.")
        if sum((bool(tags), everything, selected)) != 1:
            raise click.UsageError(
                f"Name {self.noun}s by the tags that `qworker {self.name} list` shows, {self.by}or use --all."
            )

    def tagged(self, app: QWorker, tags: tuple[str, ...]) -> list[int] | None:
        """Return the numbers of *tags*; None for no tags."""
        if not tags:
            return None
        found = ((each.tag, self.fields(each)["id"]) for each in self.find(app, {}))
        return numbers_of(found, tags, self.noun, self.name)


def _group(kind: LetterCommands, about: str) -> click.Group:
    """Return the commands that both kinds have: list, show and discard."""
    named = f"`qworker {kind.name} list`, or the id of the call."

    @click.group(kind.name, cls=SuggestingGroup, help=about)
    def group() -> None: ...

    @group.command("list", help=f"List {kind.noun}s, newest first.")
    @app_option
    @kind.selects[0]
    @click.option(
        "--limit", type=Number(min=1), default=100, show_default=True, help="How many, newest first."
    )
    @json_option
    def list_(app: str | None, limit: int, as_json: bool, **words: Any) -> None:
        application = kind.open(app)
        kind.meant(application, words)
        found = list(islice(kind.find(application, {**words, "limit": limit + 1}), limit + 1))
        is_cut = len(found) > limit
        found = found[:limit]
        if as_json:
            print_json([kind.fields(each) for each in found])
            return
        if not found:
            kind.nothing(application, words)
            return
        now = application.clock.now()
        print_table(kind.heads, [kind.row(each, now) for each in found], right=kind.numbers)
        if is_cut:
            click.echo(newest(limit), err=True)
        do = f"qworker {kind.name}"
        click.echo(f"\nMore: {do} show TAG. Then: {do} retry TAG, or {do} discard TAG.", err=True)

    @group.command(help=f"{kind.shows}\n\nTAG is its number in {named}")
    @click.argument("tag", metavar="TAG")
    @app_option
    @json_option
    def show(tag: str, app: str | None, as_json: bool) -> None:
        application = kind.open(app)
        (number, *_) = kind.tagged(application, (tag,)) or [0]
        found = kind.get(application, number)
        print_json(kind.fields(found)) if as_json else kind.show(found)

    @group.command(help=f"Delete {kind.noun}s for good.\n\nTAG is the number of one in {named}")
    @_TAGS
    @app_option
    @kind.selects[1]
    @_all(kind.everything)
    @click.option("-y", "--yes", is_flag=True, help="Do not ask.")
    def discard(tags: tuple[str, ...], app: str | None, everything: bool, yes: bool, **words: Any) -> None:
        kind.check(tags, everything, words)
        application = kind.open(app)
        numbers = kind.tagged(application, tags)
        kind.meant(application, words)
        if not tags:
            confirm(f"Delete all {'' if everything else 'matching '}{kind.noun}s?", yes)
        click.echo(f"Deleted {count(kind.discard(application, numbers, words), kind.noun)}.")

    return group


def _print_fields(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        click.echo(f"{name}: {visible(str(value))}")


# -- dead letters --


def _doubt_queue(app: QWorker, words: dict[str, Any]) -> None:
    if words.get("queue") is not None:
        doubt_queues(app, [words["queue"]])


def _dead(app: QWorker, words: dict[str, Any], tags: list[int] | None = None) -> Iterable[Dead]:
    return chosen(app.broker.letters.get("dead"), tags, words.get("queue"), words.get("limit"))


def _get_dead(app: QWorker, number: int) -> Dead:
    for letter in _dead(app, {}, [number]):
        return letter
    raise ConfigurationError(f"there is no dead letter {number}; see `qworker dead list`")  # or no longer


def _dead_row(letter: Dead, now: float) -> tuple[Any, ...]:
    why = cut(letter.reason, _LONGEST_WHY)
    return letter.tag, letter.queue, _task(letter), letter.deliveries, age(now - letter.died_at), why


def _task(letter: Dead) -> str:
    return visible(str(headers_in(letter.headers).get("task") or "?"))


def _dead_fields(letter: Dead) -> dict[str, Any]:
    headers = headers_in(letter.headers)
    return {
        "tag": letter.tag,
        "id": headers.get("id"),
        "queue": letter.queue,
        "reason": letter.reason,
        "died_at": datetime.fromtimestamp(letter.died_at, UTC),
        "deliveries": letter.deliveries,
        "headers": headers or letter.headers,
        "properties": letter.properties,
        "body": letter.body.decode("utf-8", "backslashreplace"),
    }


def _show_dead(letter: Dead) -> None:
    fields = _dead_fields(letter)
    body, headers = fields.pop("body"), fields.pop("headers")
    _print_fields(fields)
    click.echo("headers:")
    if isinstance(headers, dict):
        for name, value in headers.items():
            click.echo(f"  {visible(name)}: {visible(json.dumps(value, ensure_ascii=False))}")
    else:
        click.echo(f"  {visible(str(headers))}")
    more = "…" if len(body) > _LONGEST_BODY else ""
    click.echo(f"body ({len(letter.body)} bytes): {visible(body[:_LONGEST_BODY])}{more}")


def _no_dead(app: QWorker, words: dict[str, Any]) -> None:
    queue = words["queue"]
    click.echo("There are no dead letters." if queue is None else f"Queue {queue!r} has no dead letters.")


DEAD = LetterCommands(
    name="dead",
    noun="dead letter",
    shows="Show one dead letter in full: why it died, its headers and its body.",
    tasks=True,
    selects=(_QUEUE, _no_selection),
    by="",
    everything="All dead letters.",
    meant=_doubt_queue,
    find=_dead,
    get=_get_dead,
    discard=lambda app, numbers, words: app.broker.admin.dead_discard(numbers),
    heads=("tag", "queue", "task", "deliveries", "age", "reason"),
    numbers="tag deliveries age",
    row=_dead_row,
    fields=_dead_fields,
    show=_show_dead,
    nothing=_no_dead,
)
dead = _group(DEAD, "Look at dead letters: messages that no worker could run. Retry or discard them.")


@dead.command("retry")
@_TAGS
@_all(DEAD.everything)
@click.option("--sign", is_flag=True, help="Sign those that are not signed with a key of security_key.")
@click.option(
    "-y", "--yes", cls=DependentOption, requires="sign", is_flag=True, help="With --sign: do not ask."
)
@app_option
def retry_dead(tags: tuple[str, ...], everything: bool, sign: bool, yes: bool, app: str | None) -> None:
    """Put dead letters back into their queues, as if they had never been delivered.

    TAG is the number of one in `qworker dead list`, or the id of the call.

    With a security_key, letters that are not signed with it are not put back: workers would refuse them
    again. Anyone with write access to the broker may have sent them, so check them before you sign them.
    """
    DEAD.check(tags, everything, {})
    application = DEAD.open(app)
    if sign and application.signer is None:
        raise click.UsageError("--sign needs a security_key, and the app has none.")
    numbers = DEAD.tagged(application, tags)
    letters = dead_letters.unsigned(application, numbers) if sign else []
    for letter in letters:
        click.echo(f"{letter.tag}: {_task(letter)}, queue {visible(letter.queue)}")
    if letters:
        confirm(f"Sign {count(len(letters), DEAD.noun)}?", yes)
    # Only the shown ones: meanwhile anyone may have sent more.
    done = dead_letters.retry(application, numbers, sign={letter.tag for letter in letters})
    click.echo(f"Put {count(done.number, 'message')} back.")
    for tag, why in done.refused.items():
        click.echo(f"Error: dead letter {tag} was not put back: {visible(why)}", err=True)
    if done.refused:
        click.echo(
            "Check them: qworker dead show TAG. Then: qworker dead retry TAG --sign, if you trust the "
            "sender, or qworker dead discard TAG.",
            err=True,
        )
        raise click.exceptions.Exit(1)


# -- failed tasks --


def _whole_name(app: QWorker, words: dict[str, Any]) -> None:
    """Replace the shortened name of a task in *words* by its full name. A name that matches no failed task is
    reported on standard error."""
    _doubt_queue(app, words)
    name = words["task"]
    if name is None:
        return
    known = {each.task for each in app.failed}
    ending = [each for each in known if each.endswith(f".{name}")]
    if name in known:
        return
    if len(ending) == 1:
        words["task"] = ending[0]
    elif guesses := sorted(ending) or close_tasks(name, known):
        meant = " or ".join(map(repr, guesses))
        click.echo(f"No {name!r:.200} has failed. Did you mean {meant}?", err=True)


def _failed_row(each: FailedTask, now: float) -> tuple[Any, ...]:
    why = cut(each.error, _LONGEST_WHY)
    return each.tag, each.queue, each.task or "?", each.attempts, age(now - each.failed_at), why


def _failed_fields(each: FailedTask) -> dict[str, Any]:
    return {**asdict(each), "failed_at": datetime.fromtimestamp(each.failed_at, UTC)}


def _show_failed(each: FailedTask) -> None:
    fields = _failed_fields(each)
    traceback = fields.pop("traceback")
    _print_fields(fields)
    for line in traceback.splitlines():
        click.echo(visible(line))


def _no_failed(app: QWorker, words: dict[str, Any]) -> None:
    click.echo("No failed task matches." if any(words.values()) else "There are no failed tasks.")
    if DJANGO_PACKAGES in app.tasks:
        click.echo(
            "Failures of what async_task() called are in the project's database: see Failed tasks in the "
            "admin, or qworker.django.models.Failure.",
            err=True,
        )


FAILED = LetterCommands(
    name="failed",
    noun="failed task",
    shows="Show one failed task: its arguments (as in logs), its attempts and its traceback.",
    tasks=False,
    selects=(_selection, _selection),
    by="or by --task, --error and --queue, ",
    everything="All of them.",
    meant=_whole_name,
    find=lambda app, words: app.failed.list(**words) if words else app.failed,
    get=lambda app, number: app.failed.get(number),
    discard=lambda app, numbers, words: app.failed.discard(numbers, **words),
    heads=("tag", "queue", "task", "attempts", "age", "error"),
    numbers="tag attempts age",
    row=_failed_row,
    fields=_failed_fields,
    show=_show_failed,
    nothing=_no_failed,
)
failed = _group(FAILED, "Look at tasks that have failed for good. Retry or discard them.")


@failed.command("retry")
@_TAGS
@app_option
@_selection
@_all(FAILED.everything)
@click.option(
    "-a", "--args", type=JsonValue(list, "'[2, 3]'"), help="New positional arguments, for one task."
)
@click.option(
    "-k", "--kwargs", type=JsonValue(dict, """'{"x": 2}'"""), help="New keyword arguments, for one task."
)
def retry_failed(
    tags: tuple[str, ...],
    app: str | None,
    everything: bool,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    **words: Any,
) -> int:
    """Send failed tasks again, with their full number of retries.

    TAG is the number of one in `qworker failed list`, or the id of the call. Exit code 1 when all selected
    tasks are refused.
    """
    FAILED.check(tags, everything, words)
    if (args is not None or kwargs is not None) and len(tags) != 1:
        raise click.UsageError("--args and --kwargs are for one failed task, named by its tag.")
    application = FAILED.open(app)
    numbers = FAILED.tagged(application, tags)
    _whole_name(application, words)
    done = application.failed.retry(numbers, args=args, kwargs=kwargs, **words)
    click.echo(f"Sent {count(done.number, 'task')} again.")
    for tag, why in done.refused.items():
        which = f"failed task {tag} "
        text = why if why.startswith(which) else f"{which}was not sent again: {why}"
        click.echo(f"Error: {visible(text)}", err=True)
    return 1 if done.refused and not done.number else 0
