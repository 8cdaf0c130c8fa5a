"""`qworker spool watch`: spool directories, refreshed each second.

Comes from:  users, and programs that read lines of JSON.
Goes to:     ``qworker.spooler.administration.counts``, and the terminal.
Thread:      main.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from qworker.cli.options import Number, SettingValue
from qworker.cli.output import age, on_screen, print_table, visible
from qworker.clock import SYSTEM_CLOCK
from qworker.spooler.administration.counts import Counts, Flow, JobCounter
from qworker.spooler.files.place import existing

_SHORTEST_WAIT = 0.05
_CLEAR = "\x1b[H\x1b[J"
"""To the upper left corner, and clear the screen below."""
_HEADS = ("directory", "due", "running", "delayed", "dead", "new/s", "done/s", "oldest", "next")


class _Seen(NamedTuple):
    """One reading of a directory. error: why it is incomplete."""

    path: str
    now: float
    counts: Counts | None
    flow: Flow | None
    error: str = ""


@click.command("watch")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each directory, each time.")
@click.option("--count", type=Number(min=1), help="End after this many times.")
@click.option(
    "--every",
    type=SettingValue("spooler_frequency"),
    default="1s",
    show_default=True,
    help="How often to refresh.",
)
def watch(directories: tuple[str, ...], as_json: bool, count: int | None, every: float) -> None:
    """Show how many jobs are due, running, due later and set aside, and how many come and go.

    Press q to end. "new/s" and "done/s" are files that were added and removed, by any program; "oldest" is
    how long the oldest job has been due, and "next" when the next delayed one is due. "+" means that there
    may be more. Nothing in the directories is changed; if one is missing, the command waits for it.
    """
    places = list(dict.fromkeys(existing(name, writable=False) for name in directories))
    moving = not as_json and on_screen()
    counters = [JobCounter(place) for place in places]
    try:
        with _keys() as pressed:
            _watch(counters, max(every, _SHORTEST_WAIT), count, _printer(as_json, moving), pressed)
    except KeyboardInterrupt:
        if moving:
            click.echo()
    finally:
        for counter in counters:
            counter.close()


def _watch(
    counters: list[JobCounter],
    every: float,
    count: int | None,
    show: Callable[[list[_Seen]], None],
    pressed: Callable[[list[JobCounter], float], bool],
) -> None:
    done = 0
    while True:
        moment = time.monotonic()
        show([_look(counter) for counter in counters])
        done += 1
        if done == count:
            return
        # Reading a hundred thousand files takes long; at most half of the time is spent reading.
        until = max(moment + every, time.monotonic() + (time.monotonic() - moment))
        while (left := until - time.monotonic()) > 0:
            if pressed(counters, left):
                return
            for counter in counters:
                counter.listen()


def _look(counter: JobCounter) -> _Seen:
    now = SYSTEM_CLOCK.now()
    try:
        return _Seen(counter.path, now, *counter.look())
    except OSError as error:
        return _Seen(counter.path, now, None, None, error.strerror or str(error))


@contextmanager
def _keys() -> Iterator[Callable[[list[JobCounter], float], bool]]:
    """Return a function that waits for a key, at most a number of seconds, and returns whether it was "q"."""
    keyboard = _keyboard()
    if keyboard < 0:
        yield lambda counters, seconds: _wait(counters, -1, seconds)
        return
    import termios
    import tty

    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard, termios.TCSANOW)  # a key counts at once; ctrl-c still interrupts
        yield lambda counters, seconds: _wait(counters, keyboard, seconds)
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _keyboard() -> int:
    """Return the descriptor of the keyboard; -1 if it is not a terminal, or belongs to another program
    now."""
    try:
        file = sys.stdin.fileno()
        return file if os.isatty(file) and os.tcgetpgrp(file) == os.getpgrp() else -1
    except (AttributeError, ValueError, OSError):  # standard input is closed or missing
        return -1


def _wait(counters: list[JobCounter], keyboard: int, seconds: float) -> bool:
    files = [counter.fileno() for counter in counters if counter.fileno() >= 0]
    waiting = select.poll()
    for file in files + ([keyboard] if keyboard >= 0 else []):
        waiting.register(file, select.POLLIN)
    if keyboard not in (file for file, _ in waiting.poll(seconds * 1000)):
        return False
    typed = os.read(keyboard, 100)
    return not typed or b"q" in typed.lower()  # end of input: the terminal is gone


def _printer(as_json: bool, moving: bool) -> Callable[[list[_Seen]], None]:
    if as_json:
        return _print_lines
    return _print_screen if moving else _print_rows


def _print_lines(seen: list[_Seen]) -> None:
    for one in seen:
        click.echo(json.dumps(_fields(one)))


def _print_screen(seen: list[_Seen]) -> None:
    click.echo(_CLEAR, nl=False)
    _print_rows(seen)
    click.echo("\nq ends.")


def _print_rows(seen: list[_Seen]) -> None:
    print_table(_HEADS, [_row(one) for one in seen], right=" ".join(_HEADS[1:]))
    for one in seen:
        if one.error:
            click.echo(f"{visible(one.path)} cannot be read: {one.error}. Waiting for it.")
    sys.stdout.flush()


def _row(one: _Seen) -> tuple[Any, ...]:
    counts, flow = one.counts, one.flow
    if counts is None:
        return (one.path, *("?" for _ in _HEADS[1:]))
    more = "" if counts.complete else "+"
    came, went = ("", "") if flow is None else (_rate(flow.came, flow), _rate(flow.went, flow))
    return (
        one.path,
        counts.due,
        f"{counts.running}{more}",
        counts.delayed,
        "?" if counts.dead is None else counts.dead,
        came,
        went,
        age(None if counts.oldest is None else one.now - counts.oldest),
        age(None if counts.next_due is None else counts.next_due - one.now),
    )


def _rate(jobs: int, flow: Flow) -> str:
    return f"{jobs / flow.seconds:.0f}{'' if flow.complete else '+'}"


def _fields(one: _Seen) -> dict[str, Any]:
    """Return one reading as JSON. Unknown values are null."""
    counts, flow = one.counts, one.flow
    fields: dict[str, Any] = {"time": round(one.now, 3), "directory": one.path}
    if counts is None:
        return fields | {"error": one.error}
    return fields | {
        "due": counts.due,
        "running": counts.running,
        "delayed": counts.delayed,
        "dead": counts.dead,
        "oldest_seconds": None if counts.oldest is None else round(max(one.now - counts.oldest, 0.0), 3),
        "next_seconds": None if counts.next_due is None else round(counts.next_due - one.now, 3),
        "new": None if flow is None else flow.came,
        "done": None if flow is None else flow.went,
        "seconds": None if flow is None else round(flow.seconds, 3),
        "complete": counts.complete and (flow is None or flow.complete),
    }
