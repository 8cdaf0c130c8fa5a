"""Forked: makes forked children drop the connections and leases of their parent's stores.

Comes from:  each module of a store, once.
Goes to:     the stores, in the child, before any other code runs there.
Thread:      the one that forked, the only one of the child.
"""

from __future__ import annotations

import logging
import os
from typing import Any
from weakref import WeakSet

logger = logging.getLogger(__name__)


def forgetful() -> WeakSet[Any]:
    """Return a weak set of stores whose ``_after_fork()`` is called in every forked child.

    Sets are handled in the order of these calls. A module that uses another's connections must call it later.
    """
    stores: WeakSet[Any] = WeakSet()

    def forked() -> None:
        for store in list(stores):
            try:
                store._after_fork()
            except Exception:  # must not affect the other stores
                logger.warning("a forked process could not drop the connections of %r", store, exc_info=True)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forked)
    return stores
