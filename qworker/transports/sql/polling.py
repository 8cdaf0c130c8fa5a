"""Polling: how consumers look for messages on a database that does not notify them.

Comes from:  ``mysql.py``; ``postgresql.py``, behind a pooler.
Goes to:     the consumer, through ``Link.notified()``.
Thread:      one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from qworker.transports.sql.link import Notified, Row
from qworker.transports.sql.schema import LAST_REVOKED, NEXT_DUE

WAITING = "EXISTS (SELECT 1 FROM qworker_message WHERE queue = %s AND state = 0)"
REPEAT_SECONDS = 0.25
"""How soon notified() reports messages again if no claim has found any: another worker has taken them."""


class Polling:
    """ask: returns the rows of a statement. next_dues: by queue, the ``next_due`` of the last claim."""

    def __init__(
        self,
        ask: Callable[[str, Sequence[str]], list[Row]],
        next_dues: Mapping[str, float | None],
    ) -> None:
        self._ask = ask
        self._next_dues = next_dues
        self._last_revocation: int | None = None
        self._report_at = 0.0
        """The monotonic time before which messages are not reported again."""

    def notified(self, queues: Collection[str]) -> Notified:
        """Return whether there is anything new, or anything to take from *queues*, by one statement."""
        looks = ", ".join([f"({LAST_REVOKED})", *(f"{WAITING}, ({NEXT_DUE})" for _ in queues)])
        ((last, *found),) = self._ask(
            f"SELECT {looks}", [each for queue in queues for each in (queue, queue)]
        )
        before, self._last_revocation = self._last_revocation, last
        if before not in (None, last):
            return Notified.ALL
        dues = zip(found[1::2], map(self._next_dues.get, queues), strict=True)
        sooner = any(due is not None and (known is None or due < known) for due, known in dues)
        if not (sooner or any(found[::2])) or time.monotonic() < self._report_at:
            return Notified.NONE
        self._report_at = time.monotonic() + REPEAT_SECONDS
        return Notified.ONE

    def claimed(self) -> None:
        """A claim has found messages: the next ones are reported at once."""
        self._report_at = 0.0
