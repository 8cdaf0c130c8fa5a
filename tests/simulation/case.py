"""Cases: a world, a program and faults as plain data.

Comes from:  ``drawing`` (from a seed), ``shrinking``, and tests that somebody pasted.
Goes to:     ``run``.
Thread:      any; pure.

``repr()`` of a case leaves out what is as usual, so that a case that was made smaller can be read.
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
    """The dimensions of a world. stores: see ``stores.STORES``. key: "", "signed", or "late" (all
    processes are started anew with it when the first half of the orders has been called). segment: so many
    steps of a chain go into one message. pauses: how often others step between two calls of a store. long:
    how often a run takes ``nodes.LONG_RUN``."""

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

    @property
    def forgets(self) -> bool:
        """Whether results are gone before all calls are made."""
        return self.result_expires < 100.0


@dataclass(frozen=True, repr=False)
class Order(Short):
    """A call of *flow* at second *at*. how: see ``nodes.HOW``. ask: see ``nodes.ASK``. options: of
    apply_async(). stamped: whether all of it has a stamp. revoke_at: seconds after the call."""

    flow: Any
    at: float = 0.0
    how: str = "call"
    ask: str = "later"
    given: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    stamped: bool = False
    revoke_at: float | None = None


@dataclass(frozen=True, repr=False)
class Fault(Short):
    """What goes wrong. kind: see ``seams.KINDS`` and ``run.HAPPENINGS``.

    node, method, nth: at which call. at, seconds: when, and for how long, of what happens at a time.
    """

    kind: str
    node: str = ""
    method: str = ""
    nth: int = 1
    at: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, repr=False)
class Entry(Short):
    """An entry of a schedule. when: see ``schedules.schedule_of``. task: see ``schedules.define``. source:
    "settings", "code", or "hand" for one that an edit adds. fields: what else it says; start and end are
    seconds of the world. wrong: what is wrong with it; see ``schedules.WRONG``."""

    name: str = "e0"
    when: tuple[Any, ...] = ("every", 10.0)
    task: str = "tick"
    source: str = "settings"
    fields: dict[str, Any] = field(default_factory=dict)
    wrong: str = ""


@dataclass(frozen=True, repr=False)
class Edit(Short):
    """Somebody changes the entry *name* at second *at*. what: a method of ``app.schedules``; "stranger", who
    writes into the store by himself; or "damage", of the result of the last call. entry: of "add" and
    "stranger". fields: of "set"."""

    what: str = "pause"
    name: str = "e0"
    at: float = 5.0
    entry: Entry | None = None
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Timetable(Short):
    """Schedules, which *beats* processes look after for so many *seconds*. store: "" for where the settings
    say without a word of it, "other" for a file of its own. start: what wall clocks show at first, in seconds
    since ``world.START``."""

    beats: int = 2
    store: str = ""
    timezone: str = "UTC"
    start: float = 0.0
    seconds: float = 40.0
    entries: tuple[Entry, ...] = ()
    edits: tuple[Edit, ...] = ()

    @property
    def calls_nobody(self) -> bool:
        """Whether there are messages for a task that no worker knows, which come back for long."""
        entries = (*self.entries, *(each.entry for each in self.edits))
        return any(each is not None and each.task == "nobody" for each in entries)


@dataclass(frozen=True, repr=False)
class Job(Short):
    """What a Django project asks for at second *at*. kind: see ``django_world.JOBS``. size: how many calls.
    fails: which of them raises an error, -1 for none; of a task: in how many of its attempts. ask: "later",
    or "wait" for who waits for the result. atomic: "", or how the transaction of the call ends: "commit" or
    "rollback".

    Of schedules: size is the number of runs. every: a letter of ``Schedule.TYPE``, or a crontab. due: seconds
    from *at* to the first run; a crontab says that itself. change: "", "delete" or "now", which makes it due
    at once, *change_at* seconds after the call."""

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
    """A Django project: settings of its clusters, and *jobs*."""

    jobs: tuple[Job, ...] = ()
    save_limit: int = 250
    save_limit_per: str | None = None
    ack_failures: bool = True
    catch_up: bool = True
    max_attempts: int = 0
    time_zone: str = "UTC"


@dataclass(frozen=True, repr=False)
class Case(Short):
    """seed: of who steps next. linger: afterwards time passes until everything has expired. django: what a
    Django project does; then there are no orders."""

    world: World = World()
    orders: tuple[Order, ...] = ()
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    linger: bool = False
    schedules: Timetable | None = None
    django: Django | None = None
