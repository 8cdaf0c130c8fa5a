"""What `qworker beat add` and `qworker beat set` take: a schedule, and the other fields of an entry.

Comes from:  the command line.
Goes to:     ``app.schedules``, as keyword arguments.
Thread:      main.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from qworker.app import QWorker
from qworker.beat import Schedule, clocked, crontab, rrule, schedule, solar
from qworker.beat.entry import LONGEST_NAME, OVERLAPS
from qworker.beat.kinds import read_schedule, write_schedule
from qworker.beat.schedule import zone_of
from qworker.cli.options import Instant, JsonValue, Number, ParamType, SettingValue, loose
from qworker.errors import InvalidSchedule

_F = TypeVar("_F", bound=Callable[..., Any])

KINDS = ("every", "cron", "at", "rrule", "sun")
_ZONED = ("crontab", "rrule", "solar")
"""The kinds of written schedules that have a time zone."""


class _Nothing:
    """What "none" stands for, as click takes None for an option that was not given."""


NOTHING = _Nothing()


class EntryName(ParamType):
    """The name of an entry, which a store can be asked for. (Whether it is a good one is told by `add`.)"""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text[:80]!r} is not UTF-8 text", param, ctx)
        if not text or "\0" in text or len(text) > LONGEST_NAME:
            self.fail(
                f"{text[:80]!r} is not a name of an entry: it has 1 to {LONGEST_NAME} characters", param, ctx
            )
        return text


class _Or(ParamType):
    """What another type takes, or one of some words. "none" is NOTHING."""

    def __init__(self, inner: ParamType, *words: str) -> None:
        self.name = inner.name
        self._inner = inner
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = value.strip().lower() if isinstance(value, str) else value
        if text in self._words:
            return NOTHING if text == "none" else text
        try:
            return self._inner.convert(value, param, ctx)
        except click.BadParameter as error:
            words = " or ".join(map(repr, self._words))
            raise click.BadParameter(f"{error.message.rstrip('.')}, or {words}", ctx, param) from None


class _Place(ParamType):
    """EVENT,LAT,LON."""

    name = "event,lat,lon"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        event, *numbers = (part.strip() for part in value.split(","))
        try:
            latitude, longitude = map(float, numbers)
        except ValueError:
            self.fail(f"{value[:80]!r} is not an event and place: write it as sunset,52.5,13.4", param, ctx)
        return event, latitude, longitude


class _CallOption(ParamType):
    """NAME=JSON. What is no JSON is text."""

    name = "name=json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name.isidentifier():
            self.fail(f"{value[:80]!r} is not an option of a call: write it as queue=slow", param, ctx)
        return name, loose(text)


_DURATION = SettingValue("worker_shutdown_timeout")
_INSTANT = Instant()

_SCHEDULES = (
    click.option("--every", type=_DURATION, metavar="DURATION", help="Every so often (30, 90s, 1h30m)."),
    click.option("--cron", metavar="TEXT", help='A crontab: "0 4 * * mon-fri", "@daily".'),
    click.option("--at", type=_INSTANT, help="Once, at this time (2027-01-31T08:00:00+01:00)."),
    click.option("--rrule", metavar="TEXT", help='A rule of RFC 5545: "FREQ=WEEKLY;BYDAY=MO;BYHOUR=9".'),
    click.option("--sun", type=_Place(), help="By the sun: sunset,52.5,13.4. Needs the extra `solar`."),
    click.option(
        "--tz",
        metavar="ZONE",
        help="The time zone whose clocks count (Europe/Berlin); default: the setting timezone.",
    ),
)
_FIELDS = (
    click.option(
        "-a", "--args", type=JsonValue(list, "'[2, 3]'"), help="Positional arguments as a JSON list."
    ),
    click.option(
        "-k",
        "--kwargs",
        type=JsonValue(dict, """'{"x": 2}'"""),
        help="Keyword arguments as a JSON object.",
    ),
    click.option(
        "--option",
        "options",
        type=_CallOption(),
        multiple=True,
        help="An option of the call, as queue=slow or priority=5; again for more; null takes one away.",
    ),
    click.option("--start", type=_Or(_INSTANT, "none"), help="Due times before this one do not count."),
    click.option("--end", type=_Or(_INSTANT, "none"), help="Due times after this one do not count."),
    click.option("--max-runs", type=_Or(Number(min=1), "none"), help="Call it so often in all, or `none`."),
    click.option(
        "--expires",
        type=_Or(_DURATION, "none"),
        help="A call that no worker has begun so long after its due time is not run; or `none`.",
    ),
    click.option("--jitter", type=_DURATION, help="Call it so much later at most, each time otherwise."),
    click.option(
        "--catch-up",
        type=_Or(Number(min=1), "latest", "skip"),
        metavar="latest/skip/NUMBER",
        help="What becomes of due times that were missed: one call, none, or so many of the last.",
    ),
    click.option(
        "--overlap",
        type=click.Choice(list(OVERLAPS)),
        help="What becomes of a due time while the call before has not ended.",
    ),
    click.option("--enabled/--disabled", default=None, help="Whether it is called, or paused."),
)


def schedule_options(command: _F) -> _F:
    """Add --every, --cron, --at, --rrule, --sun and --tz."""
    return _with(command, _SCHEDULES)


def field_options(command: _F) -> _F:
    """Add the options for all other fields of an entry."""
    return _with(command, _FIELDS)


def _with(command: _F, options: tuple[Callable[[_F], _F], ...]) -> _F:
    for option in reversed(options):
        command = option(command)
    return command


def zone_of_app(app: QWorker) -> tzinfo:
    """The time zone of an app's setting."""
    return UTC if app.conf.timezone == "UTC" else ZoneInfo(app.conf.timezone)


def placed(instant: datetime, zone: tzinfo) -> datetime:
    """*instant*, in *zone* when it names none."""
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=zone)


def read_schedule_options(app: QWorker, given: Mapping[str, Any], now: Schedule | None) -> Schedule | None:
    """Return the schedule that the options say; None when none of them was given.

    now: what it is so far, for --tz alone. Raises click.UsageError for more than one, and InvalidSchedule.
    """
    kinds = [kind for kind in KINDS if given[kind] is not None]
    zone_name = given["tz"]
    if len(kinds) > 1:
        raise click.UsageError(f"One schedule at a time: --{kinds[0]} or --{kinds[1]}.")
    if not kinds:
        return None if zone_name is None else _moved(now, zone_name)
    value = given[kinds[0]]
    if kinds == ["every"]:
        if zone_name is not None:
            raise click.UsageError("--tz does not go with --every, which looks at no clock on the wall.")
        return schedule(_interval(value))
    if kinds == ["at"]:
        return clocked(placed(value, zone_of(zone_name) or zone_of_app(app)))
    if kinds == ["cron"]:
        return crontab.from_text(value, zone_name)
    if kinds == ["rrule"]:
        return rrule(value, tz=zone_name)
    event, latitude, longitude = value
    return solar(event, latitude, longitude, tz=zone_name)


def _interval(seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise InvalidSchedule(f"{seconds:g} seconds are too long for an interval") from None


def _moved(now: Schedule | None, zone_name: str) -> Schedule:
    written = {} if now is None else write_schedule(now)
    if not any(kind in written for kind in _ZONED):
        raise click.UsageError(
            "--tz goes with --cron, --at, --rrule or --sun, or an entry that has such a one."
        )
    return read_schedule({**written, "tz": zone_name})


def read_field_options(
    app: QWorker, given: Mapping[str, Any], options_before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the other fields that were given, for ``app.schedules``. options_before: those of the call so
    far, which --option adds to."""
    zone = zone_of(given["tz"]) or zone_of_app(app)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or name in (*KINDS, "tz", "options"):
            continue
        if isinstance(value, datetime):
            value = placed(value, zone)
        fields[name] = None if value is NOTHING else value
    if given["options"]:
        together = {**options_before, **dict(given["options"])}
        fields["options"] = {name: value for name, value in together.items() if value is not None}
    return fields
