"""Several: sets of results, which are queried and waited for together.

Comes from:  results of any kind; ``group_result``, for those of a group.
Goes to:     the result store, with one read for all of them.
Thread:      any; one object may be shared, except for changes of its members.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from qworker import states
from qworker.conf.unsupported import RESULT, unsupported
from qworker.context import get_current_app
from qworker.contracts import App
from qworker.results import callbacks, tree
from qworker.results.gathering import IGNORED, gather, gather_async, known_states
from qworker.results.result import AsyncResult
from qworker.results.tree import Single
from qworker.results.waiting import refuse_to_wait_in_a_task, timeout_seconds

if TYPE_CHECKING:
    from qworker import GroupResult, QWorker
    from qworker.backends.base import Backend, Meta

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # typing's has no default before Python 3.13

    R = TypeVar("R", default=Any)  # a bare ResultSet has any values
else:
    from typing import TypeVar

    R = TypeVar("R")


class ResultSet(Generic[R]):
    """The results of several calls, queried and waited for together.

    ``results.get()`` returns the list of their values, in the order of the set; ``await results`` does the
    same in asyncio. A member may itself be a set: its value is a list.
    """

    __module__ = "qworker"

    __slots__ = ("__weakref__", "_app", "results")

    def __init__(self, results: Iterable[AsyncResult[R]], app: App | None = None) -> None:
        self.results = list(results)
        self._app = app

    @property
    def app(self) -> QWorker:
        """The app whose result store is used: the given one, the first member's, or the current one."""
        if self._app is None:
            self._app = self.results[0].app if self.results else get_current_app()
        return cast("QWorker", self._app)

    @app.setter
    def app(self, app: App) -> None:
        self._app = app

    @property
    def backend(self) -> Backend:
        """The result store."""
        return self.app.backend

    _is_single = False

    supports_native_join = True
    """join_native() works with every result store."""

    # -- members --

    def add(self, result: AsyncResult[R]) -> None:
        """Add *result* if it is not a member."""
        if result not in self.results:
            self.results.append(result)

    def update(self, results: Iterable[AsyncResult[R]]) -> None:
        """Add those *results* that are not members."""
        there = set(self.results)
        for result in results:
            if result not in there:
                there.add(result)
                self.results.append(result)

    def remove(self, result: AsyncResult[R] | str) -> None:
        """Remove *result*, or the one with this id. Raises KeyError if it is missing."""
        for place, each in enumerate(self.results):
            if str(each) == result if isinstance(result, str) else each == result:
                del self.results[place]
                return
        raise KeyError(result)

    def discard(self, result: AsyncResult[R] | str) -> None:
        """Remove *result*, or the one with this id, if it is a member."""
        try:
            self.remove(result)
        except KeyError:
            pass

    def clear(self) -> None:
        """Remove all members."""
        self.results.clear()

    @property
    def children(self) -> list[AsyncResult[R]]:
        """The members."""
        return self.results

    def _singles(self) -> Iterator[AsyncResult[Any]]:
        """Yield the results of single calls, including those of nested sets."""
        for result in self.results:
            if result._is_single:
                yield result
            else:
                yield from result._singles()

    # -- waiting --

    def get(
        self,
        timeout: float | timedelta | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        callback: Callable[[str, Any], Any] | None = None,
        no_ack: bool = True,
        on_message: Callable[[dict[str, Any]], Any] | None = None,
        disable_sync_subtasks: bool = True,
        on_interval: Callable[[], Any] | None = None,
    ) -> list[R]:
        """Wait until all have ended; return their values in the order of the set.

        - timeout: seconds or a timedelta, for all together; None for no limit; 0 or less: do not wait.
        - propagate: raise the exception of the first failed one, or of an earlier call, as soon as it is
          known; False returns exceptions in the list.
        - interval: seconds between polls of a store that does not notify us, and between calls of
          on_interval().
        - callback: called with the id and value of each as it arrives; the returned list is empty then.
        - on_message: called with the final metadata of each; an exception is in it as the stored dict.
        - no_ack: no effect.

        The value of a call whose result is ignored is None. Raises ResultTimeout after the timeout, TypeError
        for an invalid timeout, RuntimeError in a task unless disable_sync_subtasks is False, NotSupported if
        results are disabled.
        """
        limit = timeout_seconds(timeout)
        if disable_sync_subtasks:
            refuse_to_wait_in_a_task()
        for ended in self._gather(propagate, limit, interval, on_interval):
            for result, meta in ended:
                if on_message is not None and meta is not IGNORED:
                    on_message(meta)
                if callback is not None or propagate:
                    value = result._value(meta, propagate)
                    if callback is not None:
                        callback(result.id, value)
        return [] if callback is not None else self._values(propagate)

    join = get

    def join_native(
        self,
        timeout: float | timedelta | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        callback: Callable[[str, Any], Any] | None = None,
        no_ack: bool = True,
        on_message: Callable[[dict[str, Any]], Any] | None = None,
        on_interval: Callable[[], Any] | None = None,
        disable_sync_subtasks: bool = True,
    ) -> list[R]:
        """Like get(), with Celery's order of arguments."""
        return self.get(
            timeout, propagate, interval, callback, no_ack, on_message, disable_sync_subtasks, on_interval
        )

    def _gather(
        self,
        propagate: bool,
        timeout: float | None,
        interval: float = 0.5,
        on_interval: Callable[[], Any] | None = None,
    ) -> Iterator[list[tuple[AsyncResult[Any], Meta]]]:
        singles = list(self._singles())
        parents = self._before() if propagate else ()
        return gather(self.app, singles, parents, timeout, interval, on_interval) if singles else iter(())

    def _before(self) -> Iterable[Single]:
        """Return the earlier results, whose failure means that this set will never end."""
        return ()

    def _values(self, propagate: bool) -> list[R]:
        values: list[Any] = []
        for result in self.results:
            if result._is_single:
                values.append(result._value(result._meta or IGNORED, propagate))
            else:
                values.append(result._values(propagate))  # type: ignore[attr-defined]  # a set, or a graph
        return values

    def iterate(
        self,
        timeout: float | timedelta | None = None,
        propagate: bool = True,
        interval: float = 0.5,
    ) -> Iterator[R]:
        """Yield the values as they arrive, in any order. Arguments and errors are those of get()."""
        for result, meta in self._one_by_one(timeout, propagate, interval):
            yield result._value(meta, propagate)

    def iter_native(
        self,
        timeout: float | timedelta | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_message: Callable[[dict[str, Any]], Any] | None = None,
        on_interval: Callable[[], Any] | None = None,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield ``(id, metadata)`` of each as it ends; an exception is in it as the stored dict.

        Arguments and errors are those of get(). Calls whose result is ignored are left out.
        """
        for result, meta in self._one_by_one(timeout, False, interval, on_interval):
            if meta is not IGNORED:
                if on_message is not None:
                    on_message(meta)
                yield result.id, meta

    def as_completed(self, timeout: float | timedelta | None = None, interval: float = 0.5) -> AsCompleted[R]:
        """Return an iterator over the results as they end, for ``for`` and ``async for``.

        The get() of a yielded result does not wait, because it has ended, or is ignored. Raises ResultTimeout
        if some have not ended after *timeout* seconds.
        """
        return AsCompleted(self, timeout_seconds(timeout), interval)

    def _one_by_one(
        self,
        timeout: float | timedelta | None,
        propagate: bool,
        interval: float,
        on_interval: Callable[[], Any] | None = None,
    ) -> Iterator[tuple[AsyncResult[Any], Meta]]:
        limit = timeout_seconds(timeout)
        refuse_to_wait_in_a_task()
        for ended in self._gather(propagate, limit, interval, on_interval):
            yield from ended

    def __await__(self) -> Generator[Any, None, list[R]]:
        """Wait without blocking the event loop; return the values or raise an exception like get()."""
        return self._await().__await__()

    async def _await(self) -> list[R]:
        refuse_to_wait_in_a_task()
        singles = list(self._singles())
        if singles:
            async with aclosing(gather_async(self.app, singles, self._before())) as gathered:
                async for ended in gathered:
                    for result, meta in ended:
                        result._value(meta, True)
        return self._values(True)

    def then(
        self,
        callback: Callable[[ResultSet[R]], Any],
        on_error: Callable[..., Any] | None = None,
        weak: bool = False,
    ) -> Any:
        """Call callback(results) when all have a value, or on_error(exception) as soon as one has failed;
        return a vine promise.

        They are called at once if the outcome is known, otherwise on a thread of the app; their exceptions
        are logged. on_error is also called with the DamagedResult of an unreadable result. weak has no
        effect. Raises TypeError for anything not callable.
        """
        return callbacks.then_all(self, callback, on_error)

    # -- state --

    def _states(self) -> dict[str, str]:
        return known_states(list(self._singles()), lambda: self.backend)

    def ready(self) -> bool:
        """Return whether all have ended, successfully or not. Ignored results do not count."""
        ended = {*states.READY_STATES, states.IGNORED}
        return all(state in ended for state in self._states().values())

    def waiting(self) -> bool:
        """Return whether any has not ended."""
        return not self.ready()

    def successful(self) -> bool:
        """Return whether all returned a value."""
        return all(state == states.SUCCESS for state in self._states().values())

    def failed(self) -> bool:
        """Return whether any raised an exception."""
        return states.FAILURE in self._states().values()

    def completed_count(self) -> int:
        """Return how many members returned a value; a nested set counts once, if all of its members did."""
        known = self._states()
        return sum(
            all(known[each.id] == states.SUCCESS for each in result._singles()) for result in self.results
        )

    def maybe_throw(self, callback: Callable[[str, Any], Any] | None = None, propagate: bool = True) -> None:
        """Raise the exception of the first member that has failed, if any has.

        callback: called with the id and value of each single call; None if there is no value yet.
        """
        self._states()
        for each in self._singles():
            value = each._value(each._meta or IGNORED, propagate)
            if callback is not None:
                callback(each.id, value)

    maybe_reraise = maybe_throw

    # -- actions --

    parent: AsyncResult[Any] | GroupResult[Any] | None = None

    def forget(self) -> None:
        """Delete the stored results of the members and of earlier calls."""
        tree.forget_line(self)

    def revoke(
        self,
        connection: Any = None,
        terminate: bool = False,
        signal: str | int | None = None,
        wait: bool = False,
        timeout: Any = None,
    ) -> None:
        """Cancel the members and earlier calls, with one command to all workers. Arguments and errors are
        those of AsyncResult.revoke()."""
        tree.revoke_workflow(self, connection, terminate, signal, wait, timeout)

    # -- collection methods --

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unsupported(type(self).__name__, name, RESULT)

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[AsyncResult[R]]:
        return iter(self.results)

    @overload
    def __getitem__(self, index: int) -> AsyncResult[R]: ...
    @overload
    def __getitem__(self, index: slice) -> list[AsyncResult[R]]: ...

    def __getitem__(self, index: int | slice) -> AsyncResult[R] | list[AsyncResult[R]]:
        return self.results[index]

    def __eq__(self, other: object) -> bool:
        return other.results == self.results if isinstance(other, ResultSet) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: [{', '.join(map(str, self.results))}]>"

    def __reduce__(self) -> Any:
        return type(self), (self.results,)


class AsCompleted(Generic[R]):
    """Iterates over the results of a set as they end, with ``for`` or ``async for``."""

    def __init__(self, results: ResultSet[R], timeout: float | None, interval: float) -> None:
        self._results = results
        self._timeout = timeout
        self._interval = interval

    def __iter__(self) -> Iterator[AsyncResult[R]]:
        for result, _ in self._results._one_by_one(self._timeout, False, self._interval):
            yield result

    async def __aiter__(self) -> AsyncIterator[AsyncResult[R]]:
        refuse_to_wait_in_a_task()
        singles = list(self._results._singles())
        if singles:
            async with aclosing(gather_async(self._results.app, singles, (), self._timeout)) as gathered:
                async for ended in gathered:
                    for result, _ in ended:
                        yield result
