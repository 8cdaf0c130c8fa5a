"""The tasks that the workers of a world run, and the record of what ran.

Comes from:  ``nodes``, which define them in each app.
Goes to:     the Record, which ``checks`` holds against the oracle.
Thread:      the world's.

A task knows by its number what it is to do; the record outlives every process.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

from qworker import QWorker, Task
from qworker.errors import Ignore, Reject
from qworker.middleware import Middleware
from tests.simulation.seams import Process
from tests.support.flows import shown


class OutOfTime(BaseException):
    """The run passes its hard time limit here."""


class Record:
    """What ran, by the name of the order: ``(number, start, end)`` of each run; told: of each errback."""

    def __init__(self) -> None:
        self.tick = itertools.count()
        self.runs: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self.told: dict[str, Counter[int]] = defaultdict(Counter)
        self.wrong: list[str] = []
        """What a task saw that it must not see."""

    def ran(self, name: str) -> Counter[int]:
        return Counter(number for number, *_ in self.runs[name])


class Overriding(Task):
    """A base class as many projects have one."""

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        options["headers"] = {"tenant": "one"}
        return super().apply_async(args, kwargs, *more, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class OverridingAsync(Overriding):
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self.run(*args, **kwargs)


class Merging(Task):
    """One that adds to the headers of the call."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "tenant": "one"}
        return super().apply_async(args, kwargs, **options)


BASES: dict[str, tuple[Any, Any]] = {
    "plain": (None, None),
    "overriding": (Overriding, OverridingAsync),
    "merging": (Merging, Merging),
}
"""Of tasks that are plain functions, and of coroutines."""


class Noting(Middleware):
    """Middleware that puts a header into each message."""

    def before_publish(self, message: Any) -> Any:
        return message


def define(app: QWorker, process: Process, record: Record, base: str) -> None:
    """Define the tasks in *app*, which is that of *process*."""
    kind, of_coroutines = BASES[base]

    def run(task: Any, given: Any, flow: str, number: int, fails: bool, retries: int) -> str:
        start = next(record.tick)
        process.time.note(process.name, "runs", flow, number)
        try:
            if task.request.retries < retries:
                raise task.retry(countdown=0, max_retries=retries)
            if fails:
                raise ValueError(number)
            return shown(number, given)
        finally:
            record.runs[flow].append((number, start, next(record.tick)))

    @app.task(base=kind, name="call", bind=True)
    def call(this: Any, *given: Any, flow: str, number: int, fails: bool, retries: int) -> str:
        return run(this, given, flow, number, fails, retries)

    @app.task(base=of_coroutines, name="acall", bind=True)
    async def acall(this: Any, *given: Any, flow: str, number: int, fails: bool, retries: int) -> str:
        return run(this, given, flow, number, fails, retries)

    @app.task(base=kind, name="item")
    def item(of: Any) -> str:
        return star(*of)

    @app.task(base=kind, name="star")
    def star(flow: str, number: int, place: int, fails: bool) -> str:
        start = next(record.tick)
        try:
            if fails:
                raise ValueError(number)
            return shown(number, [place])
        finally:
            record.runs[flow].append((number, start, next(record.tick)))

    @app.task(base=kind, name="told")
    def told(failed: str, *, flow: str, number: int) -> None:
        record.told[flow][number] += 1

    @app.task(base=kind, name="told_now")
    def told_now(request: Any, error: Any, traceback: Any, *, flow: str, number: int) -> None:
        record.told[flow][number] += 1


__all__ = ["Ignore", "Reject", "define"]
