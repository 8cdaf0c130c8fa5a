"""Tests of the proxy: it forwards everything, and injects the requested faults."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.acceptance.harness import until
from tests.acceptance.proxy import BLACK_HOLE, PASS, REFUSE, Proxy

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(60)]


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of an echo server."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(None)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        ended.set()
        thread.join()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy(echo) as proxy:
        yield proxy


@contextmanager
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), 5.0) as connection:
        yield connection


def say(connection: socket.socket, data: bytes) -> bytes:
    """Send *data*; return the same number of bytes of the answer."""
    connection.sendall(data)
    return read(connection, len(data))


def read(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        piece = connection.recv(65536)
        assert piece, f"ended after {len(got)} bytes"
        got += piece
    return got


def silent(connection: socket.socket, seconds: float = 0.2) -> bool:
    connection.settimeout(seconds)
    try:
        connection.recv(1)
    except TimeoutError:
        connection.settimeout(5.0)
        return True
    return False


def test_proxy_forwards_and_counts_bytes(proxy: Proxy) -> None:
    big = bytes(range(256)) * 4096
    with client(proxy) as one, client(proxy) as two:
        assert say(one, b"hello") == b"hello"
        got = bytearray()
        reader = threading.Thread(target=lambda: got.extend(read(two, len(big))))
        reader.start()
        two.sendall(big)
        reader.join()
        assert bytes(got) == big
        assert proxy.connections == proxy.open_connections == 2
        until(lambda: proxy.up.count == proxy.down.count == len(big) + 5, "the last piece to be counted")
    until(lambda: proxy.open_connections == 0, "the ends to be carried on")


def test_half_closed_connection_gets_its_answer(proxy: Proxy) -> None:
    with client(proxy) as one:
        one.sendall(b"last words")
        one.shutdown(socket.SHUT_WR)
        assert read(one, 10) == b"last words"
        assert one.recv(1) == b""


def test_cut_resets_both_sides(proxy: Proxy) -> None:
    with client(proxy) as one, client(proxy) as two:
        say(one, b"x"), say(two, b"x")
        assert proxy.cut() == 2
        for connection in (one, two):
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
    assert proxy.open_connections == 0
    with client(proxy) as three:
        assert say(three, b"again") == b"again"


def test_cut_with_fin_closes_cleanly(proxy: Proxy) -> None:
    with client(proxy) as one:
        say(one, b"x")
        proxy.cut(fin=True)
        assert one.recv(1) == b""
    until(lambda: proxy.open_connections == 0, "it to be forgotten")


def test_closed_up_link_holds_bytes_back_until_it_opens(proxy: Proxy) -> None:
    with client(proxy) as one:
        say(one, b"x")
        proxy.up.open = False
        one.sendall(b"late")
        assert silent(one)
        proxy.up.open = True
        assert read(one, 4) == b"late"


def test_closed_down_link_holds_answers_back(proxy: Proxy) -> None:
    with client(proxy) as one:
        say(one, b"x")
        proxy.down.open = False
        one.sendall(b"heard")
        until(lambda: proxy.up.count == 6, "it to reach the server")
        assert silent(one)
        assert proxy.down.count == 1
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            one.recv(1)


def test_lost_bytes_never_arrive(proxy: Proxy) -> None:
    with client(proxy) as one:
        say(one, b"x")
        proxy.down.lost = True
        one.sendall(b"answer me")
        assert silent(one)
        proxy.heal()
        assert say(one, b"y") == b"y"


def test_bytes_are_lost_or_held_back_after_some_answers(proxy: Proxy) -> None:
    with client(proxy) as one:
        proxy.up.lose_when(lambda: proxy.down.pieces >= 2)
        assert say(one, b"x") == say(one, b"x") == b"x"
        one.sendall(b"lost")
        assert silent(one)
        proxy.heal()
        proxy.up.hold_when(lambda: proxy.down.pieces >= 3)
        assert say(one, b"y") == b"y"
        one.sendall(b"late")
        assert silent(one)
        proxy.heal()
        assert read(one, 4) == b"late"


def test_refuse_and_black_hole_modes(proxy: Proxy) -> None:
    with client(proxy) as old:
        say(old, b"x")
        proxy.mode = REFUSE
        with pytest.raises(ConnectionResetError), client(proxy) as new:
            new.recv(1)
        proxy.mode = BLACK_HOLE
        with client(proxy) as new:
            new.sendall(b"anybody?")
            assert silent(new)
            assert say(old, b"old ones live") == b"old ones live"
            proxy.mode = PASS
            assert silent(new), "what fell in stays there"
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                new.recv(1)


def test_stranded_connections_are_silent_and_new_ones_work(proxy: Proxy) -> None:
    with client(proxy) as old, client(proxy) as new:
        say(old, b"x"), say(new, b"x")
        assert proxy.strand() == 2
        old.sendall(b"anybody?")
        assert silent(old)
        with client(proxy) as newer:
            assert say(newer, b"yes") == b"yes"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            old.recv(1)


def test_delay_adds_latency_without_limiting_throughput(proxy: Proxy) -> None:
    with client(proxy) as one:
        say(one, b"x")
        proxy.up.delay = 0.2
        began = time.monotonic()
        for number in range(5):
            one.sendall(b"%d" % number)
            time.sleep(0.03)
        assert read(one, 5) == b"01234"
        took = time.monotonic() - began
        assert 0.3 <= took < 1.5, "five pieces travel at the same time"


def test_rate_limits_throughput(proxy: Proxy) -> None:
    with client(proxy) as one:
        say(one, b"x")
        proxy.down.rate = 20_000
        began = time.monotonic()
        assert say(one, b"z" * 10_000) == b"z" * 10_000
        assert time.monotonic() - began >= 0.4


def test_unreachable_server_resets_the_client(echo: int) -> None:
    with Proxy(1) as proxy, pytest.raises(ConnectionResetError), client(proxy) as one:
        one.recv(1)


def test_proxy_closes_while_a_sender_is_blocked(echo: int) -> None:
    """With full buffers, since the client does not read."""
    with Proxy(echo) as proxy, client(proxy) as one:
        one.settimeout(0.5)
        with pytest.raises(TimeoutError):
            one.sendall(b"x" * 100_000_000)
        assert proxy.cut() == 1
    until(lambda: not any("link" in thread.name for thread in threading.enumerate()), "its threads to end")


def test_url_points_to_the_proxy(echo: int) -> None:
    with Proxy(echo) as proxy:
        assert proxy.url(f"redis://127.0.0.1:{echo}/0") == f"redis://127.0.0.1:{proxy.port}/0"
