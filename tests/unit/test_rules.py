"""What the rules of calendars take from dateutil without loading it."""

from __future__ import annotations

from dateutil import rrule as theirs

from qworker.beat import rules


def test_frequencies_are_numbered_as_dateutil_does() -> None:
    for name in ("WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"):
        assert getattr(rules, name) == getattr(theirs, name)
