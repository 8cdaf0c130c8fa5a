"""Conversation: a connection's input so far, its answers, and its time limit.

Comes from:  ``server``, with the received bytes.
Goes to:     ``server``, with each complete request; the answers go back to ``server``.
Thread:      the server's. It never waits, and does not use the socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qworker.errors import SpoolError
from qworker.spooler.files.packet import HEADER, MODIFIER1
from qworker.spooler.network.framing import (
    BODY_LENGTH,
    ENQUEUED,
    EXTENDED,
    REFUSED,
    Limits,
    encode_answer,
)

AT_ONCE = 16
"""Requests of one connection that are handled before those of others."""
SLOWEST = 65_536
"""Minimum bytes per second for a body."""
MOST_UNSENT = 65_536
"""Maximum bytes of answers that a client leaves unread before its further requests wait."""


class ReceivedPacket(NamedTuple):
    """packet: header and pairs. extended: whether it uses our extension."""

    packet: bytes
    body: bytes
    extended: bool


class Conversation:
    """admit: writes a job and returns the name of its file, or raises SpoolError.

    unsent: answers to send. ending: nothing more is read, and the connection is closed once all is sent.
    unread: the client may have sent more than was read. more: complete requests are left for the next call.
    since, timeout: start of the current wait, and its maximum in seconds.
    """

    def __init__(self, limits: Limits, admit: Callable[[ReceivedPacket], str], now: float) -> None:
        self.unsent = bytearray()
        self.ending = False
        self.unread = False
        self.more = False
        self.since = now
        self.timeout = limits.timeout
        self._limits = limits
        self._admit = admit
        self._incoming = bytearray()
        self._begun = True
        self._body_begun = False

    @property
    def held(self) -> int:
        """Bytes of incomplete requests."""
        return len(self._incoming)

    def received(self, data: bytes, now: float) -> None:
        """Add new data, perhaps none, and handle some of the complete requests."""
        if self.ending:
            return
        if not self._begun:
            self._begun = True
            self._wait(self._limits.timeout, now)
        self._incoming += data
        for _ in range(AT_ONCE):
            if self.ending or len(self.unsent) > MOST_UNSENT or not self._take(now):
                break
        self.more = not self.ending and bool(self._incoming) and self._is_complete()

    def refuse(self, reason: str, now: float) -> None:
        """Refuse an incomplete request, and read nothing more."""
        is_extended = self.held > HEADER - 1 and self._is_extended()
        self._answer(is_extended, False, reason, now)
        self._end(unread=True)

    def _take(self, now: float) -> bool:
        """Handle one request; False when none is complete."""
        incoming = self._incoming
        if incoming and incoming[0] != MODIFIER1:
            self._end()
            return False
        if len(incoming) < HEADER:
            return False
        packet_end = HEADER + (incoming[1] | incoming[2] << 8)
        if packet_end - HEADER > self._limits.buffer_size:
            self._end()
            return False
        is_extended = self._is_extended()
        end = packet_end
        if is_extended:
            if len(incoming) < packet_end + BODY_LENGTH:
                return False
            length = self._body_length(packet_end)
            end += BODY_LENGTH + length
            if length > self._limits.max_body:
                self.refuse(f"a body of {length:,} bytes: the maximum is {self._limits.max_body:,}", now)
                return False
            if not self._body_begun:
                self._body_begun = True
                self._wait(self._limits.timeout + length / SLOWEST, now)
        if len(incoming) < end:
            return False
        with memoryview(incoming) as view:
            body = bytes(view[packet_end + BODY_LENGTH : end]) if is_extended else b""
            request = ReceivedPacket(bytes(view[:packet_end]), body, is_extended)
        del incoming[:end]
        self._begun = bool(incoming)
        self._body_begun = False
        try:
            name = self._admit(request)
        except SpoolError as error:
            self._answer(is_extended, False, str(error), now)
        else:
            self._answer(is_extended, True, name, now)
        if not is_extended:
            self._end(unread=bool(incoming))
        return True

    def _is_complete(self) -> bool:
        """Return whether _take() can handle the data so far."""
        incoming = self._incoming
        if incoming[0] != MODIFIER1:
            return True
        if len(incoming) < HEADER:
            return False
        packet_end = HEADER + (incoming[1] | incoming[2] << 8)
        if packet_end - HEADER > self._limits.buffer_size:
            return True
        if not self._is_extended():
            return len(incoming) >= packet_end
        begin = packet_end + BODY_LENGTH
        return len(incoming) >= begin and len(incoming) >= begin + self._body_length(packet_end)

    def _is_extended(self) -> bool:
        return self._limits.extension and self._incoming[3] == EXTENDED

    def _body_length(self, begin: int) -> int:
        return int.from_bytes(self._incoming[begin : begin + BODY_LENGTH], "little")

    def _answer(self, is_extended: bool, enqueued: bool, text: str, now: float) -> None:
        plain = ENQUEUED if enqueued else REFUSED
        self.unsent += encode_answer(enqueued, text) if is_extended else plain
        self._wait(self._limits.timeout if self._incoming else self._limits.keep_alive, now)

    def _wait(self, seconds: float, now: float) -> None:
        self.since, self.timeout = now, seconds

    def _end(self, unread: bool = False) -> None:
        self.ending, self.unread = True, unread
        self.more = False
        self._incoming.clear()
