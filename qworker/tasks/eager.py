"""Eager calls: run a task in the caller's process, through the same steps as in a worker.

Comes from:  ``task.apply``, and every call while ``task_always_eager`` is on.
Goes to:     ``execution.execute``; back as an EagerResult.
Thread:      the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from traceback import format_exception
from typing import Any

from qworker import states
from qworker.canvas.plan import last_call
from qworker.canvas.signatures import signatures
from qworker.contracts import App, Task
from qworker.errors import Reject, Replaced, Retry
from qworker.message.context import Context, calling_context, pop, push
from qworker.message.marks import unmarked
from qworker.message.protocol import Body
from qworker.naming import node_name
from qworker.naming import task_id as new_id
from qworker.publishing.call import check_options, limits_of, stamps_of
from qworker.results.result import AsyncResult, R
from qworker.tasks.async_execution import execute_async
from qworker.tasks.coroutines import run_to_end
from qworker.tasks.execution import Interrupted, execute
from qworker.tasks.outcome import INTERRUPTED, Outcome


class EagerResult(AsyncResult[R]):
    """The result of a task that ran in the caller's process, known at once."""

    __module__ = "qworker"

    __slots__ = ()

    def __init__(
        self,
        id: str,
        ret_value: Any,
        state: str,
        traceback: str | None = None,
        name: str | None = None,
        app: App | None = None,
    ) -> None:
        super().__init__(id, app=app)
        self._meta = {
            "status": state,
            "result": ret_value,
            "traceback": traceback,
            "name": name,
            "task_id": id,
        }

    def get(
        self, timeout: float | timedelta | None = None, propagate: bool = True, *args: Any, **kwargs: Any
    ) -> R:
        """Return the value or raise the exception, at once."""
        return self._value(self._look(), propagate)

    wait = get

    def ready(self) -> bool:
        """Return True."""
        return True

    async def _await(self) -> R:
        return self._value(self._look(), True)

    def _is_stored(self) -> bool:
        return False

    def revoke(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because the task has run already."""

    def __reduce__(self) -> Any:
        meta = self._look()
        return EagerResult, (self.id, meta["result"], meta["status"], meta["traceback"], meta["name"])


def apply_eagerly(
    task: Task,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    task_id: str | None,
    retries: int,
    throw: bool | None,
    options: Mapping[str, Any],
) -> EagerResult[Any]:
    """Run *task* like a worker, and return its result. Retries run at once.

    - task_id (text): None for a new one.
    - retries (number): number of earlier retries.
    - throw (bool): raise the task's exception; None: the setting ``task_eager_propagates``.
    - options: as for apply_async.
    """
    app = task.app
    app.finalize()
    check_options(app, task.name, options)
    embed = {
        "callbacks": signatures(options.get("link"), "link", app) or None,
        "errbacks": signatures(options.get("link_error"), "link_error", app) or None,
    }
    identity = task_id or new_id()
    while True:
        body = Body(args, kwargs, embed)
        context = _context(task, identity, body, retries, options)
        outcome = _run(app, task, context, body)
        state, value = context.ended
        _pass_on(outcome, value)
        if not isinstance(value, Retry) or value.sig is None:
            break
        args, kwargs, retries = value.sig.args, value.sig.kwargs, retries + 1
        options = {**options, **value.sig.options}
    traceback = outcome.traceback
    if isinstance(value, Replaced):
        state, value, traceback = _replaced(task, context, value)
    if throw is None:
        throw = app.conf.task_eager_propagates
    if throw and isinstance(value, BaseException) and state in (states.FAILURE, states.REJECTED):
        raise value.reason if isinstance(value, Reject) and isinstance(value.reason, BaseException) else value
    return EagerResult(identity, value, state, traceback, task.name, app)


def _replaced(task: Task, context: Context, by: Replaced) -> tuple[str, Any, str | None]:
    """Run the replacement of a task; return the state, the value or error, and the traceback."""
    token = push(context, task)
    try:
        ended: Any = by.sig.apply()
        if not ended._is_single:  # a graph, whose values are returned by one more call
            ended = last_call(by.sig).apply((), ended.get(disable_sync_subtasks=False))  # type: ignore[union-attr]
    except Exception as error:  # noqa: BLE001 - an eager chain always raises its errors
        return states.FAILURE, error, "".join(format_exception(error))
    finally:
        pop(token)
    return ended.state, ended.result, ended.traceback


def _run(app: App, task: Task, context: Context, body: Body) -> Outcome:
    if not task.is_async:
        return execute(app, task, context, body)
    import asyncio  # here, because it takes 30 ms

    async def run_beside() -> Outcome:
        # The body may cancel its own asyncio task, so it runs in a separate one. If this one is cancelled,
        # that means Ctrl-C.
        outer: Any = asyncio.current_task()
        return await asyncio.create_task(
            execute_async(
                app, task, context, body, cancelled=lambda: Interrupted() if outer.cancelling() else None
            )
        )

    return run_to_end(run_beside())


def _pass_on(outcome: Outcome, value: Any) -> None:
    """Raise exceptions that are meant for the process, not for the task."""
    if isinstance(value, KeyboardInterrupt):
        raise value
    if outcome.kind == INTERRUPTED:
        # Within a worker's task, this interrupts the outer run too. Elsewhere it means Ctrl-C in asyncio.
        raise KeyboardInterrupt if calling_context() is None else Interrupted


def _context(
    task: Task,
    identity: str,
    body: Body,
    retries: int,
    options: Mapping[str, Any],
) -> Context:
    """Return the request of an eager run, similar to that of a message."""
    parent = calling_context()
    hard, soft = limits_of(task.name, options)
    limits = [hard or task.time_limit, soft or task.soft_time_limit]
    ignore_result = options.get("ignore_result")
    headers = {
        "task": task.name,
        "id": identity,
        "retries": retries,
        "root_id": (parent.root_id if parent is not None and parent.root_id else None) or identity,
        "parent_id": parent.id if parent is not None else None,
        "timelimit": limits if any(limits) else None,
        "ignore_result": bool(task.ignore_result if ignore_result is None else ignore_result),
        "shadow": options.get("shadow"),
        "group": options.get("group_id"),
        "group_index": options.get("group_index"),
        "stamped_headers": options.get("stamped_headers"),
        "stamps": stamps_of(options),
        **(unmarked(options.get("headers")) or {}),
    }
    delivery_info = {
        "is_eager": True,
        "exchange": options.get("exchange"),
        "routing_key": options.get("routing_key") or options.get("queue"),
        "priority": options.get("priority"),
        "redelivered": False,
    }
    context = Context.from_message(
        headers, body, delivery_info=delivery_info, hostname=node_name(), task=task
    )
    context.is_eager = True
    return context
