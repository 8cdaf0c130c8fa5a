"""Templates: the files of ``qworker init``.

Comes from:  the texts in ``files/``, one for each kind.
Goes to:     ``commands``, which fills them in.
Thread:      constants.

A text is a ``string.Template``. Lines from ``#: file``, ``#: server`` or ``#: secret`` to ``#: end`` are in
the file if the broker is a file, a server, or a server and no example of a secret is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from importlib.resources import files
from typing import NamedTuple


class Variables(NamedTuple):
    """How a file sets environment variables: the text for each, with $variable and $value, and for one that
    must not be in the file. quote: escapes a value for the quotes of `plain`; None if that is impossible.
    heading: precedes them all. how: explains how to set the missing ones, with $literals."""

    plain: str
    kept_out: str
    quote: Callable[[str], str | None]
    heading: str = ""
    how: str = ""


class Example(NamedTuple):
    """One file.

    - file: its usual name; $name is the project's.
    - what: its purpose.
    - variables: how it sets environment variables, at $environment; None if it sets none.
    - in_container: whether it is for containers.
    - needs_app: whether it mentions the app.
    """

    file: str
    what: str
    variables: Variables | None = None
    in_container: bool = False
    needs_app: bool = True


def text_of(kind: str, sections: Collection[str]) -> str:
    """Return the text of *kind*, with those of its *sections*, "file", "server" and "secret"."""
    text = files(__package__).joinpath(f"files/{kind}.txt").read_text(encoding="utf-8")
    return "".join(_chosen(text.splitlines(keepends=True), sections))


def _chosen(lines: list[str], sections: Collection[str]) -> Iterator[str]:
    wanted = True
    for line in lines:
        if line.startswith("#: "):
            section = line[3:].strip()
            wanted = section == "end" or section in sections
        elif wanted:
            yield line


def _escaped(value: str) -> str:
    """Return a value for double quotes, in the syntax of JSON, YAML and systemd."""
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _single_quoted(value: str) -> str | None:
    """Return a value for single quotes in supervisord, which has no escapes and ends a line at a comment."""
    if any(mark in value for mark in ("'", "\n", " ;", " #")):
        return None
    return value.replace("%", "%%")


_SYSTEMD = Variables(
    'Environment="$variable=$value"\n',
    "# $variable is not written here: set it in that file.\n",
    lambda value: _escaped(value).replace("%", "%%"),
)
_DOCKER = Variables(
    'ENV $variable="$value"\n',
    "# $variable is not written here: give it to what runs the image.\n",
    lambda value: None if "\n" in value else _escaped(value).replace("$", r"\$"),
)
_COMPOSE = Variables(
    '      $variable: "$value"\n',
    "      $variable:  # not written here: it is taken from the shell or from the file .env\n",
    lambda value: _escaped(value).replace("$", "$$"),
)
_SUPERVISOR = Variables(
    "    $variable='$value',\n",
    "    ; $variable is not written here: set it where supervisord is started\n",
    _single_quoted,
    "environment=\n",
)
_KUBERNETES = Variables(
    '            - name: $variable\n              value: "$value"\n',
    """            - name: $variable
              valueFrom:
                secretKeyRef:
                  name: $name-worker
                  key: $variable
""",
    lambda value: _escaped(value).replace("$(", "$$("),
    how="""            # Not written here. To make the Secret, with the values:
            #   kubectl create secret generic $name-worker$literals
""",
)

TEMPLATES = {
    "project": Example("tasks.py", "a first module of tasks", needs_app=False),
    "systemd": Example("$name-worker.service", "a service of systemd", _SYSTEMD),
    "docker": Example("Dockerfile", "an image", _DOCKER, in_container=True),
    "compose": Example("compose.yaml", "Docker Compose", _COMPOSE, in_container=True),
    "procfile": Example("Procfile", "Heroku, foreman, honcho"),
    "supervisor": Example("supervisor-worker.conf", "supervisord", _SUPERVISOR),
    "k8s": Example("worker.k8s.yaml", "Kubernetes", _KUBERNETES, in_container=True),
    "github-actions": Example(".github/workflows/tasks.yaml", "a check on each push"),
}
ALIASES = {"kubernetes": "k8s"}
