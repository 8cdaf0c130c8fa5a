"""What a consumer settled lately, in case that the server forgets it.

Comes from:  ``consumer.py``.
Goes to:     the new connection, after the old one broke.
Thread:      the listener's.

The worker's commits need not reach the disk at once, and a server that takes over may lack the last of them.
An ack that is lost so leaves a message with a consumer who lives and will never settle it again: so it is
settled again. A claim that is lost so leaves a message to whoever asks first, though its consumer lives and
may be running it: so it is claimed again, and for a moment after a crash nobody claims anything else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from qworker.transports.lease import Leased, Release, Settlement, Store
from qworker.transports.recent import Recent

SECONDS = 3.0
"""For how long settlements are kept; PostgreSQL's commits are on the disk after 3 times wal_writer_delay, 0.6
s."""


class RecentSettlements:
    """held: the tags of what is on lease and not settled."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self._recent: Recent[Settlement] = Recent(SECONDS)

    def leased(self, messages: Iterable[Leased]) -> None:
        self.held.update([message.tag for message in messages])

    def settled(self, settlements: Sequence[Settlement]) -> None:
        self.held.difference_update([each.tag for each in settlements if not isinstance(each, Store)])
        self._recent.add(settlements)

    def ended(self) -> set[int]:
        """Tags of what is not to come again: it was acknowledged lately, or made a dead letter."""
        found: set[int] = set()
        for each in self.all():
            if isinstance(each, Release):
                found.discard(each.tag)
            elif not isinstance(each, Store):
                found.add(each.tag)
        return found - self.held

    def all(self) -> list[Settlement]:
        """What was settled lately."""
        return [each for settlements in self._recent for each in settlements]

    def of(self, tags: Collection[int]) -> Iterator[list[Settlement]]:
        """What was settled lately of *tags*, and the results stored beside, oldest first."""
        for settlements in self._recent:
            found = [each for each in settlements if isinstance(each, Store) or each.tag in tags]
            if found:
                yield found
