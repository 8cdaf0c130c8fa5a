"""Kombu envelope: the JSON object around a message, for brokers without headers.

Comes from:  protocol (re-exported there), transports read through kombu channels.
Goes to:     an EncodedMessage, or the dict used by kombu's virtual channels.
Thread:      any; pure.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from qworker.errors import InvalidTaskMessage
from qworker.message.kombu_json import dumps
from qworker.message.reading import (
    EncodedMessage,
    parse_properties,
    read_object,
)
from qworker.message.serialization import JSON
from qworker.naming import task_id
from qworker.safe_repr import safe_repr


def to_kombu(
    encoded: EncodedMessage,
    *,
    exchange: str = "",
    routing_key: str = "",
    priority: int = 0,
    delivery_tag: str | None = None,
    redelivered: bool = False,
) -> dict[str, Any]:
    """Return the envelope of kombu's virtual channels, which Celery reads as JSON from Redis or SQL."""
    headers = read_object(encoded.headers, "headers")
    properties = parse_properties(encoded.properties)
    # The original exchange and routing key, if it was published to an exchange.
    info: dict[str, Any] = {
        "exchange": exchange,
        "routing_key": routing_key,
        **properties.pop("delivery_info", {}),
    }
    if redelivered:
        info["redelivered"] = headers["redelivered"] = True
    return {
        "body": b64encode(encoded.body).decode(),
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


def from_kombu(message: Mapping[str, Any]) -> EncodedMessage:
    """Return the message in a kombu envelope. Raises InvalidTaskMessage for a malformed one."""
    headers = _part(message, "headers")
    theirs = _part(message, "properties")
    body = message.get("body")
    if theirs.get("body_encoding") == "base64":
        body = _from_base64(body)
    elif isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    if not isinstance(body, bytes):
        raise InvalidTaskMessage(f"body of the envelope is {safe_repr(body, 100)}, not text")
    properties = {
        "content_type": message.get("content-type") or JSON,
        "content_encoding": message.get("content-encoding") or "utf-8",
        **{name: theirs[name] for name in _KEPT if theirs.get(name) is not None},
    }
    info = _part(theirs, "delivery_info")
    if info.get("exchange"):
        properties["delivery_info"] = {name: info.get(name) or "" for name in ("exchange", "routing_key")}
    is_default = properties == {**_DEFAULT, "correlation_id": headers.get("id")}
    try:
        return EncodedMessage(dumps(headers), None if is_default else dumps(properties), body)
    except Exception as error:  # an envelope built in this process may contain any object
        raise InvalidTaskMessage(f"headers of the envelope are not JSON: {safe_repr(error, 200)}") from error


# AMQP properties; the priority is stored separately.
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
