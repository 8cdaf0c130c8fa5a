"""The NATS JetStream broker in one process: server clock, limits, foreign messages, deletions, lost replies.
(tests/acceptance/test_nats.py has workers.)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost, PublishError
from qworker.testing.contract.patient import patient
from qworker.transports import open_broker
from qworker.transports.held.broker import HeldBroker
from qworker.transports.held.port import ServerQueue
from qworker.transports.lease import Ack, DeadLetter, Release
from qworker.transports.nats.client import Client, Post
from qworker.transports.nats.queue import BATCH, NatsQueue, publish
from tests.acceptance.nats_server import Nats
from tests.acceptance.private_servers import serving
from tests.acceptance.proxy import REFUSE, Proxy
from tests.contract.place_nats import NatsPlace
from tests.support.messages import envelope, ids
from tests.support.receiving import receive
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.integration
Open = Callable[..., HeldBroker]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[NatsPlace]:
    place = NatsPlace(tmp_path)
    yield place
    place.clear()


@pytest.fixture
def open_(place: NatsPlace) -> Iterator[Open]:
    opened: list[HeldBroker] = []

    def open_one(
        url: str | None = None, lease: float = 15.0, timeout: float = 2.0, **settings: object
    ) -> HeldBroker:
        conf = Settings({
            "broker_transport_options": {"stream": place.layout.stream}, "worker_lease_seconds": lease,
            "broker_connection_timeout": timeout, **settings,
        })  # fmt: skip
        store = open_broker(url or place.url, conf)
        assert isinstance(store, HeldBroker)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def foreign(place: NatsPlace) -> Iterator[Client]:
    """A connection of another client."""
    connection = place.server().connect()
    yield connection
    connection.release()


def at(url: str, port: int) -> str:
    """*url* with another *port*."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.hostname}:{port}").geturl()


# -- messages --


def test_foreign_messages_are_received(open_: Open, place: NatsPlace, foreign: Client) -> None:
    store = open_()
    own = store.consumer.register("w", ["q/ü >.*"], 1)
    encoded = b'{"body": "?", "properties": {"body_encoding": "rot13"}}'
    bodies = [b"words", b"[]", b"", b'{"properties": 5}', encoded]
    foreign.exchange([Post(place.layout.subject("q/ü >.*"), body) for body in bodies])
    found = receive(store, len(bodies), "q/ü >.*")
    assert sorted(message.body for message in found) == sorted(bodies)
    store.consumer.settle(own, [DeadLetter(message.tag, "nonsense") for message in found])
    assert sorted(letter.body for letter in store.admin.dead()) == sorted(bodies)


def test_binary_foreign_message_is_received(open_: Open, place: NatsPlace, foreign: Client) -> None:
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    foreign.exchange([Post(place.layout.subject("q"), b"\xff\x00\xfe")])
    (message,) = receive(store, 1, "q")
    assert store.consumer.settle(own, [DeadLetter(message.tag, "nonsense")]) == set()
    assert len(store.admin.dead()) == 1
    assert place.count() == 0


def test_message_over_max_payload_is_refused(open_: Open, place: NatsPlace) -> None:
    store = open_()
    with pytest.raises(PublishError, match="max_payload"):
        store.sender.push([envelope("large", "q", body=b"x" * 1_100_000)])
    assert place.count() == 0


def test_headers_count_for_max_payload(open_: Open, place: NatsPlace) -> None:
    """The server disconnects clients that send larger messages."""
    broker = open_()
    broker.sender.push([envelope("a", "q")])
    connection = broker.sender._connection
    layout = broker.admin._server.layout
    subject, id = layout.subject("q"), "an-id"
    head = f"NATS/1.0\r\nNats-Msg-Id: {id}\r\nNats-Expected-Stream: {layout.stream}\r\n\r\n"
    largest = connection.max_payload - len(head)
    with pytest.raises(PublishError, match="max_payload"):
        publish(connection, layout.stream, [Post(subject, b"x" * (largest + 1))], [id])
    publish(connection, layout.stream, [Post(subject, b"x" * largest)], [id])


def test_number_of_calls_per_message(open_: Open, place: NatsPlace) -> None:
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("first", "q")])
    connections = [store.consumer._connection, store.sender._connection]
    before = sum(connection.exchanges for connection in connections)
    store.sender.push([envelope(str(number), "q") for number in range(999)])
    ended = 0
    while ended < 1000:
        found = receive(store, 1, "q") + store.consumer.lease(["q"], 100).messages
        assert store.consumer.settle(own, [Ack(message.tag) for message in found]) == set()
        ended += len(found)
    assert place.count() == 0
    assert (sum(connection.exchanges for connection in connections) - before) / 1000 < 0.4


def test_patient_consumer_waits_for_stored_messages(open_: Open, place: NatsPlace, foreign: Client) -> None:
    """JetStream may still report no messages for a millisecond."""
    asked: list[str] = []

    def on_its_way(queue: ServerQueue) -> bool:
        asked.append(queue.name)
        if len(asked) == 1:
            foreign.exchange([Post(place.layout.subject("q"), b"late")])
        return len(asked) == 1

    store = patient(open_(), on_its_way)
    store.consumer.register("w", ["q"], 1)
    assert [message.body for message in store.consumer.lease(["q"], 9).messages] == [b"late"]
    assert asked == ["q", "q"]


# -- the server's clock --


def test_delayed_message_is_released_until_it_is_due(open_: Open, place: NatsPlace) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("month", "q", due=SYSTEM_CLOCK.now() + 2_600_000.0), envelope("now", "q")])
    assert ids(receive(store, 1, "q")) == ["now"]
    assert len(store.consumer._holdings.everything()) == 1
    assert place.count() == 2


def test_release_with_due_time_delays_the_message(open_: Open, place: NatsPlace) -> None:
    """Longer delays than a worker keeps are kept by the server, without republishing."""
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", "q")])
    (message,) = receive(store, 1, "q")
    held = store.consumer._holdings.leased[message.tag].message.delivery_tag
    assert store.consumer.settle(own, [Release(message.tag, SYSTEM_CLOCK.now() + 600.0)]) == set()
    assert store.consumer.lease(["q"], 1).messages == []
    assert store.consumer._holdings.everything() == []
    assert place.count() == 1
    store.consumer.deregister()
    own = store.consumer.register("w", ["r"], 1)
    store.sender.push([envelope("b", "r")])
    (message,) = receive(store, 1, "r")
    held = store.consumer._holdings.leased[message.tag].message.delivery_tag
    store.consumer.settle(own, [Release(message.tag)])
    (again,) = receive(store, 1, "r")
    assert store.consumer._holdings.leased[again.tag].message.delivery_tag == held
    assert again.redelivered


def test_extend_keeps_the_lease(open_: Open, place: NatsPlace) -> None:
    store, other = open_(lease=3.0), open_(lease=3.0)
    own = store.consumer.register("w", ["q"], 1)
    other.consumer.register("other", ["q"], 1)
    store.sender.push([envelope("a", "q")])
    (message,) = receive(store, 1, "q")
    end = time.monotonic() + 4.5
    while time.monotonic() < end:
        store.consumer.extend()
        assert other.consumer.lease(["q"], 1).messages == []
        other.consumer.wait(0.1)
    assert store.consumer.settle(own, [Ack(message.tag)]) == set()
    assert place.count() == 0


FROZEN = """
import sys
from qworker.conf import Settings
from qworker.transports import open_broker

url, stream, lease = sys.argv[1:]
store = open_broker(url, Settings({
    "broker_transport_options": {"stream": stream}, "worker_lease_seconds": float(lease)
}))
store.consumer.register("frozen", ["q"], 1)
print("registered", flush=True)
while True:
    for message in store.consumer.lease(["q"], 1).messages:
        print("has", message.body.decode(), flush=True)
    store.consumer.wait(0.2)
"""


def test_frozen_consumer_does_not_run_messages_with_expired_leases(
    open_: Open, place: NatsPlace, foreign: Client
) -> None:
    """The message was in its socket for longer than the lease, and another consumer has it by then."""
    lease, frozen_seconds = 2.0, 6.0
    command = [sys.executable, "-c", FROZEN, place.url, place.layout.stream, str(lease)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as frozen:
        assert frozen.stdout is not None
        other = open_(lease=lease)
        try:
            assert frozen.stdout.readline() == "registered\n"
            queue = place.server().declare(foreign, "q")
            until(lambda: _waits(queue))
            os.kill(frozen.pid, signal.SIGSTOP)
            end = time.monotonic() + frozen_seconds
            other.sender.push([envelope("a", "q", body=b"a")])
            own = other.consumer.register("other", ["q"], 1)
            (message,) = receive(other, 1, "q")
            while time.monotonic() < end:
                other.consumer.extend()
                other.consumer.wait(0.1)
            os.kill(frozen.pid, signal.SIGCONT)
            other.sender.push([envelope("b", "q", body=b"b")])
            assert frozen.stdout.readline() == "has b\n"
            assert other.consumer.settle(own, [Ack(message.tag)]) == set()
            assert place.count() == 1
        finally:
            frozen.kill()


def test_lease_starts_at_the_request(open_: Open, place: NatsPlace) -> None:
    """Not at the arrival with a later request: the lease runs while the message is in transit."""
    with Proxy(urlsplit(place.url).port or 4222) as proxy:
        server = place.server(at(place.url, proxy.port), timeout=1.0)
        connection = server.connect()
        queue = server.declare(connection, "q")
        server.sources(connection, [queue])
        assert queue.take(1, 0.0) == []
        proxy.down.hold_when(lambda: True)
        open_().sender.push([envelope("late", "q")])
        before = time.monotonic()
        with suppress(TimeoutError):
            queue.take(1, 0.0)
        asked_again = time.monotonic()
        proxy.heal()
        (late,) = retry_until_received(lambda: queue.take(1, 0.0))
        assert before <= late.expires - late.lease_seconds < asked_again
        open_().sender.push([envelope("new", "q")])
        now = time.monotonic()
        (new,) = retry_until_received(lambda: queue.take(1, 0.0))
        assert new.expires - new.lease_seconds >= now
        connection.release()


def retry_until_received(receive: Callable[[], list[Any]]) -> list[Any]:
    found: list[Any] = []

    def has_come() -> bool:
        with suppress(TimeoutError):
            found.extend(receive())
        return bool(found)

    until(has_come)
    return found


def _waits(queue: ServerQueue) -> bool:
    """Return whether a client waits for a message of *queue*."""
    assert isinstance(queue, NatsQueue)
    found = queue._connection.ask(f"CONSUMER.INFO.{queue._stream}.{queue._consumer}")
    return int(found["num_waiting"]) > 0


# -- server faults --


def test_unconfirmed_message_is_resent_and_stored_once(open_: Open, place: NatsPlace) -> None:
    with Proxy(urlsplit(place.url).port or 4222) as proxy:
        store = open_(at(place.url, proxy.port))
        store.sender.push([envelope("first", "q")])  # connects
        before = proxy.up.count
        # The reply to the first attempt is lost, that to the second, half the timeout later, is not.
        end = time.monotonic() + 0.8
        proxy.down.lose_when(lambda: time.monotonic() < end)
        store.sender.push([envelope("second", "q")])
        assert proxy.up.count > before
        assert place.count() == 2


def test_resent_portion_is_stored_once(open_: Open, place: NatsPlace) -> None:
    """Both attempts get no reply. Earlier portions were stored, so it is tried again."""
    with Proxy(urlsplit(place.url).port or 4222) as proxy:
        store = open_(at(place.url, proxy.port), timeout=1.0)
        store.sender.push([envelope("first", "q")])
        before = place.count()
        end = 0.0

        def unanswered() -> bool:
            nonlocal end
            if not end and place.count() > before + BATCH:  # the second portion is stored
                end = time.monotonic() + 1.2
            return time.monotonic() < end

        proxy.down.lose_when(unanswered)
        store.sender.push([envelope(str(number), "q") for number in range(2 * BATCH)])
        assert end
        assert place.count() == before + 2 * BATCH


def test_settlement_is_repeated_after_an_unresponsive_server(open_: Open, place: NatsPlace) -> None:
    """The messages are still leased when it answers again, and the same settlement works."""
    with Proxy(urlsplit(place.url).port or 4222) as proxy:
        store = open_(at(place.url, proxy.port), timeout=1.0)
        own = store.consumer.register("w", ["q"], 1)
        store.sender.push([envelope("a", "q")])
        (message,) = receive(store, 1, "q")
        proxy.down.open = False
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            store.consumer.settle(own, [Ack(message.tag)])
        proxy.heal()
        assert store.consumer.settle(own, [Ack(message.tag)]) == set()
        assert place.count() == 0


def test_uncertain_release_is_not_repeated(open_: Open, place: NatsPlace) -> None:
    """JetStream would take it from the new holder, and a third worker would run it, too."""
    with Proxy(urlsplit(place.url).port or 4222) as proxy:
        store, other, third = open_(at(place.url, proxy.port), timeout=1.0), open_(), open_()
        own = store.consumer.register("w", ["q"], 1)
        theirs = other.consumer.register("other", ["q"], 1)
        store.sender.push([envelope("a", "q"), envelope("b", "q")])
        kept, message = receive(store, 2, "q")
        proxy.down.lost = True
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            store.consumer.settle(own, [Release(message.tag)])
        (again,) = receive(other, 1, "q")
        proxy.heal()
        assert store.consumer.settle(own, [Release(message.tag)]) == set()
        store.consumer.deregister()
        third.consumer.register("third", ["q"], 1)
        assert [one.tag for one in receive(third, 1, "q")] == [kept.tag]
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            assert third.consumer.lease(["q"], 1).messages == []
            third.consumer.wait(0.1)
        assert other.consumer.settle(theirs, [Ack(again.tag)]) == set()


def test_failed_release_is_repeated_after_reconnecting(open_: Open, place: NatsPlace) -> None:
    with Proxy(urlsplit(place.url).port or 4222) as proxy:
        store, other = open_(at(place.url, proxy.port), timeout=1.0, lease=60.0), open_(lease=60.0)
        own = store.consumer.register("w", ["q"], 1)
        other.consumer.register("other", ["q"], 1)
        store.sender.push([envelope("a", "q")])
        (message,) = receive(store, 1, "q")
        proxy.mode = REFUSE
        proxy.cut()
        until(lambda: not store.consumer._connection.is_connected)
        with pytest.raises(BrokerUnavailable):
            store.consumer.settle(own, [Release(message.tag)])
        proxy.heal()
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                assert store.consumer.settle(own, [Release(message.tag)]) == set()
                break
            except BrokerUnavailable:
                assert time.monotonic() < deadline
        assert [one.tag for one in receive(other, 1, "q")] == [message.tag]


def test_full_stream_refuses_messages_and_loses_none(open_: Open, place: NatsPlace, foreign: Client) -> None:
    """Another client has created it with a limit, and with discarding of old messages."""
    stream = place.layout.stream
    subjects = place.layout.subject("x").rpartition(".")[0] + ".*"
    old = {"name": stream, "subjects": [subjects], "retention": "workqueue", "discard": "old"}
    foreign.ask(f"STREAM.CREATE.{stream}", {**old, "storage": "file", "max_bytes": 3000})
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    sent = 0

    def fill() -> None:
        nonlocal sent
        while sent < 20:
            store.sender.push([envelope(str(sent), "q", body=b"x" * 300)])
            sent += 1

    with pytest.raises(BrokerUnavailable, match="maximum bytes exceeded"):
        fill()
    found = receive(store, sent, "q")
    assert ids(found) == list(map(str, range(sent)))
    store.consumer.settle(own, [Ack(message.tag) for message in found])
    store.sender.push([envelope("room", "q")])
    assert ids(receive(store, 1, "q")) == ["room"]


def test_slow_server_is_waited_for(open_: Open, place: NatsPlace) -> None:
    """Otherwise revocations would be missed, and dead letters not found."""
    with Proxy(urlsplit(place.url).port or 4222) as proxy:
        store = open_(at(place.url, proxy.port), timeout=10.0)
        own = store.consumer.register("w", ["q"], 1)
        store.sender.push([envelope(str(number), "q") for number in range(5)])
        found = receive(store, 5, "q")
        store.consumer.settle(own, [DeadLetter(message.tag, "why") for message in found])
        store.sender.revoke(["a", "b"])
        proxy.down.delay = 1.3
        assert [revocation.task_id for revocation in store.consumer.revoked_since(0)[1]] == ["a", "b"]
        assert len(store.admin.dead()) == 5
        assert store.admin.dead_discard() == 5
        assert store.admin.dead() == []


def test_deleted_stream_raises_lease_lost(open_: Open, place: NatsPlace) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    place.clear()

    def ask() -> None:
        for _ in range(100):
            store.consumer.lease(["q"], 1)
            store.consumer.wait(0.2)

    with pytest.raises(LeaseLost, match="deleted"):
        ask()  # the server is alive, but does not reply to requests for missing consumers
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", "q")])
    assert ids(receive(store, 1, "q")) == ["a"]


class Plain(Nats):
    """A server without JetStream."""

    def command(self) -> list[str]:
        return [word for word in super().command() if word != "-js"]


def test_server_without_jetstream_raises_configuration_error(open_: Open) -> None:
    with serving("nats", Plain) as server, pytest.raises(ConfigurationError, match="-js") as refused:
        open_(server.url).consumer.register("w", ["q"], 1)
    assert "s3cr3t" not in str(refused.value)


# -- administration --


def test_server_applies_the_limits_of_failed_tasks(open_: Open) -> None:
    store = open_(failed_task_max=2, failed_task_expires=1.0)
    own = store.consumer.register("w", ["q", "r"], 1)
    store.sender.push([envelope(name, "r" if name == "d" else "q") for name in "abcd"])
    by_name = {ids([message])[0]: message for message in receive(store, 4, "q", "r")}
    for name in "abcd":
        store.consumer.settle(own, [DeadLetter(by_name[name].tag, f"why {name}", failed=True)])
    assert {letter.reason for letter in list(store.letters["failed"].newest())} == {"why b", "why c", "why d"}
    assert store.admin.dead() == []
    deadline = time.monotonic() + PATIENCE
    while list(store.letters["failed"].newest()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_purge_command_deletes_delayed_messages(open_: Open, place: NatsPlace, tmp_path: Path) -> None:
    """They count as leased on NATS, and here they are the only messages."""
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", "q")])
    (message,) = receive(store, 1, "q")
    store.consumer.settle(own, [Release(message.tag, due=time.time() + 300.0)])
    options = f"broker={place.url!r}, broker_transport_options={{'stream': {place.layout.stream!r}}}"
    (tmp_path / "tasks.py").write_text(f"from qworker import QWorker\napp = QWorker('t', {options})\n")

    def purge(*given: str) -> tuple[str, str]:
        command = [sys.executable, "-m", "qworker", "purge", "-A", "tasks", "-Q", "q", *given]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return ended.stdout, ended.stderr

    assert purge("--yes")[0] == "Removed 1 message.\n"
    assert purge("--yes")[0] == "There is nothing to remove.\n"
    assert place.count() == 0
