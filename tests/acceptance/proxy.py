"""Proxy: a connection to a server that a test can cut, freeze, slow down or falsify while it is in use.

Comes from:  clients that were given the proxy's port.
Goes to:     the server behind it.
Thread:      two for each connection (one per direction) and one that accepts; tests set the attributes from
             their own.

The attributes apply to open and to new connections:

    proxy.up, proxy.down      the two directions: towards the server, towards the client. Each is a Link:
        .open = False         half-open: nothing more is read or forwarded, the sender's buffers fill up
        .lost = True          what arrives is read and discarded
        .lose_when(asked)     the same as soon as asked() is true; .hold_when(asked): half-open then
        .delay = 0.2          seconds by which each piece is late; others are forwarded meanwhile
        .rate = 16_000        bytes per second
    proxy.mode = REFUSE       new connections are reset; BLACK_HOLE: accepted, but never answered; PASS
    proxy.cut()               resets every connection now (fin=True: closes it normally)
    proxy.strand()            open connections stay silent without being closed; new ones work
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

PASS, REFUSE, BLACK_HOLE = "pass", "refuse", "black hole"
_TICK = 0.02
"""Seconds after which a changed attribute takes effect."""
_PIECE = 65536
_LINGER = struct.pack("ii", 1, 0)
"""For a socket that is reset on close."""
Pair = tuple[socket.socket, socket.socket | None]
"""The client's connection and the one to the server for it (None: not connected)."""


def _never() -> bool:
    return False


def _is_ready(side: socket.socket, event: int, seconds: float) -> bool:
    """Whether *side* can be read or written within *seconds*. With poll, since select() refuses high file
    numbers in processes that have run many tests. ValueError if it is closed."""
    waiting = select.poll()
    waiting.register(side, event)
    return bool(waiting.poll(seconds * 1000))


class Link:
    """One direction. pieces, count: the number of reads and of forwarded bytes, of all connections. The
    test sets the other attributes."""

    def __init__(self) -> None:
        self.heal()
        self.count = self.pieces = 0
        self._lock = threading.Lock()

    def forwarded(self, count: int) -> None:
        with self._lock:
            self.count += count

    def read(self) -> None:
        with self._lock:
            self.pieces += 1

    def lose_when(self, asked: Callable[[], bool]) -> None:
        """Discard everything from the moment *asked* returns true."""
        self._loses = asked

    def hold_when(self, asked: Callable[[], bool]) -> None:
        """Read nothing from the moment *asked* returns true."""
        self._holds = asked

    @property
    def is_lost(self) -> bool:
        """Whether the last read is discarded."""
        return self.lost or self._loses()

    @property
    def is_open(self) -> bool:
        """Whether it reads on."""
        return self.open and not self._holds()

    def heal(self) -> None:
        self.open = True
        self.lost = False
        self._loses = self._holds = _never
        self.delay = 0.0
        self.rate = 0.0


class Proxy:
    """In front of host:port; clients connect to ``proxy.port``."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.target = (host, port)
        self.up = Link()
        self.down = Link()
        self.mode = PASS
        self.connections = 0
        """The number of accepted connections."""
        self._lock = threading.Lock()
        self._pairs: set[Pair] = set()
        self._stranded: frozenset[Pair] = frozenset()
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.settimeout(_TICK)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._accepting.start()

    @property
    def open_connections(self) -> int:
        with self._lock:
            return len(self._pairs)

    def url(self, url: str) -> str:
        """*url* of the server, through this proxy."""
        host, port = self.target
        return url.replace(f"{host}:{port}", f"127.0.0.1:{self.port}")

    def cut(self, fin: bool = False) -> int:
        """End every connection on both sides; return their number."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            for side in pair:
                with suppress(OSError):
                    if side is not None and fin:
                        side.shutdown(socket.SHUT_RDWR)  # its threads read end-of-file
                    elif side is not None:
                        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            if not fin or pair[1] is None:
                self._forget(pair)
        return len(pairs)

    def strand(self) -> int:
        """Silently drop the traffic of open connections, like a router that has forgotten them; return
        their number."""
        with self._lock:
            self._stranded = frozenset(self._pairs)
        return len(self._stranded)

    def heal(self) -> None:
        """Reset all attributes; connections stay as they are."""
        self.mode = PASS
        self.up.heal()
        self.down.heal()

    def close(self) -> None:
        self._closed.set()
        self._accepting.join()
        self._listener.close()
        self.cut()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the proxy's threads --

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.mode == REFUSE:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
                client.close()
                continue
            self.connections += 1
            if self.mode == BLACK_HOLE:
                with self._lock:
                    self._pairs.add((client, None))
                continue
            threading.Thread(target=self._connect, args=(client,), name="proxy link", daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.target, 5.0)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            client.close()
            return
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setblocking(False)
        server.setblocking(False)
        pair = (client, server)
        with self._lock:
            self._pairs.add(pair)
        other = threading.Thread(target=self._forward, args=(server, client, self.down, pair), daemon=True)
        other.start()
        self._forward(client, server, self.up, pair)
        other.join()
        self._forget(pair)

    def _forward(self, source: socket.socket, sink: socket.socket, link: Link, pair: Pair) -> None:
        """Forward bytes from *source* to *sink* until either ends."""
        late: deque[tuple[float, bytes]] = deque()
        ended = False
        try:
            while pair in self._pairs and not (ended and not late):
                now = time.monotonic()
                if not link.is_open or pair in self._stranded:
                    time.sleep(_TICK)
                    continue
                while late and late[0][0] <= now:
                    self._send(sink, late.popleft()[1], link, pair)
                pause = min(_TICK, late[0][0] - now) if late else _TICK
                if ended or not _is_ready(source, select.POLLIN, max(pause, 0.0)):
                    time.sleep(max(pause, 0.0) if ended else 0.0)
                    continue
                if not link.is_open or pair in self._stranded:  # changed while waiting
                    continue
                data = source.recv(_PIECE)
                if not data:
                    ended = True
                    continue
                link.read()  # before forwarding, so that it is counted when the answer arrives
                if link.is_lost:
                    continue
                elif link.delay or late:
                    late.append((time.monotonic() + link.delay, data))
                else:
                    self._send(sink, data, link, pair)
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            self._forget(pair)

    def _send(self, sink: socket.socket, data: bytes, link: Link, pair: Pair) -> None:
        """Never blocks longer than the connection lives, even if the other end does not read."""
        while data and pair in self._pairs:
            if not _is_ready(sink, select.POLLOUT, _TICK):
                continue
            rate = link.rate
            sent = sink.send(data[: max(1, int(rate * _TICK))] if rate else data)
            link.forwarded(sent)
            data = data[sent:]
            if rate:
                time.sleep(sent / rate)

    def _forget(self, pair: Pair) -> None:
        with self._lock:
            if pair not in self._pairs:
                return
            self._pairs.discard(pair)
        for side in pair:
            if side is not None:
                side.close()
