"""The IronMQ broker with a fake server, in one process. (tests/acceptance/test_ironmq.py has workers.)"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost, PublishError
from qworker.transports import open_broker
from qworker.transports.held.broker import HeldBroker
from qworker.transports.held.consumer import Renewal
from qworker.transports.ironmq.address import HOST, address_of
from qworker.transports.ironmq.broker import IronQueue
from qworker.transports.ironmq.client import MOST_ANSWER, Client
from qworker.transports.lease import Ack, Broker, DeadLetter, Release
from tests.certificates import Certificates
from tests.support.ironmq_server import TOKEN, IronMQ
from tests.support.messages import envelope, ids
from tests.support.receiving import receive
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration
Open = Callable[..., HeldBroker]


MESSAGES = {"messages": [{"body": "a"}, {"body": "b", "delay": 9}]}


class ServerClock:
    """The clock of the server."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock() -> ServerClock:
    return ServerClock()


@pytest.fixture
def server(clock: ServerClock) -> Iterator[IronMQ]:
    with closing(IronMQ(clock=clock)) as server:
        yield server


@pytest.fixture
def open_(server: IronMQ) -> Iterator[Open]:
    opened: list[HeldBroker] = []

    def open_one(url: str | None = None, **options: Any) -> HeldBroker:
        conf = Settings({
            "broker_transport_options": {"wait_time_seconds": 1, **options}, "broker_connection_timeout": 1.0,
        })  # fmt: skip
        store = open_broker(url or server.url(), conf)
        assert isinstance(store, HeldBroker)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


def raw_request(
    server: IronMQ, method: str, path: str, given: Any = None, token: str = TOKEN
) -> tuple[int, Any]:
    """Send a request to the server; return status and reply."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=5.0)) as connection:
        headers = {"Authorization": f"OAuth {token}"}
        connection.request(method, f"/3/projects/project/queues{path}", json.dumps(given or {}), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


# -- the fake server --


def test_fake_server_refuses_what_ironmq_refuses(server: IronMQ, clock: ServerClock) -> None:
    assert raw_request(server, "GET", "", token="wrong")[0] == 401
    assert raw_request(server, "POST", "/q/reservations") == (404, {"msg": "Queue not found"})
    status, made = raw_request(
        server, "POST", "/q/messages", {"messages": [{"body": "a"}, {"body": "b", "delay": 9}]}
    )
    assert (status, len(made["ids"])) == (201, 2)
    for wrong in ({"n": 101}, {"n": 0}, {"wait": 31}, {"timeout": 29}, {"timeout": 86_401}):
        assert raw_request(server, "POST", "/q/reservations", wrong)[0] == 400, wrong
    assert (
        raw_request(server, "POST", "/q/messages", {"messages": [{"body": "a", "delay": 604_801}]})[0] == 400
    )
    _, answer = raw_request(server, "POST", "/q/reservations", {"n": 100})
    (one,) = answer["messages"]
    assert (one["id"], one["reserved_count"]) == (made["ids"][0], 1)
    path = f"/q/messages/{one['id']}"
    assert raw_request(server, "DELETE", path)[0] == 403
    _, touched = raw_request(server, "POST", f"{path}/touch", {"reservation_id": one["reservation_id"]})
    assert touched["reservation_id"] != one["reservation_id"]
    assert raw_request(server, "DELETE", path, {"reservation_id": one["reservation_id"]})[0] == 403
    clock.ahead = 100.0
    assert raw_request(server, "DELETE", path, {"reservation_id": touched["reservation_id"]})[1] == {
        "msg": "Reservation timed out"
    }
    _, answer = raw_request(server, "POST", "/q/reservations", {"n": 2})
    assert [message["reserved_count"] for message in answer["messages"]] in ([3, 1], [1, 3])
    assert raw_request(server, "DELETE", "/q/messages", {"ids": [{"id": "1"}] * 101})[0] == 400
    assert raw_request(server, "GET", "/q")[1]["queue"]["size"] == 2


def test_fake_server_moves_messages_reserved_too_often(server: IronMQ) -> None:
    raw_request(
        server, "PUT", "/q", {"queue": {"dead_letter": {"queue_name": "dead", "max_reservations": 1}}}
    )
    raw_request(server, "POST", "/q/messages", {"messages": [{"body": "a"}]})
    assert len(raw_request(server, "POST", "/q/reservations")[1]["messages"]) == 1
    server.expire()
    assert raw_request(server, "POST", "/q/reservations")[1] == {"messages": []}
    (moved,) = raw_request(server, "POST", "/dead/reservations")[1]["messages"]
    assert moved["reserved_count"] == 2


# -- messages --


def test_foreign_messages_are_received(open_: Open, server: IronMQ) -> None:
    store = open_()
    own = store.consumer.register("w", ["q/ü"], 1)
    bodies = [
        "words",
        "[]",
        "",
        '{"properties": 5}',
        '{"body": "?", "properties": {"body_encoding": "base64"}}',
    ]
    raw_request(server, "POST", "/q%2F%C3%BC/messages", {"messages": [{"body": body} for body in bodies]})
    found = receive(store, len(bodies), "q/ü")
    assert sorted(message.body.decode() for message in found) == sorted(bodies)
    store.consumer.settle(own, [DeadLetter(message.tag, "nonsense") for message in found])
    assert sorted(letter.body.decode() for letter in store.admin.dead()) == sorted(bodies)


def test_delayed_message_is_released_until_it_is_due(open_: Open, server: IronMQ, clock: ServerClock) -> None:
    """IronMQ delays it by a week at most; it is not republished."""
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    now = SYSTEM_CLOCK.now()
    store.sender.push([envelope("month", "q", due=now + 30 * 86_400.0), envelope("now", "q")])
    (message,) = receive(store, 1, "q")
    store.consumer.settle(own, [Ack(message.tag)])
    posts, week = server.calls["POST messages"], 7 * 86_400.0
    clock.ahead = week + 1.0
    server.expire()
    for _ in range(3):  # it is delivered and released
        assert store.consumer.lease(["q"], 10).messages == []
        store.consumer.wait(1.0)
    assert store.consumer._holdings.everything() == []
    assert (server.calls["POST messages"], server.size("project", "q")) == (posts, 1)
    assert server.calls["POST messages one"] >= 1


def test_release_with_due_time_delays_the_message(open_: Open, server: IronMQ, clock: ServerClock) -> None:
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", "q")])
    (message,) = receive(store, 1, "q")
    posts = server.calls["POST messages"]
    assert store.consumer.settle(own, [Release(message.tag, SYSTEM_CLOCK.now() + 600.0)]) == set()
    assert store.consumer.lease(["q"], 1).messages == []
    clock.ahead = 601.0
    (again,) = receive(store, 1, "q")
    assert (again.tag, again.redelivered, again.due) == (message.tag, True, None)
    assert server.calls["POST messages"] == posts, "it was not republished"


def test_touch_replaces_the_reservation(open_: Open, server: IronMQ) -> None:
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", "q"), envelope("b", "q")])
    first, second = receive(store, 2, "q")
    store.consumer._renewal = Renewal()
    held = store.consumer._holdings.leased
    receipts = {tag: held[tag].message.receipt for tag in held}
    for each in held.values():
        each.message.renew_at = 0.0
    store.consumer.extend()
    assert all(held[tag].message.receipt != receipt for tag, receipt in receipts.items())
    assert store.consumer.settle(own, [Ack(first.tag), Release(second.tag)]) == set()
    assert server.size("project", "q") == 1
    assert ids(receive(store, 1, "q")) == ids([second])


def test_expired_reservation_cannot_settle(open_: Open, server: IronMQ) -> None:
    slow, quick = open_(), open_()
    own, theirs = slow.consumer.register("slow", ["q"], 1), quick.consumer.register("quick", ["q"], 1)
    slow.sender.push([envelope("a", "q"), envelope("b", "q")])
    lost, kept = receive(slow, 2, "q")
    server.expire()
    taken = {message.tag: message for message in receive(quick, 2, "q")}
    quick.consumer.settle(theirs, [Release(kept.tag), Ack(lost.tag)])
    assert set(taken) == {lost.tag, kept.tag}
    assert slow.consumer.settle(own, [Ack(kept.tag)]) == {kept.tag}
    slow.consumer._renewal = Renewal()
    for held in slow.consumer._holdings.everything():
        held.message.renew_at = 0.0
    slow.consumer.extend()
    assert slow.consumer.settle(own, [Ack(lost.tag)]) == {lost.tag}


def test_number_of_calls_per_message(open_: Open, server: IronMQ) -> None:
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    server.calls.clear()
    store.sender.push([envelope(str(number), "q") for number in range(1000)])
    for _ in range(10):
        found = receive(store, 100, "q")
        store.consumer.settle(own, [Ack(message.tag) for message in found])
    assert server.size("project", "q") == 0
    assert sum(server.calls.values()) / 1000 < 0.04, server.calls


# -- faults --


def test_request_is_one_write() -> None:
    """The server gets all of it with its first read."""
    listening = socket.create_server(("127.0.0.1", 0))
    got: list[bytes] = []

    def serve() -> None:
        with listening, listening.accept()[0] as connection:
            got.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    thread = threading.Thread(target=serve)
    thread.start()
    port = listening.getsockname()[1]
    client = Client(address_of(f"ironmq+http://p:t@127.0.0.1:{port}", {}), 5.0)
    assert client.call("POST", "/q/messages", MESSAGES) == {}
    thread.join()
    client.release()
    assert got[0].startswith(b"POST /3/projects/p/queues/q/messages HTTP/1.1\r\n")
    assert got[0].endswith(json.dumps(MESSAGES).encode())


@pytest.mark.parametrize("fault", ["503", "429"])
def test_busy_server_is_retried(open_: Open, server: IronMQ, fault: str) -> None:
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    server.fail(fault)
    began = time.monotonic()
    store.sender.push([envelope("a", "q")])
    assert fault == "503" or time.monotonic() - began >= 1.0, "the reply has a retry time"
    (message,) = receive(store, 1, "q")
    server.fail(fault)
    store.consumer.settle(own, [Ack(message.tag)])
    assert server.size("project", "q") == 0


def test_messages_deleted_before_a_failure_are_not_reported_lost(open_: Open, server: IronMQ) -> None:
    """One reservation has expired, so messages are deleted one by one instead of in bulk."""
    store, other = open_(), open_()
    own, theirs = store.consumer.register("w", ["q"], 1), other.consumer.register("x", ["q"], 1)
    store.sender.push([envelope(str(number), "q") for number in range(5)])
    first = receive(store, 1, "q")[0]
    server.expire()
    assert [again.tag for again in receive(other, 1, "q")] == [first.tag]
    messages = [first, *receive(store, 4, "q")]
    other.consumer.settle(theirs, [Ack(first.tag)])
    store.consumer._holdings.leased[first.tag].message.expires = 0.0  # by the server's clock
    server.fail("drop", method="DELETE", after=3)  # the bulk, and two of the five
    with pytest.raises(BrokerUnavailable):
        store.consumer.settle(own, [Ack(message.tag) for message in messages])
    assert server.size("project", "q") == 3
    assert store.consumer.settle(own, [Ack(message.tag) for message in messages]) == {first.tag}
    assert server.size("project", "q") == 0


@pytest.mark.parametrize("fault", ["half", "drop", "nonsense"])
def test_invalid_reply_raises_broker_unavailable(open_: Open, server: IronMQ, fault: str) -> None:
    """The effect is unknown. Nothing is lost, and the error does not contain the token."""
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", "q")])
    (message,) = receive(store, 1, "q")
    server.fail(fault)
    with pytest.raises(BrokerUnavailable) as caught:
        store.consumer.settle(own, [Ack(message.tag)])
    assert TOKEN not in str(caught.value)
    assert store.consumer.settle(own, [Ack(message.tag)]) == set()
    assert server.size("project", "q") == 0
    server.fail(fault)
    with pytest.raises(BrokerUnavailable):
        store.sender.push([envelope("b", "q")])
    store.sender.push([envelope("c", "q")])


def test_server_busy_for_too_long_raises_broker_unavailable(open_: Open, server: IronMQ) -> None:
    store = open_()
    store.sender.push([envelope("a", "q")])
    server.fail("503", 10)
    with pytest.raises(BrokerUnavailable, match="503"):
        store.sender.push([envelope("b", "q")])


def test_deleted_queue_raises_lease_lost(open_: Open, server: IronMQ) -> None:
    store = open_(wait_time_seconds=0)
    store.consumer.register("w", ["q"], 1)
    server.projects.clear()

    def ask() -> None:
        for _ in range(20):
            store.consumer.lease(["q"], 1)
            store.consumer.wait(0.1)

    with pytest.raises(LeaseLost, match="deleted"):
        ask()
    store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", "q")])
    assert ids(receive(store, 1, "q")) == ["a"]


def test_large_message_is_refused(open_: Open) -> None:
    store = open_()
    with pytest.raises(PublishError, match="too large"):
        store.sender.push([envelope("large", "q", body=b"x" * 300_000)])


def test_refused_login_raises_configuration_error(open_: Open, server: IronMQ) -> None:
    with pytest.raises(ConfigurationError, match=r"401.*token") as refused:
        open_(server.url(token="s3cret")).consumer.register("w", ["q"], 1)
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="path"):
        open_(f"{server.url()}/nowhere").consumer.register("w", ["q"], 1)


def test_unavailable_server_raises_until_it_is_back(open_: Open, server: IronMQ) -> None:
    """A new poll is in progress, but has no reply yet."""
    store = open_()
    store.consumer.register("w", ["q"], 1)
    store.consumer.lease(["q"], 1)
    port = server.port
    server.close()
    store.consumer._connection.release()

    def lease_until_it_fails() -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            store.consumer.lease(["q"], 1)
            store.consumer.wait(0.05)

    with pytest.raises(BrokerUnavailable):
        lease_until_it_fails()
    for _ in range(6):
        with pytest.raises(BrokerUnavailable):
            store.consumer.lease(["q"], 1)
    with closing(IronMQ(port)), pytest.raises(LeaseLost, match="deleted"):  # it has no queues
        store.consumer.lease(["q"], 1)


def test_unavailable_server_raises_broker_unavailable(open_: Open, server: IronMQ) -> None:
    store = open_()
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", "q")])
    (message,) = receive(store, 1, "q")
    url, port = server.url(), server.port
    server.close()
    store.consumer._connection.release()
    with pytest.raises(BrokerUnavailable):
        store.consumer.settle(own, [Ack(message.tag)])
    with pytest.raises(BrokerUnavailable):
        open_(url).consumer.register("w", ["q"], 1)
    with closing(IronMQ(port)):
        store.sender.push([envelope("b", "q")])


def test_fake_server_keeps_its_data_over_a_restart(open_: Open, tmp_path: Path, clock: ServerClock) -> None:
    """Including reservations and delays."""
    file = tmp_path / "ironmq.jsonl"
    with closing(IronMQ(clock=clock, file=file)) as first:
        store = open_(first.url())
        own = store.consumer.register("w", ["q"], 1)
        store.sender.push([envelope(name, "q") for name in "abc"])
        store.sender.push([envelope("later", "q", due=SYSTEM_CLOCK.now() + 60.0)])
        done, held, back = sorted(receive(store, 3, "q"), key=lambda one: ids([one]))
        store.consumer.settle(own, [Ack(done.tag), Release(back.tag)])
    store.consumer._connection.release()
    with file.open("a") as torn:
        torn.write('["project", "q", "gon')
    with closing(IronMQ(first.port, clock=clock, file=file)) as second:
        assert second.size("project", "q") == 3
        assert store.consumer.settle(own, [Ack(held.tag)]) == set()
        (again,) = receive(store, 1, "q")
        assert again.tag == back.tag
        assert store.consumer.settle(own, [Ack(again.tag)]) == set()
        store.consumer.deregister()
        assert raw_request(second, "POST", "/q/reservations")[1] == {"messages": []}
        clock.ahead = 61.0
        assert len(raw_request(second, "POST", "/q/reservations")[1]["messages"]) == 1


# -- TLS --


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def secure(certificates: Certificates) -> Iterator[IronMQ]:
    """A server with TLS, and a certificate for ``localhost``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.server)
    with closing(IronMQ(tls=context)) as server:
        yield server


def https(server: IronMQ, host: str = "localhost", parameters: str = "") -> str:
    return f"ironmq://project:{TOKEN}@{host}:{server.port}{parameters}"


def opened(url: str, use_ssl: Any = None) -> Broker:
    conf = Settings({
        "broker_use_ssl": use_ssl, "broker_transport_options": {"wait_time_seconds": 1},
        "broker_connection_timeout": 2.0,
    })  # fmt: skip
    return open_broker(url, conf)


@pytest.mark.parametrize("where", ["url", "setting"])
def test_https_with_a_custom_authority(secure: IronMQ, certificates: Certificates, where: str) -> None:
    trusted = {"ssl_ca_certs": str(certificates.authority)}
    if where == "url":
        store = opened(https(secure, parameters=f"?{urlencode(trusted)}"))
    else:
        store = opened(https(secure), trusted)
    with closing(store):
        own = store.consumer.register("w", ["q"], 1)
        store.sender.push([envelope("a", "q")])
        (message,) = receive(store, 1, "q")
        assert store.consumer.settle(own, [Ack(message.tag)]) == set()
    assert secure.size("project", "q") == 0


UNKNOWN_AUTHORITY = "its certificate is not signed by a known authority: .* ssl_ca_certs"


@pytest.mark.parametrize(
    ("host", "trusted", "said"),
    [
        ("localhost", "stranger", UNKNOWN_AUTHORITY),
        ("localhost", None, UNKNOWN_AUTHORITY),
        ("127.0.0.1", "authority", "its certificate is for another name"),
    ],
)
def test_untrusted_certificate_raises_one_line(
    secure: IronMQ, certificates: Certificates, host: str, trusted: str | None, said: str
) -> None:
    use_ssl = {"ca_certs": str(getattr(certificates, trusted))} if trusted else None
    with (
        closing(opened(https(secure, host), use_ssl)) as store,
        pytest.raises(BrokerUnavailable, match=said) as error,
    ):
        store.sender.push([envelope("a", "q")])
    assert "\n" not in str(error.value)
    assert TOKEN not in str(error.value)


def test_tls_to_a_plain_port_is_reported(server: IronMQ) -> None:
    with (
        closing(opened(https(server))) as store,
        pytest.raises(BrokerUnavailable, match="it does not use TLS on that port"),
    ):
        store.sender.push([envelope("a", "q")])


@pytest.mark.parametrize(
    ("url", "use_ssl", "said"),
    [
        ("ironmq://p:t@h?ssl_ca_certs=/nowhere", None, "/nowhere, which cannot be read"),
        ("ironmq://p:t@h?ssl_ca_cert=x", None, "did you mean ssl_ca_certs"),
        ("ironmq://p:t@h?region=eu", None, "'region'; other options belong in broker_transport_options"),
        ("ironmq+http://p:t@h", {"ca_certs": "x"}, "does not use TLS"),
    ],
)
def test_invalid_tls_options_are_refused(url: str, use_ssl: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        opened(url, use_ssl)


# -- addresses --


@pytest.mark.parametrize(
    ("url", "environment", "base"),
    [
        ("ironmq://p:t@", {}, f"https://{HOST}/3/projects/p/queues"),
        ("ironmq://p:t@h:1/", {}, "https://h:1/3/projects/p/queues"),
        ("ironmq+http://p:t@[::1]:1/v/4/", {}, "http://[::1]:1/v/4/projects/p/queues"),
        (
            "ironmq://",
            {"IRON_MQ_HOST": "eu", "IRON_PROJECT_ID": "p", "IRON_MQ_TOKEN": "t"},
            "https://eu/3/projects/p/queues",
        ),
    ],
)
def test_valid_addresses(url: str, environment: dict[str, str], base: str) -> None:
    assert address_of(url, environment) == (base, "p", "t")


@pytest.mark.parametrize("url", ["ironmq://", "ironmq://p@h", "ironmq://p:t@h:x", "ironmq://:t@h"])
def test_invalid_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="broker_url"):
        address_of(url, {})


def test_existing_queue_settings_are_kept(server: IronMQ) -> None:
    raw_request(server, "PUT", "/q", {"queue": {"message_expiration": 3600}})
    client = Client(address_of(server.url(), {}), 1.0)
    IronQueue(client, "q", 30)
    assert raw_request(server, "GET", "/q")[1]["queue"]["message_expiration"] == 3600
    client.release()


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 1400000000", b"Content-Length: many", b"Transfer-Encoding: chunked", b"Server: x"],
    ids=["announced", "no number", "chunked", "until the end"],
)
def test_oversized_reply_is_not_read(head: bytes) -> None:
    """A malicious server could fill the memory."""
    sent = 0

    def answer() -> None:
        nonlocal sent
        connection, _ = listening.accept()
        part = b"x" * 65536
        if b"chunked" in head:
            part = b"10000\r\n" + part + b"\r\n"
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
            while sent < 2 * MOST_ANSWER:
                connection.sendall(part)
                sent += len(part)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"ironmq+http://p:t@127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(BrokerUnavailable):
            open_broker(url, Settings({})).consumer.register("w", ["q"], 1)
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert sent < 1.5 * MOST_ANSWER
