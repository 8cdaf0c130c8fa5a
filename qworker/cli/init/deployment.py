"""Deployment: what is put into a file of `qworker init`, by what the app's broker needs.

Comes from:  the app's settings, the environment, the working directory.
Goes to:     init.
Thread:      main.
"""

from __future__ import annotations

import getpass
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path
from string import Template
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from qworker.cli.discovery import DJANGO_APP
from qworker.cli.init.templates import TEMPLATES, Variables, text_of
from qworker.components.shutdown import INTERRUPTED_SECONDS, KILL_SECONDS
from qworker.conf import Settings
from qworker.conf.compat import understand
from qworker.conf.secrets import mask
from qworker.conf.sources import ENVIRONMENT_PREFIX, ENVIRONMENT_RESERVED
from qworker.errors import ConfigurationError
from qworker.naming import DISTRIBUTION
from qworker.transports import broker_urls
from qworker.transports.sqlite.path import database_path

USER_ID = 10001
"""The user in containers. A number, because only of a number Kubernetes knows that it is not root."""
PORT = "9631"
"""Where workers in containers tell of their health, unless worker_http_address names a port."""
_IMAGE = Path("/app")
"""Where the project is in an image."""


class Volume(NamedTuple):
    """Where in a container the messages are, and the variables that put them there."""

    directory: Path
    variables: Mapping[str, str] = {}


def fill_in(kind: str, target: str, conf: Settings) -> tuple[str, list[str]]:
    """Return the text of a file, and the environment variables of ours that it should have had and has not.

    - kind (text): see TEMPLATES.
    - target (text): what -A is to say.
    - conf: the app's settings.

    Raises ConfigurationError for a Django project and a file of containers.
    """
    example, volume = TEMPLATES[kind], broker_volume(conf)
    given = dict(_environment())
    if example.in_container:
        given.pop(f"{ENVIRONMENT_PREFIX}WORKER_HTTP_ADDRESS", None)  # the file has one of its own
        given |= volume.variables if volume else {}
    environment, kept_out = _set(example.variables, given)
    sections = {"file"} if volume else {"server"}
    if not (volume or kept_out or f"{ENVIRONMENT_PREFIX}BROKER_URL" in given):
        sections.add("secret")
    text = text_of(kind, sections)
    if target == DJANGO_APP:
        if example.in_container:
            raise ConfigurationError(
                "this is a Django project: `manage.py qcluster` runs its tasks and its schedules. "
                "docs/how-to/django-production.md says how in a container"
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
    """What has to outlive a container: where a broker that is a file keeps it; None for servers."""
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
    """Where a path is in an image: the working directory is there under another name."""
    absolute = path.absolute()
    return _IMAGE / absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute


def _environment() -> Iterator[tuple[str, str]]:
    """The variables of this process that settings of the app come from."""
    for variable, value in sorted(os.environ.items()):
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if variable == "DJANGO_SETTINGS_MODULE" or (
            name != variable and name not in ENVIRONMENT_RESERVED and understand(name.lower()) is not None
        ):
            yield variable, value


def _set(variables: Variables | None, given: Mapping[str, str]) -> tuple[str, list[str]]:
    """The lines that set the given variables, and those that are left to the reader: secrets, above all."""
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
    """The name of the working directory, as services may be named."""
    name = Path.cwd().name.lower()
    return (
        "".join(char if char.isascii() and char.isalnum() else "-" for char in name).strip("-") or "project"
    )


def longest_stop(conf: Settings) -> float:
    """Seconds that a worker may take to stop; an init system that waits less kills what would be put back."""
    running = conf.worker_shutdown_timeout + max(conf.worker_soft_shutdown_timeout, INTERRUPTED_SECONDS)
    storing = conf.result_store_patience if conf.result_backend else 0.0
    return running + KILL_SECONDS + storing + KILL_SECONDS  # the first to kill, the last to tell the broker


def _command() -> str:
    """The command `qworker` by its whole path, because init systems have a path of their own."""
    beside = Path(sys.executable).with_name("qworker")
    if os.access(beside, os.X_OK):
        return shlex.quote(str(beside))
    return f"{shlex.quote(sys.executable)} -m qworker"
