"""cases: which cases of a long test each run of the suite includes.

Comes from:  tests with many cases of several seconds.
Goes to:     ``pytest.mark.parametrize`` and fixtures.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def cases(every: Iterable[Any], always: Collection[Any]) -> list[Any]:
    """Return the parameters *every*. Those that are not in *always* are left to ``make test-cases``; tuples
    are several parameters."""
    more = pytest.mark.more_cases
    return [
        each if each in always else pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=more)
        for each in every
    ]
