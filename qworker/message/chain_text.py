"""Chain text: keeps the rest of a chain as unparsed text.

Comes from:  the body of a message with a chain, in Celery's format: the remaining calls, last one first.
Goes to:     the message of the next call: the same text without that call.
Thread:      any; pure.

Only the next call is parsed, because parsing and rewriting the rest of a chain costs more than all other work
for the next call. An invalid later call is reported when its own message is read.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from qworker.errors import InvalidTaskMessage
from qworker.message.kombu_json import dumps
from qworker.message.reading import NO_EMBED, Body, body_of, decode_body, decode_payload, parse_properties
from qworker.message.serialization import JSON, MAX_BYTES

_BEFORE, _, _AFTER = dumps({**NO_EMBED, "chain": []}).partition("[]")
"""The text before and after the calls in a body that embeds only a chain."""
_START, _END = f",{_BEFORE}[".encode(), f"]{_AFTER}]".encode()
"""The text between the arguments and the calls, and after the calls."""
_LAST = b'},{"task":"'
"""The start of the last of several calls. It cannot occur in a JSON string, where quotes are escaped."""
MOST_ARGUMENTS = 4096
"""Maximum bytes of arguments for which the rest is kept as text; otherwise the whole body is parsed."""


class WrittenCalls(NamedTuple):
    """Unparsed calls. text: their JSON, one or more, separated by commas."""

    text: str

    def read(self) -> list[Any]:
        """Return the calls. Raises InvalidTaskMessage if the text is not a list of calls."""
        written = f"[{self.text}]".encode()
        calls = decode_payload(written, None, parse_properties(None), frozenset({"json"}), len(written))
        chain: list[Any] = body_of((), {}, {"chain": calls}).embed["chain"]
        return chain


class CarriedChain(NamedTuple):
    """The chain of a message. next: the next call. rest: those after it."""

    next: dict[str, Any]
    rest: WrittenCalls

    def read(self) -> list[Any]:
        """Return all calls, the next one last. Raises InvalidTaskMessage if the rest is not a list of
        calls."""
        return [*self.rest.read(), self.next]


def decode_carrier(
    body: bytes,
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    accept: frozenset[str],
    limit: int = MAX_BYTES,
) -> Body:
    """Like decode_body(), but return a CarriedChain for a chain of several calls in a body written by
    qworker.

    If a sender embeds other fields than Celery's four, their text may be passed on with the rest. This is
    harmless, because the sender could have sent that text itself.
    """
    plain = properties["content_type"] == JSON and properties["content_encoding"] == "utf-8"
    if plain and headers.get("compression") is None and type(body) is bytes and len(body) <= limit:
        divided = _divided(body)
        if divided is not None:
            short, rest = divided
            try:
                args, kwargs, embed = decode_body(short, headers, properties, accept, limit=limit)
            except InvalidTaskMessage:  # the marker also occurs inside the last call
                pass
            else:
                chain = embed["chain"]
                if len(chain) == 1:
                    return Body(args, kwargs, {**embed, "chain": CarriedChain(chain[0], rest)})
    return decode_body(body, headers, properties, accept, limit=limit)


def _divided(body: bytes) -> tuple[bytes, WrittenCalls] | None:
    """Return *body* reduced to the last call of its chain, and the other calls; None if it has only one call
    or another format."""
    if not body.endswith(_END):
        return None
    start = body.find(_START, 0, MOST_ARGUMENTS + len(_START))
    last = body.rfind(_LAST)
    if not 0 <= start < last:
        return None
    start += len(_START)
    try:
        rest = WrittenCalls(body[start : last + 1].decode())
    except UnicodeDecodeError:
        return None
    return body[:start] + body[last + 2 :], rest


def embedded(calls: WrittenCalls) -> str:
    """Return the JSON embedded in a body that carries only *calls*."""
    return f"{_BEFORE}[{calls.text}]{_AFTER}"
