"""Framing: how a packet stands on a socket, what is answered, and the limits.

    the packet    as in a file: modifier1 = 17, length, modifier2, pairs
    the answer    ff 00 00 01: enqueued; ff 00 00 00: refused. Then the server closes. It closes without an
                  answer when modifier1 is not 17, or when the pairs take more than buffer-size.

Bytes after the packet are ignored. With modifier2 = 1, our extension, it is:

    the packet    the same with modifier2 = 1, and then
    8 bytes       the length of the body, little-endian
    the body      which stands after the pairs in the file
    the answer    a packet of modifier1 = 255 with pairs. modifier2 = 1: enqueued, and ``name`` is the file's
                  name in its spool directory, with its priority before it. modifier2 = 0: refused, and
                  ``error`` says why.

and the connection stays open for the next packet. Answers come in the order of the packets. One without the
extension is the last: it is answered as above, and the server closes. It closes after an answer, too, when a
body was not read because it is too large.

Comes from:  the bytes on a socket.
Goes to:     ``receiving``, which takes requests, and ``client``, which makes them.
Thread:      any; nothing is kept.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from qworker.errors import ConfigurationError, InvalidPacket, SpoolError
from qworker.safe_repr import safe_repr
from qworker.spooler.packet import HEADER, LARGEST, decode, encode

EXTENDED = 1
"""modifier2 of a packet that has a body and leaves the connection open."""
BODY_LENGTH = 8
"""Bytes in which the length of a body is written."""
ANSWER = 255
"""modifier1 of an answer."""
ENQUEUED = b"\xff\0\0\1"
REFUSED = b"\xff\0\0\0"
LARGEST_ERROR = 1000
"""Characters of a reason that are sent."""


@dataclass(frozen=True)
class Limits:
    """What a server takes.

    - buffer_size: bytes that the pairs may take, uWSGI's ``buffer-size``; at most 65,535.
    - max_body: bytes of a body. All connections together may hold four times as much.
    - timeout: seconds until a packet has to be complete, uWSGI's ``socket-timeout``. A body gets a second
      more for each 64 KiB.
    - keep_alive: seconds that a connection may be silent after an answer.
    - max_connections: more than that wait until one of them ends; the silent ones then have a fraction of
      *timeout* left.
    - extension: whether modifier2 = 1 means a body and several packets.

    ConfigurationError when one of them is none.
    """

    buffer_size: int = LARGEST
    max_body: int = 64 * 1024 * 1024
    timeout: float = 4.0
    keep_alive: float = 60.0
    max_connections: int = 1000
    extension: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.buffer_size <= LARGEST:
            raise ConfigurationError(
                f"buffer_size is 1 to {LARGEST:,} bytes, not {safe_repr(self.buffer_size)}"
            )
        if self.max_body < 0 or self.max_connections < 1 or self.timeout <= 0 or self.keep_alive < 0:
            raise ConfigurationError(
                "max_body and keep_alive are not negative, timeout is more than 0 seconds, and "
                f"max_connections is at least 1: {self}"
            )


class Answer(NamedTuple):
    """What a server has said. name: of the file, when it was told; error: why it was refused."""

    enqueued: bool
    name: str | None = None
    error: str | None = None
    plain: bool = True


def extended(packet: bytes, body: bytes) -> bytes:
    """What is sent of an encoded *packet* and its body."""
    return b"%b\x01%b%b%b" % (packet[:3], packet[HEADER:], len(body).to_bytes(BODY_LENGTH, "little"), body)


def told(enqueued: bool, text: str) -> bytes:
    """The answer to an extended packet: the name of the file, or why there is none."""
    value = os.fsencode(text) if enqueued else text[:LARGEST_ERROR].encode(errors="backslashreplace")
    pairs = encode({"name" if enqueued else "error": value})
    return bytes((ANSWER, pairs[1], pairs[2], enqueued)) + pairs[HEADER:]


def answer_length(head: bytes) -> int:
    """How long the answer is that begins with these four bytes. SpoolError when it is none."""
    if head[0] != ANSWER or head[3] > 1:
        raise SpoolError(f"it answered {safe_repr(head)}, which no spooler does: is it one?")
    return HEADER + (head[1] | head[2] << 8)


def read_answer(image: bytes) -> Answer:
    """The whole answer. SpoolError when it is none."""
    if image in (ENQUEUED, REFUSED):
        return Answer(image == ENQUEUED)
    try:
        pairs = decode(image).pairs
    except InvalidPacket as error:
        raise SpoolError(f"its answer cannot be read: {error}") from None
    name, error_text = (pairs[key].decode(errors="surrogateescape") if key in pairs else None
                        for key in (b"name", b"error"))  # fmt: skip
    return Answer(bool(image[3]), name, error_text, plain=False)
