"""Plans: what a workflow publishes at once, and which joins it opens first.

Comes from:  ``publishing.workflows``, for every called workflow.
Goes to:     ``publishing.workflows``, which carries out the plan.
Thread:      any; pure: nothing is sent, and the signature is not changed.

Later calls travel in earlier ones. The rest of a chain is in the message of its first call. The body of a
chord is in its join (the shared format), or in the message of each member (Celery's).

A long chain would make large messages, sent again for every step. So in the shared format it is cut into
segments: each segment except the first waits in a join whose only member is the last step of the previous
segment. The data sent and kept grows linearly with the number of steps instead of quadratically.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple

from qworker.canvas.chains import OF_THE_LAST, chain
from qworker.canvas.checking import check
from qworker.canvas.chords import OF_THE_HEADER, chord
from qworker.canvas.graphs import graph
from qworker.canvas.groups import OF_THE_GROUP, group, with_callback
from qworker.canvas.join_body import JoinBody
from qworker.canvas.mapping import chunks
from qworker.canvas.membership import errbacks_of
from qworker.canvas.signatures import Signature, listed, maybe_signature, member
from qworker.canvas.stamping import NAMES, hand_on
from qworker.clock import SYSTEM_CLOCK, to_epoch_in
from qworker.contracts import App
from qworker.message.context import calling_context
from qworker.message.marks import JOINS, KEPT, RUN, mark, new_run, over, run_in, unmarked

HELD_BACK = frozenset(["countdown", "eta"])


def latest(step: Any, begins: float, zone: str) -> float:
    """Return the epoch second when the last call of a frozen *step* is due, if the step *begins* at that
    second and tasks take no time. zone: for an eta without one."""
    if isinstance(step, chain):
        for each in step.tasks:
            begins = latest(each, begins, zone)
        return begins
    if isinstance(step, chord):
        return latest(step.body, latest(step.header, begins, zone), zone)
    if isinstance(step, group):
        return max((latest(each, begins, zone) for each in step.tasks), default=begins)
    if isinstance(step, graph):
        ends = latest_of_nodes(step, begins, zone)
        last = max(ends.values(), default=begins)
        return last if step.gathered is None else latest(step.gathered, last, zone)
    options = step["options"]
    return begins if HELD_BACK.isdisjoint(options) else _due(options, begins, zone)


def latest_of_nodes(step: graph, begins: float, zone: str) -> dict[str, float]:
    """latest() for each node of a graph, by name."""
    ends: dict[str, float] = {}
    for name in step.levels():
        wanted = step.after.get(name) or {}
        ready = max((ends[each] for each in wanted.values()), default=begins)
        ends[name] = latest(step.nodes[name], ready, zone)
    return ends


def _due(options: Mapping[str, Any], begins: float, zone: str) -> float:
    """Return when a call with these *options* is due. Invalid values are ignored: sending the call refuses
    them."""
    eta, countdown = options.get("eta"), options.get("countdown")
    with suppress(TypeError, ValueError, OverflowError):
        if eta is not None:
            return max(begins, to_epoch_in(eta, zone))
        if countdown is not None:
            length = countdown.total_seconds() if isinstance(countdown, timedelta) else float(countdown)
            return begins + max(0.0, length)
    return begins


NOT_OF_THE_BODY = frozenset(["task_id", "parent_id", "link", "link_error", "chain"]) | OF_THE_HEADER
"""Options of a chord that do not apply to its body."""


_LINKS = frozenset(["link", "link_error"])

SEGMENT = 32
"""Steps of a chain in one segment. The value of the last step is kept, even if its task ignores it."""


class PlannedJoin(NamedTuple):
    """A join to be opened: the ids of its *members*, and its *body*, which has assigned ids.

    terms: how many result lifetimes it is kept: one for each step before it.
    """

    id: str
    members: Sequence[str]
    body: JoinBody
    terms: int = 1


class Plan(NamedTuple):
    """What a workflow publishes at once.

    - joins: to be opened before publishing.
    - calls: to be published; their options contain their ids.
    - result: of the workflow; None for an empty chain.
    - sizes: for chords in Celery's format, the number of members.
    - first: the result of the first call.
    - joined: calls whose values a chord or graph waits for, now or later.
    - step: the workflow with assigned ids; None for an empty chain.
    - run: the mark RUN of all resulting calls; "" if there is none.
    - delays: for joins and chords whose members are due later: seconds until the last one is due.
    - kept: how many seconds longer than usual its stored data must be kept.
    - add_to_parent: whether the calling task records it as its child.
    """

    joins: list[PlannedJoin]
    calls: list[Signature]
    result: Any
    sizes: dict[str, int]
    first: Any
    joined: list[Signature]
    step: Signature | None
    run: str
    delays: Mapping[str, float]
    kept: int = 0
    add_to_parent: bool = True


def plan(
    signature: Mapping[str, Any],
    args: Iterable[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    shared: bool,
    segment: int | None = None,
    app: App | None = None,
    run: str | None = None,
) -> Plan:
    """Return the plan for calling *signature*. Assigned ids are kept.

    - args, kwargs, options: of the call, for its first calls; see the kinds of workflow.
    - shared (bool): the format of joins that only qworker's workers know; False is Celery's.
    - segment: steps of a chain in one message; None: all.
    - app: for the results, if the signature has none.
    - run: the mark RUN of the calling task, "" if it has none. None: called by a user; the workflow gets a
      new mark if ids are assigned already, because it may have been called before with the same ids.

    Raises PublishError for anything but a workflow.
    """
    check(signature)
    work = maybe_signature(signature, clone=True)
    work._app = work._app or app
    given = {name: value for name, value in (options or {}).items() if value is not None}
    if "headers" in given:
        given["headers"] = unmarked(given["headers"])
    callbacks, errbacks = given.pop("link", None), given.pop("link_error", None)
    work.add((), None, given)
    add_to_parent = work["options"].pop("add_to_parent", True) is not False
    if isinstance(work, chain) and (names := listed(work["options"].get(NAMES))):
        # A step only passes its stamps to the steps in its own message.
        hand_on(work, names, {**(work["options"].get("stamps") or {}), **work["options"]})
    if isinstance(work, chunks):
        work = work.group().clone(**work["options"])
    for callback in listed(callbacks):
        with_callback(work, maybe_signature(callback))
    for errback in listed(errbacks):
        work.link_error(maybe_signature(errback))
    # The rest of the enclosing chain, last call first.
    rest = work["options"].pop("chain", None)
    if rest:
        for each in rest:
            check(each)
        work = chain.of_steps([work, *(member(each, work._app) for each in reversed(rest))], work._app)
    if isinstance(work, chain) and not work.tasks:
        return Plan([], [], None, {}, None, [], None, "", {})
    headers = work["options"].get("headers")
    if isinstance(headers, Mapping) and RUN in headers:  # its ids were assigned together with its run
        run = run_in(headers)
        own = {name: value for name, value in headers.items() if name != RUN}
        if own:
            work["options"]["headers"] = own
        else:  # empty headers would take the place of those of its calls
            del work["options"]["headers"]
    if run is None:
        run = new_run() if any("task_id" in each["options"] for each in all_in(work)) else ""
    frozen = work.frozen()
    context = calling_context()
    root = work["options"].get("root_id") or (None if context is None else context.root_id)
    now = (SYSTEM_CLOCK if app is None else app.clock).now()
    calls = _Calls(shared, root, segment, run, now, "UTC" if app is None else app.conf.timezone)
    calls.send(frozen.step, tuple(args or ()), kwargs or {}, [], {})
    if run:
        for each in (*calls.calls, *(join.body.call for join in calls.joins)):
            mark(each["options"], {RUN: run})
    joined = list(_joined(frozen.step))
    joins, sizes, delays = calls.joins, calls.sizes, calls.delays
    life = 0.0 if app is None else app.conf.result_expires or 0.0
    kept = math.ceil(max(delays.values(), default=0.0) + life * calls.levels)
    if shared and kept:  # in Celery's format the values are in the join
        for each in joined:
            mark(each["options"], {KEPT: kept})
    return Plan(
        joins,
        calls.calls,
        frozen.last,
        sizes,
        frozen.first,
        joined,
        frozen.step,
        run,
        delays,
        kept,
        add_to_parent,
    )


class _Calls:
    """Collects a plan. Signatures passed in are frozen copies, which it may change."""

    __slots__ = (
        "calls",
        "delays",
        "joins",
        "levels",
        "now",
        "root",
        "run",
        "segment",
        "shared",
        "sizes",
        "zone",
    )

    def __init__(
        self, shared: bool, root: str | None, segment: int | None, run: str, now: float, zone: str
    ) -> None:
        self.shared = shared
        self.run = run
        self.root = root
        self.segment = segment
        self.joins: list[PlannedJoin] = []
        self.calls: list[Signature] = []
        self.sizes: dict[str, int] = {}
        self.now = now
        self.zone = zone
        self.delays: dict[str, float] = {}
        self.levels = 0
        """The longest sequence of a graph's nodes that may run while a value is kept."""

    def send(
        self,
        step: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        rest: list[Any],
        options: Mapping[str, Any],
    ) -> None:
        """Add what calling *step* publishes. rest: the calls after it, last one first."""
        if isinstance(step, chain):
            taken = ((), {}) if step["immutable"] else (args, kwargs)
            steps, length = step.tasks, self.segment or len(step.tasks)
            before = len(self.calls)
            self.send(steps[0], *taken, [*rest, *reversed(steps[1:length])], options)
            if len(steps) > length:
                self._segments(steps, length, self.root or self.calls[before]["options"]["task_id"])
        elif isinstance(step, chord):
            self._chord(step, args, kwargs, rest, options)
        elif isinstance(step, group):
            own = {name: value for name, value in step["options"].items() if name not in OF_THE_GROUP}
            self._members(step, args, kwargs, {**own, **over(options, own)}, None)
        elif isinstance(step, graph):
            self._graph(step, args, kwargs, rest, options)
        else:
            step.add(args, kwargs, options)
            if rest:
                step["options"]["chain"] = [*(step["options"].get("chain") or ()), *rest]
            self.calls.append(step)

    def _join_of(self, identity: str) -> str:
        """Return the id of the join of the group, graph or step *identity*. It is the same when the workflow
        is sent again."""
        return f"{identity}.{self.run}" if self.run else identity

    def _wait_until(self, join: str, due: float) -> None:
        """Record that the last member of *join* is *due* at that epoch second."""
        if due > self.now:
            self.delays[join] = due - self.now

    def _segments(self, steps: list[Any], length: int, root: str) -> None:
        """Open a join for each segment of a chain except the first; a segment has *length* steps."""
        due = self.now
        for start, terms in zip(range(length, len(steps), length), count(2), strict=False):
            for each in steps[start - length : start]:
                due = latest(each, due, self.zone)
            ending = last_call(steps[start - 1])
            assert ending is not None  # a group followed by a call is a chord
            identity = ending["options"]["task_id"]
            ending["options"]["ignore_result"] = False
            join = self._join_of(identity)
            _enter(ending, join, 0)
            body = chain.of_steps(steps[start : start + length], ending._app)
            body["options"] = {"root_id": root, "parent_id": identity}
            self.joins.append(PlannedJoin(join, (identity,), JoinBody(body, one=True), terms))
            self._wait_until(join, due)

    def _graph(
        self,
        step: graph,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        rest: list[Any],
        options: Mapping[str, Any],
    ) -> None:
        identity, nodes, levels = step["options"]["task_id"], step.nodes, step.levels()
        taken = ((), {}) if step["immutable"] else (args, kwargs)
        given = {**step["options"], **over(options, step["options"])}
        given = {name: value for name, value in given.items() if name not in OF_THE_GROUP}
        before = len(self.calls)
        for name, node in nodes.items():
            if name not in step.after:
                self.send(node, *taken, [], given)
        given = {name: value for name, value in given.items() if name not in OF_THE_HEADER}
        given.setdefault("root_id", self.root or self.calls[before]["options"]["task_id"])
        ends = latest_of_nodes(step, self.now, self.zone)
        for number, name in enumerate(nodes):
            if (wanted := step.after.get(name)) is not None:
                nodes[name].add((), None, given)
                names = list(wanted) if not nodes[name]["immutable"] else None
                always = name in step.always
                join = self._join_of(f"{identity}-{number}")
                self._wait(
                    join, nodes[name], [nodes[each] for each in wanted.values()], names, always, levels[name]
                )
                self._wait_until(join, max((ends[each] for each in wanted.values()), default=self.now))
        if (gathered := step.gathered) is not None:
            gathered.add((), None, {"root_id": given["root_id"]})
            if rest:
                gathered["options"]["chain"] = [*(gathered["options"].get("chain") or ()), *rest]
            join = self._join_of(identity)
            self._wait(join, gathered, list(nodes.values()), list(nodes), False, max(levels.values()) + 1)
            self._wait_until(join, max(ends.values()))

    def _wait(
        self, join: str, call: Signature, steps: list[Any], names: list[str] | None, always: bool, level: int
    ) -> None:
        """Open a join for the node *call* of a graph, which waits for *steps*. names: the arguments for their
        values; None: values are not passed. level: the length of the longest path before it."""
        members: list[str] = []
        for number, step in enumerate(steps):
            ending = last_call(step)
            assert ending is not None  # a group in a graph is a chord
            _enter(ending, join, number)
            members.append(ending["options"]["task_id"])
        if len(steps) > 1:
            self.levels = max(self.levels, level - 1)
        body = JoinBody(call, [None] * len(steps) if names is None else names, always=always)
        self.joins.append(PlannedJoin(join, members, body, level))

    def _chord(
        self,
        step: chord,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        rest: list[Any],
        options: Mapping[str, Any],
    ) -> None:
        own, body, header = {**step["options"], **over(options, step["options"])}, step.body, step.header
        settled = NOT_OF_THE_BODY | (OF_THE_LAST & body["options"].keys())
        given = {name: value for name, value in own.items() if name not in settled}
        body.add((), None, given)
        if body["subtask_type"] is None:
            body["options"].setdefault("group_id", header["options"]["task_id"])  # as in Celery
        if not header.tasks:
            self.send(body, ([],), {}, rest, {})
            return
        if rest:
            body["options"]["chain"] = [*(body["options"].get("chain") or ()), *rest]
        if self.shared:
            for each in header.tasks:
                if isinstance(each, chord):
                    _leave_errbacks(each.body, body)
        beside = {**header["options"], **over(own, header["options"])}
        beside = {name: value for name, value in beside.items() if name not in OF_THE_GROUP}
        before = len(self.calls)
        kwargs = {**step["kwargs"]["kwargs"], **kwargs}
        self._members(header, (*args, *step["args"]), kwargs, beside, body)
        root = self.root or self.calls[before]["options"]["task_id"]
        body["options"].setdefault("root_id", root)

    def _members(
        self,
        members: group,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        body: Signature | None,
    ) -> None:
        """Add the calls of a group, or of the header of a chord if there is a *body*."""
        identity, tasks = members["options"]["task_id"], members.tasks
        name = self._join_of(identity)
        if body is not None and self.run and not self.shared:
            mark(body["options"], {RUN: self.run})
        # The same dict for all, so that changes in the body, such as its id, reach each of them.
        join = None if body is None else {**body}
        ids: list[str] = []
        for number, each in enumerate(tasks):
            last = last_call(each)
            if last is not None:
                last["options"].setdefault("group_id", identity)
                last["options"]["group_index"] = number
            self.send(each, args, kwargs, [], options)
            if join is None or last is None:
                continue
            if not self.shared:
                last["options"]["chord"] = join
            else:
                _enter(last, name, number)
                ids.append(last["options"]["task_id"])
        if body is not None:
            due = max((latest(each, self.now, self.zone) for each in tasks), default=self.now)
            self._wait_until(name if self.shared else identity, due)
            if self.shared:
                self.joins.append(PlannedJoin(name, ids, JoinBody(body)))
            else:
                self.sizes[identity] = len(tasks)


def _leave_errbacks(inner: Signature, outer: Signature) -> None:
    """Remove errbacks from *inner*, the body of a chord in a header, that *outer* has too: ``link_error()``
    adds an errback to both, and when inner fails, outer fails too. (Not in Celery's format, which Celery's
    workers read.)"""
    of_outer, own = errbacks_of(outer), listed(inner["options"].get("link_error"))
    if left := [each for each in own if each not in of_outer]:
        inner["options"]["link_error"] = left
    else:
        inner["options"].pop("link_error", None)


def _enter(call: Signature, join: str, number: int) -> None:
    """Make *call* the member *number* of *join*."""
    members = (call["options"].get("headers") or {}).get(JOINS)
    others = members if isinstance(members, list | tuple) else ()
    # Tuples: a chord has one for each member, and they take less memory than lists.
    mark(call["options"], {JOINS: (*others, (join, number))})


def last_call(step: Any) -> Signature | None:
    """Return the last call of a frozen *step*, whose value is that of the step; None for a group."""
    while type(step) is not Signature:
        if isinstance(step, chain):
            step = step.tasks[-1]
        elif isinstance(step, chord):
            step = step.body
        elif isinstance(step, graph):
            step = step.gathered
        else:
            return None if isinstance(step, group) else step
    return step


def all_in(step: Any) -> Iterator[Signature]:
    """Yield *step* and everything nested in it or linked to it."""
    waiting = [step]
    while waiting:
        each = maybe_signature(waiting.pop())
        if each is None:
            continue
        yield each
        if isinstance(each, chain | group):
            waiting += each.tasks
        elif isinstance(each, chord):
            waiting += (each.header, each.body)
        elif isinstance(each, graph):
            waiting += (*each.nodes.values(), each.gathered)
        for name in _LINKS & each["options"].keys():
            waiting += listed(each["options"][name])


def _joined(step: Any) -> Iterator[Signature]:
    """Yield the calls in a frozen *step* whose values a chord or graph waits for."""
    waiting = [step]
    while waiting:
        each = waiting.pop()
        if isinstance(each, chain | group):
            waiting += each.tasks
        elif isinstance(each, chord):
            members = each.header.tasks
            waiting += (*members, each.body)
            yield from filter(None, map(last_call, members))
        elif isinstance(each, graph):
            waiting += each.nodes.values()
            yield from filter(None, (last_call(each.nodes[name]) for name in each.wanted()))
