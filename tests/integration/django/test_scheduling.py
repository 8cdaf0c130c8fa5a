"""What a cluster does with the table of schedules, by a clock that the test moves."""

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

from qworker.beat.store_memory import MemoryScheduleStore
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
    """The scheduler of a cluster, at noon of a day in January; what it sends is kept."""

    def __init__(self, at: datetime = NOON, store: Any = None) -> None:
        self.clock = FakeClock(at.timestamp())
        self.store = store or MemoryScheduleStore(self.clock)
        self.looks = 0.0
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

    def look(self, later: timedelta = timedelta()) -> list[dict[str, Any]]:
        """What is sent at a time that is *later* than the last, and in another second."""
        self.clock.advance(later.total_seconds())
        self.looks += LONGEST_REST
        before = len(self.sent)
        while self.scheduler.step(self.clock.monotonic() + self.looks) == 0.0:
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


def test_a_name_makes_no_lines_of_the_log(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    new(name="a\nCRITICAL all is lost", schedule_type="H")
    new(name="b\nCRITICAL all is lost", args="(")
    caplog.set_level("INFO", "django-q")
    cluster.look()
    told = [record.getMessage() for record in caplog.records]
    assert [line for line in told if "\\nCRITICAL" in line and "\n" not in line] == told
    assert len(told) == 2


def test_the_table_is_read_once_a_second_and_when_something_is_due(cluster: Cluster) -> None:
    row = new(next_run=NOON + timedelta(seconds=60.4), schedule_type="H")
    cluster.look()
    looks: list[float] = []

    def reads(execute: Any, statement: str, *rest: Any) -> Any:
        looks.append(cluster.clock.monotonic() - began)
        return execute(statement, *rest)

    with connection.execute_wrapper(reads):
        cluster.clock.advance(57)
        began = cluster.clock.monotonic() + 1.0
        while (now := cluster.clock.monotonic()) < began + 5:
            cluster.clock.advance(cluster.scheduler.step(now + cluster.looks))
    assert [round(each, 1) for each in sorted(set(looks))] == [-1.0, 0.0, 1.0, 2.0, 2.4, 3.4, 4.4]
    assert again(row).task == cluster.sent[0]["id"]


# -- what is sent --


def test_a_schedule_becomes_a_task(cluster: Cluster) -> None:
    row = schedule(
        "math.copysign", 2, -2, name="sign", hook="hooks.told", schedule_type="D", next_run=NOON,
        q_options={"timeout": 30}, extra="word",
    )  # fmt: skip
    (task,) = cluster.look()
    assert (task["func"], task["args"], task["kwargs"]) == ("math.copysign", (2, -2), {"extra": "word"})
    assert (task["hook"], task["group"], task["timeout"]) == ("hooks.told", "sign", 30)
    assert again(row).task == task["id"]
    assert row.next_run == NOON + timedelta(days=1)
    assert cluster.look() == []


def test_the_group_is_the_name_or_the_key_or_what_the_options_say(cluster: Cluster) -> None:
    row = new()
    new(kwargs="q_options={'group': 'mine', 'hook': 'hooks.mine'}", hook="hooks.other")
    first, second = sorted(cluster.look(), key=lambda task: task["group"])
    assert first["group"] == str(row.pk)
    assert (second["group"], second["hook"], second["kwargs"]) == ("mine", "hooks.mine", {})


@pytest.mark.parametrize("text", ["word='django', n=2", "{'word': 'django', 'n': 2}"])
def test_keywords_are_text_in_two_forms(cluster: Cluster, text: str) -> None:
    new(kwargs=text)
    assert cluster.look()[0]["kwargs"] == {"word": "django", "n": 2}


def test_the_intended_time_is_a_keyword(cluster: Cluster) -> None:
    new(intended_date_kwarg="at", schedule_type="H", next_run=NOON - HOUR)
    assert [task["kwargs"]["at"] for task in cluster.look()] == [
        "2024-01-31T11:00:00+00:00", "2024-01-31T12:00:00+00:00"
    ]  # fmt: skip


def test_the_options_of_a_schedule_reach_its_task(cluster: Cluster) -> None:
    options = {"save": False, "cached": 60, "ack_failure": True, "task_name": "nightly"}
    schedule("math.sqrt", 4, next_run=NOON, q_options=options)
    (task,) = cluster.look()
    assert {name: task[name] for name in ("save", "cached", "ack_failure", "name")} == {
        "save": False, "cached": 60, "ack_failure": True, "name": "nightly"
    }  # fmt: skip


def test_options_of_a_schedule_may_stand_among_its_keywords(cluster: Cluster) -> None:
    schedule("math.sqrt", 4, next_run=NOON, timeout=30, task_name="nightly", extra="word")
    new(kwargs="save=False, group='mine', cluster='c', q_options={'group': 'math'}")
    new(name="own", func="math.ceil", kwargs="hook='mine', group='mine'", hook="hooks.told")
    first, second, third = sorted(cluster.look(), key=lambda task: task["func"], reverse=True)
    assert (first["timeout"], first["name"], first["kwargs"]) == (30, "nightly", {"extra": "word"})
    assert (second["save"], second["group"]) == (False, "math")
    assert (third["hook"], third["group"]) == ("hooks.told", "own")
    assert [task["kwargs"] for task in (second, third)] == [
        {"group": "mine", "cluster": "c"}, {"group": "mine", "hook": "mine"}
    ]  # fmt: skip


def test_minutes_that_are_not_told_are_one() -> None:
    made = schedule("math.sqrt", 4, schedule_type="I", next_run=NOON)
    assert made.calculate_next_run() == NOON + timedelta(minutes=1)


@pytest.mark.parametrize(("field", "value", "kind"), [("minutes", 5, "I"), ("cron", "0 4 * * *", "C")])
def test_who_names_the_field_of_another_type_is_warned(field: str, value: Any, kind: str) -> None:
    """Without a type it runs once, as with django-q2."""
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
def test_a_field_that_is_wrong_is_refused_by_its_name(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError) as caught:
        schedule("math.sqrt", 4, **fields)
    assert list(caught.value.message_dict) == [wrong]


def test_no_function_is_no_schedule() -> None:
    with pytest.raises(ValidationError, match="func"):
        schedule(None)
    assert Schedule.objects.count() == 0


def test_arguments_are_kept_as_the_text_of_a_tuple_and_a_dict() -> None:
    row = again(schedule("math.sqrt"))
    assert (row.args, row.kwargs) == ("()", "{}")
    row = again(schedule("math.copysign", 1, 2, extra="word"))
    assert (row.args, row.kwargs) == ("(1, 2)", "{'extra': 'word'}")


def test_schedules_of_other_clusters_are_left_to_them(cluster: Cluster) -> None:
    for name in (None, "", "default", "other"):
        new(func="math.sqrt", args="4", kwargs=f"{{'of': {name!r}}}", cluster=name)
    assert {task["kwargs"]["of"] for task in cluster.look()} == {None, "", "default"}
    with override_settings(Q_CLUSTER={"name": "default", "cluster_name": "other"}):
        other = Cluster()
        assert [task["kwargs"]["of"] for task in other.look()] == ["other"]
        assert other.queues == ["other"]


def test_a_management_command_is_a_function(cluster: Cluster) -> None:
    schedule("django.core.management.call_command", "clearsessions", schedule_type="H", next_run=NOON)
    assert cluster.look()[0]["args"] == ("clearsessions",)


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
def test_every_type_is_due_again(cluster: Cluster, kind: str, following: datetime) -> None:
    row = new(schedule_type=kind)
    assert len(cluster.look()) == 1
    assert again(row).next_run == following
    assert kind in dict(Schedule.TYPE)


def test_the_letters_of_the_types_are_those_of_the_manual() -> None:
    names = "ONCE MINUTES HOURLY DAILY WEEKLY BIWEEKLY MONTHLY BIMONTHLY QUARTERLY YEARLY CRON"
    letters = [getattr(Schedule, name) for name in names.split()]
    assert letters == ["O", "I", "H", "D", "W", "BW", "M", "BM", "Q", "Y", "C"]
    assert [letter for letter, _ in Schedule.TYPE] == letters


def test_minutes_are_so_many(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.MINUTES, minutes=5)
    cluster.look()
    assert again(row).next_run == NOON + timedelta(minutes=5)


def test_a_crontab_is_due_when_it_says(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.CRON, cron="30 13 * * *")
    Schedule.objects.update(next_run=NOON)
    assert len(cluster.look()) == 1
    assert again(row).next_run == NOON + timedelta(minutes=30)  # 13:30 in Amsterdam


def test_the_next_run_is_reckoned_from_the_last_and_not_from_now(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    cluster.look(timedelta(minutes=17))
    assert again(row).next_run == NOON + HOUR


def test_the_last_day_of_a_month_stays_where_it_fell(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.MONTHLY)
    assert len(cluster.look(timedelta(days=40))) == 2  # 31 January, 29 February
    assert again(row).next_run.date().isoformat() == "2024-03-29"


def test_a_leap_day_becomes_the_28th(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.YEARLY, next_run=datetime(2024, 2, 29, 12, tzinfo=UTC))
    assert len(cluster.look(timedelta(days=800))) == 3
    assert again(row).next_run.date().isoformat() == "2027-02-28"


# -- repeats --


def test_so_many_repeats_and_no_more(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY, repeats=2)
    assert len(cluster.look()) == 1
    assert again(row).repeats == 1
    assert len(cluster.look(5 * HOUR)) == 1
    assert again(row).repeats == 0
    assert cluster.look(5 * HOUR) == []


def test_without_end_it_counts_down_below_zero(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    assert again(row).repeats == -1
    cluster.look()
    assert again(row).repeats == -2
    cluster.look(2 * HOUR)
    assert again(row).repeats == -4


def test_none_pauses_it_until_it_is_changed(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY, repeats=0)
    assert cluster.look() == []
    Schedule.objects.filter(pk=row.pk).update(repeats=-1)
    assert len(cluster.look()) == 1


def test_once_without_repeats_is_deleted(cluster: Cluster) -> None:
    new()
    assert len(cluster.look()) == 1
    assert not Schedule.objects.exists()


def test_once_with_repeats_is_kept_and_does_not_run_again(cluster: Cluster) -> None:
    row = new(repeats=3)
    (task,) = cluster.look()
    assert (again(row).repeats, row.task, row.next_run) == (0, task["id"], NOON)
    assert cluster.look(HOUR) == []


@pytest.mark.parametrize("later", [timedelta(), timedelta(minutes=5)], ids=["at once", "at a new time"])
def test_once_runs_again_when_its_repeats_are_set(cluster: Cluster, later: timedelta) -> None:
    row = new(repeats=1)
    ids = {cluster.look()[0]["id"]}
    for _ in range(3):
        again(row).repeats = 1
        row.next_run += later
        row.save()
        (task,) = cluster.look(later)
        ids.add(task["id"])
        assert (again(row).repeats, row.task) == (0, task["id"])
        assert cluster.look() == []
    assert len(ids) == 4


def test_a_schedule_that_is_set_back_runs_again(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    cluster.look(2 * HOUR)
    Schedule.objects.filter(pk=row.pk).update(next_run=NOON + HOUR)
    assert len(cluster.look()) == 2
    assert again(row).next_run == NOON + 3 * HOUR
    assert cluster.look() == []


def test_what_was_sent_before_a_death_is_not_sent_again(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    cluster.look()
    cluster.look(HOUR)
    first = Task(id=cluster.sent[0]["id"])
    # As the row was between the sending of the second and the note of it.
    Schedule.objects.filter(pk=row.pk).update(next_run=NOON + HOUR, task=first.id, repeats=-2)
    assert cluster.look() == []
    assert (again(row).next_run, row.repeats, row.task) == (NOON + 2 * HOUR, -3, cluster.sent[1]["id"])


def test_what_somebody_changes_meanwhile_stays_and_nothing_runs_twice(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    push = cluster.push

    def pause(envelopes: list[Envelope], timeout: float = 10.0) -> None:
        Schedule.objects.filter(pk=row.pk).update(repeats=7)
        push(envelopes)

    cluster.push = pause  # type: ignore[method-assign]
    assert len(cluster.look()) == 1
    assert (again(row).repeats, row.next_run) == (7, NOON + HOUR)


def test_due_times_of_long_ago_are_forgotten(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY)
    cluster.look()
    assert len(cluster.store.slots(str(row.pk))) == 1
    Schedule.objects.update(repeats=0)
    cluster.look(timedelta(days=2))
    assert cluster.store.slots(str(row.pk)) == []


# -- what was missed --


def test_what_was_missed_is_made_up_for(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY, next_run=NOON - 5 * HOUR)
    assert len({task["id"] for task in cluster.look()}) == 6
    assert (again(row).next_run, row.repeats) == (NOON + HOUR, -7)


def test_what_was_missed_ends_with_the_repeats(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY, next_run=NOON - 5 * HOUR, repeats=3)
    assert len(cluster.look()) == 3
    assert again(row).repeats == 0


def test_a_crontab_is_made_up_for_too(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.CRON, cron="0 * * * *")
    Schedule.objects.filter(pk=row.pk).update(next_run=NOON - 11 * HOUR)
    assert len(cluster.look()) == 12


def test_without_catching_up_it_runs_once_and_goes_on_as_planned(cluster: Cluster) -> None:
    row = new(schedule_type=Schedule.HOURLY, next_run=NOON - timedelta(hours=5, minutes=20))
    with override_settings(Q_CLUSTER={"name": "default", "catch_up": False}):
        assert len(cluster.look()) == 1
    assert (again(row).next_run, row.repeats) == (NOON + timedelta(minutes=40), -2)


# -- what cannot be read --


def test_one_that_cannot_be_read_stops_no_other(cluster: Cluster) -> None:
    good = new(schedule_type=Schedule.HOURLY, next_run=NOON - timedelta(minutes=1))
    bad = new(args="no literal", schedule_type=Schedule.HOURLY)
    later = new(schedule_type=Schedule.HOURLY)
    assert len(cluster.look()) == 2
    assert cluster.look() == []
    assert again(good).next_run > NOON < again(later).next_run
    assert again(bad).next_run == NOON
    assert str(bad.pk) in cluster.scheduler.problems()[0]
    Schedule.objects.filter(pk=bad.pk).update(args="1, 2")
    assert len(cluster.look()) == 1
    assert cluster.scheduler.problems() == ()


# -- making one --


def test_a_new_schedule_is_once_and_due_now() -> None:
    before = timezone.now()
    row = again(schedule("math.sqrt", 4))
    assert (row.schedule_type, row.repeats, row.minutes, row.hook, row.name) == ("O", -1, None, None, None)
    assert before <= row.next_run <= timezone.now()
    assert (row.parse_args(), row.parse_kwargs()) == ((4,), {})


def test_every_field_can_be_given() -> None:
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


def test_a_time_of_the_library_arrow_will_do() -> None:
    arrow = SimpleNamespace(datetime=NOON)  # what an Arrow has, which is no datetime
    assert again(schedule("math.sqrt", 4, next_run=arrow)).next_run == NOON


def test_a_name_is_used_once() -> None:
    schedule("math.sqrt", 4, name="mine")
    with pytest.raises(IntegrityError, match="mine"):
        schedule("math.sqrt", 4, name="mine")


@pytest.mark.parametrize(
    "wrong",
    [{"schedule_type": "X"}, {"schedule_type": "C"}, {"schedule_type": "C", "cron": "no"}, {"minutes": -1},
     {"intended_date_kwarg": "for"}, {"word": object()}],
)  # fmt: skip
def test_a_schedule_is_looked_at_before_it_is_saved(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        schedule("math.sqrt", 4, **wrong)
    assert not Schedule.objects.exists()


def test_a_schedule_knows_its_last_task() -> None:
    row = new(schedule_type=Schedule.DAILY)
    assert (row.last_run(), row.success()) == (None, None)
    cluster = Cluster()
    (task,) = cluster.look()
    assert again(row).success() is None  # it has not ended, or is not kept
    Task.objects.create(id=task["id"], name="four-words", func="f", started=NOON, stopped=NOON, success=False)
    assert row.success() is False
    assert "[four-words]" in row.last_run()
