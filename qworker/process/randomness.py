"""Random pauses and orders, with a generator of our own.

Comes from:  code that waits before another attempt, or chooses among servers.
Goes to:     nothing.
Thread:      any.

Programs seed the generator of the module ``random`` to repeat their runs: ours must not take numbers from it.
"""

from __future__ import annotations

import os
import random

RANDOM = random.Random()
if hasattr(os, "register_at_fork"):  # otherwise the children of one parent would pause equally long
    os.register_at_fork(after_in_child=RANDOM.seed)
