"""Registry: the tasks of an app, by name, and the tasks shared by all apps.

Comes from:  ``@app.task`` and ``@shared_task``, while modules are imported.
Goes to:     the worker, which looks up the names in messages here.
Thread:      written during imports; reading is safe from any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qworker.contracts import App
from qworker.errors import NotRegistered
from qworker.naming import close_tasks

if TYPE_CHECKING:
    from qworker.tasks.task import Task


class TaskRegistry(dict[str, "Task[..., Any]"]):
    """Tasks by name. An unknown name raises NotRegistered, which lists similar names."""

    def __missing__(self, name: str) -> Task[..., Any]:
        raise NotRegistered(name, close_tasks(name, self) if isinstance(name, str) else ())

    def register(self, task: Task[..., Any]) -> None:
        """Add *task* under its name, replacing an earlier one."""
        self[task.name] = task

    def unregister(self, name: str) -> None:
        """Remove the task *name*. Raises NotRegistered if it is missing."""
        self[name]
        del self[name]


shared: list[Callable[[App], Task[..., Any]]] = []
"""Factories of the tasks declared with ``@shared_task``. Each app calls them once, when it is finalized."""
