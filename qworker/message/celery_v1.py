"""Celery v1: reads messages of protocol 1, whose headers are in the body. They are never written.

Comes from:  Celery 3, or code written for it, through the broker.
Goes to:     headers and a Body in the form of protocol 2.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from qworker.errors import InvalidTaskMessage, SecurityError
from qworker.message.reading import HEADERS, Body, Verifier, body_of, check_headers, decode_payload
from qworker.message.serialization import MAX_BYTES
from qworker.safe_repr import repr_args, repr_kwargs, safe_repr


def from_v1(
    properties: Mapping[str, Any],
    body: bytes,
    accept: frozenset[str],
    signer: Verifier | None = None,
    limit: int = MAX_BYTES,
    compression: str | None = None,
) -> tuple[dict[str, Any], Body]:
    """Return the headers, in the form of protocol 2, and the Body of a protocol 1 message.

    - accept: content types allowed for the body.
    - limit: maximum size of the decompressed body, in bytes.
    - compression: the ``compression`` header of kombu.

    Raises InvalidTaskMessage or SecurityError as `decode_body` does. With a `signer` it always raises
    SecurityError, because protocol 1 has no room for a signature.
    """
    if signer is not None:
        raise SecurityError("messages of protocol 1 cannot be signed, and this app has a security_key")
    value = decode_payload(body, compression, properties, accept, limit)
    if not isinstance(value, dict) or "task" not in value:
        raise InvalidTaskMessage(f"no 'task' in the headers, and the body is {safe_repr(value, 100)}")
    embed = {name: value.get(name) for name in ("callbacks", "errbacks", "chain", "chord")}
    decoded = body_of(value.get("args"), value.get("kwargs"), embed)
    headers = {name: value.get(name) for name in HEADERS}
    headers["group"] = headers["group"] or value.get("taskset")
    headers["root_id"] = headers["root_id"] or headers["id"]
    headers["argsrepr"] = repr_args(decoded.args)
    headers["kwargsrepr"] = repr_kwargs(decoded.kwargs)
    if value.get("utc") is False:
        for name in ("eta", "expires"):
            headers[name] = _from_local(headers[name])
    return check_headers(headers), decoded


def _from_local(text: Any) -> Any:
    """Return ISO text with an offset. A naive time, from a sender without UTC, is in the local time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return text  # check_headers() will report the error
    return text if moment.tzinfo is not None else moment.astimezone().isoformat()
