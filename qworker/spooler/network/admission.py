"""Admission: whether a job that came over the network is written, and into which spool directory.

Comes from:  ``receiving``, with a complete request.
Goes to:     the Writer of a directory.
Thread:      the server's.

The pairs ``spooler``, ``at`` and ``priority`` are uWSGI's, and stay in the job. Which directories there are
is our choice, and a client's is only which of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import cast

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.errors import SpoolError
from qworker.safe_repr import safe_repr
from qworker.spooler.network import signed
from qworker.spooler.network.receiving import Request
from qworker.spooler.packet import Pairs, decode, plain
from qworker.spooler.writing import Writer

_NUMBER = re.compile(rb"[0-9]{1,15}(\.[0-9]{0,15})?")
_FUNCTION = b"ud_spool_func"
_PICKLES = {b"args", b"kwargs"}


class Admission:
    """writers: of the directories that a client may choose; the first is for jobs that name none."""

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

    def admit(self, request: Request, must_be_signed: bool) -> str:
        """Write the job, and return the name of its file, with its priority before it.

        SpoolError says why it is refused.
        """
        pairs = decode(request.packet).pairs
        is_signed = self._check_signature(pairs, request.body, must_be_signed)
        if _FUNCTION in pairs and not is_signed and _PICKLES & pairs.keys():
            raise SpoolError(
                "it has pickled arguments, which run code when they are read: over the network they have to "
                "be signed with a key"
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
        except OSError as error:  # whatever it was, the next job may be written
            raise SpoolError(f"it cannot be written: {error.strerror or error}") from error
        return path[len(writer.path) + 1 :]

    def _check_signature(self, pairs: dict[bytes, bytes], body: bytes, must_be_signed: bool) -> bool:
        """Whether the job is signed; the signature is taken out of its pairs."""
        if signed.PAIR not in pairs:
            if must_be_signed:
                raise SpoolError("it is not signed: send it with the key of this server")
            return False
        if self._key is None:
            raise SpoolError("it is signed, and this server has no key to check that: send it without a key")
        signed.check(pairs, body, (self._key, *self._older_keys), self._clock.now())
        del pairs[signed.PAIR]
        return True

    def _writer(self, name: bytes) -> Writer:
        writer = self._writers.get(name) if name else self._default
        if writer is None:
            raise SpoolError(
                f"there is no spool directory {safe_repr(name)} here: a client names one of the server's by "
                "its whole path without links"
                if name
                else "there is no spool directory here"
            )
        return writer


def _at(pairs: dict[bytes, bytes]) -> float:
    text = pairs.get(b"at", b"")
    if text and not _NUMBER.fullmatch(text):
        raise SpoolError(f"it is due at {safe_repr(text, 60)}, which are no epoch seconds such as 1900000000")
    return float(text or 0)
