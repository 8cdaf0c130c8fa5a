"""Presence: what a live worker tells of itself through its broker, and how that is written and read.

Comes from:  a worker's listener, as text for ``Consumer.present``; the record that the broker keeps of it.
Goes to:     ``Admin.workers()``, and so the command line and who else asks which workers there are.
Thread:      any; values.

The text is JSON of ASCII characters, so that every server takes it. It may have been written by another
version, or by a stranger: a field that is missing, or is not what it should be, is left at its default, and
what the record says is believed before it.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

STARTING = "starting"
"""It has registered, and has not looked for messages yet."""
IDLE = "idle"
WORKING = "working"
STOPPING = "stopping"
"""It takes nothing new, and ends."""

MAX_RUNNING = 100
"""So many running tasks are named."""
MAX_WORD = 255
"""Characters of an id or a name that are told."""
MAX_TEXT = 4 * 1024**2
"""Characters of a text that is read: so many tasks with such names, and their worker, take a fourth."""


class RunningTask(NamedTuple):
    """A task that a worker is running. started: epoch seconds. pid: of the process that runs it; 0 when that
    is not known. queue: that it came from; "" when that is not known."""

    id: str
    name: str
    started: float
    pid: int = 0
    queue: str = ""


_NO_TOTALS: Mapping[str, int] = {}


class Presence(NamedTuple):
    """A live worker.

    - name: of the node, as ``celery@host``. host, pid: where it is; "" when the host is not known.
    - queues, concurrency: what it consumes, and how many tasks it runs at once.
    - started: epoch seconds of its registration.
    - status: one of the constants of this module; "" when it has told nothing.
    - pool: process ids of its children; () where tasks run in threads.
    - restarts: how many of them were replaced: dead, killed or recycled.
    - waiting: tasks that it has received and that wait for a free place.
    - scheduled: tasks that it has received and that wait for their time.
    - unsettled: tasks that have ended, of which the broker is still to be told.
    - busy: how many tasks it is running. running: the first MAX_RUNNING of them, the oldest first.
    - totals: how many messages were "finished", "returned" and "dead_lettered".
    - seen: epoch seconds, on its clock, at which it told this.
    - version, python: of its qworker, and of its Python; "" when it has not said.
    - memory: resident bytes of its main process, as it told last; 0 when that is not known. pool_memory: the
      same of each process in *pool*, in its order. Pages that they share count for each.
    """

    name: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    started: float
    host: str = ""
    status: str = ""
    pool: tuple[int, ...] = ()
    restarts: int = 0
    waiting: int = 0
    scheduled: int = 0
    unsettled: int = 0
    busy: int = 0
    running: tuple[RunningTask, ...] = ()
    totals: Mapping[str, int] = _NO_TOTALS
    seen: float = 0.0
    version: str = ""
    python: str = ""
    memory: int = 0
    pool_memory: tuple[int, ...] = ()

    def plain(self) -> dict[str, Any]:
        """All fields by name, as JSON has them."""
        return {
            **self._asdict(),
            "queues": list(self.queues),
            "pool": list(self.pool),
            "pool_memory": list(self.pool_memory),
            "running": [task._asdict() for task in self.running],
            "totals": dict(self.totals),
        }


def held_seconds(worker: Presence, now: float) -> float:
    """For how many seconds each slot of *worker* has been running the same task; 0.0 when one is free."""
    slots = min(worker.concurrency, MAX_RUNNING)
    if slots < 1 or worker.busy < worker.concurrency or len(worker.running) < slots:
        return 0.0
    return max(0.0, now - sorted(task.started for task in worker.running)[slots - 1])


def to_text(presence: Presence) -> str:
    """What a worker gives its broker: what the broker's record of it does not say."""
    told = {name: value for name, value in presence.plain().items() if name in READERS}
    told["running"] = [
        task._replace(id=task.id[:MAX_WORD], name=task.name[:MAX_WORD], queue=task.queue[:MAX_WORD])._asdict()
        for task in presence.running[:MAX_RUNNING]
    ]
    return json.dumps(told, separators=(",", ":"))


def from_text(text: str, record: Presence) -> Presence:
    """The worker of which the broker keeps *record* and has been given *text* ('': nothing). Never fails."""
    told: dict[str, Any] = {"seen": record.started}
    for name, value in _parsed(text).items():
        reader = READERS.get(name)
        if reader is None:
            continue
        try:
            told[name] = reader(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            continue
    kept = {name: getattr(record, name) for name in RECORDED}
    if record.host:
        told["host"] = record.host
    return Presence(**(told | kept))


RECORDED = ("name", "pid", "queues", "concurrency", "started")
"""What every broker's record of a worker says."""


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > MAX_TEXT:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _moment(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def _each(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _task(value: Any) -> RunningTask:
    task = RunningTask(_word(value["id"]), _word(value["name"]), _moment(value["started"]))
    return task._replace(pid=_count(value.get("pid", 0)), queue=_word(value.get("queue", "")))


def _counts(value: Any) -> tuple[int, ...]:
    return tuple(map(_count, _each(value)))


READERS: dict[str, Callable[[Any], Any]] = {
    "host": _word,
    "status": _word,
    "pool": _counts,
    "restarts": _count,
    "waiting": _count,
    "scheduled": _count,
    "unsettled": _count,
    "busy": _count,
    "running": lambda value: tuple(map(_task, _each(value))),
    "totals": lambda value: {_word(name): _count(number) for name, number in dict(value).items()},
    "seen": _moment,
    "version": _word,
    "python": _word,
    "memory": _count,
    "pool_memory": _counts,
}
"""What the text tells, each with what makes a value of what JSON has for it, or raises."""
