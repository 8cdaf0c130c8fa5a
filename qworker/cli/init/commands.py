"""`qworker init`: files to run this project with.

Comes from:  users who deploy; the app's settings, the environment, the working directory.
Goes to:     standard output, or files of the project; texts are in `templates`.
Thread:      main.
"""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import ceil
from pathlib import Path
from string import Template
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import click

from qworker.cli.discovery import DJANGO_APP, NoApp
from qworker.cli.init.templates import ALIASES, TEMPLATES, Example, Variables, text_of
from qworker.cli.options import DependentOption, app_option, open_app
from qworker.cli.output import print_table
from qworker.components.shutdown import INTERRUPTED_SECONDS, KILL_SECONDS
from qworker.conf import Settings
from qworker.conf.compat import understand
from qworker.conf.secrets import mask
from qworker.conf.sources import ENVIRONMENT_PREFIX, ENVIRONMENT_RESERVED
from qworker.errors import ConfigurationError
from qworker.naming import DISTRIBUTION, close_matches
from qworker.transports import broker_urls
from qworker.transports.sql.embedded.path import database_path

USER_ID = 10001
"""The user in containers. A number, because only then Kubernetes knows that it is not root."""
PORT = "9631"
"""The status port of workers in containers, unless worker_http_address names one."""
_IMAGE = Path("/app")
"""The directory of the project in an image."""


class Volume(NamedTuple):
    """The location of messages in a container, and the variables that set it."""

    directory: Path
    variables: Mapping[str, str] = {}


def fill_in(kind: str, target: str, conf: Settings) -> tuple[str, list[str]]:
    """Return the text of a file, and our environment variables that are missing in it.

    - kind (text): see TEMPLATES.
    - target (text): the value of -A.
    - conf: the app's settings.

    Raises ConfigurationError for a file of containers in a Django project.
    """
    example, volume = TEMPLATES[kind], broker_volume(conf)
    given = dict(_environment())
    if example.in_container:
        given.pop(f"{ENVIRONMENT_PREFIX}WORKER_HTTP_ADDRESS", None)  # the file has its own
        given |= volume.variables if volume else {}
    environment, kept_out = _set(example.variables, given)
    sections = {"file"} if volume else {"server"}
    if not (volume or kept_out or f"{ENVIRONMENT_PREFIX}BROKER_URL" in given):
        sections.add("secret")
    text = text_of(kind, sections)
    if target == DJANGO_APP:
        if example.in_container:
            raise ConfigurationError(
                "this is a Django project: `manage.py qcluster` runs its tasks and its schedules. For "
                "containers see docs/how-to/django-production.md"
            )
        text = text.replace("$qworker start -A $app", "$interpreter manage.py qcluster")
        text = text.replace("qworker start -A $app", "python manage.py qcluster")
    text = text.replace("$environment\n", environment)
    values = {
        "name": project_name(),
        "app": target,
        "directory": str(Path.cwd()),
        "user": getpass.getuser(),
        "uid": str(USER_ID),
        "qworker": _command(),
        "interpreter": shlex.quote(sys.executable),
        "distribution": DISTRIBUTION,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "stop": str(ceil(longest_stop(conf))),
        "port": (conf.worker_http_address or PORT).rpartition(":")[2],
        "volume": str(volume.directory) if volume else "",
    }
    return Template(text).substitute(values), kept_out


def broker_volume(conf: Settings) -> Volume | None:
    """Return the location of a file broker, which must outlive the container; None for servers."""
    for url in broker_urls(conf.broker_url) or ["sqlite://"]:
        scheme = url.partition(":")[0]
        if scheme == "spool":
            return Volume(_in_image(Path(unquote(urlsplit(url).path))))
        if scheme == "sqlite":
            path = _in_image(database_path(url))
            if path.parent != _IMAGE:
                return Volume(path.parent)
            # A volume there would hide the project.
            directory = _IMAGE / ".qworker"
            return Volume(
                directory, {f"{ENVIRONMENT_PREFIX}BROKER_URL": f"sqlite:///{directory / path.name}"}
            )
    return None


def _in_image(path: Path) -> Path:
    """Return a path in an image, where the working directory has another name."""
    absolute = path.absolute()
    return _IMAGE / absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute


def _environment() -> Iterator[tuple[str, str]]:
    """Yield this process's environment variables, and their values, that set the app's settings."""
    for variable, value in sorted(os.environ.items()):
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if variable == "DJANGO_SETTINGS_MODULE" or (
            name != variable and name not in ENVIRONMENT_RESERVED and understand(name.lower()) is not None
        ):
            yield variable, value


def _set(variables: Variables | None, given: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the lines that set the given variables, and the names of those that users have to set
    themselves, such as secrets."""
    if variables is None:
        return "", list(given)
    lines, kept_out = [variables.heading] if given else [], []
    for variable, value in given.items():
        secret = mask(variable.removeprefix(ENVIRONMENT_PREFIX).lower(), value) != value
        quoted = None if secret else variables.quote(value)
        if quoted is None:
            kept_out.append(variable)
            lines.append(variables.kept_out.replace("$variable", variable))
        else:
            line = variables.plain.replace("$variable", variable)
            lines.append(line.replace("$value", quoted.replace("$", "$$")))
    if kept_out:
        literals = "".join(f" --from-literal={variable}='…'" for variable in kept_out)
        lines.insert(0, variables.how.replace("$literals", literals))
    return "".join(lines), kept_out


def project_name() -> str:
    """Return the name of the working directory, in a form valid for services."""
    name = Path.cwd().name.lower()
    return (
        "".join(char if char.isascii() and char.isalnum() else "-" for char in name).strip("-") or "project"
    )


def longest_stop(conf: Settings) -> float:
    """Return the maximum seconds for a worker to stop; an init system that waits less kills tasks that would
    be put back."""
    running = conf.worker_shutdown_timeout + max(conf.worker_soft_shutdown_timeout, INTERRUPTED_SECONDS)
    storing = conf.result_store_patience if conf.result_backend else 0.0
    # The first KILL_SECONDS are for killing tasks, the last for deregistering.
    return running + KILL_SECONDS + storing + KILL_SECONDS


def _command() -> str:
    """Return the full path of the command `qworker`, because init systems have their own search path."""
    beside = Path(sys.executable).with_name("qworker")
    if os.access(beside, os.X_OK):
        return shlex.quote(str(beside))
    return f"{shlex.quote(sys.executable)} -m qworker"


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
