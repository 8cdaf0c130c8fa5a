"""Celery's options of `celery worker`, for `qworker start`: taken where nothing is lost by it, else refused
in a sentence.

Comes from:  command lines and unit files that were written for Celery.
Goes to:     click, which shows none of them in --help.
Thread:      main.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from qworker.conf.absent import OPTIONS_WITHOUT_EFFECT, WORKER_OPTIONS

_F = TypeVar("_F", bound=Callable[..., Any])


def celery_options(command: _F) -> _F:
    """Add them all, hidden. The function gets none of them."""
    for names, valued in OPTIONS_WITHOUT_EFFECT.items():
        command = click.option(
            *names.split("/"), is_flag=not valued, hidden=True, expose_value=False, help="So it is anyhow."
        )(command)
    for names, instead in WORKER_OPTIONS.items():
        command = click.option(
            *names.split("/"),
            is_flag=False,
            flag_value="",
            hidden=True,
            expose_value=False,
            callback=_refusal(instead),
            help=instead,
        )(command)
    return command


def _refusal(instead: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def refuse(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is not None:
            raise click.UsageError(f"There is no {max(param.opts, key=len)} in qworker: {instead}.", ctx)

    return refuse
