"""The options of `qworker spool add` and `qworker spool send` for a new job.

Comes from:  the command line.
Goes to:     the two commands.
Thread:      main.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from qworker.cli.options import Checked, SettingValue
from qworker.cli.output import visible
from qworker.clock import SYSTEM_CLOCK, parse_iso
from qworker.errors import ConfigurationError, SpoolError
from qworker.spooler.files.packet import priority_name

_F = TypeVar("_F", bound=Callable[..., Any])


def _moment(text: str) -> float | datetime:
    try:
        return float(text) if text.replace(".", "", 1).isdecimal() else parse_iso(text)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _priority(text: str) -> str:
    try:
        return priority_name(text)
    except SpoolError as error:
        raise ConfigurationError(str(error)) from None


def job_options(command: _F) -> _F:
    """Add KEY=VALUE..., --at, --in, --priority and --body. The function gets `pairs`, `at`, `delay`,
    `priority` and `body`."""
    for option in reversed(
        (
            click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True),
            click.option(
                "--at",
                type=Checked("time", _moment),
                help="When it is due: 2030-01-31T08:00:00Z, or epoch seconds.",
            ),
            click.option(
                "--in",
                "delay",
                type=SettingValue("worker_shutdown_timeout"),
                help="How long until it is due.",
            ),
            click.option(
                "--priority",
                type=Checked("number", _priority),
                default="",
                help="The directory it goes to; spoolers only use it with --spooler-ordered.",
            ),
            click.option("--body", type=click.File("rb"), help="File with the body; - for standard input."),
        )
    ):
        command = option(command)
    return command


def due(at: float | datetime | None, delay: float | None) -> float | datetime | None:
    """Return when the job is due; None for now."""
    if at is not None and delay is not None:
        raise click.UsageError("Use --at or --in, not both.")
    return at if delay is None else SYSTEM_CLOCK.now() + delay


def read_pairs(words: tuple[str, ...]) -> dict[str | bytes, bytes]:
    """Return the pairs in *words*, byte for byte."""
    pairs: dict[str | bytes, bytes] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise click.UsageError(f"Write each pair as KEY=VALUE, not {visible(word[:80])!r}.")
        if os.fsencode(key) in pairs:
            raise click.UsageError(
                f"The key {visible(key[:80])!r} is given twice: a job has one value for it."
            )
        pairs[os.fsencode(key)] = os.fsencode(value)
    return pairs
