"""solar: schedules by the position of the sun.

Comes from:  code and settings. Requires the extra ``solar``.
Goes to:     ephem, which computes the position of the sun.
Thread:      any; it is immutable.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, NamedTuple

from qworker.beat.schedule import EPOCH, Schedule
from qworker.errors import ConfigurationError, InvalidSchedule


class _Event(NamedTuple):
    """ephem's name; the altitude of the sun in degrees; whether its centre counts rather than its edge."""

    what: str
    horizon: str = "0"
    center: bool = False


EVENTS = {
    "dawn_astronomical": _Event("rising", "-18", True),
    "dawn_nautical": _Event("rising", "-12", True),
    "dawn_civil": _Event("rising", "-6", True),
    "sunrise": _Event("rising"),
    "solar_noon": _Event("transit"),
    "sunset": _Event("setting"),
    "dusk_civil": _Event("setting", "-6", True),
    "dusk_nautical": _Event("setting", "-12", True),
    "dusk_astronomical": _Event("setting", "-18", True),
}
BOUNDARIES = {"rising": 18, "setting": 6, "transit": 0}
"""The hour of local solar time at which a day begins; the event never occurs at this hour."""
DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
MOST_DAYS = 400
"""How far to search for a day on which the sun rises."""


class solar(Schedule):
    """``solar("sunset", 52.5, 13.4)``: each day at a solar event.

    - event (text): sunrise, sunset, solar_noon, dawn_civil, dawn_nautical, dawn_astronomical, dusk_civil,
      dusk_nautical or dusk_astronomical.
    - lat, lon: degrees, north and east positive.

    Where the sun does not rise or set for months, the next due time is the next time it does. Raises
    InvalidSchedule for an invalid event or place, and ConfigurationError if ephem is not installed.
    """

    __module__ = "qworker.beat"

    def __init__(self, event: str, lat: float, lon: float, *, tz: tzinfo | str | None = None) -> None:
        super().__init__(tz)
        if event not in EVENTS:
            raise InvalidSchedule(f"{event!r:.100} is not a solar event: use one of {', '.join(EVENTS)}")
        if not _is_number(lat, 90) or not _is_number(lon, 180):
            raise InvalidSchedule(
                f"({lat!r:.50}, {lon!r:.50}) is not a place: lat must be -90 to 90, lon -180 to 180"
            )
        self.event, self.lat, self.lon = event, float(lat), float(lon)
        self._observer()

    def _observer(self) -> Any:
        try:
            import ephem
        except ImportError:
            raise ConfigurationError(
                "schedules by the sun need ephem: pip install 'qworker-queue[solar]'"
            ) from None
        observer = ephem.Observer()
        observer.lat, observer.lon, observer.elevation = str(self.lat), str(self.lon), 0
        observer.horizon = EVENTS[self.event].horizon
        return observer

    def next(self, after: datetime) -> datetime | None:
        return self._find(1, after)

    def previous(self, before: datetime) -> datetime | None:
        return self._find(-1, before)

    def _find(self, way: int, instant: datetime) -> datetime | None:
        zone, observer = self.zone(instant), self._observer()
        begin = instant.astimezone(UTC)
        # Events are cut to whole seconds, so one may be up to a second later than returned.
        first = begin if way > 0 else begin + SECOND
        start = EPOCH + timedelta(hours=BOUNDARIES[EVENTS[self.event].what] - self.lon / 15)
        day = (first - start) // DAY
        for number in range(day, day + way * MOST_DAYS, way):
            at = self._of_day(observer, start + number * DAY)
            if at is not None and ((at > begin) if way > 0 else (at < begin)):
                return at.astimezone(zone)
        return None

    def _of_day(self, observer: Any, start: datetime) -> datetime | None:
        """Return the event within a day from *start*; None when there is none.

        ephem approximates an event, and the result depends on the start. So each event is computed from the
        same start: otherwise it could be returned twice, a second apart.
        """
        import ephem

        event = EVENTS[self.event]
        options = {} if event.what == "transit" else {"use_center": event.center}
        observer.date = start.replace(tzinfo=None)
        try:
            found = getattr(observer, f"next_{event.what}")(ephem.Sun(), **options)
        except ephem.CircumpolarError:
            return None
        at: datetime = found.datetime().replace(tzinfo=UTC, microsecond=0)
        return at if at < start + DAY else None

    def words(self) -> str:
        event = self.event.replace("_", " ")
        return f"at {event} at {abs(self.lat):g}°{'NS'[self.lat < 0]} {abs(self.lon):g}°{'EW'[self.lon < 0]}"

    def _identity(self) -> tuple[Any, ...]:
        return (self.event, self.lat, self.lon)

    def __repr__(self) -> str:
        return f"<solar: {self.event} at latitude {self.lat}, longitude: {self.lon}>"


def _is_number(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= most
