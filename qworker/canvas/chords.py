"""Chords: parallel calls, and a body that gets the list of their values.

Comes from:  ``chord(header)(body)``, ``group | task``, a group in the middle of a chain, or the dict of a
             chord.
Goes to:     the plan, which opens the join that waits for the header.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack, cast

from qworker import states
from qworker.canvas.groups import OF_THE_GROUP, app_of, group, with_callback, with_links
from qworker.canvas.plain import timed
from qworker.canvas.signatures import KINDS, Frozen, Signature, maybe_signature, member, signature
from qworker.contracts import App
from qworker.errors import PublishError
from qworker.message.marks import over
from qworker.naming import task_id as new_id

if TYPE_CHECKING:
    from qworker import QWorker
    from qworker.canvas.options import SignatureOptions
    from qworker.results.result import AsyncResult

OF_THE_HEADER = frozenset(["countdown", "eta"])
"""Options of a chord that do not apply to its body."""


class chord(Signature):
    """A header of parallel calls, and a body that gets the list of their values: ``chord(header)(body)``.

    Its result is that of the body, whose parent is the GroupResult of the header. Arguments given at the call
    go to the calls of the header. If one of them fails, the body is not called.
    """

    __module__ = "qworker"

    __slots__ = ()

    def __init__(
        self,
        header: Any,
        body: Any = None,
        *,
        app: App | None = None,
        **options: Unpack[SignatureOptions],
    ) -> None:
        """header: signatures, a group, or an iterable of them. body: a signature. options: as for
        apply_async."""
        header = header if isinstance(header, group) else group(_beside(header, app), app=app)
        fields = {"kwargs": {}, "header": header, "body": maybe_signature(body, app)}
        super().__init__("celery.chord", (), fields, options, app=app)
        self["subtask_type"] = "chord"

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], app: App | None) -> Any:
        """from_dict() for checked fields."""
        kwargs = fields["kwargs"]
        header, body = kwargs["header"], kwargs.get("body")
        if isinstance(header, list | tuple):
            header = [member(each, app) for each in header]
        else:
            header = member(header, app)
        made = cls(header, None if body is None else member(body, app), app=app)
        given = kwargs.get("kwargs")
        made["kwargs"]["kwargs"] = dict(given) if isinstance(given, Mapping) else {}
        made["options"] = dict(fields.get("options") or {})
        made["args"] = tuple(fields.get("args") or ())
        made["immutable"] = bool(fields.get("immutable"))
        return made

    @property
    def tasks(self) -> list[Any]:
        """The members of the header."""
        return self.header.tasks

    @tasks.setter
    def tasks(self, tasks: Any) -> None:
        self["kwargs"]["header"] = tasks if isinstance(tasks, group) else group(tasks, app=self._app)

    @property
    def header(self) -> group:
        """The header, as a group."""
        header = self["kwargs"]["header"]
        if not isinstance(header, group):
            header = self["kwargs"]["header"] = group(header, app=self._app)
        return header

    @property
    def body(self) -> Any:
        """The call that gets the values; None while there is none."""
        return self["kwargs"]["body"]

    @body.setter
    def body(self, body: Any) -> None:
        self["kwargs"]["body"] = body

    @property
    def app(self) -> QWorker:
        """The app that will make the calls: its own, the header's, or the body's."""
        return cast("QWorker", app_of(self))

    def _copy(self) -> Any:
        copy = super()._copy()
        copy["kwargs"]["kwargs"] = dict(copy["kwargs"].get("kwargs") or {})
        return copy

    def add(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepend *args* to those of the header's calls, merge *kwargs* into theirs, and *options* into the
        chord's."""
        if args and not self["immutable"]:
            self["args"] = (*args, *self["args"])
        if kwargs:
            self["kwargs"]["kwargs"].update(kwargs)
        self["options"].update(over(options or {}, self["options"]))

    def with_body(self, body: Any) -> Any:
        """Return a copy with another body."""
        copy = self._copy()
        copy.body = body
        return copy

    def set_immutable(self, immutable: bool) -> None:
        """True: the calls of the header ignore arguments given later."""
        self["kwargs"]["header"] = header = self.header.clone()
        header.set_immutable(immutable)

    def link(self, callback: Any) -> Any:
        """Call *callback* with the result of the body."""
        self.body = body = self.called_body().clone()
        with_callback(body, callback)
        return callback

    def link_error(self, errback: Any) -> Any:
        """Call *errback* when the body fails, or is not called because a call of the header failed.

        With the setting ``task_allow_error_cb_on_chord_header`` it is also called for each failed call of the
        header. A failed chord in the header makes this one fail, and the errback is called once.
        """
        errback = maybe_signature(errback)
        each_too = self.app.conf.task_allow_error_cb_on_chord_header
        inner = [isinstance(each, chord) for each in self.tasks]
        if each_too or any(inner):
            self["kwargs"]["header"] = header = self.header.clone()
            for place, each in enumerate(header.tasks):
                if each_too or inner[place]:  # in Celery, a failed inner chord does not fail the outer one
                    header.tasks[place] = copy = each.clone()
                    copy.link_error(errback.clone().set(immutable=True) if each_too else errback)
        self.body = body = self.called_body().clone()
        body.link_error(errback)
        return errback

    def called_body(self) -> Any:
        """Return the body. Raises PublishError if there is none."""
        if self.body is None:
            raise PublishError("the chord has no body: chord(header)(body), or group | body")
        return self.body

    def steps(self) -> list[Signature]:
        """Return its steps as part of a chain. If the body is a chain or a chord, its first step becomes the
        body and its other steps follow."""
        self = with_links(self)
        body = self.called_body()
        steps = body.steps()
        if not steps:
            raise PublishError("the body of the chord is an empty chain")
        if len(steps) == 1:
            return [self if steps[0] is body else self.with_body(steps[0])]
        first, last = self.with_body(steps[0]), steps[-1]
        named = first["options"].pop("task_id", None)
        if named is not None and "task_id" not in last["options"]:
            steps[-1] = last.clone(task_id=named)
        return [first, *steps[1:]]

    def frozen(self, id: str | None = None, joined: bool = False, ids: Callable[[], str] = new_id) -> Frozen:
        """Return a copy with assigned ids; see Signature."""
        self = with_links(self)
        first, *rest = self.steps()
        if rest:
            made = KINDS["chain"]([first, *rest], app=self._app)
            made["options"].update(self["options"])
            return made.frozen(id, joined, ids)  # type: ignore[no-any-return]
        copy = first._copy()
        options = copy["options"] = timed(copy["options"])
        named = options.pop("task_id", None)
        header = copy.header
        before = header["options"].get("task_id")
        body = copy.body.frozen(id or (named if named != before else None), joined, ids)
        copy["kwargs"]["header"], result = header.frozen_members(None, True, ids)
        options["task_id"] = result.id
        copy.body = body.step
        body.first.parent = result
        return Frozen(copy, result, body.last)

    def apply_async(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SignatureOptions],
    ) -> AsyncResult[Any]:
        """Make the calls of the header; see Task.apply_async for *options*, which also apply to the body.

        The keyword argument ``body`` sets the body. Raises PublishError when there is none.
        """
        result: AsyncResult[Any] = self.app.send_workflow(
            self._called(kwargs), args, _others(kwargs), options
        )
        return result

    def apply(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult[Any]:
        """Run all calls in this process, as a worker would; see Task.apply. Raises the error of a header's
        call."""
        called = with_links(self._called(kwargs), options)
        return _run_here(called, tuple(args or ()), _others(kwargs) or {}, {**called["options"], **options})

    def _called(self, kwargs: Mapping[str, Any] | None) -> Any:
        """Return this chord, or a copy with the body in *kwargs*."""
        body = (kwargs or {}).get("body")
        return self if body is None else self.with_body(maybe_signature(body, self._app))

    def __call__(self, body: Any = None, *args: Any, **options: Unpack[SignatureOptions]) -> AsyncResult[Any]:
        """Make the calls of the header, with *body* as the body."""
        return self.apply_async(args, {"body": body} if body is not None else {}, **options)

    def __repr__(self) -> str:
        return f"chord({self.tasks!r:.1000}, {self.body!r})"


def _run_here(
    called: chord, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
) -> AsyncResult[Any]:
    """Run the calls of the header in this process, then the body; return the body's result."""
    identity = options.pop("task_id", None)
    beside = {name: options[name] for name in options if name not in OF_THE_GROUP}
    kwargs = {**called["kwargs"]["kwargs"], **kwargs}
    header = called.header.apply((*args, *called["args"]), kwargs, **beside)
    body = called.called_body().clone()
    if identity is not None and not isinstance(body, group):
        body["options"].setdefault("task_id", identity)
    ended: AsyncResult[Any] = body.apply(([_value(each) for each in header.results],))
    first: Any = ended
    while first.parent is not None:
        first = first.parent
    first.parent = header
    return ended


def _value(ended: Any) -> Any:
    """Return the value of a member for the body; None if it was ignored or rejected."""
    value = ended.get()
    return None if ended._is_single and ended.state in (states.IGNORED, states.REJECTED) else value


def _beside(header: Any, app: App | None) -> Any:
    """Return the calls of the header, given as a group, a chain, a signature, or an iterable of
    signatures."""
    if isinstance(header, Mapping):
        header = signature(header, app=app)
        return header.tasks if header["subtask_type"] in ("group", "chain") else [header]
    return header


def _others(kwargs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {name: value for name, value in kwargs.items() if name != "body"} if kwargs else None
