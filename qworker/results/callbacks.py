"""Promises: what is to be called with a result that is not there yet.

Comes from:  ``AsyncResult`` and ``ResultSet``, of which these are the methods ``then``.
Goes to:     the callbacks, from a thread of the ResultWatcher, or from whoever finds out first.
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
from qworker.message.exceptions import exception_of

if TYPE_CHECKING:
    from qworker.backends.base import Found
    from qworker.results.result import AsyncResult
    from qworker.results.several import ResultSet

logger = logging.getLogger(__name__)

R = TypeVar("R")

_promising = threading.Lock()  # two threads may make the first promise of one result


def then(
    result: AsyncResult[R],
    callback: Callable[[AsyncResult[R]], Any],
    on_error: Callable[..., Any] | None = None,
    weak: bool = False,
) -> Any:
    """Call callback(result) when there is a value, or on_error(exception) when it failed; return a vine
    promise.

    They are called at once if it has ended already, else from a thread of the app's, or by whoever finds out;
    what they raise is logged. on_error is also called with the DamagedResult when what comes cannot be read,
    which is raised here when it is there already. weak is there for Celery's sake: who waits is kept. Raises
    TypeError for what cannot be called.
    """
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
    """A promise, and that of its callbacks. Raises TypeError for what cannot be called."""
    for name, given in (("callback", callback), ("on_error", on_error)):
        if not callable(given) and not (name == "on_error" and given is None):
            taken = "the result" if name == "callback" else "the exception, or None"
            raise TypeError(f"then() takes as {name} a function of {taken}, not {given!r:.200}")
    from vine import promise  # only for who uses it

    kept = promise()
    return kept, kept.then(callback, on_error=on_error)


def then_all(
    results: ResultSet[R],
    callback: Callable[[ResultSet[R]], Any],
    on_error: Callable[..., Any] | None = None,
    weak: bool = False,
) -> Any:
    """Call callback(results) when all have a value, or on_error(exception) as soon as one has failed; return
    a vine promise.

    They are called at once if that is known already, else from a thread of the app's; what they raise is
    logged. on_error is also called with the DamagedResult of one that cannot be read. weak is there for
    Celery's sake. Raises TypeError for what cannot be called.
    """
    kept, chained = _promise(callback, on_error)
    from qworker.results.gathering import Roll

    roll = Roll(results._singles())
    backend = results.backend if roll.missing else None
    found = final(backend.read_many(roll.ids())) if backend is not None else {}
    waiting: dict[str, Callable[[Found | Exception], object]] = {}

    def look(task_id: str, found: Found | Exception) -> None:
        waiting.pop(task_id, None)
        if task_id in roll.missing and settle({task_id: found}) and backend is not None:
            backend.watcher.promises.cancel_many(waiting)

    def settle(found: Mapping[str, Any]) -> bool:
        """Whether it is known how it ends."""
        try:
            for result, meta in roll.take(found):
                result._value(meta, True)
            roll.check()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            roll.missing.clear()
            _call(partial(kept.throw, error, propagate=False), results)
            return True
        if not roll.missing:
            _call(partial(kept, results), results)
        return not roll.missing

    if not settle(found) and backend is not None:
        waiting.update((task_id, partial(look, task_id)) for task_id in roll.ids())
        backend.watcher.promises.call_many(dict(waiting))
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
        if not isinstance(found, dict):
            _call(partial(kept.throw, found, propagate=False), result)
        elif found["status"] in states.PROPAGATE_STATES:
            _call(partial(kept.throw, exception_of(found), propagate=False), result)
        else:
            _call(partial(kept, result), result)


def _call(keep_it: Callable[[], Any], result: object) -> None:
    try:
        keep_it()
    except Exception:  # the callback's fault, and no matter of who happened to find out
        logger.exception("a callback of result %s raised", result)
