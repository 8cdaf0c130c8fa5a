"""A message in a Redis list: kombu's JSON envelope, written and read without parsing JSON if it is ours.

Comes from:  ``sender.py``, ``waiting.py``, ``reclaim.py``, ``broker.py``.
Goes to:     the lists, where stock kombu consumers read the same.
Thread:      any; pure functions.

Before kombu's keys there is one more, ``qworker``, with our transport data; kombu keeps and ignores it. Our
Lua scripts change its first values as text. Its ``sizes`` are the positions of the headers and the body, so
that our messages are split at known positions; messages written or rewritten by others do not match them, and
are parsed.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from qworker.errors import ConfigurationError, InvalidTaskMessage
from qworker.message.kombu_envelope import from_kombu
from qworker.message.reading import parse_properties
from qworker.transports.lease import Envelope, Leased
from qworker.transports.own_headers import count, instant
from qworker.transports.redis.connection import Link, Script
from qworker.transports.redis.join_rows import JoinKeys, join_keys
from qworker.transports.redis.url import SOCKET_TIMEOUT, Endpoint

SEPARATOR = "\x06\x16"
"""Separates a queue's name from the step of its priority."""
STEPS = (0, 3, 6, 9)

_HEAD = re.compile(
    rb'\{"qworker": \{"deliveries": (\d+), "redelivered": (true|false), "parked": (\d+), "due": '
    rb"(null|[\d.e+]+), "
    rb'"sent": (null|[\d.e+]+), "sizes": \[(\d+), (\d+)\](, "properties": )?'
)
_BODY = b', "body": "'
_HEADERS = b'"}, "headers": '
_TAG_BYTES = 36
_TAG = b', "body_encoding": "base64", "delivery_tag": "'
_MOST = 2**63 - 1
_text = json.JSONEncoder().encode


class Scale(NamedTuple):
    """The mapping of priorities to kombu's steps, of which 0 is taken first. translated: our priorities, 9
    first, are reversed."""

    steps: tuple[int, ...] = STEPS
    translated: bool = True

    def to_kombu(self, priority: int) -> int:
        """Return kombu's priority, 0 to 9, for ours."""
        inside = min(max(priority, 0), 9)
        return 9 - inside if self.translated else inside

    def from_kombu(self, priority: Any) -> int:
        """Return our priority for kombu's; an invalid one counts as none."""
        try:
            inside = min(max(int(priority or 0), 0), 9)
        except (TypeError, ValueError, OverflowError):
            inside = 0
        return 9 - inside if self.translated else inside

    def step(self, priority: int) -> int:
        """Return the step of our *priority*."""
        wanted = self.to_kombu(priority)
        return max((step for step in self.steps if step <= wanted), default=self.steps[0])


@lru_cache(1024)
def route(queue: str, priority: int, scale: Scale) -> tuple[int, bytes]:
    """Return the step for messages of *priority* to *queue*, and the common part of their payloads."""
    tail = b'"routing_key": %s}, "priority": %d%s' % (_text(queue).encode(), scale.to_kombu(priority), _TAG)
    return scale.step(priority), tail


def to_payload(envelope: Envelope, now: bytes, tail: bytes, delivery_tag: str) -> bytes:
    """Return the text of *envelope*. now: epoch seconds, as text; tail: from route(); delivery_tag: a unique
    id.

    TypeError for a body that is not bytes.
    """
    _, headers, properties, body, _, due, _ = envelope
    if type(body) is not bytes:
        raise TypeError(f"the body of a message must be bytes, not {type(body).__name__}")
    # Anything but an object would make the envelope unreadable; we never send such.
    text = headers.encode() if headers[:1] == "{" and headers[-1:] == "}" else _text(headers).encode()
    encoded = b2a_base64(body, newline=False)
    id = _id(headers)
    if properties is None:
        kept, middle = b"", _PLAIN % id
    else:
        kept, middle = _middle(id, properties)
    return (
        b'{"qworker": {"deliveries": 0, "redelivered": false, "parked": 0, "due": %b, "sent": %b, '
        b'"sizes": [%d, %d]%b}, %b%b%b"}, "headers": %b, "body": "%b"}'
        % (
            b"null" if due is None else repr(float(due)).encode(),
            now,
            len(text),
            len(encoded),
            kept,
            middle,
            tail,
            delivery_tag.encode(),
            text,
            encoded,
        )
    )


def _id(headers: str) -> bytes:
    """Return the task's id in the headers, as JSON; null if none is visible."""
    start = headers.find('"id":"') + 6
    end = headers.find('"', start)
    if start < 6 or end < 0 or "\\" in (id := headers[start:end]):
        return b"null"
    return b'"%b"' % id.encode()


def _middle(id: bytes, properties: str) -> tuple[bytes, bytes]:
    """Return the stored form of *properties*, and the keys between ours and the routing key."""
    try:
        given = parse_properties(properties)
    except InvalidTaskMessage:  # the receiver will report it
        given = parse_properties(None)
    content_type, encoding = given.pop("content_type"), given.pop("content_encoding")
    for name in ("priority", "body_encoding", "delivery_info", "delivery_tag"):
        given.pop(name, None)
    rest = {"correlation_id": json.loads(id), "reply_to": None, "delivery_mode": 2, **given}
    middle = (
        f'"content-type": {_text(content_type)}, "content-encoding": {_text(encoding)}, '
        f'"properties": {_text(rest)[:-1]}, "delivery_info": {{"exchange": "", '
    )
    return f', "properties": {_text(properties)}'.encode(), middle.encode()


_PLAIN = (
    b'"content-type": "application/json", "content-encoding": "utf-8", "properties": {"correlation_id": %s, '
    b'"reply_to": null, "delivery_mode": 2, "delivery_info": {"exchange": "", '
)


def from_payload(payload: bytes, scale: Scale, queue: str = "") -> Leased:
    """Read a payload from *queue*, from any sender. An invalid envelope is returned with invalid headers, so
    that its receiver dead-letters it."""
    try:
        known = _cut_up(payload, scale, queue)
    except ValueError:  # it looks like ours, but is not: huge numbers, a body that is not base64
        known = None
    return known or _parsed(payload, scale, queue)


def _cut_up(payload: bytes, scale: Scale, queue: str) -> Leased | None:
    """Read our own payload; None for any other. ValueError for one that only looks like ours."""
    head = _HEAD.match(payload)
    if head is not None:
        deliveries, redelivered, parked, due, _, size, body_size, kept = head.groups()
        end = len(payload) - 2
        body_at = end - int(body_size)
        stop = body_at - len(_BODY)
        start = stop - int(size)
        at = start - len(_HEADERS) - _TAG_BYTES
        if (
            at > 0
            and payload[stop:body_at] == _BODY
            and payload[at + _TAG_BYTES : start] == _HEADERS
            and payload[at - len(_TAG) : at] == _TAG
            and payload.endswith(b'"}')
        ):
            headers = payload[start:stop].decode("utf-8", "replace")
            return Leased(
                tag_of(payload[at : at + _TAG_BYTES]),
                queue,
                scale.from_kombu(payload[at - len(_TAG) - 1 : at - len(_TAG)]),
                None if due == b"null" else instant(float(due)),
                count(int(deliveries)),
                redelivered == b"true",
                count(int(parked)),
                headers if headers[:1] == "{" else json.loads(headers),
                None if kept is None else _kept(payload, head.end()),
                a2b_base64(payload[body_at:end]),
            )
    return None


def _kept(payload: bytes, start: int) -> str:
    text: str = json.JSONDecoder().raw_decode(payload.decode("utf-8", "replace"), start)[0]
    return text


def _parsed(payload: bytes, scale: Scale, queue: str) -> Leased:
    try:
        value = json.loads(payload)
        own = value.get("qworker") if isinstance(value, dict) else None
        state: Mapping[str, Any] = own if isinstance(own, dict) else {}
        headers = value["headers"] if isinstance(value, dict) else None
        encoded = from_kombu({**value, "headers": {}} if isinstance(headers, str) else value)
        properties = value.get("properties") or {}
        return Leased(
            tag_of(str(properties.get("delivery_tag") or encoded.body).encode()),
            queue,
            scale.from_kombu(properties.get("priority")),
            instant(state.get("due")),
            count(state.get("deliveries")),
            state.get("redelivered") is True
            or (isinstance(headers, dict) and headers.get("redelivered") is True),
            count(state.get("parked")),
            headers if isinstance(headers, str) else encoded.headers,
            state["properties"] if isinstance(state.get("properties"), str) else encoded.properties,
            encoded.body,
        )
    except (InvalidTaskMessage, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        text = payload.decode("utf-8", "replace")
        return Leased(tag_of(payload), queue, 0, None, 0, False, 0, text, None, b"")


def tag_of(delivery_tag: bytes) -> int:
    """Return a number for the message, the same at every delivery; never 0."""
    try:
        if len(delivery_tag) == _TAG_BYTES:
            return int(delivery_tag[24:] + delivery_tag[:4], 16) & _MOST or 1
    except ValueError:
        pass
    return int.from_bytes(blake2b(delivery_tag, digest_size=8).digest()) & _MOST or 1


# -- Which keys of a Redis database are the broker's --

VISIBILITY_TIMEOUT = 3600.0


class Layout(NamedTuple):
    """prefix: of all keys (kombu's ``global_keyprefix``). keys: unacked, unacked_index and the owners, in
    full. join_keys: the keys of results and joins stored here. has_results: whether these can be here: on a
    cluster, whether they are in the same slot. visibility_timeout: seconds after which messages of a stock
    consumer are restored."""

    prefix: str
    keys: tuple[str, str, str]
    scale: Scale
    join_keys: JoinKeys
    has_results: bool
    visibility_timeout: float
    allow_eviction: bool

    def key(self, name: str) -> str:
        return f"{self.prefix}qworker.{name}"

    def list_of(self, queue: str, step: int) -> str:
        """Return the key of kombu's list for *queue* and a step of its priorities."""
        return f"{self.prefix}{queue}{SEPARATOR}{step}" if step else f"{self.prefix}{queue}"

    def marker(self, queue: str) -> str:
        """Return the key of the marker that *queue* may have messages; see ``waiting.py``."""
        return f"{self.prefix}qworker.marker.{queue}"

    def wake(self, generation: int) -> str:
        """Return the key of the marker for one worker."""
        return f"{self.prefix}qworker.wake.{generation}"

    def run(
        self, link: Link, script: Script, now: float, *arguments: Any, timeout: float = SOCKET_TIMEOUT
    ) -> Any:
        """Run *script* with the common arguments; *now*: epoch seconds on the caller's wall clock."""
        return script.call(link, self._keys(), (self.prefix, self.marker(""), repr(now), *arguments), timeout)

    def packed(self, script: Script, now: float, *arguments: Any) -> bytes:
        """Return the command that runs *script* with these."""
        return script.packed(self._keys(), (self.prefix, self.marker(""), repr(now), *arguments))

    def _keys(self) -> tuple[str, ...]:
        """Return the keys that scripts declare. The last one never exists: so while a cluster moves our slot,
        and has some keys on one node and some on another, it refuses a script as a whole."""
        return (*self.keys, self.key("none"))


def layout(
    where: Endpoint,
    options: Mapping[str, Any],
    results: Mapping[str, Any],
    results_expires: float | None = None,
) -> Layout:
    """Return the layout for the options of the broker at *where* and of the result store."""
    prefix = where.key_prefix(options)
    scale = options.get("priority_scale", "qworker")
    if scale not in ("qworker", "celery"):
        raise ConfigurationError(
            f'priority_scale is "qworker" (9 is most urgent) or "celery" (0 is), not {scale!r}',
            setting="broker_transport_options",
        )
    try:
        steps = tuple(sorted(int(step) for step in options.get("priority_steps") or STEPS))
        visibility = float(options.get("visibility_timeout") or VISIBILITY_TIMEOUT)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"priority_steps must be a list of whole numbers, visibility_timeout of seconds: {error}",
            setting="broker_transport_options",
        ) from None
    unacked = options.get("unacked_key") or "unacked"
    index = options.get("unacked_index_key") or "unacked_index"
    return Layout(
        prefix,
        (f"{prefix}{unacked}", f"{prefix}{index}", f"{prefix}qworker.owners"),
        Scale(steps, scale == "qworker"),
        join_keys(where.key_prefix(results), results, results_expires),
        where.has(where.key_prefix(results)),
        visibility,
        bool(options.get("allow_eviction")),
    )


def whole(text: bytes | None) -> int:
    """Return the number in a counter's key; 0 if another program wrote something invalid."""
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else 0


def moment(text: bytes) -> float | None:
    """Return epoch seconds; None if there are none, or another program wrote something invalid."""
    try:
        return instant(float(text))
    except ValueError:
        return None
