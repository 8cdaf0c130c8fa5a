"""The packet: pairs of bytes in the form that uWSGI gives them, in a spool file or on a socket.

    byte 0        modifier1: 17, "for the spooler"
    bytes 1, 2    how many bytes the pairs take, little-endian
    byte 3        modifier2: 0
    the pairs     length of the key (2 bytes, little-endian), key, length of the value, value; and so on
    the body      of a file: whatever follows, up to its end.

Comes from:  ``writing``, which has the pairs of a new job; ``claiming``, which has read a file.
Goes to:     the bytes of a spool file; the pairs and the body of a job.
Thread:      any; nothing is kept.

A reader looks at neither modifier, as uWSGI's does not. A length is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from qworker.errors import InvalidPacket, SpoolError
from qworker.safe_repr import safe_repr

MODIFIER1 = 17
HEADER = 4
"""Bytes before the pairs."""
LARGEST = 65_535
"""Bytes that the pairs of one packet may take, with their lengths."""

_SHORT = tuple(length.to_bytes(2, "little") for length in range(256))
"""Most lengths, as they stand in a packet."""

Text: TypeAlias = "str | bytes | bytearray | memoryview"
Pairs: TypeAlias = "Mapping[str | bytes, Text | int]"
"""What a caller may write: text is encoded as UTF-8, and a number is written in decimal."""


class Packet(NamedTuple):
    """What was read. Of a key that was there twice, ``pairs`` has the last value."""

    pairs: dict[bytes, bytes]
    body: bytes


def encode(pairs: Pairs) -> bytes:
    """The packet of *pairs*, which may be empty; a body is written after it.

    SpoolError when a key is empty, when a key or value is neither text, bytes nor a whole number, and when
    the pairs take more than 65,535 bytes. Nothing is ever cut.
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
                f"({len(value):,} bytes): pass what is large as the body, which has no limit"
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
    """*value* as it stands in a packet; *part* of the pair of *key* it is, for the error."""
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
    """The packet at the beginning of *image*, the bytes of a whole spool file, and the body after it.

    InvalidPacket when it ends before its own lengths say, or has an empty key. It may be a file that
    somebody is still writing.
    """
    if len(image) < HEADER:
        raise InvalidPacket(f"it ends at byte {len(image)}, inside of the header's {HEADER}")
    end = HEADER + (image[1] | image[2] << 8)
    if len(image) < end:
        raise InvalidPacket(f"it ends at byte {len(image)}, and its header says that the pairs go to {end}")
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
    """A packet that came over a socket, as it stands in a spool file: its modifiers are the file's."""
    head = bytes((MODIFIER1, packet[1], packet[2], 0))
    return packet if packet.startswith(head) else head + packet[HEADER:]


def _invalid(image: bytes, end: int) -> InvalidPacket:
    """What is wrong with the pairs of *image*, which are to go to *end*."""
    position = HEADER
    while True:
        key_begin = position + 2
        if key_begin > end:
            return InvalidPacket(f"the pairs end at byte {end}, inside of a key's length")
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
