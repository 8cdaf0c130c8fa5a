"""Wait for other threads or processes.

Comes from:  tests with other threads or processes.
Goes to:     the condition of the test.
Thread:      the test's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 30.0
"""Maximum seconds for a condition on a busy machine."""


def until(
    condition: Callable[[], T], patience: float = PATIENCE, say: Callable[[], object] = lambda: ""
) -> T:
    """Call *condition* until it returns a true value; return that. patience: seconds after which the test
    fails. say: returns additional text for the failure."""
    deadline = time.monotonic() + patience
    pause = 0.002
    while not (answer := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {patience:g} s {say()}")
        time.sleep(pause)
        pause = min(pause * 1.3, 0.05)
    return answer
