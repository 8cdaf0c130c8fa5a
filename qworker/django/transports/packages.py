"""Packages: a task as Django-Q describes it, a dict, and the message that carries it.

Comes from:  ``async_task`` and its like, with the dict of a task.
Goes to:     the broker, as the one argument of a call of RUN; back to a dict in the child that runs it.
Thread:      any; functions.

A package is pickled and signed. Without the key it can be neither read nor made, and messages of other
clusters are rejected: the cluster's name salts the signature.
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
"""id, name, func, args, kwargs, started; and the options that were given: hook, group, save, timeout…"""

RUN = DJANGO_PACKAGES
"""The task that runs packages."""

OPTIONS = (
    "hook", "group", "save", "sync", "cached", "ack_failure", "iter_count", "iter_cached", "chain", "broker",
    "timeout", "cluster", "task_name",
)  # fmt: skip
"""Keywords of async_task() that are its own, and not the function's."""


UNLIMITED = 1_000_000_000
"""Seconds, which are thirty years: in a message, no limit means that of the cluster."""


def options_apart(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split *given* into the keywords of a function, and the options of its call.

    Options in ``q_options`` take precedence over a keyword of that name, which is then the function's.
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
    - due: epoch seconds before which it is not to run; None: at once.
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
    """Return a message's limit for *timeout*, where a negative one means none."""
    return min(timeout, UNLIMITED) if timeout and timeout > 0 else UNLIMITED if timeout else None


def text_of(body: bytes) -> str:
    """Return the signed package that the *body* of a message carries.

    Raises InvalidTaskMessage for the body of any other message.
    """
    try:
        arguments = json.loads(body)[0]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InvalidTaskMessage(f"{body[:80]!r} carries no package: {error}") from error
    if not isinstance(arguments, list) or len(arguments) != 1 or not isinstance(arguments[0], str):
        raise InvalidTaskMessage(f"{body[:80]!r} carries no package")
    return arguments[0]
