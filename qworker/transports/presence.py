"""Presence: the status that a live worker publishes through its broker, and its encoding.

Comes from:  a worker's listener, as text for ``Presenting.present``; the record that the broker keeps of it.
Goes to:     ``Listing.workers()``, for the command line and others.
Thread:      any; values.

The text is ASCII JSON, so that every server accepts it. It may have been written by another version, or by
another program: a missing or invalid field gets its default, and the broker's record takes precedence.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

STARTING = "starting"
"""Registered, but has not fetched messages yet."""
IDLE = "idle"
WORKING = "working"
STOPPING = "stopping"
"""Stopping: it takes no new messages."""

MAX_RUNNING = 100
"""Maximum number of running tasks listed."""
MAX_WORD = 255
"""Maximum characters of an id or a name."""
MAX_TEXT = 4 * 1024**2
"""Maximum characters of a text that is read; MAX_RUNNING tasks with long names take a quarter of it."""


class RunningTask(NamedTuple):
    """A running task of a worker. started: epoch seconds. pid: of its process; 0 if unknown. queue: of its
    message; "" if unknown."""

    id: str
    name: str
    started: float
    pid: int = 0
    queue: str = ""


_NO_TOTALS: Mapping[str, int] = {}


class Presence(NamedTuple):
    """A live worker.

    - name: of the node, such as ``celery@host``. host, pid: of its process; "" if the host is unknown.
    - queues, concurrency: the queues it consumes, and how many tasks it runs at once.
    - started: epoch seconds of its registration.
    - status: one of the constants of this module; "" if unknown.
    - pool: process ids of its children; () if tasks run in threads.
    - restarts: how many of them were replaced: dead, killed or recycled.
    - waiting: received tasks that wait for a slot.
    - scheduled: received tasks that wait for their due time.
    - unsettled: ended tasks that were not settled yet.
    - busy: number of running tasks. running: the first MAX_RUNNING of them, oldest first.
    - totals: numbers of messages that were "finished", "returned" and "dead_lettered".
    - seen: epoch seconds of this status, on its clock.
    - version, python: of its qworker, and of its Python; "" if unknown.
    - memory: resident bytes of its main process at that time; 0 if unknown. pool_memory: the same for each
      process in *pool*, in order. Shared pages count for each.
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
        """Return all fields by name, as JSON values."""
        return {
            **self._asdict(),
            "queues": list(self.queues),
            "pool": list(self.pool),
            "pool_memory": list(self.pool_memory),
            "running": [task._asdict() for task in self.running],
            "totals": dict(self.totals),
        }


def held_seconds(worker: Presence, now: float) -> float:
    """Return for how many seconds all slots of *worker* have been running the same tasks; 0.0 when one is
    free."""
    slots = min(worker.concurrency, MAX_RUNNING)
    if slots < 1 or worker.busy < worker.concurrency or len(worker.running) < slots:
        return 0.0
    return max(0.0, now - sorted(task.started for task in worker.running)[slots - 1])


def to_text(presence: Presence) -> str:
    """Return the text for the broker: everything that its record does not contain."""
    values = {name: value for name, value in presence.plain().items() if name in READERS}
    values["running"] = [
        task._replace(id=task.id[:MAX_WORD], name=task.name[:MAX_WORD], queue=task.queue[:MAX_WORD])._asdict()
        for task in presence.running[:MAX_RUNNING]
    ]
    return json.dumps(values, separators=(",", ":"))


def from_text(text: str, record: Presence) -> Presence:
    """Return the worker with this *record* and *text* ('': none) in the broker. Never fails."""
    values: dict[str, Any] = {"seen": record.started}
    for name, value in _parsed(text).items():
        reader = READERS.get(name)
        if reader is None:
            continue
        try:
            values[name] = reader(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            continue
    kept = {name: getattr(record, name) for name in RECORDED}
    if record.host:
        values["host"] = record.host
    return Presence(**(values | kept))


RECORDED = ("name", "pid", "queues", "concurrency", "started")
"""The fields of every broker's record."""


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
"""The fields of the text, each with a function that converts its JSON value, or raises."""
