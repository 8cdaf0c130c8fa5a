"""qworker: a distributed task queue.

Defines the public names. Each is imported on first use, so that ``import qworker`` is cheap.

Packages and modules, in reading order. Shared: ``errors``, ``states``, ``clock``, ``naming``, ``safe_repr``,
``interrupts``, ``process``, ``signals``, ``middleware``, ``conf``, ``contracts`` (the types of an app and of
a task), ``context`` (the current app and task). From a call to the broker: ``app``, ``canvas``,
``publishing``, ``message``, ``transports``. From the broker to a result: ``worker``, ``components``,
``tasks``, ``logs``, ``backends``, ``results``. Tools and integrations: ``control``, ``beat`` (schedules),
``spooler`` (uWSGI spool files), ``cli``, ``testing``, ``django``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qworker import errors, signals, states
    from qworker.app import QWorker
    from qworker.canvas.chains import chain
    from qworker.canvas.chords import chord
    from qworker.canvas.graphs import graph
    from qworker.canvas.groups import group
    from qworker.canvas.mapping import chunks, xmap, xstarmap
    from qworker.canvas.options import CallOptions
    from qworker.canvas.signatures import Signature, maybe_signature, signature
    from qworker.canvas.signatures import signature as subtask
    from qworker.errors import (
        ConfigurationError,
        Ignore,
        MaxRetriesExceeded,
        NotRegistered,
        PublishError,
        QWorkerError,
        Reject,
        ResultTimeout,
        Retry,
        SoftTimeLimitExceeded,
        TaskRevoked,
        TimeLimitExceeded,
        WorkerLost,
    )
    from qworker.logs import get_task_logger
    from qworker.message.context import Context
    from qworker.middleware import Middleware
    from qworker.results.graph_result import GraphResult
    from qworker.results.group_result import GroupResult, ResultSet
    from qworker.results.result import AsyncResult
    from qworker.results.waiting import allow_join_result
    from qworker.tasks.decorators import TaskOptions
    from qworker.tasks.eager import EagerResult
    from qworker.tasks.shared import shared_task
    from qworker.tasks.task import Task

    current_app: QWorker
    current_task: Task[..., Any]

__version__ = "0.1.0"

_ROOMS = {
    "qworker.app": ("QWorker",),
    "qworker.message.context": ("Context",),
    "qworker.context": ("current_app", "current_task"),
    "qworker.tasks.eager": ("EagerResult",),
    "qworker.errors": (
        "ConfigurationError",
        "Ignore",
        "MaxRetriesExceeded",
        "NotRegistered",
        "PublishError",
        "QWorkerError",
        "Reject",
        "ResultTimeout",
        "Retry",
        "SoftTimeLimitExceeded",
        "TaskRevoked",
        "TimeLimitExceeded",
        "WorkerLost",
    ),
    "qworker.logs": ("get_task_logger",),
    "qworker.middleware": ("Middleware",),
    "qworker.canvas.options": ("CallOptions",),
    "qworker.results.graph_result": ("GraphResult",),
    "qworker.results.group_result": ("GroupResult", "ResultSet"),
    "qworker.results.result": ("AsyncResult",),
    "qworker.tasks.decorators": ("TaskOptions",),
    "qworker.tasks.shared": ("shared_task",),
    "qworker.canvas": (
        "Signature",
        "chain",
        "chord",
        "chunks",
        "graph",
        "group",
        "maybe_signature",
        "signature",
        "subtask",
        "xmap",
        "xstarmap",
    ),
    "qworker.tasks.task": ("Task",),
    "qworker.results.waiting": ("allow_join_result",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
_MODULES = ("canvas", "errors", "signals", "states")
__all__ = [  # noqa: RUF022 - the most used names come first
    "QWorker",
    "shared_task",
    "Task",
    "AsyncResult",
    "GroupResult",
    "ResultSet",
    "GraphResult",
    "EagerResult",
    "Signature",
    "signature",
    "subtask",
    "maybe_signature",
    "chain",
    "group",
    "chord",
    "graph",
    "xmap",
    "xstarmap",
    "chunks",
    "TaskOptions",
    "CallOptions",
    "Context",
    "Middleware",
    "current_app",
    "current_task",
    "allow_join_result",
    "get_task_logger",
    "errors",
    "signals",
    "states",
    "ConfigurationError",
    "Ignore",
    "MaxRetriesExceeded",
    "NotRegistered",
    "PublishError",
    "QWorkerError",
    "Reject",
    "ResultTimeout",
    "Retry",
    "SoftTimeLimitExceeded",
    "TaskRevoked",
    "TimeLimitExceeded",
    "WorkerLost",
    "__version__",
]


class _Missing:
    """The last import finder. It explains missing modules that Celery has, and suggests a public name for a
    misspelt one in ``from qworker import …``, which also looks for a module of that name."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        package, _, rest = name.partition(".")
        first, _, deeper = rest.partition(".")
        if package != __name__ or first in _MODULES:
            return
        table = import_module("qworker.conf.unsupported").FRONT_DOOR
        if first in table:
            raise ModuleNotFoundError(f"there is no {name}: {table[first]}", name=name)
        if not deeper and not first.startswith("_"):
            nearest = import_module("qworker.naming").close_matches(first, __all__, 1)
            if nearest:  # not a ModuleNotFoundError, whose text ``from qworker import …`` would discard
                raise ImportError(f"qworker has no {first!r}; did you mean {nearest[0]!r}?", name=name)


sys.meta_path.append(_Missing)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"qworker.{name}")
    if name not in _ROOM_OF:
        table = import_module("qworker.conf.unsupported").FRONT_DOOR
        if name in table:  # ``from qworker import …`` would discard the text of an AttributeError
            raise ImportError(f"there is no qworker.{name}: {table[name]}")
        raise AttributeError(f"module 'qworker' has no attribute {name!r}")
    value = getattr(import_module(_ROOM_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
