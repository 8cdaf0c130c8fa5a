"""Dead letters: returns them to their queues, with a new signature if theirs is too old.

Comes from:  ``qworker dead retry``.
Goes to:     the broker's administration.
Thread:      the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from qworker.contracts import App
from qworker.control.letters import Retried, Sending, check_queue, chosen, id_of, send
from qworker.errors import InvalidTaskMessage, MessageError, PublishError, SecurityError
from qworker.message.protocol import encode_parts
from qworker.message.reading import parse_headers, parse_properties
from qworker.transports.lease import Again, Dead

if TYPE_CHECKING:
    from qworker.message.signing import Signer


def retry(app: App, tags: Sequence[int] | None = None, *, sign: Collection[int] = ()) -> Retried:
    """Put dead letters back into their queues, oldest first; return how many, and which were refused.

    - tags: of the letters; None for all.
    - sign: the tags of letters to sign although they are not signed with one of our keys. Check these first,
      because anyone with write access to the broker may have sent them.

    With a ``security_key``, a letter that is not signed with it is refused, because a worker would refuse it
    too. One whose signature is older than ``security_max_age`` gets a new one. Raises BrokerUnavailable.
    """
    signer, letters = app.signer, app.broker.letters.get("dead")
    max_age = app.conf.security_max_age or math.inf
    sendings: dict[int, Sending] = {}
    refused: dict[int, str] = {}
    for letter in reversed(list(chosen(letters, tags))):
        try:
            check_queue(letter)
            if signer is None or _is_valid(letter, signer, max_age, sign=letter.tag in sign):
                sendings[letter.tag] = Sending(None, list(_ids_of(app, letter)))
            else:
                sendings[letter.tag] = _signed_anew(letter, signer)
        except (MessageError, PublishError) as error:
            refused[letter.tag] = str(error)
    return Retried(0, refused) if letters is None else send(app, letters, sendings, refused)


def unsigned(app: App, tags: Sequence[int] | None = None) -> list[Dead]:
    """Return the dead letters that retry() refuses without *sign*; [] without a ``security_key``."""
    signer = app.signer
    if signer is None:
        return []
    found = []
    for letter in chosen(app.broker.letters.get("dead"), tags):
        with suppress(InvalidTaskMessage):  # a signature does not help a damaged message
            if not _is_valid(letter, signer, math.inf, sign=True):
                found.append(letter)
    return found


def _ids_of(app: App, letter: Dead) -> Iterator[str]:
    """Yield the id of the call of *letter*, unless the broker deletes its stored failure itself. The broker
    needs the id in the headers, so it does not for protocol 1."""
    with suppress(InvalidTaskMessage):
        found = parse_headers(letter.headers)["id"]
        if not app.results_with_broker:
            yield str(found)
        return
    if (of_body := id_of(app, letter)) is not None:
        yield of_body


def _is_valid(letter: Dead, signer: Signer, max_age: float, *, sign: bool) -> bool:
    """Return whether workers accept the signature of *letter*; if not, it may get a new one. Raises
    SecurityError for a letter that is not signed with one of our keys, unless *sign*."""
    properties = parse_properties(letter.properties)
    try:
        return signer.age(parse_headers(letter.headers), letter.body, properties) <= max_age
    except SecurityError:
        if sign:
            return False
        raise


def _signed_anew(letter: Dead, signer: Signer) -> Sending:
    """Return the message of *letter* with a new signature."""
    headers = parse_headers(letter.headers)
    headers.pop("signature", None)
    properties = parse_properties(letter.properties)
    encoded = encode_parts(headers, properties, letter.body, signer)
    again = Again(letter.tag, encoded.headers, encoded.properties, encoded.body)
    return Sending(again, [headers["id"]])
