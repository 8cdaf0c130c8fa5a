"""Shared tasks, for libraries that define tasks without knowing the app; periodic tasks declared in code.

Comes from:  ``@shared_task``.
Goes to:     every app, when it is finalized; the decorator returns a proxy for the current app's task.
Thread:      the one that imports the module.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from qworker.canvas.signatures import Signature
from qworker.context import Proxy, all_apps, get_current_app
from qworker.contracts import App
from qworker.tasks import registry
from qworker.tasks.definition import make_task
from qworker.tasks.task import AsyncTask, Task

if TYPE_CHECKING:
    from qworker.tasks.decorators import BoundDecorator, Decorator, TaskOptions

P = ParamSpec("P")
R = TypeVar("R")


@overload
def shared_task(function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
@overload
def shared_task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def shared_task(*, bind: Literal[True], **options: Unpack[TaskOptions]) -> BoundDecorator: ...
@overload
def shared_task(*, bind: Literal[False] = False, **options: Unpack[TaskOptions]) -> Decorator: ...
@overload
def shared_task(*, base: type[Task], bind: Literal[True], **options: Any) -> BoundDecorator: ...
@overload
def shared_task(*, base: type[Task], bind: Literal[False] = False, **options: Any) -> Decorator: ...


def shared_task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a task that belongs to every app, for libraries that do not know the app.

    options: as for app.task. Returns a proxy for the task of the current app. Raises ConfigurationError like
    app.task, here or when the app is first used.
    """
    if function is None:
        return lambda function: shared_task(function, **options)

    def make(app: App) -> Any:
        return app.add_task(make_task(app, function, **options))

    registry.shared.append(make)
    for app in all_apps():
        if app.finalized:
            make(app)

    def find() -> Any:
        app = get_current_app()
        return app.tasks[options.get("name") or app.gen_task_name(function.__name__, function.__module__)]

    return Proxy(find)


# -- Periodic tasks declared in code --


def add_periodic_task(
    app: App,
    schedule: Any,
    sig: Any,
    args: Iterable[Any],
    kwargs: Mapping[str, Any] | None,
    name: str | None,
    options: dict[str, Any],
) -> str:
    """See ``QWorker.add_periodic_task``."""
    call = sig if isinstance(sig, Signature) else Signature(getattr(sig, "name", sig), app=app)
    fields = {key: options.pop(key) for key in FIELDS & options.keys()}
    entry = name or repr(call)[:255].strip()
    app.periodic_tasks[entry] = {
        "task": call.task,
        "schedule": schedule,
        "args": (*call.args, *args),
        "kwargs": {**call.kwargs, **(kwargs or {})},
        "options": {**call.options, **options},
        **fields,
    }
    return entry


FIELDS = frozenset(["enabled", "start", "end", "max_runs", "jitter", "catch_up", "overlap"])
"""Options that are fields of the entry; ``expires`` is an option of the call."""
