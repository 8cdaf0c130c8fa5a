"""Groups: commands with subcommands, and suggestions for misspelt ones.

Comes from:  main, config, dead.
Goes to:     click.
Thread:      main.
"""

from __future__ import annotations

import click


class SuggestingGroup(click.Group):
    """Suggests the most similar command for a misspelt one, or lists all."""

    def without(self, name: str) -> str | None:
        """Return an explanation for the missing command *name*; None if there is none."""
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            if why := self.without(name):
                raise click.UsageError(f"There is no command {name!r} in qworker: {why}.", ctx)
            from difflib import get_close_matches

            known = self.list_commands(ctx)
            nearest = get_close_matches(name, known, 1)
            hint = f"Did you mean {nearest[0]!r}?" if nearest else f"There are: {', '.join(known)}."
            raise click.UsageError(f"There is no command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)
