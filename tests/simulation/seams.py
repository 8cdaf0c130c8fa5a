"""seams: counts calls of stores, and lets them fail.

Comes from:  ``stores``, which makes a broker and a result store for each node; the faults of the case.
Goes to:     the store, or an error.
Thread:      the world's.

Only the outermost call of a store counts, not calls that the store makes of itself. A call of another store,
such as the sender's by ``joins.finish()``, counts separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from qworker.errors import BackendError, BrokerUnavailable, EncodeError, PublishError
from qworker.states import READY_STATES, STARTED
from qworker.tasks.outcome import LOST, TIME_LIMIT
from qworker.transports.lease import Claim, Release, ResultRow, RowsLocked, Settlement, Store
from tests.simulation.case import Fault
from tests.simulation.repeats import HARMLESS, OF_ROW, Execution, Met, subjects
from tests.simulation.world import Killed, Time

KINDS = {
    "before": "the call fails, and is not made",
    "after": "the call is made, and its answer is lost",
    "twice": "the driver makes the call again, since it has received no answer; only calls in REPEATABLE",
    "late": "a push fails, and is carried out some seconds later",
    "kill before": "the process is killed before it makes the call",
    "kill after": "the process is killed when the call is made",
    "child before": "the child of a worker that is to make the call is killed",
    "child after": "the child is killed when the call is made",
    "stall": "the process pauses before the call for some seconds",
    "locked": "someone locks for some seconds what the first settlement of the call needs, or extend()",
    "forge": "someone without the key writes into the join that the call has opened",
    "limit before": "the time limit of the task ends its child before the call",
    "limit after": "the time limit ends the child when the call is made",
    "die": "the process, or its child, dies at a crash point of qworker",
    "refused": "the store refuses one result for what is in it, and takes another in its place",
    "refused twice": "the store refuses all results of one task",
}
"""Faults at the nth call of a method by a node."""
REFUSALS = (EncodeError, PublishError, RuntimeError)
"""What stores raise for results that they refuse; the last two only brokers and stores of other projects."""
MOMENT = 1e-6
WAIT_SECONDS = 0.3
"""How long a call waits for locked rows; a fifth of the lease at most."""
NO_TAG = -1
FORGETS = "forgets"
"""A kind that is never drawn: a broken store that answers but does nothing. Checks must notice it."""

BROKER = (
    "push", "revoke", "register", "lease", "look", "settle", "confirm", "extend", "reclaim", "revoked_since",
    "sweep", "deregister", "settled_before", "purge", "workers",
)  # fmt: skip
BACKEND = (
    "store", "store_rows", "get", "read_many", "forget", "forget_many", "add", "incr", "delete", "save_group",
    "get_group", "sweep",
)  # fmt: skip
JOINS = ("open", "grow", "add", "claim", "finish", "drop", "hold", "set_size")
LETTERS = ("page", "retry", "send_again", "discard", "push")

REPEATABLE = frozenset(
    {"push", "store", "store_rows", "join.open", "join.add", "join.grow", "extend", "get", "read_many",
     "revoke"}
)  # fmt: skip
"""Calls that a driver may repeat if it received no answer."""
WRITES = frozenset(
    {"push", "revoke", "register", "store", "store_rows", "join.open", "join.add", "join.grow", "join.finish",
     "join.hold", "orm.write", "orm.commit", "schedules.fire"}
)  # fmt: skip
"""Calls that a full store refuses."""
TELLS = frozenset(
    {"push", "settle", "revoke", "dead.retry", "dead.send_again", "failed.send_again", "deregister",
     "reclaim", "orm.commit", "schedules.fire", "join.finish"}
)  # fmt: skip
"""Calls after which listeners may have work; see tells()."""
JOINED = frozenset({"join.add", "join.grow", "join.set_size", "join.open", "join.finish"})
"""Calls after which joiners may have work. The process that records the last part wakes its own joiner;
others poll, and are sometimes woken at random."""


def tells(method: str, args: Any, value: Any) -> bool:
    """Return whether a call in TELLS has made work for listeners."""
    if method == "settle":
        return any(type(settlement) is Release for settlement in args[1])
    return method != "reclaim" or bool(value)


class Process:
    """A process of the world, as its stores see it. faults: pending faults of all processes. fired: triggered
    ones."""

    def __init__(self, name: str, time: Time, faults: list[Fault], fired: list[Met]) -> None:
        self.name = name
        self.role = name.rstrip("0123456789")
        self.time = time
        self.alive = True
        self.child_lost = ""
        """How the running child has died: a kind of Outcome."""
        self.in_child = False
        self.execution: Execution | None = None
        """What its pool runs now."""
        self.runs: dict[Any, Execution] = {}
        """What its pool has run, by tags, until the broker takes note of it."""
        self.calls: Counter[str] = Counter()
        self.child_calls: Counter[str] = Counter()
        """Those of its children."""
        self.given: dict[str, float] = {}
        """When tasks were given to its pool, by id."""
        self.stack: list[str] = []
        self.faults = faults
        self.fired = fired
        self.on_death: list[Callable[[], object]] = []
        self.queues: Sequence[str] = ()
        """Queues that it consumes; () for callers."""
        self.away: list[str] = []
        """Stores that do not answer; twice if two faults overlap."""
        self.cut: list[str] = []
        """Stores that do not answer this process alone."""
        self.full: list[str] = []
        """Stores that refuse writes."""
        self.locked: dict[int, float] = {}
        """Until when someone has locked what the settlement of a tag needs, or, for NO_TAG, its row of the
        workers."""
        self.refuses: dict[Any, type[Exception]] = {}
        """The errors for results that are refused, by row; or by id, for all results of a task."""
        self.kept: set[str] = set()
        """The ids of tasks whose final state it has stored: what follows of them changes nothing."""
        self.amid = False
        """Whether it is paused within a step."""
        self.forge: Callable[[Any], object] = lambda joins: None
        """Writes into joins as someone without the key."""
        self.opens: Callable[[Any], object] = lambda joins: None
        """Called with joins that are to be opened."""
        self.sends: Callable[[Any], object] = lambda envelopes: None
        """Called with messages that are published."""
        self.starts: Callable[[Iterable[str]], object] = lambda ids: None
        """Called with the ids of tasks of which the state STARTED is to be stored."""
        self.errors: dict[str, type[Exception]] = {"broker": BrokerUnavailable}
        """The errors of stores that are away."""

    @property
    def disturbed(self) -> bool:
        """Whether a fault has happened after which tasks may run again."""
        return any(met.fault.kind not in HARMLESS for met in self.fired)

    def die(self) -> None:
        if not self.alive:
            return  # the actors of this name may be its successor's
        self.alive = False
        self.time.note(self.name, "is killed")
        for act in self.on_death:
            act()

    def pause(self, seconds: float) -> None:
        """Pause within a step, while other processes continue."""
        before, self.amid = self.amid, True
        self.time.frozen[self.name] = self.time.now + seconds
        with self.another_thread():
            self.time.pump(self.time.now + seconds)
        self.amid = before
        if not self.alive:
            raise Killed(self.name)

    @contextmanager
    def another_thread(self) -> Iterator[None]:
        """Within the block, be in no call and no run: those that wait are of other threads."""
        before = self.stack, self.in_child, self.execution
        self.stack, self.in_child, self.execution = [], False, None
        try:
            yield
        finally:
            self.stack, self.in_child, self.execution = before

    def end_child(self, why: str) -> None:
        """Kill the running child. why: LOST or TIME_LIMIT."""
        self.child_lost = why
        self.step()

    def step(self) -> None:
        """Raise Killed if the process, or its running child, is dead."""
        if not self.alive:
            raise Killed(self.name)
        if self.child_lost and self.in_child:
            raise Killed(f"a child of {self.name}")

    def reach(self, point: str) -> None:
        """Die at the crash point *point* if a fault requires it; in a child, only the child does."""
        self.calls[point] += 1
        if self._fault(point) is not None:
            if self.in_child:
                self.end_child(LOST)
            self.die()
            raise Killed(self.name)

    def call(self, store: str, method: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.step()
        if store in self.stack:
            return function(*args, **kwargs)
        error = self.errors.get(store, BackendError)
        away = store in self.away or store in self.cut
        if away or (store in self.full and method in WRITES):
            if self.execution is not None:
                self.execution.failed.add(store)
            raise error(f"the {store} is {'away' if away else 'full'}")
        if (pauses := self.time.pauses) and self.time.random.random() < pauses:
            self.pause(MOMENT)
        self.calls[method] += 1
        fault = self._fault(method, args) if self.faults else None
        if method in ("settle", "extend"):
            needed = [NO_TAG] if method == "extend" else _tags(args[1])
            if fault is not None and fault.kind == "locked":
                self.locked.update((tag, self.time.now + fault.seconds) for tag in needed[:1])
                fault = None
            self._wait_for_locks(method, needed)
        if method == "join.open":
            self.opens(args[0])
        rows: list[ResultRow] = []
        if method in ("store_rows", "settle"):
            given = args[0] if method == "store_rows" else [getattr(each, "row", None) for each in args[1]]
            rows = [row for row in given if row is not None]
            self.starts(row[0] for row in rows if row[1] == STARTED)
            self._refuse(method, rows)
        if method == "push" and self.execution is not None:
            self.execution.sent.update(subjects(args[0]))
        self.stack.append(store)
        if args and method in ("push", "join.finish"):
            function = partial(self._sending, function, int(method == "join.finish"))
        try:
            if fault is None:
                value = function(*args, **kwargs)
            else:
                value = self._faulty(fault, error, function, args, kwargs)
        except Exception as problem:
            self._note(method, args, kwargs, "raises", type(problem).__name__)
            raise
        finally:
            self.stack.pop()
        self._note(method, args, value if isinstance(value, Claim) else None)
        if method == "settle":
            for tag in {getattr(each, "tag", None) for each in args[1]} & self.runs.keys() - value:
                self.runs.pop(tag).settled = self.time.now
        self.kept.update(row[0] for row in rows if row[1] in READY_STATES)
        if method in TELLS and tells(method, args, value):
            self.time.wake("listener")
        if method in JOINED and self.time.random.random() < 0.3:
            self.time.wake("joiner")
        return value

    def _refuse(self, method: str, rows: Sequence[ResultRow]) -> None:
        """Raise an error if one of *rows* is refused."""
        if rows and not self.in_child:
            self.calls[OF_ROW] += 1
            row = rows[len(rows) // 2]
            if row[0] not in self.kept and (fault := self._fault(OF_ROW, row[:2])) is not None:
                self.refuses[row if fault.kind == "refused" else row[0]] = self.time.random.choice(REFUSALS)
        for row in rows if self.refuses else ():
            if error := self.refuses.get(row[0]) or self.refuses.get(row):
                self._note(method, row[0], "raises", error.__name__)
                raise error("this is refused")

    def _sending(self, function: Callable[..., Any], place: int, *args: Any, **kwargs: Any) -> Any:
        """Call *function*, which publishes the argument at *place*."""
        self.sends(args[place])
        return function(*args, **kwargs)

    def _note(self, method: str, *told: Any) -> None:
        trace = self.time.trace
        self.time.note(self.name, method, *(() if trace is None else trace.words(*told)))

    def _fault(self, method: str, args: Any = ()) -> Fault | None:
        calls = self.calls, self.child_calls
        calls[1][method] += self.in_child
        for fault in self.faults:
            if fault.method == method and fault.node in (self.name, self.role):
                of_child = fault.kind.startswith(("child", "limit"))
                if (of_child and not self.in_child) or fault.nth != calls[of_child][method]:
                    continue
                if fault.kind == "stall" and self.time.at_work > 1:  # it would hold up a paused node, too
                    continue
                self.faults.remove(fault)
                by = () if self.execution is None else (self.execution.id,)
                self.fired.append(
                    Met(
                        fault, self.time.now, len(self.time.log), frozenset((*by, *subjects(args))), self.name
                    )
                )
                self.time.note(self.name, f"{method}: fault", fault.kind)
                return fault
        return None

    def _wait_for_locks(self, method: str, tags: Sequence[int]) -> None:
        """Wait, and raise RowsLocked, if one of *tags* is locked."""
        if any(self.locked.get(tag, 0.0) > self.time.now for tag in tags):
            self.pause(WAIT_SECONDS)
            self._note(method, "raises", "RowsLocked")
            raise RowsLocked("another transaction has locked rows")

    def _faulty(
        self, fault: Fault, error: type[Exception], function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        who = fault.kind.partition(" ")[0]
        if fault.kind == "stall":
            self.pause(fault.seconds)
            return function(*args, **kwargs)
        if fault.kind == "late" and fault.method == "push":
            late = partial(_late, self.time, function, args, kwargs)
            self.time.once(self.time.now + fault.seconds, "network", "late", late)
            raise error("no answer came in time")
        if fault.kind == "forge":
            value = function(*args, **kwargs)
            self.forge(args[0])
            return value
        if fault.kind in ("before", "kill before", "child before", "limit before", FORGETS):
            value = None
        else:
            value = function(*args, **kwargs)
            if fault.kind == "twice" and fault.method in REPEATABLE:
                return function(*args, **kwargs)
        if fault.kind in ("twice", "late", FORGETS):
            return value
        if who == "kill":
            self.die()
            raise Killed(self.name)
        if who in ("child", "limit"):
            self.end_child(LOST if who == "child" else TIME_LIMIT)
        raise error("the connection was lost")


def _tags(settlements: Sequence[Settlement]) -> list[int]:
    return [each.tag for each in settlements if not isinstance(each, Store)]


def _late(time: Time, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    function(*args, **kwargs)
    time.note("a late push is carried out")
    time.wake("listener")


def watch(process: Process, store: str, thing: Any, methods: Collection[str], prefix: str = "") -> None:
    """Count calls of *methods* of *thing* as calls of *store*, and apply faults to them."""

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return process.call(store, name, function, args, kwargs)

        return call

    for method in methods:
        function = getattr(thing, method, None)
        if function is not None:
            setattr(thing, method, watched(prefix + method, function))
