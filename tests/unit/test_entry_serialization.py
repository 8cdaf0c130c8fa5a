"""Serialized schedule entries: round trips, and malformed data in a store."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.beat import Schedule, clocked, crontab, rrule, schedule, solar
from qworker.beat.catalog import HAND, listed
from qworker.beat.entry import FIELDS, Entry, read_entry
from qworker.beat.kinds import read_schedule, schedule_text, write_schedule
from qworker.beat.serialization import LARGEST, as_data, from_json, read_fields, to_json, write_fields
from qworker.beat.store import EntryRow
from qworker.errors import InvalidSchedule

ZONES = st.none() | st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York"])
INSTANTS = st.datetimes(
    datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.sampled_from([UTC, ZoneInfo("Asia/Tokyo")])
)
NOW = datetime(2026, 11, 23, 12, 30, tzinfo=UTC)


def numbers(first: int, last: int) -> st.SearchStrategy[Any]:
    one = st.integers(first, last)
    return st.one_of(
        st.just("*"),
        one,
        one.map(str),
        st.lists(one, min_size=1, max_size=4),
        st.tuples(one, one).map(lambda ends: f"{min(ends)}-{max(ends)}"),
        st.integers(1, 20).map(lambda step: f"*/{step}"),
    )


CRONTABS = st.builds(
    crontab,
    minute=numbers(0, 59),
    hour=numbers(0, 23),
    day_of_month=numbers(1, 28),
    month_of_year=numbers(1, 12),
    day_of_week=numbers(0, 6),
    tz=ZONES,
    either=st.booleans(),
)
SCHEDULES: st.SearchStrategy[Schedule] = st.one_of(
    CRONTABS,
    st.builds(
        schedule,
        st.timedeltas(timedelta(milliseconds=1), timedelta(days=3000)),
        anchor=st.none() | INSTANTS,
    ),
    st.builds(schedule, st.integers(1, 10**6), relative=st.just(True)),
    st.builds(clocked, INSTANTS),
    st.builds(
        rrule,
        st.sampled_from(["FREQ=DAILY", "FREQ=MONTHLY;BYDAY=-1FR", "RRULE:FREQ=WEEKLY;INTERVAL=2;COUNT=10"]),
        INSTANTS.map(lambda instant: instant.replace(microsecond=0, tzinfo=None)),
        tz=ZONES,
    ),
    st.builds(
        solar, st.sampled_from(["sunrise", "sunset"]), st.floats(-60, 60), st.floats(-179, 179), tz=ZONES
    ),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.builds(
    Entry,
    name=st.just("a"),
    task=st.text(min_size=1),
    schedule=SCHEDULES,
    args=st.lists(PLAIN, max_size=3),
    kwargs=st.dictionaries(st.text(), PLAIN, max_size=3),
    options=st.dictionaries(st.text(), PLAIN, max_size=3),
    enabled=st.booleans(),
    start=st.none() | INSTANTS,
    end=st.none() | INSTANTS,
    max_runs=st.none() | st.integers(1, 10**20),
    expires=st.none() | st.floats(0, 10**9),
    jitter=st.floats(0, 10**9),
    catch_up=st.sampled_from(["latest", "skip", 7]),
    overlap=st.sampled_from(["allow", "skip", "replace"]),
)


def reads(text: bytes) -> Any:
    """Parse *text* as the edit of an added entry, and of an entry of the settings."""
    given = "settings", {"task": "t", "schedule": 60}
    found = listed("a", None, EntryRow("a", 1, text, None)), listed("a", given, EntryRow("a", 1, text, None))
    for each in found:
        assert (each.entry is None) == (each.error is not None or each.removed)
        if each.entry is not None:
            schedule_text(each.entry.schedule)
    return found


# -- round trips --


@given(SCHEDULES)
def test_schedules_round_trip(one: Schedule) -> None:
    written = json.loads(json.dumps(write_schedule(one)))
    back = read_schedule(written)
    assert back == one
    assert back.next(NOW) == one.next(NOW)
    assert back.previous(NOW) == one.previous(NOW)
    assert schedule_text(back) == schedule_text(one)
    assert write_schedule(back) == written


@given(ENTRIES)
def test_entries_round_trip(one: Entry) -> None:
    text = to_json(as_data(one))
    back = read_entry("a", read_fields(from_json(text)))
    assert as_data(back) == from_json(text) | {"args": list(back.args)}
    assert {name for name in FIELDS if getattr(back, name) != getattr(one, name)} == set()


@given(SCHEDULES, SCHEDULES)
def test_different_schedules_have_different_descriptions(one: Schedule, other: Schedule) -> None:
    if write_schedule(one) != write_schedule(other):
        assert schedule_text(one) != schedule_text(other)


def test_fields_are_plain_data() -> None:
    start = datetime(2027, 1, 1, tzinfo=UTC)
    fields = {"schedule": crontab(0, 4, tz="Europe/Berlin"), "args": (1, 2), "start": start, "end": None}
    assert write_fields(fields) == {
        "schedule": {"crontab": "0 4 * * *", "tz": "Europe/Berlin"},
        "args": [1, 2],
        "start": "2027-01-01T00:00:00+00:00",
        "end": None,
    }


def test_custom_schedules_are_rejected() -> None:
    class Own(Schedule):
        def __repr__(self) -> str:
            raise RuntimeError("no")

    class Plain(Schedule):
        pass

    with pytest.raises(InvalidSchedule, match="is a custom schedule"):
        write_schedule(Plain())
    assert schedule_text(Plain()) == schedule_text(Plain())
    assert schedule_text(Own()).endswith("Own")
    with pytest.raises(InvalidSchedule, match="has no name"):
        write_schedule(crontab(tz=timezone(timedelta(hours=1))))


@pytest.mark.parametrize(
    "value", [{"args": [object()]}, {"args": [float("nan")]}, {"kwargs": {b"a": 1}}, {"args": [{1, 2}]}]
)
def test_values_that_are_not_json_are_rejected(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule, match="JSON"):
        to_json(value)


@pytest.mark.parametrize(
    "value", [UUID(int=7), Decimal("1.10"), NOW, NOW.date(), NOW.time(), b"\x00\xff", {"a": [b"x"]}], ids=repr
)
def test_types_of_messages_round_trip(value: Any) -> None:
    written = {"args": [value], "kwargs": {"a": value}}
    assert from_json(to_json(written)) == written


@pytest.mark.parametrize("damage", ['"soon"', "7", "{}", "null"])
def test_damaged_typed_values_are_rejected(damage: str) -> None:
    text = b'{"args":[{"__type__":"datetime","__value__":%s}]}' % damage.encode()
    with pytest.raises(InvalidSchedule, match="is not JSON"):
        from_json(text)


def test_cyclic_and_oversized_values_are_rejected() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidSchedule, match="JSON"):
        to_json({"args": loop})
    with pytest.raises(InvalidSchedule, match="too large"):
        to_json({"args": ["x" * LARGEST]})
    with pytest.raises(InvalidSchedule, match="too large"):
        from_json(b'{"args":["' + b"x" * LARGEST + b'"]}')
    assert from_json(to_json({"args": ["x" * (LARGEST - 100)]}))


# -- malformed data --


class Trap:
    """Records whether it is unpickled."""

    sprung = False

    def __reduce__(self) -> Any:
        return setattr, (Trap, "sprung", True)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"\0", b"NaN", b'{"a":', b"\xef\xbb\xbf{}"),
        pickle.dumps(Trap()),
        pickle.dumps({"fields": {}}),
        b"[" * 100_000,
        b'{"fields":' * 50_000,
        b'{"fields":{"args":' + b"[" * 900 + b"]" * 900 + b"}}",
        b'{"fields":{"schedule":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}}",
        b'{"fields":{"max_runs":' + b"9" * 4000 + b"}}",
        b'{"fields":{"max_runs":' + b"9" * 5000 + b"}}",
        b'{"fields":{"jitter":' + b"9" * 4000 + b"}}",
        b'{"fields":{"schedule":{"every":' + b"9" * 4000 + b"}}}",
        b'{"fields":{"' + b"x" * 100_000 + b'":1}}',
    ],
    ids=range(22),
)
def test_malformed_edits_are_reported(text: bytes) -> None:
    for each in reads(text):
        assert len(each.error or "") < 1000
    assert not Trap.sprung


@pytest.mark.parametrize(
    "given",
    [
        *(None, 5, "0 4 * * *", [], {}, {"kind": "crontab"}, {"os.system": "true"}, {"crontab": None}),
        *({"crontab": 5}, {"crontab": []}, {"crontab": "* * * *"}, {"crontab": "* * 30 2 *"}),
        *(
            {"crontab": "* * * * *", "tz": zone}
            for zone in ("Nowhere/City", "", "/etc/passwd", 5, [], {}, "\0")
        ),
        {"crontab": "* * * * *", "tz": "../../../etc/passwd"},
        {"crontab": "* * * * *", "tz": "x" * 10_000},
        {"crontab": "1," * 10_000 + "1 * * * *"},
        *({"every": every} for every in (None, "5", 0, -1, True, [], {}, 1e300, float("nan"), 10**4000)),
        *(
            {"every": 5, "anchor": anchor}
            for anchor in (5, "x", [1], "2027-01-01", "0001-01-01T00:00:00+23:00")
        ),
        *({"at": at} for at in (None, 5, "x", [], "2027-01-01T00:00:00")),
        *({"rrule": rule} for rule in (None, 5, [], "", "FREQ=", "FREQ=DAILY;INTERVAL=0", "x" * 5000)),
        *({"rrule": rule} for rule in ("FREQ=DAILY;COUNT=99999999", "FREQ=YEARLY;BYMONTHDAY=31;BYMONTH=2")),
        *(
            {"rrule": rule}
            for rule in ("FREQ=DAILY;UNTIL=x", "FREQ=DAILY;BYHOUR=99", "FREQ=DAILY;BYSETPOS=0")
        ),
        *({"rrule": "FREQ=DAILY", "start": start} for start in (5, "x", [1])),
        {"solar": "noonish", "lat": 0, "lon": 0},
        {"solar": "sunset"},
        {"solar": [], "lat": {}, "lon": None},
        {"solar": "sunset", "lat": "0", "lon": 0},
        {"solar": "sunset", "lat": 1e308, "lon": 0},
    ],
    ids=lambda given: f"{given!r:.50}",
)
def test_malformed_schedules_are_rejected(given: Any) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        read_schedule(given)
    assert len(str(caught.value)) < 1500
    reads(json.dumps({"fields": {"schedule": given}}).encode())


@pytest.mark.parametrize(
    "at", ["9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59+00:00"]
)
def test_instants_at_the_ends_of_the_calendar(at: str) -> None:
    found = read_entry("a", {"task": "t", "schedule": {"at": at}})
    for ask in (found.next, found.previous):
        with suppress(InvalidSchedule):
            ask(NOW)


JSON_OF_KINDS = st.dictionaries(
    st.sampled_from(
        ["crontab", "every", "at", "rrule", "solar", "tz", "start", "anchor", "either", "lat", "lon", "x"]
    ),
    PLAIN
    | st.sampled_from(["* * * * *", "FREQ=DAILY", "UTC", "2027-01-01T00:00:00+00:00", "sunset", 5, 0.1]),
    max_size=4,
)


@given(JSON_OF_KINDS)
def test_arbitrary_schedules_raise_only_invalid_schedule(given: Any) -> None:
    try:
        found = read_schedule(given)
    except InvalidSchedule:
        return
    assert read_schedule(write_schedule(found)) == found


@given(
    st.dictionaries(st.sampled_from([*sorted(FIELDS), "x"]), PLAIN | JSON_OF_KINDS, max_size=4),
    st.dictionaries(st.sampled_from(["added", "removed", "fields", "x"]), PLAIN, max_size=3),
)
def test_arbitrary_edits_do_not_raise(fields: dict[str, Any], marks: dict[str, Any]) -> None:
    found, over = reads(json.dumps({"fields": fields, **marks}).encode())
    assert found.source == HAND
    assert over.name == "a"


@given(st.binary(max_size=200))
def test_arbitrary_bytes_do_not_raise(text: bytes) -> None:
    reads(text)
