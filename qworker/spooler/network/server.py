"""SpoolServer: takes uwsgi packets on sockets and writes them as jobs.

Comes from:  any client of uWSGI's protocol, on the addresses that were given.
Goes to:     spool files, through ``admission``.
Thread:      its own, which never waits for one client: what is not there yet is come back to.

An answer is given when the job is written, and no sooner; so a server that dies has lost nothing that it
promised. A client that has gone before its answer has a job all the same.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.components.component import ThreadComponent
from qworker.errors import SpoolError
from qworker.spooler.network.admission import Admission
from qworker.spooler.network.framing import Limits
from qworker.spooler.network.listening import Listener, listen
from qworker.spooler.network.peers import Access
from qworker.spooler.network.receiving import Conversation, Request
from qworker.spooler.packet import HEADER, LARGEST
from qworker.spooler.writing import Writer
from qworker.transports.wakeup import WakeupPipe

logger = logging.getLogger(__name__)

RECEIVE = HEADER + LARGEST
"""Bytes that are received at once: the largest packet."""
ACCEPT = 64
"""Connections that are taken before those that are there have their turn."""
SWEEP_SECONDS = 0.25
"""Between two looks for clients that took too long."""
LINGER_SECONDS = 1.0
"""For how long what a client still says is thrown away, so that the answer is not lost with it."""
HURRY = 8
"""The part of their time that clients have while there are too many."""
TELL_SECONDS = 1.0
"""Between two lines of the log about refusals."""


def _say_crashed(name: str, error: BaseException) -> None:
    logger.error("the %s has crashed", name, exc_info=error)


class _Peer:
    """One connection. events: what is waited for. ended: the client says no more. lingers: nor do we."""

    __slots__ = ("connection", "conversation", "ended", "events", "lingers")

    def __init__(self, connection: socket.socket, conversation: Conversation) -> None:
        self.connection = connection
        self.conversation = conversation
        self.events = 0
        self.ended = False
        self.lingers = False


class SpoolServer(ThreadComponent):
    """addresses: see ``addresses``. writers: of the directories that jobs may go to, the first by default.

    ``addresses`` says, once it has started, where it listens. While it is quiet it still takes jobs: they
    are files, and wait for whoever runs them next.
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
        on_crash: Callable[[str, BaseException], None] = _say_crashed,
    ) -> None:
        super().__init__(clock, on_crash)
        self.addresses = list(addresses)
        self._limits = limits or Limits()
        self._access = access or Access()
        self._admission = Admission(writers, self._access.key, clock, self._access.older_keys)
        self._most_held = 4 * self._limits.max_body + self._limits.max_connections * 2 * RECEIVE
        self._wakeup = WakeupPipe()
        self._listeners: list[Listener] = []
        # Of the thread, from here on.
        self._selector: selectors.BaseSelector | None = None
        self._ready: list[tuple[selectors.SelectorKey, int]] = []
        self._peers: dict[_Peer, None] = {}
        self._unfinished: dict[_Peer, None] = {}
        self._held = 0
        self._is_listening = False
        self._next_sweep = 0.0
        self._refused = 0
        self._next_tell = 0.0

    # -- any thread --

    def start(self) -> None:
        """ConfigurationError when one of the addresses cannot be listened on; then none is."""
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
        logger.info("taking jobs on %s", ", ".join(self.addresses))

    def wake(self) -> None:
        super().wake()
        self._wakeup.wake()

    # -- its own --

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
                case Listener() as listener:
                    callers.append(listener)
                case _:
                    self._wakeup.clear()
        for peer in list(self._unfinished):
            self._hear(peer.conversation, b"", now)
            self._settle(peer, now)
        for listener in callers:
            self._accept(listener, now)
        if now >= self._next_sweep:
            self._sweep(now)
        if self._unfinished:
            return 0
        return SWEEP_SECONDS if self._peers or not self._is_listening or self._refused else None

    def _accept(self, listener: Listener, now: float) -> None:
        for _ in range(ACCEPT):
            if len(self._peers) >= self._limits.max_connections:
                self._listen(False)
                return
            try:
                connection, address = listener.socket.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it has gone already
            except OSError as error:
                logger.warning("no more connections can be taken at the moment: %s", error.strerror)
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
            self._turn(peer, now)  # most have said all that they have to say

    def _is_allowed(self, listener: Listener, connection: socket.socket, address: object) -> bool:
        if not listener.is_tcp:
            if self._access.allows_user(connection):
                return True
            self._tell("a user who may not send jobs to it has connected to %s", listener.address)
            return False
        assert isinstance(address, tuple)
        if self._access.allows_ip(address[0]):
            return True
        self._tell("%s has connected, which is in no network that may send jobs", address[0])
        return False

    def _admit(self, must_be_signed: bool, request: Request) -> str:
        try:
            return self._admission.admit(request, must_be_signed)
        except SpoolError as error:
            self._tell("a job was refused: %s", error)
            raise

    def _turn(self, peer: _Peer, now: float) -> None:
        """Receive what there is, unless the client has to take its answers first."""
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
                self._hear(conversation, data, now)
            elif data is not None:
                peer.ended = True
        self._settle(peer, now)

    def _hear(self, conversation: Conversation, data: bytes, now: float) -> None:
        """Take what has come, and what of it was left for now."""
        before = conversation.held
        conversation.received(data, now)
        self._held += conversation.held - before
        if self._held > self._most_held and conversation.held:
            self._held -= conversation.held
            conversation.refuse("too many large bodies come at the same time: try again later", now)

    def _settle(self, peer: _Peer, now: float) -> None:
        """Send what is to be sent, and find out what comes next."""
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
                conversation.since, conversation.patience = now, LINGER_SECONDS
            self._watch(peer, selectors.EVENT_READ)

    def _send(self, peer: _Peer) -> bool:
        """Send some of the answers. False when the client has gone."""
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
        """Have new connections, or leave them to wait."""
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
        """Close what has taken too long."""
        self._next_sweep = now + SWEEP_SECONDS
        most = self._limits.timeout / HURRY if not self._is_listening else float("inf")
        for peer in list(self._peers):
            if now - peer.conversation.since >= min(most, peer.conversation.patience):
                self._close(peer)
        if not self._is_listening and len(self._peers) < self._limits.max_connections:
            self._listen(True)
        if self._refused and now >= self._next_tell:
            logger.warning("%d more were refused", self._refused)
            self._refused, self._next_tell = 0, now + TELL_SECONDS

    def _tell(self, text: str, what: object) -> None:
        """Log it, unless there was a line just now: then count it."""
        now = self.clock.monotonic()
        if now < self._next_tell:
            self._refused += 1
            return
        self._next_tell = now + TELL_SECONDS
        logger.warning(text, what)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
