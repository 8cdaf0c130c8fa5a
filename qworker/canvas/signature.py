"""Signature: a call that is not made yet.

Comes from:  ``task.s(…)``, and the callbacks in the body of a message.
Goes to:     ``link=``/``link_error=``, apply_many and send_many; its dict is what Celery puts into messages.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qworker.conf.absent import SIGNATURE, absent
from qworker.context import get_current_app
from qworker.naming import task_id as new_id

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.results.result import AsyncResult
    from qworker.tasks.eager import EagerResult
    from qworker.tasks.task import Task


class Signature(dict[str, Any]):
    """A task's name, arguments and options, as a dict that is sent in messages.

    Its keys are task, args, kwargs, options, subtask_type and immutable. Calling it, or clone(), leaves it as
    it is; set() and link() change it. Called as a function, it runs the task here: ``add.s(2)(3)`` is
    ``add(3, 2)``.
    """

    __module__ = "qworker"

    __slots__ = ("_app",)

    def __init__(
        self,
        task: str | Mapping[str, Any] | Task[..., Any],
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        immutable: bool = False,
        app: QWorker | None = None,
        **more: Any,
    ) -> None:
        """task: a name, a task, or the dict of a signature, which says the rest itself. more: further
        options."""
        self._app = app
        if not isinstance(task, Mapping):
            super().__init__(
                task=task if isinstance(task, str) else task.name,
                args=tuple(args or ()),
                kwargs=dict(kwargs or {}),
                options={**(options or {}), **more},
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

    name = task

    @property
    def type(self) -> Task[..., Any]:
        """The task. Raises NotRegistered when it is not known here."""
        return self.app.tasks[self.task]

    @property
    def id(self) -> str | None:
        """The id that the call will have; None while that is open."""
        return self.options.get("task_id")

    @property
    def subtask_type(self) -> str | None:
        """What kind of workflow it is part of; None for a plain call."""
        return self["subtask_type"]  # type: ignore[no-any-return]

    @property
    def root_id(self) -> str | None:
        """The id of the first call of all; None while that is open."""
        return self.options.get("root_id")

    @property
    def parent_id(self) -> str | None:
        """The id of the call that made this one; None while that is open."""
        return self.options.get("parent_id")

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
        fixed = self.immutable
        copy = Signature(
            self.task,
            self.args if fixed else (*args, *self.args),
            self.kwargs if fixed else {**self.kwargs, **(kwargs or {})},
            {**self.options, **options},
            fixed,
            self._app,
        )
        copy["subtask_type"] = self["subtask_type"]
        return copy

    partial = clone

    def replace(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Signature:
        """Return a copy with these arguments and options instead of its own; None leaves its own."""
        copy = self.clone()
        changes = {"args": None if args is None else tuple(args), "kwargs": kwargs, "options": options}
        copy.update({key: value for key, value in changes.items() if value is not None})
        return copy

    def set(self, immutable: bool | None = None, **options: Any) -> Signature:
        """Put *options* over its own, and return it."""
        if immutable is not None:
            self.set_immutable(immutable)
        self.options.update(options)
        return self

    def set_immutable(self, immutable: bool) -> None:
        """True: leave out arguments that are given later."""
        self["immutable"] = immutable

    def link(self, callback: Any) -> Any:
        """Have *callback*, a signature, called with the result; return it."""
        return self._add("link", callback)

    def link_error(self, errback: Any) -> Any:
        """Have *errback*, a signature, called when the task fails; return it."""
        return self._add("link_error", errback)

    def on_error(self, errback: Any) -> Signature:
        """link_error() that returns this signature."""
        self.link_error(errback)
        return self

    def _add(self, option: str, added: Any) -> Any:
        linked = self.options.get(option) or []
        linked = list(linked) if isinstance(linked, list | tuple) else [linked]
        if added not in linked:
            self.options[option] = [*linked, added]
        return added

    def identified(self) -> Signature:
        """Return a signature whose task id is settled, so that who sends it twice sends the same call."""
        return self if "task_id" in self.options else self.clone(task_id=new_id())

    def freeze(self, _id: str | None = None) -> AsyncResult[Any]:
        """Settle the id of the call, and return the handle of its result before it is made."""
        return self.app.AsyncResult(self.options.setdefault("task_id", _id or new_id()))

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

    def apply(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> EagerResult[Any]:
        """Run the task here and now as a worker would; see Task.apply."""
        call = self.clone(args, kwargs, **options)
        return self.type.apply(call.args, call.kwargs, **call.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task here and now, as the plain function it is, with *args* before its own and *kwargs*
        over its own."""
        call = self.clone(args, kwargs)
        return self.type(*call.args, **call.kwargs)

    def __invert__(self) -> Any:
        """Make the call, wait for the result, and return it: ``~add.s(2, 2)``."""
        return self.apply_async().get()

    def __or__(self, other: Any) -> Any:
        raise TypeError(
            f"{self!r} | …: chains are not in this version of qworker; link= goes on with a result: "
            "first.apply_async(args, link=second.s())"
        )

    def reprcall(self, *args: Any, **kwargs: Any) -> str:
        """Return it as text, with *args* before its own and *kwargs* over its own."""
        return repr(self.clone(args, kwargs))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], app: QWorker | None = None) -> Signature:
        """Make a signature of its dict."""
        return cls(fields, app=app)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent("Signature", name, SIGNATURE)

    def __repr__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.task}({', '.join(arguments)})"

    def __reduce__(self) -> Any:
        return Signature, (dict(self),)


def signatures(value: object, argument: str) -> list[Signature]:
    """Return *value*, one signature or many, as a list of such whose ids are settled. Raises TypeError for
    anything else."""
    items = [] if value is None else [value] if isinstance(value, Mapping) else value
    if not isinstance(items, list | tuple) or not all(
        isinstance(item, Mapping) and item.get("task") for item in items
    ):
        raise TypeError(f"{argument} takes a signature (task.s(…)) or a list of them, not {value!r}")
    return [(item if isinstance(item, Signature) else Signature(item)).identified() for item in items]
