"""The NATS client: replies of servers, and lost connections."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports import open_broker
from qworker.transports.lease import Ack
from qworker.transports.nats.client import Client, Post, Refused, Unanswered
from qworker.transports.nats.url import read_url
from tests.acceptance.nats_server import Nats
from tests.acceptance.private_servers import serving
from tests.certificates import Certificates
from tests.support.messages import envelope
from tests.support.receiving import receive
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.integration
Talk = Callable[[Any, str], None]
"""What a server does, given the file of a connection and the subject for its replies."""
POSTS = [Post("s", b"one", {"Nats-Msg-Id": "1"}), Post("s", b"two", answered=False), Post("s", b"")]


class Scripted:
    """A server that greets each client, reads three messages, and then calls the next of *talks*."""

    def __init__(self, *talks: Talk) -> None:
        self.received: list[bytes] = []
        self.gone = threading.Semaphore(0)
        """Released when a connection is closed."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://me:secret@127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, args=(talks,), daemon=True)
        self._thread.start()

    def _serve(self, talks: tuple[Talk, ...]) -> None:
        for talk in talks:
            connection, _ = self._listening.accept()
            with connection, connection.makefile("rwb", buffering=0) as file:
                file.write(b'INFO {"max_payload": 1000}\r\n')
                self.received += [file.readline(), file.readline()]
                file.write(b"PONG\r\n")
                self.received.append(file.readline())
                talk(file, self.messages(file))
            self.gone.release()

    def messages(self, file: Any) -> str:
        """Read three messages; return the reply subject without the number."""
        first = file.readline()
        self.received += [first, *(file.readline() for _ in range(8))]
        return str(first.split()[2].decode().rpartition(".")[0])

    def close(self) -> None:
        self._thread.join(PATIENCE)
        self._listening.close()


@pytest.fixture
def scripted() -> Iterator[Callable[..., tuple[Scripted, Client]]]:
    opened: list[Any] = []

    def open_one(*talks: Talk) -> tuple[Scripted, Client]:
        server = Scripted(*talks)
        connection = Client(read_url(server.url), 5.0)
        opened.extend([connection, server])
        return server, connection

    yield open_one
    for each in opened:
        each.release() if isinstance(each, Client) else each.close()


Open = Callable[..., tuple[Scripted, Client]]


def in_pieces(file: Any, data: bytes) -> None:
    for code in data:
        file.write(bytes([code]))


def test_exchange_publishes_and_receives_replies(scripted: Open) -> None:
    """In any order and pieces, and with other protocol messages in between."""

    def talk(file: Any, subject: str) -> None:
        refusal = b"NATS/1.0 503\r\nWhy: nobody\r\n\r\n"
        reply = f"PING\r\nINFO {{}}\r\n+OK\r\nMSG {subject}.1 1 3\r\nsec\r\nMSG _INBOX.old.1.0 1 1\r\nx\r\n"
        reply += f"HMSG {subject}.0 1 {len(refusal)} {len(refusal) + 4}\r\n"
        in_pieces(file, reply.encode() + refusal + b"fir\n\r\n")
        assert file.readline() == b"PONG\r\n"

    server, connection = scripted(talk)
    first, second = connection.exchange(POSTS)
    assert (first.headers, first.data) == ({"Status": "503", "Why": "nobody"}, b"fir\n")
    assert (second.headers, second.data) == (None, b"sec")
    connect, ping, _, *sent = server.received
    assert (json.loads(connect[8:])["user"], json.loads(connect[8:])["pass"]) == ("me", "secret")
    assert ping == b"PING\r\n"
    head = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"
    assert sent[0].split()[0::3] == [b"HPUB", b"%d" % len(head)]
    assert b"".join(sent[1:5]) == head + b"one\r\n"
    assert sent[5:7] == [b"PUB s 3\r\n", b"two\r\n"]
    assert sent[7].split()[::3] == [b"PUB", b"0"]
    assert sent[8] == b"\r\n"
    assert connection.max_payload == 1000


def test_idle_connection_closed_by_the_server_is_replaced(scripted: Open) -> None:
    """Like a server whose pings are not answered."""

    def answer(file: Any, subject: str) -> None:
        file.write(f"MSG {subject}.0 1 1\r\na\r\nMSG {subject}.1 1 1\r\nb\r\n".encode())

    server, connection = scripted(answer, answer)
    for _ in range(2):
        assert [each.data for each in connection.exchange(POSTS)] == [b"a", b"b"]
        assert server.gone.acquire(timeout=PATIENCE)


def test_error_closes_the_connection_and_the_next_exchange_reconnects(scripted: Open) -> None:
    def refuse(file: Any, subject: str) -> None:
        file.write(f"-ERR 'Maximum Payload Violation'\r\nMSG {subject}.0 1 1\r\na\r\n".encode())

    def answer(file: Any, subject: str) -> None:
        file.write(f"MSG {subject}.1 1 1\r\nd\r\nMSG {subject}.0 1 1\r\nc\r\n".encode())

    _, connection = scripted(refuse, answer)
    with pytest.raises(ConnectionError, match="Maximum Payload Violation"):
        connection.exchange(POSTS)
    assert [each.data for each in connection.exchange(POSTS)] == [b"c", b"d"]


def test_missing_reply_times_out(scripted: Open) -> None:
    over = threading.Event()

    def be_silent(file: Any, subject: str) -> None:
        over.wait(PATIENCE)

    _, connection = scripted(be_silent)
    with pytest.raises(TimeoutError):
        connection.exchange(POSTS, timeout=0.2)
    over.set()


def test_invalid_protocol_raises_connection_error(scripted: Open) -> None:
    def nonsense(file: Any, subject: str) -> None:
        file.write(f"MSG {subject}.0 1 one\r\n".encode())

    _, connection = scripted(nonsense)
    with pytest.raises(ConnectionError, match="not a NATS server: 'MSG"):
        connection.exchange(POSTS)


def test_endless_line_raises_connection_error(scripted: Open) -> None:
    def stream(file: Any, subject: str) -> None:
        with suppress(OSError):
            for _ in range(400):
                file.write(b"x" * 65536)

    _, connection = scripted(stream)
    with pytest.raises(ConnectionError, match="not a NATS server: b'xxx"):
        connection.exchange(POSTS)
    assert not connection.is_connected


@pytest.mark.parametrize(
    "line",
    [
        b"MSG {subject}.0 1 1400000000",
        b"MSG {subject}.0 1 -7",
        b"HMSG {subject}.0 1 12 3",
        b"HMSG {subject}.0 1 -1 3",
    ],
)
def test_invalid_message_size_raises_connection_error(scripted: Open, line: bytes) -> None:
    """Otherwise 1.4 GB would be read into memory."""

    def talk(file: Any, subject: str) -> None:
        file.write(line.replace(b"{subject}", subject.encode()) + b"\r\n" + b"x" * 2000)

    _, connection = scripted(talk)
    with pytest.raises(ConnectionError, match="not a NATS server"):
        connection.exchange(POSTS)


def test_data_before_the_tls_handshake_is_refused() -> None:
    """A man in the middle could inject replies."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b'INFO {"tls_required":true,"max_payload":1000}\r\nPONG\r\n')
                with suppress(OSError):
                    connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(ConnectionError, match="before TLS"):
            Client(read_url(f"nats://127.0.0.1:{listening.getsockname()[1]}"), 5.0)
        thread.join(PATIENCE)


class Secure(Nats):
    """A server with TLS only."""

    certificates: Certificates

    def command(self) -> list[str]:
        certificate, key = map(str, self.certificates.server)
        return [*super().command(), "--tls", "--tlskey", key, "--tlscert", certificate]


def test_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    kind = type("Secure", (Secure,), {"certificates": certificates})
    with serving("nats", kind) as server:
        url = f"tls://qworker:s3cr3t@localhost:{server.port}?ssl_ca_certs={certificates.authority}"
        settings = Settings({"broker_url": url})
        with closing(open_broker(settings.broker_url, settings)) as broker:
            broker.sender.push([envelope("a", "q")])
            broker.sender.push([envelope("b", "q")])
            (info,) = broker.admin.queues()
            assert (info.queue, info.ready) == ("q", 2)
            own = broker.consumer.register("w", ["q"], 1)
            broker.sender.push([envelope(str(number), "q", body=b"x" * 5000) for number in range(300)])
            for _ in range(3):  # large messages arrive while others are settled
                found = receive(broker, 100, "q")
                assert broker.consumer.settle(own, [Ack(message.tag) for message in found]) == set()
            assert broker.consumer._connection.reconnects == 0
            server.kill()
            with pytest.raises(BrokerUnavailable):
                broker.admin.queues()
    with serving("nats", kind) as server:
        other = f"tls://localhost:{server.port}?ssl_ca_certs={certificates.stranger}"
        with closing(open_broker(other, Settings({}))) as broker:
            for ask in (broker.admin.queues, lambda: broker.sender.push([envelope("a", "q")])):
                with pytest.raises(BrokerUnavailable, match="by a known authority"):
                    ask()


def test_tls_url_sends_nothing_unencrypted() -> None:
    """A client that relied on the server's INFO would send it the password."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        answering = threading.Thread(target=_without_tls, args=(listening, received), daemon=True)
        answering.start()
        url = f"tls://qworker:s3cr3t@127.0.0.1:{port}"
        with closing(open_broker(url, Settings({}))) as broker:
            for ask in (broker.admin.queues, lambda: broker.sender.push([envelope("a", "q")])):
                with pytest.raises(BrokerUnavailable, match="it does not use TLS on that port"):
                    ask()
    assert received
    assert not [words for words in received if b"CONNECT" in words or b"s3cr3t" in words]


def _without_tls(listening: socket.socket, received: list[bytes]) -> None:
    """Greet each client like a server without TLS, and record what it sends."""
    with suppress(OSError):
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b'INFO {"server_id":"s","version":"2.9.0","max_payload":1048576}\r\n')
                received.append(connection.recv(65536))
                connection.sendall(b"-ERR 'Unknown Protocol Operation'\r\n")


def test_refused_login_raises_configuration_error(tmp_path: Path) -> None:
    with serving("nats", Nats) as server:
        url = server.url.replace("s3cr3t", "wrong")
        with closing(open_broker(url, Settings({}))) as broker, pytest.raises(ConfigurationError) as refused:
            broker.sender.push([envelope("a", "q")])
    assert "refuses the login" in str(refused.value)
    assert "wrong" not in str(refused.value)


def test_jetstream_errors_are_raised() -> None:
    with serving("nats", Nats) as server, closing(open_broker(server.url, Settings({}))) as broker:
        broker.sender.push([envelope("a", "q")])
        with pytest.raises(Refused, match="not found"):
            broker.sender._connection.ask("STREAM.INFO.none")


# -- shared by several threads --


class Echo:
    """A server that echoes each message. info: fields of its INFO."""

    def __init__(self, **info: Any) -> None:
        self.info = {"max_payload": 1000, **info}
        self.subscribed: list[bytes] = []
        self.mute = False
        self._connections: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rwb", buffering=0) as file:
            file.write(f"INFO {json.dumps(self.info)}\r\n".encode())
            while line := file.readline():
                word, *rest = line.split()
                if word == b"SUB":
                    self.subscribed.append(rest[0])
                elif word == b"PUB":
                    data = file.read(int(rest[-1]) + 2)
                    if data.startswith(b"-ERR"):
                        file.write(data)
                    elif not self.mute and len(rest) == 3:
                        file.write(b"MSG %s 1 %d\r\n%s" % (rest[1], len(data) - 2, data))
                elif word == b"PING" and not self.mute:
                    file.write(b"PONG\r\n")

    def cut(self) -> None:
        """End all connections."""
        while self._connections:
            with suppress(OSError):
                self._connections.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()
        self.cut()


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as server:
        yield server


@pytest.fixture
def shared(echo: Echo) -> Iterator[Client]:
    client = Client(read_url(f"nats://127.0.0.1:{echo.port}"), PATIENCE)
    client.share()
    yield client
    client.release()


def test_each_thread_gets_its_own_replies(shared: Client) -> None:
    def ask(number: int) -> bool:
        texts = [b"%d.%d" % (number, place) for place in range(20)]
        return [reply.data for reply in shared.exchange([Post("s", text) for text in texts])] == texts

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(200)))


def test_lost_connection_raises_for_waiting_threads(echo: Echo, shared: Client) -> None:
    """And subscriptions are restored on the next connection."""
    received: list[Any] = []
    shared.subscribe("news", received.append)
    echo.mute = True
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(shared.exchange, [Post("s", b"a")])
        until(lambda: bool(shared._waiting))
        echo.mute = False
        echo.cut()
        with pytest.raises(Unanswered, match="was lost"):
            asked.result(PATIENCE)
    assert [reply.data for reply in shared.exchange([Post("s", b"b")])] == [b"b"]
    assert shared.reconnects == 1
    assert echo.subscribed.count(b"news") == 2


def test_exchange_without_connection_raises(echo: Echo, shared: Client) -> None:
    echo.close()
    until(lambda: not shared.is_connected)
    with pytest.raises(ConnectionError, match="is lost"):
        shared.exchange([Post("s", b"a")], timeout=0.1)


def test_client_connects_to_advertised_servers(echo: Echo) -> None:
    other = Echo(connect_urls=[f"127.0.0.1:{echo.port}", "nonsense:"])
    client = Client(read_url(f"nats://127.0.0.1:{other.port}"), PATIENCE)
    client.share()
    other.close()
    until(lambda: client.reconnects > 0)
    assert [reply.data for reply in client.exchange([Post("s", b"a")])] == [b"a"]
    client.release()


def test_silent_server_leaves_time_for_other_servers(echo: Echo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = read_url(f"nats://127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{echo.port}")
        for _ in range(8):  # either may be the first
            Client(place, 1.0).release()


def test_permission_error_does_not_close_the_connection(shared: Client) -> None:
    words = 'Permissions Violation for Publish to "s"'
    with pytest.raises(ConnectionError, match="Permissions Violation"):
        shared.exchange([Post("s", f"-ERR '{words}'".encode())])
    assert [reply.data for reply in shared.exchange([Post("s", b"a")])] == [b"a"]
    assert shared.reconnects == 0


def test_error_that_arrives_before_the_wait_is_raised(
    shared: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()
    report, send = shared._report, shared._send

    def report_and_note(error: Exception) -> None:
        report(error)
        refused.set()

    def send_and_sleep(*given: Any) -> None:
        send(*given)
        assert refused.wait(PATIENCE)

    monkeypatch.setattr(shared, "_report", report_and_note)
    monkeypatch.setattr(shared, "_send", send_and_sleep)
    with pytest.raises(ConnectionError, match="Permissions Violation"):
        shared.exchange([Post("s", b"-ERR 'Permissions Violation for Publish to \"s\"'")], timeout=1.0)


@pytest.mark.parametrize("late", [0.0, 60.0])
def test_answer_that_came_while_the_process_was_frozen_is_read(shared: Client, late: float) -> None:
    """The wait ends as soon as the process goes on, before the reading thread has had its turn."""
    queue: SimpleQueue[str] = SimpleQueue()
    wire = shared.publish(Post("s", b""), time.monotonic() + 5.0)
    reader = threading.Timer(0.1, queue.put, ["answer"])
    reader.start()
    with nullcontext() if late else pytest.raises(TimeoutError):
        assert shared.wait(queue, wire, time.monotonic() - late) == "answer"
    reader.join()


def test_unresponsive_server_is_replaced(echo: Echo) -> None:
    client = Client(read_url(f"nats://127.0.0.1:{echo.port}"), PATIENCE, ping_seconds=0.1)
    client.share()
    echo.mute = True
    until(lambda: not client.is_connected)
    echo.mute = False
    assert [reply.data for reply in client.exchange([Post("s", b"a")])] == [b"a"]
    client.release()


def test_release_ends_the_thread(echo: Echo) -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "nats"}
    client = Client(read_url(f"nats://127.0.0.1:{echo.port}"), PATIENCE)
    client.share()
    client.release()
    client.release()
    until(lambda: {thread for thread in threading.enumerate() if thread.name == "nats"} <= before)
