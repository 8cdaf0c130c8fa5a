"""Signatures: a pair that shows that a job comes from somebody who has the key.

    qw_sig    1:EXPIRES:HEX

EXPIRES is in epoch seconds. HEX is the HMAC-SHA256, with the key, of these bytes: ``qworker spool 1``, a line
feed, EXPIRES, a line feed, the pairs as a packet in the order of their keys and without this one, and the
body.

It protects all pairs and the body: nobody without the key can make a job or change one. It hides nothing.
Who overhears a job can send it again, unchanged, until it expires, also to another server that has the key.
The clocks of both machines have to agree to within the same seconds.

Comes from:  ``client``, which signs.
Goes to:     ``admission``, which checks, and takes the pair away.
Thread:      any; nothing is kept.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping, Sequence

from qworker.errors import ConfigurationError, SpoolError
from qworker.safe_repr import safe_repr
from qworker.spooler.network.peers import SHORTEST_KEY
from qworker.spooler.packet import encode

PAIR = b"qw_sig"
VALID_SECONDS = 60
"""How long a signature is good for, and how far ahead its end may be."""
_DIGITS = 12
"""Digits of an end, at most."""


def signature(pairs: Mapping[bytes, bytes], body: bytes, key: bytes, now: float) -> bytes:
    """The value of the pair for a job that is sent *now*."""
    expires = b"%d" % (int(now) + VALID_SECONDS)
    return b"1:%b:%b" % (expires, _digest(pairs, body, key, expires))


def check(pairs: Mapping[bytes, bytes], body: bytes, keys: Sequence[bytes], now: float) -> None:
    """SpoolError when the job is signed with none of the keys, or was too long ago."""
    version, _, rest = pairs[PAIR].partition(b":")
    expires, _, digest = rest.partition(b":")
    if version != b"1" or not (expires.isdigit() and len(expires) <= _DIGITS):
        raise SpoolError(f"its signature cannot be read: {PAIR.decode()} is 1:EXPIRES:HEX")
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
    """The key in a file, without white space around it.

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
