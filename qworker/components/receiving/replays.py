"""Replays: the signed messages that this worker holds or has finished, to refuse copies.

Comes from:  Intake asks; the ledger adds and removes.
Goes to:     nothing.
Thread:      listener.

Signatures are unique, so the same signature twice is the same message twice: either delivered again, with the
same tag and not finished, or copied. A message that goes back to the broker or to the dead letters may come
again. The knowledge is limited to this process, and to MOST signatures; `security_max_age` and ``expires``
limit copies beyond it.
"""

from __future__ import annotations

from collections import OrderedDict

from qworker.components.request import Key, Request

MOST = 100_000


class Replays:
    """most: how many finished messages are known; the oldest are dropped first."""

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
        """finished: it will not come again."""
        signature = _signature(request)
        self._held.pop(signature, None)
        if finished:
            self._finished[signature] = None
            while len(self._finished) > self._most:
                self._finished.popitem(last=False)


def _signature(request: Request) -> str:
    """Return the unique part of the signature: the digest."""
    return str(request.headers.get("signature"))[-64:]
