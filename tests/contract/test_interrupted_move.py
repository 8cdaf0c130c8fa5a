"""A move that is cut short at any call to either broker, and repeated: nothing is lost, dead letters are
there once, and messages twice only when the cut came between storing a batch and acknowledging it."""

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


class CutShort(BaseException):
    """The process was killed here."""


class Knife:
    """Cuts the process short at one of its calls, before or after it was carried out. calls: all so far."""

    def __init__(self, at: int, after: bool) -> None:
        self.at = at
        self.after = after
        self.calls: list[str] = []
        self.dead = False

    def cut(self) -> None:
        self.dead = True
        raise CutShort

    def around(self, name: str, called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.dead:
                raise CutShort
            self.calls.append(name)
            if len(self.calls) == self.at and not self.after:
                self.cut()
            answer = called(*arguments, **options)
            if len(self.calls) == self.at:
                self.cut()
            return answer

        return call


class Side:
    """A side of a broker under the knife. Its waits take time of the clock only."""

    def __init__(self, name: str, inner: object, knife: Knife, clock: FakeClock) -> None:
        self._name, self._inner, self._knife, self._clock = name, inner, knife, clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value
        if name == "wait":
            return self._wait
        return self._knife.around(f"{self._name}.{name}", value)

    def _wait(self, timeout: float, prefetch: int = 0) -> bool:
        self._clock.advance(timeout)
        return False


class Cuttable:
    """A broker whose sides are under the knife."""

    sender: Any
    consumer: Any
    admin: Any

    def __init__(self, name: str, inner: Broker, knife: Knife, clock: FakeClock) -> None:
        self.url, self.lacks = inner.url, inner.lacks
        for side in ("sender", "consumer", "admin"):
            setattr(self, side, Side(f"{name}.{side}", getattr(inner, side), knife, clock))
        self.revocations = inner.revocations and Revocations(self.sender, self.consumer)
        self.presence = inner.presence and Workers(self.consumer, self.admin)
        self.letters = {"dead": Side(f"{name}.letters", inner.letters["dead"], knife, clock)}


class House:
    """Two places, and moves between them. Each move is a process of its own: it opens its own brokers."""

    def __init__(self, source: Place, target: Place) -> None:
        self.clock = FakeClock()
        self.source, self.target = source, target

    def open(self, place: Place) -> Any:
        options = {"clock": self.clock, "uptime": self.clock.monotonic, "lease_seconds": LEASE_SECONDS}
        return closing(place.open(**options))

    def fill(self) -> None:
        with self.open(self.source) as store:
            store.sender.push([call(f"dead-{number}") for number in range(DEAD)])
            generation = store.consumer.register("undertaker", ["celery"], 1)
            for leased in store.consumer.lease(["celery"], DEAD).messages:
                store.consumer.settle(generation, [DeadLetter(leased.tag, "it ended")])
            store.consumer.deregister()
            due = self.clock.now() + 3600
            store.sender.push([call(f"ready-{number}") for number in range(READY)])
            store.sender.push([call(f"later-{number}", due=due) for number in range(LATER)])

    def move(self, knife: Knife) -> Report:
        with self.open(self.source) as source, self.open(self.target) as target:
            return move(
                Cuttable("source", source, knife, self.clock),  # type: ignore[arg-type]
                Cuttable("target", target, knife, self.clock),  # type: ignore[arg-type]
                dead=True,
                lease_seconds=LEASE_SECONDS,
                monotonic=self.clock.monotonic,
            )

    def held(self, place: Place) -> tuple[Counter[str], Counter[str]]:
        """How often each message, and each dead letter, is in *place*."""
        with self.open(place) as store:
            letters = [json.loads(letter.headers)["id"] for letter in store.admin.dead(None, 1000)]
            return Counter(ids(everything(store))), Counter(letters)


NUMBERS = {"ready": READY, "later": LATER}
MESSAGES = Counter({f"{kind}-{number}": 1 for kind, most in NUMBERS.items() for number in range(most)})
LETTERS = Counter({f"dead-{number}": 1 for number in range(DEAD)})
WAYS: dict[str, tuple[type[Place], type[Place]]] = {
    "memory": (MemoryPlace, MemoryPlace),
    "sqlite-redis": (SQLitePlace, RedisPlace),
    "redis-sqlite": (RedisPlace, SQLitePlace),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("way", WAYS)
def test_a_move_is_cut_short_anywhere_and_repeated(way: str, after: bool, tmp_path: Path) -> None:
    for at in count(1):
        with ExitStack() as stack:
            places = []
            for number, kind in enumerate(WAYS[way]):
                directory = tmp_path / f"{at}-{number}"
                directory.mkdir()
                places.append(kind(directory))
                stack.callback(places[-1].clear)
            house = House(*places)
            house.fill()
            knife = Knife(at, after)
            try:
                house.move(knife)
            except CutShort:
                house.clock.advance(LEASE_SECONDS + 1)  # what was held comes back
                assert house.move(Knife(0, after)).left == []
            messages, letters = house.held(house.target)
            where = f"{knife.calls[-1]}, number {at}"
            assert letters == LETTERS, where
            assert house.held(house.source) == (Counter(), Counter()), where
            if not knife.dead:
                assert messages == MESSAGES
                break
            between = ("source.consumer.settle", "target.sender.push")[after]
            if knife.calls[-1] == between:
                kind = ("ready", "later")[knife.calls.count(between) - 1]
                batch = [id for id in MESSAGES if id.startswith(kind)]
                assert messages == MESSAGES + Counter(batch), where
            else:
                assert messages == MESSAGES, where
    for reached in ("target.letters.push", "source.letters.discard", "source.consumer.settle"):
        assert reached in knife.calls
