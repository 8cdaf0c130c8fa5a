"""Framing: packets on a socket, answers, and the limits.

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
Goes to:     ``receiving``, which reads requests, and ``client``, which sends them.
Thread:      any; stateless.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from qworker.errors import ConfigurationError, InvalidPacket, SpoolError
from qworker.safe_repr import safe_repr
from qworker.spooler.files.packet import HEADER, LARGEST, decode, encode
from qworker.spooler.network.peers import SHORTEST_KEY

EXTENDED = 1
"""modifier2 of a packet that has a body and leaves the connection open."""
BODY_LENGTH = 8
"""Bytes of the length of a body."""
ANSWER = 255
"""modifier1 of an answer."""
ENQUEUED = b"\xff\0\0\1"
REFUSED = b"\xff\0\0\0"
LARGEST_ERROR = 1000
"""Maximum characters of an error in an answer."""


@dataclass(frozen=True)
class Limits:
    """The limits of a server.

    - buffer_size: maximum bytes of the pairs, uWSGI's ``buffer-size``; at most 65,535.
    - max_body: maximum bytes of a body. All connections together may hold four times as much.
    - timeout: seconds until a packet must be complete, uWSGI's ``socket-timeout``. A body gets an additional
      second for each 64 KiB.
    - keep_alive: seconds that a connection may be silent after an answer.
    - max_connections: further clients wait until a connection ends; meanwhile silent ones get a fraction of
      *timeout*.
    - extension: whether modifier2 = 1 means a body and several packets.

    ConfigurationError when one of them is invalid.
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
                f"buffer_size must be 1 to {LARGEST:,} bytes, not {safe_repr(self.buffer_size)}"
            )
        if self.max_body < 0 or self.max_connections < 1 or self.timeout <= 0 or self.keep_alive < 0:
            raise ConfigurationError(
                "max_body and keep_alive must not be negative, timeout must be above 0 seconds, and "
                f"max_connections at least 1: {self}"
            )


class Answer(NamedTuple):
    """The server's answer. name: of the file, if returned; error: why it was refused."""

    enqueued: bool
    name: str | None = None
    error: str | None = None
    plain: bool = True


def extended(packet: bytes, body: bytes) -> bytes:
    """Return the message to send for an encoded *packet* and its body."""
    return b"%b\x01%b%b%b" % (packet[:3], packet[HEADER:], len(body).to_bytes(BODY_LENGTH, "little"), body)


def encode_answer(enqueued: bool, text: str) -> bytes:
    """Return the encoded answer to an extended packet. text: the name of the file, or the error."""
    value = os.fsencode(text) if enqueued else text[:LARGEST_ERROR].encode(errors="backslashreplace")
    pairs = encode({"name" if enqueued else "error": value})
    return bytes((ANSWER, pairs[1], pairs[2], enqueued)) + pairs[HEADER:]


def answer_length(head: bytes) -> int:
    """Return the length of the answer that begins with the four bytes *head*. SpoolError when it is
    invalid."""
    if head[0] != ANSWER or head[3] > 1:
        raise SpoolError(f"it answered {safe_repr(head)}, so it is not a spooler")
    return HEADER + (head[1] | head[2] << 8)


def read_answer(image: bytes) -> Answer:
    """Parse a complete answer. SpoolError when it is invalid."""
    if image in (ENQUEUED, REFUSED):
        return Answer(image == ENQUEUED)
    try:
        pairs = decode(image).pairs
    except InvalidPacket as error:
        raise SpoolError(f"its answer cannot be read: {error}") from None
    name, error_text = (pairs[key].decode(errors="surrogateescape") if key in pairs else None
                        for key in (b"name", b"error"))  # fmt: skip
    return Answer(bool(image[3]), name, error_text, plain=False)


# -- Signatures: a pair that proves that the sender has the key --
# The pair is ``qw_sig``, with the value ``1:EXPIRES:HEX``. EXPIRES is in epoch seconds. HEX is the HMAC-
# SHA256, with the key, of these bytes: ``qworker spool 1``, a line feed, EXPIRES, a line feed, the pairs as a
# packet in the order of their keys and without this one, and the body. It protects all pairs and the body:
# nobody without the key can create or change a job. It does not encrypt. Eavesdroppers can send a job again,
# unchanged, until it expires, also to another server with the same key. The clocks of both machines may
# differ by VALID_SECONDS.

PAIR = b"qw_sig"
VALID_SECONDS = 60
"""How long a signature is valid, and by how much clocks may differ."""
_DIGITS = 12
"""Maximum digits of EXPIRES."""


def signature(pairs: Mapping[bytes, bytes], body: bytes, key: bytes, now: float) -> bytes:
    """Return the value of the pair for a job that is sent *now*."""
    expires = b"%d" % (int(now) + VALID_SECONDS)
    return b"1:%b:%b" % (expires, _digest(pairs, body, key, expires))


def check(pairs: Mapping[bytes, bytes], body: bytes, keys: Sequence[bytes], now: float) -> None:
    """Raise SpoolError if the job is not signed with one of the keys, or its signature has expired."""
    version, _, rest = pairs[PAIR].partition(b":")
    expires, _, digest = rest.partition(b":")
    if version != b"1" or not (expires.isdigit() and len(expires) <= _DIGITS):
        raise SpoolError(f"its signature cannot be read: {PAIR.decode()} must be 1:EXPIRES:HEX")
    if not any(hmac.compare_digest(_digest(pairs, body, key, expires), digest) for key in keys):
        raise SpoolError("its signature is wrong: it was made with another key, or the job was changed since")
    left = int(expires) - now
    if not 0 <= left <= 2 * VALID_SECONDS:  # a clock that is ahead by as long
        raise SpoolError("its signature has expired, or the clocks of the two machines differ")


def _digest(pairs: Mapping[bytes, bytes], body: bytes, key: bytes, expires: bytes) -> bytes:
    packet = encode({name: pairs[name] for name in sorted(pairs) if name != PAIR})
    mac = hmac.new(key, b"qworker spool 1\n%b\n%b" % (expires, packet), hashlib.sha256)
    mac.update(body)
    return mac.hexdigest().encode()


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Return the key in a file, without surrounding white space.

    ConfigurationError when it cannot be read, is too short, or others may read it.
    """
    shown = safe_repr(os.fspath(path))
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(64 * 1024).strip()
    except (OSError, ValueError) as error:  # a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"the key file {shown} cannot be read: {reason}") from None
    if stat.S_ISREG(mode) and mode & stat.S_IRWXO:
        raise ConfigurationError(f"everybody may read or change the key file {shown}: chmod o= {shown}")
    if len(key) < SHORTEST_KEY:
        raise ConfigurationError(
            f"the key in {shown} has {len(key)} bytes: write at least {SHORTEST_KEY}, chosen at random, with "
            f"head -c 32 /dev/urandom | base64 > {shown}"
        )
    return key
