"""Gathering: many results are waited for at once, each wake-up with one look for all that has ended since.

Comes from:  ``ResultSet``, which passes the results of single calls that it and the sets in it hold.
Goes to:     the ResultWatcher of the result store, for which a group of any size is one that waits.
Thread:      the caller's, or the event loop's for what is ``async``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from qworker import states
from qworker.errors import DamagedResult, ResultTimeout
from qworker.message.exceptions import exception_of
from qworker.results import awaiting
from qworker.results.waiting import HINT_AFTER, all_of, hint, look, refuse_to_wait_in_a_task

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.backends.base import Backend, Found, Meta
    from qworker.results.result import AsyncResult
    from qworker.results.several import ResultSet

    Ended = tuple[AsyncResult[Any], Meta]

R = TypeVar("R")

IGNORED: Meta = {"status": states.IGNORED, "result": None}
"""What stands for the metadata of a call whose result is ignored: there is nothing to wait for."""


class Roll:
    """Which results are still waited for, and the results before them, whose failure ends the waiting."""

    def __init__(self, results: Iterable[AsyncResult[Any]], parents: Iterable[AsyncResult[Any]] = ()) -> None:
        self.known: list[Ended] = []
        """Those that had ended before anybody looked."""
        self.missing: dict[str, list[tuple[int, AsyncResult[Any]]]] = {}
        self._parents = {}
        self._damaged: DamagedResult | None = None
        for place, result in enumerate(results):
            if result._meta is not None:
                self.known.append((result, result._meta))
            elif result.ignored:
                self.known.append((result, IGNORED))
            else:
                self.missing.setdefault(result.id, []).append((place, result))
        for parent in parents:
            if parent._meta is not None:
                _raise_if_failed(parent._meta)
            elif not parent.ignored:
                self._parents[parent.id] = parent

    def ids(self) -> list[str]:
        """All that are to be waited for."""
        return list({**self._parents, **self.missing}) if self.missing else []

    def take(self, found: Mapping[str, Found]) -> list[Ended]:
        """Keep what has ended, and return the results that have, in their order. Raises the exception of one
        before them that has failed."""
        ended: list[tuple[int, AsyncResult[Any], Meta]] = []
        for task_id, each in found.items():
            parent = self._parents.pop(task_id, None)
            if isinstance(each, DamagedResult):
                if task_id in self.missing:
                    self._damaged = self._damaged or each
                continue
            ended.extend((place, result, each) for place, result in self.missing.pop(task_id, ()))
            if parent is not None:
                parent.keep(each)
                _raise_if_failed(each)
        ended.sort(key=lambda each: each[0])
        for _, result, meta in ended:
            result.keep(meta)
        return [(result, meta) for _, result, meta in ended]

    def unsure(self, ended: Iterable[Ended]) -> list[str]:
        """The ids of those before them of which nothing is known, while one of *ended* has failed, maybe
        because of them: so what is raised does not depend on which was heard of first."""
        failed = self._parents and any(meta["status"] in states.PROPAGATE_STATES for _, meta in ended)
        return [each for each in self._parents if each not in self.missing] if failed else []

    def check(self) -> None:
        """Raise the DamagedResult of a result that cannot be read, once those are given that can be."""
        if self._damaged is not None:
            raise self._damaged

    def overdue(self, app: QWorker, of: int, timeout: float) -> ResultTimeout:
        """The error that says which have not ended."""
        first = next(iter(self.missing))
        meta = app.backend.get(first)
        state = states.PENDING if meta is None else meta["status"]
        advice = "see qworker doctor" if state == states.PENDING else "it may still be running"
        return ResultTimeout(
            f"{len(self.missing)} of {of} tasks have not ended within {timeout:g} s; "
            f"the first is task {first} (state: {state}); {advice}"
        )

    def hint(self, app: QWorker) -> None:
        """Say in the log why the first that is missing may never end."""
        for (_, result), *_ in self.missing.values():
            hint(app, result.id, result._queue)
            break


def _raise_if_failed(meta: Meta) -> None:
    if meta["status"] in states.PROPAGATE_STATES:
        raise exception_of(meta)


def gather(
    app: QWorker,
    results: list[AsyncResult[Any]],
    parents: Iterable[AsyncResult[Any]] = (),
    timeout: float | None = None,
    interval: float = 0.5,
    on_interval: Callable[[], Any] | None = None,
) -> Iterator[list[Ended]]:
    """Yield *results* with their metadata as they end, some at a time, until all have.

    parents: results whose failure is raised as soon as it is known. timeout: seconds, None for ever, 0 for
    one look. Raises ResultTimeout when some have not ended by then, DamagedResult for one that cannot be
    read.
    """
    roll = Roll(results, parents)
    if roll.known:
        yield roll.known
    if not roll.missing:
        return
    wanted = roll.ids()
    until = None if timeout is None else app.clock.monotonic() + timeout
    watched = all_of(_hinting(app, roll), on_interval)
    for found in app.backend.wait_each(wanted, timeout, watched, interval):
        if ended := roll.take(found):
            if unsure := roll.unsure(ended):
                roll.take(look(app, unsure, until))
            yield ended
        roll.check()
        if not roll.missing:
            return
    if timeout is not None:
        raise roll.overdue(app, len(results), timeout)


def _hinting(app: QWorker, roll: Roll) -> Callable[[], None]:
    """A function that says once, when some have been waited for so long, why they may never end."""
    left = [app.clock.monotonic() + HINT_AFTER]

    def hint_once() -> None:
        if left and app.clock.monotonic() >= left[0]:
            left.clear()
            roll.hint(app)

    return hint_once


async def gather_async(
    app: QWorker,
    results: list[AsyncResult[Any]],
    parents: Iterable[AsyncResult[Any]] = (),
    timeout: float | None = None,
) -> AsyncIterator[list[Ended]]:
    """As gather(), while an event loop goes on."""
    import asyncio  # here, because it costs 30 ms

    roll = Roll(results, parents)
    if roll.known:
        yield roll.known
    if not roll.missing:
        return
    loop = asyncio.get_running_loop()
    hinting = loop.call_later(HINT_AFTER, lambda: loop.run_in_executor(None, roll.hint, app))
    try:
        async for found in awaiting.each_ended(app.backend, roll.ids(), timeout):
            if ended := roll.take(found):
                if unsure := roll.unsure(ended):
                    roll.take(await awaiting.look(app.backend.watcher, unsure))
                yield ended
            roll.check()
            if not roll.missing:
                return
    finally:
        hinting.cancel()
    if timeout is not None:
        raise await asyncio.to_thread(roll.overdue, app, len(results), timeout)


class AsCompleted(Generic[R]):
    """The results of a set as they end: to go through with ``for`` or ``async for``."""

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
            async for ended in gather_async(self._results.app, singles, (), self._timeout):
                for result, _ in ended:
                    yield result


def known_states(singles: list[AsyncResult[Any]], backend: Callable[[], Backend]) -> dict[str, str]:
    """The state of each of *singles*, by its id, after one look for those that are not known to have ended.

    Raises DamagedResult for one that cannot be read.
    """
    unknown = list({each.id for each in singles if each._meta is None and not each.ignored})
    found = backend().read_many(unknown) if unknown else {}
    known: dict[str, str] = {}
    for each in singles:
        meta = each._meta or (IGNORED if each.ignored else found.get(each.id))
        if isinstance(meta, DamagedResult):
            raise meta
        known[each.id] = states.PENDING if meta is None else meta["status"]
        if meta is not None and known[each.id] in states.READY_STATES:
            each.keep(meta)
    return known
