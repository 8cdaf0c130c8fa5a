"""By hand: direct use of the result store by a program, under Celery's names.

Comes from:  ``app.backend``, whose methods these are; for example when a task raised Ignore and something
             else ends it.
Goes to:     the store, which never replaces a final state.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from qworker import states
from qworker.errors import DamagedResult, NotAvailable, TaskRevoked
from qworker.message.exceptions import exception_from_dict, exception_to_dict

if TYPE_CHECKING:
    from qworker.backends.base import Backend, Meta


def get_many(backend: Backend, ids: Collection[str]) -> dict[str, Meta]:
    """Return the metadata of those *ids* that are stored.

    Raises DamagedResult when one of them cannot be read; read_many() returns an error for each.
    """
    readable: dict[str, Meta] = {}
    for task_id, found in backend.read_many(ids).items():
        if isinstance(found, DamagedResult):
            raise found
        readable[task_id] = found
    return readable


def get_task_meta(backend: Backend, task_id: str, cache: bool = True) -> Meta:
    """Return the stored metadata of a task: its status, result (a value, or an exception), traceback,
    children, …

    ``{"status": "PENDING", "result": None}`` if there is none. Nothing is cached.
    """
    meta = backend.get(task_id)
    if meta is None:
        return {"status": states.PENDING, "result": None}
    if meta["status"] in states.EXCEPTION_STATES and not isinstance(meta["result"], BaseException | None):
        meta = {**meta, "result": exception_from_dict(meta["result"])}
    return meta


def get_state(backend: Backend, task_id: str) -> str:
    """Return the state of a task."""
    return str(get_task_meta(backend, task_id)["status"])


def get_result(backend: Backend, task_id: str) -> Any:
    """Return the value of a task, its exception, or the info of update_state(); None if there is none."""
    return get_task_meta(backend, task_id)["result"]


def get_traceback(backend: Backend, task_id: str) -> str | None:
    """Return the traceback of a task that failed; None when there is none."""
    return get_task_meta(backend, task_id).get("traceback")


def get_children(backend: Backend, task_id: str) -> Any:
    """Return the calls that a task made, in the format of result_from_tuple(); None if unknown."""
    return get_task_meta(backend, task_id).get("children")


def task_result_exists(backend: Backend, task_id: str) -> bool:
    """Tell whether a result of a task is stored."""
    return backend.get(task_id) is not None


def store_result(
    backend: Backend,
    task_id: str,
    result: Any,
    state: str,
    traceback: str | None = None,
    request: Any = None,
) -> Any:
    """Store a state with its result, a value or an exception, unless a final one is stored; return *result*.

    request: the task's, for its other metadata (children, and with ``result_extended`` name and arguments).
    Raises EncodeError when it cannot be serialised, BackendError when the store is unavailable.
    """
    kept = exception_to_dict(result) if isinstance(result, BaseException) else result
    backend.store(task_id, backend.meta(task_id, state, kept, traceback, request))
    return result


def mark_as_started(backend: Backend, task_id: str, **meta: Any) -> None:
    """Store that a task has started; *meta* is its info."""
    store_result(backend, task_id, meta, states.STARTED)


def mark_as_done(
    backend: Backend, task_id: str, result: Any, request: Any = None, state: str = states.SUCCESS
) -> None:
    """Store the value of a task. Its ``link`` is not called: that is left to the program."""
    _refuse_to_go_on(request, "callbacks", "link")
    store_result(backend, task_id, result, state, request=request)


def mark_as_failure(
    backend: Backend,
    task_id: str,
    exc: BaseException,
    traceback: str | None = None,
    request: Any = None,
    state: str = states.FAILURE,
) -> None:
    """Store that a task failed. Its ``link_error`` is not called."""
    _refuse_to_go_on(request, "errbacks", "link_error")
    store_result(backend, task_id, exc, state, traceback, request)


def mark_as_retry(
    backend: Backend, task_id: str, exc: BaseException, traceback: str | None = None, request: Any = None
) -> None:
    """Store that a task will run again because of *exc*."""
    store_result(backend, task_id, exc, states.RETRY, traceback, request)


def mark_as_revoked(backend: Backend, task_id: str, reason: str = "", request: Any = None) -> None:
    """Store that a task will not run."""
    store_result(backend, task_id, TaskRevoked(reason or "revoked"), states.REVOKED, request=request)


def _refuse_to_go_on(request: Any, field: str, option: str) -> None:
    if request is not None and getattr(request, field, None):
        raise NotAvailable(
            f"the request has a {option}, which is not called by hand: call it with apply_async(), and leave "
            "request out"
        )
