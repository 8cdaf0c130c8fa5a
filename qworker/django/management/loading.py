"""loading: modules are loaded without a search for garbage, which loading makes next to none of.

Comes from:  the command that runs a cluster.
Goes to:     Python's collector.
Thread:      main.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause garbage collection, and exclude the objects that exist afterwards from it: they stay until the
    end.

    A project on Django has some sixty thousand objects by then. Each collection would take a tenth of the
    start's time, and find nothing.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
