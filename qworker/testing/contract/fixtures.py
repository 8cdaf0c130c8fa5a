"""Fixtures of the suite, and common steps of its tests.

Comes from:  pytest.
Goes to:     the place, which is new for each test; the tests.
Thread:      the test's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qworker.testing.clock import FakeClock
from qworker.testing.contract.place import Place
from qworker.testing.contract.process import Other
from qworker.testing.contract.scripts import Script
from qworker.transports.lease import Broker, Leased

Open = Callable[..., Broker]
Start = Callable[[Script], Other]


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """Return a new place of *kind*."""
    made: type[Place] = request.module.PLACES[kind]
    if made.fixture is not None:
        request.getfixturevalue(made.fixture)
    place = made(tmp_path)
    yield place
    place.clear()


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that stands still."""
    return FakeClock()


@pytest.fixture
def open_(place: Place, clock: FakeClock) -> Iterator[Open]:
    """Return a function that opens a store on the place, with the fixture ``clock``; ``registered=True``
    registers it."""
    opened: list[Broker] = []

    def open_one(*, registered: bool = False, **options: object) -> Broker:
        store = place.open(**{"clock": clock, **options})
        opened.append(store)
        if registered:
            store.consumer.register(f"w{len(opened)}@test", ["q", "r"], 2)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_: Open) -> Broker:
    """Return a registered store."""
    return open_(registered=True)


@pytest.fixture
def other(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Return a function that starts another process on the place, with a script. All are killed at the
    end."""
    started: list[Other] = []

    def start(script: Script) -> Other:
        started.append(Other(request.module.PLACES[kind], tmp_path, script))
        return started[-1]

    yield start
    for process in started:
        process.close()


def generation(store: Broker) -> int:
    """Register *store* again; return its new generation."""
    return store.consumer.register("again@test", ["q", "r"], 2)


def take(store: Broker, *queues: str, limit: int = 100) -> list[Leased]:
    """Lease messages of *queues* (by default "q") with *store*."""
    return store.consumer.lease(queues or ("q",), limit).messages
