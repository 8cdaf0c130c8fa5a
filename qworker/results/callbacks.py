"""Callbacks: promises for results that are not available yet.

Comes from:  ``AsyncResult.then`` and ``ResultSet.then``.
Goes to:     the callbacks, on a thread of the ResultWatcher, or on another thread that notices the end first.
Thread:      any.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from qworker import states
from qworker.backends.result_watcher import final
from qworker.interrupts import reraise_interrupt
from qworker.message.exceptions import exception_of
from qworker.results.tree import AnyResult, Single

if TYPE_CHECKING:
    from qworker.backends.base import Found

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Single)
M = TypeVar("M", bound=AnyResult)

_promising = threading.Lock()  # because two threads may make the first promise of one result


def then(result: S, callback: Callable[[S], Any], on_error: Callable[..., Any] | None) -> Any:
    """See ``AsyncResult.then``."""
    kept, chained = _promise(callback, on_error)
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


def _promise(callback: Callable[..., Any], on_error: Callable[..., Any] | None) -> tuple[Any, Any]:
    """Return a promise, and the promise of its callbacks. Raises TypeError for anything not callable."""
    for name, given in (("callback", callback), ("on_error", on_error)):
        if not callable(given) and not (name == "on_error" and given is None):
            taken = "the result" if name == "callback" else "the exception, or None"
            raise TypeError(f"{name} of then() must be a function of {taken}, not {given!r:.200}")
    from vine import promise  # only on use

    kept = promise()
    return kept, kept.then(callback, on_error=on_error)


def then_all(results: M, callback: Callable[[M], Any], on_error: Callable[..., Any] | None) -> Any:
    """See ``ResultSet.then``."""
    kept, chained = _promise(callback, on_error)
    from qworker.results.gathering import PendingResults

    pending = PendingResults(results._singles())
    backend = results.backend if pending.missing else None
    found = final(backend.read_many(pending.ids())) if backend is not None else {}
    waiting: dict[str, Callable[[Found | Exception], object]] = {}

    def look(task_id: str, found: Found | Exception) -> None:
        waiting.pop(task_id, None)
        if task_id in pending.missing and settle({task_id: found}) and backend is not None:
            backend.watcher.promises.cancel_many(waiting)

    def settle(found: Mapping[str, Any]) -> bool:
        """Return whether the outcome is known."""
        try:
            for result, meta in pending.take(found):
                result._value(meta, True)
            pending.check()
        except Exception as error:  # noqa: BLE001 - passed to the promise
            reraise_interrupt(error)
            pending.missing.clear()
            _call(partial(kept.throw, error, propagate=False), results)
            return True
        if not pending.missing:
            _call(partial(kept, results), results)
        return not pending.missing

    if not settle(found) and backend is not None:
        waiting.update((task_id, partial(look, task_id)) for task_id in pending.ids())
        backend.watcher.promises.call_many(dict(waiting))
    return chained


def _ended(result: Single, found: Found | Exception) -> None:
    """Keep the promises of *result*, given its final metadata *found*, or why it cannot be read."""
    if isinstance(found, Exception):
        logger.error("a result cannot be read, so its callbacks get this error: %s", found)
        keep(result, found)
    else:
        result.keep(found)


def keep(result: Single, found: dict[str, Any] | Exception) -> None:
    """Keep the promises of *result*, given its final metadata *found*, or why it cannot be read."""
    while result._promises:
        try:
            # The thread that pops a promise keeps it, so only one does if two threads notice the end.
            kept = result._promises.pop(0)
        except IndexError:
            break
        if not isinstance(found, dict):
            _call(partial(kept.throw, found, propagate=False), result)
        elif found["status"] in states.PROPAGATE_STATES:
            _call(partial(kept.throw, exception_of(found), propagate=False), result)
        else:
            _call(partial(kept, result), result)


def _call(keep_it: Callable[[], Any], result: object) -> None:
    try:
        keep_it()
    except Exception as error:  # an error of the callback must not affect the thread that noticed the end
        reraise_interrupt(error)
        logger.exception("a callback of result %s raised", result)
