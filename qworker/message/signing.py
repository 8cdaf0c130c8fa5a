"""Signing: signs messages, results and orders by HMAC-SHA256, with keys known only to the app's processes.

Comes from:  publishing (sign), the worker's listener (verify), result stores (seal, unseal), control
             (orders); keys from the setting ``security_key``.
Goes to:     the header ``signature``: "v1:<key id>:<seconds>:<nonce>:<names>:<hex digest>"; the end of stored
             results; orders to revoke.
Thread:      any.

A signature covers the body, the headers that determine what runs, when, and where the result goes, and the
caller's headers, whose names are listed in it. Headers added later, by brokers and tracers, and those
beginning with ``x-``, which belong to brokers, are not signed. For rotation, the first key signs, and all
keys verify.

A copy of a signed message is as valid as the original. Copies are limited by `max_age`, by the message's
``expires``, and by the worker, which remembers the messages it holds or has finished (`replays`).
"""

from __future__ import annotations

import hmac
import json
import math
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from string import hexdigits
from typing import Any
from urllib.parse import quote, unquote

from qworker.clock import SYSTEM_CLOCK, Clock, to_epoch
from qworker.errors import ConfigurationError, SecurityError

HEADER = "signature"
SHORTEST_KEY = 16  # bytes
OURS = "qworker_"
"""Prefix of our own headers, the marks."""
SEAL = b"\0qworker-signature\0"
"""Separates a result from its signature."""

#: the signed headers of the protocol, which brokers do not change
SIGNED_HEADERS = (
    "task", "id", "eta", "expires", "retries", "timelimit", "root_id", "parent_id", "group", "group_index",
    "ignore_result", "replaced_task_nesting", "stamped_headers", "stamps", "compression",
)  # fmt: skip
SIGNED_PROPERTIES = ("content_type", "content_encoding", "reply_to")
# For display only, or changed in transit.
_UNSIGNED = frozenset(
    {*SIGNED_HEADERS, HEADER, "lang", "shadow", "origin", "argsrepr", "kwargsrepr", "redelivered"}
)
_MESSAGE, _RESULT, _ORDER = b"message\0", b"result\0", b"order\0"


class Signer:
    """Signs with the first of `keys` (texts of at least 16 bytes) and verifies with all of them.

    `max_age`: seconds after which messages are refused, counted from the ETA if there is one. None: no limit.
    ConfigurationError if there is no key or a key is too short.
    """

    def __init__(
        self, keys: Sequence[str], clock: Clock = SYSTEM_CLOCK, max_age: float | None = None
    ) -> None:
        secrets = [key.encode() for key in ([keys] if isinstance(keys, str) else keys)]
        if not secrets or min(map(len, secrets)) < SHORTEST_KEY:
            raise ConfigurationError(
                f"security_key needs at least one key of {SHORTEST_KEY} bytes or more; make one with python "
                "-c 'import secrets; print(secrets.token_urlsafe(32))'",
                setting="security_key",
            )
        self._keys = {key_id(secret): secret for secret in secrets}
        self._first = key_id(secrets[0])
        self._clock = clock
        self._max_age = max_age

    # -- messages --

    def sign(
        self, headers: Mapping[str, Any], body: bytes, properties: Mapping[str, Any] | None = None
    ) -> str:
        """Return the header ``signature``, which is unique."""
        own = sorted(name for name in headers if name not in _UNSIGNED and not name.startswith("x-"))
        names = ",".join(quote(name, safe="") for name in own)
        start = f"v1:{self._first}:{int(self._clock.now())}:{os.urandom(8).hex()}:{names}"
        return f"{start}:{self._digest(start, own, headers, body, properties)}"

    def verify(
        self, headers: Mapping[str, Any], body: bytes, properties: Mapping[str, Any] | None = None
    ) -> None:
        """Raise SecurityError, with the reason, if the header ``signature`` is invalid or too old."""
        age = self.age(headers, body, properties)
        if self._max_age is not None and age > self._max_age:
            raise SecurityError(
                f"the signature is {age:.0f} s old, but security_max_age is {self._max_age:g} s; `qworker "
                "dead retry` signs the message again"
            )

    def age(
        self, headers: Mapping[str, Any], body: bytes, properties: Mapping[str, Any] | None = None
    ) -> float:
        """Return the seconds since the message was signed, or since its ETA if that is later. SecurityError
        if the signature is invalid."""
        signature = headers.get(HEADER)
        if not isinstance(signature, str):
            raise SecurityError("the message is not signed, and this app has a security_key")
        start, _, digest = signature.rpartition(":")
        fields = start.split(":")
        if len(fields) != 5 or fields[0] != "v1" or not _is_second(fields[2]):
            raise SecurityError(f"not a signature: {signature!r:.80}")
        _, key, signed_at, _, names = fields
        if key not in self._keys:
            raise SecurityError(f"the message is signed with key {key!r:.20}, which is not in security_key")
        own = [unquote(name) for name in names.split(",")] if names else []
        for name in headers:
            if name.startswith(OURS) and name not in own:
                raise SecurityError(f"the header {name!r:.80} was added after the message was signed")
        expected = self._digest(start, own, headers, body, properties)
        if not _same(expected, digest):
            raise SecurityError(f"the signature of key {key} does not match: body or headers were changed")
        eta = headers.get("eta")
        return self._clock.now() - max(int(signed_at), to_epoch(eta) if eta else -math.inf)

    def _digest(
        self,
        start: str,
        own: Sequence[str],
        headers: Mapping[str, Any],
        body: bytes,
        properties: Mapping[str, Any] | None,
    ) -> str:
        given = properties or {}
        fields = [start, *(headers.get(name) for name in SIGNED_HEADERS)]
        fields += (given.get(name, _DEFAULTS.get(name)) for name in SIGNED_PROPERTIES)
        fields += (headers.get(name) for name in own)
        return self._mac(start.split(":")[1], _MESSAGE, fields, body)

    # -- results --

    def seal(self, data: bytes, *subject: str | None) -> bytes:
        """Return *data* followed by a signature of *data* and *subject*, such as the id of a result."""
        return b"%b%b%b" % (data, SEAL, self.signature(data, *subject).encode())

    def unseal(self, data: bytes, *subject: str | None) -> bytes:
        """Return the data sealed with the same *subject*; SecurityError if the signature is invalid."""
        unsealed, separator, signature = data.rpartition(SEAL)
        self.check(unsealed, signature if separator else b"", *subject)
        return unsealed

    def signature(self, data: bytes, *subject: str | None) -> str:
        """Return the signature that seal() appends to *data*, to be stored elsewhere."""
        return f"{self._first}:{self._mac(self._first, _RESULT, subject, data)}"

    def check(self, data: bytes, signature: bytes, *subject: str | None) -> None:
        """Raise SecurityError if *signature* is not valid for *data* and *subject*."""
        key, _, digest = signature.decode("latin-1").partition(":")
        if key not in self._keys:
            raise SecurityError(
                f"it is signed with key {key!r:.20}, which is not in security_key"
                if len(key) == 8 and set(key) <= set(hexdigits)
                else "it is not signed with a key of security_key"
            )
        if not _same(self._mac(key, _RESULT, subject, data), digest):
            raise SecurityError("its signature does not match")

    # -- orders --

    def sign_order(self, *fields: Any) -> str:
        """Return the signature of an order to workers, which consists of *fields*."""
        return f"{self._first}:{self._mac(self._first, _ORDER, fields, b'')}"

    def is_order(self, signature: str, *fields: Any) -> bool:
        """Return whether *signature* is valid for an order with *fields*."""
        key, _, digest = signature.partition(":")
        return key in self._keys and _same(self._mac(key, _ORDER, fields, b""), digest)

    def _mac(self, key: str, kind: bytes, fields: Sequence[Any], data: bytes) -> str:
        # JSON, because it is unambiguous; sorted, because brokers reorder tables.
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str)
        mac = hmac.new(self._keys[key], kind + text.encode() + b"\0", sha256)
        mac.update(data)
        return mac.hexdigest()


_DEFAULTS = {"content_type": "application/json", "content_encoding": "utf-8"}


def _is_second(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def _same(expected: str, digest: str) -> bool:
    return hmac.compare_digest(expected.encode(), digest.encode("utf-8", "backslashreplace"))


def key_id(secret: bytes) -> str:
    """Return the public name of a key: eight hex digits of its hash."""
    return sha256(b"qworker key id\0" + secret).hexdigest()[:8]
