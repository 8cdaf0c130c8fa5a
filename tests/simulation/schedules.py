"""schedules: the schedules of a world: the processes that run and edit them, and the tasks that they call.

Comes from:  ``run``, with the Timetable of a case.
Goes to:     ``due_times``, with the calls and the edits' outcomes.
Thread:      the world's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import UTC, datetime
from typing import Any

from qworker import QWorker, chord, group
from qworker.beat import clocked, crontab, rrule, schedule
from qworker.beat.catalog import Edit as Written
from qworker.beat.overlap import Overlaps, Question
from qworker.beat.schedule import Schedule
from qworker.beat.serialization import to_json, write_fields
from qworker.beat.service import Beat
from qworker.beat.store import ScheduleStore
from qworker.beat.stores import open_store
from qworker.errors import BrokerUnavailable
from tests.simulation.case import Edit, Entry, Fault, Timetable
from tests.simulation.nodes import Caller, Node
from tests.simulation.seams import Process, watch
from tests.simulation.world import START, Actor, Killed

SCHEDULES = (
    "look", "take", "renew", "resign", "rows", "row", "edit", "note", "prune", "fire", "pending", "sent",
    "slots", "sweep", "prepare",
)  # fmt: skip
RESTART_SECONDS = 1.0
LONGEST_TROUBLE = 30.0
SLEEP_SECONDS = 3.0
"""How long the task "slow" takes."""


class Failing(Schedule):
    """A project's own schedule class that raises errors."""

    def next(self, after: datetime) -> datetime | None:
        raise RuntimeError("no time")

    previous = next


WRONG: dict[str, Any] = {
    "no task": {"schedule": 5.0},
    "no entry": ["tick", 5.0],
    "no crontab": {"task": "tick", "schedule": "99 * * * *"},
    "a typo": {"task": "tick", "schedule": 5.0, "ennabled": True},
    "fails": {"task": "tick", "schedule": Failing()},
    "arguments": {"task": "tick", "schedule": 5.0, "args": (lambda: None,)},
    "options": {"task": "tick", "schedule": 5.0, "options": {"countdown": "soon"}},
    "raises": {"task": "raising", "schedule": 5.0},
    "waits": {"task": "waiting", "schedule": 5.0},
}
"""Invalid entries in settings, which are never called and must not stop others."""


def schedule_of(when: tuple[Any, ...], base: float) -> Schedule:
    """Return the schedule for ``("every", seconds)``, ``("cron", text, zone or "")``, ``("at", second of the
    world)`` or ``("rule", seconds of each minute)``. base: epoch seconds at second 0."""
    kind, *given = when
    if kind == "every":
        return schedule(given[0])
    if kind == "cron":
        return crontab.from_text(given[0], given[1] or None)
    if kind == "at":
        return clocked(datetime.fromtimestamp(base + given[0], UTC))
    minutes, seconds = ",".join(map(str, range(60))), ",".join(map(str, given[0]))
    return rrule(f"FREQ=HOURLY;BYMINUTE={minutes};BYSECOND={seconds}")


def fields_of(entry: Entry, base: float) -> dict[str, Any]:
    """Return the fields of *entry* for ``beat_schedule`` and add()."""
    return {
        "task": entry.task,
        "schedule": schedule_of(entry.when, base),
        **instants(entry.fields, base),
    }


def instants(fields: dict[str, Any], base: float) -> dict[str, Any]:
    """Return *fields* with datetimes for seconds of the world."""
    return {
        name: datetime.fromtimestamp(base + value, UTC) if name in ("start", "end") and value else value
        for name, value in fields.items()
    }


@dataclass(frozen=True)
class Run:
    """A run of an entry's task. due: epoch seconds. given, started, ended: seconds of the world; given is
    when the pool received it, ended is None if it was interrupted."""

    name: str
    due: float
    task: str
    task_id: str
    args: tuple[Any, ...]
    given: float
    started: float
    ended: float | None


@dataclass(frozen=True)
class Done:
    """The outcome of an edit. error: "" for none. unsure: it may have been made in spite of the error. place:
    its position among edits, which may overlap."""

    edit: Edit
    at: float
    error: str = ""
    unsure: bool = False
    result: Any = None
    place: int = 0


@dataclass
class Led:
    """Turns of leaders whose clocks were ahead by *skew* seconds, one after another. first, last: when the
    first and the last of them ended."""

    skew: float
    first: float
    last: float


@dataclass
class Story:
    """What was seen of the schedules of a run. slots: (due, at, task_id) by entry name; None if they cannot
    be read. led: whose clock applied when."""

    table: Timetable
    base: float
    runs: list[Run] = dataclass_field(default_factory=list)
    edits: list[Done] = dataclass_field(default_factory=list)
    led: list[Led] = dataclass_field(default_factory=list)
    slots: dict[str, list[tuple[float, float, str]]] | None = None
    shared: bool = True
    together: bool = True
    """Whether slots and messages are stored atomically."""
    ended: float = 0.0


class BeatNode(Node):
    """A process that runs the schedules. stopping: it may take time, while other nodes step. story: notes
    when this process leads."""

    beat: Beat
    stopping = False

    def begin(self, store: ScheduleStore, story: Story) -> None:
        self.story = story
        self.failure: BaseException | None = None
        self.beat = Beat(self.app, lambda name, error: None, store)
        self.beat._overlaps = Overlaps(self.app, self.beat._wrong.note, Question.run)
        self.time.actors.append(Actor(self.name, "beat", self._step, self.time.now))

    def _step(self) -> float | None:
        if not self.process.alive:
            raise Killed(self.name)
        try:
            rest = self.beat.step(self.clock.monotonic())
        except Exception as error:  # noqa: BLE001 - reported like a component's crash
            self.failure = error
            return None
        finally:
            if self.beat.leadership.lease is not None:
                self._led()
        if not self.process.alive:
            raise Killed(self.name)
        return max(rest, 0.001)

    def _led(self) -> None:
        led, now = self.story.led, self.time.now
        skew = round(self.clock.now() - self.story.base - now, 6)
        if not led or led[-1].skew != skew:
            led.append(Led(skew, now, now))
        led[-1].last = now

    def stop(self) -> None:
        if self.stopping:
            return
        self.stopping = True
        self.time.remove(self.name)
        self.beat.closed()


class Schedules:
    """The schedules of a running world. running: the ``run.Running``."""

    def __init__(self, running: Any, table: Timetable) -> None:
        self.running = running
        self.time = running.time
        self.table = table
        self.story = Story(table, START + table.start)
        self.beats: dict[str, BeatNode] = {}
        self.over = False
        self.stores: list[Any] = []
        self._edited: list[tuple[str, range]] = []
        """Callers whose edits have ended, with the log lines during each edit."""

    # -- each node --

    def equip(self, app: QWorker, process: Process) -> None:
        """Add the entries and their tasks to *app*."""
        table, base = self.table, self.story.base
        app.conf.timezone = table.timezone
        if table.store == "other":
            app.conf.beat_store = f"sqlite:///{self.running.directory}/beat.db"
        entries: dict[str, Any] = {}
        for entry in table.entries:
            if entry.wrong:
                entries[entry.name] = WRONG[entry.wrong]
            elif entry.source == "settings":
                entries[entry.name] = fields_of(entry, base)
            elif entry.source == "code":
                said = {**fields_of(entry, base)}
                when, task = said.pop("schedule"), said.pop("task")
                args = said.pop("args", ())
                app.add_periodic_task(when, app.signature(task, args=args), name=entry.name, **said)
        app.conf.beat_schedule = entries
        define(app, process, self)

    def store(self, node: Node) -> Any:
        """Return the schedule store of *node*, with its calls watched."""
        made: Any = open_store(node.app)
        watch(node.process, "schedules", made, SCHEDULES, "beat.")
        self.stores.append(made)
        return made

    # -- from start to end --

    def start(self) -> None:
        """Start the beats, and plan the edits."""
        for number in range(self.table.beats):
            self._start_beat(f"beat{number}")
        for caller in self.running.callers:
            caller.app.schedules._opened = self.store(caller)
        for number, edit in enumerate(self.table.edits):
            caller = self.running.callers[number % 2]
            self.running._at(edit.at, caller.name, lambda edit=edit, caller=caller: self._edit(edit, caller))
        self.running._at(self.table.seconds, "world", self._end)
        self.time.actors.append(Actor("world", "beats", self._mind))

    def _start_beat(self, name: str) -> None:
        if self.over:
            return
        node = self.running._node(BeatNode, name)
        self.beats[name] = node
        node.begin(self.store(node), self.story)
        self.story.shared = node.beat.store.shared
        self.story.together = node.beat.store.is_with(node.app.broker.sender)

    def _mind(self) -> float | None:
        if self.over:
            return None
        for name, node in list(self.beats.items()):
            if node.failure is not None:
                self.running.seen.crashed.append(f"{name}: {node.failure!r}")
                node.process.die()
            if not node.process.alive:
                del self.beats[name]
                self.running._at(self.time.now + RESTART_SECONDS, "world", lambda n=name: self._start_beat(n))
        return 0.1

    def happen(self, fault: Fault) -> bool:
        """Apply a fault to a beat; return False if it is not for one."""
        node = self.beats.get(fault.node)
        if node is None or fault.kind not in ("kill", "restart"):
            return False
        if fault.kind == "restart":
            self.running.between(node, lambda: self._restart(node))
        else:
            node.process.die()
        return True

    def _restart(self, node: BeatNode) -> None:
        if node.stopping:
            return
        with suppress(Killed):
            node.stop()
        node.process.die()

    def _end(self) -> None:
        """Stop all beats, once no store is away and no message is still to be sent."""
        inner = getattr(self.running.observer.app.schedules.store, "inner", None)
        inner = inner or self.running.observer.app.schedules.store
        owed = self.running.observer.process.away or inner.pending()
        if owed and self.time.now < self.table.seconds + LONGEST_TROUBLE:
            self.running._at(self.time.now + 2.0, "world", self._end)
            return
        self.over = True
        self.story.ended = self.time.now
        for node in self.beats.values():
            with suppress(Killed):
                node.stop()

    def _edit(self, edit: Edit, caller: Caller) -> None:
        schedules, base, at = caller.app.schedules, self.story.base, self.time.now
        result = None
        before, began = len(self.running.seen.fired), len(self.time.log)
        try:
            if edit.what == "stranger":
                self._write(edit, caller)
            elif edit.what == "damage":
                self._damage(edit, caller)
            elif edit.what == "add":
                assert edit.entry is not None
                said = fields_of(edit.entry, base)
                schedules.add(edit.name, said.pop("task"), said.pop("schedule"), **said)
            elif edit.what == "set":
                fields = instants(edit.fields, base)
                if "schedule" in fields:
                    fields["schedule"] = schedule_of(fields["schedule"], base)
                schedules.set(edit.name, **fields)
            elif edit.what == "sign":
                schedules.sign(accept=schedules.refused())
            else:
                result = getattr(schedules, edit.what)(edit.name)
        except Exception as error:  # noqa: BLE001 - what it means is for the checks
            unsure = len(self.running.seen.fired) > before or bool(caller.process.away)
            done = Done(edit, at, type(error).__name__, unsure, place=self._place(began, caller))
        else:
            done = Done(edit, at, result=getattr(result, "id", None), place=self._place(began, caller))
        self.story.edits.append(done)
        self.story.edits.sort(key=lambda each: each.place)
        self.time.note(caller.name, edit.what, edit.name, done.error or "done")

    def _place(self, began: int, caller: Caller) -> int:
        """Return the log line of the last write, or else read, by an edit of *caller* since *began*. Other
        edits of *caller* may have begun and ended meanwhile."""
        ended = len(self.time.log)
        others = {place for name, lines in self._edited if name == caller.name for place in lines}
        lines = [(place, self.time.log[place]) for place in range(began, ended) if place not in others]
        self._edited.append((caller.name, range(began, ended)))
        for what in ("beat.edit", "beat."):
            for place, line in reversed(lines):
                if f" {caller.name} {what}" in line:
                    return place
        return ended

    def _write(self, edit: Edit, caller: Caller) -> None:
        """Write a row without the key."""
        if not self.story.shared:
            return
        store = caller.app.schedules.store
        inner = getattr(store, "inner", store)
        fields = {} if edit.entry is None else write_fields(fields_of(edit.entry, self.story.base))
        text = b"{rubbish" if edit.entry is None else to_json(Written(fields, added=True).as_data())
        row = inner.row(edit.name)
        inner.edit(edit.name, text, row.version if row else 0)

    def _damage(self, edit: Edit, caller: Caller) -> None:
        """Overwrite the result of the last call, as someone without the key could."""
        for slot in caller.app.schedules.runs(edit.name, 1):
            caller.app.backend.forget(slot.task_id)
            caller.app.backend.store_rows([(slot.task_id, "SUCCESS", b"rubbish", None)])

    def look(self) -> None:
        """Read which calls were made."""
        if not self.story.shared:
            return
        asked = self.running.observer.app.schedules
        names = {each.name for each in (*self.table.entries, *self.table.edits)}
        self.story.slots = {
            name: [(slot.due, slot.at, slot.task_id) for slot in asked.runs(name, 10_000)] for name in names
        }
        self.stores.append(asked)

    def close(self) -> None:
        for each in self.stores:
            each.close()


def define(app: QWorker, process: Process, world: Schedules) -> None:
    """Define the tasks that entries call: "tick"; "slow", which takes SLEEP_SECONDS; "quiet", without a
    result; "bad", which fails; "chorded" and "grouped", which are replaced by a chord and a group; "raising",
    whose call raises an error; "waiting", whose call fails since the broker is unavailable. "nobody" is
    undefined."""
    story, time = world.story, world.time

    def ran(task: Any, args: Any, act: Callable[[], Any] = lambda: None) -> Any:
        request = task.request
        due = datetime.fromisoformat(request.periodic_task_due).timestamp()
        time.note(process.name, "runs", request.periodic_task_name, f"{due - story.base:.3f}")
        started, ended = time.now, None
        given = process.given.get(request.id, started)
        try:
            value = act()
            ended = time.now
        except Exception:
            ended = time.now
            raise
        finally:
            name = request.periodic_task_name
            story.runs.append(Run(name, due, task.name, request.id, args, given, started, ended))
        return value

    def sleep() -> None:
        began = time.now
        time.pump(began + SLEEP_SECONDS)
        time.took += time.now - began
        if not process.alive:
            raise Killed(process.name)

    def fail() -> None:
        raise ValueError("bad")

    def named(name: str, act: Callable[[Any], Any] = lambda task: None, **options: Any) -> None:
        @app.task(name=name, bind=True, **options)
        def task(this: Any, *args: Any) -> Any:
            return ran(this, args, lambda: act(this))

    @app.task(name="member")
    def member(*args: Any) -> None:
        return None

    def wait() -> None:
        raise BrokerUnavailable("its queue cannot be declared")

    raising = type("Raising", (app.Task,), {"apply_async": lambda *args, **kwargs: fail()})
    waiting = type("Waiting", (app.Task,), {"apply_async": lambda *args, **kwargs: wait()})
    named("tick")
    named("slow", lambda task: sleep())
    named("quiet", ignore_result=True)
    named("bad", lambda task: fail())
    named("chorded", lambda task: task.replace(chord([member.s(), member.s()], member.s())))
    named("grouped", lambda task: task.replace(group([member.s(), member.s()])))
    named("raising", base=raising)
    named("waiting", base=waiting)
