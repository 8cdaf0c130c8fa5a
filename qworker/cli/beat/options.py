"""The options of `qworker beat add` and `qworker beat set`: a schedule, and the other fields of an entry.

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
"""The stored kinds of schedules that have a time zone."""


class _Nothing:
    """Represents "none", because click uses None for a missing option."""


NOTHING = _Nothing()


class EntryName(ParamType):
    """The name of an entry that a store can look up. (`add` checks whether it is valid for a new one.)"""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text[:80]!r} is not UTF-8 text", param, ctx)
        if not text or "\0" in text or len(text) > LONGEST_NAME:
            self.fail(
                f"{text[:80]!r} is not a valid entry name: use 1 to {LONGEST_NAME} characters",
                param,
                ctx,
            )
        return text


class _Or(ParamType):
    """Accepts the values of another type, and some additional words; "none" becomes NOTHING."""

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


class _SolarEvent(ParamType):
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
    """NAME=JSON. Anything but JSON is text."""

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
    click.option("--every", type=_DURATION, metavar="DURATION", help="At an interval (30, 90s, 1h30m)."),
    click.option("--cron", metavar="TEXT", help='A crontab: "0 4 * * mon-fri", "@daily".'),
    click.option("--at", type=_INSTANT, help="Once, at this time (2027-01-31T08:00:00+01:00)."),
    click.option("--rrule", metavar="TEXT", help='A rule of RFC 5545: "FREQ=WEEKLY;BYDAY=MO;BYHOUR=9".'),
    click.option("--sun", type=_SolarEvent(), help="By the sun: sunset,52.5,13.4. Needs the extra `solar`."),
    click.option(
        "--tz",
        metavar="ZONE",
        help="The time zone of local times (Europe/Berlin); default: the setting timezone.",
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
        help="An option of the call, such as queue=slow or priority=5; may be repeated; null removes one.",
    ),
    click.option("--start", type=_Or(_INSTANT, "none"), help="Ignore due times before this one."),
    click.option("--end", type=_Or(_INSTANT, "none"), help="Ignore due times after this one."),
    click.option("--max-runs", type=_Or(Number(min=1), "none"), help="Maximum number of calls, or `none`."),
    click.option(
        "--expires",
        type=_Or(_DURATION, "none"),
        help="A call that has not started this long after its due time does not run; or `none`.",
    ),
    click.option("--jitter", type=_DURATION, help="Maximum random delay of each call."),
    click.option(
        "--catch-up",
        type=_Or(Number(min=1), "latest", "skip"),
        metavar="latest/skip/NUMBER",
        help="Which missed due times to call: the latest, none, or up to this many of the latest.",
    ),
    click.option(
        "--overlap",
        type=click.Choice(list(OVERLAPS)),
        help="What happens at a due time if the previous call has not ended.",
    ),
    click.option("--enabled/--disabled", default=None, help="Whether it is called or paused."),
)


def schedule_options(command: _F) -> _F:
    """Add --every, --cron, --at, --rrule, --sun and --tz."""
    return _with(command, _SCHEDULES)


def field_options(command: _F) -> _F:
    """Add the options for the other fields of an entry."""
    return _with(command, _FIELDS)


def _with(command: _F, options: tuple[Callable[[_F], _F], ...]) -> _F:
    for option in reversed(options):
        command = option(command)
    return command


def zone_of_app(app: QWorker) -> tzinfo:
    """Return the time zone of an app's setting."""
    return UTC if app.conf.timezone == "UTC" else ZoneInfo(app.conf.timezone)


def placed(instant: datetime, zone: tzinfo) -> datetime:
    """Return *instant*, in *zone* if it is naive."""
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=zone)


def read_schedule_options(app: QWorker, given: Mapping[str, Any], now: Schedule | None) -> Schedule | None:
    """Return the schedule given by options; None if there is none.

    now: the current schedule, for --tz alone. Raises click.UsageError for several schedules, and
    InvalidSchedule.
    """
    kinds = [kind for kind in KINDS if given[kind] is not None]
    zone_name = given["tz"]
    if len(kinds) > 1:
        raise click.UsageError(f"Use --{kinds[0]} or --{kinds[1]}, not both.")
    if not kinds:
        return None if zone_name is None else _moved(now, zone_name)
    value = given[kinds[0]]
    if kinds == ["every"]:
        if zone_name is not None:
            raise click.UsageError("--tz cannot be used with --every, which does not depend on local time.")
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
        raise InvalidSchedule(f"an interval of {seconds:g} seconds is too long") from None


def _moved(now: Schedule | None, zone_name: str) -> Schedule:
    written = {} if now is None else write_schedule(now)
    if not any(kind in written for kind in _ZONED):
        raise click.UsageError("--tz needs --cron, --at, --rrule or --sun, or an entry with such a schedule.")
    return read_schedule({**written, "tz": zone_name})


def read_field_options(
    app: QWorker, given: Mapping[str, Any], options_before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the other given fields for ``app.schedules``. options_before: the current options of the call,
    which --option extends."""
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
