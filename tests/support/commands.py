"""All commands of the command line, for tests that apply to each of them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from qworker.cli.main import main


def leaves(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands except groups, by the words that call them."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, f"{path} {name}".strip())
    else:
        yield path, command


COMMANDS = dict(leaves(main))
