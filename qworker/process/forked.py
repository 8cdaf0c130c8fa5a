"""What a forked child must forget: the connections and leases of its parent's stores.

Comes from:  each module of a store, once.
Goes to:     the stores, in the child and before anything else runs there.
Thread:      the one that forked, which is the child's only one.
"""

from __future__ import annotations

import logging
import os
from typing import Any
from weakref import WeakSet

logger = logging.getLogger(__name__)


def forgetful() -> WeakSet[Any]:
    """A set for stores, each of which has its ``_after_fork()`` called in every forked child for as long as
    it lives.

    Children do that in the order in which modules asked for such a set: who uses another's connections asks
    later.
    """
    stores: WeakSet[Any] = WeakSet()

    def forked() -> None:
        for store in list(stores):
            try:
                store._after_fork()
            except Exception:  # the others still have to
                logger.warning("a forked process could not forget what %r holds", store, exc_info=True)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forked)
    return stores
