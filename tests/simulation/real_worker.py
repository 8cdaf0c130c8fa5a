"""real_worker: the app of workers on real servers: ``qworker start -A tests.simulation.real_worker:app``.

Comes from:  ``real``, with the world and its place in the environment.
Goes to:     a KeptRecord.
Thread:      any that runs tasks.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qworker import QWorker
from qworker.tasks import execution
from tests.simulation.case import World
from tests.simulation.nodes import settings_of
from tests.simulation.program import Noting, define
from tests.simulation.real_record import KeptRecord
from tests.simulation.run import Errors

VARIABLE = "SIMULATED_FLEET"
LEASE_SECONDS = 2.5
TIME_LIMIT = 2.0
"""Time limit of calls that exceed it. It covers errbacks that run in the same process, too: where these took
longer, on a busy machine, the process was killed and they were called again."""


@dataclass(frozen=True, repr=False)
class RealWorld(World):
    """stores: see ``real_servers.STORES``. pool: the option of ``qworker start``."""

    pool: str = "prefork"
    canvas_format: str = "auto"


@dataclass(frozen=True)
class Place:
    """The servers of a fleet. queue: its own queue. shared: others use the servers, too. settings: additional
    ones."""

    broker: str
    results: str
    directory: str
    queue: str = "celery"
    shared: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


class Process:
    """The process interface that ``define()`` needs. note: called with what runs."""

    queues = ()

    def __init__(self, name: str, record: KeptRecord, note: Callable[..., None] = lambda *_: None) -> None:
        self.name = name
        self.time = self
        self.note = note
        self.execution = None
        self._record = record

    @property
    def disturbed(self) -> bool:
        """Whether a fault has happened."""
        return self._record.trouble

    def end_child(self, why: str) -> None:
        """Run until the time limit."""
        del why
        while True:
            time.sleep(1.0)

    def step(self) -> None:
        """Do nothing: dead processes do not get here."""


def make_app(name: str, world: RealWorld, place: Place, record: KeptRecord) -> QWorker:
    """Return the app of a process of the fleet."""
    app = QWorker(
        name,
        broker=place.broker,
        backend=place.results,
        set_as_current=False,
        canvas_format=world.canvas_format,
        task_default_queue=place.queue,
        broker_heartbeat=4,
        **settings_of(world, LEASE_SECONDS, bool(world.key)),
        **place.settings,
    )
    record.keeps_all = not place.results.startswith("rpc")
    define(app, Process(name, record), record, world.base, world.rate)  # type: ignore[arg-type]
    if world.middleware:
        app.add_middleware(Noting(record))
    return app


def told(world: RealWorld, place: Place) -> dict[str, str]:
    """Return the environment variables of a worker."""
    return {VARIABLE: json.dumps([asdict(world), asdict(place)])}


class SlowStores(logging.Handler):
    """Counts it as a trouble when a result store takes so long to answer that a state is stored after the
    calls that follow."""

    def __init__(self, record: KeptRecord) -> None:
        super().__init__()
        self._record = record

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "is stored later" in text and "no answer in" in text:
            self._record.trouble = True


def _app() -> QWorker:
    world, place = json.loads(os.environ[VARIABLE])
    record = KeptRecord(Path(place["directory"]))
    handler = Errors(record.errors)
    logging.getLogger("qworker").addHandler(handler)
    logging.getLogger(execution.__name__).addHandler(SlowStores(record))
    return make_app("worker", RealWorld(**world), Place(**place), record)


if VARIABLE in os.environ:
    app = _app()
