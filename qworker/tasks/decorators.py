"""What ``@app.task(…)`` and ``@shared_task(…)`` are to a type checker: makers of tasks that keep the
signature.

Comes from:  ``app.py`` and ``shared.py``, as the type of what they return.
Goes to:     mypy and pyright; nothing of it runs.
Thread:      none.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from qworker.tasks.task import AsyncTask, Task

P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    """Makes a task of a function: what ``@app.task(…)`` is, to a type checker."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class BoundDecorator(Protocol):
    """The same with ``bind=True``: the function's first parameter is the task, and no argument of the
    call."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> Task[P, R]: ...
