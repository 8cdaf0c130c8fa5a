"""Celery's options of `celery worker` and `celery beat`: accepted if they have no effect here, else refused
with an explanation.

Comes from:  command lines and unit files written for Celery.
Goes to:     click, which shows none of them in --help.
Thread:      main.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


def celery_options(without_effect: Mapping[str, bool], refused: Mapping[str, str]) -> Callable[[_F], _F]:
    """Add Celery's options, hidden. They are not passed to the function.

    without_effect: names, and whether they take a value. refused: names, and replacements.
    """

    def add(command: _F) -> _F:
        for names, valued in without_effect.items():
            command = click.option(
                *names.split("/"),
                is_flag=not valued,
                hidden=True,
                expose_value=False,
                help="This is always so.",
            )(command)
        for names, instead in refused.items():
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

    return add


def _refusal(instead: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def refuse(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is not None:
            raise click.UsageError(f"There is no {'/'.join(param.opts)} in qworker: {instead}.", ctx)

    return refuse
