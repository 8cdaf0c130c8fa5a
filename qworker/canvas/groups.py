"""Groups: calls that run beside each other.

Comes from:  ``group(add.s(2, 2), add.s(4, 4))``, the dict of one, ``chunks``.
Goes to:     the plan, which publishes all members at once; a chord, when something follows it.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from qworker.canvas.plain import timed
from qworker.canvas.signatures import KINDS, Frozen, Signature, listed, maybe_signature, member, signature
from qworker.context import get_current_app
from qworker.errors import PublishError
from qworker.message.marks import over
from qworker.naming import task_id as new_id
from qworker.naming import task_ids
from qworker.results.group_result import GroupResult

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.publishing.options import SignatureOptions

OF_THE_GROUP = frozenset(["task_id", "group_id", "group_index", "chord", "chain", "link", "link_error"])
"""Options of a group or chord that are not those of each of its members."""


class Several(Signature):
    """A workflow whose parts stand in a list: the members of a group, the steps of a chain."""

    __slots__ = ()

    @property
    def tasks(self) -> list[Any]:
        """The parts, in their order."""
        return self["kwargs"]["tasks"]  # type: ignore[no-any-return]

    @tasks.setter
    def tasks(self, tasks: Iterable[Any]) -> None:
        self["kwargs"]["tasks"] = list(tasks)

    @property
    def app(self) -> QWorker:
        """The app that will make the calls: its own, or that of its first part."""
        return app_of(self)

    def _copy(self) -> Any:
        copy = super()._copy()
        copy["kwargs"]["tasks"] = list(self.tasks)
        return copy


class group(Several):
    """Calls that run beside each other: ``group(add.s(2, 2), add.s(4, 4))``, or ``group(calls)``.

    Arguments and options that are given when it is called are given to every member. Its result is a
    GroupResult, the list of their values in order. A group in a group is flattened. ``group | task`` is a
    chord.
    """

    __module__ = "qworker"

    __slots__ = ()

    def __init__(self, *tasks: Any, app: QWorker | None = None, **options: Unpack[SignatureOptions]) -> None:
        """tasks: signatures, or one iterable of them. options: as for apply_async."""
        super().__init__("celery.group", (), {"tasks": members_of(tasks, app)}, options, app=app)
        self["subtask_type"] = "group"

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], app: QWorker | None) -> Any:
        """from_dict() of what has been checked."""
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
        """Put *args* before those of every member, *kwargs* over theirs, *options* over its own."""
        if args or kwargs:
            self.tasks = [each.clone(args, kwargs) for each in self.tasks]
        self["options"].update(over(options or {}, self["options"]))

    def set_immutable(self, immutable: bool) -> None:
        """True: every member leaves out arguments that are given later."""
        self.tasks = [_immutable(each.clone(), immutable) for each in self.tasks]

    def link(self, callback: Any) -> Any:
        """Have *callback* called, without any result, when the first member has one. A chord waits for
        all."""
        if not self.tasks:
            raise PublishError("an empty group calls nothing back")
        first = self.tasks[0].clone()
        linked = first.link(maybe_signature(callback, self._app, clone=True).set(immutable=True))
        self.tasks = [first, *self.tasks[1:]]
        return linked

    def link_error(self, errback: Any) -> Any:
        """Have *errback* called for each member that fails."""
        errback = maybe_signature(errback)
        self.tasks = [_with_errback(each.clone(), errback) for each in self.tasks]
        return errback

    def link_each(self, callback: Any) -> None:
        """Have *callback* called with the result of each member."""
        self.tasks = [with_callback(each.clone(), callback) for each in self.tasks]

    def skew(self, start: float = 1.0, stop: float | None = None, step: float = 1.0) -> group:
        """Let the members run one after another: the first in *start* seconds, each one *step* later, until
        *stop*, which is that of all that come then. Return the group."""
        for each, number in zip(self.tasks, count(), strict=False):
            countdown = start + number * step
            each.set(countdown=countdown if stop is None else min(countdown, stop))
        return self

    def flat(self) -> list[Any]:
        """The members, with those of groups among them in their places, each with the options of its
        group."""
        waiting: list[tuple[Iterator[Any], Mapping[str, Any]]] = [(iter(self.tasks), {})]
        found: list[Any] = []
        while waiting:
            tasks, options = waiting[-1]
            for each in tasks:
                each = member(each, self._app)
                if isinstance(each, group):
                    each = with_links(each)
                    waiting.append((iter(each.tasks), {**_of_members(each), **options}))
                    break
                if each["subtask_type"] != "chain" or each.tasks:
                    found.append(each.clone(**options) if options else each)
            else:
                waiting.pop()
        return found

    def frozen(self, id: str | None = None, joined: bool = False, ids: Callable[[], str] = new_id) -> Frozen:
        """Return a copy with settled ids; see Signature. One that something waits for becomes a chord,
        whose body returns the list of the values."""
        if joined:
            collected = Signature("celery.accumulate", (), {"index": 0}, app=self._app)
            return KINDS["chord"](self, collected, app=self._app).frozen(id, joined, ids)  # type: ignore[no-any-return]
        copy, result = self.frozen_members(id, False, ids)
        return Frozen(copy, result, result)

    def frozen_members(
        self, id: str | None, joined: bool, ids: Callable[[], str]
    ) -> tuple[group, GroupResult[Any]]:
        """A copy whose members have settled ids; joined: each of them is a part of a join."""
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
        """Make the calls, in one round trip; see Task.apply_async for *options*, which are those of all.

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
        """Run all here and now, one after another, as a worker would; see Task.apply."""
        given = {**_of_members(self), **{name: options[name] for name in options if name not in OF_THE_GROUP}}
        identity = options.get("task_id") or self.options.get("task_id") or new_id()
        members = with_links(self, options).flat()
        results = [each.apply((*(args or ()), *self.args), kwargs, **given) for each in members]
        return GroupResult(identity, results, None, self._app)

    def delay(self, *args: Any, **kwargs: Any) -> GroupResult[Any]:  # type: ignore[override]
        """Make the calls, with *args* before and *kwargs* over the arguments of each."""
        return self.apply_async(args, kwargs)

    def __call__(self, *args: Any, **options: Unpack[SignatureOptions]) -> GroupResult[Any]:
        """Make the calls, with *args* put before the arguments of each."""
        return self.apply_async(args, **options)

    def __repr__(self) -> str:
        return f"group({self.tasks!r:.1000})"


def members_of(tasks: tuple[Any, ...], app: QWorker | None) -> list[Any]:
    """The members that were given as several, as one iterable, as one signature, or as a group."""
    found: Iterable[Any] = tasks
    if len(tasks) == 1:
        (given,) = tasks
        if isinstance(given, Mapping):
            tasks = (given,) = (maybe_signature(given, app),)
            found = given.tasks if isinstance(given, group) else tasks
        elif not hasattr(given, "__iter__") or isinstance(given, str | bytes):
            raise TypeError(f"{given!r:.200} is not a signature, and has none in it: task.s(…) makes one")
        else:
            found = given
    return [each if isinstance(each, Signature) else _read(each, app) for each in found]


def _read(value: Any, app: QWorker | None) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.200} is not a signature: task.s(…) makes one")
    return signature(value, app=app)


def app_of(workflow: Signature) -> QWorker:
    """The app of *workflow*: its own, or that of the first in it that has one, or the current one."""
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
    """The options of a group that are those of each member."""
    return {name: value for name, value in of["options"].items() if name not in OF_THE_GROUP}


def _immutable(each: Any, immutable: bool) -> Any:
    each.set_immutable(immutable)
    return each


def _with_errback(each: Any, errback: Any) -> Any:
    each.link_error(errback)
    return each


def with_options(of: Signature, each: Any) -> Any:
    """*each*, a member of the group *of*, with the options that this has for each."""
    options = _of_members(of)
    return each.clone(**options) if options else each


def with_links(work: Any, options: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """*work*, a group, chord or graph, with the callbacks and errbacks among its options, as ``set(link=…)``
    puts them there, and among those of its call, at the calls that they are for. It itself when there are
    none."""
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
    """Have *callback* called with the result of *each*, or of each member when it is a group; return
    *each*."""
    each.link_each(callback) if isinstance(each, group) else each.link(callback)
    return each
