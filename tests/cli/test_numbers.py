"""Numbers and durations on the command line cannot be infinite, negative or NaN."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest
from click.testing import Result

from tests.support.commands import COMMANDS

NUMBERS = sorted(
    (name, parameter.opts[-1])
    for name, command in COMMANDS.items()
    for parameter in command.params
    if isinstance(parameter, click.Option)
    and getattr(parameter.type, "name", "") in ("duration", "number", "integer range", "float range")
)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "-inf"])
def test_options_refuse_invalid_numbers(run: Callable[..., Result], value: str) -> None:
    assert ("call", "--countdown") in NUMBERS
    taken = []
    for name, option in NUMBERS:
        result = run(*name.split(), option, value)
        if result.exit_code != 2 or f"{option}': " not in result.stderr:
            taken.append((name, option, result.stderr))
    assert taken == []
