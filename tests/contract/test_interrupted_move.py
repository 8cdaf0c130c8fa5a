"""A move of messages to another broker, killed at any call to either broker and then repeated: nothing is
lost, dead letters are not duplicated, and messages only if the kill came between storing a batch and
acknowledging it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from qworker.testing.clock import FakeClock
from qworker.testing.contract import Place
from qworker.transports.lease import Broker, DeadLetter, Revocations, Workers
from qworker.transports.transfer import Report, move
from tests.contract.lease_places import MemoryPlace
from tests.contract.place_redis import RedisPlace
from tests.contract.place_sqlite import SQLitePlace
from tests.support.messages import call, ids
from tests.support.receiving import everything

pytestmark = pytest.mark.contract

LEASE_SECONDS = 15.0
READY, LATER, DEAD = 3, 2, 4


class Killed(BaseException):
    """Simulates that the process was killed."""


class Killer:
    """Kills the process at call number *at*, before or after it is made. calls: all so far."""

    def __init__(self, at: int, after: bool) -> None:
        self.at = at
        self.after = after
        self.calls: list[str] = []
        self.dead = False

    def kill(self) -> None:
        self.dead = True
        raise Killed

    def wrap(self, name: str, called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.dead:
                raise Killed
            self.calls.append(name)
            if len(self.calls) == self.at and not self.after:
                self.kill()
            answer = called(*arguments, **options)
            if len(self.calls) == self.at:
                self.kill()
            return answer

        return call


class KillableSide:
    """A side of a broker whose calls may kill the process. Waits only advance the clock."""

    def __init__(self, name: str, inner: object, killer: Killer, clock: FakeClock) -> None:
        self._name, self._inner, self._killer, self._clock = name, inner, killer, clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value
        if name == "wait":
            return self._wait
        return self._killer.wrap(f"{self._name}.{name}", value)

    def _wait(self, timeout: float, prefetch: int = 0) -> bool:
        self._clock.advance(timeout)
        return False


class KillableBroker:
    """A broker whose calls may kill the process."""

    sender: Any
    consumer: Any
    admin: Any

    def __init__(self, name: str, inner: Broker, killer: Killer, clock: FakeClock) -> None:
        self.url, self.lacks = inner.url, inner.lacks
        for side in ("sender", "consumer", "admin"):
            setattr(self, side, KillableSide(f"{name}.{side}", getattr(inner, side), killer, clock))
        self.revocations = inner.revocations and Revocations(self.sender, self.consumer)
        self.presence = inner.presence and Workers(self.consumer, self.admin)
        self.letters = {"dead": KillableSide(f"{name}.letters", inner.letters["dead"], killer, clock)}


class Migration:
    """Two places, and moves between them. Each move is like a new process: it opens its own brokers."""

    def __init__(self, source: Place, target: Place) -> None:
        self.clock = FakeClock()
        self.source, self.target = source, target

    def open(self, place: Place) -> Any:
        options = {"clock": self.clock, "uptime": self.clock.monotonic, "lease_seconds": LEASE_SECONDS}
        return closing(place.open(**options))

    def fill(self) -> None:
        with self.open(self.source) as store:
            store.sender.push([call(f"dead-{number}") for number in range(DEAD)])
            generation = store.consumer.register("worker", ["celery"], 1)
            for leased in store.consumer.lease(["celery"], DEAD).messages:
                store.consumer.settle(generation, [DeadLetter(leased.tag, "it ended")])
            store.consumer.deregister()
            due = self.clock.now() + 3600
            store.sender.push([call(f"ready-{number}") for number in range(READY)])
            store.sender.push([call(f"later-{number}", due=due) for number in range(LATER)])

    def move(self, killer: Killer) -> Report:
        with self.open(self.source) as source, self.open(self.target) as target:
            return move(
                KillableBroker("source", source, killer, self.clock),  # type: ignore[arg-type]
                KillableBroker("target", target, killer, self.clock),  # type: ignore[arg-type]
                dead=True,
                lease_seconds=LEASE_SECONDS,
                monotonic=self.clock.monotonic,
            )

    def held(self, place: Place) -> tuple[Counter[str], Counter[str]]:
        """Return the counts of each message and each dead letter in *place*."""
        with self.open(place) as store:
            letters = [json.loads(letter.headers)["id"] for letter in store.admin.dead(None, 1000)]
            return Counter(ids(everything(store))), Counter(letters)


NUMBERS = {"ready": READY, "later": LATER}
MESSAGES = Counter({f"{kind}-{number}": 1 for kind, most in NUMBERS.items() for number in range(most)})
LETTERS = Counter({f"dead-{number}": 1 for number in range(DEAD)})
ROUTES: dict[str, tuple[type[Place], type[Place]]] = {
    "memory": (MemoryPlace, MemoryPlace),
    "sqlite-redis": (SQLitePlace, RedisPlace),
    "redis-sqlite": (RedisPlace, SQLitePlace),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("route", ROUTES)
def test_killed_move_can_be_repeated(route: str, after: bool, tmp_path: Path) -> None:
    for at in count(1):
        with ExitStack() as stack:
            places = []
            for number, kind in enumerate(ROUTES[route]):
                directory = tmp_path / f"{at}-{number}"
                directory.mkdir()
                places.append(kind(directory))
                stack.callback(places[-1].clear)
            migration = Migration(*places)
            migration.fill()
            killer = Killer(at, after)
            try:
                migration.move(killer)
            except Killed:
                migration.clock.advance(LEASE_SECONDS + 1)  # leases expire
                assert migration.move(Killer(0, after)).left == []
            messages, letters = migration.held(migration.target)
            where = f"{killer.calls[-1]}, number {at}"
            assert letters == LETTERS, where
            assert migration.held(migration.source) == (Counter(), Counter()), where
            if not killer.dead:
                assert messages == MESSAGES
                break
            between = ("source.consumer.settle", "target.sender.push")[after]
            if killer.calls[-1] == between:
                kind = ("ready", "later")[killer.calls.count(between) - 1]
                batch = [id for id in MESSAGES if id.startswith(kind)]
                assert messages == MESSAGES + Counter(batch), where
            else:
                assert messages == MESSAGES, where
    for reached in ("target.letters.push", "source.letters.discard", "source.consumer.settle"):
        assert reached in killer.calls
