"""`qworker config`: the settings, where each comes from, and what is wrong with them.

Comes from:  people.
Goes to:     the app's settings.
Thread:      main.
"""

from __future__ import annotations

import click

from qworker.cli.groups import SuggestingGroup
from qworker.cli.options import app_option, json_option, open_app
from qworker.cli.output import count, print_json, print_table
from qworker.conf import SETTINGS
from qworker.errors import ConfigurationError
from qworker.naming import near


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Show all settings with their sources; check them."""


@config.command()
@click.argument("names", nargs=-1)
@app_option
@click.option("--changed", is_flag=True, help="Only those that some source gives.")
@json_option
def show(names: tuple[str, ...], app: str | None, changed: bool, as_json: bool) -> None:
    """Show every setting, or those NAMES, with value and source. Secrets are masked."""
    for name in names:
        if name not in SETTINGS:
            nearest = near(name, SETTINGS)
            hint = f"; did you mean {nearest[0]}?" if nearest else "; see `qworker config show`"
            raise ConfigurationError(f"there is no setting {name!r}{hint}")
    conf = open_app(app, tasks=False).app.conf
    rows = [row for row in conf.rows(changed_only=changed) if not names or row.name in names]
    if as_json:
        print_json({row.name: {"value": row.value, "source": row.source} for row in rows})
    elif rows:
        print_table(("setting", "value", "source"), [(row.name, repr(row.value), row.source) for row in rows])
    else:
        click.echo("All settings have their default.")


@config.command()
@app_option
@json_option
def check(app: str | None, as_json: bool) -> int:
    """Tell everything that is wrong with the settings, at once. Exit code 1 when something is."""
    problems = open_app(app, tasks=False).app.conf.problems()
    wrong = [problem for problem in problems if problem.severity != "note"]
    if as_json:
        print_json([problem._asdict() for problem in problems])
        return 1 if wrong else 0
    for problem in problems:
        click.echo(f"{problem.severity}: {problem}")
    click.echo(f"{count(len(wrong), 'problem')}." if wrong else "The settings are in order.")
    return 1 if wrong else 0
