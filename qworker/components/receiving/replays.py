"""Replays: the signed messages that this worker holds or has finished, to refuse copies.

Comes from:  Intake asks; the ledger adds and removes.
Goes to:     nothing.
Thread:      listener.

Signatures are unique, so a message with a known signature is either a redelivery, with the same tag and not
finished, or a copy. A message that goes back to the broker or to the dead letters may come again. Only MOST
signatures of this process are known; `security_max_age` and ``expires`` limit other copies.
"""

from __future__ import annotations

from collections import OrderedDict

from qworker.components.request import Key, Request

MOST = 100_000


class Replays:
    """most: the number of finished messages remembered; the oldest are dropped first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._held: dict[str, Key] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()

    def is_copy(self, request: Request) -> bool:
        """Whether the message of *request* was finished here, or is held under another tag."""
        signature = _signature(request)
        return signature in self._finished or self._held.get(signature, request.key) != request.key

    def enter(self, request: Request) -> None:
        self._held[_signature(request)] = request.key

    def leave(self, request: Request, finished: bool) -> None:
        """Remove *request*. finished: its message cannot come again."""
        signature = _signature(request)
        self._held.pop(signature, None)
        if finished:
            self._finished[signature] = None
            while len(self._finished) > self._most:
                self._finished.popitem(last=False)


def _signature(request: Request) -> str:
    """Return the unique part of the signature: the digest."""
    return str(request.headers.get("signature"))[-64:]
