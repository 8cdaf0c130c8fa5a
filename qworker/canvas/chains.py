"""Chains: calls that each get the value of the previous one.

Comes from:  ``chain(a, b)`` and ``a | b``, or the dict of a chain.
Goes to:     the plan, which publishes the first call; its message carries the rest.
Thread:      any.

The parts are normalised when a chain is made: a nested chain is spliced in, an empty group is dropped, a
group of one becomes its member, and a group followed by a call becomes the header of a chord.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, Self, Unpack

from qworker import states
from qworker.canvas.chords import chord
from qworker.canvas.groups import (
    CompositeSignature,
    group,
    members_of,
    with_callback,
    with_links,
    with_options,
)
from qworker.canvas.signatures import Frozen, Signature, listed, maybe_signature, member
from qworker.contracts import App
from qworker.errors import PublishError
from qworker.message.marks import over
from qworker.naming import task_id as new_id

if TYPE_CHECKING:
    from qworker.canvas.options import SignatureOptions

OF_THE_LAST = frozenset(["task_id", "group_id", "group_index", "chord"])
"""Options of a chain that apply to its last call; link_error applies to each, and all others to the first."""


class chain(CompositeSignature):
    """Calls that each get the value of the previous one: ``chain(add.s(2, 2), mul.s(3))``, or ``a | b``.

    Arguments and options given at the call are for the first call. The result is that of the last, with the
    earlier ones as its parents. A chain that begins with a group followed by a call is a chord.
    """

    __module__ = "qworker"

    __slots__ = ("_made",)

    _made: list[Any]

    def __new__(cls, *tasks: Any, app: App | None = None, **options: Unpack[SignatureOptions]) -> Self:
        """Return a chain; or a group or chord, if the parts make one."""
        if len(tasks) == 1 and isinstance(tasks[0], Mapping):
            only = maybe_signature(tasks[0], app)
            members = only.unchained() if isinstance(only, chain) else [only]
        else:
            members = members_of(tasks, app)
            leads = next(spliced(members), None)
            members = folded(members)
            if len(members) == 1 and isinstance(leads, group) and not options:
                return members[0]  # type: ignore[no-any-return]
        made = dict.__new__(cls)
        made._made = members
        return made

    def __init__(self, *tasks: Any, app: App | None = None, **options: Unpack[SignatureOptions]) -> None:
        """tasks: signatures, or one iterable of them. options: as for apply_async."""
        super().__init__("celery.chain", (), {"tasks": self._made}, options, app=app)
        self["subtask_type"] = "chain"
        del self._made

    @classmethod
    def of_steps(cls, steps: list[Any], app: App | None) -> Any:
        """Make a chain of *steps* without normalising them."""
        made = dict.__new__(cls)
        made._made = steps
        chain.__init__(made, app=app)
        return made

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], app: App | None) -> Any:
        """from_dict() for checked fields."""
        made = cls.of_steps([member(each, app) for each in listed(fields["kwargs"]["tasks"])], app)
        made["options"] = dict(fields.get("options") or {})
        made["immutable"] = bool(fields.get("immutable"))
        if args := fields.get("args"):
            made.add(args)
        return made

    @classmethod
    def joined(cls, one: Signature, other: Signature) -> Any:
        """Return ``one | other``."""
        if isinstance(other, group) and not other.tasks:
            return one
        if isinstance(one, group):
            return chord(one, other, app=one._app)
        if isinstance(one, chord) and not isinstance(other, chain):
            steps = list(spliced([other]))  # several, if a group's only member is a chain
            if len(steps) == 1 and not isinstance(steps[0], group):
                return one.with_body(one.called_body() | steps[0])
        before = one.unchained() if isinstance(one, chain) else [one]
        if not before:
            return other
        return cls.of_steps(folded([other], before), one._app or other._app)

    def add(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepend *args* to the first step's, merge *kwargs* into its own, and *options* into the chain's."""
        if (args or kwargs) and self.tasks and not self["immutable"]:
            self.tasks[0] = member(self.tasks[0], self._app).clone(args, kwargs)
        self["options"].update(over(options or {}, self["options"]))

    def unchained(self) -> list[Any]:
        """Return the steps, with the options of the chain moved to the steps they belong to."""
        steps = [member(each, self._app) for each in self.tasks]
        options = dict(self["options"])
        if not options or not steps:
            return steps
        callbacks, errbacks = (listed(options.pop(name, None)) for name in ("link", "link_error"))
        of_last = {name: options.pop(name) for name in OF_THE_LAST & options.keys()}
        if callbacks or of_last:
            last = steps[-1] = steps[-1].clone()
            for callback in callbacks:
                with_callback(last, callback)
            for name, value in of_last.items():
                last["options"].setdefault(name, value)
        if options:
            steps[0] = steps[0].clone(**options)
        if errbacks:  # normalised, because errbacks are not for a group that becomes the header of a chord
            steps = [each.clone() for each in (ordered(steps) if len(steps) > 1 else steps)]
            for each, errback in product(steps, errbacks):
                each.link_error(errback)
        return steps

    def steps(self) -> list[Signature]:
        """Return its steps in order, to become part of another chain."""
        return ordered(self.unchained())

    def frozen(self, id: str | None = None, joined: bool = False, ids: Callable[[], str] = new_id) -> Frozen:
        """Return a copy with normalised steps and assigned ids; see Signature."""
        steps = self.steps()
        if not steps:
            empty = next((each for each in self.tasks if isinstance(each, group)), None)
            if empty is None:
                raise PublishError("an empty chain has no result: add a step to it")
            steps = [empty.clone()]
        copy, before, first = self._copy(), None, None
        for place, step in enumerate(steps):
            final = place == len(steps) - 1
            frozen = step.frozen(id if final else None, joined or not final, ids)
            if before is not None:
                frozen.first.parent = before
            steps[place], before, first = frozen.step, frozen.last, first or frozen.first
        copy.tasks = steps
        copy["options"] = {"task_id": steps[-1]["options"]["task_id"]}
        return Frozen(copy, first, before)

    def apply_async(
        self,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SignatureOptions],
    ) -> Any:
        """Make the first call, whose message carries the others; see Task.apply_async for *options*.

        ``link`` and ``task_id`` apply to the last call, ``link_error`` to each, and all other options to the
        first. Return the result of the last; None for an empty chain.
        """
        return self.app.send_workflow(self, args, kwargs, options) if self.tasks else None

    def apply(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Run all calls in this process, one after another, as a worker would; see Task.apply. Raises the
        error of any call but the last."""
        last: Any = None
        steps = self.clone(args, kwargs, **options).steps()
        for step in steps or self.tasks[:1]:
            ended = step.apply((last.get(),)) if last is not None else step.apply()
            first = ended
            while first.parent is not None:
                first = first.parent
            first.parent, last = last, ended
            if getattr(ended, "state", None) in (states.IGNORED, states.REJECTED):
                break
        return last

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Make the first call, with *args* prepended to its own and *kwargs* merged into its own."""
        return self.apply_async(args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the first call, with *args* prepended to its own and *kwargs* merged into its own."""
        return self.apply_async(args, kwargs)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.tasks)) if self.tasks else "chain()"


def spliced(tasks: Iterable[Any]) -> Iterator[Any]:
    """Return the steps of *tasks*: chains are spliced in, empty groups dropped, and a group of one is
    replaced by its member."""
    waiting = list(tasks)[::-1]
    while waiting:
        step = waiting.pop()
        if isinstance(step, chain):
            waiting.extend(reversed(step.unchained()))
        elif not isinstance(step, group):
            yield step
        elif len(step) == 1:
            step = with_links(step)
            waiting.append(with_options(step, member(step.tasks[0], step._app)))
        elif step.tasks:
            yield step


def folded(tasks: Iterable[Any], before: Iterable[Any] = ()) -> list[Any]:
    """Return the steps of a chain of *tasks*, appended to the steps *before*, in Celery's form: a call after
    a chord belongs to its body."""
    steps = list(before)
    mine: list[Any] = []  # steps of the last body, if that is a chain made here
    for step in spliced(tasks):
        last = steps[-1] if steps else None
        if isinstance(last, group):
            steps[-1], mine = chord(last, step, app=last._app), []
        elif not isinstance(last, chord) or isinstance(step, group | chord):
            steps.append(step)
            mine = []
        elif mine and not isinstance(mine[-1], group | chord):
            mine.append(step)
        else:
            body = last.called_body() | step
            steps[-1] = last.with_body(body)
            mine = body.tasks if isinstance(body, chain) else []
    return steps


def ordered(tasks: Iterable[Any]) -> list[Any]:
    """Return the steps of *tasks* in execution order: a call after a chord follows it in the list, and a
    group followed by a call becomes the header of a chord."""
    steps: list[Any] = []
    for step in spliced(tasks):
        for part in step.steps():
            if steps and _ends_in_a_group(steps[-1]):
                steps[-1] = _followed(steps[-1], part)
            else:
                steps.append(part)
    return steps


def _ends_in_a_group(step: Any) -> bool:
    while isinstance(step, chord):
        step = step.body
    return isinstance(step, group)


def _followed(step: Any, following: Any) -> Any:
    """Return *step*, whose last part is a group, with *following* as the body that gets its values."""
    around = []
    while isinstance(step, chord):
        around.append(step)
        step = step.body
    made: Any = chord(step, following, app=step._app)
    for outer in reversed(around):
        made = outer.with_body(made)
    return made
