"""Our kombu transport on every broker: behaviour that depends on the broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError

from qworker.transports import register
from tests.compat.kombu_places import PLACES, each

pytestmark = pytest.mark.compat

Connect = Callable[[], Connection]
PATIENCE = 60.0


@pytest.fixture(params=each(*PLACES, always=("sqlite", "postgresql", "nats")))
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    register()
    place = PLACES[request.param](tmp_path)
    opened: list[Connection] = []

    def open_one() -> Connection:
        opened.append(Connection(f"qworker+{place.url}", transport_options=dict(place.options)))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.release()
    place.clear()


def queue(name: str, **options: Any) -> Queue:
    return Queue(name, Exchange(name), routing_key=name, **options)


def publish(connection: Connection, to: Queue, *bodies: Any, **options: Any) -> None:
    producer = Producer(connection)
    for body in bodies:
        producer.publish(body, exchange=to.exchange, routing_key=to.name, declare=[to], **options)


class Inbox(list[Any]):
    """The bodies that a consumer of *queues* received, acknowledged unless ack is False."""

    def __init__(self, connection: Connection, *queues: Queue, ack: bool = True, prefetch: int = 0) -> None:
        super().__init__()
        self._ack = ack
        self.connection = connection
        self.messages: list[Any] = []
        self.consumer = Consumer(
            connection.channel(), list(queues), callbacks=[self._receive], prefetch_count=prefetch or None
        )
        self.consumer.consume()

    def _receive(self, body: Any, message: Any) -> None:
        self.append(body)
        self.messages.append(message)
        if self._ack:
            message.ack()

    def drain(self, count: int) -> list[Any]:
        while len(self) < count:
            self.connection.drain_events(timeout=PATIENCE)
        return list(self)


def test_basic_get_returns_waiting_messages(connect: Connect) -> None:
    publish(connect(), queue("q"), "a", "b")
    mine = queue("q")(connect().channel())
    got = [mine.get(), mine.get()]
    assert sorted(message.payload for message in got) == ["a", "b"]
    assert mine.get() is None
    for message in got:
        message.ack()


def test_message_properties_are_kept(connect: Connect) -> None:
    sent = {
        "correlation_id": "c",
        "reply_to": "r",
        "timestamp": 1234567890,
        "type": "t",
        "app_id": "a",
        "user_id": "u",
    }
    publish(connect(), queue("q"), "x", **sent)
    message = queue("q")(connect().channel()).get()
    message.ack()
    assert {name: message.properties.get(name) for name in sent} == sent


def test_basic_get_does_not_reserve_further_messages(connect: Connect) -> None:
    getting, sending = connect(), connect()
    mine, other = queue("q")(getting.channel()), queue("other")
    inbox = Inbox(getting, other)
    assert mine.get() is None
    publish(sending, other, "o")
    assert inbox.drain(1) == ["o"]
    publish(sending, queue("q"), "a")
    publish(sending, other, "p")
    assert inbox.drain(2) == ["o", "p"]
    assert Inbox(connect(), queue("q")).drain(1) == ["a"]


def test_cancelled_consumer_leaves_messages_to_others(connect: Connect) -> None:
    leaving, sending = connect(), connect()
    left, kept = queue("left"), queue("kept")
    inbox = Inbox(leaving, left, kept)
    publish(sending, left, "a")
    publish(sending, kept, "b")
    assert sorted(inbox.drain(2)) == ["a", "b"]
    inbox.consumer.cancel_by_queue(left.name)
    publish(sending, left, "c", "d", "e")
    assert sorted(Inbox(connect(), left).drain(3)) == ["c", "d", "e"]
    publish(sending, kept, "f")
    assert inbox.drain(3)[2:] == ["f"]


def test_auto_delete_queue_stays_for_other_consumers(connect: Connect) -> None:
    leaving, sending = connect(), connect()
    shared = queue("shared", auto_delete=True)
    inbox = Inbox(leaving, shared)
    other = Inbox(connect(), shared, ack=False, prefetch=1)
    publish(sending, shared, "a", "b", "c")
    inbox.consumer.cancel()
    leaving.release()
    other.drain(1)
    publish(sending, shared, "d")
    other.messages[0].ack()
    while other[-1] != "d":
        other.drain(len(other) + 1)
        other.messages[-1].ack()


def test_delayed_message_of_a_cancelled_consumer_is_returned(connect: Connect) -> None:
    consuming, sending = connect(), connect()
    soon, now = queue("soon"), queue("now")
    inbox = Inbox(consuming, soon, now)
    publish(sending, soon, "first")
    assert inbox.drain(1) == ["first"]
    due = datetime.now(UTC) + timedelta(seconds=3)
    publish(sending, soon, "later", headers={"eta": due.isoformat()})
    publish(sending, now, "second")
    assert inbox.drain(2) == ["first", "second"]
    time.sleep(1.5)  # by now it was received, on brokers that deliver early
    inbox.consumer.cancel_by_queue(soon.name)
    time.sleep(2.0)
    publish(sending, now, "third")
    assert inbox.drain(3)[2:] == ["third"]
    assert Inbox(connect(), soon).drain(1) == ["later"]


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1/0",
        "postgresql://user@127.0.0.1:1/name",
        "mysql://user@127.0.0.1:1/name",
        "mongodb://127.0.0.1:1/name",
        "nats://127.0.0.1:1",
        "disque://127.0.0.1:1",
        "ironmq+http://project:token@127.0.0.1:1",
        "sqs://key:secret@127.0.0.1:1",
    ],
)
def test_connecting_to_an_unreachable_server_raises_operational_error(url: str) -> None:
    register()
    with (
        Connection(f"qworker+{url}", connect_timeout=0.5) as connection,
        pytest.raises(OperationalError, match=r"127\.0\.0\.1"),
    ):
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)


def test_ack_after_a_lost_connection_is_sent_on_close(tmp_path: Path) -> None:
    register()
    place = PLACES["postgresql"](tmp_path)
    mine = queue("q")
    try:
        with Connection(f"qworker+{place.url}") as connection:
            inbox = Inbox(connection, mine, ack=False, prefetch=2)
            publish(connection, mine, "acknowledged", "held")
            inbox.drain(2)
            inbox.consumer.cancel()
            connection.default_channel.queue_declare(mine.name, passive=True)  # flushes all commands
            place.cut()
            inbox.messages[0].ack()
        with Connection(f"qworker+{place.url}") as connection:
            left = mine(connection.channel())
            message = left.get()
            assert (message.payload, message.delivery_info.get("redelivered")) == ("held", True)
            assert left.get() is None
            message.ack()
    finally:
        place.clear()
