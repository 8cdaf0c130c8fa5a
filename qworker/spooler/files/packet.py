"""The packet: uWSGI's encoding of pairs of bytes, in a spool file or on a socket.

    byte 0        modifier1: 17, "for the spooler"
    bytes 1, 2    how many bytes the pairs take, little-endian
    byte 3        modifier2: 0
    the pairs     length of the key (2 bytes, little-endian), key, length of the value, value; and so on
    the body      of a file: whatever follows, up to its end.

Comes from:  ``writing``, which has the pairs of a new job; ``claiming``, which has read a file.
Goes to:     the bytes of a spool file; the pairs and the body of a job.
Thread:      any; stateless.

A reader ignores both modifiers, as uWSGI's does. A length is checked before it is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from typing import NamedTuple, TypeAlias

from qworker.errors import InvalidPacket, SpoolError
from qworker.safe_repr import safe_repr

MODIFIER1 = 17
HEADER = 4
"""Bytes before the pairs."""
LARGEST = 65_535
"""Maximum bytes of the pairs of one packet, with their lengths."""

_SHORT = tuple(length.to_bytes(2, "little") for length in range(256))
"""Most lengths, as encoded in a packet."""

Text: TypeAlias = "str | bytes | bytearray | memoryview"
Pairs: TypeAlias = "Mapping[str | bytes, Text | int]"
"""Pairs to write: text is encoded as UTF-8, and numbers in decimal."""


class Packet(NamedTuple):
    """A decoded packet. For a repeated key, ``pairs`` has the last value."""

    pairs: dict[bytes, bytes]
    body: bytes


def encode(pairs: Pairs) -> bytes:
    """Encode *pairs*, which may be empty; a body is written after them.

    SpoolError when a key is empty, when a key or value is not text, bytes or a whole number, and when the
    pairs take more than 65,535 bytes. Nothing is truncated.
    """
    plain: dict[bytes, bytes] = {}
    for name, content in pairs.items():
        key = name if name.__class__ is bytes else _bytes(name, "key", name)
        plain[key] = content if content.__class__ is bytes else _bytes(content, "value", name)
    parts = [b""]
    size = 0
    for key, value in plain.items():
        if not key:
            raise SpoolError("a pair has an empty key, which no spooler reads: give it a name")
        in_key, in_value = len(key), len(value)
        size += 4 + in_key + in_value
        if size > LARGEST:
            raise SpoolError(
                f"the pairs take more than {LARGEST:,} bytes, from the one of {safe_repr(key)} on "
                f"({len(value):,} bytes): pass large data as the body, which has no limit"
            )
        parts += (
            _SHORT[in_key] if in_key < 256 else in_key.to_bytes(2, "little"),
            key,
            _SHORT[in_value] if in_value < 256 else in_value.to_bytes(2, "little"),
            value,
        )
    parts[0] = bytes((MODIFIER1, size & 255, size >> 8, 0))
    return b"".join(parts)


def _bytes(value: object, part: str, key: object) -> bytes:
    """Return *value* as encoded in a packet. *part* and *key* are for the error."""
    if value.__class__ is bytes:
        return value
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, int) and not isinstance(value, bool):
            return b"%d" % value
    except ValueError as error:  # a lone surrogate, or thousands of digits
        raise SpoolError(f"the {part} of the pair {safe_repr(key)} cannot be written: {error}") from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = ": leave the pair out, or pass an empty text" if value is None else ""
    raise SpoolError(
        f"the {part} of the pair {safe_repr(key)} is of type {type(value).__name__}; "
        f"only text, bytes and whole numbers can be written{hint}"
    )


def decode(image: bytes) -> Packet:
    """Decode the packet at the beginning of *image*, the bytes of a whole spool file, and the body after it.

    InvalidPacket when it is shorter than its lengths say, or has an empty key. The file may be incomplete
    because it is still being written.
    """
    if len(image) < HEADER:
        raise InvalidPacket(f"it ends at byte {len(image)}, within the header of {HEADER} bytes")
    end = HEADER + (image[1] | image[2] << 8)
    if len(image) < end:
        raise InvalidPacket(f"it ends at byte {len(image)}, but by its header the pairs end at {end}")
    pairs: dict[bytes, bytes] = {}
    position = HEADER
    try:
        # Each step goes forward, so all were within the pairs if the last one ends where these end.
        while position < end:
            key_begin = position + 2
            key_end = key_begin + (image[position] | image[position + 1] << 8)
            value_begin = key_end + 2
            position = value_begin + (image[key_end] | image[key_end + 1] << 8)
            pairs[image[key_begin:key_end]] = image[value_begin:position]
    except IndexError:
        position = -1
    if position != end or b"" in pairs:
        raise _invalid(image, end)
    return Packet(pairs, image[end:])


def plain(packet: bytes) -> bytes:
    """Convert a packet from a socket to the form of a spool file, with the file's modifiers."""
    head = bytes((MODIFIER1, packet[1], packet[2], 0))
    return packet if packet.startswith(head) else head + packet[HEADER:]


def _invalid(image: bytes, end: int) -> InvalidPacket:
    """Return the error in the pairs of *image*, which should end at *end*."""
    position = HEADER
    while True:
        key_begin = position + 2
        if key_begin > end:
            return InvalidPacket(f"the pairs end at byte {end}, within the length of a key")
        key_end = key_begin + (image[position] | image[position + 1] << 8)
        value_begin = key_end + 2
        if key_end == key_begin:
            return InvalidPacket(f"the key at byte {key_begin} is empty")
        if value_begin > end:
            return InvalidPacket(f"the key at byte {key_begin} goes to {key_end}, and the pairs end at {end}")
        position = value_begin + (image[key_end] | image[key_end + 1] << 8)
        if position > end:
            return InvalidPacket(
                f"the value at byte {value_begin} goes to {position}, and the pairs end at {end}"
            )


# -- Names of spool files and priorities, and their order --
# The natural order is that of versions: runs of digits compare as numbers, and a run that begins with a zero
# as the digits of a fraction, so 000, 00, 01, 010, 09, 0, 1, 9, 10. It is the order of an ordered spooler of
# uWSGI.

PREFIX = "uwsgi_spoolfile_on_"
"""The prefix of every job's name. Files with other names are not jobs, and are ignored."""
TEMPORARY = ".qw-tmp-"
"""The prefix of files that are being written."""
DEAD = ".qw-dead"
"""The directory within a spool directory for jobs that were set aside."""
LONGEST = 255
"""Maximum bytes of a file name."""

_counter = count(1)  # next() is atomic: no two threads get the same number
_digits = re.compile(rb"[0-9]+")


def job_name(now: float) -> str:
    """Return a name for a new job: host, process, counter, random number, seconds, microseconds."""
    chance = int.from_bytes(os.urandom(4), "little") >> 1
    seconds, microseconds = divmod(int(now * 1_000_000), 1_000_000)
    return f"{_beginning(os.getpid())}{next(_counter)}_{chance}_{seconds}_{microseconds}"


@lru_cache(maxsize=1)
def _beginning(process: int) -> str:
    """Return prefix, host and process, the same for all jobs of a process."""
    return f"{PREFIX}{os.uname().nodename.replace('/', '_')}_{process}_"


def natural_key(name: str) -> bytes:
    """Return a sort key for *name*, for natural order."""
    return _digits.sub(_number_key, os.fsencode(name))


def _number_key(match: re.Match[bytes]) -> bytes:
    digits = match[0]
    if digits[0] != 48:
        return b"1" + len(digits).to_bytes(2, "big") + digits  # the longer number is the larger
    # A run of zeros alone comes after those that go on; ":" is the byte after "9".
    return digits if digits.strip(b"0") else digits + b":"


def path_key(path: str) -> tuple[bytes, ...]:
    """Return a sort key for a path within a spool directory; directories are sorted by their names."""
    return tuple(map(natural_key, path.split("/")))


def is_priority(name: str) -> bool:
    """Return whether *name*, of a directory, is that of a priority, which an ordered spooler enters: only
    digits."""
    return name.isascii() and name.isdigit()


def job_path(name: str) -> str:
    """Return the path of a job within its spool directory, given its displayed name: the name of its file,
    after its priority and a slash if it has one. The path cannot lead outside.

    SpoolError when it is not such a name.
    """
    *folders, own = name.split("/")
    fits = own.startswith(PREFIX) and all(map(is_priority, folders)) and "\0" not in name
    if not fits or any(len(os.fsencode(part)) > LONGEST for part in (*folders, own)):
        raise SpoolError(
            f"{safe_repr(name)} is not the name of a job, such as {PREFIX}HOST_1_2 or, with its priority, "
            f"10/{PREFIX}HOST_1_2: copy a name from `qworker spool ls`"
        )
    return name


def priority_name(priority: str | bytes | int, *, words: bool = False) -> str:
    """Return the directory for jobs of *priority*; '' for none. words: names that are not numbers are
    allowed, too.

    SpoolError for a name that is not allowed, or could lead elsewhere.
    """
    name = os.fsdecode(priority) if isinstance(priority, bytes) else str(priority)
    if not name or is_priority(name):
        fits = len(name) <= LONGEST
    else:
        fits = (
            words
            and not name.startswith((".", PREFIX))
            and "/" not in name
            and "\0" not in name
            and len(name.encode(errors="surrogateescape")) <= LONGEST
        )
    if not fits:
        allowed = "a plain name without '/' that begins with no dot" if words else "digits, such as 1 or 10"
        raise SpoolError(f"a priority is the name of a directory: {allowed}, not {safe_repr(name)}")
    return name


# -- Reading an opened spool file; large bodies only on demand --

HEAD_BYTES = HEADER + LARGEST
"""The maximum length of a packet; the body follows it."""


class Head(NamedTuple):
    """start: byte at which the body begins. body: the whole body; None when it was not read."""

    pairs: dict[bytes, bytes]
    start: int
    body: bytes | None


def read_head(file: int, size: int) -> Head:
    """Read the packet at the beginning of the file of *size* bytes. InvalidPacket when it is not one."""
    image = os.pread(file, min(size, HEAD_BYTES), 0)
    pairs, body = decode(image)
    return Head(pairs, len(image) - len(body), body if len(image) >= size else None)


def read_body(file: int, start: int) -> bytes:
    """Read the file from byte *start* to its end."""
    parts: list[bytes] = []
    while part := os.pread(file, 1 << 24, start):  # a system reads 2 GB at a time
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def read_whole(file: int) -> Packet:
    """Read the whole file. InvalidPacket when it is not a packet."""
    head = read_head(file, os.fstat(file).st_size)
    return Packet(head.pairs, read_body(file, head.start) if head.body is None else head.body)
