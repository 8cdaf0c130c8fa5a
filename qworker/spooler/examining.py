"""Examining: what one spool file says, for people, whoever runs it.

Comes from:  ``administration``, with an opened file.
Goes to:     its pairs and the beginning of its body. Nothing is unpickled.
Thread:      any.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from qworker.errors import InvalidPacket, SpoolError
from qworker.spooler.packet import HEADER, LARGEST, decode

BEGINNING = 4096
"""Bytes of a body that are read."""


class Content(NamedTuple):
    """pairs: in the order of the file. beginning: of the body, which has body_length bytes. damage: why it is
    no packet; '' when it is one."""

    pairs: dict[bytes, bytes]
    beginning: bytes
    body_length: int
    damage: str = ""


def content(file: int) -> Content:
    """What the opened file says. SpoolError when it is not a plain file, OSError when it cannot be read."""
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise SpoolError("it is not a plain file")
    image = os.pread(file, HEADER + LARGEST + BEGINNING, 0)
    try:
        pairs, body = decode(image)
    except InvalidPacket as error:
        return Content({}, b"", 0, str(error))
    return Content(pairs, body[:BEGINNING], status.st_size - (len(image) - len(body)))
