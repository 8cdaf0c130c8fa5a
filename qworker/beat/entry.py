"""Entry: what is called, when, and how.

Comes from:  ``catalog.py``, which collects entries from settings, tasks, code and the schedule store.
Goes to:     ``service.py``, which makes the calls.
Thread:      any; an entry is immutable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta, tzinfo
from types import MappingProxyType
from typing import Any

from qworker.beat.kinds import maybe_schedule
from qworker.beat.schedule import Schedule, since_1970
from qworker.beat.schedules import schedule
from qworker.errors import InvalidSchedule
from qworker.naming import close_matches

ALLOW, SKIP, REPLACE = "allow", "skip", "replace"
LATEST = "latest"
OVERLAPS = (ALLOW, SKIP, REPLACE)
MOST_CAUGHT_UP = 1000
LONGEST_NAME = 255
FIRST = datetime(1, 1, 2, tzinfo=UTC)
NOTHING: Mapping[str, Any] = MappingProxyType({})
"""Shared by all entries, because an empty dict takes 64 bytes."""
CELERYS = frozenset(["relative"])
"""Keys of an entry in ``beat_schedule`` that belong to its schedule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An entry of a schedule.

    - name (text): the entry's name. task: the name of the task to call.
    - schedule: when to call it; see ``maybe_schedule()``.
    - args, kwargs, options: of the call; options are those of apply_async.
    - enabled (bool): False for a paused entry.
    - start, end (aware datetimes): limits for due times.
    - max_runs (number): maximum number of calls; None: unlimited.
    - expires (seconds): a call that has not started this long after its due time does not run; None: no
      limit.
    - jitter (seconds): maximum delay of each call; the delay of a due time is always the same.
    - catch_up: what to do about missed due times: "latest" makes one call for all of them, "skip" makes no
      call more than a minute late, a number calls that many of the latest (only one if calls must not
      overlap).
    - overlap: what to do if the previous call has not ended: "allow" another, "skip" this one, or "replace"
      the previous call, which is revoked even if it is running.
    """

    name: str
    task: str
    schedule: Schedule
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    options: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    enabled: bool = True
    start: datetime | None = None
    end: datetime | None = None
    max_runs: int | None = None
    expires: float | None = None
    jitter: float = 0.0
    catch_up: str | int = LATEST
    overlap: str = ALLOW

    def __post_init__(self) -> None:
        for name, check, usual in _CHECKED:
            value = getattr(self, name)
            if value is usual:
                continue
            try:
                object.__setattr__(self, name, check(value))
            except InvalidSchedule as error:
                raise InvalidSchedule(f"entry {self.name!r:.200}: {error}") from None

    def changed(self, changes: Mapping[str, Any]) -> Entry:
        """Return the entry with *changes*. Raises InvalidSchedule."""
        _known(self.name, changes)
        return replace(self, **changes)

    def next(self, after: datetime) -> datetime | None:
        """Return the first due time after *after*; None when there is none. Raises InvalidSchedule when the
        schedule, which may be custom, fails."""
        zone = after.tzinfo
        if self.start is not None and after < self.start:
            after = max(self.start, FIRST) - timedelta(microseconds=1)
        found = self._asked(self.schedule.next, after, zone)
        if found is not None and since_1970(found) <= since_1970(after):
            raise InvalidSchedule(
                f"entry {self.name!r}: its schedule returned {found}, which is not after {after}"
            )
        return None if found is None or (self.end is not None and found > self.end) else found

    def previous(self, before: datetime) -> datetime | None:
        """Return the last due time before *before*; None when there is none. Raises like next()."""
        zone = before.tzinfo
        if self.end is not None and before > self.end:
            before = self.end + timedelta(microseconds=1)
        found = self._asked(self.schedule.previous, before, zone)
        if found is not None and since_1970(found) >= since_1970(before):
            raise InvalidSchedule(
                f"entry {self.name!r}: its schedule returned {found}, which is not before {before}"
            )
        return None if found is None or (self.start is not None and found < self.start) else found

    def _asked(
        self, ask: Callable[[datetime], datetime | None], instant: datetime, zone: tzinfo | None
    ) -> datetime | None:
        try:
            found = ask(instant.astimezone(zone))
        except OverflowError:  # at the limits of the calendar
            return None
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise InvalidSchedule(f"entry {self.name!r}: its schedule fails: {text:.500}") from error
        if found is not None and (not isinstance(found, datetime) or found.utcoffset() is None):
            raise InvalidSchedule(
                f"entry {self.name!r}: its schedule returned {found!r:.100}, which is not a datetime with a "
                "time zone"
            )
        return found


FIELDS = frozenset(each.name for each in fields(Entry)) - {"name"}


def read_entry(name: str, given: Any) -> Entry:
    """Return the entry described by *given*, a mapping as in ``beat_schedule``. Raises InvalidSchedule."""
    if isinstance(given, Entry):
        return given if given.name == name else replace(given, name=name)
    if not isinstance(given, Mapping):
        raise InvalidSchedule(
            f"entry {name!r:.200} must be a dict with 'task' and 'schedule', not {given!r:.200}"
        )
    values = {key: value for key, value in given.items() if key not in CELERYS}
    _known(name, values)
    for wanted in ("task", "schedule"):
        if wanted not in values:
            raise InvalidSchedule(f"entry {name!r:.200} has no {wanted}")
    if given.get("relative") and isinstance(values["schedule"], int | float | timedelta):
        values["schedule"] = schedule(values["schedule"], relative=True)
    return Entry(name=name, **values)


def _known(name: str, given: Mapping[str, Any]) -> None:
    for key in given:
        if key not in FIELDS:
            guesses = close_matches(str(key), FIELDS)
            hint = f"; did you mean {' or '.join(guesses)}?" if guesses else ""
            raise InvalidSchedule(f"entry {name!r:.200} has the unknown key {key!r:.100}{hint}")


# -- checks of the fields --


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > LONGEST_NAME or value != value.strip():
        raise InvalidSchedule(
            f"name={value!r:.300} is not valid: use text of up to {LONGEST_NAME} characters, without spaces "
            "around it"
        )
    if not value.isprintable():
        raise InvalidSchedule(f"name={value!r:.300} is not valid: it has characters that cannot be printed")
    return value


def _task(value: Any) -> str:
    value = getattr(value, "name", value)
    if not isinstance(value, str) or not value:
        raise InvalidSchedule(f"task={value!r:.200} is not valid: use the name of a task, or a task")
    return value


def _args(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise InvalidSchedule(f"args={value!r:.200} is not valid: use a list or tuple")
    return tuple(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if value is None:
        return NOTHING
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidSchedule(f"{value!r:.200} is not a mapping with names as keys")
    return dict(value) or NOTHING


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidSchedule(f"enabled={value!r:.200} is not valid: use True or False")
    return value


def _instant(value: Any) -> datetime | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidSchedule(
                f"{value!r:.100} is not an instant, such as 2027-01-01T00:00:00+00:00"
            ) from None
    if value is not None and (not isinstance(value, datetime) or value.utcoffset() is None):
        raise InvalidSchedule(f"{value!r:.100} is not an instant: use a datetime with a time zone")
    try:
        return value and value.astimezone(UTC)
    except OverflowError:
        raise InvalidSchedule(
            f"{value!r:.100} is not valid: in UTC it is outside the years 1 to 9999"
        ) from None


def _count(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InvalidSchedule(f"max_runs={value!r:.100} is not valid: use a number of 1 or more, or None")
    return value


def _seconds(value: Any) -> float:
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not 0 <= seconds < 1e10:
        raise InvalidSchedule(f"{value!r:.100} is not a number of seconds")
    return seconds


def _catch_up(value: Any) -> str | int:
    if value in (LATEST, SKIP):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_CAUGHT_UP:
        return value
    raise InvalidSchedule(
        f"catch_up={value!r:.100} is not valid: use 'latest', 'skip', or a number up to {MOST_CAUGHT_UP:,}"
    )


def _overlap(value: Any) -> str:
    if value not in OVERLAPS:
        raise InvalidSchedule(f"overlap={value!r:.100} is not valid: use {', '.join(OVERLAPS)}")
    return str(value)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "name": _name,
    "task": _task,
    "schedule": maybe_schedule,
    "args": _args,
    "kwargs": _mapping,
    "options": _mapping,
    "enabled": _bool,
    "start": _instant,
    "end": _instant,
    "max_runs": _count,
    "expires": _seconds,
    "jitter": _seconds,
    "catch_up": _catch_up,
    "overlap": _overlap,
}
USUAL = {each.name: each.default for each in fields(Entry)} | {"kwargs": NOTHING, "options": NOTHING}
_CHECKED = tuple((name, check, USUAL[name]) for name, check in _CHECKS.items())
"""Each field with its check, and a valid default that need not be checked."""
