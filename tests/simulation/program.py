"""program: the tasks that the workers of a world run, and the record of what ran.

Comes from:  ``nodes``, which define them in each app.
Goes to:     the Record, which ``checks`` compares to the oracle.
Thread:      the world's.

A task looks up by its number what to do. The record outlives all processes.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from qworker import QWorker, Task, states
from qworker.backends.joins import Join
from qworker.canvas import membership
from qworker.components.request import Request
from qworker.errors import (
    BackendError,
    BrokerUnavailable,
    Ignore,
    NotInChord,
    NotSupported,
    QWorkerError,
    Reject,
    SoftTimeLimitExceeded,
)
from qworker.message.marks import JOINS
from qworker.middleware import Middleware
from qworker.tasks.outcome import LOST, TIME_LIMIT
from qworker.transports.lease import Envelope
from tests.simulation.case import Order, World
from tests.simulation.figures import Figures
from tests.simulation.repeats import Body, Execution, call_in, first_of
from tests.simulation.seams import Process
from tests.support.flows import ARGS, BACKOFF, OWN, RUNS, VALUES, Call, Group, canvas, parts_of, shown

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
_NAME = re.compile(r'"(f[0-9]+)\\*"')

Moment = tuple[float, int]
"""Seconds, and the place among others at that time."""


class Again(Exception):
    """Raised by tasks to be retried."""


class Stays(Again):
    """Excepted from that."""


class Expected(Exception):
    """Raised by tasks that list it in ``throws``."""


class Flow:
    """The flow of a called *order*: its parts by number, and the numbers of calls that are links, of members
    of groups, of calls with the stamp, and of those called by tasks with their own headers. eager: it runs in
    its caller. keeps: whether each call leaves a result in the store. options: of the order. since: when it
    was called, by ``Record.now``."""

    def __init__(self, order: Order, since: float) -> None:
        self.since = since
        every = list(parts_of(order.flow))
        self.parts = {part.number: part for part in every if hasattr(part, "number")}
        links = (link for part in every for link in getattr(part, "links", ()))
        self.linked = {link.number for link in links if isinstance(link, Call)}
        self.eager = order.how == "eager"
        self.options = order.options
        self.keeps = not self.eager and not any(getattr(part, "ignored", False) for part in every)
        made = (getattr(part, name, None) for part in every for name in ("calls", "adds"))
        inner = [each for flow in made if flow is not None for each in parts_of(flow)]
        without = {getattr(each, "number", -1) for each in inner}  # calls made by tasks have no stamp
        self.stamped = self.parts.keys() - without if order.stamped else set()
        given = [each for part in every if getattr(part, "hands_on", False) for each in parts_of(part.calls)]
        groups = [part.members for part in every if isinstance(part, Group) and len(part.members) > 1]
        self.members = {getattr(each, "number", -1) for members in groups for each in members}
        self.handed = {getattr(each, "number", -1) for each in given}


class Record:
    """What ran, by order name. runs: ``(number, start, end)`` of each. told: calls of each errback."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = time.monotonic
        self.ahead: Callable[[], float] = lambda: 1.0
        """The seconds by which the clock of a process may be ahead of another."""
        self.tick = itertools.count()
        self.runs: dict[str, list[tuple[int, Moment, Moment]]] = defaultdict(list)
        self.told: dict[str, Counter[int]] = defaultdict(Counter)
        self.executions: dict[str, list[tuple[int, Execution]]] = defaultdict(list)
        """Which executions by workers the runs belong to, with their numbers."""
        self.tellings: dict[str, list[tuple[int, Execution]]] = defaultdict(list)
        """The same for calls of errbacks and hooks."""
        self.every: list[Execution] = []
        """All executions, also of tasks that belong to no order."""
        self.bodies: set[Body] = set()
        self.begun: dict[str, list[float]] = defaultdict(list)
        """When a worker began to run each task, by its id."""
        self.taken: dict[tuple[Process, str], dict[Any, float]] = defaultdict(dict)
        """When each worker's pool first took each limited request, by task name, on its clock."""
        self.put_off: dict[tuple[str, int, int], float] = {}
        """When an attempt may begin, by task id, number and attempt."""
        self.early: list[tuple[str, float]] = []
        """Attempts that began too early, and by how many seconds."""
        self.hooked: Counter[tuple[str, str, int]] = Counter()
        """Calls of ``on_retry()`` and ``before_start()``, by name, order and number."""
        self.post_executed: dict[str, Counter[int]] = defaultdict(Counter)
        """How often ``post_execute`` was sent, by job of Django and number."""
        self.starts: set[str] = set()
        """The ids of tasks of which the state STARTED was stored."""
        self.without_expiry: set[str] = set()
        """The ids of failed tasks that an operator has sent again, which removes ``expires``."""
        self.settings: dict[str, Any] = {}
        """Additional settings of all apps."""
        self.terminated: set[str] = set()
        """The orders that were revoked with ``terminate``: a child may be ended after it has recorded the end
        of its task, which is revoked then, too."""
        self.joins: dict[str, str] = {}
        """The orders of joins, by their ids."""
        self.opened: dict[str, float] = {}
        """When joins were opened last."""
        self.joined: set[str] = set()
        """The joins of which a member was sent, or may have been."""
        self._flows: dict[str, Flow] = {}
        self.called: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        """The results of calls made by tasks, by the caller's number."""
        self.roots: dict[str, str] = {}
        """The roots of tasks that ran, by their ids."""
        self.kin: dict[str, dict[str, Any]] = {}
        """The group and the parent in their results, by their names there; {} if others replace them."""
        self.parents: dict[str, str] = {}
        """The ids of tasks that keep a result, by the ids of the results of their calls."""
        self.trails: dict[str, set[bool]] = defaultdict(set)
        """The option ``trail`` of tasks that ran, by their ids. A task and its replacement share an id."""
        self.dropped: set[str] = set()
        """Orders whose callers forget their results."""
        self.keeps_all: bool = True
        """Whether each call leaves a result, and keeps it."""
        self.unseen: list[str] = []
        """Ends that were reported before they were stored."""
        self.requeued: set[Any] = set()
        """Messages that their tasks have requeued."""
        self.ended: set[Any] = set()
        """Deliveries that a process has run to the end."""
        self.again: list[str] = []
        """Ended deliveries that the same process ran again."""
        self.slots: dict[str, list[str]] = defaultdict(list)
        """Due times passed to tasks of schedules."""
        self.jobs: dict[str, Any] = {}
        self.wrong: list[str] = []
        """Complaints of tasks about what they saw."""
        self.unsigned = {"stranger"}
        """Orders called without the key, by a stranger or before it was set."""
        self._counted: dict[str, tuple[int, Counter[int]]] = {}
        """What ran() has returned, and of how many runs."""
        self.by_celery: set[str] = set()
        """Orders that Celery calls, without our middleware."""
        self.headers: dict[tuple[str | None, int], dict[str, Any]] = {}
        """The headers of the last attempt, by task id and number."""
        self.figures = Figures()
        self.equip: Callable[[QWorker, Process], None] = lambda app, process: None
        """Called with each app to add to it."""

    def ran(self, name: str) -> Counter[int]:
        """Return how often each call of the order *name* ran, by number. Not to be changed."""
        runs = self.runs[name]
        before, counted = self._counted.get(name, (-1, Counter()))
        if before != len(runs):
            counted = Counter([number for number, *_ in runs])
            self._counted[name] = len(runs), counted
        return counted

    def ran_at(self, name: str, id: str) -> list[float]:
        """Return when the function of the call *id* of the order *name* was run."""
        return [run.at for _, run in self.executions[name] if run.id == id]

    def begins(self, request: Request, now: float) -> None:
        """Record that a worker begins to run *request*; one that only fails does not run."""
        if request.failing is None:
            self.begun[request.id].append(now)

    def may_lack_expiry(self, id: str) -> bool:
        """Return whether the call may have been sent again without its expiry."""
        return id in self.without_expiry

    def opens(self, joins: Sequence[Join], by: str) -> None:
        """Record to which orders *joins* belong.

        by: "worker", or another role, of which sends() may not see all messages: some are in transactions.
        """
        if by != "worker":
            self.joined.update(join.id for join in joins)
        for join in joins:
            self.opened[join.id] = self.now()
            self.bodies.update(first_of(join.body))
            if owner := self._owner(join):
                self.joins[join.id] = owner

    def _owner(self, join: Join) -> str | None:
        """Return the order of *join*: its body names it, or one of its tasks or joins."""
        text = join.body.decode(errors="replace")
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            text = json.dumps(call_in(join.body), default=str)
        if named := _NAME.search(text):
            return named[1]
        known = {run.id: name for name, runs in self.executions.items() for _, run in runs} | self.joins
        return next((known[id] for id in _ID.findall(text) if id in known), None)

    def sends(self, envelopes: Sequence[Envelope]) -> None:
        """Record of which joins the messages *envelopes* are members."""
        for each in envelopes:
            if JOINS in each.headers:
                named = membership.parts_of(json.loads(each.headers), states.SUCCESS)
                self.joined.update(part.join for part in named)

    def keep(self, name: str, order: Order) -> None:
        """Store the flow of the *order* with the *name* for its tasks; see Flow."""
        self._flows[name] = kept = Flow(order, self.now())
        self.keeps_all = self.keeps_all and kept.keeps

    def flow(self, name: str) -> Flow | None:
        """Return the flow of the order *name*; None if there is none."""
        return self._flows.get(name)

    def of(self, name: str) -> Flow:
        flow = self.flow(name)
        assert flow is not None, name
        return flow

    def keeps(self, flow: str) -> bool:
        """Return whether each call of *flow* leaves a result, and keeps it."""
        return self.keeps_all and flow not in self.dropped

    def miss(self, text: str) -> None:
        self.unseen.append(text)

    @contextmanager
    def running(
        self, flow: str, number: int, run: Execution | None = None, delivery: Any = None
    ) -> Iterator[None]:
        """Record a run. run: None in a caller. delivery: identifies the message, the attempt and the
        process."""
        start = self.now(), next(self.tick)
        if run is not None:
            self.executions[flow].append((number, run))
        if delivery in self.ended:
            self.again.append(f"{flow}: call {number} ran again where it had ended")
        try:
            yield
        finally:
            self.runs[flow].append((number, start, (self.now(), next(self.tick))))
        if delivery is not None:
            self.ended.add(delivery)

    def tell(self, flow: str, number: int, run: Execution | None = None) -> None:
        """Record the call of an errback or a hook. run: as in running()."""
        self.told[flow][number] += 1
        if run is not None:
            self.tellings[flow].append((number, run))

    def call(self, flow: str, number: int, made: Any) -> None:
        self.called[flow].append((number, made))

    def is_first(self, request: Any) -> bool:
        """Return whether the message of *request* was never requeued. Those of Celery get another tag."""
        info = request.delivery_info
        by_celery = request.kwargs["flow"] in self.by_celery
        again = by_celery and request.id in self.requeued and info["redelivered"]
        new = not (again or (request.id, info["delivery_tag"]) in self.requeued)
        self.requeued |= {request.id, (request.id, info["delivery_tag"])}
        return new

    def complain(self, text: str) -> None:
        self.wrong.append(text)


class Overriding(Task):
    """A base class as in many projects."""

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        options["headers"] = {"tenant": "one"}
        return super().apply_async(args, kwargs, *more, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class OverridingAsync(Overriding):
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self.run(*args, **kwargs)


class Merging(Task):
    """A base class that adds to the call's headers."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "tenant": "one"}
        return super().apply_async(args, kwargs, **options)


class Hooked(Task):
    """A base class that reads its state in the hooks for its end."""

    look: Callable[[Any, str | None, str, Any], None]
    hooked: Counter[tuple[str, str, int]]

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        self.hooked["before_start", kwargs.get("flow", ""), kwargs.get("number", -1)] += 1

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.hooked["on_retry", kwargs["flow"], kwargs["number"]] += 1

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        self.look(self, task_id, "SUCCESS", kwargs.get("flow", args))

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.look(self, task_id, "FAILURE", kwargs.get("flow", args))

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        self.look(self, task_id, status, kwargs.get("flow", args))


BASES: dict[str, tuple[Any, Any]] = {
    "plain": (None, None),
    "overriding": (Overriding, OverridingAsync),
    "merging": (Merging, Merging),
    "hooked": (Hooked, Hooked),
}
"""Base classes for functions, and for coroutines."""


class Noting(Middleware):
    """Middleware that adds a header to each message, and checks it in each run."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def publish(self, call_next: Any, message: Any) -> Any:
        return call_next(replace(message, headers={**message.headers, "noted": 1}))

    def execute(self, call_next: Any, context: Any) -> Any:
        flow = (context.kwargs or {}).get("flow")
        known = self.record.flow(flow) is not None and flow not in self.record.by_celery
        if known and not context.is_eager and (context.headers or {}).get("noted") != 1:
            self.record.complain(f"{context.task} has not the header of the middleware")
        return call_next(context)


SHOWN = {"h": 1, "tenant": "one", "own": 2, "noted": 1, "by": "me"}
"""Headers that tasks may have."""
CARRIED: dict[str, Callable[[Any], Any]] = {
    "time_limit": lambda request: (request.timelimit or (None, None))[0],
    "soft_time_limit": lambda request: (request.timelimit or (None, None))[1],
    "shadow": lambda request: request.shadow,
    "priority": lambda request: request.delivery_info["priority"] or None,
    "compression": lambda request: request.compression and request.compression.removeprefix("application/x-"),
    "argsrepr": lambda request: request.argsrepr if request.argsrepr == "some" else None,
    "kwargsrepr": lambda request: request.kwargsrepr if request.kwargsrepr == "some" else None,
    "expires": lambda request: request.expires and EXPIRES,
}
"""How a request shows the options of its call."""
STAMPS = {"by": "me"}
EXPIRES = 3000.0
"""After how many seconds calls in flows expire that do: never in a run. A single call may expire sooner."""
THEIRS = "somebody else's"
"""A result that no call of a flow returns."""
RAISED: dict[str, BaseException] = {
    "ignore": Ignore(),
    "reject": Reject("never", requeue=False),
    "expected": Expected(*ARGS["Expected"]),
    "several": ExceptionGroup(
        "several", [ValueError(7), ExceptionGroup("within", [KeyError(*ARGS["KeyError"])])]
    ),
    "again": Again(*ARGS["Again"]),
    "stays": Stays(),
    "soft": SoftTimeLimitExceeded(),
}


def _carried(options: dict[str, Any]) -> dict[str, Any]:
    """Return what CARRIED shows of the request of a call with *options*."""
    return {name: options.get(name) or None for name in CARRIED} | {
        "expires": options.get("expires") and EXPIRES
    }


def routes_of(world: World) -> dict[str, dict[str, Any]]:
    """Return ``task_routes`` of *world*."""
    given = {"expires": world.route_expires, "priority": world.route_priority}
    of_call = {name: value for name, value in given.items() if value}
    return {"acall": {"queue": "far", **of_call}, **({"call": of_call} if of_call else {})}


def _kwargs_in_result(kwargs: dict[str, Any]) -> Any:
    """Return how an extended result shows *kwargs*: as text if it cannot contain them."""
    return repr(kwargs) if isinstance(kwargs.get("fails"), frozenset) else kwargs


def define(app: QWorker, process: Process, record: Record, base: str, rate: float = 0.0) -> None:
    """Define the tasks in *app*, the app of *process*. rate: runs per second of a flow's calls; 0: any."""
    kind, of_coroutines = BASES[base]
    (routes,) = app.conf.task_routes or [{}]

    def look_back(task: Any, task_id: str | None, state: str, flow: Any) -> None:
        """Record it if *state* is not stored when a task's hook is called for it. flow: or the arguments that
        include it."""
        process.step()
        request = task.request if task is not None else None
        if request is not None and (request.is_eager or request.ignore_result):
            return
        if app.stores.sends_results:  # only its caller sees it
            return
        try:
            meta = app.backend.get(str(task_id))
        except QWorkerError:
            return
        if meta is None or meta["status"] != state:
            now = meta and meta["status"]
            record.miss(f"{task_id} of {flow!r} was told to be {state}, and it is {now}")

    if kind is Hooked:  # separate for each process
        kind = of_coroutines = type(
            "Hooked", (Hooked,), {"look": staticmethod(look_back), "hooked": record.hooked}
        )

    def refuse(flow: str, number: int) -> None:
        """Complain about calls without the key, if there is a key."""
        if flow in record.unsigned and app.signer is not None:
            record.complain(f"{flow}: call {number} ran, or was told, and is not signed")

    def compare(request: Any, known: Flow, flow: str, part: Any) -> None:
        """Complain if *request* has not what its call *part* was given."""
        found = {name: shows(request) for name, shows in CARRIED.items()}
        if request.retries or (part.retries and not found["compression"]):
            # As in Celery, a retry has that of the task. It may be sent again as the first attempt.
            found["compression"] = part.options.get("compression")
        of_part = {**routes.get(request.task, {}), **part.options}
        every = of_part, {**of_part, **known.options}  # those of the order go to the first
        if record.may_lack_expiry(request.id):
            every += tuple({**options, "expires": None} for options in every)  # or it was called again, too
        if found not in map(_carried, every):
            record.complain(f"{flow}: {part.number} of {part.options} is shown as {found}")
        if request.expires:
            left = datetime.fromisoformat(request.expires).timestamp() - app.clock.now()
            passed = record.now() - known.since
            error = record.ahead() + 0.001  # text is rounded
            given = sorted({options["expires"] for options in every if options.get("expires")})
            if not any(each - passed - error <= left <= each + error for each in given):
                record.complain(
                    f"{flow}: {part.number} expires in {left:.3f} s, {passed:.3f} s after {given}"
                )
        seen = (request.headers or {}).keys()
        replaced = base == "overriding" or part.number in known.handed
        replaced |= not seen.isdisjoint(known.options.get("headers", ()))
        if not replaced and (lost := part.options.get("headers", {}).keys() - seen):
            record.complain(f"{flow}: {part.number} lacks the headers {lost}")
        if part.number in known.members and request.group is None:
            record.complain(f"{flow}: {part.number} has no group")
        root = record.roots[request.id] = request.root_id
        of_parent = record.roots.get(request.parent_id)
        if of_parent is not None and root in {request.id, request.parent_id} - {of_parent}:
            record.complain(f"{flow}: {part.number} has the root {root}, and its parent {of_parent}")
        own = {"group_id": request.group}
        if app.conf.result_extended:
            own["name"] = request.task
            if not part.anew:  # an earlier attempt, delivered again, has others
                own["kwargs"] = _kwargs_in_result(request.kwargs)
        if request.parent_id:  # the next attempt may have one
            own["parent_id"] = request.parent_id
        replaced = part.instead is not None or not record.kin.get(request.id, own)
        record.kin[request.id] = {} if replaced else own

    def run(task: Any, given: Any, flow: str, number: int, fails: bool, retries: int) -> Any:
        refuse(flow, number)
        process.time.note(process.name, "runs", flow, number)
        request = task.request
        tag = (request.delivery_info or {}).get("delivery_tag")
        delivery = None if request.is_eager else (process, tag, request.id, request.retries)
        with record.running(flow, number, process.execution, delivery):
            known = record.of(flow)
            part = known.parts[number]
            record.trails[request.id].add(task.trail)
            seen = request.headers or {}
            if strange := {name for name in seen if seen[name] != SHOWN.get(name)}:
                record.complain(f"{flow}: {number} has the headers {strange} of {seen}")
            queue = None if request.is_eager else request.delivery_info["routing_key"]
            home = routes.get(task.name, {}).get("queue", app.conf.task_default_queue)
            if queue not in (None, part.options.get("queue", home)):
                record.complain(f"{flow}: {number} came from the queue {queue}")
            if queue is not None and process.queues and queue not in process.queues:
                record.complain(f"{flow}: call {number} ran in a worker that does not consume {queue}")
            if request.retries and base != "overriding":
                missing = record.headers.get((request.id, number), {}).keys() - seen.keys()
                if missing:
                    record.complain(f"{flow}: the next attempt of {number} has lost the headers {missing}")
            if not request.is_eager and flow not in record.by_celery:
                compare(request, known, flow, part)
            record.headers[request.id, number] = dict(seen)
            due = record.put_off.get((request.id, number, request.retries), 0.0)
            if due > (now := app.clock.now()):
                record.early.append((f"{flow}: attempt {request.retries} of {number}", due - now))
            if THEIRS in repr(given):
                record.complain(f"{flow}: {number} is given what a stranger has chosen")
            if number in known.linked:
                look(flow, request.parent_id, states.SUCCESS)
            if request.stamps != (STAMPS if number in known.stamped else {}):
                record.complain(f"{flow}: {number} has the stamps {request.stamps}")
            if request.retries < retries:
                put_off(request, number, part.delay)
                args = ("anew",) if part.anew == "args" else None
                kwargs = {**request.kwargs, "x": "anew"} if part.anew == "kwargs" else None
                raise task.retry(args, kwargs, countdown=part.delay, max_retries=retries)
            if part.calls is not None:
                options = {"headers": dict(seen)} if part.hands_on else {}
                with until_sent(task):
                    made = canvas(part.calls, app.tasks, flow).apply_async(("i",), **options)
                record.call(flow, number, made)
                if not request.is_eager and not request.ignore_result and part.instead is None:
                    record.parents[made.id] = request.id
            if part.adds is not None:
                with until_sent(task), suppress(NotInChord, NotSupported):
                    added = task.add_to_chord(canvas(part.adds, app.tasks, flow), lazy=part.lazy)
                    if part.lazy:
                        added.apply_async()
            if fails:
                raise ValueError(number)
            if part.instead is None:
                return ending(part.does, task, given, number) if part.does else shown(number, given)
        return task.replace(canvas(part.instead, app.tasks, flow))

    @contextmanager
    def until_sent(task: Any) -> Iterator[None]:
        """Requeue *task* while it cannot call others."""
        try:
            yield
        except (BackendError, BrokerUnavailable) as away:
            if not task.acks_late:  # the message is already acknowledged
                raise
            raise Reject(str(away), requeue=True) from away

    def look(flow: str, id: Any, state: str) -> None:
        """Check that a task called because the task *id* has ended sees that end."""
        if record.keeps(flow) and not process.disturbed:
            try:
                seen = app.AsyncResult(id).state
            except QWorkerError:  # the store is unavailable
                return
            if seen != state and not (seen == states.REVOKED and flow in record.terminated):
                record.complain(f"{flow}: who hears of the end of {id} finds it {seen}")

    def put_off(request: Any, number: int, seconds: float) -> None:
        """Record when the next attempt of *request* may begin, which another message may ask for, too."""
        if not request.is_eager:
            attempt, due = (request.id, number, request.retries + 1), app.clock.now() + seconds
            record.put_off[attempt] = min(due, record.put_off.get(attempt, due))

    def progress(task: Any, number: int) -> None:
        """Store a state, and check that it is seen until the end of the task is stored."""
        flow, id, meta = task.request.kwargs["flow"], task.request.id, {"done": number}
        try:
            stored = task.update_state(state="PROGRESS", meta=meta)
            info, state = (seen := app.AsyncResult(id)).info, seen.state
        except QWorkerError:  # the store is unavailable
            return
        once = len(record.begun[id]) == 1  # else the end of another run may be stored
        right = stored and (state, info) == ("PROGRESS", meta)
        if record.keeps(flow) and not process.disturbed and once and not right:
            record.complain(f"{flow}: {number} has stored its progress: {stored}, and sees {state}, {info!r}")

    def ending(does: str, task: Any, given: Any, number: int) -> Any:
        """End the call *number* as *does* requires."""
        if does == "result":
            with until_sent(task):
                return app.tasks["nothing"].delay()
        if does in VALUES:
            return VALUES[does]
        if does == "hard":
            process.end_child(TIME_LIMIT)
        if does in ("dies", "lost"):
            process.end_child(LOST)
        if does == "unacked":
            raise ValueError(number)
        if does == "progress":
            progress(task, number)
            return shown(number, given)
        if does == "untrailed":
            return shown(number, given)
        if does == "again":
            put_off(task.request, number, BACKOFF * 2**task.request.retries)
        if does == "requeue":
            # After an early ack nothing comes back; another message with the id may come from the caller.
            if not app.conf.task_acks_late or record.is_first(task.request):
                raise Reject("not yet", requeue=True)
            return shown(number, given)
        raise RAISED[does].with_traceback(None)

    options: dict[str, Any] = {
        "rate_limit": f"{rate}/s" if rate else None,
        "bind": True, "autoretry_for": (Again,), "dont_autoretry_for": (Stays,), "retry_backoff": BACKOFF,
        "retry_jitter": False, "max_retries": RUNS["again"] - 1, "throws": (Expected,),
    }  # fmt: skip

    def call(this: Any, *given: Any, flow: str, number: int, fails: bool, retries: int, **named: Any) -> Any:
        return run(this, (*given, *(named[name] for name in sorted(named))), flow, number, fails, retries)

    app.task(base=kind, name="call", **options)(call)
    for name, own in OWN.items():
        app.task(base=kind, name=name, **own, **options)(call)

    @app.task(base=of_coroutines, name="acall", **options)
    async def acall(
        this: Any, *given: Any, flow: str, number: int, fails: bool, retries: int, **named: Any
    ) -> Any:
        return run(this, (*given, *(named[name] for name in sorted(named))), flow, number, fails, retries)

    @app.task(base=kind, name="nothing")
    def nothing() -> None:
        """Do nothing."""

    @app.task(base=kind, name="item")
    def item(of: Any) -> str:
        return star(*of)

    @app.task(base=kind, name="star")
    def star(flow: str, number: int, place: int, fails: bool) -> str:
        refuse(flow, number)
        with record.running(flow, number, process.execution):
            if fails:
                raise ValueError(number)
            return shown(number, [place])

    @app.task(base=kind, name="told")
    def told(failed: str, *, flow: str, number: int) -> None:
        refuse(flow, number)
        look(flow, failed, states.FAILURE)
        record.tell(flow, number, process.execution)

    @app.task(base=kind, name="told_now")
    def told_now(request: Any, error: Any, traceback: Any, *, flow: str, number: int) -> None:
        process.step()
        refuse(flow, number)
        look(flow, request.id, states.FAILURE)
        record.tell(flow, number, process.execution)
