"""Failed tasks on MongoDB: looked at, sent again, discarded.

Comes from:  people and tools, by ``MongoBroker.failed``; ``settle.py`` puts them there.
Goes to:     the collection ``qworker_failed``; those of messages and results when one is sent again.
Thread:      any.

To be sent again is one transaction where the server has them. On a single server the message comes first,
under the tag that it had, and what was kept goes last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qworker.clock import Clock
from qworker.transports.lease import Again, Dead, FailedTasks
from qworker.transports.mongodb import letters, result_documents
from qworker.transports.mongodb.server import Collections, Server


class MongoFailed(FailedTasks):
    """published: called when something was sent."""

    def __init__(self, server: Server, clock: Clock, published: Callable[[], None]) -> None:
        self._server = server
        self._clock = clock
        self._published = published

    def kept(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        return self._server.run(lambda found: letters.newest(found.failed, queue, limit))

    def send_again(self, calls: Sequence[Again]) -> int:
        now = self._clock.now()

        def work(found: Collections) -> int:
            return sum(found.atomically(partial(_send, found, call, now)) for call in calls)

        count = self._server.run(work)
        self._published()
        return count

    def discard(self, tags: Sequence[int] | None = None) -> int:
        return self._server.run(lambda found: letters.discard(found.failed, tags))


def _send(found: Collections, call: Again, now: float, session: Any) -> int:
    """Send one; return 1, or 0 when it is kept no longer."""
    which = {"_id": call.tag}
    letter = found.failed.find_one(which, session=session)
    if letter is None:
        return 0
    result_documents.forget_failures(found, [letter["headers"]], session)
    message = letters.as_message(letter, now)
    message |= {"headers": call.headers, "properties": call.properties, "body": call.body}
    # What another has sent at the same moment, and somebody may have on lease, stays as it is.
    found.message.update_one(which, {"$setOnInsert": message}, upsert=True, session=session)
    return int(found.failed.delete_one(which, session=session).deleted_count)
