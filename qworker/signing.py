"""Signed messages: HMAC-SHA256 over the body and every header that decides what runs, and when.

Comes from:  protocol.encode (sign), protocol.decode_body (verify); keys from the setting ``security_key``.
Goes to:     the header ``signature``: "v1:<key id>:<seconds>:<hex digest>".
Thread:      any.
Keys rotate: the first signs, all verify. Replays are bounded by the signed id (deduplicated by the worker),
the signed ``expires``, and `max_age`.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from qworker.clock import SYSTEM_CLOCK, Clock, to_epoch
from qworker.errors import ConfigurationError, SecurityError

HEADER = "signature"
SHORTEST_KEY = 16  # bytes

#: what is signed besides the body; headers a broker adds or changes are not among them
SIGNED_HEADERS = (
    "task", "id", "eta", "expires", "retries", "timelimit", "root_id", "parent_id", "group", "group_index",
    "ignore_result", "replaced_task_nesting", "stamped_headers", "stamps", "compression",
)  # fmt: skip
SIGNED_PROPERTIES = ("content_type", "content_encoding", "reply_to")


class Signer:
    """Signs with the first of `keys` (texts of at least 16 bytes) and verifies with any of them.

    `max_age` in seconds refuses older signatures (None: no limit; an ETA task counts from its ETA).
    ConfigurationError when there is no key or one is too short.
    """

    def __init__(
        self, keys: Sequence[str], clock: Clock = SYSTEM_CLOCK, max_age: float | None = None
    ) -> None:
        secrets = [key.encode() for key in ([keys] if isinstance(keys, str) else keys)]
        if not secrets or min(map(len, secrets)) < SHORTEST_KEY:
            raise ConfigurationError(
                f"security_key needs at least one key of {SHORTEST_KEY} bytes or more; make one with "
                "python -c 'import secrets; print(secrets.token_urlsafe(32))'",
                setting="security_key",
            )
        self._keys = {key_id(secret): secret for secret in secrets}
        self._first = key_id(secrets[0])
        self._clock = clock
        self._max_age = max_age

    def sign(
        self, headers: Mapping[str, Any], body: bytes, properties: Mapping[str, Any] | None = None
    ) -> str:
        """Signature for the header ``signature``."""
        signed_at = str(int(self._clock.now()))
        return (
            f"v1:{self._first}:{signed_at}:{self._digest(self._first, signed_at, headers, body, properties)}"
        )

    def verify(
        self, headers: Mapping[str, Any], body: bytes, properties: Mapping[str, Any] | None = None
    ) -> None:
        """Return if the header ``signature`` is ours; SecurityError, saying why, if not."""
        signature = headers.get(HEADER)
        if not isinstance(signature, str):
            raise SecurityError("the message is not signed, and this app has a security_key")
        version, key, signed_at, digest = (*signature.split(":"), "", "", "", "")[:4]
        if version != "v1" or not (signed_at.isascii() and signed_at.isdigit() and len(signed_at) < 16):
            raise SecurityError(f"not a signature: {signature!r:.80}")
        if key not in self._keys:
            raise SecurityError(
                f"the message is signed with key {key!r:.20}, which is not one of security_key"
            )
        expected = self._digest(key, signed_at, headers, body, properties)
        if not hmac.compare_digest(expected.encode(), digest.encode("utf-8", "backslashreplace")):
            raise SecurityError(f"the signature of key {key} does not match: body or headers were changed")
        if self._max_age is not None and self._age(int(signed_at), headers) > self._max_age:
            raise SecurityError(f"the signature is older than {self._max_age:g} s")

    def _digest(
        self,
        key: str,
        signed_at: str,
        headers: Mapping[str, Any],
        body: bytes,
        properties: Mapping[str, Any] | None,
    ) -> str:
        given = properties or {}
        fields = [signed_at, *(headers.get(name) for name in SIGNED_HEADERS)]
        fields += (given.get(name, _DEFAULTS.get(name)) for name in SIGNED_PROPERTIES)
        # As JSON so that no two field lists have one text, sorted because brokers reorder tables.
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str)
        mac = hmac.new(self._keys[key], text.encode(), sha256)
        mac.update(b"\0")
        mac.update(body)
        return mac.hexdigest()

    def _age(self, signed_at: int, headers: Mapping[str, Any]) -> float:
        eta = headers.get("eta")
        return self._clock.now() - max(signed_at, to_epoch(eta) if eta else -math.inf)


_DEFAULTS = {"content_type": "application/json", "content_encoding": "utf-8"}


def key_id(secret: bytes) -> str:
    """Public name of a key: eight hex digits of its hash."""
    return sha256(b"qworker key id\0" + secret).hexdigest()[:8]
