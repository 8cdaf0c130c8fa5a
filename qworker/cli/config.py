"""`qworker config`: the settings, their sources, and their problems.

Comes from:  users.
Goes to:     the app's settings.
Thread:      main.
"""

from __future__ import annotations

from contextlib import suppress

import click

from qworker.cli.beat import examined
from qworker.cli.completion import setting_names
from qworker.cli.discovery import AppChoice, load_tasks
from qworker.cli.doctor import suitability
from qworker.cli.groups import SuggestingGroup
from qworker.cli.options import app_option, json_option, open_app
from qworker.cli.output import count, print_json, print_table
from qworker.cli.servers import facts
from qworker.conf import SETTINGS
from qworker.conf.sources import Problem
from qworker.errors import ConfigurationError, QWorkerError
from qworker.naming import close_matches


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Show all settings with their sources; check them."""


@config.command()
@click.argument("names", nargs=-1, shell_complete=setting_names)
@app_option
@click.option("--changed", is_flag=True, help="Only settings that are set somewhere.")
@json_option
def show(names: tuple[str, ...], app: str | None, changed: bool, as_json: bool) -> None:
    """Show every setting, or those NAMES, with source and value. Secrets are masked."""
    for name in names:
        if name not in SETTINGS:
            nearest = close_matches(name, SETTINGS)
            hint = f"; did you mean {nearest[0]}?" if nearest else "; see `qworker config show`"
            raise ConfigurationError(f"there is no setting {name!r}{hint}")
    conf = open_app(app, tasks=False).app.conf
    rows = [row for row in conf.rows(changed_only=changed) if not names or row.name in names]
    if as_json:
        print_json({row.name: {"value": row.value, "source": row.source} for row in rows})
    elif rows:
        print_table(("setting", "source", "value"), [(row.name, row.source, repr(row.value)) for row in rows])
    else:
        click.echo("All settings have their default values.")


@config.command()
@app_option
@click.option("--connect", is_flag=True, help="Also check the servers: availability, versions, clocks.")
@json_option
def check(app: str | None, connect: bool, as_json: bool) -> int:
    """Report all problems of the settings. Exit code 1 if there are errors.

    What the app uses is compared with the capabilities of its broker; servers are only contacted with
    --connect.
    """
    choice = open_app(app, tasks=False)
    problems = choice.app.conf.problems()
    if not any(problem.severity == "error" for problem in problems):
        with suppress(QWorkerError):  # doctor reports why tasks cannot be imported
            load_tasks(choice.app)
        problems += suitability.problems(choice)
        with suppress(QWorkerError):  # a store that cannot be opened was reported
            problems += examined.problems(choice)
        problems += _connected(choice) if connect else []
    problems = _each_once(problems)
    wrong = [problem for problem in problems if problem.severity != "note"]
    if as_json:
        print_json([problem._asdict() for problem in problems])
        return 1 if wrong else 0
    for problem in problems:
        click.echo(f"{problem.severity}: {problem}")
    click.echo(f"{count(len(wrong), 'problem')}." if wrong else "The settings are valid.")
    return 1 if wrong else 0


def _each_once(problems: list[Problem]) -> list[Problem]:
    """Remove duplicates: a store that cannot be opened is reported by several checks."""
    once: list[Problem] = []
    for problem in problems:
        if not any(f": {problem.message}".endswith(f": {earlier.message}") for earlier in once):
            once.append(problem)
    return once


def _connected(choice: AppChoice) -> list[Problem]:
    """Return the problems found on the servers."""
    conf = choice.app.conf
    problems = []
    for setting in ("broker_url", "result_backend"):
        try:
            for fact in facts(getattr(conf, setting) or "", setting, conf):
                if fact.severity != "ok":
                    text = f"{fact.what}: {fact.advice}" if fact.advice else fact.what
                    problems.append(Problem(setting, text, conf.source(setting), fact.severity))
        except QWorkerError as error:
            problems.append(Problem(setting, str(error), conf.source(setting), "error"))
    if not any(problem.setting == "broker_url" for problem in problems):
        try:
            choice.app.broker.admin.queues()
        except QWorkerError as error:  # the embedded broker has no server
            problems.append(Problem("broker_url", str(error), conf.source("broker_url"), "error"))
    return problems
