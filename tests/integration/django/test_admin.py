"""The admin's pages, through Django's test client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from qworker.django.adoption import insert
from qworker.django.models import Failure, OrmQ, Schedule, Success, Task
from qworker.django.signing import SignedPackage

START = datetime(2024, 3, 1, 12, tzinfo=UTC)
LISTS = ("success", "failure", "schedule", "ormq")
AT_MOST = 9
"""Queries of a page: the session, the user, and what the list itself needs."""


def sent() -> list[dict[str, Any]]:
    """The packages that wait, but for those of fill()."""
    return [row.task for row in OrmQ.objects.all() if row.name() != "waits"]


def logged_in(*permissions: str, superuser: bool = False) -> Client:
    user = User.objects.create_user("ann", is_staff=True, is_superuser=superuser)
    user.user_permissions.set(
        Permission.objects.filter(codename__in=permissions, content_type__app_label="qworker")
    )
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def client() -> Client:
    return logged_in(superuser=True)


def fill(count: int = 3) -> None:
    Task.objects.bulk_create(
        Task(
            id=f"{number:032x}",
            name=f"name-{number}",
            func=f"math.f{number}",
            group=f"g{number % 3}",
            cluster="one",
            args=(number,),
            kwargs={"hook": number},
            hook="math.sqrt",
            result="x" * 500 if number % 2 else number,
            started=START,
            stopped=START + timedelta(seconds=number),
            success=number % 2 == 0,
        )
        for number in range(count)
    )
    Schedule.objects.bulk_create(
        Schedule(name=f"s{number}", func="math.sqrt", args="4", next_run=START, task=f"{number:032x}")
        for number in range(count)
    )
    package = {"id": "a" * 32, "name": "waits", "func": "math.sqrt", "args": (4,), "kwargs": {}}
    with connection.cursor() as cursor:
        for _ in range(count):
            insert(cursor, "sqlite", "default", SignedPackage.dumps(package))


def page(client: Client, path: str, **query: Any) -> str:
    answer = client.get(f"/admin/qworker/{path}", query)
    assert answer.status_code == 200, answer
    return answer.content.decode()


# -- pages --


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_shown(client: Client, name: str) -> None:
    fill()
    assert "result_list" in page(client, f"{name}/")


@pytest.mark.parametrize(
    ("name", "model"),
    [("success", Success), ("failure", Failure), ("schedule", Schedule), ("ormq", OrmQ)],
)
def test_a_row_has_a_page(client: Client, name: str, model: Any) -> None:
    fill()
    text = page(client, f"{name}/{model.objects.first().pk}/change/")
    assert ("_save" in text) == (name in ("schedule", "ormq"))


@pytest.mark.parametrize("name", ["success", "failure", "ormq"])
def test_nothing_is_added_where_things_come_by_themselves(client: Client, name: str) -> None:
    assert client.get(f"/admin/qworker/{name}/add/").status_code == 403


def test_the_heading_is_the_setting_label(client: Client) -> None:
    assert "Queue of tests" in client.get("/admin/").content.decode()


def test_the_queue_shows_packages_and_the_schedules_their_last_runs(client: Client) -> None:
    fill()
    assert "math.sqrt" in page(client, "ormq/")
    text = page(client, "schedule/")
    assert f"/admin/qworker/success/{0:032x}/change/" in text
    assert f"/admin/qworker/failure/{1:032x}/change/" in text
    assert "icon-no" in text


@pytest.mark.parametrize("name", ["success", "failure"])
@pytest.mark.parametrize("word", ["name-2", "math.f2", "g2", "name-5", "math.f5"])
def test_search(client: Client, name: str, word: str) -> None:
    fill(6)
    found = f"{int(word[-1]):032x}" in page(client, f"{name}/", q=word)
    assert found == ((int(word[-1]) % 2 == 0) == (name == "success"))


@pytest.mark.parametrize(
    ("path", "query", "shown", "hidden"),
    [
        ("success/", {"group": "g0"}, f"{0:032x}", f"{2:032x}"),
        ("success/", {"cluster": "two"}, None, f"{0:032x}"),
        ("failure/", {"group": "g1"}, f"{1:032x}", f"{5:032x}"),
        ("schedule/", {"schedule_type__exact": "O"}, ">s0<", None),
        ("schedule/", {"schedule_type__exact": "H"}, None, ">s0<"),
        ("schedule/", {"next_run__gte": "2100-01-01 00:00:00+00:00", "q": "s"}, None, ">s0<"),
        ("ormq/", {"q": "default"}, "waits", None),
        ("ormq/", {"q": "other"}, None, "waits"),
        ("ormq/", {"state": "0"}, "waits", None),
        ("ormq/", {"state": "2"}, None, "waits"),
    ],
)
def test_filters(
    client: Client, path: str, query: dict[str, str], shown: str | None, hidden: str | None
) -> None:
    fill(6)
    text = page(client, path, **query)
    assert shown is None or shown in text
    assert hidden is None or hidden not in text


@pytest.mark.parametrize("name", LISTS)
def test_a_thousand_rows_cost_no_more_queries_than_ten(client: Client, name: str) -> None:
    fill(1000)
    with CaptureQueriesContext(connection) as made:
        page(client, f"{name}/", q="1")
    texts = [query["sql"] for query in made]
    assert len(texts) <= AT_MOST, texts
    assert not [text for text in texts if "DISTINCT" in text]
    assert sum("COUNT(" in text for text in texts) <= 1
    if name == "success":
        assert not [
            text for text in texts if '"qworker_task"."args"' in text or '"qworker_task"."result"' in text
        ]


# -- sending again --


def act(client: Client, name: str, action: str, *keys: Any) -> Any:
    given = {"action": action, "_selected_action": [str(key) for key in keys]}
    return client.post(f"/admin/qworker/{name}/", given, follow=True)


def test_a_failure_is_sent_again_and_deleted(client: Client) -> None:
    fill()
    assert "1 task was resubmitted." in act(client, "failure", "resubmit_tasks", f"{1:032x}").content.decode()
    (package,) = sent()
    options = {"hook": "math.sqrt", "group": "g1", "cluster": "one"}
    assert {name: package[name] for name in options} == options
    assert (package["func"], package["args"], package["kwargs"]) == ("math.f1", (1,), {"hook": 1})
    assert Failure.objects.count() == 0
    assert [(entry.object_id, entry.change_message) for entry in LogEntry.objects.all()] == [
        (f"{1:032x}", "Resubmitted to the queue.")
    ]


def test_a_success_is_sent_again_and_kept(client: Client) -> None:
    fill()
    act(client, "success", "resubmit_tasks", f"{0:032x}", f"{2:032x}")
    assert sorted(each["func"] for each in sent()) == ["math.f0", "math.f2"]
    assert Success.objects.count() == 2


def test_who_may_only_look_sends_nothing_again() -> None:
    fill()
    client = logged_in("view_failure")
    assert "resubmit_tasks" not in page(client, "failure/")
    act(client, "failure", "resubmit_tasks", f"{1:032x}")
    assert sent() == []
    assert Failure.objects.count() == 1


def test_who_may_change_failures_sends_them_again() -> None:
    fill()
    act(logged_in("change_failure"), "failure", "resubmit_tasks", f"{1:032x}")
    assert len(sent()) == 1


def test_rows_are_deleted(client: Client) -> None:
    fill()
    for name, model in (("success", Success), ("ormq", OrmQ)):
        keys = [row.pk for row in model.objects.all()]
        given = {"action": "delete_selected", "_selected_action": keys, "post": "yes"}
        client.post(f"/admin/qworker/{name}/", given)
        assert model.objects.count() == 0


# -- the queue --


def test_a_message_is_edited(client: Client) -> None:
    fill(1)
    row = OrmQ.objects.get()
    given = {"key": "other", "lock_0": "2030-01-01", "lock_1": "12:00:00"}
    assert client.post(f"/admin/qworker/ormq/{row.pk}/change/", given).status_code == 302
    changed = OrmQ.objects.get()
    assert (changed.key, changed.lock) == ("other", datetime(2030, 1, 1, 11, tzinfo=UTC))
    client.post(f"/admin/qworker/ormq/{row.pk}/change/", {"key": "other", "lock_0": "", "lock_1": ""})
    assert OrmQ.objects.get().lock is None


def test_what_is_not_edited_stays_held(client: Client) -> None:
    fill(1)
    row = OrmQ.objects.get()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO owner (id, name, pid, boot, queues, concurrency, lease_until, started, marks) "
            "VALUES (7, 'worker', 1, '', '[]', 1, 1900000000.5, 0, '')"
        )
        cursor.execute("UPDATE message SET state = 2, owner = 7")
    shown = OrmQ.objects.get().lock.astimezone(datetime.now().astimezone().tzinfo)
    assert shown.timestamp() == 1900000000.5
    text = page(client, f"ormq/{row.pk}/change/")
    first, second = (text.split(f'name="lock_{part}" value="')[1].split('"')[0] for part in (0, 1))
    client.post(f"/admin/qworker/ormq/{row.pk}/change/", {"key": "other", "lock_0": first, "lock_1": second})
    assert [OrmQ.objects.get().key, OrmQ.objects.get().state] == ["other", 2]


# -- schedules --


FORM = {
    "name": "nightly", "func": "math.sqrt", "hook": "", "args": "4", "kwargs": "", "schedule_type": "D",
    "minutes": "", "repeats": "-1", "next_run_0": "2030-01-01", "next_run_1": "12:00:00", "cron": "",
    "cluster": "", "intended_date_kwarg": "",
}  # fmt: skip
RIGHTS = ("add_schedule", "change_schedule", "view_schedule")


def save(client: Client, key: int | None = None, **fields: str) -> str:
    path = "/admin/qworker/schedule/" + ("add/" if key is None else f"{key}/change/")
    return client.post(path, {**FORM, **fields}, follow=True).content.decode()


def test_a_schedule_is_added(client: Client) -> None:
    save(client)
    made = Schedule.objects.get()
    assert (made.func, made.parse_args(), made.schedule_type) == ("math.sqrt", (4,), "D")


@pytest.mark.parametrize(
    "fields",
    [{"args": "open('x')"}, {"kwargs": "2"}, {"schedule_type": "C"}, {"schedule_type": "C", "cron": "a b"}],
)
def test_what_cannot_be_read_is_not_saved(client: Client, fields: dict[str, str]) -> None:
    assert "errorlist" in save(client, **fields)
    assert Schedule.objects.count() == 0


def test_without_the_permission_any_function_is_refused() -> None:
    client = logged_in(*RIGHTS)
    assert "You may not schedule this function." in save(client, func="os.system", args="'true'")
    assert Schedule.objects.count() == 0


def test_with_the_permission_any_function_is_taken() -> None:
    save(logged_in(*RIGHTS, "schedule_any_callable"), func="os.system", args="'true'")
    assert Schedule.objects.get().func == "os.system"


@override_settings(QWORKER_SCHEDULE_ALLOW=["math.sqrt", "shop.tasks.*"])
@pytest.mark.parametrize("func", ["math.sqrt", "shop.tasks.sell"])
def test_without_the_permission_what_is_exposed_is_taken(func: str) -> None:
    save(logged_in(*RIGHTS), func=func, hook="math.sqrt")
    assert Schedule.objects.get().func == func


@override_settings(QWORKER_SCHEDULE_ALLOW=["math.sqrt"])
@pytest.mark.parametrize("fields", [{"hook": "os.abort"}, {"kwargs": "q_options={'hook': 'os.abort'}"}])
def test_a_hook_is_refused_wherever_it_hides(fields: dict[str, str]) -> None:
    assert "You may not schedule this function." in save(logged_in(*RIGHTS), **fields)
    assert Schedule.objects.count() == 0


def test_what_somebody_else_scheduled_can_be_paused_but_not_bent() -> None:
    made = Schedule.objects.create(func="os.system", hook="os.abort", args="'true'", next_run=START)
    client = logged_in(*RIGHTS)
    same = {"func": "os.system", "hook": "os.abort", "args": "'true'"}
    save(client, made.pk, **same, repeats="0")
    assert Schedule.objects.get().repeats == 0
    assert "You may not change the arguments" in save(client, made.pk, **{**same, "args": "'rm x'"})
    assert Schedule.objects.get().args == "'true'"


def test_a_registered_task_can_be_chosen() -> None:
    from qworker import QWorker

    app = QWorker("chosen")
    app.task(name="shop.tasks.registered")(len)
    assert "shop.tasks.registered" in page(logged_in(*RIGHTS), "schedule/add/")


# -- languages --


@pytest.mark.parametrize(
    ("language", "words"), [("de", "Fehlgeschlagene Aufgaben"), ("fr", "Tâches échouées")]
)
def test_pages_speak_other_languages(client: Client, language: str, words: str) -> None:
    with translation.override(language), override_settings(LANGUAGE_CODE=language):
        assert words in client.get("/admin/").content.decode()
