"""The Redis broker: server faults, full memory, damaged data, and features beyond the contract suite."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

redis = pytest.importorskip("redis", reason='pip install "qworker-queue[redis]"')

from qworker import QWorker  # noqa: E402
from qworker.clock import boot_id  # noqa: E402
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost  # noqa: E402
from qworker.testing.contract import mark  # noqa: E402
from qworker.transports.lease import (  # noqa: E402
    NO_ROOM,
    Ack,
    DeadLetter,
    Envelope,
    Release,
    Store,
)
from qworker.transports.redis.broker import PEEK, RedisBroker  # noqa: E402
from qworker.transports.redis.sender import PORTION  # noqa: E402
from qworker.worker import Worker  # noqa: E402
from tests.acceptance.private_servers import Redis, binary, free_port  # noqa: E402
from tests.contract.place_redis import RedisPlace  # noqa: E402
from tests.support.messages import message, names  # noqa: E402
from tests.support.waiting import until  # noqa: E402

pytestmark = pytest.mark.integration


@pytest.fixture
def place(tmp_path: Path) -> Iterator[RedisPlace]:
    place = RedisPlace(tmp_path)
    yield place
    place.clear()


@pytest.fixture
def open_(place: RedisPlace) -> Iterator[Callable[..., Any]]:
    opened: list[Any] = []

    def open_one(**options: Any) -> Any:
        opened.append(place.open(**options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def server() -> Iterator[Callable[..., Redis]]:
    """Return a function that starts a server with configuration options."""
    started: list[Redis] = []

    def start(**options: object) -> Redis:
        started.append(Redis(**options))
        return started[-1]

    yield start
    for server in started:
        server.close()


@contextmanager
def opened(server: Redis, **options: Any) -> Iterator[RedisBroker]:
    store = RedisBroker(server.url, options=options)
    try:
        yield store
    finally:
        try:
            store.close()
        except BrokerUnavailable:
            pass


# -- results --


def test_results_get_a_ttl(open_: Callable[..., Any], place: RedisPlace) -> None:
    store = open_()
    now = time.time()
    rows = [("soon", "SUCCESS", b'{"status": "SUCCESS"}', now + 100), ("never", "SUCCESS", b"pickled", None)]
    store.consumer.settle(store.consumer.register("w", ["q"], 1), [Store(row) for row in rows])
    key = f"{place.prefix}celery-task-meta-"
    assert 95 < place.client.ttl(f"{key}soon") <= 100
    assert place.client.ttl(f"{key}never") == -1
    assert place.client.get(f"{key}never.status") == b"SUCCESS"
    assert not place.client.exists(f"{key}soon.status")


def test_result_is_published_like_celery(open_: Callable[..., Any], place: RedisPlace) -> None:
    listening = place.client.pubsub(ignore_subscribe_messages=True)
    channel = f"{place.prefix}celery-task-meta-one"
    listening.subscribe(channel)
    until(lambda: place.client.pubsub_numsub(channel)[0][1])
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([message("a")])
    (leased,) = store.consumer.lease(["q"], 1).messages
    store.consumer.settle(own, [Ack(leased.tag, ("one", "SUCCESS", b'{"status": "SUCCESS"}', None))])
    found = until(listening.get_message)
    assert found["data"] == b'{"status": "SUCCESS"}'
    listening.close()


def test_results_are_stored_with_the_ack(place: RedisPlace) -> None:
    options = {"global_keyprefix": place.prefix}
    app = QWorker(
        "proj", broker=place.url, result_backend=place.url, set_as_current=False,
        broker_transport_options=options, result_backend_transport_options=options,
    )  # fmt: skip
    assert app.results_with_broker
    app.close()


# -- broken connections --


def test_results_are_stored_without_a_registration(place: RedisPlace, open_: Callable[..., Any]) -> None:
    """As when registering again has failed, and the worker stops."""
    store = open_()
    generation = store.consumer.register("w@h", ["q"], 1)
    store.consumer.deregister()
    row = ("task-1", "SUCCESS", b"{}", None)
    assert store.consumer.settle(generation, [Store(row)]) == set()
    assert place.result("task-1") == ("SUCCESS", b"{}")
    with pytest.raises(LeaseLost):
        store.consumer.settle(generation, [Ack(1)])


def test_consumer_reconnects(open_: Callable[..., Any], place: RedisPlace) -> None:
    store, publisher = open_(options={"client_name": f"{place.prefix}w"}), open_()
    own = store.consumer.register("w", ["q"], 1)
    publisher.sender.push([message("a")])
    (held,) = store.consumer.lease(["q"], 1).messages
    assert store.consumer.wait(0.05) is False
    ids = [each["id"] for each in place.client.client_list() if each["name"] == f"{place.prefix}w"]
    for id in ids:
        place.client.client_kill_filter(_id=id)
    assert store.consumer.wait(30) is True, "messages may have arrived meanwhile"
    with suppress(BrokerUnavailable):  # on the old connection
        assert store.consumer.lease(["q"], 1).messages == []
    assert store.consumer.settle(own, [Ack(held.tag)]) == set()
    store.consumer.wait(0)
    publisher.sender.push([message("b")])
    assert store.consumer.wait(30) is True
    assert names(store.consumer.lease(["q"], 1).messages) == ["b"]


def test_idle_publisher_reconnects(open_: Callable[..., Any], place: RedisPlace) -> None:
    publisher = open_(options={"client_name": f"{place.prefix}p"})
    publisher.sender.push([message("a")])
    (client,) = [each for each in place.client.client_list() if each["name"] == f"{place.prefix}p"]
    place.client.client_kill_filter(_id=client["id"])
    publisher.sender.push([message("b")])
    assert place.count() == 2


def test_messages_of_a_claim_with_a_lost_reply_are_leased_again(place: RedisPlace, tmp_path: Path) -> None:
    """The server has leased the messages to the consumer, which did not get the reply."""
    host, port = (
        place.client.connection_pool.connection_kwargs["host"],
        place.client.connection_pool.connection_kwargs["port"],
    )
    gate = Gate((host, port))
    options = {"global_keyprefix": place.prefix, "socket_timeout": 2.0}
    db = place.url.rpartition("/")[2]
    store = RedisBroker(f"redis://127.0.0.1:{gate.port}/{db}", options=options)
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([message("a"), message("b")])
    gate.dropping = True
    with pytest.raises(BrokerUnavailable):
        store.consumer.lease(["q"], 10)
    assert place.client.hlen(f"{place.prefix}unacked") == 2
    gate.dropping = False
    again = store.consumer.lease(["q"], 10).messages
    assert names(again) == ["a", "b"]
    assert {leased.deliveries for leased in again} == {0}
    assert store.consumer.settle(own, [Ack(leased.tag) for leased in again]) == set()
    assert place.count() == 0
    store.close()
    gate.close()


class Gate:
    """Forwards connections to *target*. dropping: discard replies of the target, and close the connection."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.dropping = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65536):
                if answers and self.dropping:
                    break
                target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listening.close()


# -- misconfigured and full servers --


def test_server_with_eviction_is_refused(server: Callable[..., Redis]) -> None:
    evicting = server(**{"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"})
    with opened(evicting) as store, pytest.raises(ConfigurationError, match="noeviction"):
        store.consumer.register("w", ["q"], 1)
    with opened(evicting, allow_eviction=True) as store:
        assert store.consumer.register("w", ["q"], 1)


def test_acks_and_results_work_with_full_memory(server: Callable[..., Redis]) -> None:
    full = server()
    with opened(full) as store:
        own = store.consumer.register("w", ["q"], 1)
        store.sender.push([message(str(number)) for number in range(10)])
        held = store.consumer.lease(["q"], 5).messages
        full.do("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(BrokerUnavailable, match="memory is full"):
            store.sender.push([message("no")])
        with pytest.raises(BrokerUnavailable, match="memory is full"):
            store.sender.push([message("no"), message("no", "r")])
        rows = [(leased.headers, "SUCCESS", b'{"status": "SUCCESS"}', None) for leased in held]
        assert (
            store.consumer.settle(own, [Ack(leased.tag, row) for leased, row in zip(held, rows, strict=True)])
            == set()
        )
        store.consumer.settle(own, [Store(("alone", "SUCCESS", b'{"status": "SUCCESS"}', None))])
        assert full.do("EXISTS", "celery-task-meta-0", "celery-task-meta-alone") == 2
        store.consumer.extend()
        assert len(store.consumer.lease(["q"], 10).messages) == 5
        full.do("CONFIG", "SET", "maxmemory", "0")
        store.sender.push([message("yes")])


def test_markers_are_passed_on_with_full_memory(server: Callable[..., Redis]) -> None:
    """Otherwise a consumer that takes its queues in turns could not empty them."""
    full = server()
    with opened(full) as store:
        store.consumer.register("w", ["a", "b"], 1)
        while store.consumer.lease(["a", "b"], 1).messages or store.consumer.wait(0.05):
            pass
        store.sender.push([message("1", "a"), message("2", "b")])
        until(lambda: store.consumer.wait(0.05) and full.do("EXISTS", "qworker.marker.b") == 0)
        full.do("CONFIG", "SET", "maxmemory", "1")
        for queue in ("b", "a"):
            assert len(store.consumer.lease([queue], 1).messages) == 1
        store.consumer.wait(0.05, NO_ROOM)
        store.consumer.deregister()


def test_replica_raises_broker_unavailable(server: Callable[..., Redis]) -> None:
    replica = server()
    with opened(replica) as store:
        store.sender.push([message("a")])
        replica.do("REPLICAOF", "127.0.0.1", str(free_port()))
        with pytest.raises(BrokerUnavailable, match="replica"):
            store.sender.push([message("b")])
        replica.do("REPLICAOF", "NO", "ONE")
        store.sender.push([message("c")])


def test_wrong_password_is_reported(server: Callable[..., Redis]) -> None:
    private = server()
    private.do("CONFIG", "SET", "requirepass", "right")
    store = RedisBroker(private.url.replace("redis://", "redis://:wrong@"))
    with pytest.raises(BrokerUnavailable, match="password"):
        store.sender.push([message("a")])
    store.close()
    with pytest.raises(BrokerUnavailable, match="password"), opened(private) as nobody:
        nobody.sender.push([message("a")])
    right = RedisBroker(private.url.replace("redis://", "redis://:right@"))
    right.sender.push([message("a")])
    right.close()


def test_missing_password_is_reported_for_large_commands(
    server: Callable[..., Redis],
) -> None:
    private = server()
    private.do("CONFIG", "SET", "requirepass", "right")
    wanted = r"requires a password and got none: add it to the URL, as in redis://:PASSWORD@HOST"
    with opened(private) as nobody:
        with pytest.raises(BrokerUnavailable, match=wanted):
            nobody.sender.push([message(str(number)) for number in range(20)])  # many arguments
        with pytest.raises(BrokerUnavailable, match=wanted):
            nobody.sender.push([message("a", body=b"a" * 100_000)])  # a long one
        with pytest.raises(BrokerUnavailable, match=wanted):
            nobody.consumer.register("w", ["q"], 1)
        with pytest.raises(BrokerUnavailable, match=wanted):
            nobody.admin.queues()


DAMAGED = {
    "no envelope": b"[[[[",
    "an empty text": b"",
    "due is no number": b'{"qworker": {"deliveries": 0, "redelivered": false, "parked": 0, "due": 1.2.3, '
                        b'"sent": null}, "headers": {}, "properties": {}, "body": ""}',
    "due is a word": b'{"qworker": {"deliveries": 0, "redelivered": false, "parked": 0, "due": nan, "sent": '
                     b'null}, "headers": {}, "properties": {}, "body": ""}',
    "due is never": b'{"qworker": {"deliveries": 0, "redelivered": false, "parked": 0, "due": 1e999, "sent": '
                    b'null}, "headers": {}, "properties": {}, "body": ""}',
    "deliveries without end": b'{"qworker": {"deliveries": %b, "redelivered": false, "parked": %b, "due": '
                              b'null, "sent": null}, "headers": {}, "properties": {}, '
                              b'"body": ""}' % (b"9" * 5000, b"9" * 400),
    "no base64": b'{"headers": {}, "properties": {"body_encoding": "base64"}, "body": "!"}',
    "infinite priority": b'{"headers": {}, "properties": {"priority": Infinity}, "body": "!"}',
    "not UTF-8": b'{"headers": {"\xff": 1}, "properties": {"delivery_tag": "\xff"}, "body": "!"}',
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_message_can_be_leased_and_settled(
    open_: Callable[..., Any], place: RedisPlace, name: str
) -> None:
    place.client.lpush(f"{place.prefix}q", DAMAGED[name])
    first, second = open_(), open_()
    own = first.consumer.register("first", ["q"], 1)
    assert len(first.admin.peek("q", "ready", 10)) == 1
    (leased,) = first.consumer.lease(["q"], 10).messages
    assert [each.worker for each in first.admin.peek("q", "leased", 10)] == ["first"]
    assert first.consumer.settle(own, [Release(leased.tag, counted=True, requeued=True)]) == set()
    assert len(first.admin.peek("q", "ready", 10)) == 1
    (leased,) = first.consumer.lease(["q"], 10).messages
    first.consumer.deregister()  # releases its messages
    other = second.consumer.register("second", ["q"], 1)
    (leased,) = second.consumer.lease(["q"], 10).messages
    assert second.consumer.settle(other, [DeadLetter(leased.tag, "damaged")]) == set()
    (letter,) = second.admin.dead()
    assert second.admin.dead_retry([letter.tag]) == 1
    (leased,) = second.consumer.lease(["q"], 10).messages
    assert second.consumer.settle(other, [Ack(leased.tag)]) == set()
    assert place.count() == 0


def test_peek_omits_bodies_and_includes_kombus_unacked_messages(
    open_: Callable[..., Any], place: RedisPlace
) -> None:
    store = open_()
    headers = '{"id": "a", "argsrepr": "\\"sizes\\": [1, 2], \\"body\\": \\""}'
    store.sender.push([Envelope("q", headers, None, b"x" * 1_000_000)])
    database = store.admin._database
    ((payload, _, _),) = database.run(PEEK, "q", "ready", 10, *database.layout.scale.steps)
    assert len(payload) < 1000
    assert [each.headers for each in store.admin.peek("q", "ready", 10)] == [headers]
    stock = {"headers": {"id": "b"}, "properties": {"priority": 0}, "body": "W10="}
    place.client.hset(f"{place.prefix}unacked", "tag", json.dumps([stock, "celery", "q"]))
    (held,) = store.admin.peek("q", "leased", 10)
    assert (json.loads(held.headers)["id"], held.worker, held.sent) == ("b", "", None)
    assert store.admin.peek("r", "leased", 10) == []


@pytest.mark.parametrize(
    "order", [b"", b"x", b"1 2", b"1 2 [", b"9e9 3 [1]", b"\xff \xff \xff", b'nan 4 ["a", 1, 2]']
)
def test_damaged_revocation_is_ignored(open_: Callable[..., Any], place: RedisPlace, order: bytes) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    store.sender.revoke(["before"])
    place.client.zadd(f"{place.prefix}qworker.revoked", {order: 1.5})
    store.sender.revoke(["after"])
    cursor, found = store.consumer.revoked_since(0)
    assert [one.task_id for one in found] == ["before", "after"]
    assert store.consumer.revoked_since(cursor) == (cursor, [])


GARBAGE = [b"", b"x", b"-1", b"nan", b"inf", b"1e400", b"\xff\xfe", b"9" * 30, b"1.5"]


@pytest.mark.parametrize("text", GARBAGE)
def test_invalid_numbers_do_not_stop_a_worker(
    open_: Callable[..., Any], place: RedisPlace, text: bytes
) -> None:
    keys = f"{place.prefix}qworker."
    first = open_()
    first.consumer.register("first", ["q"], 1)
    place.client.set(f"{keys}revoked.number", text)
    place.client.set(f"{keys}epoch", text)
    place.client.zadd(f"{keys}owners", {text: time.time()})
    place.client.hset(f"{keys}owner.7", mapping=dict.fromkeys(("name", "pid", "lease_seconds"), text))
    place.client.zadd(f"{keys}owners", {"7": 1.0})
    place.client.hset(f"{keys}owner.8", mapping={"running": text})
    place.client.zadd(f"{keys}owners", {"8": 2.0})
    second = open_()
    own = second.consumer.register("second", ["q"], 1)
    second.sender.push([message("a")])
    (leased,) = second.consumer.lease(["q"], 1).messages
    second.consumer.reclaim()
    cursor, _ = second.consumer.revoked_since(0)
    second.sender.revoke(["b"])
    _, found = second.consumer.revoked_since(cursor)
    assert [each.task_id for each in found] == ["b"]
    assert second.consumer.settle(own, [DeadLetter(leased.tag, "damaged")]) == set()
    assert {each.name for each in second.admin.workers()} == {"first", "second"}
    place.client.sadd(f"{keys}queues", text)
    place.client.zadd(f"{keys}dead", {text: 0})
    place.client.hset(f"{keys}letter.{text.decode('latin-1')}".encode("latin-1"), "queue", text)
    second.admin.queues()
    assert [each.reason for each in second.admin.dead()] == ["damaged"]
    assert second.admin.dead_retry() == 1


def test_forged_owner_paths_are_not_deleted(
    open_: Callable[..., Any], place: RedisPlace, tmp_path: Path
) -> None:
    lock, marks = tmp_path / "lock", tmp_path / "marks"
    lock.write_text("kept")
    marks.write_text("kept")
    store = open_()
    store.consumer.register("well", ["q"], 1)
    owner = {"name": "evil", "boot": boot_id(), "lock": str(lock), "marks": str(marks)}
    place.client.hset(f"{place.prefix}qworker.owner.7", mapping=owner)
    place.client.zadd(f"{place.prefix}qworker.owners", {"7": time.time() + 60})
    assert store.consumer.reclaim() == []
    assert (lock.read_text(), marks.read_text()) == ("kept", "kept")


def test_messages_survive_a_restart_of_the_server(server: Callable[..., Redis]) -> None:
    durable = server()
    with opened(durable) as store:
        own = store.consumer.register("w", ["q"], 1)
        store.sender.push([message("a"), message("later", due=time.time() + 1000)])
        (leased,) = store.consumer.lease(["q"], 1).messages
        durable.kill()
        with pytest.raises(BrokerUnavailable):
            store.consumer.settle(own, [Ack(leased.tag)])
        durable.start()
        assert store.consumer.settle(own, [Ack(leased.tag)]) == set()
        assert [(info.ready, info.delayed, info.leased) for info in store.admin.queues()] == [(0, 1, 0)]


# -- kinds of connections --


def test_unix_socket(server: Callable[..., Redis], tmp_path: Path) -> None:
    path = Path("/tmp", f"qworker-{hashlib.sha1(str(tmp_path).encode()).hexdigest()[:8]}.sock")
    server(unixsocket=str(path))
    store = RedisBroker(f"redis+socket://{path}?virtual_host=2")
    store.consumer.register("w", ["q"], 1)
    store.sender.push([message("a")])
    assert names(store.consumer.lease(["q"], 1).messages) == ["a"]
    store.close()


def test_tls(server: Callable[..., Redis], tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        capture_output=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    port = free_port()
    server(**{
        "tls-port": port, "tls-cert-file": certificate, "tls-key-file": key, "tls-ca-cert-file": certificate,
        "tls-auth-clients": "no",
    })  # fmt: skip
    store = RedisBroker(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}")
    own = store.consumer.register("w", ["q"], 1)
    body = b"x" * 300_000
    store.sender.push([message(str(number), body=body) for number in range(5)])
    assert store.consumer.wait(30) is True
    found = store.consumer.lease(["q"], 10).messages
    assert [leased.body for leased in found] == [body] * 5
    assert store.consumer.settle(own, [Ack(leased.tag) for leased in found]) == set()
    store.consumer.wait(0)
    waker = threading.Timer(0.05, lambda: store.sender.push([message("later")]))
    waker.start()
    assert store.consumer.wait(30) is True
    waker.join()
    store.close()
    stranger = RedisBroker(f"rediss://127.0.0.1:{port}/0")
    with pytest.raises(BrokerUnavailable, match=r"(?i)certificate"):
        stranger.sender.push([message("a")])
    stranger.close()


def test_sentinel_failover(server: Callable[..., Redis], tmp_path: Path) -> None:
    master, other = server(), server()
    other.do("REPLICAOF", "127.0.0.1", str(master.port))
    port = free_port()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind 127.0.0.1\nsentinel monitor mine 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds mine 500\nsentinel failover-timeout mine 2000\n"
    )
    with (tmp_path / "sentinel.log").open("wb") as log:
        sentinel = subprocess.Popen(
            [binary("redis-server"), str(configuration), "--sentinel"], stdout=log, stderr=log, cwd=tmp_path
        )
    try:
        until(lambda: replicas(port))
        store = RedisBroker(f"sentinel://127.0.0.1:{port}/0", options={"master_name": "mine"})
        store.consumer.register("w", ["q"], 1)
        store.sender.push([message("before")])
        until(lambda: other.do("LLEN", "q\x06\x169") == 1)
        master.kill()
        until(lambda: pushed(store))
        assert "before" in names(store.consumer.lease(["q"], 10).messages)
        store.close()
    finally:
        sentinel.kill()
        sentinel.wait()


def replicas(port: int) -> bool:
    client = redis.Redis(port=port)
    try:
        return bool(client.execute_command("SENTINEL", "REPLICAS", "mine"))
    except redis.RedisError:
        return False
    finally:
        client.close()


def pushed(store: RedisBroker) -> bool:
    try:
        store.sender.push([message("after")])
        store.consumer.extend()
    except BrokerUnavailable:
        return False
    return True


# -- claims that wait in the server --


@pytest.fixture
def idle(open_: Callable[..., Any]) -> Any:
    """Return an idle store that has registered a claim of up to four messages in the server."""
    store = open_()
    store.consumer.register("idle", ["q"], 1)
    assert store.consumer.lease(["q"], 10).messages == []
    assert store.consumer.wait(0.05, 4) is False
    return store


def test_push_claims_messages_for_an_idle_worker(
    idle: Any, open_: Callable[..., Any], place: RedisPlace
) -> None:
    open_().sender.push([message("a"), message("b")])
    until(lambda: place.client.hlen(f"{place.prefix}unacked") == 2)  # without a request of the worker
    assert idle.consumer.wait(30, 4) is True
    assert idle.consumer.prefetched
    assert names(idle.consumer.lease(["q"], 0).messages) == ["a", "b"]
    assert not idle.consumer.prefetched
    assert idle.consumer.lease(["q"], 10).messages == []


def test_claim_in_the_server_respects_the_limit(
    idle: Any, open_: Callable[..., Any], place: RedisPlace
) -> None:
    open_().sender.push([message(str(number)) for number in range(9)])
    until(lambda: place.client.hlen(f"{place.prefix}unacked") == 4)
    assert idle.consumer.wait(30, 4) is True
    assert names(idle.consumer.lease(["q"], 6).messages) == ["0", "1", "2", "3", "4", "5"]
    assert idle.consumer.wait(30) is True, "the claim has left some"
    assert names(idle.consumer.lease(["q"], 10).messages) == ["6", "7", "8"]
    assert idle.consumer.wait(0.05) is False


def test_claim_in_the_server_respects_priority(idle: Any, open_: Callable[..., Any]) -> None:
    open_().sender.push([message("a"), message("urgent", priority=9)])
    found: list[str] = []
    until(
        lambda: (
            idle.consumer.wait(0.1, 4)
            and (found.extend(names(idle.consumer.lease(["q"], 10).messages)) or len(found) == 2)
        )
    )
    assert found == ["urgent", "a"]


def test_cancelled_claim_leaves_messages_to_others(idle: Any, open_: Callable[..., Any]) -> None:
    """A stopping worker may still run for an hour."""
    idle.consumer.wait(0)
    publisher, other = open_(), open_()
    publisher.sender.push([message("a")])
    other.consumer.register("other", ["q"], 1)
    assert names(other.consumer.lease(["q"], 10).messages) == ["a"]
    idle.consumer.wait(0)
    assert idle.consumer.lease(["q"], 0).messages == []


def test_messages_claimed_while_cancelling_are_released(
    idle: Any, open_: Callable[..., Any], place: RedisPlace
) -> None:
    open_().sender.push([message("a")])
    until(lambda: place.client.hlen(f"{place.prefix}unacked") == 1)
    idle.consumer.wait(0)  # the reply is in transit, and is not read
    assert idle.consumer.prefetched
    assert idle.consumer.lease(["q"], 0).messages == []
    assert place.client.hlen(f"{place.prefix}unacked") == 0
    (leased,) = idle.consumer.lease(["q"], 10).messages
    assert (leased.headers, leased.deliveries) == ("a", 0)


def test_claim_with_a_broken_connection_loses_nothing(
    idle: Any, open_: Callable[..., Any], place: RedisPlace
) -> None:
    for client in place.client.client_list():
        if client["cmd"] == "blmove":
            place.client.client_kill_filter(_id=client["id"])
    open_().sender.push([message("a")])
    found: list[str] = []
    until(
        lambda: (
            idle.consumer.wait(0.1, 4)
            and (found.extend(names(idle.consumer.lease(["q"], 10).messages)) or found)
        )
    )
    assert found == ["a"]


def test_claim_works_after_script_flush(
    server: Callable[..., Redis],
) -> None:
    forgetful = server()
    with opened(forgetful) as store:
        store.consumer.register("idle", ["q"], 1)
        assert store.consumer.lease(["q"], 10).messages == []
        assert store.consumer.wait(0.05, 4) is False
        forgetful.do("SCRIPT", "FLUSH")
        store.sender.push([message("a")])
        assert store.consumer.wait(30, 4) is True
        assert names(store.consumer.lease(["q"], 10).messages) == ["a"]


def test_claim_is_not_made_after_deregistering(
    idle: Any, open_: Callable[..., Any], place: RedisPlace
) -> None:
    idle.consumer.deregister()
    open_().sender.push([message("a")])
    other = open_()
    other.consumer.register("other", ["q"], 1)
    assert names(other.consumer.lease(["q"], 10).messages) == ["a"]


def test_claim_in_the_server_reports_the_last_revocation(
    idle: Any, open_: Callable[..., Any], place: RedisPlace
) -> None:
    other = open_()
    other.sender.revoke(["a"])
    cursor, _ = idle.consumer.revoked_since(0)
    other.sender.push([message("a")])
    until(lambda: idle.consumer.wait(30, 4) and idle.consumer.prefetched)
    claim = idle.consumer.lease(["q"], 10)
    assert (names(claim.messages), claim.last_revocation) == (["a"], cursor)


def test_announcements_after_a_claim_in_the_server_are_fetched(
    idle: Any, open_: Callable[..., Any], place: RedisPlace
) -> None:
    """The claim does not include the delayed message and the revocation that follow it."""
    other = open_()
    other.sender.push([message("a")])
    until(lambda: place.client.hlen(f"{place.prefix}unacked") == 1)
    due = time.time() + 1000
    other.sender.push([message("later", due=due)])
    other.sender.revoke(["b"])
    assert idle.consumer.wait(30, 4) is True
    assert names(idle.consumer.lease(["q"], 10).messages) == ["a"]
    assert idle.consumer.wait(30, 4) is True
    claim = idle.consumer.lease(["q"], 10)
    assert (claim.messages, claim.next_due) == ([], due)
    assert claim.last_revocation == idle.consumer.revoked_since(0)[0]


def test_lease_returns_a_claim_without_a_request(
    idle: Any, open_: Callable[..., Any], place: RedisPlace
) -> None:
    open_().sender.push([message("a")])
    until(lambda: idle.consumer.wait(30, 4) and idle.consumer.prefetched)
    place.client.delete(f"{place.prefix}qworker.owners")  # another request raises LeaseLost
    assert names(idle.consumer.lease(["q"], 10).messages) == ["a"]
    with pytest.raises(LeaseLost):
        idle.consumer.lease(["q"], 10)


def test_undecodable_revocation_is_fetched_once(open_: Callable[..., Any], place: RedisPlace) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    store.sender.revoke(["a"])
    ((_, number),) = place.client.zrange(f"{place.prefix}qworker.revoked", 0, -1, withscores=True)
    place.client.delete(f"{place.prefix}qworker.revoked")
    place.client.zadd(f"{place.prefix}qworker.revoked", {b"damaged": number})
    cursor, found = store.consumer.revoked_since(0)
    assert (found, store.consumer.lease(["q"], 1).last_revocation) == ([], cursor)


def test_claim_limit_is_shared_among_queues(open_: Callable[..., Any], place: RedisPlace) -> None:
    """In total, they claim at most the limit."""
    store, queues = open_(), ["q", "r", "s"]
    store.consumer.register("idle", queues, 1)
    assert store.consumer.lease(queues, 10).messages == []
    assert store.consumer.wait(0.05, 3) is False
    open_().sender.push([message(f"{queue}{number}", queue) for queue in queues for number in range(3)])
    until(lambda: place.client.hlen(f"{place.prefix}unacked") == 3)
    assert store.consumer.wait(30, 3) is True
    found = names(store.consumer.lease(queues, 9).messages)
    until(
        lambda: found.extend(names(store.consumer.lease(queues, 9 - len(found)).messages)) or len(found) == 9
    )
    assert place.client.hlen(f"{place.prefix}unacked") == 9


def open_sockets() -> int:
    """Return the number of sockets of this process; the server also counts other connections."""
    files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return sum(os.path.islink(file) and os.readlink(file).startswith("socket:") for file in files)


def test_claims_use_one_connection_per_queue(open_: Callable[..., Any], place: RedisPlace) -> None:
    store, queues = open_(), [f"q{number}" for number in range(20)]
    store.consumer.register("idle", queues, 1)
    assert store.consumer.lease(queues, 100).messages == []
    before = open_sockets()
    assert store.consumer.wait(0.05, 100) is False
    assert 0 < open_sockets() - before <= 20
    open_().sender.push([message("a", "q7")])
    assert store.consumer.wait(30, 100) is True
    assert names(store.consumer.lease(queues, 100).messages) == ["a"]


# -- other clients --


def test_lpush_of_another_client_ends_wait(open_: Callable[..., Any], place: RedisPlace) -> None:
    store = open_()
    store.consumer.register("w", ["q"], 1)
    assert store.consumer.lease(["q"], 10).messages == []
    assert store.consumer.wait(0.3) is False
    threading.Timer(0.1, place.client.lpush, [f"{place.prefix}q", "not an envelope"]).start()
    assert store.consumer.wait(30) is True
    (leased,) = store.consumer.lease(["q"], 10).messages
    assert leased.headers == "not an envelope"
    assert store.consumer.lease(["q"], 10).messages == []
    threading.Timer(0.1, place.client.lpush, [f"{place.prefix}q\x06\x163", "with a priority"]).start()
    assert store.consumer.wait(30) is True
    assert names(store.consumer.lease(["q"], 10).messages) == ["with a priority"]


def test_queue_has_a_kombu_binding(open_: Callable[..., Any], place: RedisPlace) -> None:
    open_().sender.push([message("a", "mail")])
    assert place.client.smembers(f"{place.prefix}_kombu.binding.mail") == {b"mail\x06\x16\x06\x16mail"}


def test_large_push_is_atomic_and_in_order(open_: Callable[..., Any], place: RedisPlace) -> None:
    store, key = open_(), f"{place.prefix}q"
    many = [message(str(number), priority=9) for number in range(2 * PORTION + 1)]
    store.sender.push(many)
    found = [json.loads(value)["headers"] for value in place.client.lrange(key, 0, -1)]
    assert found[::-1] == [str(number) for number in range(len(many))]
    with pytest.raises(TypeError):
        store.sender.push([*many, message("x", priority=9, body="no bytes")])
    assert place.client.llen(key) == len(many)
    store.sender.push([message("last", priority=9)])  # the connection is not in a transaction
    assert place.client.llen(key) == len(many) + 1


def test_flush_delayed_moves_messages_to_the_lists(open_: Callable[..., Any], place: RedisPlace) -> None:
    store = open_()
    store.sender.push([message(str(number), due=time.time() + 1000, priority=9) for number in range(1500)])
    assert store.admin.flush_delayed("q") == 1500
    assert place.client.llen(f"{place.prefix}q") == 1500
    assert store.admin.flush_delayed("q") == 0


def test_running_marks_of_a_worker_on_another_host_are_counted(
    open_: Callable[..., Any], place: RedisPlace
) -> None:
    silent, well = open_(lease_seconds=0.3), open_()
    silent.consumer.register("silent", ["q"], 1)
    well.consumer.register("well", ["q"], 1)
    well.sender.push([message("running"), message("waiting")])
    running, _ = silent.consumer.lease(["q"], 2).messages
    mark(silent, running.tag)
    silent.consumer.wait(0.01)
    record = next(
        key
        for key in place.all_keys()
        if b"qworker.owner." in key and place.client.hget(key, "name") == b"silent"
    )
    assert place.client.hget(record, "running") == str(running.tag).encode()
    place.client.hset(record, mapping={"boot": "another", "lock": "/nowhere", "marks": "/nowhere"})
    ((name, returned, counted),) = until(well.consumer.reclaim)
    assert (name, returned, counted) == ("silent", 2, 1)
    assert {leased.headers: leased.deliveries for leased in well.consumer.lease(["q"], 2).messages} == {
        "running": 1,
        "waiting": 0,
    }


def test_lease_prevents_restoring_by_kombu(open_: Callable[..., Any], place: RedisPlace) -> None:
    """kombu restores leased messages only when its visibility timeout has passed after the lease."""
    store = open_(lease_seconds=30.0)
    store.consumer.register("w", ["q"], 1)
    store.sender.push([message("a")])
    store.consumer.lease(["q"], 1)
    ((field, score),) = place.client.zrange(f"{place.prefix}unacked_index", 0, -1, withscores=True)
    assert score > time.time() + 20
    payload, exchange, routing_key = json.loads(place.client.hget(f"{place.prefix}unacked", field))
    assert (exchange, routing_key, payload["headers"]) == ("", "q", "a")


def test_copy_of_a_leased_message_is_settled_with_it(open_: Callable[..., Any], place: RedisPlace) -> None:
    """A kombu consumer with another clock considered the message lost, and restored it."""
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([message("a")])
    (first,) = store.consumer.lease(["q"], 1).messages
    (value,) = place.client.hvals(f"{place.prefix}unacked")
    place.client.rpush(f"{place.prefix}q", value[1 : value.rfind(b', "", ')])
    (second,) = store.consumer.lease(["q"], 1).messages
    assert second.tag == first.tag
    assert place.count() == 1
    assert store.consumer.settle(own, [Ack(first.tag)]) == set()
    assert place.count() == 0
    assert place.client.zcard(f"{place.prefix}unacked_index") == 0


def test_consumers_silent_for_a_day_are_deleted(open_: Callable[..., Any], place: RedisPlace) -> None:
    gone, well = open_(), open_()
    generation = gone.consumer.register("gone", ["q"], 1)
    well.consumer.register("well", ["q"], 1)
    owners = f"{place.prefix}qworker.owners"
    place.client.zadd(owners, {str(generation): time.time() - 3600})
    assert well.consumer.reclaim() == []
    assert place.client.zcard(owners) == 2
    place.client.zadd(owners, {str(generation): time.time() - 100_000})
    assert well.consumer.reclaim() == []
    assert place.client.zcard(owners) == 1


def test_worker_without_a_directory_for_files_uses_its_lease(
    open_: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a file"
    file.touch()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(file))
    silent = open_(lease_seconds=0.3)
    silent.consumer.register("silent", ["q"], 1)
    assert silent.consumer.running_path() is None
    monkeypatch.undo()
    well = open_()
    well.consumer.register("well", ["q"], 1)
    well.sender.push([message("a")])
    silent.consumer.lease(["q"], 1)
    ((name, returned, counted),) = until(well.consumer.reclaim)
    assert (name, returned, counted) == ("silent", 1, 0)


def test_old_owner_files_are_deleted(open_: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    store = open_()
    store.consumer.register("w", ["q"], 1)
    place = tmp_path / "qworker"
    for name, age in (
        ("old.lock", 1e6),
        ("4194304.old.running", 1e6),
        ("4194304.new.running", 0),
        ("new.lock", 0),
    ):
        (place / name).touch()
        os.utime(place / name, (time.time() - age,) * 2)
    open_().consumer.register("next", ["q"], 1)
    left = {path.name for path in place.iterdir()}
    assert {"new.lock", "4194304.new.running"} < left
    assert not {"old.lock", "4194304.old.running"} & left


def test_without_blmove_the_worker_polls(server: Callable[..., Redis]) -> None:
    """Like on servers before 6.2, which do not have it."""
    old = server()
    old.do("ACL", "SETUSER", "old", "on", ">pw", "~*", "&*", "+@all", "-blmove")
    store = RedisBroker(old.url.replace("redis://", "redis://old:pw@"))
    store.consumer.register("w", ["q"], 1)
    assert store.consumer.lease(["q"], 10).messages == []
    assert store.consumer.wait(0.3) is False
    threading.Timer(0.1, old.do, ["LPUSH", "q", "from another"]).start()
    assert store.consumer.wait(30) is True
    assert names(store.consumer.lease(["q"], 10).messages) == ["from another"]
    store.close()


def test_wait_works_after_a_restart_of_the_server(server: Callable[..., Redis]) -> None:
    """The server keeps its data, so the lease is still valid without registering again."""
    kept = server()
    store, publisher = RedisBroker(kept.url), RedisBroker(kept.url)
    with closing(store), closing(publisher):
        store.consumer.register("w", ["q"], 1)
        assert store.consumer.lease(["q"], 1).messages == []
        assert store.consumer.wait(0.1) is False
        kept.kill()
        for _ in range(3):
            with suppress(BrokerUnavailable):
                store.consumer.wait(0.05)
            with pytest.raises(BrokerUnavailable):
                store.consumer.lease(["q"], 1)
        kept.start()
        with suppress(BrokerUnavailable):  # on an old connection
            store.consumer.lease(["q"], 1)
        turns, began = 0, time.monotonic()
        while time.monotonic() - began < 0.5:
            assert store.consumer.lease(["q"], 1).messages == []
            store.consumer.wait(0.1)
            turns += 1
        assert turns < 10, "it polls instead of waiting"
        threading.Timer(0.1, publisher.sender.revoke, [["nobody"]]).start()
        began = time.monotonic()
        assert store.consumer.wait(20) is True, "the revocation did not notify it"
        assert time.monotonic() - began < 10


def test_notifications_work_with_restricted_channels(server: Callable[..., Redis]) -> None:
    """Also for queues without a registration, like those of kombu's channels."""
    strict = server()
    strict.do("ACL", "SETUSER", "few", "on", ">pw", "~*", "resetchannels", "&qworker*", "+@all")
    store = RedisBroker(strict.url.replace("redis://", "redis://few:pw@"))
    with closing(store):
        store.consumer.register("kombu@here", (), 0)
        for queues in (["a"], ["a", "b"], ["b"]):
            assert store.consumer.lease(queues, 1).messages == []
            while store.consumer.wait(0.05):
                assert store.consumer.lease(queues, 1).messages == []
            threading.Timer(0.1, store.sender.push, [[message("x", queues[-1], priority=5)]]).start()
            began = time.monotonic()
            assert store.consumer.wait(20) is True
            assert time.monotonic() - began < 10
            assert names(store.consumer.lease(queues, 1).messages) == ["x"]


def test_messages_in_a_cancelled_queue_do_not_end_wait(open_: Callable[..., Any]) -> None:
    """They stay in the queue; otherwise a client that has cancelled a consumer would poll repeatedly."""
    store, publisher = open_(), open_()
    store.consumer.register("kombu@here", (), 0)
    for queues in (["a", "b"], ["a"]):
        assert store.consumer.lease(queues, 1).messages == []
        store.consumer.wait(0.05)
    publisher.sender.push([message("x", "b"), message("y", "b", priority=9)])
    assert store.consumer.lease(["a"], 1).messages == []
    assert store.consumer.wait(0.3) is False
    assert names(store.consumer.lease(["b"], 1).messages) == ["y"]


@pytest.mark.parametrize(("scale", "order"), [("qworker", [9, 8, 4, 0]), ("celery", [0, 4, 8, 9])])
def test_priority_scale_orders_prefetched_tasks(place: RedisPlace, scale: str, order: list[int]) -> None:
    options = {"global_keyprefix": place.prefix, "priority_scale": scale}
    app = QWorker(
        "proj", broker=place.url, result_backend="disabled://", set_as_current=False,
        broker_transport_options=options,
    )  # fmt: skip
    ran: list[int] = []
    task = app.task(name="note")(ran.append)
    for priority in (4, 9, 0, 8):
        task.apply_async((priority,), priority=priority)
    worker = Worker(app, concurrency=1, pool="solo", prefetch_multiplier=10)
    worker.start()
    try:
        until(lambda: len(ran) == 4)
        assert ran == order
    finally:
        worker.stop()
        app.close()
