"""Policy: what becomes of a job that did not succeed.

Comes from:  the options of the spooler.
Goes to:     ``jobs``, which has the job's claim.
Thread:      any; a value.
"""

from __future__ import annotations

from typing import NamedTuple


class Policy(NamedTuple):
    """A job is set aside when it was begun *max_attempts* times (None: never). It waits before the second
    attempt for *backoff* seconds, which double with each one, up to *most*."""

    max_attempts: int | None
    backoff: float
    most: float

    def delay(self, attempts: int) -> float:
        """Seconds until it is to be begun again, having been begun so often."""
        return min(self.backoff * 2.0 ** min(max(0, attempts - 1), 60), self.most)

    def is_last(self, attempts: int) -> bool:
        """Whether there is no other attempt after this one, the number *attempts*."""
        return self.max_attempts is not None and attempts >= self.max_attempts
