"""The contract of brokers as a test suite, for qworker's brokers and custom ones.

Comes from:  a test module that defines a ``Place``, and imports the tests of ``suite``.
Goes to:     pytest, which collects the tests there.
Thread:      the test's; some tests start threads.

Modules, in reading order: ``place`` (the broker under test, and what it lacks), ``messages``, ``parts`` and
``waiting`` (common helpers), ``patient`` (a consumer of servers that are polled by a thread), ``scripts``
with ``process`` (other processes), ``collecting`` (choosing tests for a place), ``fixtures``, ``suite`` (the
tests, which need pytest and hypothesis).
"""

from qworker.testing.contract.place import Assumption, Place, mark

__all__ = ["Assumption", "Place", "mark"]
