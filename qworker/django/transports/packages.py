"""packages: the dict by which Django-Q describes a task, and the message that carries it.

Comes from:  ``async_task`` and similar functions, with the dict of a task.
Goes to:     the broker, as the only argument of the task RUN; back to a dict in the child that runs it.
Thread:      any; functions.

A package is pickled and signed. Packages cannot be made without the key. Those of other projects are
rejected, since the project's name is the salt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qworker.django.function_names import function_name
from qworker.errors import InvalidTaskMessage
from qworker.message.protocol import NO_EMBED_JSON
from qworker.naming import DJANGO_PACKAGES
from qworker.transports.lease import Envelope

Package = dict[str, Any]
"""id, name, func, args, kwargs, started; and given options: hook, group, save, timeout…"""

RUN = DJANGO_PACKAGES
"""The task that runs packages."""

OPTIONS = (
    "hook", "group", "save", "sync", "cached", "ack_failure", "iter_count", "iter_cached", "chain", "broker",
    "timeout", "cluster", "task_name",
)  # fmt: skip
"""Keywords of async_task() that are not passed to the function."""


UNLIMITED = 1_000_000_000
"""Thirty years in seconds: a message without a limit has the cluster's limit."""


def options_apart(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split *given* into the keywords of a function, and the options of its call.

    Options in ``q_options`` take precedence over keywords with the same names, which are then passed to the
    function.
    """
    kwargs = dict(given)
    options = dict(kwargs.pop("q_options", None) or {})
    for name in OPTIONS:
        if name in kwargs and name not in options:
            options[name] = kwargs.pop(name)
    return kwargs, options


def envelope_of(
    text: str, package: Mapping[str, Any], queue: str, priority: int = 0, due: float | None = None
) -> Envelope:
    """Return the message that carries the signed package *text*.

    - package: the content of *text*.
    - due: epoch seconds before which it must not run; None: at once.
    """
    identity = package["id"]
    name = function_name(package["func"])
    headers = {
        "lang": "py",
        "task": RUN,
        "id": identity,
        "root_id": identity,
        "shadow": (name if name.isprintable() else ascii(name))[:256],
        "timelimit": [_limit_of(package.get("timeout")), None],
        "argsrepr": f"({package.get('name', '')!r},)",
        "kwargsrepr": "{}",
    }
    if due is not None:
        headers["eta"] = None
    body = f"[[{json.dumps(text)}],{{}},{NO_EMBED_JSON}]".encode()
    return Envelope(queue, json.dumps(headers, separators=(",", ":")), None, body, priority, due)


def _limit_of(timeout: float | None) -> float | None:
    """Return a message's time limit for *timeout*; a negative one means no limit."""
    return min(timeout, UNLIMITED) if timeout and timeout > 0 else UNLIMITED if timeout else None


def text_of(body: bytes) -> str:
    """Return the signed package that the *body* of a message carries.

    Raises InvalidTaskMessage for any other body.
    """
    try:
        arguments = json.loads(body)[0]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InvalidTaskMessage(f"{body[:80]!r} contains no package: {error}") from error
    if not isinstance(arguments, list) or len(arguments) != 1 or not isinstance(arguments[0], str):
        raise InvalidTaskMessage(f"{body[:80]!r} contains no package")
    return arguments[0]
