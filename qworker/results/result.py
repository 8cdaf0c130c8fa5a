"""Result: the handle of a call and its result, by id.

Comes from:  publishing (``delay`` returns one), or a stored id.
Goes to:     the result store, when it is queried; making one does not access the store.
Thread:      any; one object may be shared.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, cast

from qworker import states
from qworker.clock import parse_iso
from qworker.conf.unsupported import ONE_STORE, RESULT, unsupported
from qworker.context import get_current_app
from qworker.contracts import App
from qworker.errors import BackendError, NotAvailable, ResultTimeout
from qworker.message.exceptions import RemoteTraceback, exception_of
from qworker.results import awaiting, callbacks, tree
from qworker.results.tree import Node, ResultTree
from qworker.results.waiting import (
    HINT_AFTER,
    all_of,
    hint,
    look,
    refuse_to_wait_in_a_task,
    state_changes,
    timeout_seconds,
    wait_for,
)

if TYPE_CHECKING:
    from qworker import GroupResult, QWorker
    from qworker.results.dependencies import DependencyGraph, GraphFormatter

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # typing's has no default before Python 3.13

    R = TypeVar("R", default=Any)  # a bare AsyncResult has any value
else:
    from typing import TypeVar

    R = TypeVar("R")

__all__ = ["AsyncResult", "RemoteTraceback", "result_from_tuple"]

_NOTHING: dict[str, Any] = {"status": states.PENDING, "result": None}


class AsyncResult(Generic[R]):
    """The result of a call, which may not be available yet.

    ``result.get()`` waits for it; ``await result`` does so in asyncio. An id that was never sent, or whose
    result has expired, has the state PENDING.
    """

    __module__ = "qworker"

    TimeoutError = ResultTimeout
    """For ``except result.TimeoutError``."""

    supports_native_join = True
    """join_native() works with every result store."""

    __slots__ = ("__weakref__", "_app", "_meta", "_promises", "_queue", "id", "ignored", "parent")

    def __init__(
        self,
        id: str,
        backend: Any = None,
        task_name: str | None = None,
        app: App | None = None,
        parent: Any = None,
        queue: str | None = None,
        ignored: bool = False,
    ) -> None:
        """backend, task_name: accepted for Celery's order of arguments; *backend* must be None."""
        given: tuple[Any, ...] = (task_name, app, parent)
        if isinstance(given[2], bool):  # a pickle; see __reduce__()
            parent, queue, ignored = given
            app = None
        if backend is not None:
            raise NotAvailable(f"AsyncResult(backend=…) is not in qworker: {ONE_STORE}")
        self.id = id
        self.parent: AsyncResult[Any] | GroupResult[Any] | None = parent
        self.ignored = ignored
        self._app = app
        self._queue = queue
        self._meta: dict[str, Any] | None = None  # kept once it is final
        self._promises: list[Any] | None = None

    @property
    def app(self) -> QWorker:
        """The app whose result store is used."""
        if self._app is None:
            self._app = get_current_app()
        return cast("QWorker", self._app)

    @property
    def backend(self) -> Any:
        """The result store."""
        return self.app.backend

    @property
    def task_id(self) -> str:
        """The same as id."""
        return self.id

    # -- waiting --

    def get(
        self,
        timeout: float | timedelta | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        no_ack: bool = True,
        follow_parents: bool = True,
        callback: Callable[[str, Any], Any] | None = None,
        on_message: Callable[[dict[str, Any]], Any] | None = None,
        on_interval: Callable[[], Any] | None = None,
        disable_sync_subtasks: bool = True,
    ) -> R:
        """Wait until the task has ended; return its value, or raise its exception.

        - timeout: seconds or a timedelta; None for no limit; 0 or less: do not wait.
        - propagate: False returns the exception instead of raising it.
        - interval: seconds between polls of a store that does not notify us, and between calls of
          on_interval().
        - follow_parents: also raise the exception of an earlier task of the chain, as soon as it is known.
        - callback: called with the id and the value.
        - on_message: called with the metadata of each state that is seen, including the last; an exception is
          in it as the stored dict. Short states may be missed.
        - no_ack: no effect.

        Returns None at once for a call whose result is ignored. The cause (``__cause__``) of the exception is
        the worker's traceback. Raises ResultTimeout after the timeout, BackendError if the store is
        unavailable, or becomes so for more than 20 seconds, TypeError for an invalid timeout, RuntimeError in
        a task unless disable_sync_subtasks is False, NotSupported if results are disabled.
        """
        limit = timeout_seconds(timeout)
        if self.ignored:
            return cast(R, None)
        until = None if limit is None else self.app.clock.monotonic() + limit
        if disable_sync_subtasks:
            refuse_to_wait_in_a_task()
        follow = self.parent is not None and follow_parents and propagate
        if follow:
            on_interval = all_of(self._look_before, on_interval)
            self._look_before()
        if on_message is not None and self._meta is None:
            on_interval = all_of(state_changes(self.app, self.id, on_message), on_interval)
        looked = self.backend.watcher.mark()
        meta = self._final_meta()
        if meta is None:
            found = wait_for(self.app, self.id, self._queue, limit, interval, on_interval, looked)
            meta = self.keep(found)
        if on_message is not None:
            on_message(meta)
        if follow and meta["status"] in states.PROPAGATE_STATES:
            # An earlier task may have failed meanwhile, and caused this failure.
            tree.raise_of_parents(self, look(self.app, tree.unknown_before(self), until))
        value = self._value(meta, propagate)
        if callback is not None:
            callback(self.id, value)
        return value

    wait = get

    def __await__(self) -> Generator[Any, None, R]:
        """Wait without blocking the event loop; return the value or raise the exception like get(), including
        that of an earlier task."""
        return self._await().__await__()

    async def _await(self) -> R:
        if self.ignored:
            return cast(R, None)
        refuse_to_wait_in_a_task()
        meta = self._meta
        if meta is None:
            import asyncio  # here, because it takes 30 ms

            try:
                async with asyncio.timeout(HINT_AFTER):
                    found = await awaiting.ended(self.backend.watcher, self.id)
            except TimeoutError:
                await asyncio.to_thread(hint, self.app, self.id, self._queue)
                found = await awaiting.ended(self.backend.watcher, self.id)
            meta = self.keep(found)
        if self.parent is not None and meta["status"] in states.PROPAGATE_STATES:
            tree.raise_of_parents(self, await awaiting.look(self.backend.watcher, tree.unknown_before(self)))
        return self._value(meta, True)

    def then(
        self,
        callback: Callable[[AsyncResult[R]], Any],
        on_error: Callable[..., Any] | None = None,
        weak: bool = False,
    ) -> Any:
        """Call callback(result) when there is a value, or on_error(exception) on failure; return a vine
        promise.

        They are called at once if the task has ended, otherwise on a thread of the app, or one that notices
        the end; their exceptions are logged. on_error is also called with the DamagedResult of an unreadable
        result, which is raised here if it is stored already. weak has no effect. Raises TypeError for
        anything not callable.
        """
        return callbacks.then(self, callback, on_error)

    # -- state --

    def _final_meta(self) -> dict[str, Any] | None:
        """Return the stored metadata if the task has ended, else None."""
        meta = self._look()
        return meta if meta["status"] in states.READY_STATES else None

    def keep(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Keep the metadata of the ended task, and call its callbacks."""
        if self._meta is None:
            self._meta = meta
        callbacks.keep(self, meta)
        return self._meta

    def _look_before(self) -> None:
        """Raise the exception of an earlier task, if one is known to have failed."""
        try:
            found = self.backend.watcher.own_look(tree.unknown_before(self))
        except BackendError:
            return  # if it persists, waiting raises it
        tree.raise_of_parents(self, found or {})

    def _look(self) -> dict[str, Any]:
        """Return the current metadata, stored or empty. Final metadata is kept."""
        meta = self._meta
        if meta is None:
            meta = self.backend.get(self.id) or _NOTHING
            if meta["status"] in states.READY_STATES:
                self.keep(meta)
        return meta

    def _value(self, meta: dict[str, Any], propagate: bool) -> R:
        if meta["status"] not in states.PROPAGATE_STATES:
            return cast(R, meta["result"])
        error = exception_of(meta)
        if propagate:
            raise error
        return cast(R, error)

    @property
    def state(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE, REVOKED, or a custom state."""
        return str(self._look()["status"])

    status = state

    @property
    def result(self) -> Any:
        """The value, the exception if it failed, or the info of update_state() while it runs; None without
        any."""
        meta = self._look()
        if meta["status"] in states.EXCEPTION_STATES:
            return exception_of(meta)
        return meta["result"]

    info = result

    @property
    def traceback(self) -> str | None:
        """The worker's traceback as text; None if there is none."""
        return self._look().get("traceback")

    @property
    def date_done(self) -> datetime | None:
        """When it ended, in UTC; None before."""
        done = self._look().get("date_done")
        return parse_iso(done) if isinstance(done, str) else done

    @property
    def children(self) -> list[Any]:
        """The results of the calls that the task made, available once it has ended: an AsyncResult, or a
        GroupResult for a group."""
        return [result_from_tuple(child, self._app) for child in self._look().get("children") or ()]

    @property
    def name(self) -> str | None:
        """The task's name. This, and the following fields, are only stored with the setting
        result_extended, else None."""
        return self._look().get("name")

    @property
    def args(self) -> list[Any] | None:
        """The positional arguments."""
        return self._look().get("args")

    @property
    def kwargs(self) -> dict[str, Any] | None:
        """The keyword arguments."""
        return self._look().get("kwargs")

    @property
    def worker(self) -> str | None:
        """The node that ran it."""
        return self._look().get("worker")

    @property
    def retries(self) -> int | None:
        """The number of retries."""
        return self._look().get("retries")

    @property
    def queue(self) -> str | None:
        """The queue it was sent to."""
        return self._queue or self._look().get("queue")

    def ready(self) -> bool:
        """Return whether it has ended, successfully or not."""
        return self._final_meta() is not None

    def successful(self) -> bool:
        """Return whether it returned a value."""
        return self.state == states.SUCCESS

    def failed(self) -> bool:
        """Return whether it raised an exception."""
        return self.state == states.FAILURE

    def exists(self) -> bool:
        """Return whether a state is stored: False for an id that was never sent, is waiting, or has
        expired."""
        return self._meta is not None or self.backend.get(self.id) is not None

    def maybe_throw(self, propagate: bool = True, callback: Callable[[str, Any], Any] | None = None) -> Any:
        """Raise its exception if it has failed; return the value, None while there is none.

        callback: called with the id and the value.
        """
        value = self._value(self._look(), propagate)
        if callback is not None:
            callback(self.id, value)
        return value

    maybe_reraise = maybe_throw

    # -- the calls of its task --

    def iterdeps(self, intermediate: bool = False) -> Iterator[tuple[Node | None, Node]]:
        """Iterate over the tree, level by level: yield ``(parent, result)``; the first parent is None.

        intermediate: skip the calls of tasks that have not ended, instead of raising IncompleteStream.
        """
        return tree.iterdeps(self, intermediate)

    def collect(self, intermediate: bool = False, **options: Any) -> Iterator[tuple[Node, Any]]:
        """Wait for each result of the tree in turn; yield ``(result, value)``. options: as for get()."""
        return tree.collect(self, intermediate, options)

    def get_leaf(self) -> Any:
        """Wait for all results of the tree, and return the value of the last."""
        return tree.get_leaf(self)

    def build_graph(
        self, intermediate: bool = False, formatter: GraphFormatter | None = None
    ) -> DependencyGraph[Node]:
        """Return the tree as a graph of results, each with those of its task's calls. intermediate: as for
        iterdeps(). formatter: for to_dot()."""
        return tree.build_graph(self, intermediate, formatter)

    @property
    def graph(self) -> DependencyGraph[Node]:
        """The graph of build_graph(). Raises IncompleteStream if a task has not ended."""
        return self.build_graph()

    def tree(self) -> ResultTree:
        """Return the current tree of this result without waiting, with one read for each level.

        Each call and each group occurs once. Raises DamagedResult for an unreadable one.
        """
        return tree.tree_of(self)

    # -- actions --

    def forget(self) -> None:
        """Delete its stored result and those of its predecessors; the state is PENDING afterwards."""
        tree.forget_line(self)

    def _is_stored(self) -> bool:
        return True

    def revoke(
        self,
        connection: Any = None,
        terminate: bool = False,
        signal: str | int | None = None,
        wait: bool = False,
        timeout: Any = None,
    ) -> None:
        """Cancel it: workers will not run it. terminate: if it is running, end it with *signal* (TERM).

        For a chain or chord, this cancels all calls that have not run, including earlier ones. Calls after a
        cancelled call fail too.

        The broker has stored the command when this returns. Workers do not reply, so *wait* and *timeout*
        raise ControlError. connection: None, or one of this app's.
        """
        tree.revoke_workflow(self, connection, terminate, signal, wait, timeout)

    def as_tuple(self) -> Any:
        """Return ``((id, parent), members)``, plain data that result_from_tuple converts back to a result.

        members: None for a single call. For a long chain, only the nearest predecessors are included, because
        JSON limits the nesting.
        """
        return tree.described(self)

    def as_list(self) -> list[str]:
        """Return its id and those of its predecessors."""
        return tree.ids_of_line(self)

    _is_single = True

    def _singles(self) -> Iterator[AsyncResult[Any]]:
        yield self

    def _members_described(self) -> None:
        return None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unsupported("AsyncResult", name, RESULT)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return other == self.id
        return other.id == self.id if isinstance(other, AsyncResult) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.id}>"

    def __reduce__(self) -> Any:
        """Return the arguments in the order of other versions: id, None, parent, queue, ignored."""
        return type(self), (self.id, None, self.parent, self._queue, self.ignored)


def result_from_tuple(value: Any, app: App | None = None) -> Any:
    """Return the AsyncResult or GroupResult for the data of ``as_tuple()``. Raises ValueError for other
    data."""
    before: list[tuple[str, Any]] = []
    described = value
    while True:
        try:
            identity, members = described
            identity, parent = identity if isinstance(identity, list | tuple) else (identity, None)
        except (TypeError, ValueError):
            identity, members, parent = None, None, None
        if not isinstance(identity, str) or not isinstance(members, list | tuple | None):
            raise ValueError(f"{value!r:.200} does not describe a result: expected ((id, parent), children)")
        before.append((identity, members))
        if not parent:
            break
        described = parent
    result: Any = None
    for identity, members in reversed(before):
        if members is None:
            result = AsyncResult(identity, app=app, parent=result)
        else:
            groups = (app or get_current_app()).GroupResult
            result = groups(identity, [result_from_tuple(each, app) for each in members], result)
    return result
