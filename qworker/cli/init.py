"""`qworker init`: files to run this project with.

Comes from:  people who deploy.
Goes to:     standard output, or files of the project; texts are in `templates`.
Thread:      main.
"""

from __future__ import annotations

import getpass
import os
import sys
from math import ceil
from pathlib import Path
from string import Template

import click

from qworker.cli.options import app_option, open_app
from qworker.cli.templates import TEMPLATES, Example
from qworker.components.shutdown import INTERRUPTED_SECONDS, KILL_SECONDS
from qworker.conf import Settings
from qworker.errors import ConfigurationError, QWorkerError
from qworker.naming import DISTRIBUTION


@click.command(
    epilog="Kinds: " + ", ".join(f"{name} ({example.what})" for name, example in TEMPLATES.items()) + "."
)
@click.argument("kind", required=False, type=click.Choice(list(TEMPLATES)))
@app_option
@click.option("-w", "--write", is_flag=True, help="Write the file into the working directory.")
@click.option("--force", is_flag=True, help="With --write: replace a file that is there.")
def init(kind: str | None, app: str | None, write: bool, force: bool) -> None:
    """Print files to run this project: systemd, docker, procfile, …"""
    if kind is None:
        for name, example in TEMPLATES.items():
            click.echo(f"{name:15}{_file(example):35}{example.what}")
        click.echo("\nPrint one with `qworker init KIND`; --write makes the file.", err=True)
        return
    example = TEMPLATES[kind]
    text = Template(example.text).substitute(_values(app, example))
    if write:
        _write(Path(_file(example)), text, force)
    else:
        click.echo(text, nl=False)


def _file(example: Example) -> str:
    return Template(example.file).substitute(name=_project())


def _project() -> str:
    """The name of the working directory, as services may be named."""
    name = Path.cwd().name.lower()
    return "".join(char if char.isalnum() else "-" for char in name).strip("-") or "project"


def _values(app: str | None, example: Example) -> dict[str, str]:
    target, conf = "tasks", Settings()
    if example.needs_app:
        try:
            choice = open_app(app, tasks=False)
        except QWorkerError as error:
            if app is not None:
                raise
            click.echo(
                f"No app here yet, so the file says -A {target}. ({str(error).splitlines()[0]})", err=True
            )
        else:
            target, conf = choice.target, choice.app.conf
    return {
        "name": _project(),
        "app": target,
        "directory": str(Path.cwd()),
        "user": getpass.getuser(),
        "qworker": _command(),
        "distribution": DISTRIBUTION,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "stop": str(ceil(longest_stop(conf))),
    }


def longest_stop(conf: Settings) -> float:
    """Seconds that a worker may take to stop; an init system that waits less kills what would be put back."""
    running = conf.worker_shutdown_timeout + max(conf.worker_soft_shutdown_timeout, INTERRUPTED_SECONDS)
    storing = conf.result_store_patience if conf.result_backend else 0.0
    return running + KILL_SECONDS + storing + KILL_SECONDS  # the first to kill, the last to tell the broker


def _command() -> str:
    """The command `qworker` by its whole path, because init systems have a path of their own."""
    beside = Path(sys.executable).with_name("qworker")
    return str(beside) if os.access(beside, os.X_OK) else f"{sys.executable} -m qworker"


def _write(path: Path, text: str, force: bool) -> None:
    if path.exists() and not force:
        raise ConfigurationError(f"{path} is there already; look at it first, then use --force")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write {path.absolute()}: {error.strerror}") from None
    click.echo(f"Wrote {path}.")
