"""`qworker revoke`: keeps tasks from running.

Comes from:  users.
Goes to:     the broker, which tells every worker, including those that start later.
Thread:      main.
"""

from __future__ import annotations

import signal as signals
from typing import Any

import click

from qworker.cli.options import DependentOption, ParamType, app_option, open_sent
from qworker.cli.output import count

_LONGEST_ID = 255
_SIGNALS = sorted(member.name for member in signals.Signals if not member.name.startswith("SIGRT"))


class _TaskId(ParamType):
    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip()
        if (
            not text
            or len(text) > _LONGEST_ID
            or not text.isprintable()
            or any(char.isspace() for char in text)
        ):
            self.fail(f"{text[:80]!r} is not a task id; `qworker call` and `delay()` return one", param, ctx)
        return text


class _Signal(ParamType):
    name = "signal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).upper()
        name = text if text.startswith("SIG") else f"SIG{text}"
        if name not in _SIGNALS:
            self.fail(f"{value!r} is not a signal; use SIGTERM, SIGINT or SIGKILL", param, ctx)
        return name


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=_TaskId())
@app_option
@click.option("--terminate", is_flag=True, help="Also end running tasks.")
@click.option(
    "-s",
    "--signal",
    cls=DependentOption,
    requires="terminate",
    type=_Signal(),
    default="SIGTERM",
    show_default=True,
    help="The signal for --terminate.",
)
def revoke(ids: tuple[str, ...], app: str | None, terminate: bool, signal: str) -> None:
    """Keep tasks from running, or stop them. An unknown id is remembered."""
    choice = open_sent(app)
    choice.app.control.revoke(ids, terminate=terminate, signal=signal)
    click.echo(f"Revoked {count(len(ids), 'task')}.")
