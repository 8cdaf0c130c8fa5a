"""The current app and the current task, as code inside a task sees them.

Comes from:  each new app; ``execution``, which pushes the Context of the task it runs.
Goes to:     ``current_app``, ``current_task``.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from qworker.contracts import App, Task
from qworker.errors import ConfigurationError
from qworker.message.context import current_context, set_task, task_of

_apps: WeakSet[App] = WeakSet()
_default: list[App] = []  # empty or the one default app
_makers: list[Callable[[], App]] = []  # empty, or the factory of the default app of a Django project


def add_app(app: App) -> None:
    """Register *app*, so that shared tasks are added to it."""
    _apps.add(app)


def all_apps() -> list[App]:
    """Return every living app of this process."""
    return list(_apps)


def set_default_app(app: App | None) -> None:
    """Make *app* the ``current_app`` outside of tasks, in all threads. None: unset it."""
    _default[:] = [] if app is None else [app]


def set_default_maker(make: Callable[[], App] | None) -> None:
    """Set the function that makes the default app when none was made explicitly. None: unset it."""
    _makers[:] = [] if make is None else [make]


def get_current_app() -> App:
    """Return the app of the running task, else the default one (the last one made).

    Raises ConfigurationError when no app has been made yet.
    """
    context = current_context()
    if context is not None and (task := task_of(context)) is not None:
        app: App = task.app
        return app
    if not _default and _makers:
        return _makers[0]()
    if not _default:
        raise ConfigurationError(
            "no app has been made yet: write app = QWorker('proj') in a module, and import it before this "
            "line"
        )
    return _default[0]


def get_current_task() -> Task | None:
    """Return the running task, None outside of one."""
    context = current_context()
    if context is None:
        return None
    task: Task | None = task_of(context)
    if task is None and context.task is not None:
        task = get_current_app().tasks[context.task]
        set_task(context, task)
    return task


class Proxy:
    """A proxy of the object that *find* returns at each use. Two proxies are equal when their targets are."""

    __slots__ = ("__weakref__", "_find")

    def __init__(self, find: Callable[[], Any]) -> None:
        object.__setattr__(self, "_find", find)

    def _get_current_object(self) -> Any:
        return object.__getattribute__(self, "_find")()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._get_current_object())

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return self._get_current_object().__dict__

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_find")(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._get_current_object(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._get_current_object(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._get_current_object()(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self._get_current_object())

    def __dir__(self) -> list[str]:
        return dir(self._get_current_object())

    def __bool__(self) -> bool:
        return bool(self._get_current_object())

    def __eq__(self, other: object) -> bool:
        return bool(self._get_current_object() == other)

    def __hash__(self) -> int:
        return hash(self._get_current_object())

    def __reduce__(self) -> Any:
        return self._get_current_object().__reduce__()


current_app: App = Proxy(get_current_app)
"""The app of the running task, else the default app."""

current_task: Task = Proxy(get_current_task)
"""The running task; false outside of one."""
