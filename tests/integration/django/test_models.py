"""The models of tasks and schedules, like in the manual."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import override_settings
from django.utils import timezone

from qworker.django.models import Failure, Schedule, Success, Task

START = datetime(2024, 3, 1, 12, tzinfo=UTC)


def task(number: int, **fields: Any) -> Task:
    given = {
        "id": f"{number:032x}",
        "name": f"name-{number}",
        "func": "math.copysign",
        "started": START,
        "stopped": START + timedelta(seconds=number),
        "result": number,
        **fields,
    }
    return Task.objects.create(**given)


def test_results_are_found_by_id_and_by_name() -> None:
    task(1, result={"any": object})
    assert Task.get_result(f"{1:032x}") == {"any": object}
    assert Task.get_result("name-1") == {"any": object}
    assert Task.get_task("name-1").pk == f"{1:032x}"


def test_unknown_task_is_none() -> None:
    assert Task.get_result("nobody") is None
    assert Task.get_task("f" * 32) is None


def test_newest_task_of_a_name_is_found() -> None:
    task(1, name="same")
    task(3, name="same")
    task(2, name="same")
    assert Task.get_result("same") == 3


def test_name_of_32_characters_is_found() -> None:
    task(1, name="n" * 32)
    assert Task.get_result("n" * 32) == 1


def test_groups() -> None:
    first = task(1, group="g")
    task(2, group="g", success=False, result="ValueError")
    task(3, group="other")
    assert list(first.group_result()) == [1]
    assert list(first.group_result(failures=True)) == [1, "ValueError"]
    assert first.group_count() == 2
    assert first.group_count(failures=True) == 1
    assert [found.pk for found in Task.get_task_group("g", failures=False)] == [first.pk]
    assert Task.get_task_group("g").count() == 2


def test_group_delete_removes_the_label_or_tasks() -> None:
    first = task(1, group="g")
    task(2, group="h")
    assert first.group_delete() == 1
    assert Task.objects.count() == 2
    assert Task.get_task("name-1").group is None
    assert Task.delete_group("h", objects=True)[0] == 1
    assert Task.objects.count() == 1


def test_task_without_group() -> None:
    alone = task(1)
    assert (alone.group_result(), alone.group_count(), alone.group_delete()) == (None, None, None)


def test_tasks_are_ordered_newest_first() -> None:
    for number in (2, 3, 1):
        task(number)
    assert list(Task.objects.values_list("result", flat=True)) == [3, 2, 1]


def test_proxy_models_filter_by_success() -> None:
    task(1)
    task(2, success=False)
    assert [found.result for found in Success.objects.all()] == [1]
    assert [found.result for found in Failure.objects.all()] == [2]


def test_time_taken_and_short_result() -> None:
    found = task(7, result="x" * 300)
    assert found.time_taken() == 7.0
    assert len(found.short_result) == 100
    assert str(found) == "name-7"


def test_function_can_be_an_argument() -> None:
    task(1, args=(len, Task), kwargs={"f": print})
    assert Task.get_task("name-1").args == (len, Task)


# -- schedules --


def schedule(**fields: Any) -> Schedule:
    return Schedule.objects.create(**{"func": "math.hypot", "next_run": START, **fields})


def test_arguments_are_parsed_as_literals() -> None:
    made = schedule(args="2, -2", kwargs="word='django', n=2")
    assert made.parse_args() == (2, -2)
    assert made.parse_kwargs() == {"word": "django", "n": 2}


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"args": "2,"}, None),
        ({"args": "open('/etc/passwd')"}, "args"),
        ({"kwargs": "x"}, "kwargs"),
        ({"kwargs": "{'x': 1}"}, None),
        ({"schedule_type": "C"}, "cron"),
        ({"schedule_type": "C", "cron": "0 0 30 2 *"}, "cron"),
        ({"schedule_type": "C", "cron": "0 4 * * mon-fri"}, None),
        ({"intended_date_kwarg": "not this"}, "intended_date_kwarg"),
        ({"intended_date_kwarg": "class"}, "intended_date_kwarg"),
        ({"intended_date_kwarg": "due"}, None),
        ({"schedule_type": "Z"}, "schedule_type"),
    ],
)
def test_full_clean_names_the_invalid_field(fields: dict[str, str], wrong: str | None) -> None:
    made = Schedule(func="math.hypot", **fields)
    if wrong is None:
        made.full_clean()
        return
    with pytest.raises(ValidationError) as caught:
        made.full_clean()
    assert list(caught.value.message_dict) == [wrong]


def test_daily_schedule_uses_the_projects_time_zone() -> None:
    """In Amsterdam, summer time starts on 31 March."""
    made = schedule(schedule_type=Schedule.DAILY, next_run=datetime(2024, 3, 30, 11, tzinfo=UTC))
    assert made.calculate_next_run() == datetime(2024, 3, 31, 10, tzinfo=UTC)


DAYS_OF_NEW_YORK = {
    "D": datetime(2024, 3, 10, 16, tzinfo=UTC),
    "W": datetime(2024, 3, 16, 16, tzinfo=UTC),
    "M": datetime(2024, 4, 9, 16, tzinfo=UTC),
    "Y": datetime(2025, 3, 9, 16, tzinfo=UTC),
    "C": datetime(2024, 3, 10, 5, tzinfo=UTC),  # midnight; two hours later the clock is set forward
    "H": datetime(2024, 3, 9, 18, tzinfo=UTC),
}
"""Noon on 9 March is 17:00 UTC, and 16:00 from the next day on."""


@pytest.mark.parametrize("kind", DAYS_OF_NEW_YORK)
def test_time_zone_setting_is_used(kind: str) -> None:
    noon = datetime(2024, 3, 9, 17, tzinfo=UTC)
    made = Schedule(func="math.hypot", schedule_type=kind, cron="0 0 * * *", next_run=noon)
    with override_settings(Q_CLUSTER={"name": "default", "time_zone": "America/New_York"}):
        assert made.calculate_next_run() == DAYS_OF_NEW_YORK[kind]
        made.cluster = "far"
    others = {"far": {"time_zone": "America/New_York"}}
    with override_settings(Q_CLUSTER={"name": "default", "ALT_CLUSTERS": others}):
        assert made.calculate_next_run() == DAYS_OF_NEW_YORK[kind]
        made.cluster = None
        assert (made.calculate_next_run() == DAYS_OF_NEW_YORK[kind]) == (kind in "HM")


@pytest.mark.parametrize(
    ("zone", "expected"),
    [("America/New_York", datetime(2024, 3, 10, 17)), ("Europe/Amsterdam", datetime(2024, 3, 10, 18))],
)
def test_time_zone_with_use_tz_false(zone: str, expected: datetime) -> None:
    """18:00 in Amsterdam is noon in New York, and six in the evening is 17:00 when that has summer time."""
    made = Schedule(func="math.hypot", schedule_type="D", next_run=datetime(2024, 3, 9, 18))
    with override_settings(USE_TZ=False, Q_CLUSTER={"name": "default", "time_zone": zone}):
        assert made.calculate_next_run() == expected


def test_next_run_can_be_calculated_from_another_time() -> None:
    made = schedule(schedule_type=Schedule.MINUTES, minutes=5)
    assert made.calculate_next_run(START + timedelta(hours=1)) == START + timedelta(hours=1, minutes=5)


def test_new_crontab_is_due_at_its_first_time() -> None:
    made = schedule(schedule_type=Schedule.CRON, cron="0 4 * * *")
    assert timezone.now() < made.next_run <= timezone.now() + timedelta(days=1)
    assert timezone.localtime(made.next_run).hour == 4
    made.next_run = START
    made.save()
    assert made.next_run == START


def test_last_run_is_a_link() -> None:
    done = task(1, name="a<b")
    made = schedule(task=done.pk)
    assert made.last_run() == f'<a href="/admin/qworker/success/{done.pk}/change/">[a&lt;b]</a>'
    assert made.success() is True
    Task.objects.update(success=False)
    assert "/failure/" in str(made.last_run())
    assert made.success() is False


def test_schedule_without_last_run() -> None:
    assert (schedule().last_run(), schedule().success()) == (None, None)
    assert (schedule(task="f" * 32).last_run(), schedule(task="f" * 32).success()) == (None, None)


def test_schedules_are_ordered_by_next_run() -> None:
    later, sooner = schedule(next_run=START + timedelta(1)), schedule()
    assert list(Schedule.objects.all()) == [sooner, later]
