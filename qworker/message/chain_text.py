"""The rest of a chain, as the text it came as.

Comes from:  the body of a message that carries a chain, in Celery's format: the calls that are still to come,
             the last of them first.
Goes to:     the message of the next call, which carries the same text but for that call.
Thread:      any; pure.

To write the rest of a chain anew in each of its messages takes longer than all else that is done for the next
call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qworker.message.kombu_json import dumps
from qworker.message.reading import NO_EMBED

_BEFORE, _, _AFTER = dumps({**NO_EMBED, "chain": []}).partition("[]")
"""What a body embeds that carries a chain and nothing else, up to its calls and after them."""
_START, _END = f",{_BEFORE}[".encode(), f"]{_AFTER}]"
"""What stands in such a body between its arguments and the calls, and after these."""
MOST_ARGUMENTS = 4096
"""Bytes of arguments in a body of which the rest is cut out; of longer ones it is written anew."""


class WrittenCalls(tuple[Any, ...]):
    """Calls of which the JSON is known. text: that."""

    text: str

    def __new__(cls, calls: Iterable[Any], text: str) -> WrittenCalls:
        made = super().__new__(cls, calls)
        made.text = text
        return made


def rest_of_chain(
    body: bytes, args: Sequence[Any], kwargs: Mapping[str, Any], chain: Sequence[Any]
) -> Sequence[Any]:
    """Return all but the last call of *chain*, with their text where it can be cut out of *body*.

    body: JSON of which the others were decoded. The text is known to be theirs when all before and after it
    is as we write it; else they are without. Who embeds more than Celery's four fields may have his own words
    handed on, which he could have sent himself.
    """
    rest = chain[:-1]
    start = body.find(_START)
    if not rest or not 0 <= start <= MOST_ARGUMENTS:
        return rest
    tail = f",{dumps(chain[-1])}{_END}".encode()
    if not body.endswith(tail) or body[:start] != dumps((args, kwargs))[:-1].encode():
        return rest
    return WrittenCalls(rest, f"[{body[start + len(_START) : -len(tail)].decode()}]")


def embedded(calls: WrittenCalls) -> str:
    """Return JSON of what a body embeds that carries *calls* and nothing else."""
    return f"{_BEFORE}{calls.text}{_AFTER}"
