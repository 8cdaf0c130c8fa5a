"""CronFields: the minutes that uWSGI's crons mean.

Comes from:  the application, through ``signal_table``.
Goes to:     ``clockwork``.
Thread:      any; never changed.

A field that is negative, -N, means each value that N divides: -1 means all of them, day -2 the even days, and
month -3 the months 3, 6, 9 and 12. That is not crontab's ``*/N``, which counts from the lowest
value. Sunday is weekday 0, and also 7. When both a day and a weekday are given, either of them will do.
"""

from __future__ import annotations

import time
from typing import NamedTuple

_LOWEST = (0, 0, 1, 1, 0)
_HIGHEST = (59, 23, 31, 12, 7)


class CronFields(NamedTuple):
    """In the order in which uWSGI takes them."""

    minute: int = -1
    hour: int = -1
    day: int = -1
    month: int = -1
    weekday: int = -1

    def matches(self, local: time.struct_time) -> bool:
        """Whether this is such a minute, by the local time."""
        weekday = (local.tm_wday + 1) % 7
        if not (
            _fits(self.minute, local.tm_min)
            and _fits(self.hour, local.tm_hour)
            and _fits(self.month, local.tm_mon)
        ):
            return False
        on_day = _fits(self.day, local.tm_mday)
        on_weekday = _fits(0 if self.weekday == 7 else self.weekday, weekday)
        if self.day >= 0 and self.weekday >= 0:
            return on_day or on_weekday
        return on_day and on_weekday

    def never(self) -> bool:
        """Whether a field has a value that no time has. uWSGI takes it, and never fires."""
        return any(
            value >= 0 and not low <= value <= high
            for value, low, high in zip(self, _LOWEST, _HIGHEST, strict=True)
        )


def _fits(field: int, value: int) -> bool:
    return field == value if field >= 0 else value % -field == 0
