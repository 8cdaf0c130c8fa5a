"""A message as text, as kombu's transports write it: JSON, with the body in base64.

Comes from:  the sender; what servers give.
Goes to:     servers that keep text; ``kombu/messages.py`` reads what is read here.
Thread:      any; pure.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any, NamedTuple

from qworker.message.kombu_json import rewritten
from qworker.transports.kombu.messages import Outgoing
from qworker.transports.own_headers import PACKED


class Content(NamedTuple):
    """What is in a text, by the names of kombu's Message. body: bytes, or what a stranger put there."""

    headers: dict[str, Any]
    properties: dict[str, Any]
    content_type: Any
    content_encoding: Any
    body: Any
    delivery_info: dict[str, Any]


def written(message: Outgoing) -> str:
    """*message* as kombu's transport would write it."""
    options = dict(message.options)
    headers = options.pop("headers")
    if PACKED in headers:  # it is text, and as small as can be
        body, encoding = message.body.decode("ascii"), None
    else:
        body, encoding = b64encode(message.body).decode("ascii"), "base64"
    return rewritten(
        {
            "body": body,
            "content-encoding": options.pop("content_encoding"),
            "content-type": options.pop("content_type"),
            "headers": headers,
            "properties": {
                "delivery_mode": 2,
                **options,
                "body_encoding": encoding,
                "delivery_tag": options["message_id"],
                "delivery_info": {"exchange": "", "routing_key": message.queue},
            },
        }
    )


def content(text: str) -> Content:
    """What kombu, or written(), put into *text*, as it is or in base64; or else all of it as the body: it is
    for others to say what is wrong with it."""
    try:
        payload = json.loads(text if text.lstrip()[:1] == "{" else b64decode(text, validate=True))
        properties = dict(payload["properties"])
        body = payload.get("body")
        encoding = str(properties.get("body_encoding") or "utf-8").lower()
        if body and encoding != "utf-8":
            if encoding != "base64":
                raise ValueError(encoding)
            body = b64decode(body, validate=True)
        return Content(
            dict(payload.get("headers") or {}),
            properties,
            payload.get("content-type"),
            payload.get("content-encoding"),
            body.encode() if isinstance(body, str) else body,
            dict(properties.get("delivery_info") or {}),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # anybody may send anything
        return Content({}, {}, None, None, text, {})
