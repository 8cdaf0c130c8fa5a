"""The pages of the admin, through Django's test client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from qworker.django.models import Failure, OrmQ, Schedule, Success, Task
from qworker.django.signing import SignedPackage
from qworker.django.tables.adoption import insert

START = datetime(2024, 3, 1, 12, tzinfo=UTC)
LISTS = ("success", "failure", "schedule", "ormq")
AT_MOST = 8
"""Maximum queries of a page: the session, the user, and the list."""


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
def test_list_is_shown(client: Client, name: str) -> None:
    fill()
    assert "result_list" in page(client, f"{name}/")


@pytest.mark.parametrize(
    ("name", "model"),
    [("success", Success), ("failure", Failure), ("schedule", Schedule), ("ormq", OrmQ)],
)
def test_row_has_a_change_page(client: Client, name: str, model: Any) -> None:
    fill()
    text = page(client, f"{name}/{model.objects.first().pk}/change/")
    assert ("_save" in text) == (name in ("schedule", "ormq"))


@pytest.mark.parametrize("name", ["success", "failure", "ormq"])
def test_tasks_and_messages_cannot_be_added(client: Client, name: str) -> None:
    assert client.get(f"/admin/qworker/{name}/add/").status_code == 403


def test_heading_is_the_label_setting(client: Client) -> None:
    assert "Queue of tests" in client.get("/admin/").content.decode()


def test_lists_show_packages_and_last_runs(client: Client) -> None:
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
def test_number_of_queries_does_not_depend_on_rows(client: Client, name: str) -> None:
    fill(1000)
    with CaptureQueriesContext(connection) as made:
        page(client, f"{name}/", q="1")
    texts = [query["sql"] for query in made]
    assert len(texts) <= AT_MOST, texts
    assert not [text for text in texts if "DISTINCT" in text]
    assert sum("COUNT(" in text for text in texts) <= 1
    large = {"success": ("args", "kwargs", "result"), "failure": ("args", "kwargs")}
    large |= {"schedule": ("args", "kwargs"), "ormq": ("body",)}
    assert not [text for text in texts for column in large[name] if f'."{column}"' in text]


# -- the queue --


def test_message_can_be_edited(client: Client) -> None:
    fill(1)
    row = OrmQ.objects.get()
    given = {"key": "other", "lock_0": "2030-01-01", "lock_1": "12:00:00"}
    assert client.post(f"/admin/qworker/ormq/{row.pk}/change/", given).status_code == 302
    changed = OrmQ.objects.get()
    assert (changed.key, changed.lock) == ("other", datetime(2030, 1, 1, 11, tzinfo=UTC))
    client.post(f"/admin/qworker/ormq/{row.pk}/change/", {"key": "other", "lock_0": "", "lock_1": ""})
    assert OrmQ.objects.get().lock is None


def test_saving_an_unchanged_lock_keeps_the_lease(client: Client) -> None:
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


def save(client: Client, key: int | None = None, **fields: str) -> str:
    path = "/admin/qworker/schedule/" + ("add/" if key is None else f"{key}/change/")
    return client.post(path, {**FORM, **fields}, follow=True).content.decode()


def test_schedule_can_be_added(client: Client) -> None:
    save(client)
    made = Schedule.objects.get()
    assert (made.func, made.parse_args(), made.schedule_type) == ("math.sqrt", (4,), "D")


@pytest.mark.parametrize(
    "fields",
    [{"args": "open('x')"}, {"kwargs": "2"}, {"schedule_type": "C"}, {"schedule_type": "C", "cron": "a b"}],
)
def test_invalid_schedule_is_not_saved(client: Client, fields: dict[str, str]) -> None:
    assert "errorlist" in save(client, **fields)
    assert Schedule.objects.count() == 0


# -- languages --


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("de", "Fehlgeschlagene Aufgaben"),
        ("fr", "Tâches échouées"),
        ("ru", "Неудачные задачи"),
        ("tr", "Başarısız görevler"),
        ("zh-hans", "失败的任务"),
    ],
)
def test_pages_are_translated(client: Client, language: str, words: str) -> None:
    with translation.override(language), override_settings(LANGUAGE_CODE=language):
        assert words in client.get("/admin/").content.decode()
