"""The worker's ledger: its requests, revoked tasks, and totals.

Comes from:  the Listener adds requests; threads that end them remove them.
Goes to:     revocation, shutdown, reports.
Thread:      the listener adds to the dictionary, and the thread that posts the end removes; each operation is
             atomic. Totals belong to the listener.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

from qworker.components.request import Key, Request
from qworker.transports.lease import Revocation, Settlement

if TYPE_CHECKING:
    from qworker.components.receiving.replays import Replays


MOST_UNREAD = 100_000
UNREAD_SECONDS = 3600.0


class WorkerState:
    """max_revoked: the number of revocations kept; the oldest are dropped first. replays: None if messages
    are not signed. max_unread: the number of messages remembered that could not be read."""

    def __init__(
        self, max_revoked: int = 50_000, replays: Replays | None = None, max_unread: int = MOST_UNREAD
    ) -> None:
        self._replays = replays
        self.requests: dict[Key, Request] = {}
        """The requests from receipt to settlement."""
        self.revoked: OrderedDict[str, Revocation] = OrderedDict()  # listener writes
        self._ended: OrderedDict[int, tuple[Key, Settlement]] = OrderedDict()  # listener only
        """By tag: settlements of requests that ended after their lease was lost."""
        self._unread: dict[Any, float] = {}  # listener only
        """When messages were sent again that could not be read; another worker may have got them since."""
        self.totals: Counter[str] = Counter()  # listener only
        self._max_revoked = max_revoked
        self._max_unread = max_unread

    def is_copy(self, request: Request) -> bool:
        """Whether *request* has the signature of a message that was finished here or is held under another
        tag."""
        return self._replays is not None and self._replays.is_copy(request)

    def enter(self, request: Request) -> None:
        self.requests[request.key] = request
        if self._replays is not None:
            self._replays.enter(request)

    def leave(self, request: Request, finished: bool = False) -> None:
        """Remove *request*. finished: its message cannot come again, from the queue or the dead letters."""
        self.requests.pop(request.key, None)
        if self._replays is not None:
            self._replays.leave(request, finished)

    def revoke(self, revocation: Revocation) -> list[Request]:
        """Record *revocation*; return the affected requests here."""
        self.revoked[revocation.task_id] = revocation
        self.revoked.move_to_end(revocation.task_id)
        while len(self.revoked) > self._max_revoked:
            self.revoked.popitem(last=False)
        hit = [request for request in list(self.requests.values()) if request.id == revocation.task_id]
        for request in hit:
            request.revocation = revocation
        return hit

    def finished_elsewhere(self, request: Request, settlement: Settlement) -> None:
        """Keep the settlement of *request*, which ended after its lease was lost, in case it is delivered
        here again."""
        self._ended[request.tag] = (request.key, settlement)
        while len(self._ended) > 10_000:
            self._ended.popitem(last=False)

    def settlement_of(self, request: Request) -> Settlement | None:
        """Return the settlement kept for *request*; None if it has not ended here."""
        key, settlement = self._ended.get(request.tag, (None, None))
        return settlement if key == request.key else None

    def settled_again(self, tag: int) -> None:
        """Forget the settlement kept for *tag*: the broker has carried it out."""
        self._ended.pop(tag, None)

    def sent_unread(self, request: Request, now: float) -> None:
        """Record at the monotonic time *now* that *request* was sent again, because it was acked and could
        not be read."""
        unread = self._unread
        while unread and unread[first := next(iter(unread))] < now - UNREAD_SECONDS:
            del unread[first]
        message = _message(request)
        unread.pop(message, None)  # the newest come last
        if len(unread) < self._max_unread:  # replacing the oldest would repeat for each further message
            unread[message] = now

    def was_unread(self, request: Request) -> bool:
        """Whether *request* was sent again here, because it could not be read."""
        return bool(self._unread) and _message(request) in self._unread

    def kept(self, request: Request) -> None:
        """Forget that *request* could not be read: it is a dead letter now."""
        self._unread.pop(_message(request), None)

    def info(self) -> dict[str, Any]:
        return {"reserved": len(self.requests), "revoked": len(self.revoked), "total": dict(self.totals)}


def _message(request: Request) -> tuple[str, int, int]:
    """Return what identifies the message of *request* when it is sent again."""
    return *request.key[1:], hash(request.leased.body)
