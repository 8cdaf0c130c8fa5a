"""case: a world, a program and faults as plain data.

Comes from:  ``drawing`` (from a seed), ``shrinking``, and pasted tests.
Goes to:     ``run``.
Thread:      any; pure.

The repr() of a case leaves out default values, so that shrunk cases are readable.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from qworker.canvas.plan import SEGMENT
from tests.support.flows import Call, Chain, Chord, Chunks, Errback, Graph, Group, Mapping, Node, Pipe, Short

__all__ = [
    "Call", "Case", "Chain", "Chord", "Chunks", "Django", "Edit", "Entry", "Errback", "Fault", "Graph",
    "Group", "Job", "Mapping", "Node", "Order", "Pipe", "Timetable", "World", "replace",
]  # fmt: skip


@dataclass(frozen=True, repr=False)
class World(Short):
    """The dimensions of a world. stores: see ``stores.STORES``. key: "", "signed", or "late" (all processes
    are restarted with the key once the first half of the orders has been called). segment: how many steps of
    a chain go into one message. pauses: the probability of a pause before a store call. long: the probability
    that a run takes ``nodes.LONG_RUN``. rate: the rate limit of tasks, in runs per second. route_expires: the
    ``expires`` that ``task_routes`` has for the calls of a flow, in seconds; 0: none. route_priority: their
    ``priority`` there; 0: none. extended: the setting ``result_extended``."""

    stores: str = "memory"
    workers: int = 2
    concurrency: int = 2
    acks_late: bool = True
    prefetch: int = 4
    keep_failed: bool = True
    key: str = ""
    base: str = "plain"
    middleware: bool = False
    flush: float = 0.01
    skew: float = 0.0
    async_concurrency: int = 10
    track_started: bool = False
    result_expires: float = 86400.0
    serializer: str = "json"
    segment: int = SEGMENT
    pauses: float = 0.0
    long: float = 0.0
    rate: float = 0.0
    route_expires: float = 0.0
    route_priority: int = 0
    extended: bool = False

    @property
    def by_messages(self) -> bool:
        """Whether results are messages to the calling process."""
        return self.stores.endswith("rpc")

    @property
    def joins(self) -> bool:
        """Whether there are joins, and results that every process can read."""
        return not self.stores.endswith(("disabled", "rpc"))

    @property
    def forgets(self) -> bool:
        """Whether results expire before all calls are made."""
        return self.result_expires < 100.0


@dataclass(frozen=True, repr=False)
class Order(Short):
    """A call of *flow* at second *at*. how: see ``nodes.HOW``. ask: see ``nodes.ASK``. options: for
    apply_async(). stamped: whether the whole flow has a stamp. revoke_at: seconds after the call; terminate:
    what runs is ended, too."""

    flow: Any
    at: float = 0.0
    how: str = "call"
    ask: str = "later"
    given: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    stamped: bool = False
    revoke_at: float | None = None
    terminate: bool = False


@dataclass(frozen=True, repr=False)
class Fault(Short):
    """A fault. kind: see ``seams.KINDS`` and ``run.HAPPENINGS``.

    node, method, nth: the call that fails; for "die", method is the crash point. The node
    "worker" is whichever worker makes its nth such call first. For
    "cut", method is the store.
    at, seconds: the time and duration of timed faults.
    """

    kind: str
    node: str = ""
    method: str = ""
    nth: int = 1
    at: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, repr=False)
class Entry(Short):
    """A schedule entry. when: see ``schedules.schedule_of``. task: see ``schedules.define``. source:
    "settings", "code", or "hand" if an edit adds it. fields: its other fields; start and end are seconds of
    the world. wrong: a key of ``schedules.WRONG``."""

    name: str = "e0"
    when: tuple[Any, ...] = ("every", 10.0)
    task: str = "tick"
    source: str = "settings"
    fields: dict[str, Any] = field(default_factory=dict)
    wrong: str = ""


@dataclass(frozen=True, repr=False)
class Edit(Short):
    """A change of the entry *name* at second *at*. what: a method of ``app.schedules``; "stranger" to write
    into the store without the key; or "damage" to overwrite the result of the last call. entry: for "add" and
    "stranger". fields: for "set"."""

    what: str = "pause"
    name: str = "e0"
    at: float = 5.0
    entry: Entry | None = None
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Timetable(Short):
    """Schedules that are run by *beats* processes for *seconds*. store: "" for the default, "other" for a
    separate file. start: the initial time of wall clocks, in seconds since ``world.START``."""

    beats: int = 2
    store: str = ""
    timezone: str = "UTC"
    start: float = 0.0
    seconds: float = 40.0
    entries: tuple[Entry, ...] = ()
    edits: tuple[Edit, ...] = ()

    @property
    def calls_nobody(self) -> bool:
        """Whether entries call an unknown task, whose messages are redelivered for a long time."""
        entries = (*self.entries, *(each.entry for each in self.edits))
        return any(each is not None and each.task == "nobody" for each in entries)


@dataclass(frozen=True, repr=False)
class Job(Short):
    """A request of a Django project at second *at*. kind: see ``django_world.JOBS``. size: how many calls.
    fails: the number of the call that fails, or -1; for a task, how many attempts fail. ask: "later", or
    "wait" to wait for the result. by_class: it is called with AsyncTask, Iter or Chain. atomic: "", or how
    the call's transaction ends: "commit" or "rollback".

    For schedules, size is the number of runs. every: a letter of ``Schedule.TYPE``, or a crontab. due:
    seconds from *at* to the first run, unless a crontab sets it. change: "", "delete" or "now" (make it due
    at once), *change_at* seconds after the call."""

    kind: str = "task"
    at: float = 0.0
    size: int = 1
    fails: int = -1
    hook: bool = False
    cached: bool = False
    sync: bool = False
    save: bool | None = None
    ack_failure: bool | None = None
    ask: str = "later"
    by_class: bool = False
    atomic: str = ""
    every: str = "I"
    due: float = 0.0
    once: bool = False
    intended: bool = False
    change: str = ""
    change_at: float = 0.0

    @property
    def crontab(self) -> str | None:
        return self.every if " " in self.every and not self.once else None


@dataclass(frozen=True, repr=False)
class Django(Short):
    """A Django project: its clusters' settings, and *jobs*."""

    jobs: tuple[Job, ...] = ()
    save_limit: int = 250
    save_limit_per: str | None = None
    ack_failures: bool = True
    catch_up: bool = True
    max_attempts: int = 0
    time_zone: str = "UTC"


@dataclass(frozen=True, repr=False)
class Case(Short):
    """A case. seed: determines the order of steps. linger: let time pass at the end until everything has
    expired. django: a Django project, instead of orders."""

    world: World = World()
    orders: tuple[Order, ...] = ()
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    linger: bool = False
    schedules: Timetable | None = None
    django: Django | None = None
