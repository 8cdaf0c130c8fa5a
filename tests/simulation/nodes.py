"""nodes: the nodes of a world: workers and callers.

Comes from:  ``run``.
Goes to:     actors in the world's time.
Thread:      the world's.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any
from unittest import mock

import celery
from celery._state import _tls
from celery.canvas import maybe_signature

from qworker import QWorker, signature, states
from qworker.backends.stores import Stores as AppStores
from qworker.components.ending.settler import Settler
from qworker.components.pool.contract import OnRoom
from qworker.components.request import Key, Request
from qworker.components.status.counters import Counters
from qworker.components.waiting.mediator import WAIT_SECONDS
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.errors import BackendError, BrokerUnavailable, DamagedResult, ResultTimeout
from qworker.results.graph_result import GraphResult
from qworker.results.group_result import GroupResult
from qworker.results.result import result_from_tuple
from qworker.tasks.eager import EagerResult
from qworker.tasks.outcome import Outcome
from qworker.testing import InlinePool, StepWorker
from tests.simulation.case import Order, World
from tests.simulation.program import EXPIRES, STAMPS, Noting, Record, define, routes_of
from tests.simulation.repeats import Execution
from tests.simulation.seams import Process
from tests.simulation.stores import STORES, Stores
from tests.simulation.waiting import Watcher, awaited
from tests.simulation.world import LEASE_SECONDS, Actor, Clock, Killed, Stuck, Time
from tests.support.flows import (
    BACKOFF,
    OUTDATED,
    PENDING,
    Call,
    Failed,
    canvas,
    has_failed,
    parts_of,
    timed,
    without_ids,
)

KEY = "a-key-of-the-simulation-0123456789abcdef"
QUEUES = ["celery", "far"]
IN_TRANSACTIONS = ("commit", "rollback")
"""Called in a transaction on the broker's database, which ends in this way."""
BY_CELERY = ("celery", "celery 1")
"""Called by Celery itself, with message protocol 2 or 1, if messages go through kombu."""
AS_ETA = 10.0
"""An order with a countdown of so many seconds is called with an eta."""
EXPIRING = frozenset({"call", "dicts", "apply many", "await", "commit"})
"""How calls are made that may expire."""
HOW = ("call", "call", "dicts", "twice", "many", "apply many", "await", "eager", *IN_TRANSACTIONS)
AT_ONCE = 0.001
"""Seconds until the next step of an actor that is not idle."""
RUNTIMES = (0.0001, 0.0001, 0.001, 0.03, 0.2)
"""Runtimes reported for a run, by which a worker decides how far to prefetch."""
LONG_RUN = 1.6
"""Seconds of a long run, after which prefetched messages are returned."""
ASK = ("later", "get", "raise", "await", "then", "other", "all", "impatient", "saved", "native", "forget")
IMPATIENT = (0.0001, 0.3, 2.0)
"""Timeouts of a caller that asks again after each, and then without one."""


def is_by_celery(order: Order, world: World) -> bool:
    """Return whether Celery calls *order* in *world*."""
    return order.how in BY_CELERY and STORES[world.stores][0] == "kombu"


def settings_of(world: World, lease: float, key: bool) -> dict[str, Any]:
    """Return the settings of an app of *world*."""
    settings: dict[str, Any] = {
        "task_acks_late": world.acks_late,
        "task_keep_failed": world.keep_failed,
        "worker_prefetch_multiplier": world.prefetch,
        "worker_lease_seconds": lease,
        "worker_ack_flush_seconds": world.flush,
        "worker_async_concurrency": world.async_concurrency,
        "task_track_started": world.track_started,
        "result_expires": world.result_expires,
        "result_extended": world.extended,
        "task_max_deliveries": 50,
    }
    if world.serializer == "pickle" and key:
        settings |= {"task_serializer": "pickle", "accept_content": ["json", "pickle"]}
    if key:
        settings["security_key"] = KEY
    return settings


class Node:
    """A process with an app. key: whether it has the ``security_key``."""

    def __init__(
        self,
        process: Process,
        time: Time,
        stores: Stores,
        world: World,
        record: Record,
        key: bool,
        skew: float = 0.0,
    ) -> None:
        self.name = process.name
        self.time = time
        self.record = record
        self.process = process
        self.world = world
        self.clock = Clock(time, skew)
        self.app = self._app(stores, world, key)

    def _app(self, stores: Stores, world: World, key: bool) -> QWorker:
        app = QWorker(
            "simulated",
            clock=self.clock,
            set_as_current=False,
            task_routes=routes_of(world),
            broker_url="memory://" if world.by_messages else None,
            **settings_of(world, LEASE_SECONDS, key),
            **self.record.settings,
        )
        broker = stores.broker(self.process, self.clock)
        backend = stores.backend(self.process, self.clock, app.conf)
        backend.__dict__["_watcher"] = Watcher(self.time, self.name, backend)
        app.stores = AppStores(app, broker, backend)
        define(app, self.process, self.record, world.base, world.rate)
        if world.middleware:
            app.add_middleware(Noting(self.record))
        self.record.equip(app, self.process)
        return app


class Bell:
    """Replaces the event or condition that a component's thread waits on: set() makes *actor* step."""

    def __init__(self, time: Time, actor: Actor) -> None:
        self._time = time
        self._actor = actor
        self.rest: float | None = None
        """How long the component would have waited in its step."""

    def set(self) -> None:
        self._actor.due = min(self._actor.due, self._time.now)

    notify_all = set

    def wait(self, seconds: float | None) -> None:
        self.rest = seconds

    def clear(self) -> None: ...


class Terminated(Exception):
    """A long run was terminated."""


class Pool(InlinePool):
    """A pool whose children die if a fault requires it. process, clock: the worker's."""

    process: Process
    clock: Clock
    record: Record
    limits: bool
    """Whether tasks have rate limits."""
    bell: Bell
    ready: ReadyQueue
    """The queue that requests come from."""
    ordered: bool
    """Whether it takes what is urgent first: neither a token nor an early ack has to be waited for."""
    until: dict[Key, float]
    """When long runs end."""

    def submit(self, requests: Sequence[Request]) -> list[Request]:
        self.bell.set()
        self.process.given.update(dict.fromkeys((each.id for each in requests), self.process.time.now))
        refused = super().submit(requests)
        sign = -1 if self._app.broker.lowest_first else 1
        urgent = [
            sign * each.leased.priority for each in requests if not each.is_async and each.failing is None
        ]
        lines = self.ready._lines.items()
        left = [sign * priority for (priority, is_async), line in lines if line and not is_async]
        if self.ordered and urgent and left and min(urgent) < max(left):
            self.record.complain(f"{requests} were taken before those of priority {max(left)}")
        if self.limits:
            for each in requests:
                if each.task.rate_limit and each.failing is None and each not in refused:
                    taken = self.record.taken[self.process, each.name]
                    taken.setdefault(each.key, self.clock.monotonic())
        return refused

    def outcome_of(self, request: Request) -> Outcome:
        process = self.process
        process.in_child = True
        headers, time = request.headers, process.time
        process.execution = run = Execution(
            request.id, headers["retries"], request.tag, headers["parent_id"], process.name, time.now,
            len(time.log),
        )  # fmt: skip
        self.record.every.append(run)
        process.runs[request.tag] = run
        if request not in self.started:  # not in its turn, while the worker shuts down
            self.record.begins(request, process.time.now)
        try:
            outcome = super().outcome_of(request)
        except Killed:
            if not process.child_lost:
                raise
        finally:
            process.in_child, process.execution = False, None
        if why := process.child_lost:
            process.child_lost = ""
            request.time_limit = request.time_limit or LONG_RUN  # only a task with one exceeds it
            return Outcome(why, text=f"killed: {why}")
        if not process.alive:
            raise Killed(process.name)
        if request not in self.held:
            raise Terminated(request.id)
        run.ended = True
        if outcome.runtime is not None:
            outcome = outcome._replace(runtime=process.time.random.choice(RUNTIMES))
        return outcome

    def execute(self, request: Request) -> None:
        with suppress(Terminated):  # also while the worker shuts down
            super().execute(request)

    def busy_beyond(self, seconds: float) -> int:
        now = self.process.time.now
        return sum(self.until.get(each.key, 0.0) > now for each in self.started)

    def turn(self, time: Time) -> float | None:
        """Start a run, or end one."""
        now, until = time.now, self.until
        if not self.held:
            return None
        held = [each for each in self.held if until.get(each.key, 0.0) <= now]
        if not held:
            return min(until[each.key] for each in self.held) - now
        request = held[int(time.random.random() * len(held))]
        is_new = request not in self.started
        if is_new:
            self.started.append(request)
            self.record.begins(request, now)
            if not request.is_async and (long := time.long) and time.random.random() < long:
                until[request.key] = now + LONG_RUN
                time.took += LONG_RUN
                return 0.0
        if not is_new or time.random.random() >= 0.3:
            self.execute(request)
        return 0.0 if self.held else None


class Stepping(StepWorker):
    pool_class = Pool

    def _make_pool(self, settler: Settler, on_room: OnRoom) -> InlinePool:
        self.counters = settler._counters = Counters()
        return super()._make_pool(settler, on_room)


class WorkerNode(Node):
    """A worker whose components step in the world's time."""

    queues: Any = QUEUES
    built = False
    """Whether its components may step: other nodes step while it registers."""
    stopping = False
    """Whether it shuts down, or has: other nodes step meanwhile."""

    def __init__(
        self,
        process: Process,
        time: Time,
        stores: Stores,
        world: World,
        *more: Any,
    ) -> None:
        super().__init__(process, time, stores, world, *more)
        name = process.name
        if self.queues is QUEUES and int(name[-1]) % 2:  # not all workers consume all queues
            self.queues = QUEUES[:1]
        process.queues = self.queues if world.stores != "django" else ()
        listener = self._actor("listener", self._listener)
        self.app.broker.consumer.wake = listener.set
        self.worker = Stepping(
            self.app,
            on_demand=True,
            concurrency=world.concurrency,
            hostname=f"{name}@sim",
            queues=self.queues,
            extras=self._extras(),
        )
        self.record.figures.counters.append(self.worker.counters)
        parts = self.worker.parts
        pool = self.worker.pool
        assert isinstance(pool, Pool)
        pool.process, pool.clock, pool.record, pool.until = self.process, self.clock, self.record, {}
        pool.limits = bool(world.rate)
        pool.ready, pool.ordered = parts.ready, world.acks_late and not world.rate
        pool.bell = self._actor("pool", lambda: pool.turn(time))
        pool._on_room = parts.mediator.refill
        parts.mediator.timeout = WAIT_SECONDS
        self._ready = parts.ready._arrived = self._actor("mediator", self._mediator)  # type: ignore[assignment]
        parts.listener._woken = listener  # type: ignore[assignment]
        for part in (parts.schedule, parts.writer, parts.joiner, *self._more_parts()):
            if part is not None:
                part._woken = self._actor(part.name, partial(self._part, part))
        self.built = True

    def _actor(self, name: str, step: Callable[[], float | None]) -> Bell:
        """Add *step* as an actor of the worker; return the bell that wakes it."""
        actor = Actor(self.name, name, self._stepping(step), self.time.now)
        self.time.actors.append(actor)
        return Bell(self.time, actor)

    def _extras(self) -> Sequence[Any]:
        """Return factories for additional components of the worker."""
        return ()

    def _more_parts(self) -> Sequence[Any]:
        """Return the additional components."""
        return ()

    def _part(self, part: Any) -> float | None:
        rest: float | None = part.step(self.clock.monotonic())
        return rest

    def _mediator(self) -> float | None:
        self._ready.rest = 0.0
        self.worker.parts.mediator.step(self.clock.monotonic())
        return self._ready.rest

    def _listener(self) -> float | None:
        listener = self.worker.parts.listener
        listener.wait(0)
        return listener.step(self.clock.monotonic())

    def _stepping(self, step: Callable[[], float | None]) -> Callable[[], float | None]:
        process = self.process

        def turn() -> float | None:
            if not process.alive:
                raise Killed(self.name)
            if not self.built:
                return AT_ONCE
            with process.another_thread():
                rest = step()
            if not process.alive:
                raise Killed(self.name)
            return AT_ONCE if rest is not None and rest <= 0 else rest

        return turn

    def stop(self) -> None:
        """Shut down. Its actors do not step meanwhile."""
        self.stopping = True
        self.time.remove(self.name)
        self.worker.stop()

    @property
    def idle(self) -> bool:
        parts = self.worker.parts
        holdings = getattr(self.app.broker.consumer, "_holdings", None)  # for servers without due times
        return not (
            (holdings is not None and holdings.everything())
            or parts.listener.unsettled
            or len(parts.state.requests)
            or (parts.writer is not None and parts.writer.held())
        )


class Asked:
    """An order that was called: its results, one for each call, and what its callers received."""

    def __init__(self, order: Order, name: str) -> None:
        self.order = order
        self.name = name
        self.results: list[Any] = []
        self.refused: list[BaseException] = []
        self.begun = self.called = False
        self.called_at = self.sent_at = 0.0
        """When its call began, and when it had been sent for the first time."""
        self.forgotten = False
        """Whether the stores may have lost it: it was called just before a crash."""
        self.cut = False
        """Whether its caller died in the call, or with its results."""
        self.revoked = False
        self.stopped: dict[str, float] = {}
        """The ids of its calls whose revocation was stored, and when."""
        self.expires: dict[str, float] = {}
        """The ids of its calls that expire within the run, and when."""
        self.told: list[Any] = []
        self.promised = 0
        """How many callbacks are expected for single calls."""
        self.rolled_back = getattr(order, "how", "") == "rollback"  # a job has none
        self.unanswered: list[BaseException] = []
        """Errors of callers that asked for a result."""

    @cached_property
    def parts(self) -> list[Any]:
        """All parts of its flow."""
        return list(parts_of(self.order.flow))

    @cached_property
    def delays(self) -> float:
        return delays_of(self.order)


def delays_of(order: Order) -> float:
    """Return the sum of all countdowns and retry delays in *order*, in seconds."""
    parts = list(parts_of(order.flow))
    given = (order.options, *(getattr(part, "options", {}) for part in parts))
    does = [getattr(part, "does", "") for part in parts]
    retries = sum(part.retries * part.delay for part in parts if isinstance(part, Call))
    countdowns = sum(options.get("countdown") or 0.0 for options in given)
    again, deaths = does.count("again"), does.count("dies")
    return float(countdowns + OUTDATED * does.count("outdated") + retries + 3 * BACKOFF * again + deaths)


class Caller(Node):
    """A process that calls tasks, waits for them and revokes them."""

    def call(self, asked: Asked) -> None:
        order = asked.order
        eager = order.how == "eager"
        asked.called_at = self.record.now()
        self.record.keep(asked.name, order)
        if order.ask == "forget":
            self.record.dropped.add(asked.name)
        if order.how in BY_CELERY:
            self.record.by_celery.add(asked.name)
        call = canvas(order.flow, self.app.tasks, asked.name)
        if order.stamped:
            call.stamp(**STAMPS)
        if order.how == "dicts":
            call = signature(_through_json(call), app=self.app)
        if order.how == "twice":
            call.freeze()
        before = json.dumps(call, default=str)
        if eager:
            self.app.conf.task_always_eager = True
        for _ in range(2 if order.how == "twice" else 1):
            try:
                with self.within(order.how):
                    if is_by_celery(order, self.world):
                        push = partial(self.by_celery, call, order)
                        asked.results.append(self.process.call("broker", "push", push, (), {}))
                    elif order.how == "many":
                        asked.results += map(_of_graph, self.app.send_many([call]))
                    elif order.how == "apply many" and isinstance(order.flow, Call):
                        many = self.app.tasks[call.task].apply_many
                        asked.results += many([call], **self.timed(order.options))
                    elif order.how == "await":
                        made = call.aapply_async(order.given, **self.timed(order.options))
                        asked.results.append(_of_graph(self.awaited(made)))
                    else:
                        made = call.apply_async(order.given, **self.timed(order.options))
                        asked.results.append(_of_graph(made))
            except Stuck:
                raise  # while the call paused, another caller waited in vain
            except Exception as error:  # noqa: BLE001 - what it means is for the checks
                asked.refused.append(error)
                self.time.note(self.name, "cannot call", asked.name, type(error).__name__)
            asked.sent_at = asked.sent_at or self.record.now()
        if (expires := order.options.get("expires", EXPIRES)) < EXPIRES:
            asked.expires = dict.fromkeys((result.id for result in asked.results), asked.sent_at + expires)
        if eager:
            self.app.conf.task_always_eager = False
        if json.dumps(call, default=str) != before:
            self.record.complain(f"{asked.name}: its signature was changed when it was called")

    def timed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return *options* with a timedelta for a countdown that is an int, and an eta for a long one."""
        countdown = options.get("countdown", 0.0)
        if countdown < AS_ETA:
            return timed(options)
        eta = datetime.fromtimestamp(self.clock.now() + countdown, UTC)
        return {**options, "countdown": None, "eta": eta}

    def by_celery(self, call: Any, order: Order) -> Any:
        """Let Celery call what is written of *call*."""
        theirs = celery.Celery(
            "theirs",
            broker="memory://",
            backend="disabled://",
            set_as_current=False,
            changes={"task_protocol": 1 if order.how == "celery 1" else 2, "task_routes": routes_of(World())},
        )
        theirs.now = lambda: datetime.fromtimestamp(self.clock.now(), UTC)
        written = _through_json(call)
        try:
            with mock.patch.object(_tls, "current_app", theirs):  # which calls the steps of a chain
                made = maybe_signature(written, app=theirs).apply_async(order.given, **order.options)
            return elsewhere(made, self.app)
        finally:
            theirs.close()

    @contextmanager
    def within(self, how: str) -> Iterator[None]:
        """Open a transaction, if *how* is one of IN_TRANSACTIONS."""
        if how not in IN_TRANSACTIONS:
            yield
            return
        sender: Any = self.app.broker.sender
        with closing(sqlite3.connect(sender.path)) as connection, self.app.publishing_in(connection):
            yield
            if how == "commit":
                connection.commit()
                self.time.wake("listener")

    def awaited(self, coroutine: Any) -> Any:
        return awaited(self.time, coroutine, self.process.step)

    def ask(self, asked: Asked, other: Node) -> None:
        """Wait for the results as the order requires, and keep what is received."""
        for result in asked.results:
            try:
                self._ask(asked, result, other)
            except (BackendError, BrokerUnavailable) as error:
                asked.unanswered.append(error)
                self.time.note(self.name, "cannot ask for", asked.name, type(error).__name__)

    def _ask(self, asked: Asked, result: Any, other: Node) -> None:
        if asked.order.ask == "get":
            asked.told.append(value_of(result))
            if not isinstance(result, GroupResult) and not getattr(result, "ignored", False):
                asked.promised += 1
                self._promise(asked, result)  # for an ended call, too
        elif asked.order.ask == "raise":
            asked.told.append(raised(result))
        elif asked.order.ask == "await":
            asked.told.append(self.awaited(_value(result)))
        elif asked.order.ask == "then" and not getattr(result, "ignored", False):
            self._promise(asked, result)
        elif asked.order.ask == "all":
            asked.told.append(all_of(result))
        elif asked.order.ask == "impatient":
            asked.told.append(self._asked_again(asked, result))
        elif asked.order.ask == "native":
            asked.told.append(self._natively(asked, result))
        elif asked.order.ask == "forget":
            asked.told.append(value_of(result))
            self._forget(asked, result)
        elif asked.order.ask == "saved" and not _has_ignored(result):
            asked.told.append(value_of(self._restored(asked, result, other)))
        elif asked.order.ask == "other" and not _has_ignored(result):
            asked.told.append(value_of(elsewhere(result, other.app)))

    def _asked_again(self, asked: Asked, result: Any) -> Any:
        """Return what get() returns in the end, after timeouts."""
        clock = self.app.clock
        for timeout in IMPATIENT:
            since = clock.monotonic()
            try:
                return _shown(result.get(timeout=timeout, propagate=False))
            except ResultTimeout:
                if clock.monotonic() < since + timeout - 1e-6:
                    self.record.complain(f"{asked.name}: get() gave up before its timeout of {timeout} s")
        return all_of(result)

    def _natively(self, asked: Asked, result: Any) -> Any:
        """Return the values of *result*, which iter_native() and completed_count() of a group must match."""
        if not isinstance(result, GroupResult) or _has_ignored(result):
            return value_of(result)
        ended, singles = dict(result.iter_native()), {each.id for each in result._singles()}
        values, count = value_of(result), result.completed_count()
        right = ended.keys() == singles and count == sum(not has_failed(each) for each in values)
        if not (right or self.process.disturbed):
            self.record.complain(f"{asked.name}: {values!r} of {singles}: {ended!r}, {count} completed")
        return values

    def _forget(self, asked: Asked, result: Any) -> None:
        """Forget *result*, which has ended."""
        seen = [self.app.AsyncResult(each.id) for each in calls_of(result) if not each.ignored]
        ended = [each for each in seen if each.ready()]
        result.forget()
        left = [each for each in ended if self.app.AsyncResult(each.id).state != states.PENDING]
        if left and not self.process.disturbed:
            self.record.complain(f"{asked.name}: {left} are known after forget()")

    def _restored(self, asked: Asked, result: Any, other: Node) -> Any:
        """Return the group *result*, saved here, as *other* restores it; any other as *other* has it."""
        if not isinstance(result, GroupResult) or not self.world.joins:
            return elsewhere(result, other.app)
        result.save()
        found = other.app.GroupResult.restore(result.id)
        result.delete()
        left = other.app.GroupResult.restore(result.id)
        if (found is None or left is not None) and not self.process.disturbed:
            self.record.complain(f"{asked.name}: saved as {result!r}, restored as {found!r}, then {left!r}")
        return found or result

    def _promise(self, asked: Asked, result: Any) -> None:
        asked.promised += not isinstance(result, GroupResult)
        result.then(
            lambda found: asked.told.append(value_of(found)),
            lambda error: isinstance(result, GroupResult) or asked.told.append(Failed.by(error)),
        )


def _through_json(call: Any) -> Any:
    """Return *call* as an application reads it that has written it as JSON."""

    def plain(value: Any) -> Any:
        return value.total_seconds() if isinstance(value, timedelta) else list(value)

    return json.loads(json.dumps(call, default=plain))


def ids_of(result: Any) -> Iterator[str]:
    """Yield the ids of the calls that ``result.revoke()`` cancels: those of its workflow, except those known
    to have ended."""
    yield from (each.id for each in calls_of(result) if each._meta is None)


def calls_of(result: Any) -> Iterator[Any]:
    """Yield the results of all calls of the workflow of *result*."""
    waiting, met = [result], set()
    while waiting:
        each = waiting.pop()
        if each is None or isinstance(each, EagerResult) or id(each) in met:
            continue
        met.add(id(each))
        waiting.append(each.parent)
        if isinstance(each, GroupResult):
            waiting += each.results
        else:
            yield each


def _of_graph(result: Any) -> Any:
    """Return *result*; for a graph its GroupResult."""
    return result.members if isinstance(result, GraphResult) else result


def _has_ignored(result: Any) -> bool:
    """Return whether *result* includes a call without a result, which only the caller knows."""
    return any(map(_has_ignored, result.results)) if isinstance(result, GroupResult) else bool(result.ignored)


async def _value(result: Any) -> Any:
    try:
        return without_ids(await result)
    except (BackendError, BrokerUnavailable):
        raise
    except Exception as error:  # noqa: BLE001 - of the task
        return Failed.by(error)


def raised(result: Any) -> Any:
    """Return what get() returns, or a Failed for its exception."""
    try:
        return without_ids(result.get())
    except (BackendError, BrokerUnavailable, Stuck):
        raise
    except Exception as error:  # noqa: BLE001 - of the task
        return Failed.by(error)


def all_of(result: Any) -> Any:
    """Return what a single get() of *result* returns, with a Failed for each error."""
    return _shown(result.get(propagate=False))


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return Failed.by(value) if isinstance(value, BaseException) else without_ids(value)


def elsewhere(result: Any, app: QWorker) -> Any:
    """*result* as another process has it."""
    return result_from_tuple(json.loads(json.dumps(result.as_tuple())), app)


def value_of(result: Any, app: QWorker | None = None) -> Any:
    """What get() says, with a Failed for each error; as *app* sees it now, where one is given. Failed, too,
    for one that cannot be read."""
    if isinstance(result, GroupResult):
        return [value_of(each, app) for each in result.results]
    if getattr(result, "ignored", False):
        return None
    seen = result if app is None or isinstance(result, EagerResult) else app.AsyncResult(result.id)
    try:
        if app is not None and not seen.ready():
            return PENDING
        value = seen.get(propagate=False)
    except DamagedResult as error:
        return Failed.by(error)
    return Failed.by(value) if isinstance(value, BaseException) else without_ids(value)


def is_ready(result: Any, app: QWorker) -> bool:
    """Return whether *result*, its parents and its members have ended, as seen by *app*."""
    waiting = [result]
    while waiting:
        each = waiting.pop()
        if each.parent is not None:
            waiting.append(each.parent)
        if isinstance(each, GroupResult):
            waiting += each.results
        elif isinstance(each, EagerResult):
            continue
        elif not getattr(each, "ignored", False) and value_of(each, app) == PENDING:
            return False
    return True
