"""Middleware: changes what is published and how a task runs.

Comes from:  ``app.add_middleware`` and the setting ``middleware``.
Goes to:     publishing (``publish``) and execution (``execute``).
Thread:      publish in the caller's, execute in the child's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from qworker.errors import ConfigurationError
from qworker.naming import import_object


class Middleware:
    """Subclass it and override one or both methods. Call ``call_next`` to continue; do not call it to stop.

    ``options`` names the task options this middleware reads, so that ``@app.task(my_option=...)`` is
    accepted. The first middleware of an app is the outermost.
    """

    __module__ = "qworker"

    options: tuple[str, ...] = ()

    def publish(self, call_next: Callable[[Any], Any], message: Any) -> Any:
        """Wrap the sending of a `TaskMessage`; return the value of ``call_next(message)``."""
        return call_next(message)

    def execute(self, call_next: Callable[[Any], Any], context: Any) -> Any:
        """Wrap the run of a task; return the value of ``call_next(context)``, the task's result."""
        return call_next(context)


def overrides(middleware: Middleware, method: str) -> bool:
    """Return whether `middleware` overrides `method` ("publish" or "execute")."""
    own = getattr(type(middleware), method, None)
    return own is not getattr(Middleware, method) or method in vars(middleware)


def compose(
    middlewares: Iterable[Middleware], method: str, final: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Return a callable that runs `method` of each middleware around `final`, or `final` if none has it."""
    chain = final
    for middleware in reversed(list(middlewares)):
        if overrides(middleware, method):
            chain = partial(getattr(middleware, method), chain)
    return chain


def make_middleware(given: Any) -> Middleware:
    """Return the middleware `given` as an object, its class, or the dotted name of either.

    Raises ConfigurationError for anything else.
    """
    found = import_object(given) if isinstance(given, str) else given
    made = found() if isinstance(found, type) else found
    if not isinstance(made, Middleware):
        raise ConfigurationError(
            f"{given!r} is not a middleware: subclass qworker.Middleware", setting="middleware"
        )
    return made
