"""Groups: parallel calls.

Comes from:  ``group(add.s(2, 2), add.s(4, 4))``, the dict of a group, ``chunks``.
Goes to:     the plan, which publishes all members at once; a chord, if another call follows.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack, cast

from qworker.canvas.plain import timed
from qworker.canvas.signatures import KINDS, Frozen, Signature, listed, maybe_signature, member, signature
from qworker.context import get_current_app
from qworker.contracts import App
from qworker.errors import PublishError
from qworker.message.marks import over
from qworker.naming import task_id as new_id
from qworker.naming import task_ids
from qworker.results.group_result import GroupResult

if TYPE_CHECKING:
    from qworker import QWorker
    from qworker.canvas.options import SignatureOptions

OF_THE_GROUP = frozenset(["task_id", "group_id", "group_index", "chord", "chain", "link", "link_error"])
"""Options of a group or chord that do not apply to its members."""


class CompositeSignature(Signature):
    """A workflow with a list of parts: the members of a group, the steps of a chain."""

    __slots__ = ()

    @property
    def tasks(self) -> list[Any]:
        """The parts in order."""
        return self["kwargs"]["tasks"]  # type: ignore[no-any-return]

    @tasks.setter
    def tasks(self, tasks: Iterable[Any]) -> None:
        self["kwargs"]["tasks"] = list(tasks)

    @property
    def app(self) -> QWorker:
        """The app that will make the calls: its own, or its first part's."""
        return cast("QWorker", app_of(self))

    def _copy(self) -> Any:
        copy = super()._copy()
        copy["kwargs"]["tasks"] = list(self.tasks)
        return copy


class group(CompositeSignature):
    """Calls that run in parallel: ``group(add.s(2, 2), add.s(4, 4))``, or ``group(calls)``.

    Arguments and options given at the call go to every member. The result is a GroupResult, the list of
    values in order. A group in a group is flattened. ``group | task`` is a chord.
    """

    __module__ = "qworker"

    __slots__ = ()

    def __init__(self, *tasks: Any, app: App | None = None, **options: Unpack[SignatureOptions]) -> None:
        """tasks: signatures, or one iterable of them. options: as for apply_async."""
        super().__init__("celery.group", (), {"tasks": members_of(tasks, app)}, options, app=app)
        self["subtask_type"] = "group"

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], app: App | None) -> Any:
        """from_dict() for checked fields."""
        made = cls([member(each, app) for each in listed(fields["kwargs"]["tasks"])], app=app)
        made["options"] = dict(fields.get("options") or {})
        made["args"] = tuple(fields.get("args") or ())
        made["immutable"] = bool(fields.get("immutable"))
        return made

    def __len__(self) -> int:
        return len(self.tasks)

    def __bool__(self) -> bool:
        return True

    def add(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepend *args* to those of each member, merge *kwargs* into theirs, and *options* into the
        group's."""
        if args or kwargs:
            self.tasks = [each.clone(args, kwargs) for each in self.tasks]
        self["options"].update(over(options or {}, self["options"]))

    def set_immutable(self, immutable: bool) -> None:
        """True: every member ignores arguments given later."""
        self.tasks = [_immutable(each.clone(), immutable) for each in self.tasks]

    def link(self, callback: Any) -> Any:
        """Call *callback* without a value when the first member has a result. A chord waits for all."""
        if not self.tasks:
            raise PublishError("an empty group cannot have callbacks")
        first = self.tasks[0].clone()
        linked = first.link(maybe_signature(callback, self._app, clone=True).set(immutable=True))
        self.tasks = [first, *self.tasks[1:]]
        return linked

    def link_error(self, errback: Any) -> Any:
        """Call *errback* for each member that fails."""
        errback = maybe_signature(errback)
        self.tasks = [_with_errback(each.clone(), errback) for each in self.tasks]
        return errback

    def link_each(self, callback: Any) -> None:
        """Call *callback* with the result of each member."""
        self.tasks = [with_callback(each.clone(), callback) for each in self.tasks]

    def skew(self, start: float = 1.0, stop: float | None = None, step: float = 1.0) -> group:
        """Delay the members one after another: the first by *start* seconds, each by *step* more, up to
        *stop* for all others. Return the group."""
        for each, number in zip(self.tasks, count(), strict=False):
            countdown = start + number * step
            each.set(countdown=countdown if stop is None else min(countdown, stop))
        return self

    def flat(self) -> list[Any]:
        """Return the members. Nested groups are replaced by their members, with the options of the group."""
        waiting: list[tuple[Iterator[Any], Mapping[str, Any]]] = [(iter(self.tasks), {})]
        found: list[Any] = []
        while waiting:
            tasks, options = waiting[-1]
            for each in tasks:
                each = member(each, self._app)
                if isinstance(each, group):
                    each = with_links(each)
                    own = _of_members(each)
                    waiting.append((iter(each.tasks), {**own, **over(options, own)}))
                    break
                if each["subtask_type"] != "chain" or each.tasks:
                    found.append(each.clone(**options) if options else each)
            else:
                waiting.pop()
        return found

    def frozen(self, id: str | None = None, joined: bool = False, ids: Callable[[], str] = new_id) -> Frozen:
        """Return a copy with assigned ids; see Signature. joined: the group becomes a chord, whose body
        returns the list of values."""
        if joined:
            collected = Signature("celery.accumulate", (), {"index": 0}, app=self._app)
            return KINDS["chord"](self, collected, app=self._app).frozen(id, joined, ids)  # type: ignore[no-any-return]
        copy, result = self.frozen_members(id, False, ids)
        return Frozen(copy, result, result)

    def frozen_members(
        self, id: str | None, joined: bool, ids: Callable[[], str]
    ) -> tuple[group, GroupResult[Any]]:
        """Return a copy whose members have assigned ids. joined: each of them is a member of a join."""
        copy = with_links(self)._copy()
        copy["options"] = timed(copy["options"])
        identity = copy["options"].setdefault("task_id", id or ids())
        results, members = [], []
        numbers = task_ids() if ids is new_id else iter(ids, "")
        for each, number in zip(copy.flat(), numbers, strict=False):
            step, _, last = each.frozen(number, joined, ids)
            members.append(step)
            results.append(last)
        copy["kwargs"]["tasks"] = members
        return copy, GroupResult(identity, results, None, self._app)

    def apply_async(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SignatureOptions],
    ) -> GroupResult[Any]:
        """Make the calls in one round trip; see Task.apply_async for *options*, which apply to all.

        Raises TypeError for link and link_error: a chord waits for all, and each member has its own errbacks.
        """
        if options.pop("link", None) is not None:
            raise TypeError("a group takes no link=: make a chord of it, group | callback")
        if options.pop("link_error", None) is not None:
            raise TypeError("a group takes no link_error=: give it to the members, group.link_error(errback)")
        result: GroupResult[Any] = self.app.send_workflow(self, args, kwargs, options)
        return result

    def apply(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> GroupResult[Any]:
        """Run all calls in this process, one after another, as a worker would; see Task.apply."""
        given = {**_of_members(self), **{name: options[name] for name in options if name not in OF_THE_GROUP}}
        identity = options.get("task_id") or self.options.get("task_id") or new_id()
        members = with_links(self, options).flat()
        results = [each.apply((*(args or ()), *self.args), kwargs, **given) for each in members]
        return GroupResult(identity, results, None, self._app)

    def delay(self, *args: Any, **kwargs: Any) -> GroupResult[Any]:  # type: ignore[override]
        """Make the calls, with *args* prepended to those of each, and *kwargs* merged."""
        return self.apply_async(args, kwargs)

    def __call__(self, *args: Any, **options: Unpack[SignatureOptions]) -> GroupResult[Any]:
        """Make the calls, with *args* prepended to those of each."""
        return self.apply_async(args, **options)

    def __repr__(self) -> str:
        return f"group({self.tasks!r:.1000})"


def members_of(tasks: tuple[Any, ...], app: App | None) -> list[Any]:
    """Return the members, given as several arguments, one iterable, one signature, or a group."""
    found: Iterable[Any] = tasks
    if len(tasks) == 1:
        (given,) = tasks
        if isinstance(given, Mapping):
            tasks = (given,) = (maybe_signature(given, app),)
            found = given.tasks if isinstance(given, group) else tasks
        elif not hasattr(given, "__iter__") or isinstance(given, str | bytes):
            raise TypeError(f"{given!r:.200} is not a signature and contains none: task.s(…) makes one")
        else:
            found = given
    return [each if isinstance(each, Signature) else _read(each, app) for each in found]


def _read(value: Any, app: App | None) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.200} is not a signature: task.s(…) makes one")
    return signature(value, app=app)


def app_of(workflow: Signature) -> App:
    """Return the app of *workflow*: its own, that of the first part with one, or the current one."""
    within: list[Iterator[Any]] = [iter((workflow,))]
    while within:
        for each in within[-1]:
            if isinstance(each, Signature):
                if each._app is not None:
                    return each._app
                if each["subtask_type"] in KINDS:
                    kwargs = each["kwargs"]
                    within.append(iter([*listed(kwargs.get("header")), kwargs.get("body")]))
                    within.append(iter(kwargs.get("tasks") or ()))
                    break
        else:
            within.pop()
    return get_current_app()


def _of_members(of: Signature) -> dict[str, Any]:
    """Return the options of a group that apply to each member."""
    return {name: value for name, value in of["options"].items() if name not in OF_THE_GROUP}


def _immutable(each: Any, immutable: bool) -> Any:
    each.set_immutable(immutable)
    return each


def _with_errback(each: Any, errback: Any) -> Any:
    each.link_error(errback)
    return each


def with_options(of: Signature, each: Any) -> Any:
    """Return *each*, a member of the group *of*, with the group's options for members."""
    options = _of_members(of)
    return each.clone(**options) if options else each


def with_links(work: Any, options: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return *work*, a group, chord or graph, with the callbacks and errbacks from its own options and from
    *options* moved to the calls they belong to; unchanged if there are none."""
    callbacks, errbacks = (
        [*listed(work["options"].get(option)), *listed(options.get(option))]
        for option in ("link", "link_error")
    )
    if not callbacks and not errbacks:
        return work
    copy = work._copy()
    for option in ("link", "link_error"):
        copy["options"].pop(option, None)
    for callback in callbacks:
        with_callback(copy, maybe_signature(callback))
    for errback in errbacks:
        copy.link_error(maybe_signature(errback))
    return copy


def with_callback(each: Any, callback: Any) -> Any:
    """Call *callback* with the result of *each*, or of each member if it is a group; return *each*."""
    each.link_each(callback) if isinstance(each, group) else each.link(callback)
    return each
