"""Looking: inspects workers, queues and tasks. Changes nothing.

Comes from:  ``app.workers()``, ``app.queues()``, ``app.peek()``; the command line.
Goes to:     the broker's administration.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from qworker.contracts import App
from qworker.errors import InvalidTaskMessage, NotSupported
from qworker.message.reading import parse_headers
from qworker.transports.lease import MessageState, Peeked, QueueInfo
from qworker.transports.presence import Presence

State = Literal["running", "reserved", "waiting", "delayed"]
STATES: tuple[State, ...] = ("running", "reserved", "waiting", "delayed")
_POSSIBLE_STATES: dict[MessageState, tuple[State, ...]] = {
    "leased": ("running", "reserved"),
    "ready": ("waiting",),
    "delayed": ("waiting", "delayed"),  # some may be due without a worker having fetched them
}


class TaskSeen(NamedTuple):
    """A task that has not ended.

    - id, name: "" for an unreadable message.
    - state: "running"; "reserved" by a worker that has not begun it, or not reported its end yet; "waiting"
      in its queue; "delayed" until its due time.
    - queue: "" if unknown.
    - args, kwargs: the sender's representations, at most 4,096 characters; None without them.
    - priority: None if unknown.
    - retries: the number of retries. deliveries: the number of runs ended by a death.
    - sent, eta, started: epoch seconds; None if unknown or not applicable.
    - worker: the name of the node that has it; "" for none.
    - pid: the process that runs it; 0 for none.
    """

    id: str
    name: str
    state: State
    queue: str = ""
    args: str | None = None
    kwargs: str | None = None
    priority: int | None = None
    retries: int = 0
    deliveries: int = 0
    sent: float | None = None
    eta: float | None = None
    started: float | None = None
    worker: str = ""
    pid: int = 0


def workers(app: App) -> list[Presence]:
    """See ``QWorker.workers``."""
    presence = app.broker.presence
    found = [] if presence is None else presence.admin.workers()
    return sorted(found, key=lambda worker: (worker.name, worker.started))


def queues(app: App, names: str | Iterable[str] | None) -> list[QueueInfo]:
    """See ``QWorker.queues``."""
    admin = app.broker.admin
    return admin.queues() if names is None else admin.depths(_listed(names))


def peek(
    app: App,
    names: str | Iterable[str] | None,
    states: Collection[State],
    limit: int,
) -> list[TaskSeen]:
    """See ``QWorker.peek``."""
    if wrong := [state for state in states if state not in STATES]:
        raise ValueError(f"there is no state {wrong[0]!r}: the states are {', '.join(STATES)}")
    broker = app.broker
    chosen = None if names is None else _listed(names)
    running = {task.id: task for task in _running(workers(app)) if chosen is None or task.queue in chosen}
    found: list[TaskSeen] = []
    if broker.peeking is None and broker.presence is None:
        raise NotSupported(
            "this broker cannot show messages without delivering them; `qworker queues` counts them"
        )
    if broker.peeking is not None:
        places = [info.queue for info in broker.admin.queues()] if chosen is None else chosen
        now = app.clock.now()
        found = [
            task
            for queue in places
            for state, possible in _POSSIBLE_STATES.items()
            if not set(possible).isdisjoint(states)
            for task in _lying(broker.peeking.peek(queue, state, limit), running, now)
        ]
    known = {task.id for task in found}
    found += [task for id, task in running.items() if id not in known]  # acked before their run
    found = [task for task in found if task.state in states]
    return sorted(found, key=lambda task: (STATES.index(task.state), task.started or 0.0))


def _listed(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _running(live: Sequence[Presence]) -> Iterator[TaskSeen]:
    """Yield the tasks that the *live* workers report as running."""
    for worker in live:
        for task in worker.running:
            yield TaskSeen(
                task.id,
                task.name,
                "running",
                task.queue,
                started=task.started,
                worker=worker.name,
                pid=task.pid,
            )


def _lying(found: Sequence[Peeked], running: dict[str, TaskSeen], now: float) -> Iterator[TaskSeen]:
    """Yield the tasks of messages in the broker."""
    for message in found:
        try:
            headers = parse_headers(message.headers)
        except InvalidTaskMessage:
            headers = {"id": "", "task": "", "retries": 0, "argsrepr": None, "kwargsrepr": None}
        run = running.get(headers["id"]) if message.state == "leased" else None
        is_late = message.due is not None and message.due > now
        held: State = "reserved" if run is None else "running"
        yield TaskSeen(
            headers["id"],
            headers["task"],
            held if message.state == "leased" else "delayed" if is_late else "waiting",
            message.queue,
            headers["argsrepr"],
            headers["kwargsrepr"],
            message.priority,
            headers["retries"],
            message.deliveries,
            message.sent,
            message.due,
            None if run is None else run.started,
            message.worker if run is None else run.worker,
            0 if run is None else run.pid,
        )
