"""Gathering: waits for several results at once, with one read per wake-up for all that have ended.

Comes from:  ``ResultSet``, which passes the results of single calls in it and in nested sets.
Goes to:     the ResultWatcher of the result store, for which a group of any size is one waiter.
Thread:      the caller's; the event loop's for ``async`` functions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from qworker import states
from qworker.contracts import App
from qworker.errors import DamagedResult, ResultTimeout
from qworker.message.exceptions import exception_of
from qworker.results import awaiting
from qworker.results.tree import Single
from qworker.results.waiting import HINT_AFTER, all_of, hint, look

if TYPE_CHECKING:
    from qworker.backends.base import Backend, Found, Meta

S = TypeVar("S", bound=Single)

IGNORED: Meta = {"status": states.IGNORED, "result": None}
"""The metadata of a call whose result is ignored; it is not waited for."""


class PendingResults(Generic[S]):
    """The results to wait for, and their predecessors, whose failure ends the waiting."""

    def __init__(self, results: Iterable[S], parents: Iterable[Single] = ()) -> None:
        self._known: list[tuple[S, Meta]] = []
        """Results that had ended already, until take() returns them."""
        self.missing: dict[str, list[tuple[int, S]]] = {}
        self._before = [each for each in parents if not each.ignored]  # nearest first
        self._parents = {each.id: each for each in self._before if each._meta is None}
        self._failed = any(_has_failed(each._meta) for each in self._before if each._meta is not None)
        self._damaged: DamagedResult | None = None
        for place, result in enumerate(results):
            if result._meta is not None:
                self._known.append((result, result._meta))
            elif result.ignored:
                self._known.append((result, IGNORED))
            else:
                self.missing.setdefault(result.id, []).append((place, result))

    def ids(self) -> list[str]:
        """Return the ids of the results and predecessors to wait for."""
        return list({**self._parents, **self.missing}) if self.missing else []

    def take(self, found: Mapping[str, Found]) -> list[tuple[S, Meta]]:
        """Record the ended tasks in *found*; return their results in order, after those that had ended
        before."""
        known, self._known = self._known, []
        ended: list[tuple[int, S, Meta]] = []
        for task_id, each in found.items():
            parent = self._parents.pop(task_id, None)
            if isinstance(each, DamagedResult):
                if task_id in self.missing:
                    self._damaged = self._damaged or each
                continue
            ended.extend((place, result, each) for place, result in self.missing.pop(task_id, ()))
            if parent is not None:
                self._failed |= _has_failed(parent.keep(each))
        ended.sort(key=lambda each: each[0])
        for _, result, meta in ended:
            result.keep(meta)
        return known + [(result, meta) for _, result, meta in ended]

    def unsure(self, ended: Iterable[tuple[S, Meta]]) -> list[str]:
        """Return the ids of predecessors not known to have ended, if one of *ended* or a predecessor has
        failed, perhaps because of them. They are read, so that the exception does not depend on which failure
        is seen first."""
        if not self._parents or not (self._failed or any(_has_failed(meta) for _, meta in ended)):
            return []
        return [each for each in self._parents if each not in self.missing]

    def raise_of_parents(self) -> None:
        """Raise the exception of the first failed predecessor, if any."""
        for parent in reversed(self._before) if self._failed else ():
            if parent._meta is not None and _has_failed(parent._meta):
                raise exception_of(parent._meta)

    def check(self) -> None:
        """Raise the DamagedResult of an unreadable result. Called after the readable ones were delivered."""
        if self._damaged is not None:
            raise self._damaged

    def overdue(self, app: App, of: int, timeout: float) -> ResultTimeout:
        """Return the error for results that have not ended."""
        first = next(iter(self.missing))
        meta = app.backend.get(first)
        state = states.PENDING if meta is None else meta["status"]
        advice = "see qworker doctor" if state == states.PENDING else "it may still be running"
        return ResultTimeout(
            f"{len(self.missing)} of {of} tasks have not ended within {timeout:g} s; "
            f"the first is task {first} (state: {state}); {advice}"
        )

    def hint(self, app: App) -> None:
        """Log why the first missing result may never arrive."""
        for (_, result), *_ in self.missing.values():
            hint(app, result.id, result._queue)
            break


def _has_failed(meta: Meta) -> bool:
    return meta["status"] in states.PROPAGATE_STATES


def gather(
    app: App,
    results: list[S],
    parents: Iterable[Single] = (),
    timeout: float | None = None,
    interval: float = 0.5,
    on_interval: Callable[[], Any] | None = None,
) -> Iterator[list[tuple[S, Meta]]]:
    """Yield *results* with their metadata as they end, several at a time, until all have.

    parents: results whose failure is raised as soon as it is known. timeout: seconds, None for no limit, 0 to
    read once. Raises ResultTimeout if some have not ended by then, DamagedResult for an unreadable one.
    """
    pending = PendingResults(results, parents)
    until = None if timeout is None else app.clock.monotonic() + timeout
    watched = all_of(_hinting(app, pending), on_interval)
    ids = pending.ids()
    for found in chain([{}], app.backend.wait_each(ids, timeout, watched, interval) if ids else ()):
        ended = pending.take(found)
        if unsure := pending.unsure(ended):
            pending.take(look(app, unsure, until))
        pending.raise_of_parents()
        if ended:
            yield ended
        pending.check()
        if not pending.missing:
            return
    if timeout is not None:
        raise pending.overdue(app, len(results), timeout)


def _hinting(app: App, pending: PendingResults[Any]) -> Callable[[], None]:
    """Return a function that logs once, after HINT_AFTER seconds, why results may never arrive."""
    left = [app.clock.monotonic() + HINT_AFTER]

    def hint_once() -> None:
        if left and app.clock.monotonic() >= left[0]:
            left.clear()
            pending.hint(app)

    return hint_once


async def gather_async(
    app: App,
    results: list[S],
    parents: Iterable[Single] = (),
    timeout: float | None = None,
) -> AsyncGenerator[list[tuple[S, Meta]], None]:
    """gather() without blocking the event loop."""
    import asyncio  # here, because it takes 30 ms

    pending = PendingResults(results, parents)

    async def taken(found: Mapping[str, Found]) -> list[tuple[S, Meta]]:
        ended = pending.take(found)
        if unsure := pending.unsure(ended):
            pending.take(await awaiting.look(app.backend.watcher, unsure))
        pending.raise_of_parents()
        return ended

    if known := await taken({}):
        yield known
    if not pending.missing:
        return
    loop = asyncio.get_running_loop()
    hinting = loop.call_later(HINT_AFTER, lambda: loop.run_in_executor(None, pending.hint, app))
    try:
        async with aclosing(awaiting.each_ended(app.backend, pending.ids(), timeout)) as looks:
            async for found in looks:
                if ended := await taken(found):
                    yield ended
                pending.check()
                if not pending.missing:
                    return
    finally:
        hinting.cancel()
    if timeout is not None:
        raise await asyncio.to_thread(pending.overdue, app, len(results), timeout)


def known_states(singles: Sequence[Single], backend: Callable[[], Backend]) -> dict[str, str]:
    """Return the state of each of *singles*, by id, with one read for those not known to have ended.

    Raises DamagedResult for an unreadable one.
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
