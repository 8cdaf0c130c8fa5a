"""Shared tasks: for libraries that define tasks and do not know the app they will run in.

Comes from:  ``@shared_task``.
Goes to:     every app, when it is finalized; what the decorator returns stands for the current app's task.
Thread:      whoever imports.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from qworker.context import Proxy, all_apps, get_current_app
from qworker.tasks import registry
from qworker.tasks.definition import make_task
from qworker.tasks.task import AsyncTask, Task

if TYPE_CHECKING:
    from qworker.app import QWorker
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
    """Make a task that belongs to every app, for libraries that do not know it.

    options: as for app.task. What this returns stands for the task of the current app. Raises
    ConfigurationError as app.task does, here or where the app is first used.
    """
    if function is None:
        return lambda function: shared_task(function, **options)

    def make(app: QWorker) -> Task[..., Any]:
        return app.add_task(make_task(app, function, **options))

    registry.shared.append(make)
    for app in all_apps():
        if app.finalized:
            make(app)

    def find() -> Task[..., Any]:
        app = get_current_app()
        return app.tasks[options.get("name") or app.gen_task_name(function.__name__, function.__module__)]

    return Proxy(find)
