"""Watching: refreshed output of a command, until interrupted.

Comes from:  the commands that have --watch.
Goes to:     standard output.
Thread:      main.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TextIO, TypeVar

import click

from qworker.cli.options import DependentOption, SettingValue
from qworker.cli.output import print_json, to_json
from qworker.conf import mask_urls
from qworker.errors import BackendError, BrokerUnavailable

_F = TypeVar("_F", bound=Callable[..., Any])
SHORTEST_WAIT = 0.1
CLEAR = "\x1b[H\x1b[J"
"""To the upper left corner, and clear the screen below."""


class Picture(NamedTuple):
    """The output of a command. lines: text. value: for --json. is_last: it will not change any more."""

    lines: Sequence[str]
    value: Any
    is_last: bool = False


def watch_options(command: _F) -> _F:
    """Add --watch and --every. The function gets them as `watch` and `every`."""
    every = click.option(
        "--every",
        cls=DependentOption,
        requires="watch",
        type=SettingValue("worker_shutdown_timeout"),
        default="2s",
        show_default=True,
        help="Refresh interval of --watch.",
    )
    watch = click.option(
        "--watch", is_flag=True, help="Refresh until Ctrl-C. With --json: one line each time."
    )
    return watch(every(command))


def show(
    look: Callable[[], Picture],
    as_json: bool,
    watch: bool = False,
    every: float = 2.0,
    rest: Callable[[float], object] = time.sleep,
) -> None:
    """Print the result of *look*; with *watch* again each time it changes, until it is the last one, or
    Ctrl-C. rest: waits for a number of seconds, or less if something has changed."""
    if watch:
        is_drawn = not as_json and can_draw(sys.stdout)
        Watching(look, as_json, is_drawn, max(every, SHORTEST_WAIT), rest).run()
        return
    picture = look()
    if as_json:
        print_json(picture.value)
    else:
        _print(picture.lines)


def can_draw(output: TextIO) -> bool:
    """Return whether *output* is a terminal that can be redrawn."""
    return output.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Watching:
    """One run of a command with --watch.

    It waits for an unavailable broker or result store.

    - is_drawn: the terminal is cleared and redrawn each time. Otherwise each picture is printed below the
      last one, unless it is equal.
    - every: seconds. rest: waits for a number of seconds, or less. now: returns the time of day as text.
    """

    def __init__(
        self,
        look: Callable[[], Picture],
        as_json: bool,
        is_drawn: bool,
        every: float,
        rest: Callable[[float], object] = time.sleep,
        now: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
    ) -> None:
        self._look = look
        self._as_json = as_json
        self._every = every
        self._rest = rest
        self._now = now
        self._is_drawn = is_drawn
        self._last: Picture | None = None
        self._away = ""
        """The time of day of the first failed refresh; "" if the last one succeeded."""

    def run(self) -> None:
        """Refresh until the picture is the last one, or Ctrl-C. An error of the first time is raised."""
        try:
            while not self._turn():
                self._rest(self._every)
        except KeyboardInterrupt:
            if self._is_drawn:
                click.echo()

    def _turn(self) -> bool:
        """Refresh once; return whether that was the last time."""
        try:
            picture = self._look()
        except (BrokerUnavailable, BackendError) as error:
            if self._last is None:
                raise
            self._show_lost(mask_urls(str(error)))
            return False
        back = self._away and f"The server answers again, after silence since {self._away}."
        self._away = ""
        if self._is_drawn:
            _draw(picture.lines, back or f"{self._now()}  every {self._every:g} s; Ctrl-C ends")
        else:
            if back:
                click.echo(back, err=True)
            self._print(picture)
        self._last = picture
        return picture.is_last

    def _show_lost(self, why: str) -> None:
        is_news = not self._away
        self._away = self._away or self._now()
        if self._is_drawn and self._last is not None:
            _draw(self._last.lines, f"{self._now()}  No answer since {self._away}: {why}")
        elif is_news:
            click.echo(f"No answer since {self._away}; waiting: {why}", err=True)

    def _print(self, picture: Picture) -> None:
        last = self._last
        if self._as_json:
            if last is None or last.value != picture.value:
                click.echo(to_json(picture.value, indent=None))
        elif last is None or last.lines != picture.lines:
            _print([self._now(), *picture.lines])
        sys.stdout.flush()


def _draw(lines: Sequence[str], foot: str) -> None:
    """Draw as many *lines* as fit, and *foot* below. Lines must not wrap, because the following ones would be
    misplaced."""
    width, height = shutil.get_terminal_size()
    room = max(height - 3, 1)
    kept = (
        list(lines) if len(lines) <= room else [*lines[: room - 1], f"… {len(lines) - room + 1} more lines"]
    )
    click.echo(CLEAR + "\n".join(line[: width - 1] for line in [*kept, "", foot]), nl=False, color=True)
    sys.stdout.flush()


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line)
