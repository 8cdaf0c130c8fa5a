"""The scheduler of a cluster, with a fake clock."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection
from django.test import override_settings
from django.utils import timezone

from qworker.beat.stores import MemoryScheduleStore
from qworker.django.clusters.scheduling import LONGEST_REST, Scheduler
from qworker.django.models import Schedule, Task
from qworker.django.signing import SignedPackage
from qworker.django.tasks import schedule
from qworker.testing.clock import FakeClock
from qworker.transports.lease import Envelope

NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def crashed(name: str, error: BaseException) -> None:
    raise error


class Cluster:
    """The scheduler of a cluster, at noon on a day in January. It collects the packages that it sends."""

    def __init__(self, at: datetime = NOON, store: Any = None) -> None:
        self.clock = FakeClock(at.timestamp())
        self.store = store or MemoryScheduleStore(self.clock)
        self.elapsed = 0.0
        self.sent: list[dict[str, Any]] = []
        self.queues: list[str] = []
        conf = SimpleNamespace(beat_history_expires=86400.0)
        app = SimpleNamespace(clock=self.clock, conf=conf, broker=SimpleNamespace(sender=self))
        self.scheduler = Scheduler(app, crashed, self.store)  # type: ignore[arg-type]

    def push(self, envelopes: list[Envelope], timeout: float = 10.0) -> None:
        for each in envelopes:
            ((text,), *_) = json.loads(each.body)
            self.sent.append(SignedPackage.loads(text))
            self.queues.append(each.queue)

    def run_due(self, later: timedelta = timedelta()) -> list[dict[str, Any]]:
        """Advance the clock by *later*; return the packages that are sent then."""
        self.clock.advance(later.total_seconds())
        self.elapsed += LONGEST_REST
        before = len(self.sent)
        while self.scheduler.step(self.clock.monotonic() + self.elapsed) == 0.0:
            pass
        return self.sent[before:]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def new(**fields: Any) -> Schedule:
    return Schedule.objects.create(**{"func": "math.copysign", "args": "2,-2", "next_run": NOON, **fields})


def again(row: Schedule) -> Schedule:
    row.refresh_from_db()
    return row


def test_line_breaks_in_names_are_escaped_in_the_log(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    new(name="a\nCRITICAL all is lost", schedule_type="H")
    new(name="b\nCRITICAL all is lost", args="(")
    caplog.set_level("INFO", "django-q")
    cluster.run_due()
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if "\\nCRITICAL" in line and "\n" not in line] == told
    assert len(told) == 2


def test_table_is_read_once_a_second_and_at_due_times(cluster: Cluster) -> None:
    row = new(next_run=NOON + timedelta(seconds=60.4), schedule_type="H")
    cluster.run_due()
    elapsed: list[float] = []

    def reads(execute: Any, statement: str, *rest: Any) -> Any:
        elapsed.append(cluster.clock.monotonic() - began)
        return execute(statement, *rest)

    with connection.execute_wrapper(reads):
        cluster.clock.advance(57)
        began = cluster.clock.monotonic() + 1.0
        while (now := cluster.clock.monotonic()) < began + 5:
            cluster.clock.advance(cluster.scheduler.step(now + cluster.elapsed))
    assert [round(each, 1) for each in sorted(set(elapsed))] == [-1.0, 0.0, 1.0, 2.0, 2.4, 3.4, 4.4]
    assert again(row).task == cluster.sent[0]["id"]


# -- what is sent --


def test_due_schedule_sends_a_task(cluster: Cluster) -> None:
    row = schedule(
        "math.copysign", 2, -2, name="sign", hook="hooks.told", schedule_type="D", next_run=NOON,
        q_options={"timeout": 30}, extra="word",
    )  # fmt: skip
    (task,) = cluster.run_due()
    assert (task["func"], task["args"], task["kwargs"]) == ("math.copysign", (2, -2), {"extra": "word"})
    assert (task["hook"], task["group"], task["timeout"]) == ("hooks.told", "sign", 30)
    assert again(row).task == task["id"]
    assert row.next_run == NOON + timedelta(days=1)
    assert cluster.run_due() == []


def test_group_is_the_option_the_name_or_the_key(cluster: Cluster) -> None:
    row = new()
    new(kwargs="q_options={'group': 'mine', 'hook': 'hooks.mine'}", hook="hooks.other")
    first, second = sorted(cluster.run_due(), key=lambda task: task["group"])
    assert first["group"] == str(row.pk)
    assert (second["group"], second["hook"], second["kwargs"]) == ("mine", "hooks.mine", {})


@pytest.mark.parametrize("text", ["word='django', n=2", "{'word': 'django', 'n': 2}"])
def test_keywords_can_be_written_in_two_forms(cluster: Cluster, text: str) -> None:
    new(kwargs=text)
    assert cluster.run_due()[0]["kwargs"] == {"word": "django", "n": 2}


def test_intended_time_is_passed_as_keyword(cluster: Cluster) -> None:
    new(intended_date_kwarg="at", schedule_type="H", next_run=NOON - HOUR)
    assert [task["kwargs"]["at"] for task in cluster.run_due()] == [
        "2024-01-31T11:00:00+00:00", "2024-01-31T12:00:00+00:00"
    ]  # fmt: skip


def test_task_gets_the_options_of_its_schedule(cluster: Cluster) -> None:
    options = {"save": False, "cached": 60, "ack_failure": True, "task_name": "nightly"}
    schedule("math.sqrt", 4, next_run=NOON, q_options=options)
    (task,) = cluster.run_due()
    assert {name: task[name] for name in ("save", "cached", "ack_failure", "name")} == {
        "save": False, "cached": 60, "ack_failure": True, "name": "nightly"
    }  # fmt: skip


def test_options_can_be_given_as_keywords(cluster: Cluster) -> None:
    schedule("math.sqrt", 4, next_run=NOON, timeout=30, task_name="nightly", extra="word")
    new(kwargs="save=False, group='mine', cluster='c', q_options={'group': 'math'}")
    new(name="own", func="math.ceil", kwargs="hook='mine', group='mine'", hook="hooks.told")
    first, second, third = sorted(cluster.run_due(), key=lambda task: task["func"], reverse=True)
    assert (first["timeout"], first["name"], first["kwargs"]) == (30, "nightly", {"extra": "word"})
    assert (second["save"], second["group"]) == (False, "math")
    assert (third["hook"], third["group"]) == ("hooks.told", "own")
    assert [task["kwargs"] for task in (second, third)] == [
        {"group": "mine", "cluster": "c"}, {"group": "mine", "hook": "mine"}
    ]  # fmt: skip


def test_minutes_default_to_one() -> None:
    made = schedule("math.sqrt", 4, schedule_type="I", next_run=NOON)
    assert made.calculate_next_run() == NOON + timedelta(minutes=1)


@pytest.mark.parametrize(("field", "value", "kind"), [("minutes", 5, "I"), ("cron", "0 4 * * *", "C")])
def test_field_of_another_type_warns(field: str, value: Any, kind: str) -> None:
    """Without a type it runs once, like with django-q2."""
    with pytest.warns(UserWarning, match=f"{field}=.* type 'O'.* schedule_type='{kind}'") as told:
        schedule("math.sqrt", 4, **{field: value})
    assert told[0].filename == __file__
    schedule("math.sqrt", 4, schedule_type=kind, **{field: value})


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"schedule_type": "C"}, "cron"),
        ({"schedule_type": "C", "cron": "61 * * * *"}, "cron"),
        ({"schedule_type": "I", "minutes": -1}, "minutes"),
        ({"schedule_type": "I", "minutes": "soon"}, "minutes"),
        ({"schedule_type": "X"}, "schedule_type"),
        ({"repeats": "often"}, "repeats"),
        ({"repeats": None}, "repeats"),
        ({"next_run": "soon"}, "next_run"),
    ],
)
def test_invalid_field_is_refused_by_name(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError) as caught:
        schedule("math.sqrt", 4, **fields)
    assert list(caught.value.message_dict) == [wrong]


def test_schedule_without_function_is_refused() -> None:
    with pytest.raises(ValidationError, match="func"):
        schedule(None)
    assert Schedule.objects.count() == 0


def test_arguments_are_stored_as_literals() -> None:
    row = again(schedule("math.sqrt"))
    assert (row.args, row.kwargs) == ("()", "{}")
    row = again(schedule("math.copysign", 1, 2, extra="word"))
    assert (row.args, row.kwargs) == ("(1, 2)", "{'extra': 'word'}")


def test_schedules_of_other_clusters_are_ignored(cluster: Cluster) -> None:
    for name in (None, "", "default", "other"):
        new(func="math.sqrt", args="4", kwargs=f"{{'of': {name!r}}}", cluster=name)
    assert {task["kwargs"]["of"] for task in cluster.run_due()} == {None, "", "default"}
    with override_settings(Q_CLUSTER={"name": "default", "cluster_name": "other"}):
        other = Cluster()
        assert [task["kwargs"]["of"] for task in other.run_due()] == ["other"]
        assert other.queues == ["other"]


def test_management_command_can_be_scheduled(cluster: Cluster) -> None:
    schedule("django.core.management.call_command", "clearsessions", schedule_type="H", next_run=NOON)
    assert cluster.run_due()[0]["args"] == ("clearsessions",)


# -- types --


@pytest.mark.parametrize(
    ("kind", "following"),
    [
        (Schedule.MINUTES, NOON + timedelta(minutes=1)),
        (Schedule.HOURLY, NOON + HOUR),
        (Schedule.DAILY, NOON + timedelta(days=1)),
        (Schedule.WEEKLY, NOON + timedelta(days=7)),
        (Schedule.BIWEEKLY, NOON + timedelta(days=14)),
        (Schedule.MONTHLY, datetime(2024, 2, 29, 12, tzinfo=UTC)),
        # The clock of Amsterdam shows 13:00, in summer too.
        (Schedule.BIMONTHLY, datetime(2024, 3, 31, 11, tzinfo=UTC)),
        (Schedule.QUARTERLY, datetime(2024, 4, 30, 11, tzinfo=UTC)),
        (Schedule.YEARLY, datetime(2025, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_next_run_of_every_type(cluster: Cluster, kind: str, following: datetime) -> None:
    row = new(schedule_type=kind)
    assert len(cluster.run_due()) == 1
    assert again(row).next_run == following
    assert kind in dict(Schedule.TYPE)


def test_type_letters_match_the_manual() -> None:
    names = "ONCE MINUTES HOURLY DAILY WEEKLY BIWEEKLY MONTHLY BIMONTHLY QUARTERLY YEARLY CRON"
    letters = [getattr(Schedule, name) for name in names.split()]
    assert letters == ["O", "I", "H", "D", "W", "BW", "M", "BM", "Q", "Y", "C"]
    assert [letter for letter, _ in Schedule.TYPE] == letters


def test_minutes_set_the_interval(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.MINUTES, minutes=5)
    cluster.run_due()
    assert again(row).next_run == NOON + timedelta(minutes=5)


def test_crontab_sets_the_next_run(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.CRON, cron="30 13 * * *")
    Schedule.objects.update(next_run=NOON)
    assert len(cluster.run_due()) == 1
    assert again(row).next_run == NOON + timedelta(minutes=30)  # 13:30 in Amsterdam


def test_next_run_is_calculated_from_the_last_one(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    cluster.run_due(timedelta(minutes=17))
    assert again(row).next_run == NOON + HOUR


def test_monthly_schedule_keeps_a_shortened_day(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.MONTHLY)
    assert len(cluster.run_due(timedelta(days=40))) == 2  # 31 January, 29 February
    assert again(row).next_run.date().isoformat() == "2024-03-29"


def test_yearly_schedule_on_a_leap_day(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.YEARLY, next_run=datetime(2024, 2, 29, 12, tzinfo=UTC))
    assert len(cluster.run_due(timedelta(days=800))) == 3
    assert again(row).next_run.date().isoformat() == "2027-02-28"


# -- repeats --


def test_repeats_limit_the_runs(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY, repeats=2)
    assert len(cluster.run_due()) == 1
    assert again(row).repeats == 1
    assert len(cluster.run_due(5 * HOUR)) == 1
    assert again(row).repeats == 0
    assert cluster.run_due(5 * HOUR) == []


def test_unlimited_repeats_count_below_zero(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    assert again(row).repeats == -1
    cluster.run_due()
    assert again(row).repeats == -2
    cluster.run_due(2 * HOUR)
    assert again(row).repeats == -4


def test_zero_repeats_pause_the_schedule(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY, repeats=0)
    assert cluster.run_due() == []
    Schedule.objects.filter(pk=row.pk).update(repeats=-1)
    assert len(cluster.run_due()) == 1


def test_once_without_repeats_is_deleted_after_running(cluster: Cluster) -> None:
    new()
    assert len(cluster.run_due()) == 1
    assert not Schedule.objects.exists()


def test_once_with_repeats_is_kept_after_running(cluster: Cluster) -> None:
    row = new(repeats=3)
    (task,) = cluster.run_due()
    assert (again(row).repeats, row.task, row.next_run) == (0, task["id"], NOON)
    assert cluster.run_due(HOUR) == []


@pytest.mark.parametrize("later", [timedelta(), timedelta(minutes=5)], ids=["at once", "at a new time"])
def test_once_runs_again_if_its_repeats_are_reset(cluster: Cluster, later: timedelta) -> None:
    row = new(repeats=1)
    ids = {cluster.run_due()[0]["id"]}
    for _ in range(3):
        again(row).repeats = 1
        row.next_run += later
        row.save()
        (task,) = cluster.run_due(later)
        ids.add(task["id"])
        assert (again(row).repeats, row.task) == (0, task["id"])
        assert cluster.run_due() == []
    assert len(ids) == 4


def test_schedule_with_earlier_next_run_runs_again(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    cluster.run_due(2 * HOUR)
    Schedule.objects.filter(pk=row.pk).update(next_run=NOON + HOUR)
    assert len(cluster.run_due()) == 2
    assert again(row).next_run == NOON + 3 * HOUR
    assert cluster.run_due() == []


def test_task_sent_before_a_crash_is_not_sent_again(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    cluster.run_due()
    cluster.run_due(HOUR)
    first = Task(id=cluster.sent[0]["id"])
    # The row as it was after sending the second task, and before recording it.
    Schedule.objects.filter(pk=row.pk).update(next_run=NOON + HOUR, task=first.id, repeats=-2)
    assert cluster.run_due() == []
    assert (again(row).next_run, row.repeats, row.task) == (NOON + 2 * HOUR, -3, cluster.sent[1]["id"])


def test_concurrent_change_of_a_schedule_is_kept(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    push = cluster.push

    def pause(envelopes: list[Envelope], timeout: float = 10.0) -> None:
        Schedule.objects.filter(pk=row.pk).update(repeats=7)
        push(envelopes)

    cluster.push = pause  # type: ignore[method-assign]
    assert len(cluster.run_due()) == 1
    assert (again(row).repeats, row.next_run) == (7, NOON + HOUR)


def test_old_slots_are_deleted(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    cluster.run_due()
    assert len(cluster.store.slots(str(row.pk))) == 1
    Schedule.objects.update(repeats=0)
    cluster.run_due(timedelta(days=2))
    assert cluster.store.slots(str(row.pk)) == []


# -- missed runs --


def test_missed_runs_are_caught_up(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY, next_run=NOON - 5 * HOUR)
    assert len({task["id"] for task in cluster.run_due()}) == 6
    assert (again(row).next_run, row.repeats) == (NOON + HOUR, -7)


def test_catching_up_ends_with_the_repeats(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY, next_run=NOON - 5 * HOUR, repeats=3)
    assert len(cluster.run_due()) == 3
    assert again(row).repeats == 0


def test_missed_runs_of_a_crontab_are_caught_up(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.CRON, cron="0 * * * *")
    Schedule.objects.filter(pk=row.pk).update(next_run=NOON - 11 * HOUR)
    assert len(cluster.run_due()) == 12


def test_catch_up_false_runs_missed_schedule_once(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY, next_run=NOON - timedelta(hours=5, minutes=20))
    with override_settings(Q_CLUSTER={"name": "default", "catch_up": False}):
        assert len(cluster.run_due()) == 1
    assert (again(row).next_run, row.repeats) == (NOON + timedelta(minutes=40), -2)


# -- invalid schedules --


def test_invalid_schedule_does_not_affect_others(cluster: Cluster) -> None:
    good = new(schedule_type=Schedule.HOURLY, next_run=NOON - timedelta(minutes=1))
    bad = new(args="no literal", schedule_type=Schedule.HOURLY)
    later = new(schedule_type=Schedule.HOURLY)
    assert len(cluster.run_due()) == 2
    assert cluster.run_due() == []
    assert again(good).next_run > NOON < again(later).next_run
    assert again(bad).next_run == NOON
    assert str(bad.pk) in cluster.scheduler.problems()[0]
    Schedule.objects.filter(pk=bad.pk).update(args="1, 2")
    assert len(cluster.run_due()) == 1
    assert cluster.scheduler.problems() == ()


# -- creating schedules --


def test_new_schedule_runs_once_and_now() -> None:
    before = timezone.now()
    row = again(schedule("math.sqrt", 4))
    assert (row.schedule_type, row.repeats, row.minutes, row.hook, row.name) == ("O", -1, None, None, None)
    assert before <= row.next_run <= timezone.now()
    assert (row.parse_args(), row.parse_kwargs()) == ((4,), {})


def test_all_fields_can_be_given() -> None:
    row = again(
        schedule(
            "math.hypot", 3, 4, name="n", hook="a.b", schedule_type=Schedule.MINUTES, minutes=5, repeats=24,
            next_run=NOON, cluster="other", intended_date_kwarg="at", word="django",
        )
    )  # fmt: skip
    assert (row.func, row.name, row.hook, row.schedule_type, row.minutes) == (
        "math.hypot",
        "n",
        "a.b",
        "I",
        5,
    )
    assert (row.repeats, row.next_run, row.cluster, row.intended_date_kwarg) == (24, NOON, "other", "at")
    assert row.parse_kwargs() == {"word": "django"}
    assert schedule("math.sqrt", 4, schedule_type="C", cron="0 4 * * *").cron == "0 4 * * *"


def test_arrow_objects_are_accepted() -> None:
    arrow = SimpleNamespace(datetime=NOON)  # an Arrow has this attribute, but is not a datetime
    assert again(schedule("math.sqrt", 4, next_run=arrow)).next_run == NOON


def test_duplicate_name_is_refused() -> None:
    schedule("math.sqrt", 4, name="mine")
    with pytest.raises(IntegrityError, match="mine"):
        schedule("math.sqrt", 4, name="mine")


@pytest.mark.parametrize(
    "wrong",
    [{"schedule_type": "X"}, {"schedule_type": "C"}, {"schedule_type": "C", "cron": "no"}, {"minutes": -1},
     {"intended_date_kwarg": "for"}, {"word": object()}],
)  # fmt: skip
def test_schedule_is_validated_before_saving(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        schedule("math.sqrt", 4, **wrong)
    assert not Schedule.objects.exists()


def test_schedule_shows_its_last_task() -> None:
    row = new(schedule_type=Schedule.DAILY)
    assert (row.last_run(), row.success()) == (None, None)
    cluster = Cluster()
    (task,) = cluster.run_due()
    assert again(row).success() is None  # it has not ended, or is not stored
    Task.objects.create(id=task["id"], name="four-words", func="f", started=NOON, stopped=NOON, success=False)
    assert row.success() is False
    assert "[four-words]" in row.last_run()
