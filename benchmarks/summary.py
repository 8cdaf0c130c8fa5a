"""Plain statistics on lists of figures."""

import math
import statistics
from collections.abc import Sequence


def percentile(values: Sequence[float], rank: float) -> float:
    """The value that `rank` percent of the values do not exceed (nearest rank). Raises ValueError when
    empty."""
    if not values:
        raise ValueError("no values to take a percentile of")
    ordered = sorted(values)
    return ordered[max(1, math.ceil(rank * len(ordered) / 100)) - 1]


def median(values: Sequence[float]) -> float:
    """The middle value. Raises ValueError when empty."""
    if not values:
        raise ValueError("no values to take a median of")
    return statistics.median(values)
