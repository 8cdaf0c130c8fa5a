"""The kombu transport, used like any kombu transport."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty
from typing import Any

import kombu
import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError
from kombu.pidbox import Mailbox

from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.transports import register
from qworker.transports.as_kombu.exchanges import KNOWN_SECONDS, LIFE_SECONDS, Exchanges
from qworker.transports.lease import Ack, DeadLetter, Envelope
from qworker.transports.sql.embedded.broker import SQLiteBroker

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
Connect = Callable[[], Connection]


@pytest.fixture(autouse=True)
def _registered() -> None:
    register()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """Return a function that opens connections, which are closed at the end."""
    opened: list[Connection] = []

    def open_one(**options: Any) -> Connection:
        opened.append(Connection(url, transport_options=options))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.release()


@pytest.fixture
def store(url: str) -> Iterator[SQLiteBroker]:
    """The same file as a qworker broker."""
    store = SQLiteBroker(url)
    store.consumer.register("w@test", ["q"], 1)
    yield store
    store.close()


def queue(name: str = "q", **options: Any) -> Queue:
    return Queue(name, Exchange(name), routing_key=name, **options)


def publish(connection: Connection, *bodies: Any, to: str = "q", **options: Any) -> None:
    producer = Producer(connection)
    for body in bodies:
        producer.publish(body, routing_key=to, **options)


class Inbox(list[Any]):
    """A list of consumed messages. With settle="ack" they are acknowledged on arrival."""

    def __init__(
        self, connection: Connection, *queues: Queue, settle: str = "", prefetch: int = 0, **options: Any
    ):
        super().__init__()
        self._settle = settle
        self.connection = connection
        self.channel = connection.channel()
        self.consumer = Consumer(self.channel, list(queues), callbacks=[self._receive], **options)
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def _receive(self, body: Any, message: Any) -> None:
        self.append(message)
        if self._settle:
            getattr(message, self._settle)()

    def drain(self, count: int, timeout: float = 30.0) -> list[Any]:
        """Wait until there are *count* messages in all; return their bodies."""
        while len(self) < count:
            self.connection.drain_events(timeout=timeout)
        return self.bodies

    def drain_all(self) -> list[Any]:
        """Receive all available messages; return all bodies."""
        try:
            while True:
                self.connection.drain_events(timeout=0)
        except TimeoutError:
            return self.bodies

    @property
    def bodies(self) -> list[Any]:
        return [message.payload for message in self]


# -- connecting --


def test_connection_reports_its_transport(connect: Connect, url: str, tmp_path: Path) -> None:
    with connect() as connection:
        connection.ensure_connection(max_retries=1)
        assert connection.connected
        assert connection.transport.driver_type == "qworker"
        assert connection.transport.driver_version() == kombu.__version__
        assert connection.as_uri() == url
        assert connection.supports_exchange_type("fanout")
        assert connection.info()["transport"] == "sqlite"
        assert not (tmp_path / "queue.db").exists()
        publish(connection, "the first")
        assert (tmp_path / "queue.db").exists()
    connection.release()
    connection.release()


def test_register_does_not_import_kombu_virtual() -> None:
    script = (
        "import sys; from qworker.transports import register; register(); "
        "sys.exit('kombu.transport.virtual' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY).returncode == 0


def test_relative_path_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, path in (("sqlite:///a.db", "a.db"), ("sqlite://", ".qworker/qworker.db")):
        with Connection(url) as connection:
            publish(connection, "the first")
            assert (tmp_path / path).exists()


def test_damaged_file_raises_on_connect(tmp_path: Path) -> None:
    (tmp_path / "q.db").write_bytes(b"no database" * 100)
    with (
        Connection(f"sqlite:///{tmp_path}/q.db") as connection,
        pytest.raises(ConfigurationError, match="move it aside"),
    ):
        connection.connect()


def test_failover_between_two_urls(tmp_path: Path) -> None:
    first, second = f"sqlite:///{tmp_path}/first.db", f"sqlite:///{tmp_path}/second.db"
    with Connection(f"{first};{second}") as connection:
        publish(connection, "to the first")
        connection.maybe_switch_next()
        publish(connection, "to the second")
    for url, body in ((first, b"to the first"), (second, b"to the second")):
        with closing(SQLiteBroker(url)) as store:
            store.consumer.register("w", ["q"], 1)
            assert [leased.body for leased in store.consumer.lease(["q"], 10).messages] == [body]


def test_locked_file_raises_operational_error(connect: Connect, tmp_path: Path) -> None:
    with connect() as connection:
        publish(connection, "a")
        with closing(sqlite3.connect(tmp_path / "queue.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(OperationalError, match="locked"):
                publish(connection, "b", timeout=0.01, retry=True, retry_policy={"max_retries": 0})
            other.execute("ROLLBACK")
        assert connection.SimpleQueue("q").qsize() == 1


# -- publishing and consuming --


def test_message_is_delivered_unchanged(connect: Connect) -> None:
    with connect() as sender, connect() as receiver:
        publish(
            sender,
            {"é": [1, None]},
            headers={"mine": 1},
            priority=3,
            correlation_id="c",
            reply_to="r",
            message_id="m",
            type="t",
        )
        inbox = Inbox(receiver, queue())
        assert inbox.drain(1) == [{"é": [1, None]}]
        (message,) = inbox
        assert message.headers == {"mine": 1}
        assert message.content_type == "application/json"
        assert message.delivery_info == {"exchange": "", "routing_key": "q"}
        properties = {
            name: message.properties[name]
            for name in ("priority", "correlation_id", "reply_to", "message_id", "type")
        }
        assert properties == {
            "priority": 3,
            "correlation_id": "c",
            "reply_to": "r",
            "message_id": "m",
            "type": "t",
        }


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml", "msgpack"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_every_serializer_works(connect: Connect, serializer: str, compression: str | None) -> None:
    with connect() as connection:
        publish(connection, {"x": "é" * 100}, serializer=serializer, compression=compression)
        assert Inbox(connection, queue(), accept=[serializer]).drain(1) == [{"x": "é" * 100}]


def test_raw_bytes_are_delivered(connect: Connect) -> None:
    with connect() as connection:
        publish(connection, bytes(range(256)), content_type="application/data", content_encoding="binary")
        inbox = Inbox(connection, queue(), accept=["application/data"])
        inbox.drain(1)
        assert inbox[0].body == bytes(range(256))


def test_messages_are_ordered_by_priority(connect: Connect) -> None:
    with connect() as connection:
        for priority in (0, 9, 4, 9):
            publish(connection, priority, priority=priority)
        assert Inbox(connection, queue()).drain(4) == [9, 9, 4, 0]


def test_invalid_priority_is_clamped(connect: Connect) -> None:
    with connect() as connection:
        for priority in (-5, 99, None):
            publish(connection, priority, priority=priority)
        assert Inbox(connection, queue()).drain(3) == [99, -5, None]


def test_unserialisable_headers_are_refused(connect: Connect) -> None:
    with connect() as connection:
        with pytest.raises(Exception, match="headers of the envelope are not JSON"):
            publish(connection, "x", headers={"bad": object()})
        assert connection.SimpleQueue("q").qsize() == 0


def test_simple_queue(connect: Connect) -> None:
    with connect() as connection, connection.SimpleQueue("simple") as simple:
        assert simple.qsize() == 0
        with pytest.raises(Empty):
            simple.get(block=False)
        with pytest.raises(Empty):
            simple.get(timeout=0.01)
        simple.put({"n": 1})
        simple.put({"n": 2})
        assert len(simple) == 2
        message = simple.get(timeout=30)
        assert message.payload == {"n": 1}
        message.ack()
        assert simple.get_nowait().payload == {"n": 2}
        assert simple.clear() == 0
        simple.put({"n": 3})
        assert simple.clear() == 1
        assert simple.qsize() == 0


def test_simple_buffer_needs_no_acks(connect: Connect) -> None:
    with connect() as connection, connection.SimpleBuffer("buffer") as buffer:
        buffer.put("a")
        buffer.put("b")
        assert buffer.get(timeout=30).payload == "a"
        assert buffer.get_nowait().payload == "b"
    with connect() as connection:
        assert connection.SimpleQueue("buffer").qsize() == 0


def test_drain_events_times_out(connect: Connect) -> None:
    with connect() as connection:
        Inbox(connection, queue())
        started = time.monotonic()
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.05)
        assert 0.04 < time.monotonic() - started < 10


def test_publisher_on_another_connection_wakes_the_consumer(connect: Connect) -> None:
    with connect() as receiver, connect() as sender:
        inbox = Inbox(receiver, queue())
        inbox.drain_all()
        late = threading.Timer(0.05, lambda: publish(sender, "wake up"))
        late.start()
        assert inbox.drain(1, timeout=60) == ["wake up"]
        late.join()


def test_several_queues_and_channels_are_served(connect: Connect) -> None:
    with connect() as connection:
        first = Inbox(connection, queue("a"), queue("b"))
        second = Inbox(connection, queue("c"))
        for name in "abc" * 3:
            publish(connection, name, to=name)
        while len(first) + len(second) < 9:
            connection.drain_events(timeout=30)
        assert sorted(first.bodies) == list("aaabbb")
        assert second.bodies == list("ccc")


# -- settling --


def test_acked_message_is_deleted(connect: Connect) -> None:
    with connect() as connection:
        publish(connection, "a", "b")
        assert Inbox(connection, queue(), settle="ack").drain(2) == ["a", "b"]
    with connect() as connection:
        assert not connection.SimpleQueue("q").qsize()


def test_no_ack_deletes_messages_on_delivery(connect: Connect, store: SQLiteBroker) -> None:
    with connect() as connection:
        publish(connection, "a", "b")
        assert Inbox(connection, queue(), no_ack=True).drain(1) == ["a"]
    assert [leased.body for leased in store.consumer.lease(["q"], 10).messages] == [b"b"]


def test_closing_a_channel_requeues_unacked_messages(connect: Connect) -> None:
    with connect() as connection:
        publish(connection, "a", "b")
        inbox = Inbox(connection, queue())
        inbox.drain(2)
        assert [message.headers.get("redelivered") for message in inbox] == [None, None]
        inbox.channel.close()
        again = Inbox(connection, queue())
        assert again.drain(2) == ["a", "b"]
        assert [message.headers["redelivered"] for message in again] == [True, True]
        assert [message.delivery_info["redelivered"] for message in again] == [True, True]


def test_closing_a_connection_requeues_unacked_messages(connect: Connect, store: SQLiteBroker) -> None:
    connection = connect()
    publish(connection, "a")
    Inbox(connection, queue()).drain(1)
    assert store.consumer.lease(["q"], 1).messages == []
    connection.release()
    (leased,) = store.consumer.lease(["q"], 1).messages
    assert (leased.redelivered, leased.deliveries) == (True, 0)


def test_requeued_message_keeps_its_position(connect: Connect) -> None:
    with connect() as connection:
        publish(connection, "a", "b")
        inbox = Inbox(connection, queue(), prefetch=1)
        inbox.drain(1)
        inbox[0].requeue()
        inbox.drain(2)
        assert inbox.bodies == ["a", "a"]
        assert inbox[1].delivery_info["redelivered"] is True


def test_rejected_message_becomes_a_dead_letter(connect: Connect, store: SQLiteBroker) -> None:
    with connect() as connection:
        publish(connection, "a")
        Inbox(connection, queue(), settle="reject").drain(1)
    (dead,) = store.admin.dead()
    assert (dead.body, dead.reason) == (b"a", "rejected by its consumer")


def test_recover_redelivers_unacked_messages(connect: Connect) -> None:
    with connect() as connection:
        publish(connection, "a", "b")
        inbox = Inbox(connection, queue())
        inbox.drain(2)
        inbox.consumer.recover(requeue=True)
        assert inbox.drain(4) == ["a", "b", "a", "b"]


def test_ack_multiple(connect: Connect, store: SQLiteBroker) -> None:
    with connect() as connection:
        publish(connection, *range(4))
        inbox = Inbox(connection, queue(), prefetch=3)
        inbox.drain(3)
        inbox[0].ack()
        inbox[1].ack(multiple=True)
        assert inbox.drain(4) == [0, 1, 2, 3]
        deadline = time.monotonic() + 30
        while (
            info := store.admin.queues()[0]
        ).leased > 2:  # the second ack may be settled after a further delivery
            assert time.monotonic() < deadline
        assert (info.ready, info.leased) == (0, 2)
        inbox[3].ack(multiple=True)
    assert store.admin.queues() == []


def test_two_channels_can_consume_one_queue(connect: Connect, store: SQLiteBroker) -> None:
    """Each settles its own messages, and cancelling one does not affect the other."""
    with connect() as connection:
        inboxes = [Inbox(connection, queue(), prefetch=1, settle="ack") for _ in range(2)]
        publish(connection, *range(20))
        while sum(map(len, inboxes)) < 20:
            connection.drain_events(timeout=30)
        inboxes[1].consumer.cancel()
        publish(connection, "last")
        before = len(inboxes[0])
        assert inboxes[0].drain(before + 1)[-1] == "last"
    assert store.admin.queues() == []


def test_prefetch_count_limits_unacked_messages(connect: Connect, store: SQLiteBroker) -> None:
    with connect() as connection:
        publish(connection, *range(5))
        inbox = Inbox(connection, queue(), prefetch=2)
        assert inbox.drain_all() == [0, 1]
        assert [(info.ready, info.leased) for info in store.admin.queues()] == [(3, 2)]
        inbox[0].ack()
        assert inbox.drain_all() == [0, 1, 2]


def test_channel_without_room_leaves_messages_to_others(connect: Connect, store: SQLiteBroker) -> None:
    """Each message wakes one consumer of its queue."""
    inbox = Inbox(connect(), queue(), prefetch=1)
    publish(connect(), "held")
    assert inbox.drain(1) == ["held"]
    worker = store.consumer
    for number in range(8):
        while worker.wait(0.05):
            worker.lease(["q"], 1)
        publish(connect(), number)
        assert worker.wait(10) is True
        (leased,) = worker.lease(["q"], 1).messages
        assert json.loads(leased.body) == number
    inbox[0].ack()
    publish(connect(), "next")
    assert "next" in inbox.drain(2)


def test_ack_in_another_thread_frees_prefetch(connect: Connect) -> None:
    with connect() as connection:
        publish(connection, "a", "b")
        inbox = Inbox(connection, queue(), prefetch=1)
        inbox.drain(1)
        late = threading.Timer(0.05, inbox[0].ack)
        late.start()
        assert inbox.drain(2, timeout=60) == ["a", "b"]
        late.join()


def test_messages_of_a_killed_consumer_are_redelivered(connect: Connect, url: str) -> None:
    script = f"""
import time
from kombu import Connection, Consumer, Queue
from qworker.transports import register
register()
connection = Connection({url!r})
def receive(body, message):
    print(body, flush=True)
with Consumer(connection, [Queue("q")], callbacks=[receive]):
    connection.drain_events(timeout=60)
    connection.drain_events(timeout=60)
    time.sleep(60)
"""
    with connect() as connection:
        publish(connection, "a", "b")
        victim = subprocess.Popen(
            [sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
        )
        assert victim.stdout is not None
        assert [victim.stdout.readline().strip() for _ in "ab"] == ["a", "b"]
        inbox = Inbox(connection, queue())
        assert inbox.drain_all() == []
        victim.kill()
        victim.wait()
        victim.stdout.close()
        assert inbox.drain(2) == ["a", "b"]
        assert inbox[0].delivery_info["redelivered"] is True


@pytest.mark.parametrize("published", [0, 1])
def test_death_of_a_consumer_with_messages_is_logged_as_warning(
    connect: Connect, url: str, caplog: pytest.LogCaptureFixture, published: int
) -> None:
    script = f"""
import os
from kombu import Connection, Queue
from qworker.transports import register
register()
channel = Connection({url!r}).channel()
Queue("q", channel=channel).get()
os._exit(1)
"""
    connection = connect()
    publish(connection, *range(published))
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=False, timeout=60)
    with caplog.at_level(logging.INFO):
        inbox = Inbox(connection, queue("q"), settle="ack")
        while "is dead" not in caplog.text:
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)
    (record,) = [each for each in caplog.records if "is dead" in each.message]
    assert record.levelno == (logging.WARNING if published else logging.INFO)
    assert len(inbox.drain(published)) == published


def test_death_is_counted_for_delivered_messages(connect: Connect, url: str, store: SQLiteBroker) -> None:
    """Not for settled or undelivered ones; a message with too many deaths becomes a dead letter."""
    script = f"""
import os, signal, sys
from kombu import Connection, Consumer, Queue
from qworker.transports import register
register()
got = []
connection = Connection({url!r}, transport_options={{"max_deliveries": 2}})
with Consumer(connection, [Queue("q")], callbacks=[lambda body, message: got.append(message)]) as consumer:
    consumer.qos(prefetch_count=3)
    while len(got) < 2:
        connection.drain_events(timeout=60)
    got[0].ack()
    connection.transport.consumer_thread.look()
    connection.transport.consumer_thread.shared_state.ask(lambda: None)
    print([message.headers.get("x-delivery-count", 0) for message in got])
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with connect() as connection:
        publish(connection, *"abcdefg")
    counts = []
    for _ in range(3):
        victim = subprocess.run(
            [sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, timeout=60
        )
        counts.append(victim.stdout.strip())
        store.consumer.reclaim()
    # a is done, b delivered; b is done, c delivered; c is done, d delivered.
    assert counts == ["[0, 0]", "[1, 0]", "[1, 0]"]
    with connect(max_deliveries=1) as connection:
        assert Inbox(connection, queue(), settle="ack").drain(3) == ["e", "f", "g"]
    (dead,) = store.admin.dead()
    assert (dead.body, dead.reason, dead.deliveries) == (b"d", "delivered 1 times without success", 1)


def test_lease_is_renewed_while_a_consumer_is_busy(connect: Connect, store: SQLiteBroker) -> None:
    with connect(lease_seconds=1) as connection:
        publish(connection, "a")
        inbox = Inbox(connection, queue())
        inbox.drain(1)
        until = time.monotonic() + 2.5
        while time.monotonic() < until:  # while our thread is busy with other things
            assert store.consumer.reclaim() == []
            time.sleep(0.01)
        inbox[0].ack()
    assert store.admin.queues() == []


def test_kombu_consumer_gets_messages_of_a_dead_worker(
    connect: Connect, url: str, store: SQLiteBroker
) -> None:
    with connect() as connection:
        publish(connection, "a")
        store.consumer.lease(["q"], 1)
        store.consumer._files.let_go()  # like the kernel for a killed process
        inbox = Inbox(connection, queue())
        assert inbox.drain(1) == ["a"]


def test_undecodable_messages_become_dead_letters(
    connect: Connect, store: SQLiteBroker, caplog: pytest.LogCaptureFixture
) -> None:
    store.sender.push(
        [Envelope("q", "{", None, b""), Envelope("q", "[]", "[]", b""), Envelope("q", "{}", None, b'"good"')]
    )
    with connect() as connection, caplog.at_level(logging.ERROR):
        inbox = Inbox(connection, queue(), settle="ack")
        assert inbox.drain(1) == ["good"]
    assert [dead.reason[:18] for dead in store.admin.dead()] == ["InvalidTaskMessage"] * 2
    assert "cannot be read: headers" in caplog.text


def test_settling_an_unowned_message_is_only_logged(
    connect: Connect, store: SQLiteBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with connect() as connection:
        publish(connection, "a")
        inbox = Inbox(connection, queue())
        inbox.drain(1)
        consumer_thread, ack = connection.transport.consumer_thread, Ack(int(inbox[0].delivery_tag))
        consumer_thread.shared_state.ask(
            lambda: consumer_thread._consumer.settle(consumer_thread._generation, [ack])
        )
        inbox[0].ack()
    assert "could not be settled" in caplog.text


def test_lost_lease_raises_a_connection_error(connect: Connect, url: str) -> None:
    later = SQLiteBroker(url, uptime=lambda: time.monotonic() + 10_000_000)
    with closing(later), connect() as connection, connect() as other:
        publish(connection, "a")
        inbox = Inbox(connection, queue(), prefetch=1)
        inbox.drain(1)
        later.consumer.register("later", ["q"], 1)
        assert [dead.returned for dead in later.consumer.reclaim()] == [1]
        connection.transport.consumer_thread._extend_at = 0.0  # as if some seconds had passed
        with pytest.raises(connection.connection_errors, match="data was deleted or replaced"):
            connection.drain_events(timeout=30)
        with pytest.raises(LeaseLost, match="has gone back"):
            inbox[0].ack()
        again = Inbox(other, queue(), settle="ack")
        assert again.drain(1) == ["a"]
        assert again[0].delivery_info["redelivered"] is True


def test_requeues_are_counted_up_to_max_deliveries(connect: Connect, store: SQLiteBroker) -> None:
    with connect(max_deliveries=2) as connection:
        publish(connection, "a")
        inbox = Inbox(connection, queue(), prefetch=1)
        for turn in (1, 2):
            inbox.drain(turn)
            inbox[-1].requeue()
        assert [message.headers.get("x-delivery-count") for message in inbox] == [None, 1]
        deadline = time.monotonic() + 30
        while not store.admin.dead():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    (dead,) = store.admin.dead()
    assert dead.reason == "delivered 2 times without success"
    assert "x-delivery-count" not in dead.headers


def test_forwarded_message_starts_with_zero_deliveries(connect: Connect) -> None:
    with connect() as connection:
        publish(connection, "a", headers={"x-delivery-count": 3, "redelivered": True, "mine": 1})
        inbox = Inbox(connection, queue())
        inbox.drain(1)
        assert inbox[0].headers == {"mine": 1}


def test_acks_are_settled_in_one_batch(connect: Connect) -> None:
    with connect() as connection:
        publish(connection, *range(50))
        inbox = Inbox(connection, queue(), prefetch=50)
        inbox.drain(50)
        consumer_thread, steps = connection.transport.consumer_thread, []
        settle = consumer_thread._consumer.settle

        def counted(generation: int, settlements: Any) -> Any:
            steps.append(len(settlements))
            return settle(generation, settlements)

        consumer_thread._consumer.settle = counted
        with consumer_thread.shared_state.changed:  # blocks the consumer thread
            for message in inbox:
                message.ack()
        consumer_thread.shared_state.ask(lambda: None)
        assert steps == [50]


def test_consumer_thread_ends_without_consumers(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qworker.transports.as_kombu.consumer_thread.IDLE_SECONDS", 0.05)
    with connect() as connection:
        publish(connection, "a", "b")
        inbox = Inbox(connection, queue(), settle="ack", prefetch=1)
        inbox.drain(1)
        inbox.consumer.cancel()
        deadline = time.monotonic() + 30
        while connection.transport.consumer_thread.is_alive():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        inbox.consumer.consume()
        assert inbox.drain(2) == ["a", "b"]


# -- exchanges --


def test_direct_exchange_routes_by_key(connect: Connect) -> None:
    exchange = Exchange("orders", type="direct")
    with connect() as receiver, connect() as sender:
        inbox = Inbox(
            receiver, Queue("paid", exchange, "paid"), Queue("sent", exchange, "sent"), settle="ack"
        )
        producer = Producer(sender, exchange)
        for key in ("paid", "sent", "nobody"):
            producer.publish(key, routing_key=key)
        assert sorted(inbox.drain(2)) == ["paid", "sent"]
        assert inbox.drain_all() == inbox.bodies
        assert {(m.delivery_info["exchange"], m.delivery_info["routing_key"]) for m in inbox} == {
            ("orders", "paid"),
            ("orders", "sent"),
        }


def test_topic_exchange_routes_by_pattern(connect: Connect) -> None:
    exchange = Exchange("news", type="topic")
    with connect() as receiver, connect() as sender:
        boxes = {
            pattern: Inbox(receiver, Queue(f"news {pattern}", exchange, pattern), settle="ack")
            for pattern in ("sport.*", "#", "*.late")
        }
        producer = Producer(sender, exchange)
        for key in ("sport.late", "sport.early", "politics.late", "sport.very.late"):
            producer.publish(key, routing_key=key)
        for inbox in boxes.values():
            inbox.drain_all()
        assert boxes["sport.*"].bodies == ["sport.late", "sport.early"]
        assert boxes["#"].bodies == ["sport.late", "sport.early", "politics.late", "sport.very.late"]
        assert boxes["*.late"].bodies == ["sport.late", "politics.late"]


def test_fanout_exchange_delivers_to_every_queue(connect: Connect) -> None:
    exchange = Exchange("all", type="fanout")
    with connect() as first, connect() as second, connect() as sender:
        inboxes = [Inbox(first, Queue("one", exchange)), Inbox(second, Queue("two", exchange))]
        Producer(sender, exchange).publish("to all", routing_key="ignored")
        assert [inbox.drain(1) for inbox in inboxes] == [["to all"], ["to all"]]


@pytest.mark.parametrize(
    ("kind", "bound", "sent", "arrive"),
    [
        ("fanout", "", ["a", "b.c"], ["a", "b.c"]),
        ("topic", "a.*", ["a.b", "b.b", "a.c"], ["a.b", "a.c"]),
        ("direct", "a", ["a", "b", "a"], ["a", "a"]),
    ],
)
def test_publisher_need_not_declare_the_exchange(
    connect: Connect, kind: str, bound: str, sent: list[str], arrive: list[str]
) -> None:
    """Celery publishes to a Broadcast without declaring it."""
    sender = Producer(connect())
    sender.publish("nobody", exchange="news", routing_key="a")
    inbox = Inbox(connect(), Queue("mine", Exchange("news", type=kind), routing_key=bound))
    for key in sent:
        sender.publish(key, exchange="news", routing_key=key)
    assert inbox.drain(len(arrive)) == arrive
    assert inbox.drain_all() == arrive


def test_unbound_queue_gets_no_messages(connect: Connect) -> None:
    exchange = Exchange("all", type="fanout")
    with connect() as connection:
        bound = Queue("one", exchange)(connection.default_channel)
        bound.declare()
        bound.unbind_from(exchange)
        Producer(connection, exchange).publish("to nobody")
        assert bound.queue_declare(passive=True).message_count == 0
        bound.bind_to(exchange)
        Producer(connection, exchange).publish("to one")
        assert bound.queue_declare(passive=True).message_count == 1


def test_deleted_exchange_delivers_nothing(connect: Connect) -> None:
    exchange = Exchange("all", type="fanout")
    with connect() as connection:
        inbox = Inbox(connection, Queue("one", exchange))
        Producer(connection, exchange).publish("before")
        exchange(connection.default_channel).delete()
        Producer(connection, exchange, auto_declare=True).publish("after")
        assert inbox.drain_all() == ["before"]


def test_bindings_can_be_listed(connect: Connect) -> None:
    exchange = Exchange("news", type="topic")
    with connect() as connection:
        Queue("q", exchange, "a.*")(connection.default_channel).declare()
        found = list(connection.default_channel.list_bindings())
        assert ("q", "news", "a.*") in found


# -- declaring and deleting queues --


def test_queue_exists_between_declaration_and_deletion(connect: Connect) -> None:
    with connect() as connection, connect() as other:
        declared = queue("d")(connection.default_channel)
        elsewhere = queue("d")(other.default_channel)
        with pytest.raises(other.channel_errors, match="NOT_FOUND"):
            elsewhere.queue_declare(passive=True)
        declared.declare()
        elsewhere.queue_declare(passive=True)
        publish(connection, "x", to="d")
        declared.delete(if_empty=True)
        assert elsewhere.queue_declare(passive=True).message_count == 1
        declared.delete()
        with pytest.raises(other.channel_errors, match="NOT_FOUND"):
            elsewhere.queue_declare(passive=True)


def test_queue_without_name_gets_a_generated_one(connect: Connect) -> None:
    with connect() as connection:
        name = connection.default_channel.queue_declare(exclusive=True).queue
        assert name.startswith("amq.gen-")
        publish(connection, "x", to=name)
        assert connection.default_channel.basic_get(name, no_ack=True).payload == "x"


EVENTS = Exchange("events", type="fanout")


def subscriber(name: str, **options: Any) -> Queue:
    return Queue(name, EVENTS, auto_delete=True, durable=False, **options)


def queue_names(store: SQLiteBroker) -> set[str]:
    kept = {json.loads(entry)[-2] for entry in store.registry.entries() if not entry.startswith('["gone"')}
    return kept | {info.queue for info in store.admin.queues()}


@pytest.mark.parametrize("how", ["cancel", "close channel", "close connection"])
def test_auto_delete_queue_is_deleted_with_its_consumer(
    connect: Connect, store: SQLiteBroker, how: str
) -> None:
    connection = connect()
    inbox = Inbox(connection, subscriber("mine"))
    sender = connect()
    Producer(sender, EVENTS).publish("event")
    assert queue_names(store) == {"mine"}
    if how == "cancel":
        inbox.consumer.cancel()
    elif how == "close channel":
        inbox.channel.close()
    else:
        connection.release()
    assert queue_names(store) == set()


def test_auto_delete_queue_of_a_dead_consumer_is_deleted(
    connect: Connect, store: SQLiteBroker, url: str
) -> None:
    script = f"""
import time
from kombu import Connection, Consumer, Exchange, Queue
from qworker.transports import register
register()
connection = Connection({url!r})
queue = Queue("mine", Exchange("events", type="fanout"), auto_delete=True, exclusive=True, durable=False)
with Consumer(connection, [queue], callbacks=[print]):
    print("up", flush=True)
    time.sleep(60)
"""
    victim = subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    assert victim.stdout.readline() == "up\n"
    sender = connect()
    Producer(sender, EVENTS).publish("event")
    victim.kill()
    victim.wait()
    victim.stdout.close()
    assert queue_names(store) == {"mine"}
    assert [dead.name.split("@")[0] for dead in store.consumer.reclaim()] == ["kombu"]
    later = Exchanges(store.registry, clock=lambda: time.time() + LIFE_SECONDS)
    assert later.table(EVENTS.name) == []
    assert later.tidy(store.admin.purge) == ["mine"]
    assert queue_names(store) == set()


def test_messages_to_a_deleted_queue_are_purged(connect: Connect, store: SQLiteBroker) -> None:
    sender, connection = connect(), connect()
    Inbox(connection, subscriber("mine"))
    Producer(sender, EVENTS).publish("event")
    connection.release()
    Producer(sender, EVENTS).publish("event")  # it may have cached that the queue exists
    soon = Exchanges(store.registry, clock=lambda: time.time() + 2 * KNOWN_SECONDS)
    assert soon.tidy(store.admin.purge) == ["mine"]
    assert queue_names(store) == set()
    assert store.registry.entries() == {}


def test_shared_queue_is_kept_for_remaining_consumers(connect: Connect, store: SQLiteBroker) -> None:
    first, second = connect(), connect()
    Inbox(first, Queue("shared", EVENTS, exclusive=True))
    left = Inbox(second, Queue("shared", EVENTS, exclusive=True))
    first.release()
    Producer(connect(), EVENTS).publish("event")
    assert left.drain(1) == ["event"]
    second.release()
    assert queue_names(store) == set()


@pytest.mark.parametrize("how", ["close channel", "close connection"])
def test_auto_delete_queue_keeps_messages_before_its_first_consumer(
    connect: Connect, store: SQLiteBroker, how: str
) -> None:
    sender, mine = connect(), Queue("mine", Exchange("mine"), routing_key="k", auto_delete=True)
    with sender.channel() as channel:
        Producer(channel, mine.exchange, "k").publish("early", declare=[mine])
    if how == "close connection":
        sender.release()
    consumer = connect()
    inbox = Inbox(consumer, mine, settle="ack")
    Producer(connect(), mine.exchange, "k").publish("late")
    assert inbox.drain(2) == ["early", "late"]
    inbox.consumer.cancel()
    assert queue_names(store) == set()


def test_queue_is_kept_for_other_channels_of_the_connection(connect: Connect, store: SQLiteBroker) -> None:
    connection = connect()
    first, second = (Inbox(connection, subscriber("mine"), settle="ack") for _ in range(2))
    first.consumer.cancel()
    Producer(connect(), EVENTS).publish("event")
    assert second.drain(1) == ["event"]
    second.consumer.cancel()
    assert queue_names(store) == set()


def test_second_consumer_keeps_the_bindings(connect: Connect, store: SQLiteBroker) -> None:
    first, second = (Inbox(connect(), subscriber("mine"), settle="ack") for _ in range(2))
    first.consumer.cancel()
    Producer(connect(), EVENTS).publish("event")
    assert second.drain(1) == ["event"]
    second.consumer.cancel()
    assert queue_names(store) == set()


def test_publisher_does_not_keep_an_auto_delete_queue(connect: Connect, store: SQLiteBroker) -> None:
    inbox = Inbox(connect(), subscriber("mine"), settle="ack")
    Producer(connect(), EVENTS).publish("event", declare=[subscriber("mine")])
    assert inbox.drain(1) == ["event"]
    inbox.consumer.cancel()
    assert queue_names(store) == set()


def test_exclusive_queue_is_deleted_with_its_connection(connect: Connect, store: SQLiteBroker) -> None:
    connection = connect()
    with connection.channel() as channel:
        Producer(channel).publish("x", routing_key="mine", declare=[queue("mine", exclusive=True)])
    assert connection.default_channel.basic_get("mine", no_ack=True).payload == "x"
    connection.release()
    assert queue_names(store) == set()


def test_queue_with_delayed_messages_is_not_empty(connect: Connect, store: SQLiteBroker) -> None:
    with connect() as connection:
        declared = queue()(connection.default_channel)
        declared.declare()
        publish(connection, "later", headers={"eta": "2999-01-01T00:00:00+00:00"})
        declared.delete(if_empty=True)
        (info,) = store.admin.depths(["q"])
        assert info.delayed == 1
        declared.delete()
        (info,) = store.admin.depths(["q"])
        assert info.delayed == 0


def test_durable_queue_is_kept(connect: Connect, store: SQLiteBroker) -> None:
    connection = connect()
    Inbox(connection, queue())
    publish(connection, "a")
    connection.release()
    assert queue_names(store) == {"q"}


# -- kombu features that Celery uses --


def test_mailbox_request_and_reply(connect: Connect, url: str) -> None:
    box = Mailbox("proj", type="fanout")
    node = box(connect()).Node("worker@test", state=None)
    node.channel = node.mailbox.connection.channel()
    node.handlers["ping"] = lambda state, **arguments: {"ok": "pong", **arguments}
    node.listen()
    asking = box(connect())

    def answer() -> None:
        node.mailbox.connection.drain_events(timeout=30)

    answering = threading.Thread(target=answer)
    answering.start()
    assert asking.multi_call("ping", {"x": 1}, timeout=30, limit=1) == [
        {"worker@test": {"ok": "pong", "x": 1}}
    ]
    answering.join()
    assert asking.call(["nobody@test"], "ping", timeout=0.01) in (None, [])


def test_qworker_message_can_be_consumed(connect: Connect, store: SQLiteBroker) -> None:
    store.sender.push([Envelope("q", '{"task":"t","id":"i"}', None, b"[[],{},{}]", 7)])
    with connect() as connection:
        inbox = Inbox(connection, queue())
        assert inbox.drain(1) == [[[], {}, {}]]
        (message,) = inbox
        assert message.headers == {"task": "t", "id": "i"}
        assert message.properties["correlation_id"] == "i"
        assert message.properties["priority"] == 7
        message.ack()
    assert store.admin.queues() == []


@pytest.mark.parametrize(
    ("eta", "waits"),
    [
        ("2999-01-01T00:00:00+00:00", True),
        ("2000-01-01T00:00:00+00:00", False),
        ("2999-01-01T00:00:00", False),  # only the consumer knows the time zone
        ("nonsense", False),
        (5, False),
        (None, False),
    ],
)
def test_message_with_eta_is_delayed(connect: Connect, store: SQLiteBroker, eta: Any, waits: bool) -> None:
    with connect() as connection:
        publish(connection, [[], {}, {}], headers={"task": "t", "id": "i", "eta": eta})
        assert [(info.delayed, info.ready) for info in store.admin.queues()] == [(1, 0) if waits else (0, 1)]
        assert len(Inbox(connection, queue()).drain_all()) == (not waits)


def test_delayed_message_is_delivered_when_due(connect: Connect, store: SQLiteBroker) -> None:
    with connect() as connection:
        inbox = Inbox(connection, queue())
        due = time.time() + 0.1
        store.sender.push([Envelope("q", "{}", None, b'"late"', due=due)])
        assert inbox.drain(1, timeout=60) == ["late"]
        assert due <= time.time() < due + 30


# -- forks and threads --


def test_channel_closed_while_unavailable_releases_its_messages(
    connect: Connect, store: SQLiteBroker
) -> None:
    """Its auto-delete queue cannot be deleted, but unacked messages of other queues are released."""
    with connect() as connection:
        publish(connection, "a")
        inbox = Inbox(connection, queue(), subscriber("mine"))
        inbox.drain(1)
        ask = connection.transport.consumer_thread.shared_state.ask

        def raise_unavailable(work: Any) -> Any:
            raise BrokerUnavailable("it is away")

        connection.transport.consumer_thread.shared_state.ask = raise_unavailable
        inbox.channel.close()
        connection.transport.consumer_thread.shared_state.ask = ask
        assert Inbox(connection, queue()).drain(1) == ["a"]
        assert inbox.channel not in connection.transport.channels


def test_forked_child_does_not_affect_the_consumer(connect: Connect, url: str, store: SQLiteBroker) -> None:
    script = f"""
import gc, os
from kombu import Connection, Consumer, Queue
from qworker.transports import register
register()
connection = Connection({url!r})
got = []
consumer = Consumer(connection, [Queue("q")], callbacks=[lambda body, message: got.append(message)])
consumer.consume()
connection.drain_events(timeout=60)
if os.fork() == 0:
    import sys
    del consumer
    gc.collect()
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
got[0].ack()
connection.drain_events(timeout=60)
got[1].ack()
connection.release()
print("done", flush=True)
"""
    with connect() as connection:
        publish(connection, "a", "b")
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.split() == ["0", "done"], ended.stderr
    assert store.admin.queues() == []
    assert store.consumer.reclaim() == []


def test_producer_pool_with_many_threads(connect: Connect, store: SQLiteBroker) -> None:
    pool = connect().Pool(limit=3)

    def send(number: int) -> None:
        for turn in range(10):
            with pool.acquire(block=True) as connection:
                publish(connection, f"{number}-{turn}")

    threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.force_close_all()
    assert len({leased.body for leased in store.consumer.lease(["q"], 1000).messages}) == 60
    assert store.consumer.reclaim() == []  # publishers hold no leases


def test_connections_close_their_files(connect: Connect, url: str) -> None:
    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def use() -> None:
        with Connection(url) as connection:
            publish(connection, "a")
            Inbox(connection, queue(), settle="ack").drain(1)

    use()
    before = open_files()
    for _ in range(5):
        use()
    assert open_files() == before


def test_dead_letter_of_kombu_can_be_retried(connect: Connect, store: SQLiteBroker) -> None:
    generation = store.consumer.register("w@test", ["q"], 1)
    with connect() as connection:
        publish(connection, "a")
        (leased,) = store.consumer.lease(["q"], 1).messages
        store.consumer.settle(generation, [DeadLetter(leased.tag, "why")])
        store.admin.dead_retry()
        assert Inbox(connection, queue()).drain(1) == ["a"]
