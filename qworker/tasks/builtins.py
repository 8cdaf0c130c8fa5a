"""Built-in tasks of every app, under Celery's names.

Comes from:  the app, when it is finalized.
Goes to:     its registry; ``task.map`` and similar methods, ours and Celery's, call them.
Thread:      the one that runs the task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qworker.canvas.signatures import GRAPH, signature
from qworker.contracts import AnyTask, App
from qworker.tasks.coroutines import run_to_end
from qworker.tasks.definition import make_task
from qworker.tasks.task import Task

if TYPE_CHECKING:
    from qworker.tasks.registry import TaskRegistry

CHORD_UNLOCK = "celery.chord_unlock"

STAND_IN = "celery.accumulate"
"""The task used to end a message whose task is unknown, for the calls in it."""


def add_builtin_tasks(app: App, registry: TaskRegistry) -> None:
    """Register celery.map, celery.starmap, celery.chunks, celery.accumulate, celery.chord_unlock and
    qworker.graph in the *registry* of *app*, unless it has its own."""

    def xmap(task: Mapping[str, Any], it: Iterable[Any]) -> list[Any]:
        call = _taking_plain(signature(task, app=app).type)
        return [_value(call(item)) for item in it]

    def xstarmap(task: Mapping[str, Any], it: Iterable[Any]) -> list[Any]:
        call = _taking_plain(signature(task, app=app).type)
        return [_value(call(*item)) for item in it]

    def parts(task: Mapping[str, Any], it: Iterable[Any], n: int) -> Any:
        from qworker.canvas.mapping import chunks

        return chunks.apply_chunks(signature(task, app=app), it, n, app).as_tuple()

    def accumulate(*args: Any, **kwargs: Any) -> Any:
        index = kwargs.get("index")
        return args if index is None else args[index]

    def gathered(**values: Any) -> dict[str, Any]:
        return values

    def unlock(self: Task[..., Any], *args: Any, **kwargs: Any) -> None:
        from qworker.tasks.chord_unlock import unlock_chord

        unlock_chord(self, *args, **kwargs)

    for name, function, base in (
        ("celery.map", xmap, Mapped),
        ("celery.starmap", xstarmap, StarMapped),
        ("celery.chunks", parts, StarMapped),
        (STAND_IN, accumulate, Task),
        (GRAPH, gathered, Task),
    ):
        if name not in registry:
            registry.register(make_task(app, function, name=name, base=base))
    if CHORD_UNLOCK not in registry:
        registry.register(
            make_task(app, unlock, name=CHORD_UNLOCK, bind=True, max_retries=None, ignore_result=True)
        )


class StarMapped(Task[..., Any]):
    """A task that calls another task for each item of a list. An item contains the arguments of one call."""

    dumps_arguments = True

    def dump_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any], partial: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert the arguments in each item like the called task."""
        inner, items = kwargs.get("task"), kwargs.get("it")
        called = self.app.tasks.get(inner["task"]) if isinstance(inner, Mapping) else None
        if called is None or called.typed_calls is None or not isinstance(items, list):
            return args, kwargs
        options = {"serializer": self.serializer, **options}
        return args, {**kwargs, "it": [self._dumped(called, item, options) for item in items]}

    def _dumped(self, called: AnyTask, item: Any, options: Mapping[str, Any]) -> Any:
        return called.dump_arguments(tuple(item), {}, options)[0]


class Mapped(StarMapped):
    """A StarMapped whose items are the only argument of each call."""

    def _dumped(self, called: AnyTask, item: Any, options: Mapping[str, Any]) -> Any:
        return called.dump_arguments((item,), {}, options)[0][0]


def _taking_plain(task: Task[..., Any]) -> Callable[..., Any]:
    return task.taking_plain(task)


def _value(returned: Any) -> Any:
    return run_to_end(returned) if isinstance(returned, Coroutine) else returned
