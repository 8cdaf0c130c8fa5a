"""`qworker report`: information for a bug report.

Comes from:  users who ask for help.
Goes to:     standard output; secrets are masked.
Thread:      main.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from qworker import __version__
from qworker.cli.options import app_option, json_option, open_app
from qworker.cli.output import count, print_json
from qworker.errors import QWorkerError
from qworker.naming import own_tasks

_PACKAGES = ("kombu", "billiard", "vine", "python-dateutil", "SQLAlchemy", "click")
_EXTRAS = (
    "celery",
    "django",
    "redis",
    "setproctitle",
    "watchfiles",
    "ipython",
    "msgpack",
    "psycopg",
    "zstandard",
)


@click.command()
@app_option
@json_option
def report(app: str | None, as_json: bool) -> None:
    """Print versions and settings, for a bug report."""
    facts: dict[str, Any] = {
        "qworker": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}",
        "system": f"{platform.platform()}, {os.cpu_count()} processors",
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: text for name in _PACKAGES + _EXTRAS if (text := _version(name)) is not None},
    }
    try:
        choice = open_app(app)
        facts["app"] = f"{choice.target} ({choice.how}), {count(len(own_tasks(choice.app.tasks)), 'task')}"
        facts["settings"] = {
            row.name: f"{row.value!r} ({row.source})" for row in choice.app.conf.rows(changed_only=True)
        }
        facts["problems"] = [str(problem) for problem in choice.app.conf.problems()]
    except QWorkerError as error:  # this error is probably what the report is about
        facts["app"] = f"none: {error}"
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            click.echo(f"{name}:" if value else f"{name}: default")
            for key, item in value.items():
                click.echo(f"  {key}: {item}")
        elif isinstance(value, list):
            click.echo(f"{name}: " + ("none" if not value else ""))
            for item in value:
                click.echo(f"  {item}")
        else:
            click.echo(f"{name}: {value}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
