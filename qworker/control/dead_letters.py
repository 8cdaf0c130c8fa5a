"""Dead letters that go back into their queues, signed anew where their signatures are too old to be accepted.

Comes from:  ``qworker dead retry``.
Goes to:     the broker's administration.
Thread:      the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qworker.errors import MessageError
from qworker.message.protocol import encode_parts
from qworker.message.reading import parse_headers, parse_properties
from qworker.transports.lease import Dead, Envelope

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.message.signing import Signer

ALL = 1_000_000


def retry(app: QWorker, tags: Sequence[int] | None = None) -> int:
    """Put dead letters back into their queues; return how many there were.

    - tags: theirs; None for all of them.

    A dead letter whose signature is too old by security_max_age is signed anew, when it was signed with one
    of our keys. It may be in both places when this is interrupted. One that is not signed stays as it is, and
    a worker will refuse it again. Raises BrokerUnavailable.
    """
    signer, broker = app.signer, app.broker
    aged: list[int] = []
    if signer is not None and app.conf.security_max_age:
        for letter in broker.admin.dead(None, ALL):
            if tags is not None and letter.tag not in tags:
                continue
            anew = _signed_anew(letter, signer, app.conf.security_max_age)
            if anew is not None:
                broker.sender.push([anew])
                broker.admin.dead_discard([letter.tag])
                aged.append(letter.tag)
    rest = None if tags is None else [tag for tag in tags if tag not in aged]
    return len(aged) + (broker.admin.dead_retry(rest) if rest is None or rest else 0)


def _signed_anew(letter: Dead, signer: Signer, max_age: float) -> Envelope | None:
    """Return the message of *letter* with a new signature; None when the old one is young enough, or is not
    ours."""
    try:
        headers = parse_headers(letter.headers)
        properties = parse_properties(letter.properties)
        if signer.age(headers, letter.body, properties) <= max_age:
            return None
        del headers["signature"]
        encoded = encode_parts(headers, properties, letter.body, signer)
    except MessageError:
        return None
    return Envelope(letter.queue, encoded.headers, encoded.properties, encoded.body)
