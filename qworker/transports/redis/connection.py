"""Connections to Redis and Valkey, for commands and scripts.

Comes from:  ``sender.py``, ``consumer.py``, ``waiting.py``, ``broker.py``; the result store on Redis.
Goes to:     the server of an Endpoint; hiredis packs commands and parses replies.
Thread:      a Link belongs to one thread at a time; Links lends them to any. Neither is shared across a fork.

Any error of a connection or a server becomes BrokerUnavailable, with advice; the next use reconnects. Every
connect and every read has a time limit.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError, EncodeError
from qworker.interrupts import deferred, in_helper_thread, reraise_interrupt
from qworker.naming import install_command
from qworker.process.forked import forgetful
from qworker.transports.connect_errors import REDIS, explained
from qworker.transports.redis.url import SOCKET_TIMEOUT, Endpoint

try:
    import hiredis
    import redis
except ImportError as error:
    raise ConfigurationError(
        f"{error.name or 'redis'} is not installed, which redis:// needs: {install_command('redis')}",
        setting="broker_url",
    ) from error

REQUIRED = "redis[hiredis]>=5.0,<9"
"""The requirement of our extra: redis-py does not document the socket of its connections."""
_CODE = re.compile("[A-Z]{3,}")
LONGEST = "proto-max-bulk-len"
SURELY_TAKEN, USUALLY_TAKEN = 1024**2, 512 * 1024**2
"""Maximum bytes of one value: the lowest value of LONGEST, and its default, used if it cannot be read."""
IDLE_LINKS = 8
"""How many idle connections are kept for publishers."""
IDLE_SECONDS = 10.0
"""How long a worker keeps connections that it does not use: fleets are large, and servers allow few."""

ADVICE = {
    "OOM": "its memory is full (maxmemory): let workers empty the queues, or increase it",
    "MISCONF": "it cannot write its snapshot to disk, and refuses writes",
    "LOADING": "it is loading its data",
    "READONLY": "it is a replica: use the address of the master, or sentinel://",
    "MASTERDOWN": "it has lost its master",
    "NOREPLICAS": "too few replicas are connected",
    "BUSY": "it is running a script",
    "NOPERM": "the user has no permission for it",
    "CLUSTERDOWN": "the cluster is down",
    **dict.fromkeys(("MOVED", "CROSSSLOT"), "it is a node of a cluster: use redis+cluster://"),
    **dict.fromkeys(("ASK", "TRYAGAIN"), "the cluster is moving our keys to another node"),
}
"""Advice for an error of the server, by its first word."""
HAS_MOVED = "the cluster has moved our keys to another node"
"""Advice for MOVED from a node of a cluster that we know as one."""
ELSEWHERE = frozenset({"READONLY", "MASTERDOWN", "LOADING", "MOVED", "CLUSTERDOWN"})
"""After these errors another connection may reach another server."""

_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
_TEXTS = frozenset({str, bytes})
_NUMBERS = frozenset({int, float})


def pack(command: tuple[Any, ...]) -> bytes:
    """Return the bytes of a command, given as text, bytes and numbers. Raises TypeError for anything else.

    Numbers are converted to text here, because hiredis (3.5) does not check whether their repr() failed: it
    crashes the process when a signal handler raises in it.
    """
    if _TEXTS.issuperset(map(type, command)):
        return _pack(command)
    return _pack(tuple([repr(each) if type(each) in _NUMBERS else each for each in command]))


class Link:
    """One connection, made on first use and again after it broke."""

    def __init__(self, where: Endpoint) -> None:
        self._where = where
        self._connection: Any = None  # keeps the socket from being collected
        self._socket: socket.socket | None = None
        self._reader: Any = None
        self._timeout = 0.0
        self._whole = True
        """Whether the last use was completed."""
        self.connects = 0
        """How often it has connected."""
        self.used_at = 0.0
        """When it was last given back to Links."""

    def ask(self, data: bytes, replies: int = 1, timeout: float = SOCKET_TIMEOUT) -> list[Any]:
        """Send packed commands; return that many replies, with errors as ``hiredis.ReplyError``.

        Raises BrokerUnavailable when they have not all arrived within *timeout* seconds: then it is unknown
        whether the commands were carried out.
        """
        try:
            connected = self._usable(timeout)
            if timeout != self._timeout:
                connected.settimeout(timeout)
                self._timeout = timeout
            connected.sendall(data)
            found = []
            gets = self._reader.gets
            while True:
                reply = gets()
                if reply is False:
                    received = connected.recv(65536)
                    if not received:
                        raise ConnectionError("the server closed the connection")
                    self._reader.feed(received)
                    continue
                found.append(reply)
                if len(found) == replies:
                    self._whole = True
                    return found
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | redis.RedisError | hiredis.HiredisError):
                raise unavailable(self._where, error) from error
            raise

    def send(self, data: bytes) -> None:
        """Send packed commands whose replies come later; see received()."""
        try:
            self._usable().sendall(data)
            self._whole = True
        except (OSError, redis.RedisError) as error:
            self.close()
            raise unavailable(self._where, error) from error

    def received(self) -> list[Any]:
        """Return the replies that have arrived, without waiting for more. Raises BrokerUnavailable when the
        connection broke."""
        if self._socket is None:
            return []
        try:
            connected = self._usable()
            connected.setblocking(False)
            self._timeout = 0.0
            try:
                while True:
                    data = connected.recv(65536)
                    if not data:
                        raise ConnectionError("the server closed the connection")
                    self._reader.feed(data)
                    if len(data) < 65536 and not getattr(connected, "pending", int)():  # TLS buffers some
                        break
            except BlockingIOError:
                pass
            except OSError as error:
                if "want" not in type(error).__name__.lower():  # raised by TLS: no more data has arrived
                    raise
            connected.settimeout(SOCKET_TIMEOUT)
            self._timeout = SOCKET_TIMEOUT
            found = []
            while (reply := self._reader.gets()) is not False:
                found.append(reply)
            self._whole = True
            return found
        except (OSError, hiredis.HiredisError) as error:
            self.close()
            raise unavailable(self._where, error) from error

    def refresh(self) -> None:
        """Drop a connection that the server has closed since its last use, before anything is sent on it."""
        if self._socket is not None and self._ready.poll(0):
            self.close()

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 when it is not connected, or its last use was
        interrupted."""
        return -1 if self._socket is None or not self._whole else self._socket.fileno()

    def _usable(self, timeout: float = SOCKET_TIMEOUT) -> socket.socket:
        """Return the socket, a new one if the last use was interrupted; the user sets _whole when done."""
        if not self._whole:
            self.close()
        connected = self._socket or self._connect(timeout)
        self._whole = False
        return connected

    def _connect(self, timeout: float = SOCKET_TIMEOUT) -> socket.socket:
        self._connection = in_helper_thread(lambda: self._where.connect(max(timeout, 0.001)))
        connected = getattr(self._connection, "_sock", None)
        if not isinstance(connected, socket.socket):
            raise ConfigurationError(
                f"the socket of a connection of redis-py {redis.__version__} is not where qworker looks for "
                f'it: pip install "{REQUIRED}"',
                setting="broker_url",
            )
        self._socket, self._reader, self._timeout = connected, hiredis.Reader(), 0.0
        self.connects += 1
        self._ready = select.poll()
        self._ready.register(connected, select.POLLIN)
        return connected

    def close(self) -> None:
        """Close the connection; the next use makes another. Safe to call twice."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            try:
                connection.disconnect()
            except (OSError, redis.RedisError):
                pass  # it is gone in any case

    def abandon(self) -> None:
        """In a forked child: close our copy of the socket without sending anything."""
        connected, self._socket = self._socket, None
        if connected is not None:
            os.close(
                connected.detach()
            )  # first, because otherwise the connection would shut it down for both processes
        self._connection = None


_links = forgetful()


class Links:
    """Connections for any thread: each use takes a free one, or makes one."""

    def __init__(self, where: Endpoint) -> None:
        self.where = where
        self._free: list[Link] = []  # any thread: pop and append are atomic
        _links.add(self)

    @contextmanager
    def lent(self) -> Iterator[Link]:
        """Lend a connection for the block."""
        link = self.take()
        try:
            yield link
        finally:
            self.give(link)

    def take(self) -> Link:
        try:
            link = self._free.pop()
        except IndexError:
            return Link(self.where)
        link.refresh()
        return link

    def give(self, link: Link) -> None:
        if len(self._free) < IDLE_LINKS:
            link.used_at = time.monotonic()
            self._free.append(link)
        else:
            link.close()

    def close(self) -> None:
        while self._free:
            try:
                self._free.pop().close()
            except IndexError:
                return

    def close_idle(self, before: float) -> None:
        """Close connections that were not used since the monotonic time *before*."""
        for link in [link for link in self._free if link.used_at < before]:
            with suppress(ValueError):  # another thread has taken it
                self._free.remove(link)
                link.close()

    def store(self, work: Callable[[Link], Any], tries: int = 2) -> Any:
        """Return *work* applied to a connection, for a store; not interrupted. Raises BackendError.

        tries: 1 for operations that must not be repeated. Others are, because the server may have closed an
        idle connection.
        """
        return deferred(self._try, work, tries)

    def _try(self, work: Callable[[Link], Any], tries: int) -> Any:
        while True:
            tries -= 1
            try:
                with self.lent() as link:
                    return work(link)
            except BrokerUnavailable as error:
                reraise_interrupt(error)
                if tries <= 0:
                    raise BackendError(str(error)) from error

    def _after_fork(self) -> None:
        """In a forked child: all connections belong to the parent."""
        links, self._free = self._free, []
        for link in links:
            link.abandon()


def close_idle_links(seconds: float = IDLE_SECONDS) -> None:
    """Close the connections of this process that were not used for *seconds*. Any thread."""
    try:
        every = list(_links)
    except RuntimeError:  # another thread has just made some: they are closed the next time
        return
    before = time.monotonic() - seconds
    for links in every:
        links.close_idle(before)


class Script:
    """A Lua script, sent once to each server and called by its digest."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    def call(
        self, link: Link, keys: Sequence[Any], arguments: Sequence[Any], timeout: float = SOCKET_TIMEOUT
    ) -> Any:
        """Run it; raises BrokerUnavailable when the server fails or refuses, EncodeError when an argument is
        too large."""
        data = self.packed(keys, arguments)
        if len(data) > SURELY_TAKEN:
            refuse_too_large(link, arguments)
        (reply,) = link.ask(data, 1, timeout)
        if link._where.cluster and isinstance(reply, hiredis.ReplyError) and _code(str(reply)) == "MOVED":
            link.close()  # it was not carried out: the next connection is to the node that has the keys now
            (reply,) = link.ask(data, 1, timeout)
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
            (reply,) = link.ask(pack(("EVAL", self._source, len(keys), *keys, *arguments)), 1, timeout)
        return checked(link, reply)

    def packed(self, keys: Sequence[Any], arguments: Sequence[Any]) -> bytes:
        """Return the command that runs it; a server that does not know it yet answers with NOSCRIPT."""
        return pack(("EVALSHA", self._digest, len(keys), *keys, *arguments))


def checked(link: Link, reply: Any) -> Any:
    """Return *reply*, unless it is an error: then raise BrokerUnavailable."""
    if isinstance(reply, hiredis.ReplyError):
        if is_elsewhere(reply):
            link.close()
        raise unavailable(link._where, reply)
    return reply


def is_elsewhere(reply: hiredis.ReplyError) -> bool:
    """Return whether another connection may reach another server, which will not reply so."""
    return _code(str(reply)) in ELSEWHERE


def refuse_too_large(link: Link, values: Iterable[Any]) -> None:
    """EncodeError when one of *values*, some of which are bytes, is larger than the server accepts: it would
    close the connection, and seem to be gone."""
    size = max((len(value) for value in values if isinstance(value, bytes)), default=0)
    if size <= SURELY_TAKEN:
        return
    (reply,) = link.ask(pack(("CONFIG", "GET", LONGEST)))
    limit = int(reply[1]) if isinstance(reply, list) and len(reply) == 2 else USUALLY_TAKEN
    if size > limit:
        raise EncodeError(
            f"{link._where.safe_url} accepts values of up to {limit:,} bytes ({LONGEST}), not {size:,}"
        )


def _code(text: str) -> str:
    """Return the word of ADVICE in an error text; older servers wrap it when it comes from a script."""
    return next((word for word in _CODE.findall(text) if word in ADVICE), "")


def unavailable(where: Endpoint, error: BaseException) -> BrokerUnavailable:
    """Return the error to raise for *error*, with advice."""
    text = str(error) or type(error).__name__
    code = _code(text)
    advice = HAS_MOVED if code == "MOVED" and where.cluster else ADVICE.get(code)
    return BrokerUnavailable(
        f"{where.safe_url}: {f'{advice} ({text})' if advice else explained(text, REDIS)}"
    )
