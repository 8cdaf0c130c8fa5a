"""`qworker init`: files to run this project with.

Comes from:  users who deploy.
Goes to:     standard output, or files of the project; texts are in `templates`, values in `deployment`.
Thread:      main.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from string import Template
from typing import Any

import click

from qworker.cli.discovery import NoApp
from qworker.cli.init.deployment import fill_in, project_name
from qworker.cli.init.templates import ALIASES, TEMPLATES, Example
from qworker.cli.options import DependentOption, app_option, open_app
from qworker.cli.output import print_table
from qworker.conf import Settings
from qworker.errors import ConfigurationError
from qworker.naming import close_matches


class _Kind(click.Choice):  # type: ignore[type-arg] # takes no parameter in older releases
    """The kind of a file; aliases are accepted, but not listed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        kind = ALIASES.get(value, value)
        if kind not in TEMPLATES and (guesses := close_matches(kind, [*TEMPLATES, *ALIASES])):
            self.fail(f"there is no {kind!r:.80}; did you mean {guesses[0]!r}?", param, ctx)
        return super().convert(kind, param, ctx)


@click.command(
    epilog="Kinds: " + ", ".join(f"{name} ({example.what})" for name, example in TEMPLATES.items()) + "."
)
@click.argument("kind", metavar="[KIND]", required=False, type=_Kind(list(TEMPLATES)))
@app_option
@click.option("-w", "--write", is_flag=True, help="Write the file into the working directory.")
@click.option(
    "--force",
    cls=DependentOption,
    requires="write",
    is_flag=True,
    help="With --write: replace an existing file.",
)
def init(kind: str | None, app: str | None, write: bool, force: bool) -> None:
    """Print files to run this project, suitable for its broker: systemd, docker, k8s, …"""
    if kind is None:
        rows = [(name, _file(example), example.what) for name, example in TEMPLATES.items()]
        print_table(("kind", "file", "what"), rows)
        click.echo("\nPrint one with `qworker init KIND`; --write makes the file.", err=True)
        return
    example = TEMPLATES[kind]
    target, conf = _app(app) if example.needs_app else ("tasks", Settings())
    text, kept_out = fill_in(kind, target, conf)
    if example.needs_app and kept_out:
        says_how = example.variables is not None and example.variables.how
        advice = "The file says how to set them." if says_how else "Set them where it runs."
        click.echo(f"Set here, and not written to the file: {', '.join(kept_out)}. {advice}", err=True)
    if write:
        _write(Path(_file(example)), text, force)
    else:
        click.echo(text, nl=False)


def _file(example: Example) -> str:
    return Template(example.file).substitute(name=project_name())


def _app(app: str | None) -> tuple[str, Settings]:
    """Return the value of -A, and the settings of that app; both have defaults if there is none yet."""
    try:
        choice = open_app(app, tasks=False)
    except NoApp:
        click.echo("No app here yet, so the file uses -A tasks.", err=True)
        return "tasks", Settings()
    return choice.target, choice.app.conf


def _write(path: Path, text: str, force: bool) -> None:
    if path.exists() and not force:
        raise ConfigurationError(f"{path} exists already; check it first, then use --force")
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        if is_new:
            with suppress(OSError):  # an incomplete file would block the next attempt
                path.unlink(missing_ok=True)
        raise ConfigurationError(f"cannot write {path.absolute()}: {error.strerror}") from None
    click.echo(f"Wrote {path}.")
