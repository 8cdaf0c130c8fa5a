"""Promises: what is to be called with a result that is not there yet.

Comes from:  ``AsyncResult``, of which ``then`` is a method.
Goes to:     the callbacks, from a thread of the ResultWatcher, or from whoever finds out first.
Thread:      any.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from qworker import states
from qworker.message.exceptions import exception_of

if TYPE_CHECKING:
    from qworker.backends.base import Found
    from qworker.results.result import AsyncResult

logger = logging.getLogger(__name__)

R = TypeVar("R")

_promising = threading.Lock()  # two threads may make the first promise of one result


def then(
    result: AsyncResult[R],
    callback: Callable[[AsyncResult[R]], Any],
    on_error: Callable[..., Any] | None = None,
) -> Any:
    """Call callback(result) when there is a value, or on_error(exception) when it failed; return a vine
    promise.

    They are called at once if it has ended already, else from a thread of the app's, or by whoever finds out;
    what they raise is logged. on_error is also called with the DamagedResult when what comes cannot be read,
    which is raised here when it is there already. Raises TypeError for what cannot be called.
    """
    for name, given in (("callback", callback), ("on_error", on_error)):
        if not callable(given) and not (name == "on_error" and given is None):
            taken = "the result" if name == "callback" else "the exception, or None"
            raise TypeError(f"then() takes as {name} a function of {taken}, not {given!r:.200}")
    from vine import promise  # only for who uses it

    kept = promise()
    chained = kept.then(callback, on_error=on_error)
    meta = result._final_meta()
    with _promising:
        if result._promises is None:
            result._promises = []
        result._promises.append(kept)
    if meta is None:
        result.backend.watcher.promises.call(result.id, partial(_ended, result))
    else:
        result.keep(meta)
    return chained


def _ended(result: AsyncResult[Any], found: Found | Exception) -> None:
    """Keep the promises of *result*, of which *found* is the final metadata, or why it cannot be read."""
    if isinstance(found, Exception):
        logger.error("a promise cannot be kept: %s", found)
        keep(result, found)
    else:
        result.keep(found)


def keep(result: AsyncResult[Any], found: dict[str, Any] | Exception) -> None:
    """Keep the promises made of *result*, of which *found* is the final metadata, or why it cannot be
    read."""
    while result._promises:
        try:
            kept = result._promises.pop(0)  # whoever takes one out keeps it, also when two threads find out
        except IndexError:
            break
        try:
            if not isinstance(found, dict):
                kept.throw(found, propagate=False)
            elif found["status"] in states.PROPAGATE_STATES:
                kept.throw(exception_of(found), propagate=False)
            else:
                kept(result)
        except Exception:  # the callback's fault, and no matter of who happened to find out
            logger.exception("a callback of result %s raised", result.id)
