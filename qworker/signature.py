"""Signature: a call that is not made yet.

Comes from:  ``task.s(…)``, and the callbacks in the body of a message.
Goes to:     ``link=``/``link_error=``, apply_many and send_many; its dict is what Celery puts on the wire.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qworker.current import get_current_app
from qworker.naming import task_id as new_id

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.result import AsyncResult


class Signature(dict[str, Any]):
    """A task's name, arguments and options, as the dict that travels; treat it as frozen.

    Keys: task, args, kwargs, options, subtask_type, immutable.
    """

    __slots__ = ("_app",)

    def __init__(
        self,
        task: str | Mapping[str, Any],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        immutable: bool = False,
        app: QWorker | None = None,
    ) -> None:
        self._app = app
        if isinstance(task, str):
            super().__init__(
                task=task,
                args=tuple(args),
                kwargs=dict(kwargs or {}),
                options=dict(options or {}),
                subtask_type=None,
                immutable=immutable,
            )
        else:
            super().__init__(task)
            self["args"] = tuple(self.get("args") or ())
            self["kwargs"] = dict(self.get("kwargs") or {})
            self["options"] = dict(self.get("options") or {})
            self.setdefault("subtask_type", None)
            self.setdefault("immutable", False)

    @property
    def app(self) -> QWorker:
        """The app that will make the call."""
        return self._app or get_current_app()

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self["task"])

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments so far."""
        return self["args"]  # type: ignore[no-any-return]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments so far."""
        return self["kwargs"]  # type: ignore[no-any-return]

    @property
    def options(self) -> dict[str, Any]:
        """Options for apply_async."""
        return self["options"]  # type: ignore[no-any-return]

    @property
    def immutable(self) -> bool:
        """True when arguments given later (a parent's return value) are left out."""
        return bool(self["immutable"])

    def clone(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Signature:
        """Return a copy with *args* put before, *kwargs* over and *options* over its own.

        An immutable signature takes the options only.
        """
        mine = self.immutable
        copy = Signature(
            self.task,
            self.args if mine else (*args, *self.args),
            self.kwargs if mine else {**self.kwargs, **(kwargs or {})},
            {**self.options, **options},
            mine,
            self._app,
        )
        copy["subtask_type"] = self["subtask_type"]
        return copy

    def set(self, immutable: bool | None = None, **options: Any) -> Signature:
        """Return a copy with *options* over its own."""
        copy = self.clone(**options)
        if immutable is not None:
            copy["immutable"] = immutable
        return copy

    def freeze(self) -> Signature:
        """Return a copy whose task id is settled, so that who sends it twice sends the same call."""
        return self if "task_id" in self.options else self.set(task_id=new_id())

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Make the call, with *args* before its own and *kwargs* over its own."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult[Any]:
        """Make the call; see Task.apply_async for *options*."""
        call = self.clone(args, kwargs, **options)
        app = self.app
        task = app.tasks.get(call.task)
        if task is None:
            return app.send_task(call.task, call.args, call.kwargs, **call.options)
        return task.apply_async(call.args, call.kwargs, **call.options)

    def __or__(self, other: Any) -> Any:
        raise TypeError(
            f"{self!r} | …: chains are not in this version of qworker; link= goes on with a result: "
            "first.apply_async(args, link=second.s())"
        )

    def __repr__(self) -> str:
        shown = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.task}({', '.join(shown)})"

    def __reduce__(self) -> Any:
        return Signature, (dict(self),)


def signatures(value: object, argument: str) -> list[Signature]:
    """Return *value*, one signature or many, as a list of frozen ones. Raises TypeError for anything else."""
    items = [] if value is None else [value] if isinstance(value, Mapping) else value
    if not isinstance(items, list | tuple) or not all(
        isinstance(item, Mapping) and item.get("task") for item in items
    ):
        raise TypeError(f"{argument} takes a signature (task.s(…)) or a list of them, not {value!r}")
    return [(item if isinstance(item, Signature) else Signature(item)).freeze() for item in items]
