"""The contract of brokers as tests, for whoever writes a broker: ours are held against them, too.

Comes from:  a test module that names a ``Place``, and takes the tests of ``suite`` into itself.
Goes to:     pytest, which collects them there, and the broker.
Thread:      the test's; some tests start more.

Modules, in reading order: ``place`` (what is tested, and what it lacks), ``messages`` and ``waiting`` (what
tests say often), ``scripts`` with ``process`` (what other processes do meanwhile), ``collecting`` (which test
runs on which place), ``fixtures``, ``suite`` (the tests, which need pytest and hypothesis).
"""

from qworker.testing.contract.place import Assumption, Place, mark

__all__ = ["Assumption", "Place", "mark"]
