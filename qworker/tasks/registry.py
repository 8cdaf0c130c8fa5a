"""The tasks an app knows, by name; and the tasks that are shared by every app.

Comes from:  ``@app.task`` and ``@shared_task``, while modules are imported.
Goes to:     the worker, which looks names of messages up here and nowhere else.
Thread:      written by whoever imports; reading is free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qworker.errors import NotRegistered
from qworker.naming import near_tasks

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.tasks.task import Task


class TaskRegistry(dict[str, "Task[..., Any]"]):
    """Task by name. An unknown name raises NotRegistered, which lists names that look like it."""

    def __missing__(self, name: str) -> Task[..., Any]:
        raise NotRegistered(name, near_tasks(name, self) if isinstance(name, str) else ())

    def register(self, task: Task[..., Any]) -> None:
        """Add *task* under its name, over an older one of that name."""
        self[task.name] = task

    def unregister(self, name: str) -> None:
        """Take the task *name* out. Raises NotRegistered when it is not there."""
        self[name]
        del self[name]


shared: list[Callable[[QWorker], Task[..., Any]]] = []
"""Makers of the tasks that ``@shared_task`` declared; each app calls them once, when it is finalized."""
