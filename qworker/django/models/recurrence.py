"""recurrence: computes when a schedule is due next.

Comes from:  the model Schedule.
Goes to:     beat's ``wall_clock`` and ``crontab``.
Thread:      any; pure functions, independent of Django.

Minutes and hours are elapsed time. Days, weeks, months and years follow local time: a schedule due at noon
stays due at noon when daylight saving time begins or ends. A time in the gap when clocks go forward is due at
the end of the gap; a time that occurs twice is due the first time.

In a month without the day, the last day is used, and that day is kept from then on, since only the last due
time is stored. If missed times are skipped, first_after() continues from the last time that was not, so
shorter months or gaps in between have no effect.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from qworker.errors import InvalidSchedule

if TYPE_CHECKING:
    from qworker.beat.crontab import crontab

ONCE, MINUTES, HOURLY, DAILY, WEEKLY, BIWEEKLY = "O", "I", "H", "D", "W", "BW"
MONTHLY, BIMONTHLY, QUARTERLY, YEARLY, CRON = "M", "BM", "Q", "Y", "C"
"""The kinds of schedules, as stored."""

LASTS = (59, 23, 31, 12, 6)
"""The maximum of each crontab field: minute, hour, day of the month, month, day of the week."""
DAYS_LAST = (31, 6)
"""The maximums of the two day fields."""
OPEN_STEP = re.compile(r"^(\w+)/(\d+)$")

_MONTHS_OF_EVERY_LENGTH = 48
DAYS = {DAILY: 1, WEEKLY: 7, BIWEEKLY: 14}
MONTHS = {MONTHLY: 1, BIMONTHLY: 2, QUARTERLY: 3, YEARLY: 12}


def next_run(
    kind: str, due: datetime, zone: tzinfo | None, *, minutes: int | None = None, cron: str | None = None
) -> datetime:
    """Return when a schedule that was due at *due* is due next.

    - kind: one of the constants above; for ONCE the result is *due*.
    - due: aware, or naive where *zone* is None.
    - zone: the schedule's time zone; None if the project does not use time zones.
    - minutes: between two runs, for MINUTES; None or 0 is 1.
    - cron: five fields, for CRON; as in cron, one of the two day fields must match.

    The result is aware in UTC, or naive if *zone* is None. Raises InvalidSchedule for an unknown kind, an
    invalid crontab, and results after the year 9999.
    """
    return first_after(kind, due, due, zone, minutes=minutes, cron=cron)


def first_after(
    kind: str,
    due: datetime,
    now: datetime,
    zone: tzinfo | None,
    *,
    minutes: int | None = None,
    cron: str | None = None,
) -> datetime:
    """Return the first time after *now* at which a schedule that was due at *due* is due; *due* itself if it
    is later. The cost does not depend on how much time has passed.

    now: aware or naive, like *due*. The other arguments, the result and the exceptions are those of
    next_run(). For a schedule that never advances, such as ONCE, the result is *due*.
    """
    if due > now:
        return due
    if zone is not None:
        due = due.astimezone(UTC)
    try:
        if kind in (MINUTES, HOURLY):
            passed = timedelta(minutes=(minutes or 1) if kind == MINUTES else 60)
            return due if passed <= timedelta(0) else due + ((now - due) // passed + 1) * passed
        if kind == CRON:
            return _next_of_cron(cron, now, zone)
        if kind in DAYS or kind in MONTHS:
            return _wall_after(kind, due, now, zone)
    except (OverflowError, ValueError) as error:
        if isinstance(error, InvalidSchedule):
            raise
        raise InvalidSchedule(f"nothing is due after {now}: the calendar ends there") from error
    if kind != ONCE:
        raise InvalidSchedule(f"{kind!r:.20} is not a type of schedule")
    return due


def _wall_after(kind: str, due: datetime, now: datetime, zone: tzinfo | None) -> datetime:
    from qworker.beat.wall_clock import instant_of, shown

    def instant(wall: datetime) -> datetime:
        return wall if zone is None else instant_of(wall, zone).astimezone(UTC)

    wall, today = (due, now) if zone is None else (shown(due, zone), shown(now, zone))
    if kind in DAYS:
        wall += max(0, (today - wall).days // DAYS[kind] - 1) * timedelta(days=DAYS[kind])
    else:
        months = MONTHS[kind]
        # 48 months include the shortest month that the schedule reaches: the day does not change after that.
        for _ in range(_MONTHS_OF_EVERY_LENGTH // months):
            wall = months_later(wall, months)
            if instant(wall) > now:
                return instant(wall)
        missed = (today.year - wall.year) * 12 + today.month - wall.month
        wall = months_later(wall, max(0, missed // months - 1) * months)
    while (found := instant(wall)) <= now:
        wall = _stepped(kind, wall)
    return found


def months_later(wall: datetime, months: int) -> datetime:
    """Return *wall* plus *months*; the last day in a month that does not have the day."""
    year, month = divmod(wall.year * 12 + wall.month - 1 + months, 12)
    return wall.replace(year=year, month=month + 1, day=min(wall.day, monthrange(year, month + 1)[1]))


def _stepped(kind: str, wall: datetime) -> datetime:
    return wall + timedelta(days=DAYS[kind]) if kind in DAYS else months_later(wall, MONTHS[kind])


def crontab_of(text: str, zone: tzinfo = UTC) -> crontab:
    """Return the crontab of five fields in *text*. Raises InvalidSchedule if it is invalid.

    As in django-q2, ``5/10`` means ``5-59/10`` in the field of minutes, and ``?`` means any day.
    """
    from qworker.beat.crontab import crontab

    fields = str(text).split()
    if len(fields) == len(LASTS):
        text = " ".join(_spelt_out(field, last) for field, last in zip(fields, LASTS, strict=True))
    return crontab.from_text(text, tz=zone)


def _spelt_out(field: str, last: int) -> str:
    if field == "?" and last in DAYS_LAST:
        return "*"
    return ",".join(OPEN_STEP.sub(rf"\1-{last}/\2", part) for part in field.split(","))


def _next_of_cron(cron: str | None, due: datetime, zone: tzinfo | None) -> datetime:
    found = crontab_of(cron or "", zone or UTC).next(due.replace(tzinfo=UTC) if zone is None else due)
    if found is None:
        raise InvalidSchedule(f"{cron!r:.200} is never due after {due}")
    return found.replace(tzinfo=None) if zone is None else found.astimezone(UTC)
