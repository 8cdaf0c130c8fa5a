"""Helpers for the tests of projects that use qworker.

Comes from:  nothing.
Goes to:     test suites of qworker and of its users.
Thread:      any.

Modules, in reading order: ``clock`` (time controlled by a test), ``store`` with ``memory_queues`` (a broker
in memory), ``pool`` (a pool without processes), ``worker`` (a worker without threads), ``contract`` (tests
for custom brokers).
"""

from qworker.testing.clock import FakeClock
from qworker.testing.pool import InlinePool
from qworker.testing.store import MemoryStore
from qworker.testing.worker import StepWorker, stepping

__all__ = ["FakeClock", "InlinePool", "MemoryStore", "StepWorker", "stepping"]
