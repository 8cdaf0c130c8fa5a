"""Kinds: read and write schedules of all kinds.

Comes from:  ``entry.py``, with values from users; ``serialization.py``, with stored data.
Goes to:     the kinds of schedules, one class each.
Thread:      any.

Stored data is untrusted: nothing in it is called or imported, and invalid data raises InvalidSchedule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

from qworker.beat.crontab import crontab
from qworker.beat.rules import rrule
from qworker.beat.schedule import Schedule, name_of
from qworker.beat.schedules import clocked, schedule
from qworker.beat.solar import solar
from qworker.errors import InvalidSchedule
from qworker.safe_repr import safe_repr

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""In the default repr() of objects."""
_RULE = ("FREQ=", "RRULE:", "DTSTART")


def maybe_schedule(value: Any) -> Schedule:
    """Return the schedule given by *value*.

    - seconds or a timedelta: an interval.
    - text: a crontab (``"0 4 * * *"``, ``"@daily"``) or a rule (``"FREQ=WEEKLY;BYDAY=MO"``).
    - a mapping: the output of write_schedule(), such as ``{"crontab": "0 4 * * *", "tz": "Europe/Berlin"}``.
    - any object with next() and previous(): itself.

    Raises InvalidSchedule for anything else.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, str):
        return rrule(value) if value.lstrip().upper().startswith(_RULE) else crontab.from_text(value)
    if isinstance(value, int | float | timedelta):
        return schedule(value)
    if isinstance(value, Mapping):
        return read_schedule(value)
    if callable(getattr(value, "next", None)) and callable(getattr(value, "previous", None)):
        return value  # type: ignore[no-any-return]
    if hasattr(value, "is_due"):
        raise InvalidSchedule(
            f"{value!r:.100} is one of Celery's schedules: use crontab and schedule from qworker.beat, or "
            "give it the methods next(after) and previous(before) of qworker.beat.Schedule"
        )
    raise InvalidSchedule(
        f"{value!r:.100} is not a schedule: use crontab(...), seconds, a timedelta, or text like '0 4 * * *'"
    )


def _zone(zone: tzinfo | None) -> dict[str, Any]:
    return {} if zone is None else {"tz": name_of(zone)}


_WRITERS: dict[type[Any], Callable[[Any], dict[str, Any]]] = {
    crontab: lambda each: {
        "crontab": each.text,
        **({"either": True} if each.either else {}),
        **_zone(each.tz),
    },
    schedule: lambda each: {
        "every": each.run_every.total_seconds(),
        **({"anchor": each.anchor.isoformat()} if each.anchor else {}),
    },
    clocked: lambda each: {"at": each.clocked_time.isoformat()},
    rrule: lambda each: {"rrule": each.text, "start": each.start.isoformat(), **_zone(each.tz)},
    solar: lambda each: {"solar": each.event, "lat": each.lat, "lon": each.lon, **_zone(each.tz)},
}


@lru_cache(1000)
def _rule(text: str, start: Any, tz: Any) -> rrule | str:
    """Return the rule, or its error. Cached, because finding out that a rule never matches takes long."""
    try:
        return rrule(text, _instant(start) if start else None, tz=tz)
    except InvalidSchedule as error:
        return str(error)


def _valid(found: rrule | str) -> rrule:
    if isinstance(found, str):
        raise InvalidSchedule(found)
    return found


_READERS: dict[str, Callable[[Mapping[str, Any]], Schedule]] = {
    "crontab": lambda given: (
        crontab.from_text(given["crontab"], given.get("tz"))
        if given.get("either")
        else crontab.from_string(given["crontab"], given.get("tz"))
    ),
    "every": lambda given: schedule(
        given["every"], anchor=_instant(given["anchor"]) if given.get("anchor") else None
    ),
    "at": lambda given: clocked(_instant(given["at"])),
    "rrule": lambda given: _valid(_rule(given["rrule"], given.get("start"), given.get("tz"))),
    "solar": lambda given: solar(given["solar"], given["lat"], given["lon"], tz=given.get("tz")),
}


def _instant(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


def write_schedule(given: Schedule) -> dict[str, Any]:
    """Return *given* as plain data. Raises InvalidSchedule for a custom schedule."""
    writer = _WRITERS.get(type(given))
    if writer is None:
        raise InvalidSchedule(
            f"{safe_repr(given, 200)} is a custom schedule: it can be in settings and code, but not in a "
            "store"
        )
    return writer(given)


def read_schedule(given: Any) -> Schedule:
    """Return the schedule written as *given*. Raises InvalidSchedule."""
    if not isinstance(given, Mapping):
        raise InvalidSchedule(f"{given!r:.200} is not a schedule")
    for kind, reader in _READERS.items():
        if kind in given:
            try:
                return reader(given)
            except InvalidSchedule:
                raise
            except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
                raise InvalidSchedule(f"{given!r:.200} is not a schedule: {error}") from error
    raise InvalidSchedule(f"{given!r:.200} is not a schedule: its kind is unknown here")


def schedule_text(given: Schedule) -> str:
    """Return text that is the same in each process, and differs when the schedule has changed."""
    try:
        try:
            return repr(sorted(write_schedule(given).items()))
        except InvalidSchedule:
            return _ADDRESS.sub("", ascii(given))
    except Exception:  # noqa: BLE001 - schedules may be user code
        return type(given).__qualname__
