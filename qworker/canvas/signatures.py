"""Signature: a call that has not been made yet.

Comes from:  ``task.s(…)``, and the callbacks in the body of a message.
Goes to:     ``link=``/``link_error=``, apply_many and send_many; its dict is the format of Celery's messages.
Thread:      any.

A workflow (chain, group, chord) is a signature too, with its members in kwargs. KINDS loads the module of
each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Unpack, cast

from qworker import canvas
from qworker.canvas import stamping
from qworker.canvas.plain import known_task, plain, sendable
from qworker.conf.unsupported import SIGNATURE, unsupported
from qworker.context import get_current_app
from qworker.contracts import App, Task
from qworker.message.marks import options_of_call, over, unmarked
from qworker.naming import task_id as new_id
from qworker.results.result import AsyncResult

if TYPE_CHECKING:
    import qworker
    from qworker import QWorker
    from qworker.canvas.options import SignatureOptions

GRAPH = "qworker.graph"
"""The name of graphs, and of the task that returns the values of the nodes to the call after a graph."""


class Frozen(NamedTuple):
    """A step of a workflow with assigned ids.

    - step: a copy of the signature, with the ids.
    - first, last: the results of its first and last calls; parents lead from the last to the first.
    """

    step: Signature
    first: Any
    last: Any


class Signature(dict[str, Any]):
    """A task's name, arguments and options, as a dict that is sent in messages.

    Its keys are task, args, kwargs, options, subtask_type and immutable. apply_async() and clone() do not
    change it; set() and link() do. Called as a function, it runs the task in this process: ``add.s(2)(3)`` is
    ``add(3, 2)``.
    """

    __module__ = "qworker"

    __slots__ = ("_app",)

    TYPES: ClassVar[Mapping[str, Any]]

    def __init__(
        self,
        task: str | Mapping[str, Any] | Task,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        app: App | None = None,
        **more: Unpack[SignatureOptions],
    ) -> None:
        """task: a name, a task, or the dict of a signature, which replaces the other arguments. more:
        additional options."""
        self._app = app
        if isinstance(task, str) or not isinstance(task, Mapping):
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
        return cast("QWorker", self._app or get_current_app())

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self["task"])

    @task.setter
    def task(self, value: str) -> None:
        self["task"] = value

    name = task

    @property
    def type(self) -> qworker.Task[..., Any]:
        """The task. Raises NotRegistered when it is unknown here."""
        return self.app.tasks[self.task]

    @property
    def id(self) -> str | None:
        """The id that the call will have; None if not assigned."""
        return self.options.get("task_id")

    @id.setter
    def id(self, value: str | None) -> None:
        self.options["task_id"] = value

    @property
    def subtask_type(self) -> str | None:
        """The kind of workflow it is part of; None for a plain call."""
        return self["subtask_type"]  # type: ignore[no-any-return]

    @subtask_type.setter
    def subtask_type(self, value: str | None) -> None:
        self["subtask_type"] = value

    @property
    def root_id(self) -> str | None:
        """The id of the first call of all; None if not assigned."""
        return self.options.get("root_id")

    @root_id.setter
    def root_id(self, value: str | None) -> None:
        self.options["root_id"] = value

    @property
    def parent_id(self) -> str | None:
        """The id of the call that makes this one; None if not assigned."""
        return self.options.get("parent_id")

    @parent_id.setter
    def parent_id(self, value: str | None) -> None:
        self.options["parent_id"] = value

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments so far."""
        return self["args"]  # type: ignore[no-any-return]

    @args.setter
    def args(self, value: Iterable[Any]) -> None:
        self["args"] = tuple(value)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments so far."""
        return self["kwargs"]  # type: ignore[no-any-return]

    @kwargs.setter
    def kwargs(self, value: Mapping[str, Any]) -> None:
        self["kwargs"] = dict(value)

    @property
    def options(self) -> dict[str, Any]:
        """Options for apply_async."""
        return self["options"]  # type: ignore[no-any-return]

    @options.setter
    def options(self, value: Mapping[str, Any]) -> None:
        self["options"] = dict(value)

    @property
    def immutable(self) -> bool:
        """True if arguments given later (a parent's return value) are ignored."""
        return bool(self["immutable"])

    @immutable.setter
    def immutable(self, value: bool) -> None:
        self["immutable"] = value

    def clone(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SignatureOptions],
    ) -> Any:
        """Return a copy with *args* prepended, and *kwargs* and *options* merged into its own.

        An immutable signature only takes the options.
        """
        copy = self._copy()
        copy.add(args, kwargs, options)
        return copy

    def _copy(self) -> Any:
        copy = dict.__new__(type(self))
        dict.update(copy, self)
        copy._app = self._app
        copy["kwargs"] = dict(self["kwargs"])
        copy["options"] = dict(self["options"])
        return copy

    def add(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepend *args*, and merge *kwargs* and *options*; an immutable signature only takes the options."""
        if not self["immutable"]:
            if args:
                self["args"] = (*args, *self["args"])
            if kwargs:
                self["kwargs"].update(kwargs)
        if options:
            own = self["options"]
            own.update(over(stamping.unstamped(options, own), own))

    partial = clone

    def replace(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return a copy with these arguments and options; None keeps the original ones."""
        copy = self.clone()
        changes = {"args": None if args is None else tuple(args), "kwargs": kwargs, "options": options}
        copy.update({key: value for key, value in changes.items() if value is not None})
        return copy

    def set(self, immutable: bool | None = None, **options: Unpack[SignatureOptions]) -> Signature:
        """Merge *options* into its own; return the signature."""
        if immutable is not None:
            self.set_immutable(immutable)
        self.options.update(over(options, self.options))
        return self

    def set_immutable(self, immutable: bool) -> None:
        """True: ignore arguments given later."""
        self["immutable"] = immutable

    def link(self, callback: Any) -> Any:
        """Call *callback*, a signature, with the result when the task succeeds; return the callback."""
        return self._append("link", callback)

    def link_error(self, errback: Any) -> Any:
        """Call *errback*, a signature, when the task fails; return the errback."""
        return self._append("link_error", errback)

    def on_error(self, errback: Any) -> Signature:
        """link_error() that returns this signature."""
        self.link_error(errback)
        return self

    def stamp(self, visitor: Any = None, append_stamps: bool = False, **headers: Any) -> Any:
        """Add stamps, given by name, to this call or to all calls of this workflow, and to linked signatures.
        Return the signature.

        - visitor: a StampingVisitor, which adds stamps for each part.
        - append_stamps (bool): combine stamps of the same name in a list, instead of keeping the outer one.

        A task finds them in ``request.stamps`` and ``request.stamped_headers``.
        """
        return stamping.stamp(self, visitor or stamping.Nothing(), append_stamps, headers)

    def stamp_links(self, visitor: Any = None, append_stamps: bool = False, **headers: Any) -> None:
        """Stamp only the callbacks and errbacks; see stamp()."""
        stamping.stamp_links(self, visitor or stamping.Nothing(), append_stamps, headers)

    def _append(self, option: str, added: Any) -> Any:
        linked = listed(self.options.get(option))
        if added not in linked:
            self.options[option] = [*linked, added]
        return added

    def identified(self) -> Signature:
        """Return a signature with assigned ids: sending it twice sends the same calls."""
        return plain(self, Signature) if "task_id" in self.options else self.frozen().step

    def freeze(
        self,
        _id: str | None = None,
        group_id: str | None = None,
        chord: Any = None,
        root_id: str | None = None,
        parent_id: str | None = None,
        group_index: int | None = None,
    ) -> Any:
        """Assign the ids of the calls, and return the handle of the result before they are made.

        - _id (text): the id of the call, if it has none; None for a new one.
        - group_id, group_index, chord, root_id, parent_id: further options, as in Celery.
        """
        frozen = self.frozen(_id)
        settled: dict[str, Any] = {
            "root_id": root_id,
            "parent_id": parent_id,
            "group_id": group_id if "group_id" not in self.options else None,
            "chord": chord,
            "group_index": group_index,
        }
        step: Any = frozen.step
        if step["subtask_type"] != self["subtask_type"]:  # a chord whose body is a chain
            first, *rest = step.tasks
            step = first.with_body(KINDS["chain"].of_steps([first.body, *rest], self._app))
        self.update(step)
        self.options.update({name: value for name, value in settled.items() if value is not None})
        return frozen.last

    # -- as a step of a workflow --

    def steps(self) -> list[Signature]:
        """Return its steps as part of a chain."""
        return [self]

    def frozen(self, id: str | None = None, joined: bool = False, ids: Callable[[], str] = new_id) -> Frozen:
        """Return a copy with assigned ids, and its results. Existing ids are kept.

        - id (text): the id of its last call, if it has none; None for a new one.
        - joined (bool): its value is needed by another call, as those of a header are by the body.
        - ids: returns a new id each time.
        """
        task = known_task(self, self._app)
        copy = sendable(self, task, Signature)._copy()
        identity = copy["options"].get("task_id")
        if identity is None:
            identity = copy["options"]["task_id"] = id or ids()
        result: AsyncResult[Any] = AsyncResult(identity, app=self._app, ignored=is_ignored(self, task))
        return Frozen(copy, result, result)

    def ignored(self, app: App | None) -> bool:
        """Return whether its result is discarded, as far as *app* knows."""
        return is_ignored(self, known_task(self, app))

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Make the call, with *args* prepended to its own and *kwargs* merged into its own."""
        result: AsyncResult[Any] = self.apply_async(args, kwargs)
        return result

    def apply_async(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SignatureOptions],
    ) -> Any:
        """Make the call; see Task.apply_async for *options*."""
        if "headers" in options:
            options["headers"] = unmarked(options["headers"])
        call = self.clone(args, kwargs, **options)
        app, made = self.app, options_of_call(call.options)
        task = app.tasks.get(call.task)
        if task is None:
            return app.send_task(call.task, call.args, call.kwargs, **made)
        return task.apply_async(call.args, call.kwargs, **made)

    async def adelay(self, *args: Any, **kwargs: Any) -> Any:
        """delay() for asyncio: it does not block the event loop."""
        import asyncio  # here, because it takes 30 ms

        return await asyncio.to_thread(self.delay, *args, **kwargs)

    async def aapply_async(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SignatureOptions],
    ) -> Any:
        """apply_async() for asyncio: it does not block the event loop. Cancelling it does not cancel the
        call."""
        import asyncio

        return await asyncio.to_thread(self.apply_async, args, kwargs, **options)

    def apply(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Run the task in this process as a worker would; see Task.apply."""
        call = self.clone(args, kwargs, **options)
        given = {name: value for name, value in call.options.items() if value is not None}
        return self.type.apply(call.args, call.kwargs, **given)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the task as a plain function in this process, with *args* prepended and *kwargs* merged."""
        call = self.clone(args, kwargs)
        return self.type(*call.args, **call.kwargs)

    def __invert__(self) -> Any:
        """Make the call, wait for the result, and return it: ``~add.s(2, 2)``."""
        return self.apply_async().get()

    def __or__(self, other: Any) -> Signature:  # type: ignore[override]
        """``one | other``: a chain, or the chord made of a group and a following call."""
        if not isinstance(other, Signature):
            return NotImplemented
        return KINDS["chain"].joined(self, other)  # type: ignore[no-any-return]

    __ior__ = __or__  # dict's would merge the keys

    @classmethod
    def joined(cls, one: Signature, other: Signature) -> Any:
        """Return ``one | other``; see chain."""
        raise NotImplementedError

    def reprcall(self, *args: Any, **kwargs: Any) -> str:
        """Return it as text, with *args* prepended and *kwargs* merged."""
        return repr(self.clone(args, kwargs))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], app: App | None = None) -> Any:
        """Make a signature or workflow from its dict. Raises PublishError for an invalid one."""
        from qworker.canvas.checking import check

        check(fields)
        return made(fields, app)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], app: App | None) -> Any:
        """from_dict() of a kind, for checked fields."""
        return Signature(fields, app=app)

    def flatten_links(self) -> list[Any]:
        """Return the signature, its callbacks, their callbacks, and so on."""
        found: list[Any] = []
        waiting: list[Any] = [self]
        while waiting:
            each = maybe_signature(waiting.pop(), self._app)
            found.append(each)
            waiting.extend(reversed(listed(each.options.get("link"))))
        return found

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unsupported("Signature", name, SIGNATURE)

    def __repr__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.task}({', '.join(arguments)})"

    def __reduce__(self) -> Any:
        return Signature.from_dict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return made(dict(self), self._app)


def is_ignored(call: Signature, task: Task | None) -> bool:
    """Return whether the result of *call*, which calls *task*, is discarded; None if unknown."""
    ignored = call["options"].get("ignore_result")
    return bool(task is not None and task.ignore_result if ignored is None else ignored)


class _Kinds(Mapping[str, Any]):
    """The class for each subtask_type; its module is loaded on first use."""

    _names = ("chain", "group", "chord", "graph", "xmap", "xstarmap", "chunks")

    def __getitem__(self, kind: str) -> Any:
        if kind not in self._names:
            raise KeyError(kind)
        return getattr(canvas, kind)

    def __contains__(self, kind: object) -> bool:
        return kind in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


KINDS = _Kinds()

Signature.TYPES = KINDS


def signature(
    task: Any,
    args: Iterable[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    immutable: bool = False,
    app: App | None = None,
    **more: Unpack[SignatureOptions],
) -> Any:
    """Return a signature for a task, its name, or the dict of a signature or workflow.

    A signature is copied. Raises PublishError for an invalid dict.
    """
    if isinstance(task, Signature):
        return task.clone()
    if isinstance(task, Mapping):
        return Signature.from_dict(task, app)
    return Signature(task, args, kwargs, options, immutable=immutable, app=app, **more)


def maybe_signature(value: Any, app: App | None = None, clone: bool = False) -> Any:
    """Return *value*, a signature or its dict, as a signature; anything else, such as None, unchanged."""
    if isinstance(value, Signature):
        if clone:
            value = value.clone()
        if app is not None:
            value._app = app
    elif isinstance(value, Mapping):
        value = Signature.from_dict(value, app)
    return value


def is_workflow(item: Any) -> bool:
    """Return whether *item* is a chain, group, chord, graph or mapping."""
    return isinstance(item, Signature) and item["subtask_type"] in KINDS


def made(fields: Mapping[str, Any], app: App | None) -> Any:
    """Make the signature of checked *fields*."""
    kind = fields.get("subtask_type")
    return (KINDS[kind] if kind is not None and kind in KINDS else Signature).of_fields(fields, app)


def member(value: Any, app: App | None) -> Any:
    """Return *value*, a member of a checked workflow, as a signature."""
    return value if isinstance(value, Signature) else made(value, app)


def listed(value: Any) -> list[Any]:
    """Return *value*, which may be one item, several or None, as a list."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def signatures(value: object, argument: str, app: App) -> list[Signature]:
    """Return *value*, one signature or several, as a list with assigned ids. app: for dicts. Raises TypeError
    for anything else, PublishError for an invalid dict."""
    items = [] if value is None else [value] if isinstance(value, Mapping) else value
    if not isinstance(items, list | tuple) or not all(
        isinstance(item, Mapping) and item.get("task") for item in items
    ):
        raise TypeError(f"{argument} takes a signature (task.s(…)) or a list of them, not {value!r}")
    return [
        (item if isinstance(item, Signature) else signature(item, app=app)).identified() for item in items
    ]
