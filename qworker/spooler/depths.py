"""SpoolDepths: the administration of an app's broker, which counts the jobs of spool directories, too.

Comes from:  ``beside``, for the worker's metrics.
Goes to:     the broker; the directories, of which names, times and locks are looked at.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from qworker.clock import Clock
from qworker.spooler.census import Census
from qworker.spooler.job_messages import queue_name
from qworker.transports.lease import Admin, Dead, Peeked, QueueInfo, Standing
from qworker.transports.presence import Presence


class SpoolDepths(Admin):
    """own: of the app's broker. directories: whose jobs are counted with every answer about depths."""

    def __init__(self, own: Admin, directories: Sequence[str], clock: Clock) -> None:
        self._own = own
        self._directories = tuple(directories)
        self._clock = clock

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        jobs = [self._count(directory) for directory in self._directories]
        names = {info.queue for info in jobs}
        others = [queue for queue in queues if queue not in names]
        return [*(self._own.depths(others) if others else ()), *jobs]

    def _count(self, directory: str) -> QueueInfo:
        with closing(Census(directory, clock=self._clock)) as census:
            try:
                counts, _ = census.look()
            except OSError:
                return QueueInfo(queue_name(directory))
        return QueueInfo(
            queue_name(directory), counts.due, counts.delayed, counts.running, counts.dead or 0, counts.oldest
        )

    def queues(self) -> list[QueueInfo]:
        return self._own.queues()

    def next_due(self, queues: Sequence[str]) -> float | None:
        return self._own.next_due(queues)

    def peek(self, queue: str, standing: Standing, limit: int) -> list[Peeked]:
        return self._own.peek(queue, standing, limit)

    def may_have_due_joins(self, now: float) -> bool:
        return self._own.may_have_due_joins(now)

    @property
    def purges_leased(self) -> bool:
        return self._own.purges_leased

    def purge(self, queue: str) -> int:
        return self._own.purge(queue)

    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        return self._own.dead(queue, limit)

    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        return self._own.dead_retry(tags)

    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        return self._own.dead_discard(tags)

    def push_dead(self, letters: Sequence[Dead]) -> None:
        self._own.push_dead(letters)

    def flush_delayed(self, queue: str) -> int:
        return self._own.flush_delayed(queue)

    def workers(self) -> list[Presence]:
        return self._own.workers()
