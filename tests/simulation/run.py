"""run: runs a case from its start until everything is quiet.

Comes from:  tests and ``search``, with a case.
Goes to:     ``checks``, with what was seen.
Thread:      the caller's, the only one.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import re
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from qworker import QWorker, states
from qworker.backends.joins import PUSH_SECONDS, Join
from qworker.errors import BackendError, DamagedResult, NotSupported, QWorkerError
from qworker.publishing import workflows
from qworker.publishing.transactions import holding_back
from qworker.testing import MemoryStore
from qworker.transports.lease import DeadLetter, Envelope, Part
from qworker.transports.sql.embedded.broker import SQLiteBroker
from qworker.transports.transfer import move
from tests.simulation.case import Case, Fault
from tests.simulation.crashing import reaching
from tests.simulation.nodes import (
    QUEUES,
    Asked,
    Caller,
    Node,
    WorkerNode,
    calls_of,
    ids_of,
    is_ready,
    value_of,
)
from tests.simulation.program import THEIRS, Record
from tests.simulation.repeats import OF_ROW, RECOVERED, Met
from tests.simulation.schedules import Schedules, Story
from tests.simulation.seams import Process
from tests.simulation.stores import Stores
from tests.simulation.tracing import Trace
from tests.simulation.world import LEASE_SECONDS, START, Actor, Killed, Stuck, Time, determined
from tests.support.flows import ARGS, Call, Graph, Mapping, is_line, needs_joins, parts_of

OF_OPERATORS = ("stranger", "retry failed", "retry dead")
HAPPENINGS = {
    "kill": "a worker or caller is killed, and another takes its place",
    "freeze": "no part of a worker runs for some seconds",
    "away": "a store, the broker or that of results, answers nobody for some seconds",
    "cut": "a store does not answer one node for some seconds",
    "full": "a store refuses writes for some seconds",
    "lost": "all stores lose what they hold",
    "jump": "the wall clock of a node is set by some seconds",
    "drift": "the clocks of a node gain or lose some seconds within DRIFT",
    "restart": "a worker is stopped in order, and started again",
    "crash": "the machine crashes, and the stores lose the last seconds",
    "move": "an operator moves the waiting messages to another broker, and back",
    "poison": "somebody sends what no worker can run",
    "stranger": "someone without the key writes into the stores",
    "retry failed": "an operator resends failed tasks",
    "retry dead": "an operator resends dead letters",
}
"""Faults at a moment."""
DRIFT = 10.0
"""Seconds during which a clock runs too fast or too slowly."""
TICK = 0.25
LOSES_NOTHING = frozenset(
    {"drift", "freeze", "jump", "move", "locked", "poison", "refused", "refused twice", "restart", "stall",
     "twice", *OF_OPERATORS}
)  # fmt: skip
"""Faults after which a worker still runs a task that it acknowledged early."""
HOLDING_UP = frozenset({"away", "cut", "freeze", "full", "locked", "stall"})
"""Faults of some duration, in which work may stand still."""
OF_LISTENERS = frozenset(
    {"confirm", "extend", "lease", "look", "reclaim", "revoked_since", "settle", "settled_before", "sweep"}
)
"""Calls of the broker that a listener repeats if it receives no answer."""
REPEATED = frozenset({"store_rows", "join.add", "join.claim", "join.finish"})
"""Calls of the store of results that a worker repeats until they succeed."""
UNHEARD = frozenset({("after", "settle"), ("before", "confirm"), ("after", "confirm")})
"""Faults after which a listener does not know that the broker has settled messages."""
STALLED = ("confirm", "extend", "lease", "settle")
"""Calls during which a listener may stall without losing a task."""
UNKNOWN = 6.0
"""Virtual seconds after which a message of an unknown task is a dead letter."""
CALLERS = ("caller0", "caller1")
AMID = 0.003
"""Seconds after a call at which the key is set, when some of its tasks have run."""
PATIENCE = 400.0
"""Virtual seconds after the last fault and call within which everything must be quiet."""
SETTLED = PUSH_SECONDS + 2 * LEASE_SECONDS
"""Virtual seconds within which a complete join is finished, after its claim has expired by the claimer's
clock."""
OVERDUE = "not all dependencies have ended in time"
"""A join that waited for a member until it expired: only a fault explains it."""
JOIN_FAILS = re.compile(
    rf" fails: (?!.*({OVERDUE}|\b(Assertion|Attribute|Index|Name|Recursion|Type|UnboundLocal)Error\b))"
)
"""How the log says that a join has failed, for a reason that the program may cause."""
AT_LAST = 3.0
"""Seconds after which a run has ended, without faults and LONG_RUN."""
ROUNDING = 1e-4
"""Seconds by which times are rounded."""
RAISED = frozenset({*ARGS, "ValueError", "ExceptionGroup"})
"""Errors that tasks raise: their tracebacks name the place."""
LONG = 40 * 86400.0
"""Seconds after which everything has expired, by the settings."""
ROUNDS = 3
"""How many times that passes: what is overdue fails, and the failure is kept just as long."""
SWEPT = 200.0
"""Seconds within which workers have swept everything."""
MEMORY = Path("/dev/shm")


@dataclass
class Seen:
    """What a run showed. broken: why the simulator failed; then nothing else is set. stuck: why the run did
    not end."""

    case: Case
    record: Record
    asked: list[Asked] = field(default_factory=list)
    met: list[Met] = field(default_factory=list)
    broken: str = ""
    stuck: str = ""
    crashed: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    left: dict[str, Any] = field(default_factory=dict)
    left_for_ever: dict[str, int] = field(default_factory=dict)
    values: dict[str, list[Any]] = field(default_factory=dict)
    called: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    ready: dict[str, list[bool]] = field(default_factory=dict)
    turns: int = 0
    tasks: int = 0
    seconds: float = 0.0
    """Virtual seconds."""
    rested: float = 0.0
    """Seconds from the last call, due time or fault until everything was quiet."""
    took: float = 0.0
    """Seconds for which calls may have waited for others, which took long."""
    again: dict[str, float] = field(default_factory=dict)
    """The ids of tasks that an operator has sent again, and when."""
    refused: dict[str, Any] = field(default_factory=dict)
    """How tasks ended of which a store has refused a result, by id."""
    odd: list[str] = field(default_factory=list)
    """What is wrong with stored results."""
    schedules: Story | None = None
    unsigned: int = 0
    """The number of messages and dead letters when the key was set late."""

    poison: int = 0
    """How many messages were sent that become dead letters, because no worker can run them."""

    @property
    def disturbed(self) -> bool:
        """Whether a fault may have delayed something."""
        return any(fault.kind != "poison" for fault in self.fired)

    @property
    def fired(self) -> list[Fault]:
        """The triggered faults."""
        return [met.fault for met in self.met]

    @property
    def may_lose(self) -> bool:
        """Whether tasks may be lost: those acknowledged early, or over their time limit."""
        return any(self._loses(met) for met in self.met)

    @property
    def lost_until(self) -> float:
        """When the last fault after which tasks may be lost was over."""
        return max(met.at + met.fault.seconds for met in self.met if self._loses(met))

    def may_lose_of(self, asked: Asked) -> bool:
        """Return whether tasks of *asked* may be lost."""
        return self._loses_added(asked) or any(True for _ in self._losses(asked))

    def may_vanish_of(self, asked: Asked) -> bool:
        """Return whether lost tasks of *asked* may leave no trace: if their worker has died."""
        return self._loses_added(asked) or any(
            fault.kind.startswith(("kill", "die", "crash", "lost")) for fault in self._losses(asked)
        )

    def _loses_added(self, asked: Asked) -> bool:
        """Return whether a call that was added to a chord may not be sent, because its task is revoked when
        it is delivered again."""
        return asked.revoked and any(fault.method == "join.grow" for fault in self.fired)

    def _losses(self, asked: Asked) -> Iterator[Fault]:
        """Yield the faults because of which tasks of *asked* may be lost. Those that were over when it was
        called lose none."""
        for met in self.met:
            after = 0.0 if met.fault.kind.startswith(("kill", "die")) else RECOVERED
            concerned = asked.called_at <= met.at + met.fault.seconds + after
            loses = self._loses(met, asked.order.how == "twice")
            if concerned and loses and not self._is_of_another(met, asked):
                yield met.fault

    def refusals_of(self, asked: Asked) -> set[str]:
        """Return the kinds of faults by which a store may have refused results of *asked*."""
        refusals = [met for met in self.met if met.fault.method == OF_ROW]
        kinds = {met.fault.kind for met in refusals if not self._is_of_another(met, asked)}
        return kinds | ({"refused twice"} if kinds and self.refused_twice else set())

    @property
    def refused_twice(self) -> set[str]:
        """The ids of tasks whose result and failure were both refused, by one fault or by two."""
        every: Counter[str] = Counter()
        for met in self.met:
            if met.fault.method == OF_ROW:
                every.update(dict.fromkeys(met.about, 2 if met.fault.kind == "refused twice" else 1))
        return {id for id, times in every.items() if times > 1 and id in self.refused}

    def kills_children_of(self, asked: Asked) -> bool:
        """Return whether a fault has killed a child, perhaps before it ran a task of *asked*."""
        return any(
            (met.fault.kind.startswith("child") or (met.fault.kind == "die" and met.about))
            and not self._is_of_another(met, asked)
            for met in self.met
        )

    def _is_of_another(self, met: Met, asked: Asked) -> bool:
        """Return whether *met* concerned the child that ran a task of another order."""
        if not met.fault.kind.startswith(("child", "limit", "die", "refused")):
            return False
        runs = (*self.record.executions.items(), *self.record.tellings.items())
        return any(name != asked.name and run.id in met.about for name, each in runs for _, run in each)

    def _loses(self, met: Met, twice: bool = False) -> bool:
        """Return whether tasks may be lost because of *met*. twice: of an order whose ids are used twice."""
        fault = met.fault
        if fault.kind.startswith("limit"):
            return True
        known = not self.case.world.stores.startswith("kombu")  # whether it can report what it received
        answer_lost = fault.kind in ("before", "after") and fault.method in OF_LISTENERS
        return not (
            self.case.world.acks_late
            or fault.node.startswith(("beat", "caller"))
            or fault.kind in LOSES_NOTHING
            or (fault.kind in ("before", "after") and fault.method in REPEATED)
            or (known and answer_lost and not self._loses_lease(met, twice))
        )

    def _loses_lease(self, met: Met, twice: bool) -> bool:
        """Return whether a worker that does not know, because of *met*, whether its early acknowledgement was
        carried out may be considered dead before it asks again. Then nobody runs the task; or another worker
        does, but this one cannot tell whether a stored result is of the same call if its id is used
        twice."""
        what = (met.fault.kind, met.fault.method)
        if what not in UNHEARD and not (twice and what == ("before", "settle")):
            return False
        return any(
            each.fault.kind in ("freeze", "locked", "stall")
            and met.node in (each.node, each.fault.node)
            and each.fault.seconds > LEASE_SECONDS / 2  # a worker may wait as long before it asks again
            and met.at - each.fault.seconds - RECOVERED <= each.at <= met.at + RECOVERED
            for each in self.met
        )

    def excuses(self, asked: Asked) -> bool:
        """Return whether joins of *asked* may be left until they expire: of failed calls, also in tasks that
        open new ones when they are redelivered; or of lost members."""
        return bool(
            self.may_lose_of(asked)
            or asked.refused
            or asked.forgotten
            or asked.cut
            or asked.name in self.record.unsigned
            or self.keeps_rolled_back(asked)
            # A job has no flow.
            or (self.fired and _calls_joins(getattr(asked.order, "flow", None), self.case.world.segment))
        )

    def keeps_rolled_back(self, asked: Asked) -> bool:
        """Return whether joins of *asked* are left though it was rolled back: in another store."""
        return asked.rolled_back and self.case.world.stores != "sqlite"

    @property
    def excused(self) -> bool:
        """Whether joins of any order may be left."""
        return any(map(self.excuses, self.asked))

    def look(self, app_of: Callable[[Asked], QWorker]) -> None:
        """Record the results of all calls, as seen by the app of each."""
        for asked in self.asked:
            app = app_of(asked)
            self.ready[asked.name] = [is_ready(result, app) for result in asked.results]
            self.values[asked.name] = [value_of(result, app) for result in asked.results]
            self.called[asked.name] = [
                (number, value_of(result, app)) for number, result in self.record.called[asked.name]
            ]


def _calls_joins(flow: Any, segment: int) -> bool:
    """Return whether a task in *flow* makes a call that needs a join: also a chain of several segments."""
    calls = [call for part in parts_of(flow) if (call := getattr(part, "calls", None)) is not None]
    return any(
        not is_line(call) or sum(isinstance(part, Call | Mapping) for part in parts_of(call)) > segment
        for call in calls
    )


class Errors(logging.Handler):
    """Collects log messages of level ERROR and above."""

    def __init__(self, kept: Any) -> None:
        super().__init__(logging.ERROR)
        self.kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        event = getattr(record, "event", "")
        if event == "task-failed" or (event == "join-failed" and JOIN_FAILS.search(text)):
            return
        if record.exc_info and isinstance(record.exc_info[1], Killed):
            return  # logged by a dead process
        if record.exc_info:
            text += f" [{record.exc_info[1]!r}]"
        self.kept.append(f"{event or 'no event'}: {text}")


@contextmanager
def heard(name: str, kept: Any) -> Iterator[None]:
    """Within the block, only collect the messages of the logger *name* of level ERROR and above."""
    logger, handler = logging.getLogger(name), Errors(kept)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class Running:
    """A case that runs."""

    caller_class: type[Node] = Caller
    worker_class: type[WorkerNode] = WorkerNode
    settled = 1.0
    """Virtual seconds for which it must be quiet at the end."""

    def __init__(self, case: Case, directory: Path, trace: Trace | None) -> None:
        self.case = case
        self.directory = directory
        self.seen = Seen(case, Record())
        self.time = Time(case.seed)
        self.time.trace = trace
        self.seen.record.now = lambda: self.time.now
        self.seen.record.ahead = self._ahead
        self.stores = Stores(case.world.stores, directory, self.time)
        self.stores.complain = self.seen.record.complain
        self.restore: Callable[[], None] = lambda: None
        self.crashed: set[Fault] = set()
        """The crashes that have happened; one that is overdue has not."""
        self.to_come = [fault for fault in case.faults if fault.kind not in HAPPENINGS]
        self.away: list[str] = []
        self.full: list[str] = []
        """The stores that no process reaches or can write to now, also one that starts now."""
        self.cut: dict[str, list[str]] = {}
        """The stores that single nodes do not reach now."""
        self.removed: list[Node] = []
        self.begun: list[Process] = []
        self.processes: dict[str, Node] = {}
        self.live: dict[str, Process] = {}
        """The last process of each node."""
        self.workers: dict[str, WorkerNode] = {}
        table = case.schedules
        self.begins_at = 0.0 if table is None else table.start
        """By wall clocks, in seconds since START."""
        self.schedules = None if table is None else Schedules(self, table)
        if self.schedules is not None:
            self.seen.record.equip = self.schedules.equip
            self.seen.schedules = self.schedules.story
        if table is None:  # messages of entries for unknown tasks outlast their case
            self.seen.record.settings["task_unknown_delays"] = [0.2, 0.2]
        self.keyed = case.world.key == "signed"
        self.callers = [self._node(self.caller_class, name) for name in CALLERS]
        self.observer = self._node(self.caller_class, "observer")
        for number in range(case.world.workers):
            self._start_worker(f"worker{number}")
        self.seen.record.keeps_all = case.world.joins and not case.world.forgets
        self.busy_at = 0.0
        """When there was work last, while somebody waited."""
        self.last = self._plan()
        self.open = len(self.seen.asked)
        if self.schedules is not None:
            self.schedules.start()
            self.last = max(self.last, self.schedules.table.seconds)
        for fault in case.faults:
            if fault.kind in HAPPENINGS:
                ends = UNKNOWN if fault.kind == "poison" else fault.seconds
                self.last = max(self.last, fault.at + ends)
                act = self._remember if fault.kind == "crash" else self._happen
                self._at(fault.at, "world", lambda act=act, fault=fault: act(fault))

        self.time.limit = self.last + 2 * PATIENCE

    def _plan(self) -> float:
        """Add the orders to the world; return the time of the last one."""
        orders = self.case.orders
        for number, order in enumerate(orders):
            asked = Asked(order, f"f{number}")
            self.seen.asked.append(asked)
            self._at(order.at, CALLERS[number % 2], lambda asked=asked: self._order(asked), True)
        if self.case.world.key == "late":
            called = sorted(order.at for order in orders)[: (len(orders) + 1) // 2]
            self._at(max(called, default=0.0) + AMID, "world", self._set_key)
        ends = (each.order.at + each.delays + (each.order.revoke_at or 0.0) for each in self.seen.asked)
        return max(ends, default=0.0)

    def _node(self, kind: Any, name: str) -> Any:
        world = self.case.world
        skew = world.skew * (len(self.processes) - 1)
        if self.case.schedules is not None:
            skew = self.case.schedules.start
        process = Process(name, self.time, self.to_come, self.seen.met)
        if not issubclass(kind, self.caller_class):  # the next process of a caller makes its other calls
            process.on_death.append(lambda: self.time.remove(name))
        self.live[name] = process
        process.away, process.full = self.away, self.full
        process.cut = self.cut.setdefault(name, [])
        self.begun.append(process)
        process.forge = lambda joins: forge(self.observer.app, joins)
        process.opens = partial(self.seen.record.opens, by=process.role)
        process.sends = self.seen.record.sends
        process.starts = self.seen.record.starts.update
        node = kind(process, self.time, self.stores, world, self.seen.record, self.keyed, skew)
        self.processes[name] = node
        return node

    def _start_worker(self, name: str) -> None:
        try:
            with self.time.stepping(name):
                self.workers[name] = self._node(self.worker_class, name)
        except Killed:
            self._at(self.time.now + 1.0, "world", lambda: self._start_worker(name))
            return
        worker = self.workers[name].worker
        if worker.failure is not None:
            self.seen.crashed.append(f"{name}: {worker.failure!r}")

    def _reach(self, point: str) -> None:
        """Note that the node that steps has reached the crash point *point*."""
        if (process := self.live.get(self.time.node)) is not None:
            process.reach(point)

    def _at(self, at: float, node: str, act: Callable[[], None], waits: bool = False) -> None:
        self.time.once(at, node, "event", act, waits)

    def _order(self, asked: Asked) -> None:
        number = int(asked.name[1:]) % 2
        caller = self.callers[number]
        if asked.order.revoke_at is not None:
            self._at(
                self.time.now + asked.order.revoke_at, CALLERS[number], lambda: self._revoke(caller, asked)
            )
        asked.begun = True
        # With many orders, the callers wait for others first.
        self.time.limit = max(self.time.limit, self.time.now + asked.delays + 2 * PATIENCE)
        try:
            caller.call(asked)
            caller.process.step()  # an eager task may have caught its death
            asked.called = True
            self.open -= 1
            if self._is_asked(asked) and not (asked.forgotten or self._is_forgotten_soon()):
                caller.ask(asked, caller if self.case.world.by_messages else self.callers[1 - number])
        except Stuck as error:
            self._cut_off(asked)  # while the call paused, another caller waited in vain
            if not asked.forgotten:
                self.seen.stuck = self.seen.stuck or f"{asked.name}: {error}"
        except Killed:
            self._cut_off(asked)
            self._replace_caller(number, caller)
        except BackendError as error:  # the first query fails at once if the store is away
            self.time.note(caller.name, "cannot ask", asked.name, error)

    def _cut_off(self, asked: Asked) -> None:
        """Record that the call of *asked* was cut short, unless it had returned."""
        if not asked.called:
            asked.called = asked.cut = True
            self.open -= 1

    def _replace_caller(self, number: int, caller: Node) -> None:
        """Start another process for *caller*, which makes its later calls."""
        if self.callers[number] is not caller:
            return
        self.callers[number] = self._node(self.caller_class, CALLERS[number])
        if self.case.world.by_messages:  # nobody receives them any more
            for asked in self.seen.asked[number::2]:
                asked.cut |= asked.begun

    def _set_key(self) -> None:
        """Restart all processes with the key, once no call or step is in progress."""
        calling = any(asked.begun and not asked.called for asked in self.seen.asked)
        if (
            calling
            or any(process.amid for process in self.live.values())  # also of one that starts
            or any(map(self._is_amid, self.workers.values()))
        ):
            self._at(self.time.now + AMID, "world", self._set_key)
            return
        self.time.note("the key is set")
        self.keyed = True
        self.seen.record.unsigned |= {asked.name for asked in self.seen.asked if asked.begun}
        for worker in list(self.workers.values()):  # others may start while one stops
            if worker not in self.removed:
                self._restart(worker)
        for caller in (*self.callers, self.observer):
            caller.process.alive = False  # later calls are made by the new process
        self.callers = [self._node(self.caller_class, name) for name in CALLERS]
        self.observer = self._node(self.caller_class, "observer")
        admin = self.observer.app.broker.admin
        self.observer.process.away = []  # bypasses the seams
        waiting = sum(info.ready + info.delayed + info.leased for info in admin.queues())
        self.seen.unsigned = waiting + len(admin.dead(None, 1000))
        self.observer.process.away = self.away

    def _is_amid(self, node: Node) -> bool:
        """Return whether *node* is within a step in which other nodes step."""
        return any(actor.busy for actor in self.time.actors if actor.node == node.name)

    def between(self, node: Node, act: Callable[[], None]) -> None:
        """Do *act* between two steps of *node*, unless it dies first."""
        if self._is_amid(node):
            self._at(self.time.now + AMID, "world", lambda: self.between(node, act))
        elif node.process.alive:
            act()

    def _restart(self, node: WorkerNode) -> None:
        if node.stopping:
            return
        if node.process.alive:
            with suppress(Killed), self.time.stepping(node.name):
                node.stop()
            node.process.die()
        self._replace(node, kill=False)

    def _is_asked(self, asked: Asked) -> bool:
        """Return whether callers can wait for the results of *asked*."""
        world = self.case.world
        joined = world.joins or not needs_joins(asked.order.flow)
        return joined and not (self.stores.disabled or world.forgets)

    def _is_forgotten_soon(self) -> bool:
        """Return whether callers must not wait: a crash will undo the present, or this process will be
        restarted."""
        if self.case.world.key == "late" and not self.keyed:
            return True
        now = self.time.now
        return any(
            (fault.kind == "crash" and fault.at <= now and fault not in self.crashed)
            or (fault.kind == "lost" and now <= fault.at)
            for fault in self.case.faults
        )

    def _revoke(self, caller: Caller, asked: Asked) -> None:
        for result in asked.results:
            ids = list(ids_of(result))
            asked.revoked |= bool(ids)
            if asked.order.terminate:
                self.seen.record.terminated.add(asked.name)
            try:
                result.revoke(terminate=asked.order.terminate)
            except NotSupported:
                asked.revoked = False
            except Exception as error:  # noqa: BLE001 - the store may be away
                self.time.note("cannot revoke", type(error).__name__)
            else:
                asked.stopped |= dict.fromkeys(ids, self.time.now)

    def _happen(self, fault: Fault) -> None:
        time = self.time
        told = (fault.kind, fault.node, fault.method, f"{fault.seconds:g} s" if fault.seconds else "")
        time.note("happens:", *filter(None, told))
        self.seen.met.append(Met(fault, time.now, len(time.log)))
        node = self.workers.get(fault.node)
        if self.schedules is not None and self.schedules.happen(fault):
            return
        if fault.kind == "kill" and node is not None:
            self._replace(node, kill=True)
        elif fault.kind == "kill" and fault.node in CALLERS:
            caller = self.callers[number := CALLERS.index(fault.node)]
            caller.process.die()
            self._replace_caller(number, caller)
        elif fault.kind == "restart" and node is not None:
            self.between(node, lambda: self._restart(node))
        elif fault.kind == "freeze":
            time.frozen[fault.node] = time.now + fault.seconds
        elif fault.kind == "jump" and fault.node in self.processes:
            self.processes[fault.node].clock.skew += fault.seconds
        elif fault.kind == "drift" and fault.node in self.processes:
            self._drift(fault, DRIFT)
        elif fault.kind in ("away", "cut", "full"):
            cut = self.cut.setdefault(fault.node, [])
            absent, store = (
                (cut, fault.method) if fault.kind == "cut" else (getattr(self, fault.kind), fault.node)
            )
            stores = self.together(store)
            absent += stores
            self._at(time.now + fault.seconds, "world", lambda: self._back(absent, stores))
        elif fault.kind == "lost":
            self.stores.lose()
            for asked in self.seen.asked:
                asked.forgotten |= asked.begun
        elif fault.kind == "crash":
            self.crashed.add(fault)
            self._crash()
        elif fault.kind == "move":
            self._move()
        elif fault.kind == "poison":
            self.seen.poison += poison(self.observer.app, time.note)
        elif fault.kind in OF_OPERATORS:
            if fault.kind == "retry failed":
                pauses, time.pauses = time.pauses, 0.0  # a move meanwhile would take the call to fail
                fail_as_stranger(self.observer.app, time.note)
                time.pauses = pauses
            letters = self._letters(fault.kind)
            if fault.kind == "retry failed":
                self.seen.record.without_expiry |= set(letters.values())
            refused = meddle(fault.kind, self.observer.app, time.note, all_ids(self.seen.asked))
            if refused is not None:
                again = (id for tag, id in letters.items() if tag not in refused)
                self.seen.again |= dict.fromkeys(again, time.now)

    def _letters(self, kind: str) -> dict[int, str]:
        """Return the ids of the tasks that the operator's *kind* sends again, by the tags of their
        letters."""
        broker = self.observer.app.broker
        name = kind.removeprefix("retry ")
        if name == kind or name not in broker.letters:
            return {}
        ids: dict[int, str] = {}
        for _ in self.case.faults:  # each may hit this call once, and spare the operator's
            with suppress(QWorkerError):  # the store is away
                ids = {each.tag: id_of(each.headers) for each in broker.letters[name].newest()}
                break
        return {tag: id for tag, id in ids.items() if id in self.seen.record.begun}

    def _move(self) -> None:
        """Move waiting messages to another broker, and back."""
        here, clock, ticks = self.observer.app.broker, self.observer.clock, count()
        turns = self.time.turns
        file = f"sqlite:///{self.directory}/elsewhere/q.db"
        there: Any = MemoryStore(clock)
        if isinstance(here, MemoryStore):  # two stores of one kind are slow to tell apart
            there = SQLiteBroker(file, synchronous="OFF", clock=clock)
        try:
            for source, target in ((here, there), (there, here)):
                waiting = count_of(source)
                moved = move(source, target, monotonic=lambda: float(next(ticks))).moved
                self.time.note("moved", moved)
                arrived = count_of(target)
                if self.time.turns > turns:  # others have sent and received messages meanwhile
                    continue
                if not waiting <= moved == arrived or count_of(source):  # it may reclaim more
                    self.seen.record.complain(
                        f"{moved} of {waiting} messages were moved, and {arrived} are there"
                    )
        except QWorkerError as error:
            self.time.note("cannot move", type(error).__name__)
        finally:
            there.close()

    def _remember(self, fault: Fault) -> None:
        """Remember what the crash *fault* restores. It happens after this, even if both are overdue."""
        self._at(fault.at + fault.seconds, "world", lambda: self._happen(fault))
        self.restore = self.stores.snapshot()
        self.remembered = {asked.name for asked in self.seen.asked if asked.called}
        self.calls = {name: len(made) for name, made in self.seen.record.called.items()}
        self.requeued = self.seen.record.requeued.copy()

    def _crash(self) -> None:
        for node in self.workers.values():
            if node not in self.removed:
                self._replace(node, kill=True)
        self.restore()
        self.seen.record.requeued = self.requeued
        for asked in self.seen.asked:
            del self.seen.record.called[asked.name][self.calls.get(asked.name, 0) :]
            asked.forgotten |= asked.begun and asked.name not in self.remembered

    def together(self, store: str) -> Sequence[str]:
        """Return the stores that are away, or full, whenever *store* is."""
        return (store,)

    def _back(self, absent: list[str], stores: Sequence[str]) -> None:
        self.time.note("back:", *stores)
        for store in stores:
            absent.remove(store)

    def _drift(self, fault: Fault, left: float) -> None:
        self.processes[fault.node].clock.gained += fault.seconds * TICK / DRIFT
        if left > TICK:
            self._at(self.time.now + TICK, "world", lambda: self._drift(fault, left - TICK))

    def _replace(self, node: WorkerNode, kill: bool) -> None:
        if kill:
            node.process.die()
        if node in self.removed:
            return
        self.removed.append(node)
        self._at(self.time.now + 1.0, "world", lambda: self._start_worker(node.name))

    def _mind(self) -> float:
        """Restart dead workers."""
        if self.time.nested > 1 and not self.quiet():  # else go() looks
            self.busy_at = self.time.now
        for name, node in list(self.workers.items()):
            if not node.process.alive and node not in self.removed:
                self._replace(node, kill=True)
            elif (failure := node.worker._crash) is not None and node not in self.removed:
                self.seen.crashed.append(f"{name}: the {failure[0]} failed: {failure[1]!r}")
                self._replace(node, kill=True)
        return 0.5

    def quiet(self) -> bool:
        """Return whether no work is left. Bypasses the seams."""
        if self.open or self.time.expects_events():
            return False
        if not all(node.process.alive and node.idle for node in self.workers.values()):
            return False
        observer = self.observer
        broker = observer.app.broker
        if any(
            info.ready or info.leased or (info.delayed and self._waits(info.queue))
            for info in broker.admin.queues()
        ):
            return False
        return self.unexcused() == 0

    def _waits(self, queue: str) -> bool:
        """Return whether a delayed message of *queue* will run: messages of unknown tasks are redelivered for
        a long time."""
        if self.schedules is None or not self.schedules.table.calls_nobody:
            return True
        delayed = self.observer.app.broker.admin.peek(queue, "delayed", 1000)  # type: ignore[attr-defined]
        return any(json.loads(each.headers).get("task") != "nobody" for each in delayed)

    def joins(self) -> int:
        """Return the number of open joins."""
        return 0 if not self.case.world.joins else self.observer.app.backend.joins.count()

    def unexcused(self) -> int:
        """Return the number of open joins that must not be left."""
        seen, count = self.seen, self.joins()
        if count and self.schedules is not None and seen.may_lose:
            opened, ids = seen.record.opened, self.stores.joins(self.observer.app.backend)
            kept = {asked.name for asked in seen.asked if seen.keeps_rolled_back(asked)}
            later = [id for id in ids if opened.get(id, math.inf) > seen.lost_until]
            return sum(seen.record.joins.get(id) not in kept for id in later)
        if not count or not seen.excused:
            return count - (len(self._abandoned()) if count else 0)
        excused = {asked.name for asked in seen.asked if seen.excuses(asked)}
        ids = {*self.stores.joins(self.observer.app.backend)} - self._abandoned()
        owners = map(seen.record.joins.get, ids)
        return sum(owner is not None and owner not in excused for owner in owners)

    def _abandoned(self) -> set[str]:
        """Return the open joins of which nobody sends the members: a worker that had opened them did not come
        to that, and its task was revoked, or that of a schedule had expired, when it was delivered again."""
        record, revoked = self.seen.record, {asked.name for asked in self.seen.asked if asked.revoked}
        entries = () if self.schedules is None else self.schedules.table.entries
        if not (revoked or any("expires" in entry.fields for entry in entries)) or not self.seen.fired:
            return set()
        ids = {*self.stores.joins(self.observer.app.backend)} - record.joined
        return {id for id in ids if record.joins.get(id) in {None, *revoked}}

    def go(self) -> Seen:
        time, seen = self.time, self.seen
        time.actors.append(Actor("world", "supervisor", self._mind))
        # Django may have an open transaction, and edits must not overlap.
        if self.case.django is None and self.case.schedules is None:
            time.pauses, time.long = self.case.world.pauses, self.case.world.long
        try:
            since = None
            while True:
                time.pump(time.now + 1.0)
                if not self.quiet():
                    since = None
                elif since is None:
                    since = time.now
                    # Where a caller has waited in vain for a lost task, nothing else may have happened.
                    ended = self.busy_at if seen.stuck else since
                    faults = (met.at + met.fault.seconds for met in seen.met)
                    seen.rested = ended - max(self.last, *faults, self._put_off()) - time.took
                elif time.now - since >= (SETTLED + self._ahead() if self.joins() else self.settled):
                    break
                late = time.now - PATIENCE
                if since is None and late > self.last and late > self._put_off():
                    seen.stuck = "; ".join(filter(None, (seen.stuck, self._why())))
                    break
        except Stuck as error:
            seen.stuck = str(error)
        time.pauses = time.long = 0.0
        self._look()
        if self.case.linger and not seen.stuck:
            self._linger()
        return seen

    def _put_off(self) -> float:
        """Return when the last delay within an order is over: it begins later if faults hold up the work
        before it, or its caller waits for another order."""
        spans = [
            (met.at, met.at + met.fault.seconds) for met in self.seen.met if met.fault.kind in HOLDING_UP
        ]
        ends = [0.0]
        for order, asked in zip(self.case.orders, self.seen.asked, strict=False):  # none of Django's jobs
            now, within = max(order.at, asked.sent_at), asked.delays - (order.options.get("countdown") or 0.0)
            end = now + asked.delays
            for begins, over in sorted(spans) if within else ():
                if begins < end and over > now:
                    end += over - max(begins, now)
                    now = over
            ends.append(end)
        return max(ends)

    def _ahead(self) -> float:
        """Return the seconds by which the clock of a process may be ahead of another."""
        jumps = sum(abs(fault.seconds) for fault in self.seen.fired if fault.kind in ("drift", "jump"))
        return jumps + self.case.world.skew * len(self.processes)

    def _linger(self) -> None:
        """Let time pass until everything has expired and been swept; record what is left."""
        time, record = self.time, self.seen.record
        told = {name: Counter(each) for name, each in record.told.items()}
        abandoned = bool(self._abandoned())
        left: dict[str, int] = {}
        for _ in range(ROUNDS):
            time.limit += 2 * LONG
            time.now += LONG
            until = time.now + SWEPT
            while time.now < until and (left := self.stores.left()):
                time.pump(time.now + SWEPT / 20)
        self.seen.left_for_ever = left and self.stores.left()
        for asked in self.seen.asked:  # their remaining joins have failed by now and called their errbacks
            if (self.seen.excuses(asked) or (asked.revoked and abandoned)) and not asked.rolled_back:
                record.told[asked.name] = told.get(asked.name, Counter())

    def _why(self) -> str:
        broker = self.observer.app.broker
        waits = {"orders not called": self.open, "open joins": self.joins()}
        for info in broker.admin.queues():
            waits |= {
                f"{state} messages of {info.queue}": getattr(info, state)
                for state in ("ready", "delayed", "leased")
            }
        told = [f"{what}: {count}" for what, count in waits.items() if count]
        told += [f"{name} is busy" for name, node in self.workers.items() if not node.idle]
        return f"something still waits ({', '.join(told)})"

    def _look(self) -> None:
        seen, time = self.seen, self.time
        self.to_come.clear()
        seen.turns, seen.seconds, seen.log = time.turns, time.now, time.log
        seen.took = time.took
        seen.refused = dict.fromkeys(self._refused())
        for asked in seen.asked:  # a call that has begun is only revoked if it is delivered again
            ran = [seen.record.ran_at(asked.name, id) for id in asked.expires]
            asked.revoked |= bool(ran) and (bool(seen.fired) or not all(ran))
        seen.tasks = sum(map(len, seen.record.runs.values()))
        app = self.observer.app
        broker = app.broker
        if self.case.world.by_messages:
            seen.look(lambda asked: self.callers[int(asked.name[1:]) % 2].app)
        elif not self.stores.disabled:
            with mock.patch.object(app.backend, "get", cache(app.backend.get)):  # nothing changes meanwhile
                seen.look(lambda _: app)
                seen.refused = {id: self._ended(id) for id in seen.refused}
                seen.odd = list(self._oddities())
                expiring = self.case.seed % 4 == 0 and not self.case.linger
                ends = self._ends() if expiring else {}
            if ends:
                seen.odd += self._expiring(ends)
        if self.schedules is not None:
            self.schedules.look()
        seen.left = {
            "dead": [letter.reason for letter in broker.admin.dead(None, 1000)],
            "joins": self.unexcused(),
        }
        if "failed" in broker.letters:
            seen.left["failed"] = len(list(broker.letters["failed"].newest()))

    def _refused(self) -> set[Any]:
        """Return the ids of tasks of which a store has refused a result."""
        refused = {each for met in self.seen.met if met.fault.method == OF_ROW for each in met.about}
        return refused & self.seen.record.begun.keys()

    def _oddities(self) -> Iterator[str]:
        """Yield results that ended at a wrong time, or lack the traceback or the calls of their task, or have
        calls of one without a trail."""
        seen, now, ahead = self.seen, self.time.now, self._ahead() + ROUNDING
        numbers = dict(seen.record.headers.keys())
        for asked in seen.asked:
            parts = [part for part in asked.parts if isinstance(part, Call)]
            known = {part.number for part in parts if part.instead is None}
            # Each attempt may wait for the time of another clock.
            longer = asked.delays + ahead * (1 + sum(part.retries for part in parts))
            for id in (each.id for made in asked.results for each in calls_of(made)):
                begun, meta = seen.record.begun.get(id), self._ended(id)
                if meta and meta["status"] == states.REVOKED and id not in seen.record.figures.revoked:
                    yield f"{asked.name}: {id} was revoked without a signal"
                if not begun or meta is None:
                    continue
                started = (
                    id in seen.record.starts or asked.revoked
                )  # a long run that is terminated only waits
                if self.case.world.track_started and not seen.fired and not started:
                    yield f"{asked.name}: {id} was never stored as started"
                error = meta["result"]["exc_type"] if meta["status"] == states.FAILURE else ""
                if error and error not in RAISED and seen.may_lose_of(asked):
                    continue  # its worker died, or that of a call before it, which was replaced all the same
                # One of two calls may write into a result of the other; so may one whose join has expired,
                # and a join that is finished again after its results were forgotten, and an attempt that was
                # cut short, or delivered again and revoked, after its retry was sent.
                kin = seen.record.kin.get(id, {})
                earlier = meta["status"] != states.SUCCESS and kin.get("parent_id") == id
                gone = self.case.world.forgets or asked.name in seen.record.dropped or earlier
                made_anew = asked.order.how == "twice" or id in seen.refused
                kin = {} if made_anew or (seen.fired and gone) else kin
                if kin != (told := {name: meta.get(name) for name in kin}):
                    yield f"{asked.name}: the result of {id} has {told}, not {kin}"
                done = self._done(meta)
                last = now if seen.fired else begun[-1] + AT_LAST + self.time.took
                if not begun[0] - ahead <= done <= last + longer:
                    yield f"{asked.name}: {id} began at {begun} and ended at {done}"
                raised = (
                    error in RAISED and numbers.get(id) in known
                )  # not the error of a member of its header
                if raised and 'program.py", line ' not in (meta["traceback"] or ""):
                    yield f"{asked.name}: {id} has no traceback of its {error}"
        for id, parent in seen.record.parents.items():
            meta = self._ended(parent)
            killed = (
                meta is not None
                and meta["status"] != states.SUCCESS
                and meta["result"]["exc_type"] not in RAISED
            )
            has_trail = False not in seen.record.trails[parent]
            if meta is not None and not killed and has_trail and not meta["children"]:
                yield f"{parent} has called {id}, and has no children"
        for id, trails in seen.record.trails.items():
            if trails == {False} and (meta := self._ended(id)) is not None and meta["children"]:
                yield f"{id} has the children {meta['children']}, and no trail"

    def _ends(self) -> dict[str, float]:
        """Return the ids of tasks that have ended, and when; without graphs, of which values may be kept
        several times as long."""
        plain = [asked for asked in self.seen.asked if not isinstance(asked.order.flow, Graph)]
        calls = [each.id for asked in plain for made in asked.results for each in calls_of(made)]
        return {id: self._done(meta) for id in calls if (meta := self._ended(id)) is not None}

    def _expiring(self, ends: dict[str, float]) -> Iterator[str]:
        """Yield results that are gone before they expire, or still there after that."""
        seen, clock, backend = self.seen, self.observer.clock, self.observer.app.backend
        skew, expires, margin = clock.skew, self.case.world.result_expires, self._ahead() + 1.0
        longer = max(asked.delays for asked in seen.asked)  # for which values of members are kept
        if (until := min(ends.values()) + expires - margin) > self.time.now:
            clock.skew = self.begins_at + until - self.time.now
            yield from (f"{id} is gone before it expires" for id in ends if self._ended(id) is None)
        clock.skew = self.begins_at + max(ends.values()) + expires + longer + margin - self.time.now
        while backend.sweep(clock.now()):
            pass
        yield from (f"{id} has not expired" for id in ends if self._ended(id) is not None)
        clock.skew = skew

    def _done(self, meta: Any) -> float:
        """Return when the task with *meta* has ended, in seconds of the world."""
        return datetime.fromisoformat(meta["date_done"]).timestamp() - START - self.begins_at

    def _ended(self, id: str) -> Any:
        """Return the metadata of the task *id*; None if it has not ended, or they cannot be read."""
        try:
            meta = self.observer.app.backend.get(id)
        except DamagedResult:
            return None
        return meta if meta is not None and meta["status"] in states.READY_STATES else None

    def close(self) -> None:
        for process in self.begun:  # an app that is closed must not call a dead process
            process.alive = True
        self.away.clear()
        self.full.clear()
        self.cut.clear()
        if self.schedules is not None:
            self.schedules.close()
        self.stores.close()


def count_of(broker: Any) -> int:
    """Return how many messages wait in *broker*."""
    return sum(info.ready + info.delayed for info in broker.admin.queues())


def all_ids(asked: Sequence[Asked]) -> list[str]:
    """Return the ids of all calls of *asked* that may not have ended."""
    return [id for each in asked for result in each.results for id in ids_of(result)]


def meddle(kind: str, app: QWorker, note: Callable[..., None], ids: Sequence[str]) -> Collection[int] | None:
    """Do one of OF_OPERATORS; return the tags of letters that are refused, None if it fails. ids: of calls
    that a stranger tries to revoke."""
    try:
        if kind == "retry failed":
            return app.failed.retry().refused
        elif kind == "retry dead":
            app.broker.admin.dead_retry()
        else:
            write_as_stranger(app, note)
            revoke_as_stranger(app, ids)
    except QWorkerError as error:
        note("cannot", kind, type(error).__name__)
        return None
    return ()


STRANGERS = {"flow": "stranger", "number": 0, "fails": False, "retries": 0}
"""The arguments of a call that requires the key."""


def of_stranger() -> tuple[dict[str, str], str, bytes]:
    """Return the headers, properties and body of that call, unsigned."""
    headers = {
        "lang": "py", "task": "call", "id": "stranger", "root_id": "stranger", "argsrepr": "()",
        "kwargsrepr": "{}",
    }  # fmt: skip
    properties = json.dumps({"content_type": "application/json", "content_encoding": "utf-8"})
    return headers, properties, json.dumps([[], STRANGERS, {}]).encode()


def fail_as_stranger(app: QWorker, note: Callable[..., None]) -> None:
    """Add that call to the failed tasks, which an operator resends."""
    if app.signer is None or "failed" not in app.broker.letters:
        return
    headers, properties, body = of_stranger()
    consumer = app.broker.consumer
    try:
        app.broker.sender.push([Envelope("strange", json.dumps(headers), properties, body)])
        generation = consumer.register("stranger@sim", ["strange"], 1)
        found = consumer.lease(["strange"], 1).messages
        consumer.settle(generation, [DeadLetter(each.tag, "ValueError()", failed=True) for each in found])
        consumer.deregister()
    except QWorkerError as error:
        note("a stranger is refused", type(error).__name__)


def forge(app: QWorker, joins: Sequence[Join]) -> None:
    """Record, without the key, ends of other calls as parts of *joins*."""
    if app.signer is None:
        return
    backend = app.backend
    row = backend.row(THEIRS, backend.meta(THEIRS, states.SUCCESS, THEIRS))
    backend.store_rows([row])
    backend.joins.add(
        [Part(join.id, number, THEIRS, states.SUCCESS) for join in joins for number in range(join.size)]
    )


def changed(app: QWorker) -> Iterator[Envelope]:
    """Yield that call, signed with the key, and then changed without it."""
    with holding_back(app) as held:
        app.send_task("call", kwargs=STRANGERS, task_id="changed")
    for change in ({"qworker_joins": [["theirs", 0]]}, {"id": "other"}, {"task": "acall"}):
        yield held[0]._replace(headers=json.dumps(json.loads(held[0].headers) | change))


def write_as_stranger(app: QWorker, note: Callable[..., None]) -> None:
    """Push malformed messages, and two that require the key."""
    headers, properties, body = of_stranger()
    for envelope in (
        *(
            Envelope("celery", text, properties, content)
            for text, content in (
                ("", b""), ("{", b"{"), ("[]", b"[]"), ('{"id": 5}', b"\xff"),
                (json.dumps({**headers, "id": "odd"}), b"\x00"),
                (json.dumps({**headers, "id": "deep"}), b"[" * 10_000),
                (json.dumps({**headers, "id": "nameless", "task": None}), body),
                (json.dumps(headers), body),
            )
        ),
        *changed(app),
    ):  # fmt: skip
        try:
            app.broker.sender.push([envelope])
        except QWorkerError as error:
            note("a stranger is refused", type(error).__name__)


POISON: tuple[tuple[dict[str, Any], dict[str, Any], bytes], ...] = (
    ({"task": "nobody"}, {}, b"[[], {}, {}]"),
    ({"task": "nobody"}, {"content_type": "application/x-python-serialize"}, b"\x80"),
    ({"task": 5}, {}, b"[[], {}, {}]"),
    ({"id": None}, {}, b"[[], {}, {}]"),
    ({"eta": "tomorrow"}, {}, b"[[], {}, {}]"),
    ({"expires": []}, {}, b"[[], {}, {}]"),
    ({"retries": "many"}, {}, b"[[], {}, {}]"),
    ({"timelimit": "long"}, {}, b"[[], {}, {}]"),
    ({"compression": "none such"}, {}, b"[[], {}, {}]"),
    ({"compression": "gzip"}, {}, b"[[], {}, {}]"),
    ({}, {"content_type": "text/odd"}, b"[[], {}, {}]"),
    ({}, {}, b"\xff\xfe"),
    ({}, {}, b"{}"),
    ({}, {}, b"[1, 2, 3]"),
)
"""Headers, properties and bodies of messages that no worker can run."""


def poison(app: QWorker, note: Callable[..., None]) -> int:
    """Send what no worker can run, to all queues in turn; return how many messages become dead letters."""
    taken = 0
    for number, (headers, properties, body) in enumerate(POISON):
        told = {"lang": "py", "task": "nothing", "id": f"poison{number}", **headers}
        given = {"content_type": "application/json", "content_encoding": "utf-8", **properties}
        envelope = Envelope(QUEUES[number % 2], json.dumps(told), json.dumps(given), body)
        try:
            app.broker.sender.push([envelope])
            taken += 1
        except QWorkerError as error:
            note("a poisoned message is refused", type(error).__name__)
    return taken


def revoke_as_stranger(app: QWorker, ids: Sequence[str]) -> None:
    """Revoke *ids* without the key, and with the signature of another revocation."""
    revocations = app.broker.revocations
    if app.signer is None or revocations is None or not ids:
        return
    copied = app.signer.sign_order("revoke", "another", False, "SIGTERM")
    for signal in ("SIGTERM", f"SIGTERM {copied}"):
        revocations.sender.revoke(ids, signal=signal)


def id_of(headers: str) -> Any:
    """Return the id of the task in *headers*; None if a stranger wrote them."""
    try:
        return json.loads(headers)["id"]
    except (ValueError, KeyError, TypeError):
        return None


def _kind_of(case: Case) -> type[Running]:
    if case.django is None:
        return Running
    from tests.simulation.django_world import DjangoRunning  # sets up Django

    return DjangoRunning


def run(case: Case, trace: Trace | None = None) -> Seen:
    """Run *case*; return what was seen. trace: adds to the log which tasks store calls are about."""
    directory = Path(tempfile.mkdtemp(prefix="qworker-sim-", dir=MEMORY if MEMORY.is_dir() else None))
    errors: list[str] = []
    collecting = gc.isenabled()
    gc.disable()
    running = None
    seen = Seen(case, Record())
    with heard("qworker", errors):
        try:
            with determined(case.seed), mock.patch.object(workflows, "SEGMENT", case.world.segment):
                try:
                    running = _kind_of(case)(case, directory, trace)
                    seen = running.seen
                    with ExitStack() as stack:
                        stack.enter_context(seen.record.figures.heard())
                        if any(fault.kind == "die" for fault in case.faults):
                            stack.enter_context(reaching(running._reach))
                        running.go()
                except Exception:  # noqa: BLE001 - a search continues with other cases
                    seen.broken = f"the simulator failed: {traceback.format_exc()}"
                    if running is not None:
                        seen.log = running.time.log
            seen.errors += errors
            return seen
        finally:
            if running is not None:
                running.close()
            shutil.rmtree(directory, ignore_errors=True)
            if collecting:
                gc.enable()


__all__ = ["HAPPENINGS", "Seen", "run"]
os.environ.setdefault("PYTHONHASHSEED", "0")
