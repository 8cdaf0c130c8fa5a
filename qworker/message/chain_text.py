"""The rest of a chain, as the text it came as.

Comes from:  the body of a message that carries a chain, in Celery's format: the calls that are still to come,
             the last of them first.
Goes to:     the message of the next call, which carries the same text but for that call.
Thread:      any; pure.

To read the rest of a chain in each of its messages, and to write it anew, takes longer than all else that is
done for the next call. So only that call is read. What is wrong with one after it, its own message tells.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from qworker.errors import InvalidTaskMessage
from qworker.message.kombu_json import dumps
from qworker.message.reading import NO_EMBED, Body, body_of, decode_body, decode_payload, parse_properties
from qworker.message.serialization import JSON, MAX_BYTES

_BEFORE, _, _AFTER = dumps({**NO_EMBED, "chain": []}).partition("[]")
"""What a body embeds that carries a chain and nothing else, up to its calls and after them."""
_START, _END = f",{_BEFORE}[".encode(), f"]{_AFTER}]".encode()
"""What stands in such a body between its arguments and the calls, and after these."""
_LAST = b'},{"task":"'
"""Where the last of several calls begins: not within a text, in which there would be no such quotes."""
MOST_ARGUMENTS = 4096
"""Bytes of arguments in a body of which the rest is cut out; of longer ones all is read."""


class WrittenCalls(NamedTuple):
    """Calls that were not read. text: JSON of them, one or more, with commas between them."""

    text: str

    def read(self) -> list[Any]:
        """Return the calls. Raises InvalidTaskMessage when they are none."""
        written = f"[{self.text}]".encode()
        calls = decode_payload(written, None, parse_properties(None), frozenset({"json"}), len(written))
        chain: list[Any] = body_of((), {}, {"chain": calls}).embed["chain"]
        return chain


class CarriedChain(NamedTuple):
    """The chain of a message. next: the call that comes next; rest: those after it."""

    next: dict[str, Any]
    rest: WrittenCalls

    def read(self) -> list[Any]:
        """Return all of its calls, the next one last. Raises InvalidTaskMessage when the rest are none."""
        return [*self.rest.read(), self.next]


def decode_carrier(
    body: bytes,
    headers: Mapping[str, Any],
    properties: Mapping[str, Any],
    accept: frozenset[str],
    limit: int = MAX_BYTES,
) -> Body:
    """Do what decode_body() does, but of a chain of several calls in a body of ours make a CarriedChain.

    Who embeds more than Celery's four fields may have his own words handed on with the rest, which he could
    have sent himself.
    """
    plain = properties["content_type"] == JSON and properties["content_encoding"] == "utf-8"
    if plain and headers.get("compression") is None and type(body) is bytes and len(body) <= limit:
        divided = _divided(body)
        if divided is not None:
            short, rest = divided
            try:
                args, kwargs, embed = decode_body(short, headers, properties, accept, limit=limit)
            except InvalidTaskMessage:  # where the last call has such a place within it, too
                pass
            else:
                chain = embed["chain"]
                if len(chain) == 1:
                    return Body(args, kwargs, {**embed, "chain": CarriedChain(chain[0], rest)})
    return decode_body(body, headers, properties, accept, limit=limit)


def _divided(body: bytes) -> tuple[bytes, WrittenCalls] | None:
    """*body* with no more than the last call of its chain, and the others; None when it is written otherwise
    or has one call."""
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
    """Return JSON of what a body embeds that carries *calls* and nothing else."""
    return f"{_BEFORE}[{calls.text}]{_AFTER}"
