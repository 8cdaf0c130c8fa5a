"""Replays: which signed messages this worker holds or has finished, so that a copy of one is not run.

Comes from:  Intake asks; the ledger tells what enters and leaves.
Goes to:     nothing.
Thread:      listener.

No two signatures are the same, so the same signature twice is one message twice: delivered again, which is
told by its tag and by its not being finished, or copied. What goes back to the broker or to the dead letters
may come again. What is known ends with this process, and with MOST signatures; beyond it `security_max_age`
and ``expires`` are what bounds a copy.
"""

from __future__ import annotations

from collections import OrderedDict

from qworker.components.request import Key, Request

MOST = 100_000


class Replays:
    """most: how many finished messages are known; the oldest are forgotten first."""

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
        """finished: it is not to come again."""
        signature = _signature(request)
        self._held.pop(signature, None)
        if finished:
            self._finished[signature] = None
            while len(self._finished) > self._most:
                self._finished.popitem(last=False)


def _signature(request: Request) -> str:
    """What no other message has: the digest."""
    return str(request.headers.get("signature"))[-64:]
