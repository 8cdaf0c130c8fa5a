"""Messages as others write them: Celery's protocol 1, and kombu's envelope around either protocol.

Comes from:  protocol (re-exported there), transports that are read by kombu channels.
Goes to:     `reading.Wire`, or the dict kombu's virtual channels pass about.
Thread:      any; pure.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from qworker.errors import InvalidTaskMessage, SecurityError
from qworker.message.kombu_json import dumps
from qworker.message.reading import (
    HEADERS,
    Body,
    Verifier,
    Wire,
    body_of,
    check_headers,
    decode_payload,
    parse_properties,
    read_object,
)
from qworker.message.serialization import JSON, MAX_BYTES
from qworker.naming import task_id
from qworker.safe_repr import repr_args, repr_kwargs, safe_repr

# -- protocol 1 --


def from_v1(
    properties: Mapping[str, Any],
    body: bytes,
    accept: frozenset[str],
    signer: Verifier | None = None,
    limit: int = MAX_BYTES,
    compression: str | None = None,
) -> tuple[dict[str, Any], Body]:
    """Protocol 2 headers and the Body of a protocol 1 message (all of it is in the body).

    InvalidTaskMessage or SecurityError as `decode_body`; with a `signer` always SecurityError, because
    protocol 1 has no place for a signature.
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
    """ISO text with its offset; that of a sender without UTC is naive and taken in our time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return text  # check_headers() will say what is wrong with it
    return text if moment.tzinfo is not None else moment.astimezone().isoformat()


# -- kombu --


def to_kombu(
    wire: Wire,
    *,
    exchange: str = "",
    routing_key: str = "",
    priority: int = 0,
    delivery_tag: str | None = None,
    redelivered: bool = False,
) -> dict[str, Any]:
    """The envelope of kombu's virtual channels; json.dumps() of it is what Celery reads from Redis or SQL."""
    headers = read_object(wire.headers, "headers")
    properties = parse_properties(wire.properties)
    # As it was published, if it went through an exchange.
    info: dict[str, Any] = {
        "exchange": exchange,
        "routing_key": routing_key,
        **properties.pop("delivery_info", {}),
    }
    if redelivered:
        info["redelivered"] = headers["redelivered"] = True
    return {
        "body": b64encode(wire.body).decode(),
        "content-encoding": properties.pop("content_encoding"),
        "content-type": properties.pop("content_type"),
        "headers": headers,
        "properties": {
            "correlation_id": headers.get("id"),
            "reply_to": None,
            "delivery_mode": 2,
            **properties,
            "priority": priority,
            "delivery_info": info,
            "body_encoding": "base64",
            "delivery_tag": delivery_tag or task_id(),
        },
    }


def from_kombu(message: Mapping[str, Any]) -> Wire:
    """The Wire in an envelope of kombu's, its body decoded from base64; InvalidTaskMessage if it is
    malformed."""
    headers = _part(message, "headers")
    given = _part(message, "properties")
    body = message.get("body")
    if given.get("body_encoding") == "base64":
        body = _from_base64(body)
    elif isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    if not isinstance(body, bytes):
        raise InvalidTaskMessage(f"body of the envelope is {safe_repr(body, 100)}, not text")
    properties = {
        "content_type": message.get("content-type") or JSON,
        "content_encoding": message.get("content-encoding") or "utf-8",
        **{name: given[name] for name in _KEPT if given.get(name) is not None},
    }
    info = _part(given, "delivery_info")
    if info.get("exchange"):
        properties["delivery_info"] = {name: info.get(name) or "" for name in ("exchange", "routing_key")}
    is_default = properties == {**_DEFAULT, "correlation_id": headers.get("id")}
    try:
        return Wire(dumps(headers), None if is_default else dumps(properties), body)
    except Exception as error:  # an envelope built in this process may hold anything
        raise InvalidTaskMessage(f"headers of the envelope are not JSON: {safe_repr(error, 200)}") from error


# Those of AMQP; priority travels in a column of its own.
_KEPT = ("correlation_id", "reply_to", "message_id", "timestamp", "type", "app_id", "user_id", "expiration")
_DEFAULT = {"content_type": JSON, "content_encoding": "utf-8"}


def _part(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = message.get(name) if isinstance(message, Mapping) else message
    if part is None and isinstance(message, Mapping):
        return {}
    if not isinstance(part, dict):
        raise InvalidTaskMessage(f"{name} of the envelope are {safe_repr(part, 100)}, not an object")
    return part


def _from_base64(body: Any) -> bytes:
    try:
        return b64decode(body, validate=True)
    except (TypeError, ValueError) as error:
        raise InvalidTaskMessage(f"body of the envelope is not base64: {error}") from None
