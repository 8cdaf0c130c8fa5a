"""Running flows: tasks that record what ran, and their results.

Comes from:  the tests that compare flows (``flows.py``) with plain Python.
Goes to:     an app of the test, to which the tasks belong.
Thread:      whichever runs the tasks.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from qworker import QWorker
from qworker.results.group_result import GroupResult
from tests.support.flows import Failed, shown
from tests.support.waiting import PATIENCE


class Ledger:
    """The runs of each flow."""

    def __init__(
        self, app: QWorker, base: Any = None, beside: Callable[[Any], None] = lambda task: None
    ) -> None:
        """base: the class of all tasks. beside: called additionally by each call, with its task."""
        self.app = app
        self._lock = threading.Lock()
        self._tick = itertools.count()
        self.runs: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        """``(number, start, end)`` of each run."""
        self.told: dict[str, Counter[int]] = defaultdict(Counter)
        self.changed = time.monotonic()

        def note(flow: str, number: int, start: int) -> None:
            with self._lock:
                self.runs[flow].append((number, start, next(self._tick)))
                self.changed = time.monotonic()

        def run(task: Any, given: Any, flow: str, number: int, fails: bool, retries: int) -> str:
            start = next(self._tick)
            beside(task)
            try:
                if task.request.retries < retries:
                    raise task.retry(countdown=0, max_retries=retries)
                if fails:
                    raise ValueError(number)
                return shown(number, given)
            finally:
                note(flow, number, start)

        @app.task(base=base, name="call", bind=True)
        def call(this: Any, *given: Any, flow: str, number: int, fails: bool, retries: int) -> str:
            return run(this, given, flow, number, fails, retries)

        @app.task(base=base, name="acall", bind=True)
        async def acall(this: Any, *given: Any, flow: str, number: int, fails: bool, retries: int) -> str:
            return run(this, given, flow, number, fails, retries)

        @app.task(base=base, name="item")
        def item(of: Any) -> str:
            return star(*of)

        @app.task(base=base, name="star")
        def star(flow: str, number: int, place: int, fails: bool) -> str:
            start = next(self._tick)
            try:
                if fails:
                    raise ValueError(number)
                return shown(number, [place])
            finally:
                note(flow, number, start)

        def tell(flow: str, number: int) -> None:
            with self._lock:
                self.told[flow][number] += 1
                self.changed = time.monotonic()

        @app.task(base=base, name="told")
        def told(failed: str, *, flow: str, number: int) -> None:
            tell(flow, number)

        @app.task(base=base, name="told_now")
        def told_now(request: Any, error: Any, traceback: Any, *, flow: str, number: int) -> None:
            tell(flow, number)

    def ran(self, flow: str) -> Counter[int]:
        return Counter(number for number, *_ in list(self.runs[flow]))

    def order_kept(self, flow: str, before: set[tuple[int, int]]) -> None:
        first: dict[int, int] = {}
        last: dict[int, tuple[int, int]] = {}
        for number, start, end in self.runs[flow]:
            first[number] = min(start, first.get(number, start))
            last[number] = max((start, end), last.get(number, (start, end)))
        for one, other in before:
            if one in last and other in first:
                assert last[one][1] < first[other], f"{other} began before {one} had ended"


def tree(result: Any) -> Iterator[Any]:
    """*result*, and all its parents and members."""
    waiting = [result]
    while waiting:
        each = waiting.pop()
        yield each
        if each.parent is not None:
            waiting.append(each.parent)
        if isinstance(each, GroupResult):
            waiting += each.results


def is_ready(result: Any) -> bool:
    return bool(getattr(result, "ignored", False) or result.ready())


def value_of(result: Any) -> Any:
    if isinstance(result, GroupResult):
        return [value_of(each) for each in result.results]
    value = result.get(timeout=PATIENCE, propagate=False)
    return Failed(type(value).__name__) if isinstance(value, BaseException) else value
