"""Consumers on a server with random faults: acknowledged messages are not redelivered, leases are exclusive,
and nothing is lost. NATS behind a proxy, and fake servers for IronMQ and Disque."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.transports import open_broker
from qworker.transports.lease import Ack, Broker, Leased, Release
from tests.acceptance.proxy import Proxy
from tests.contract.place_nats import NatsPlace
from tests.support.cases import cases
from tests.support.disque_server import DisqueServer
from tests.support.ironmq_server import IronMQ
from tests.support.messages import envelope, ids
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
MESSAGES = 24
STEPS = 60
LEASE_SECONDS = 4.0
TIMEOUT_SECONDS = 0.6
SURE_SECONDS = 1.5
"""Longer than a call with a timely reply."""


class Server(NamedTuple):
    """url: of a server with faults. options: of the broker. err: cause another fault. heal: end all faults.
    expire: end all leases, if the server supports that."""

    url: str
    options: dict[str, object]
    err: Callable[[random.Random], None]
    heal: Callable[[], None]
    expire: Callable[[], None] = lambda: None


@contextmanager
def nats(directory: Path) -> Iterator[Server]:
    place = NatsPlace(directory)
    with Proxy(urlsplit(place.url).port or 4222) as proxy:

        def err(chance: random.Random) -> None:
            match chance.randrange(4):
                case 0:
                    proxy.cut()
                case 1:
                    until = time.monotonic() + chance.random()
                    proxy.down.lose_when(lambda: time.monotonic() < until)
                case 2:
                    until = time.monotonic() + chance.random()
                    proxy.up.hold_when(lambda: time.monotonic() < until)
                case _:
                    proxy.down.delay = chance.random() / 5

        parts = urlsplit(place.url)
        url = parts._replace(netloc=f"{parts.hostname}:{proxy.port}").geturl()
        try:
            yield Server(url, {"stream": place.layout.stream}, err, proxy.heal)
        finally:
            place.clear()


@contextmanager
def ironmq(directory: Path) -> Iterator[Server]:
    with closing(IronMQ()) as server:

        def err(chance: random.Random) -> None:
            server.fail(chance.choice(("503", "half", "drop", "nonsense")), chance.randint(1, 3))

        yield Server(server.url(), {"wait_time_seconds": 1}, err, server.heal, server.expire)


@contextmanager
def disque(directory: Path) -> Iterator[Server]:
    with closing(DisqueServer()) as server:

        def err(chance: random.Random) -> None:
            server.fault(**{chance.choice(("half", "drop")): chance.randint(1, 3)})

        def heal() -> None:
            server.fault(drop=0, half=0)

        options: dict[str, object] = {"wait_time_seconds": 1, "retry": int(LEASE_SECONDS)}
        yield Server(server.url, options, err, heal)


class Run:
    """Random operations of *brokers*, and checks of their effects."""

    def __init__(self, brokers: list[Broker], chance: random.Random) -> None:
        self.brokers = brokers
        self.chance = chance
        self.sent: list[str] = []
        self.doubtful: set[str] = set()
        """Messages that may have been sent twice."""
        self.held: list[dict[int, str]] = [{} for _ in brokers]
        self.ending: list[dict[int, Ack | Release]] = [{} for _ in brokers]
        """Settlements in progress."""
        self.generations = [0 for _ in brokers]
        self.done: set[str] = set()
        """Messages with an ack that was sent; the reply may have been lost."""
        self.acked: set[str] = set()
        """Messages with an ack that was confirmed in time."""
        self.runs: Counter[str] = Counter()

    def send(self) -> None:
        names = [f"m{len(self.sent) + number}" for number in range(self.chance.randint(1, 6))]
        self.sent += names
        for _ in range(50):
            try:
                return self.brokers[0].sender.push([envelope(name, "q") for name in names], timeout=2.0)
            except BrokerUnavailable:
                self.doubtful |= set(names)
        raise AssertionError("it never accepts a message")

    def register(self, who: int) -> None:
        self.held[who].clear()
        self.ending[who].clear()
        for _ in range(50):
            try:
                self.generations[who] = self.brokers[who].consumer.register(f"w{who}", ["q"], 1)
                return
            except BrokerUnavailable:
                pass
        raise AssertionError("it never accepts a registration")

    def lease(self, who: int) -> None:
        try:
            found = self.brokers[who].consumer.lease(["q"], self.chance.randint(1, 4)).messages
        except LeaseLost:
            return self.register(who)
        except BrokerUnavailable:
            return
        for message, name in zip(found, ids(found), strict=True):
            self._got(who, message, name)

    def _got(self, who: int, message: Leased, name: str) -> None:
        self.runs[name] += 1
        if name not in self.doubtful:
            assert name not in self.acked, f"{name} was acknowledged"
            for other, held in enumerate(self.held):
                owner = [tag for tag, one in held.items() if one == name and tag not in self.ending[other]]
                if who == other:
                    owner = []  # its old lease has ended, and it has a new one
                assert not any(self._is_sure(other, tag) for tag in owner), (
                    f"{name} is leased by {other}, and delivered to {who}"
                )
        self.held[who][message.tag] = name

    def settle(self, who: int) -> None:
        """Begin a settlement, or repeat the one in progress."""
        held, ending = self.held[who], self.ending[who]
        if not ending:
            for tag in self.chance.sample(sorted(held), self.chance.randint(0, len(held))):
                ending[tag] = Ack(tag) if self.chance.random() < 0.6 else Release(tag)
        ends = list(ending.values())
        self.done |= {held[end.tag] for end in ends if isinstance(end, Ack)}
        sure = {end.tag for end in ends if self._is_sure(who, end.tag)}
        try:
            lost = self.brokers[who].consumer.settle(self.generations[who], ends)
        except LeaseLost:
            return self.register(who)
        except BrokerUnavailable:
            return
        for end in ends:
            del ending[end.tag]
            name = held.pop(end.tag)
            if isinstance(end, Ack) and end.tag not in lost and end.tag in sure:
                self.acked.add(name)

    def _is_sure(self, who: int, tag: int) -> bool:
        """Return whether *who* expects its lease to last a while; otherwise the message may run elsewhere."""
        consumer: Any = self.brokers[who].consumer
        held = consumer._holdings.leased.get(tag)
        return held is not None and time.monotonic() + SURE_SECONDS < min(
            held.message.expires, held.message.returns_at
        )

    def leave(self, who: int) -> None:
        self.brokers[who].consumer.deregister()
        self.register(who)

    def keep(self, who: int) -> None:
        try:
            self.brokers[who].consumer.extend()
        except LeaseLost:
            self.register(who)
        except BrokerUnavailable:
            pass

    def step(self) -> None:
        who = self.chance.randrange(len(self.brokers))
        weights = {self.lease: 8, self.settle: 6, self.keep: 2, self.leave: 1}
        self.chance.choices(list(weights), list(weights.values()))[0](who)
        self.brokers[who].consumer.wait(0.02)


SEEDS = os.environ.get("TEST_QWORKER_BAD_DAYS")


@pytest.mark.parametrize("seed", range(int(SEEDS)) if SEEDS else cases(range(3), [0]))
@pytest.mark.parametrize("kind", [nats, ironmq, disque], ids=["nats", "ironmq", "disque"])
def test_random_faults_lose_and_duplicate_nothing(
    kind: Callable[[Path], AbstractContextManager[Server]], seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    with kind(tmp_path) as server:
        conf = Settings({
            "broker_transport_options": server.options, "broker_connection_timeout": TIMEOUT_SECONDS,
            "worker_lease_seconds": LEASE_SECONDS,
        })  # fmt: skip
        brokers = [open_broker(server.url, conf) for _ in range(3)]
        run = Run(brokers, chance)
        for who in range(len(brokers)):
            run.register(who)
        for _ in range(3):
            run.send()
        for _ in range(STEPS):
            if chance.random() < 0.3:
                server.err(chance)
            if len(run.sent) < MESSAGES and chance.random() < 0.3:
                run.send()
            run.step()
        server.heal()
        end, quiet_since = time.monotonic() + PATIENCE * 2, 0.0
        while not quiet_since or time.monotonic() < quiet_since + LEASE_SECONDS + 1.0:
            if len(run.done) == len(run.sent) and not quiet_since:
                quiet_since = time.monotonic()  # messages that were not deleted are redelivered now
            assert time.monotonic() < end, f"lost: {sorted(set(run.sent) - run.done)}"
            if not any(run.held):
                server.expire()
                run.doubtful |= set(run.sent)  # including messages leased a moment ago
            for who in range(len(brokers)):
                run.lease(who)
                run.settle(who)
                brokers[who].consumer.wait(0.05)
        for broker in brokers:
            broker.consumer.deregister()
            broker.close()
