"""Flows: workflows as plain data, drawn at random, and what becomes of them in plain Python.

Comes from:  hypothesis, which draws them.
Goes to:     the tests, which build the canvas of each, run it, and hold it against expected().
Thread:      any; pure.

expected() is written from the rules of the documentation and not from the code: a flow is a row of *stages*,
each one call or several beside each other (Beside), and each stage gets the value of the one before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache, reduce
from itertools import count
from operator import or_
from typing import Any

from hypothesis import strategies as st

from qworker import chain, chord, graph, group

MOST_SHOWN = 120
"""Characters of a value; a longer one is told by its hash."""


# -- the data --


class Short:
    """A dataclass whose repr() has only the fields that differ from their defaults."""

    def __repr__(self) -> str:
        shown = []
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            usual = each.default_factory() if callable(each.default_factory) else each.default  # type: ignore[misc]
            if value != usual:
                shown.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(repr=False)
class Call(Short):
    """One call. retries: how often it asks for another attempt, *delay* seconds later; with *anew*, "args" or
    "kwargs", it gives that new ones. number: its own in the flow.

    does: what it does in the end, see ENDS and VALUES. instead: the flow that it has take its place. calls:
    a flow that it calls, with its own headers if hands_on. adds: a flow that it adds to its chord, if it is a
    member of one; lazy: it sends that itself. options: of the signature, with a timedelta for a countdown
    that is an int. wrong: it has an option with which it cannot be sent. The tasks that do these find them by
    the number; those of Ledger do not.
    """

    fails: bool = False
    retries: int = 0
    delay: float = 0.0
    anew: str = ""
    immutable: bool = False
    ignored: bool = False
    coroutine: bool = False
    does: str = ""
    instead: Any = None
    calls: Any = None
    hands_on: bool = False
    adds: Any = None
    lazy: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    wrong: bool = False
    links: list[Any] = field(default_factory=list)
    errbacks: list[Errback] = field(default_factory=list)
    number: int = -1


@dataclass(repr=False)
class Errback(Short):
    """now: it takes ``(request, exc, traceback)``. by_set: it is given by ``set(link_error=…)``."""

    now: bool = False
    by_set: bool = False
    number: int = -1


@dataclass(repr=False)
class Mapping(Short):
    """``task.map`` or ``task.starmap`` of so many *items*; the first of them fails."""

    items: int
    star: bool = False
    fails: bool = False
    number: int = -1


@dataclass(repr=False)
class Chunks(Short):
    """The group of ``task.chunks`` of so many *items*, *each* in a message."""

    items: int
    each: int
    number: int = -1


@dataclass(repr=False)
class Group(Short):
    members: list[Any]
    errbacks: list[Errback] = field(default_factory=list)


@dataclass(repr=False)
class Chain(Short):
    """``chain(…)``."""

    steps: list[Any]
    errbacks: list[Errback] = field(default_factory=list)


@dataclass(repr=False)
class Pipe(Short):
    """``a | b | c``."""

    steps: list[Any]


@dataclass(repr=False)
class Chord(Short):
    header: list[Any]
    body: Any
    errbacks: list[Errback] = field(default_factory=list)


@dataclass(repr=False)
class Node(Short):
    """A node of a graph. after: how far back those stand that it waits for; always: it runs whatever becomes
    of these."""

    call: Call
    after: list[int] = field(default_factory=list)
    always: bool = False


@dataclass(repr=False)
class Graph(Short):
    """A graph, which stands alone."""

    nodes: list[Node]

    def waits(self) -> Iterator[tuple[Node, list[int]]]:
        """Each node, and the places of those that it waits for."""
        for place, node in enumerate(self.nodes):
            yield node, sorted({place - back for back in node.after if 0 < back <= place})


_SEVERAL = ("links", "errbacks", "members", "steps", "header", "nodes")
_ONE = ("body", "instead", "calls", "adds", "call")


@cache
def _fields_of(kind: type) -> tuple[list[str], list[str]]:
    """The fields of *kind* that have several flows, and those that have one or None."""
    names = {each.name for each in fields(kind)} if is_dataclass(kind) else set()
    return [name for name in _SEVERAL if name in names], [name for name in _ONE if name in names]


def parts_of(flow: Any) -> Iterator[Any]:
    """*flow* and all flows inside it."""
    yield flow
    several, one = _fields_of(type(flow))
    for name in several:
        for part in getattr(flow, name):
            yield from parts_of(part)
    for name in one:
        part = getattr(flow, name)
        if part is not None:
            yield from parts_of(part)


def is_line(flow: Any) -> bool:
    """Whether nothing in *flow* waits for several calls."""
    return not any(isinstance(part, Group | Chord | Chunks | Graph) for part in parts_of(flow))


def is_one_message(flow: Any) -> bool:
    """Whether each message that is sent when *flow* is called has nothing in it that follows."""
    stages = [] if isinstance(flow, Graph) else built(flow).stages
    rows = [row for stage in stages if isinstance(stage, Beside) for row in stage.rows]
    return len(stages) == 1 and all(len(row) == 1 and isinstance(row[0], Stage) for row in rows)


def waits_for_several(flow: Any) -> bool:
    """Whether one that calls *flow* has to open a join."""
    return isinstance(flow, Graph) or _has_joins(built(flow).stages)


def _has_joins(stages: list[Any]) -> bool:
    return any(
        isinstance(stage, Beside) and (following is not None or any(map(_has_joins, stage.rows)))
        for stage, following in _with_the_next(stages)
    )


def needs_joins(flow: Any) -> bool:
    """Whether something in *flow* waits for several calls, or may if they take the place of one."""
    if isinstance(flow, Graph):
        return True
    return _is_joined(built(flow).stages)


def _is_joined(stages: list[Any]) -> bool:
    for stage, following in _with_the_next(stages):
        if isinstance(stage, Beside):
            if following is not None or any(map(_is_joined, stage.rows)):
                return True
        elif not is_line(stage.call):
            return True
    return False


def numbered(flow: Any) -> Any:
    """*flow*, in which each call has a number of its own."""
    numbers = count()
    for part in parts_of(flow):
        if hasattr(part, "number"):
            part.number = next(numbers)
    return flow


# -- drawing flows --


def flows() -> st.SearchStrategy[Any]:
    """Draw a flow."""
    rarely = st.sampled_from([False] * 9 + [True])
    errbacks = st.lists(st.builds(Errback, now=st.booleans()), max_size=1)
    link = st.builds(Call, fails=rarely, coroutine=rarely)
    call = st.builds(
        Call,
        fails=st.sampled_from([False] * 14 + [True]),
        retries=st.sampled_from([0] * 12 + [1, 2]),
        immutable=st.sampled_from([False] * 5 + [True]),
        ignored=st.sampled_from([False] * 30 + [True]),
        coroutine=rarely,
        links=st.lists(link, max_size=1),
        errbacks=errbacks,
    )
    mapping = st.builds(Mapping, items=st.integers(0, 3), star=st.booleans(), fails=rarely)
    chunks = st.builds(Chunks, items=st.integers(1, 4), each=st.integers(1, 3))
    leaf = st.one_of(call, call, call, call, mapping, chunks)

    def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        some = st.lists(inner, max_size=3)
        several = st.lists(inner, min_size=1, max_size=4)
        return st.one_of(
            st.builds(Chain, several, errbacks),
            st.builds(Pipe, several),
            st.builds(Group, some, errbacks),
            st.builds(Chord, some, inner, errbacks),
        )

    return st.recursive(leaf, around, max_leaves=12).filter(_is_called).map(_plain).map(numbered)


def is_plain(flow: Any) -> Any | None:
    """*flow* as flows() would draw it; None when it would not."""
    return _plain(flow) if _is_called(flow) else None


def _is_called(flow: Any) -> bool:
    """Whether there is something to call in each chain and body."""
    return all(
        (not isinstance(part, Chain | Pipe) or built(part).stages)
        and not (isinstance(part, Pipe) and built(part.steps[0]).members == [])
        and not (isinstance(part, Pipe) and any(map(_is_chain_of_one, part.steps[1:])))
        and (
            not isinstance(part, Chord)
            or (
                built(part.body).stages
                and built(part.body).members != []
                and not is_chain_of_a_group(part.body)
            )
        )
        for part in parts_of(flow)
    )


def is_chain_of_a_group(flow: Any) -> bool:
    """Whether *flow* is a chain of nothing but a group. A group of one is unrolled there or becomes a header,
    depending on how what follows is written, in Celery and here (test_celery_guide has both)."""
    return _alone(flow) is not _bare(flow) and isinstance(_alone(flow), Group | Chunks)


def is_group_of_a_group(flow: Any) -> bool:
    """Whether *flow* is a group of nothing but a chain that ends in a group: its result is that of the inner
    group if Celery calls it."""
    members = [] if isinstance(flow, Graph) else built(flow).members or []
    return len(members) == 1 and not all(isinstance(stage, Stage) for stage in members[0].stages[-1:])


def _is_chain_of_one(flow: Any) -> bool:
    return is_chain_of_a_group(flow) and len(built(_alone(flow)).members or ()) == 1


def _bare(flow: Any) -> Any:
    """*flow*; of a pipe of one step this: Python makes nothing of it."""
    return _bare(flow.steps[0]) if isinstance(flow, Pipe) and len(flow.steps) == 1 else flow


def _alone(flow: Any) -> Any:
    """What stands alone in *flow*, if that is a chain of one step."""
    flow = _bare(flow)
    return _alone(flow.steps[0]) if isinstance(flow, Chain) and len(flow.steps) == 1 else flow


def _around(flow: Any) -> Iterator[Errback]:
    """The errbacks of the chains in which _alone(flow) stands."""
    flow = _bare(flow)
    if isinstance(flow, Chain) and len(flow.steps) == 1:
        yield from flow.errbacks
        yield from _around(flow.steps[0])


def _plain(flow: Any) -> Any:
    """*flow*, without the errbacks of a workflow in which a chord stands in a header: Celery tells those of
    both chords, which is a case by itself."""
    for part in parts_of(flow):
        if isinstance(part, Call):
            if part.does in ("tagged", "set"):  # whether one that is ignored fails depends on who takes it
                part.ignored = False
            stages = [] if part.instead is None else replacing(part.instead)
        else:
            stages = built(part).stages if isinstance(part, Chain | Chord | Group) else []
        if _has_chords_in_headers(stages):
            part.errbacks = []
    return flow


# -- the canvas of a flow --


def canvas(flow: Any, tasks: Any, name: str) -> Any:
    """The signature of *flow*. tasks: by name; see Ledger. name: of this run. Signatures built from other
    signatures do not change these."""
    within: list[tuple[Any, str]] = []

    def part(each: Any) -> Any:
        signature = canvas(each, tasks, name)
        within.append((signature, _written(signature)))
        return signature

    if isinstance(flow, Call):
        name_of = flow.does if flow.does in OWN else "acall" if flow.coroutine else "call"
        task = tasks[name_of]
        fails: Any = flow.fails
        if task.app.conf.task_serializer == "pickle":  # results, which are JSON, cannot contain it
            fails = frozenset({1} if flow.fails else ())
        made = task.s(flow=name, number=flow.number, fails=fails, retries=flow.retries)
        made.set(immutable=flow.immutable, **timed(flow.options))
        if flow.wrong:
            made.set(priority="high")
        if flow.ignored:
            made.set(ignore_result=True)
        if flow.does == "expired":
            made.set(expires="2020-01-01T00:00:00+00:00")
        if flow.does == "outdated":
            made.set(countdown=OUTDATED, expires=0.9 * OUTDATED)
        for link in flow.links:
            made.link(part(link))
    elif isinstance(flow, Errback):
        return tasks["told_now" if flow.now else "told"].s(flow=name, number=flow.number)
    elif isinstance(flow, Mapping):
        items = [[name, flow.number, item, flow.fails and not item] for item in range(flow.items)]
        made = tasks["star"].starmap(items) if flow.star else tasks["item"].map(items)
    elif isinstance(flow, Chunks):
        items = [[name, flow.number, item, False] for item in range(flow.items)]
        made = tasks["star"].chunks(items, flow.each).group()
    elif isinstance(flow, Graph):
        nodes, after, always = {}, {}, []
        for place, (node, others) in enumerate(flow.waits()):
            nodes[f"n{place}"] = part(node.call)
            if others:
                after[f"n{place}"] = {f"x{number}": f"n{other}" for number, other in enumerate(others)}
                always += [f"n{place}"] if node.always else []
        made = graph(nodes, after, always=always)
    elif isinstance(flow, Group):
        made = group([part(each) for each in flow.members], app=tasks["call"].app)
    elif isinstance(flow, Chain):
        made = chain(*(part(each) for each in flow.steps))
    elif isinstance(flow, Pipe):
        made = reduce(or_, (part(each) for each in flow.steps))
    else:
        made = chord([part(each) for each in flow.header], part(flow.body))
    by_set = []
    for errback in getattr(flow, "errbacks", ()):
        if errback.by_set:
            by_set.append(part(errback))
        else:
            made.link_error(part(errback))
    if by_set:
        made.set(link_error=[*(made.options.get("link_error") or ()), *by_set])
    for signature, before in within:
        assert _written(signature) == before, f"what stands in {flow!r} was changed"
    return made


def _written(signature: Any) -> str:
    return json.dumps(signature, default=str)


def timed(options: dict[str, Any]) -> dict[str, Any]:
    """*options* with a timedelta for a countdown that is an int."""
    countdown = options.get("countdown")
    return {**options, "countdown": timedelta(seconds=countdown)} if isinstance(countdown, int) else options


def shown(number: int, given: Any) -> str:
    """The value of call *number* with the arguments *given*."""

    def text(value: Any) -> str:
        return f"[{','.join(map(text, value))}]" if isinstance(value, list | tuple) else str(value)

    value = without_ids(f"{number}({','.join(map(text, given))})")
    return value if len(value) <= MOST_SHOWN else f"{number}#{hashlib.sha1(value.encode()).hexdigest()[:12]}"


def without_ids(value: Any) -> Any:
    """*value* without the ids of calls."""
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    return _ID.sub("an id", value) if isinstance(value, str) else value


_ID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


# -- the expected results of a flow --


@dataclass(frozen=True)
class Failed:
    """error: the name of its class, of a group with those of its members."""

    error: str

    @classmethod
    def by(cls, error: BaseException) -> Failed:
        return cls(_named(error))


def _named(error: BaseException) -> str:
    name = type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        name += f" of {', '.join(map(_named, error.exceptions))}"
    known = ARGS.get(name, error.args)
    if name == "ValueError":
        known = tuple(each for each in error.args if type(each) is int)[:1]
    return name if error.args == known else f"{name}{error.args!r}"


def has_failed(value: Any) -> bool:
    """Whether there is a failure in *value*."""
    return any(map(has_failed, value)) if isinstance(value, list) else isinstance(value, Failed)


PENDING = Failed("pending")
"""For ever."""
VALUES: dict[str, Any] = {
    "none": None,
    "false": False,
    "bytes": b"\x00\xff<>",
    "integer": -(2**70),
    "float": 1.5e300,
    "text": "\u2028 \x00 \N{SNOWMAN} \N{GRINNING FACE}",
    "empty": "",
    "instant": datetime(2024, 2, 29, 23, 59, 59, 999999, UTC),
    "day": date(1, 1, 1),
    "decimal": Decimal("0.10"),
    "dict": {"a": {"b": [1, None, {}], "": []}, "__type__": "x"},
    "tagged": {"__type__": "x", "__value__": 1},
    "set": {1},
    "result": [["an id", None], None],
}
"""What a call may return. A "result" is that of a call which it makes."""
ENDS: dict[str, Any] = {
    "tagged": Failed("EncodeError"),
    "set": Failed("EncodeError"),
    "ignore": PENDING,
    "reject": Failed("Reject"),
    "expected": Failed("Expected"),
    "several": Failed("ExceptionGroup of ValueError, ExceptionGroup of KeyError"),
    "again": Failed("Again"),
    "stays": Failed("Stays"),
    "soft": Failed("SoftTimeLimitExceeded"),
    "hard": Failed("TimeLimitExceeded"),
    "dies": Failed("WorkerLost"),
    "lost": Failed("WorkerLost"),
    "unacked": Failed("ValueError"),
    "expired": Failed("TaskExpired"),
    "outdated": Failed("TaskExpired"),
}
"""How a call ends that does so; "requeue" puts its message back once, one that "dies" kills its process each
time, one that is "lost" is not delivered again when it has done so, an "unacked" one becomes a dead letter
when it fails, "outdated" expires while it waits, "progress" stores a state of its own, and one that is
"untrailed" keeps no children."""
OUTDATED = 1.0
"""Seconds until one that is outdated would be due."""
ARGS: dict[str, tuple[Any, ...]] = {
    "Expected": ("as", {"it": [7, None]}),
    "Again": (1.5, "\N{SNOWMAN}"),
    "Stays": (),
    "KeyError": (True,),
}
"""The arguments of errors of tasks; those of a ValueError are the number of its call."""
RUNS = {"requeue": 2, "again": 3, "dies": 3, "expired": 0, "outdated": 0}
"""How often one runs, if not once; for one that dies, its ``max_deliveries``."""
OWN: dict[str, dict[str, Any]] = {
    "dies": {"max_deliveries": RUNS["dies"]},
    "lost": {"reject_on_worker_lost": False},
    "unacked": {"acks_on_failure_or_timeout": False},
    "untrailed": {"trail": False},
}
"""Behaviors with a task of their own, and its options."""
BACKOFF = 0.1
"""Seconds before the second attempt of one that runs "again"; twice as many before the third."""


@dataclass
class Expected:
    """value: what get() returns, with a Failed for each error; None when nothing is called. runs: of each
    number; told: of each errback. before: pairs of numbers of which the first ends before the other starts.
    refused: it cannot be called: the value of a call that ignores it is waited for, or an option is wrong.
    causes: the errors of members for which bodies fail, of which get() raises one; the body's own if the
    caller cannot know of one. early: something before the last stage fails. called: the values of what
    the calls call, by the number of who calls. dead: how many messages are rejected. pending: something never
    ends."""

    value: Any = None
    runs: Counter[int] = field(default_factory=Counter)
    told: Counter[int] = field(default_factory=Counter)
    before: set[tuple[int, int]] = field(default_factory=set)
    refused: bool = False
    causes: set[str] = field(default_factory=set)
    early: bool = False
    called: dict[int, Any] = field(default_factory=dict)
    dead: int = 0
    pending: bool = False


@dataclass
class Stage:
    """One call, or one message of a mapping."""

    call: Any
    items: range | None = None
    errbacks: list[Errback] = field(default_factory=list)


@dataclass
class Beside:
    """Rows of stages that run beside each other."""

    rows: list[list[Any]]


@dataclass
class Built:
    """What a canvas is: *stages* one after another. members: of a group."""

    stages: list[Any]
    members: list[Built] | None = None


def built(flow: Any, frozen: bool = False) -> Built:
    """What stands in *flow*, by Celery's rules. frozen: as a part of what Celery's client sends."""
    made = _built(flow, frozen)
    for errback in getattr(flow, "errbacks", ()):
        _enter(errback, made.stages)
    return made


def _built(flow: Any, frozen: bool) -> Built:
    if isinstance(flow, Call):
        return Built([Stage(flow)])
    if isinstance(flow, Mapping):
        return Built([Stage(flow, range(flow.items))])
    if isinstance(flow, Chunks):
        starts = range(0, flow.items, flow.each)
        return _group([Built([Stage(flow, range(flow.items)[at : at + flow.each])]) for at in starts])
    if isinstance(flow, Group):
        return _group([built(each, frozen) for each in flow.members], frozen)
    if isinstance(flow, Chord):
        return Built(
            [
                *_group([built(each, frozen) for each in flow.header], frozen).stages,
                *built(flow.body, frozen).stages,
            ]
        )
    if isinstance(flow, Chain):
        steps = [part for step in flow.steps for part in _spliced(built(step, frozen))]
        if len(steps) == 1 < len(flow.steps):  # what is left of several is itself, and no chain of it
            return steps[0]
        return Built([stage for step in steps for stage in step.stages])
    made, *steps = (built(step, frozen) for step in flow.steps)
    if steps:
        made = _header(flow.steps[0], frozen) or made
    for place, step in enumerate(steps, 1):
        if made.members is not None and place < len(steps) and not _is_several(steps[place]):
            step = _header(flow.steps[place], frozen) or step
        if step.members == []:
            continue
        if made.members is not None:
            made = Built([*made.stages, *step.stages])
        else:
            made = Built([*made.stages, *(stage for part in _spliced(step) for stage in part.stages)])
    return made


def _header(flow: Any, frozen: bool) -> Built | None:
    """What *flow* is that something follows, if it is a chain of nothing but a group: a header, also of
    one."""
    alone = _alone(flow)
    if alone is _bare(flow) or (header := built(alone, frozen)).members is None:
        return None
    for errback in _around(flow):
        _enter(errback, header.stages)
    return Built(header.stages)


def _is_several(step: Built) -> bool:
    """Whether *step* is a group of several calls: what stands before it stays a step of its own."""
    return step.members is not None and len(step.stages[0].rows) > 1


def _group(members: list[Built], frozen: bool = False) -> Built:
    """A group of *members*. A group in it is flat; Celery's client reverses its calls where it freezes it."""
    rows: list[list[Any]] = []
    for each in members:
        rows += reversed(_flat(each)) if frozen else _flat(each)
    return Built([Beside(rows)], members)


def _flat(member: Built) -> list[list[Any]]:
    """The rows of *member* of a group, as they are written."""
    if member.members is None:
        return [member.stages]
    return [row for each in member.members for row in _flat(each)]


def called_by_celery(flow: Any) -> Built:
    """What stands in *flow* if Celery's client calls it, which freezes all but a group called by itself."""
    made = built(flow, frozen=True)
    return made if made.members is None else Built([Beside(_flat(made))], made.members)


def _spliced(step: Built) -> list[Built]:
    """What a step of a chain is: of a group of one its member, of none nothing."""
    if step.members is None or len(step.members) > 1:
        return [step]
    return _spliced(step.members[0]) if step.members else []


def _enter(errback: Errback, stages: list[Any]) -> None:
    """Let *errback* be told of each stage, but not of a header: that fails what follows it."""
    for stage, following in _with_the_next(stages):
        if isinstance(stage, Stage):
            stage.errbacks.append(errback)
        elif following is None:
            for row in stage.rows:
                _enter(errback, row)


def _has_chords_in_headers(stages: list[Any]) -> bool:
    for stage, following in _with_the_next(stages):
        if isinstance(stage, Beside):
            for row in stage.rows:
                if _has_chords_in_headers(row) or (following is not None and isinstance(row[0], Beside)):
                    return True
        elif getattr(stage.call, "instead", None) and _has_chords_in_headers(replacing(stage.call.instead)):
            return True
    return False


_LIST = Call(does="list")
"""The body of a group that takes the place of a call."""


def replacing(flow: Any) -> list[Any]:
    """The stages of *flow*, which takes the place of a call: its value is one."""
    stages = built(flow).stages
    return [*stages, Stage(_LIST)] if isinstance(stages[-1], Beside) else stages


def _with_the_next(stages: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(stages, [*stages[1:], None], strict=False)


def expected(flow: Any, given: tuple[Any, ...], late: bool = True, by_celery: bool = False) -> Expected:
    """The expected results of *flow*, called with the arguments *given*. late: messages are acked late, so
    that one can be put back. by_celery: Celery's client calls it."""
    oracle = _Oracle(late)
    if isinstance(flow, Graph):
        oracle.graph(flow, given)
        return oracle.found
    stages = (called_by_celery if by_celery else built)(flow).stages
    oracle.refuse(stages, waited_for=False)
    oracle.found.refused |= any(getattr(part, "wrong", False) for part in parts_of(flow))
    value, _ = oracle.row(stages, given, frozenset(), joined=False)
    oracle.found.early = has_failed(_Oracle(late).row(stages[:-1], given, frozenset(), joined=True)[0])
    oracle.found.value = _kept(stages[-1], value)
    oracle.found.runs.pop(_LIST.number, None)
    return oracle.found


def _kept(last: Any, value: Any) -> Any:
    """*value* as seen by a caller: None for a call with ignore_result."""
    if isinstance(last, Beside):
        return [_kept(row[-1], each) for row, each in zip(last.rows, value, strict=True)]
    return None if getattr(last.call, "ignored", False) else value


Added = list[tuple[Any, frozenset[int]]]
"""The values of added members, and the numbers of what ran last for each."""


class _Oracle:
    def __init__(self, late: bool) -> None:
        self.found = Expected()
        self.late = late

    def refuse(self, stages: list[Any], waited_for: bool) -> None:
        """Find a call whose value is waited for although its result is ignored."""
        for stage, following in _with_the_next(stages):
            if isinstance(stage, Beside):
                for row in stage.rows:
                    self.refuse(row, waited_for or following is not None)
            elif waited_for and following is None and getattr(stage.call, "ignored", False):
                self.found.refused = True

    def row(
        self,
        stages: list[Any],
        args: tuple[Any, ...],
        after: frozenset[int],
        joined: bool,
        chord: Added | None = None,
    ) -> tuple[Any, frozenset[int]]:
        """The value of one stage after another, and the numbers of what ran last. joined: something waits for
        the value. chord: what is added to the chord of which the last is a member."""
        value: Any = None
        for place, stage in enumerate(stages):
            last = place == len(stages) - 1
            if isinstance(stage, Stage):
                value, after = self.call(stage, args, after, chord if last else None)
            else:
                added: Added | None = [] if joined or not last else None
                rows = [self.row(each, args, after, joined or not last, added) for each in stage.rows]
                rows += added or ()
                value = [each for each, _ in rows]
                after = frozenset().union(*(ends for _, ends in rows)) if rows else after
                if (joined or not last) and any(isinstance(each, Failed) for each in value):
                    known = value[: len(stage.rows)]  # the caller does not know of those that were added
                    self.found.causes |= {
                        each.error for each in known if isinstance(each, Failed) and each is not PENDING
                    } or {"ChordError"}
                    failed = next(each for each in value if isinstance(each, Failed))
                    # A body that is a group fails with the error of the member.
                    alone = not joined and isinstance(stages[-1], Beside) and place == len(stages) - 2
                    value = failed if alone and failed is not PENDING else Failed("ChordError")
                    if not last:
                        self.tell(stages, place + 1)
            if value is PENDING and not last:
                value = Failed("ChordError")  # the following stage fails
            if isinstance(value, Failed):
                return self.failed(stages[-1], value, joined), after
            args = (value,)
        return value, after

    def failed(self, last: Any, error: Failed, joined: bool) -> Any:
        """The value of a row that failed: that of each member where it ends in a group."""
        if isinstance(last, Beside) and not joined:
            return [self.failed(row[-1], error, joined) for row in last.rows]
        return error

    def call(
        self, stage: Stage, args: tuple[Any, ...], after: frozenset[int], chord: Added | None = None
    ) -> tuple[Any, frozenset[int]]:
        found, call, number = self.found, stage.call, stage.call.number
        found.before.update((each, number) for each in after if each != number)
        fails = getattr(call, "fails", False)
        if stage.items is not None:
            if fails and stage.items:
                found.runs[number] += 1
                self.tell([stage], 0)
                return Failed("ValueError"), frozenset([number])
            found.runs[number] += len(stage.items)
            ran = frozenset([number]) if stage.items else after
            return [shown(number, [item]) for item in stage.items], ran
        if call is _LIST:
            return args[0], after
        runs = RUNS.get(call.does, 1)
        if fails:
            runs = min(runs, 1)
        end = Failed("ValueError") if fails and runs else ENDS.get(call.does)
        if not runs:
            return end, after
        if call.does == "requeue" and not self.late and not fails:
            runs, end = 1, ENDS["reject"]
        if call.does == "dies" and not self.late:
            runs = 1
        found.runs[number] += runs + call.retries
        ran = frozenset([number])
        before = set(found.before)
        if call.calls is not None:
            stages = built(call.calls).stages
            for _ in range(runs):
                value, _ = self.row(stages, ("i",), after, joined=False)
            found.called[number] = _kept(stages[-1], value)
        if call.adds is not None and chord is not None:
            for _ in range(runs):
                value, ends = self.row(built(call.adds).stages, (), after, joined=True)
            chord.append((value, ends if runs == 1 else frozenset()))  # the chord counts it once
        if runs > 1:  # one of these may start before another has ended
            found.before = before
        if end is PENDING and not fails:
            found.pending = True
            return end, ran
        if isinstance(end, Failed):
            found.dead += call.does == "unacked" or (call.does in ("reject", "dies") and not fails)
            self.tell([stage], 0)
            return end, ran
        if call.instead is not None:
            stages = replacing(call.instead)
            for errback in stage.errbacks:
                _enter(errback, stages)
            value, ran = self.row(stages, (), ran, joined=True, chord=chord)
            if isinstance(value, Failed):  # the caller does not know its members
                found.causes.add(value.error)
        elif call.does in VALUES:
            value = VALUES[call.does]
        else:
            given = () if call.immutable else args
            if call.retries and call.anew:
                given = ("anew",) if call.anew == "args" else (*given, "anew")
            value = shown(number, given)
        if not isinstance(value, Failed):
            for link in call.links:
                stages = built(link).stages
                self.row(stages, (value,), ran, joined=False)
        return value, ran

    def graph(self, flow: Graph, given: tuple[Any, ...]) -> None:
        values: list[Any] = []
        ends: list[frozenset[int]] = []
        errors: list[Any] = []  # of what waits for each
        for node, others in flow.waits():
            after = frozenset[int]().union(*(ends[other] for other in others))
            failed = next((other for other in others if has_failed(values[other])), None)
            if failed is not None and not node.always:
                value = error = errors[failed]
                ran = after
            else:
                got = (None if has_failed(values[other]) else values[other] for other in others)
                args = tuple(got) if others else given
                value, ran = self.call(Stage(node.call, errbacks=node.call.errbacks), args, after)
                known = value != PENDING and not node.call.ignored  # has a stored error
                error = value if known else Failed("ChordError")
            values.append(value)
            ends.append(ran)
            errors.append(error)
        waited_for = {other for node, others in flow.waits() if not node.call.immutable for other in others}
        self.found.refused = any(flow.nodes[place].call.ignored for place in waited_for)
        nodes = zip(flow.nodes, values, strict=True)
        self.found.value = [None if node.call.ignored else value for node, value in nodes]

    def tell(self, stages: list[Any], place: int) -> None:
        """Call the errbacks of the stage that would have run next: of each call, if there are several."""
        stage = stages[place]
        if isinstance(stage, Stage):
            for errback in stage.errbacks:
                self.found.told[errback.number] += 1
            return
        for row in stage.rows:
            self.tell(row, 0)
        if place + 1 < len(stages):
            self.tell(stages, place + 1)
