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
    """Collect no garbage meanwhile, and never again in what is there afterwards: it stays until the end.

    A project on Django has some sixty thousand objects by then. To look at them all takes a tenth of the time
    of a start, each time, and finds nothing.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
