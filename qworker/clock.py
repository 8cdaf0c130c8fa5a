"""Time: the clock used by all components, the machine's boot, and conversions.

Comes from:  the operating system, or `qworker.testing.FakeClock`.
Goes to:     every component that waits, expires or schedules.
Thread:      any.
Durations are float seconds; instants are epoch seconds inside and aware UTC datetimes at the edges.
"""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """The interface of a clock; `SYSTEM_CLOCK` in production, a FakeClock in tests."""

    def now(self) -> float:
        """Wall clock, epoch seconds. It may jump."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never goes back. For timeouts and intervals."""

    def uptime(self) -> float:
        """Like monotonic(), but including the time for which the machine was suspended. For leases."""

    def sleep(self, seconds: float) -> None:
        """Block this thread."""


_CLOCK_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def boottime() -> float:
    """Seconds since boot, including suspend if the system can tell (else the monotonic clock)."""
    return time.monotonic() if _CLOCK_BOOTTIME is None else time.clock_gettime(_CLOCK_BOOTTIME)


class SystemClock:
    """The operating system's clocks."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    uptime = staticmethod(boottime)
    sleep = staticmethod(time.sleep)


SYSTEM_CLOCK: Clock = SystemClock()
"""The clocks of this machine."""


@cache
def boot_id() -> str:
    """Return an identifier of this boot of the machine; '' if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


_LONGEST_ISO = 64
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|m|h|d|w)\s*")


def parse_iso(text: str) -> datetime:
    """Return an aware datetime from ISO 8601 `text`; a naive one is taken as UTC. ValueError if invalid."""
    if not isinstance(text, str) or len(text) > _LONGEST_ISO:
        raise ValueError(f"not an ISO 8601 time: {str(text)[:_LONGEST_ISO]!r}")
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"not an ISO 8601 time: {text!r} (example: 2030-01-31T12:00:00+00:00)") from None
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def to_epoch(value: datetime | str | float) -> float:
    """Return the epoch seconds of a datetime (naive = UTC), ISO 8601 text, or finite number of epoch seconds.

    Raises ValueError for invalid text and for NaN or infinity, TypeError for anything else.
    """
    if isinstance(value, str):
        value = parse_iso(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = "a date without a time" if isinstance(value, date) else type(value).__name__
        raise TypeError(f"expected a datetime, ISO 8601 text or epoch seconds, not {kind}")
    try:
        epoch = float(value)
    except OverflowError:
        epoch = math.inf
    if not math.isfinite(epoch):
        raise ValueError(f"not a time: {epoch}")
    return epoch


def to_epoch_in(value: datetime | str | float, zone: str) -> float:
    """Like to_epoch(), but a datetime or text without an offset is in the time zone *zone*, such as
    "Europe/Berlin"."""
    if isinstance(value, str):
        parse_iso(value)  # for its errors
        value = datetime.fromisoformat(value)
    if zone != "UTC" and isinstance(value, datetime) and value.tzinfo is None:
        from zoneinfo import ZoneInfo  # loads the database of zones, only if needed

        value = value.replace(tzinfo=ZoneInfo(zone))
    return to_epoch(value)


def from_epoch(epoch: float) -> datetime:
    """Return an aware UTC datetime of `epoch` seconds. ValueError outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(epoch, UTC)
    except (OverflowError, OSError, ValueError):
        raise ValueError(f"not a time between the years 1 and 9999: {epoch}") from None


def isoformat(epoch: float) -> str:
    """Return ISO 8601 text in UTC of `epoch` seconds."""
    return from_epoch(epoch).isoformat()


def seconds(value: float | timedelta | str) -> float:
    """Return float seconds of a number, a timedelta, or text such as "10", "1.5s", "1h30m", "200ms", "2d".

    Never negative. ValueError for an invalid value, TypeError for another type.
    """
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, str):
        result = _parse_duration(value)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected seconds, a timedelta or text such as '1h30m', not {type(value).__name__}")
    else:
        result = to_epoch(value)
    if result < 0:
        raise ValueError(f"a duration cannot be negative: {value!r}")
    return result


def _parse_duration(text: str) -> float:
    bare = text.strip()
    if len(bare) <= _LONGEST_ISO:
        try:
            return to_epoch(float(bare))
        except ValueError:
            pass
        total, position = 0.0, 0
        while position < len(bare) and (part := _PART.match(bare, position)):
            total += float(part[1]) * _UNITS[part[2]]
            position = part.end()
        if bare and position == len(bare):
            return total
    raise ValueError(f"not a duration: {text[:_LONGEST_ISO]!r} (examples: 10, 1.5s, 200ms, 1h30m, 2d)")
