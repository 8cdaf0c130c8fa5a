"""SpoolServer: receives uwsgi packets on sockets and writes them as jobs.

Comes from:  any client of uWSGI's protocol, on the given addresses.
Goes to:     spool files, through Admission.
Thread:      its own, which never waits for one client: unfinished requests are continued later.

An answer is sent after the job was written; so a server that dies loses no job that it has confirmed. If a
client disconnects before the answer, its job is still run.
"""

from __future__ import annotations

import logging
import os
import re
import selectors
import socket
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.components.component import ThreadComponent
from qworker.errors import ConfigurationError, SpoolError
from qworker.process.wakeup import WakeupPipe
from qworker.safe_repr import safe_repr
from qworker.spooler.files.packet import HEADER, LARGEST, Pairs, decode, plain
from qworker.spooler.files.writing import Writer
from qworker.spooler.network import framing
from qworker.spooler.network.framing import Limits
from qworker.spooler.network.peers import Access, TcpAddress, UnixAddress, parse_address, resolved
from qworker.spooler.network.receiving import Conversation, ReceivedPacket

logger = logging.getLogger(__name__)

RECEIVE = HEADER + LARGEST
"""Maximum bytes received at once: the size of the largest packet."""
ACCEPT = 64
"""New connections accepted before existing ones are handled."""
SWEEP_SECONDS = 0.25
"""Seconds between two checks for slow clients."""
LINGER_SECONDS = 1.0
"""How long further input of a refused client is read and discarded, so that it gets the answer."""
HURRY = 8
"""Clients get this fraction of their time, 1/8, while there are too many connections."""
LOG_SECONDS = 1.0
"""Seconds between two log lines about refusals."""


def _log_crash(name: str, error: BaseException) -> None:
    logger.error("the %s has crashed", name, exc_info=error)


class _Peer:
    """One connection. events: awaited events. ended: the client sends no more. lingers: the server sends no
    more."""

    __slots__ = ("connection", "conversation", "ended", "events", "lingers")

    def __init__(self, connection: socket.socket, conversation: Conversation) -> None:
        self.connection = connection
        self.conversation = conversation
        self.events = 0
        self.ended = False
        self.lingers = False


class SpoolServer(ThreadComponent):
    """addresses: see ``peers``. writers: of the directories for jobs; the first is the default.

    The attribute ``addresses`` has the actual addresses after the start. A quiet server still receives jobs:
    they are files, and wait for a process that runs them.
    """

    name = "spool-server"

    def __init__(
        self,
        addresses: Iterable[str],
        writers: Sequence[Writer],
        *,
        limits: Limits | None = None,
        access: Access | None = None,
        clock: Clock = SYSTEM_CLOCK,
        on_crash: Callable[[str, BaseException], None] = _log_crash,
    ) -> None:
        super().__init__(clock, on_crash)
        self.addresses = list(addresses)
        self._limits = limits or Limits()
        self._access = access or Access()
        self._admission = Admission(writers, self._access.key, clock, self._access.older_keys)
        self._most_held = 4 * self._limits.max_body + self._limits.max_connections * 2 * RECEIVE
        self._wakeup = WakeupPipe()
        self._listeners: list[ListeningSocket] = []
        # Used by the thread, from here on.
        self._selector: selectors.BaseSelector | None = None
        self._ready: list[tuple[selectors.SelectorKey, int]] = []
        self._peers: dict[_Peer, None] = {}
        self._unfinished: dict[_Peer, None] = {}
        self._held = 0
        self._is_listening = False
        self._next_sweep = 0.0
        self._refused = 0
        self._next_log = 0.0

    # -- any thread --

    def start(self) -> None:
        """Listen on all addresses. ConfigurationError when that fails for one of them; then none is open."""
        if self._listeners or self._stop.is_set() or self.alive:
            return
        try:
            for address in self.addresses:
                self._listeners.append(listen(address, self._access))
        except BaseException:
            self._close_listeners()
            raise
        self.addresses = [str(listener.address) for listener in self._listeners]
        self._wakeup.open()
        super().start()
        logger.info("accepting jobs on %s", ", ".join(self.addresses))

    def wake(self) -> None:
        super().wake()
        self._wakeup.wake()

    # -- the thread --

    def opened(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup.fileno(), selectors.EVENT_READ)
        self._listen(True)

    def closed(self) -> None:
        for peer in list(self._peers):
            self._close(peer)
        self._close_listeners()
        if self._selector is not None:
            self._selector.close()
        self._wakeup.close()

    def wait(self, seconds: float | None) -> None:
        assert self._selector is not None
        self._ready = self._selector.select(seconds)

    def step(self, now: float) -> float | None:
        assert self._selector is not None
        ready, self._ready = self._ready or self._selector.select(0), []
        callers = []
        for key, _ in ready:
            match key.data:
                case _Peer() as peer:
                    self._turn(peer, now)
                case ListeningSocket() as listener:
                    callers.append(listener)
                case _:
                    self._wakeup.clear()
        for peer in list(self._unfinished):
            self._receive(peer.conversation, b"", now)
            self._settle(peer, now)
        for listener in callers:
            self._accept(listener, now)
        if now >= self._next_sweep:
            self._sweep(now)
        if self._unfinished:
            return 0
        return SWEEP_SECONDS if self._peers or not self._is_listening or self._refused else None

    def _accept(self, listener: ListeningSocket, now: float) -> None:
        for _ in range(ACCEPT):
            if len(self._peers) >= self._limits.max_connections:
                self._listen(False)
                return
            try:
                connection, address = listener.socket.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it was closed already
            except OSError as error:
                logger.warning("no more connections can be accepted at the moment: %s", error.strerror)
                self._listen(False)
                return
            if not self._is_allowed(listener, connection, address):
                connection.close()
                continue
            connection.setblocking(False)
            must_be_signed = listener.is_tcp and self._access.key is not None
            conversation = Conversation(self._limits, partial(self._admit, must_be_signed), now)
            peer = _Peer(connection, conversation)
            self._peers[peer] = None
            self._turn(peer, now)  # most clients have already sent everything

    def _is_allowed(self, listener: ListeningSocket, connection: socket.socket, address: object) -> bool:
        if not listener.is_tcp:
            if self._access.allows_user(connection):
                return True
            self._log_refusal("refused a connection to %s: its user may not send jobs", listener.address)
            return False
        assert isinstance(address, tuple)
        if self._access.allows_ip(address[0]):
            return True
        self._log_refusal("refused a connection from %s, which is in no allowed network", address[0])
        return False

    def _admit(self, must_be_signed: bool, request: ReceivedPacket) -> str:
        try:
            return self._admission.admit(request, must_be_signed)
        except SpoolError as error:
            self._log_refusal("a job was refused: %s", error)
            raise

    def _turn(self, peer: _Peer, now: float) -> None:
        """Receive available data, unless the client has to read its answers first."""
        conversation = peer.conversation
        if not conversation.unsent and not conversation.more and not peer.ended:
            try:
                data = peer.connection.recv(RECEIVE)
            except (BlockingIOError, InterruptedError):
                data = None
            except OSError:
                self._close(peer)
                return
            if data:
                self._receive(conversation, data, now)
            elif data is not None:
                peer.ended = True
        self._settle(peer, now)

    def _receive(self, conversation: Conversation, data: bytes, now: float) -> None:
        """Handle new data, and data left from earlier."""
        before = conversation.held
        conversation.received(data, now)
        self._held += conversation.held - before
        if self._held > self._most_held and conversation.held:
            self._held -= conversation.held
            conversation.refuse("too many large bodies arrive at the same time: try again later", now)

    def _settle(self, peer: _Peer, now: float) -> None:
        """Send pending answers, and determine the next events."""
        conversation = peer.conversation
        self._unfinished.pop(peer, None)
        if conversation.unsent and not self._send(peer):
            return
        if conversation.unsent:
            self._watch(peer, selectors.EVENT_WRITE)
        elif conversation.more:
            self._unfinished[peer] = None
        elif peer.ended or (conversation.ending and not conversation.unread):
            self._close(peer)
        else:
            if conversation.ending and not peer.lingers:
                peer.lingers = True
                with suppress(OSError):
                    peer.connection.shutdown(socket.SHUT_WR)
                conversation.since, conversation.timeout = now, LINGER_SECONDS
            self._watch(peer, selectors.EVENT_READ)

    def _send(self, peer: _Peer) -> bool:
        """Send some of the answers. False when the client has disconnected."""
        unsent = peer.conversation.unsent
        try:
            sent = peer.connection.send(unsent)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            self._close(peer)
            return False
        del unsent[:sent]
        return True

    def _watch(self, peer: _Peer, events: int) -> None:
        assert self._selector is not None
        if peer.events == events:
            return
        if peer.events:
            self._selector.modify(peer.connection, events, peer)
        else:
            self._selector.register(peer.connection, events, peer)
        peer.events = events

    def _close(self, peer: _Peer) -> None:
        if peer.events:
            assert self._selector is not None
            self._selector.unregister(peer.connection)
            peer.events = 0
        peer.connection.close()
        self._peers.pop(peer, None)
        self._unfinished.pop(peer, None)
        self._held -= peer.conversation.held
        if not self._is_listening and not self._stop.is_set():
            self._listen(True)

    def _listen(self, on: bool) -> None:
        """Accept new connections, or let them wait."""
        assert self._selector is not None
        if on is self._is_listening:
            return
        self._is_listening = on
        for listener in self._listeners:
            if on:
                self._selector.register(listener.socket, selectors.EVENT_READ, listener)
            else:
                self._selector.unregister(listener.socket)

    def _sweep(self, now: float) -> None:
        """Close connections that have taken too long."""
        self._next_sweep = now + SWEEP_SECONDS
        most = self._limits.timeout / HURRY if not self._is_listening else float("inf")
        for peer in list(self._peers):
            if now - peer.conversation.since >= min(most, peer.conversation.timeout):
                self._close(peer)
        if not self._is_listening and len(self._peers) < self._limits.max_connections:
            self._listen(True)
        if self._refused and now >= self._next_log:
            logger.warning("%d more refusals were not logged", self._refused)
            self._refused, self._next_log = 0, now + LOG_SECONDS

    def _log_refusal(self, text: str, what: object) -> None:
        """Log *text*, or only count it if there was a log line just before."""
        now = self.clock.monotonic()
        if now < self._next_log:
            self._refused += 1
            return
        self._next_log = now + LOG_SECONDS
        logger.warning(text, what)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()


# -- Admission: whether a job from the network is written, and to which spool directory --
# The pairs ``spooler``, ``at`` and ``priority`` are uWSGI's, and stay in the job. The server's configuration
# lists the directories; a client only chooses one of them.

_NUMBER = re.compile(rb"[0-9]{1,15}(\.[0-9]{0,15})?")
_FUNCTION = b"ud_spool_func"
_PICKLES = {b"args", b"kwargs"}


class Admission:
    """writers: of the directories that a client may choose; the first is the default."""

    def __init__(
        self,
        writers: Sequence[Writer],
        key: bytes | None,
        clock: Clock = SYSTEM_CLOCK,
        older_keys: Sequence[bytes] = (),
    ) -> None:
        self._writers = {os.fsencode(writer.path): writer for writer in reversed(writers)}
        self._default = writers[0] if writers else None
        self._key = key
        self._older_keys = tuple(older_keys)
        self._clock = clock

    def admit(self, request: ReceivedPacket, must_be_signed: bool) -> str:
        """Write the job, and return the name of its file, preceded by its priority.

        SpoolError with the reason when it is refused.
        """
        pairs = decode(request.packet).pairs
        is_signed = self._check_signature(pairs, request.body, must_be_signed)
        if _FUNCTION in pairs and not is_signed and _PICKLES & pairs.keys():
            raise SpoolError(
                "it has pickled arguments, which run code when they are read: over the network such a job "
                "must be signed with a key"
            )
        writer = self._writer(pairs.get(b"spooler", b""))
        priority = pairs.get(b"priority", b"")
        try:
            path = writer.write(
                cast(Pairs, pairs),
                request.body,
                at=_at(pairs),
                priority=priority,
                packet=b"" if is_signed else plain(request.packet),
            )
        except OSError as error:  # the next job may still be written
            raise SpoolError(f"it cannot be written: {error.strerror or error}") from error
        return path[len(writer.path) + 1 :]

    def _check_signature(self, pairs: dict[bytes, bytes], body: bytes, must_be_signed: bool) -> bool:
        """Return whether the job is signed; the signature is removed from its pairs."""
        if framing.PAIR not in pairs:
            if must_be_signed:
                raise SpoolError("it is not signed: send it with the key of this server")
            return False
        if self._key is None:
            raise SpoolError("it is signed, and this server has no key to check that: send it without a key")
        framing.check(pairs, body, (self._key, *self._older_keys), self._clock.now())
        del pairs[framing.PAIR]
        return True

    def _writer(self, name: bytes) -> Writer:
        writer = self._writers.get(name) if name else self._default
        if writer is None:
            raise SpoolError(
                f"there is no spool directory {safe_repr(name)} here: name one of the server's by its "
                "absolute path without links"
                if name
                else "there is no spool directory here"
            )
        return writer


def _at(pairs: dict[bytes, bytes]) -> float:
    text = pairs.get(b"at", b"")
    if text and not _NUMBER.fullmatch(text):
        raise SpoolError(f"its due time {safe_repr(text, 60)} is not in epoch seconds, such as 1900000000")
    return float(text or 0)


# -- Listening sockets: created with the right permissions, and removed afterwards --
# Thread: the one that starts and ends the server.

BACKLOG = 1024
"""Maximum connections that wait to be accepted."""
PROBE_SECONDS = 1.0


@dataclass(frozen=True)
class ListeningSocket:
    """file: device and inode of a UNIX socket with a path; process: the one that created it."""

    socket: socket.socket
    address: TcpAddress | UnixAddress
    file: tuple[int, int] | None = None
    process: int = 0

    @property
    def is_tcp(self) -> bool:
        return isinstance(self.address, TcpAddress)

    def close(self) -> None:
        """Stop listening, and remove the path, unless another process uses it by now."""
        self.socket.close()
        if self.file is not None and self.process == os.getpid():
            with suppress(OSError):
                found = os.lstat(str(self.address))
                if (found.st_dev, found.st_ino) == self.file:
                    os.unlink(str(self.address))


def listen(text: str, access: Access) -> ListeningSocket:
    """Listen on an address. Port 0 means any free one; the listener's address contains it.

    ConfigurationError when that fails, or when unauthorized clients could connect.
    """
    address = parse_address(text)
    try:
        if isinstance(address, TcpAddress):
            return _tcp(address, access)
        return _unix(address, access)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {address}: {error.strerror or error}; does another spooler use it, or does "
            "this user lack the permission?"
        ) from None


def _tcp(address: TcpAddress, access: Access) -> ListeningSocket:
    family, sockaddr, ip = resolved(address)
    access.check_listening(ip, address)
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(sockaddr)
        _open(listening)
    except BaseException:
        listening.close()
        raise
    return ListeningSocket(listening, TcpAddress(address.host, listening.getsockname()[1]))


def _unix(address: UnixAddress, access: Access) -> ListeningSocket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if address.abstract:
            listening.bind(address.sockaddr)
            _open(listening)
            return ListeningSocket(listening, address)
        _remove_stale(address)
        listening.bind(address.sockaddr)
        # Set the mode first: nobody can connect before it listens.
        os.chmod(address.name, 0o666 if access.for_others else 0o600)
        found = os.lstat(address.name)
        _open(listening)
    except BaseException:
        listening.close()
        raise
    return ListeningSocket(listening, address, (found.st_dev, found.st_ino), os.getpid())


def _open(listening: socket.socket) -> None:
    listening.listen(BACKLOG)
    listening.setblocking(False)


def _remove_stale(address: UnixAddress) -> None:
    """Remove a socket without a listener."""
    try:
        mode = os.lstat(address.name).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"{address} exists and is not a socket: name another path, or remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(address.sockaddr)
        except ConnectionRefusedError:
            os.unlink(address.name)
            return
        except TimeoutError:
            pass  # it has many waiting connections
    raise ConfigurationError(f"another process already listens on {address}: stop it, or name another path")
