"""SignalTable: the application's handlers of uWSGI's signals, and the sources of signals.

Comes from:  the application, when it is imported, through ``uwsgi_api`` or the decorators.
Goes to:     ``timers``, for the times, and a process of the spooler, for the functions.
Thread:      the one that imports the application; others only read.

A forked child has the table of its parent. A signal is a number from 0 to 255, and has one target:
``spooler`` (any spooler), or the absolute path of a spool directory (its spooler).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from qworker.safe_repr import safe_repr

logger = logging.getLogger(__name__)

SPOOLER = "spooler"


class Handler(NamedTuple):
    target: str
    function: Callable[[int], object]

    @property
    def is_for_spooler(self) -> bool:
        return self.target == SPOOLER or os.path.isabs(self.target)


class Timer(NamedTuple):
    """Raises its signal every *seconds*, first after one interval. iterations: how often; 0: without
    limit."""

    signum: int
    seconds: float
    iterations: int = 0


class Cron(NamedTuple):
    signum: int
    fields: CronFields


class Monitor(NamedTuple):
    """Raises its signal when the file or directory *path* has changed."""

    signum: int
    path: str


class SignalTable:
    """handlers: by signal. sources: in the order of registration."""

    def __init__(self) -> None:
        self.handlers: dict[int, Handler] = {}
        self.sources: list[Timer | Cron | Monitor] = []

    def register(self, signum: int, target: str, function: Callable[[int], object]) -> None:
        """Register *function*, called with the signal, for *target*. A handler for anything but a spooler,
        such as a worker of uWSGI, is kept but never run here, which is logged. ValueError when the signal has
        another handler, as in uWSGI."""
        number = checked(signum)
        if not callable(function):
            raise ValueError(f"the handler of signal {number} must be a function, not {safe_repr(function)}")
        if not isinstance(target, str):
            raise TypeError(
                f"the target of signal {number} must be text, such as 'spooler', not {safe_repr(target)}"
            )
        before = self.handlers.get(number)
        if before is not None and (before.target, _name(before.function)) != (target, _name(function)):
            raise ValueError(
                f"signal {number} already has a handler, {_name(before.function)}: use another signal"
            )
        handler = self.handlers[number] = Handler(target, function)
        if not handler.is_for_spooler:
            logger.warning(
                "signal %d is for %s, and no spooler runs its handler: give it target='spooler'",
                number,
                target or "a worker of uWSGI",
            )

    def is_registered(self, signum: int) -> bool:
        return signum in self.handlers

    def add_timer(self, signum: int, seconds: float, iterations: int = 0) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
            raise ValueError(f"the interval of a timer must be seconds above 0, not {safe_repr(seconds)}")
        self.sources.append(Timer(checked(signum), seconds, iterations))

    def add_cron(self, signum: int, fields: CronFields) -> None:
        for value in fields:
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"the fields of a cron must be whole numbers, not {safe_repr(value)}")
        if fields.never():
            logger.warning("the cron of signal %d never fires: %s", checked(signum), tuple(fields))
        self.sources.append(Cron(checked(signum), fields))

    def add_monitor(self, signum: int, path: str) -> None:
        self.sources.append(Monitor(checked(signum), os.path.abspath(path)))

    def run(self, signum: int) -> bool:
        """Run the handler of a signal in this process. Return False if no handler for a spooler is
        registered."""
        handler = self.handlers.get(signum)
        if handler is None or not handler.is_for_spooler:
            logger.warning("signal %d has no handler in this spooler", signum)
            return False
        handler.function(signum)
        return True


def checked(signum: int) -> int:
    """Return *signum* if it is a signal number; ValueError otherwise, where uWSGI truncates it to eight
    bits."""
    if isinstance(signum, bool) or not isinstance(signum, int) or not 0 <= signum <= 255:
        raise ValueError(f"a signal must be a whole number from 0 to 255, not {safe_repr(signum)}")
    return signum


def _name(function: Callable[..., object]) -> str:
    """Return a name that stays the same when the function's module is loaded again."""
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


# -- CronFields: when uWSGI's crons fire --
# A field that is negative, -N, means each value that N divides: -1 means all of them, day -2 the even
# days, and month -3 the months 3, 6, 9 and 12. That is not crontab's ``*/N``, which counts from the
# lowest value. Sunday is weekday 0, and also 7. When both a day and a weekday are given, either of them is
# enough.

_LOWEST = (0, 0, 1, 1, 0)
_HIGHEST = (59, 23, 31, 12, 7)


class CronFields(NamedTuple):
    """In the order of uWSGI's arguments."""

    minute: int = -1
    hour: int = -1
    day: int = -1
    month: int = -1
    weekday: int = -1

    def matches(self, local: time.struct_time) -> bool:
        """Return whether this minute of local time matches."""
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
        """Return whether a field has an impossible value. uWSGI accepts it, and never fires."""
        return any(
            value >= 0 and not low <= value <= high
            for value, low, high in zip(self, _LOWEST, _HIGHEST, strict=True)
        )


def _fits(field: int, value: int) -> bool:
    return field == value if field >= 0 else value % -field == 0
