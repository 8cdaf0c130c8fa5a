"""Entries: valid and invalid values of fields, and due times between start and end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import QWorker
from qworker.beat import clocked, crontab, schedule
from qworker.beat.entry import FIELDS, Entry, read_entry
from qworker.errors import InvalidSchedule

NOW = datetime(2026, 11, 23, 12, 30, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
ODD_VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        -1,
        0,
        0.5,
        10**400,
        float("nan"),
        float("inf"),
        "",
        " ",
        "x",
        "nan",
        "\0",
        "\ud800",
    ),
    *(
        b"x",
        b"\xff",
        [],
        [1],
        {},
        {1: 2},
        {"a": object()},
        object(),
        int,
        print,
        timedelta.max,
        timedelta(-1),
    ),
    *(datetime.max, datetime.min, datetime.max.replace(tzinfo=timezone(-timedelta(hours=23)))),
    *(
        datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
        "9999-12-31T23:59:59-23:00",
        set(),
        range(3),
    ),
]


def entry(**fields: Any) -> Entry:
    return Entry(**{"name": "a", "task": "t", "schedule": 60, **fields})


def test_default_fields() -> None:
    found = read_entry("a", {"task": "t", "schedule": 60})
    assert found == entry()
    assert (found.args, found.kwargs, found.options) == ((), {}, {})
    assert (found.enabled, found.start, found.end, found.max_runs, found.expires) == (True,) + (None,) * 4
    assert (found.jitter, found.catch_up, found.overlap) == (0.0, "latest", "allow")
    assert found.schedule == schedule(60)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("args", [1, 2], (1, 2)),
        ("kwargs", None, {}),
        ("options", {"queue": "q"}, {"queue": "q"}),
        ("schedule", "0 4 * * *", crontab.from_text("0 4 * * *")),
        ("start", "2027-01-01T02:00:00+02:00", datetime(2027, 1, 1, tzinfo=UTC)),
        ("end", NOW, NOW),
        ("end", None, None),
        ("max_runs", 3, 3),
        ("expires", timedelta(minutes=1), 60.0),
        ("expires", None, None),
        ("jitter", 5, 5.0),
        ("catch_up", "skip", "skip"),
        ("catch_up", 1000, 1000),
        ("overlap", "replace", "replace"),
        ("enabled", False, False),
    ],
)
def test_valid_values_of_fields(field: str, value: Any, expected: Any) -> None:
    found = getattr(entry(**{field: value}), field)
    assert found == expected
    assert isinstance(found, Mapping) or type(found) is type(expected)


def test_task_may_be_a_task_object() -> None:
    app = QWorker("proj", broker="memory://", set_as_current=False)

    @app.task(name="proj.report")
    def report() -> None: ...

    assert entry(task=report).task == "proj.report"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "", "name=''"),
        ("name", " a", "without spaces"),
        ("name", "a\n", "without spaces"),
        ("name", "a\0b", "cannot be printed"),
        ("name", "\ud800", "cannot be printed"),
        ("name", "x" * 256, "255 characters"),
        ("name", 7, "name=7"),
        ("task", "", "the name of a task"),
        ("task", None, "the name of a task"),
        ("schedule", "0 4 * *", "five fields"),
        ("schedule", None, "not a schedule"),
        ("args", "ab", "a list or tuple"),
        ("args", {"a": 1}, "a list or tuple"),
        ("args", 7, "a list or tuple"),
        ("kwargs", [1], "names as keys"),
        ("kwargs", {1: 2}, "names as keys"),
        ("options", "queue", "names as keys"),
        ("enabled", 1, "use True or False"),
        ("enabled", None, "use True or False"),
        ("start", "tomorrow", "not an instant"),
        ("start", datetime(2027, 1, 1), "with a time zone"),
        ("end", 5, "not an instant"),
        ("end", "9999-12-31T23:59:59-23:00", "outside the years 1 to 9999"),
        ("start", "0001-01-01T00:00:00+23:00", "outside the years 1 to 9999"),
        ("max_runs", 0, "of 1 or more"),
        ("max_runs", 1.5, "of 1 or more"),
        ("max_runs", True, "of 1 or more"),
        ("expires", -1, "not a number of seconds"),
        ("expires", "soon", "not a number of seconds"),
        ("jitter", None, "not a number of seconds"),
        ("jitter", float("nan"), "not a number of seconds"),
        ("jitter", float("inf"), "not a number of seconds"),
        ("jitter", True, "not a number of seconds"),
        ("jitter", 10**400, "not a number of seconds"),
        ("catch_up", 0, "up to 1,000"),
        ("catch_up", 1001, "up to 1,000"),
        ("catch_up", True, "up to 1,000"),
        ("catch_up", "last", "up to 1,000"),
        ("overlap", "forbid", "allow, skip, replace"),
    ],
)
def test_invalid_values_of_fields_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        entry(**{field: value})
    assert message in str(caught.value)
    assert str(caught.value).startswith("entry ")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("field", sorted(FIELDS | {"name"}))
@pytest.mark.parametrize("value", ODD_VALUES, ids=range(len(ODD_VALUES)))
def test_odd_values_raise_only_invalid_schedule(field: str, value: Any) -> None:
    with suppress(InvalidSchedule):
        found = entry(**{field: value})
        for instant in (NOW, datetime(1970, 1, 1, tzinfo=UTC), datetime(9998, 1, 1, tzinfo=UTC)):
            found.next(instant)
            found.previous(instant)


@given(
    st.dictionaries(
        st.sampled_from(sorted(FIELDS)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
    )
)
def test_plain_data_raises_only_invalid_schedule(fields: dict[str, Any]) -> None:
    with suppress(InvalidSchedule):
        entry(**fields)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schedule": 5}, "has no task"),
        ({"task": "t"}, "has no schedule"),
        ({"task": "t", "schedule": 5, "arg": 1}, "unknown key 'arg'; did you mean args"),
        ({"task": "t", "schedule": 5, 7: 1}, "unknown key 7"),
        ({"task": "t", "schedule": 5, "name": "b"}, "unknown key 'name'"),
        ("t", "must be a dict with"),
        (None, "must be a dict with"),
        ([("task", "t")], "must be a dict with"),
    ],
)
def test_invalid_descriptions_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidSchedule, match="entry 'a'") as caught:
        read_entry("a", given)
    assert message in str(caught.value)


def test_relative_of_celery_counts_from_1970() -> None:
    found = read_entry("a", {"task": "t", "schedule": 60, "relative": True})
    assert found.schedule == schedule(60, relative=True)
    assert read_entry(
        "a", {"task": "t", "schedule": "@daily", "relative": True}
    ).schedule == crontab.from_text("@daily")


def test_entry_object_gets_the_name_of_its_key() -> None:
    one = entry()
    assert read_entry("a", one) is one
    assert read_entry("b", one).name == "b"


def test_changed_validates_and_does_not_modify_the_entry() -> None:
    one = entry(args=(1,))
    assert one.changed({"args": [2], "enabled": False}) == entry(args=(2,), enabled=False)
    assert one.args == (1,)
    with pytest.raises(InvalidSchedule, match="unknown key 'nmae'"):
        one.changed({"nmae": "x"})
    with pytest.raises(InvalidSchedule, match="unknown key 'name'"):
        one.changed({"name": "x"})
    with pytest.raises(InvalidSchedule, match="max_runs=0"):
        one.changed({"max_runs": 0})


def test_start_and_end_are_inclusive() -> None:
    start, end = datetime(2026, 11, 23, 13, tzinfo=UTC), datetime(2026, 11, 23, 15, tzinfo=UTC)
    found = entry(schedule="0 * * * *", start=start, end=end)
    assert found.next(NOW - timedelta(days=1)) == start
    assert found.next(start) == start + timedelta(hours=1)
    assert found.next(end - timedelta(minutes=1)) == end
    assert found.next(end) is None
    assert found.previous(NOW + timedelta(days=1)) == end
    assert found.previous(end) == end - timedelta(hours=1)
    assert found.previous(start + timedelta(minutes=1)) == start
    assert found.previous(start) is None
    assert entry(start=datetime.min.replace(tzinfo=UTC)).next(datetime.min.replace(tzinfo=UTC)) is not None


@pytest.mark.parametrize("zone", [BERLIN, UTC])
@pytest.mark.parametrize(
    "given",
    ["*/15 * * * *", schedule(900), crontab("*/15", tz=BERLIN), "FREQ=HOURLY;BYMINUTE=0,15,30,45;BYSECOND=0"],
    ids=repr,
)
def test_repeated_hour_is_passed_in_both_directions(given: Any, zone: ZoneInfo) -> None:
    """Python compares two datetimes of the same zone by their local time."""
    found, quarter = entry(schedule=given), timedelta(minutes=15)
    begin, end = datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 25, 3, tzinfo=UTC)
    forward, backward = [begin.astimezone(zone)], [end.astimezone(zone)]
    while forward[-1].timestamp() < end.timestamp():
        forward += [each for each in [found.next(forward[-1])] if each]
    while backward[-1].timestamp() > begin.timestamp():
        backward += [each for each in [found.previous(backward[-1])] if each]
    assert [each.timestamp() for each in forward] == [each.timestamp() for each in reversed(backward)]
    if "FREQ" not in str(given):  # an RRULE has repeated times once
        every = [begin + number * quarter for number in range((end - begin) // quarter + 1)]
        assert [each.astimezone(UTC) for each in forward] == every


def test_clocked_instant_in_a_repeated_hour() -> None:
    once = datetime(2026, 10, 25, 2, 15, tzinfo=BERLIN, fold=1)
    found, before = entry(schedule=clocked(once)), datetime(2026, 10, 25, 2, 45, tzinfo=BERLIN, fold=0)
    assert found.next(before) == once
    assert found.previous(before) is None
    after = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)
    assert found.next(after) is None
    assert found.previous(after) == once


def test_start_and_end_do_not_change_the_time_zone() -> None:
    start, end = datetime(2026, 11, 23, 8, 30, tzinfo=UTC), datetime(2026, 11, 25, 8, 30, tzinfo=UTC)
    found = entry(schedule="0 9 * * *", start=start, end=end)
    first, last = (datetime(2026, 11, day, 9, tzinfo=BERLIN) for day in (24, 25))
    assert found.next(datetime(2026, 11, 1, tzinfo=BERLIN)) == first
    assert found.previous(datetime(2026, 12, 1, tzinfo=BERLIN)) == last
