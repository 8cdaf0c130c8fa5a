"""Admin pages work with any rows, and read only the columns that they show."""

from __future__ import annotations

import datetime
import json
import os
import pickle
import sys
from base64 import b64encode
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import path

from qworker.django.admin import FailAdmin, QueueAdmin, ScheduleAdmin, TaskAdmin, columns
from qworker.django.models import Failure, OrmQ, Schedule, Success, Task
from qworker.django.signing import SignedPackage
from qworker.django.tables.adoption import insert
from qworker.django.tasks import async_task
from tests.support.django_project import Pages

START = datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.UTC)
TABLE = Task._meta.db_table


class Malicious:
    """Malicious: unpickling it calls a function."""

    def __init__(self, func: Any, *args: Any) -> None:
        self.call = func, args

    def __reduce__(self) -> Any:
        return self.call


class Here:
    """A class that is renamed in a pickle, so that it cannot be found."""


GONE = b"\x80\x04\x8c\x09gone.away\x8c\x05Thing\x93)\x81."
HOSTILE = {
    "gone": GONE,
    "exits": pickle.dumps(Malicious(os._exit, 3)),
    "leaves": pickle.dumps(Malicious(sys.exit, 3)),
    "cut": pickle.dumps("x")[:-3],
    "empty": b"",
}


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(User.objects.create_user("ann", is_staff=True, is_superuser=True))
    return client


def page(client: Client, path: str, **query: Any) -> str:
    answer = client.get(f"/admin/qworker/{path}", query)
    assert answer.status_code == 200, answer
    return answer.content.decode()


def make(key: str, success: bool = True, **values: Any) -> str:
    """Create a task with raw column values; pickles are bytes."""
    found = {"name": key, "func": "math.sqrt", "started": START, "stopped": START, "success": success}
    task = Task(id=f"{key:0>32}", **found)
    task.save(force_insert=True)
    for column, value in values.items():
        text = b64encode(value).decode() if isinstance(value, bytes) else value
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {TABLE} SET {column} = %s WHERE id = %s", (text, task.id))
    return str(task.id)


def queue(package: bytes | str, **headers: Any) -> OrmQ:
    """Create a message with a package: a pickle to sign, or raw text."""
    from django.core import signing

    from qworker.django.conf import conf

    class RawSerializer:
        def dumps(self, data: bytes) -> bytes:
            return data

    if isinstance(package, bytes):
        signer = signing.TimestampSigner(key=conf.secret_key, salt=conf.prefix)
        package = signer.sign_object(package, serializer=RawSerializer)
    with connection.cursor() as cursor:
        insert(cursor, "sqlite", "default", SignedPackage.dumps({"id": "a" * 32, "func": "f", "name": "n"}))
        body = json.dumps([[package], {}, {}])
        cursor.execute("UPDATE message SET body = %s", (body.encode(),))
        if headers:
            cursor.execute("UPDATE message SET headers = %s", (json.dumps(headers),))
    return OrmQ.objects.get()


# -- rows that cannot be read --


@pytest.mark.parametrize("data", [*HOSTILE.values(), "no base64!"], ids=[*HOSTILE, "text"])
@pytest.mark.parametrize("success", [True, False])
def test_undecodable_task_does_not_break_pages(client: Client, data: Any, success: bool) -> None:
    key = make("bad", success, args=data, kwargs=data, result=data)
    make("good", success, result=pickle.dumps("fine : Traceback (most recent call last)"))
    name = "success" if success else "failure"
    text = page(client, f"{name}/")
    assert "good" in text
    assert "bad" in text
    assert "bad" in page(client, f"{name}/{key}/change/")
    assert "bad" in page(client, f"{name}/{key}/delete/")
    given = {"action": "delete_selected", "_selected_action": [key], "post": "yes"}
    client.post(f"/admin/qworker/{name}/", given)
    assert list(Task.objects.values_list("name", flat=True)) == ["good"]


def test_missing_class_is_shown_by_name(client: Client) -> None:
    assert "gone.away.Thing()" in page(client, f"success/{make('bad', result=GONE)}/change/")
    make("worse", False, result=GONE)
    assert "gone.away.Thing()" in page(client, "failure/")


@pytest.mark.parametrize("data", [*HOSTILE.values(), "no package"], ids=[*HOSTILE, "text"])
def test_undecodable_message_does_not_break_pages(client: Client, data: Any) -> None:
    row = queue(data)
    assert "n" in page(client, "ormq/")
    assert "Lock until" in page(client, f"ormq/{row.pk}/change/")
    client.post(f"/admin/qworker/ormq/{row.pk}/delete/", {"post": "yes"})
    assert OrmQ.objects.count() == 0


@pytest.mark.parametrize("headers", ["", "[]", "nothing", '{"task": "qworker.django.run", "argsrepr": "(("}'])
def test_undecodable_headers_do_not_break_pages(client: Client, headers: str) -> None:
    row = queue(GONE)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE message SET headers = %s", (headers,))
    page(client, "ormq/")
    page(client, f"ormq/{row.pk}/change/")


def test_message_is_shown_without_importing_classes(client: Client) -> None:
    package = {"id": "a" * 32, "name": "n", "func": "f", "args": (Here(),), "kwargs": {}, "timeout": 30}
    row = queue(pickle.dumps(package).replace(b"Here", b"Gone"))
    text = page(client, f"ormq/{row.pk}/change/")
    assert ".Gone(),)" in text
    assert "timeout: 30" in text


def test_qworker_message_is_shown(client: Client) -> None:
    row = queue("", task="shop.tasks.sell", id="b" * 32, argsrepr="(7,)")
    assert "shop.tasks.sell" in page(client, "ormq/")
    text = page(client, f"ormq/{row.pk}/change/")
    assert "(7,)" in text
    assert "b" * 32 in text


def test_message_is_found_by_task(client: Client) -> None:
    async_task("math.sqrt", 4, task_name="wanted")
    async_task("math.floor", 4)
    assert "wanted" in page(client, "ormq/", q="math.sqrt")
    assert "math.floor" not in page(client, "ormq/", q="wanted")


# -- how much is read, and shown --


def test_list_of_failures_shows_the_error(client: Client) -> None:
    make("bad", False, result=pickle.dumps("it went wrong : Traceback (most recent call last): x"))
    text = page(client, "failure/")
    assert "it went wrong<" in text


def test_error_without_message_is_shown_by_name(client: Client) -> None:
    make("bad", False, result=pickle.dumps(" : Traceback (most recent call last):\n  x\nKeyError\n"))
    assert ">KeyError<" in page(client, "failure/")


def test_empty_value_is_shown_as_a_dash(client: Client) -> None:
    for name, key in (("success", make("one")), ("schedule", Schedule.objects.create(func="f").pk)):
        assert ">None<" not in page(client, f"{name}/{key}/change/")
    async_task("math.sqrt", 4)
    assert ">None<" not in page(client, f"ormq/{OrmQ.objects.get().pk}/change/")


def test_large_columns_are_not_read(client: Client) -> None:
    big = "x" * columns.LARGEST_OF_PAGE
    key = make("big", False, result=pickle.dumps(big), args=pickle.dumps((big,)))
    with CaptureQueriesContext(connection) as made:
        assert "too large to be shown: 1.3" in page(client, f"failure/{key}/change/")
        assert "too large to be shown" in page(client, "failure/")
    assert not [query for query in made if "x" * 100 in query["sql"]]


def test_long_result_is_truncated(client: Client) -> None:
    key = make("long", result=pickle.dumps("y" * 50_000))
    text = page(client, f"success/{key}/change/")
    assert "y" * (columns.MOST_OF_PAGE - 1) + "…" in text
    assert "y" * columns.MOST_OF_PAGE not in text


def test_error_keeps_its_lines(client: Client) -> None:
    key = make("bad", False, result=pickle.dumps("no : Traceback\n  File <a>\n    b"))
    assert "Traceback\n  File &lt;a&gt;\n    b</pre>" in page(client, f"failure/{key}/change/")


@pytest.mark.parametrize("name", ["success", "failure"])
def test_page_of_a_task_needs_few_queries(client: Client, name: str) -> None:
    key = make("one", name == "success", result=pickle.dumps("x"), args=pickle.dumps((1,)))
    with CaptureQueriesContext(connection) as made:
        page(client, f"{name}/{key}/change/")
    assert len(made) <= 4, [query["sql"] for query in made]


def test_group_filter_is_limited(client: Client) -> None:
    Task.objects.bulk_create(
        Task(id=f"{n:032}", name=f"t{n}", func="f", group=f"g{n:03}", started=START, stopped=START)
        for n in range(100)
    )
    text = page(client, "success/")
    assert 20 <= text.count("?group=") <= 60
    assert f"{0:032}" in page(client, "success/", group="g000")


def test_row_count_is_limited(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MOST", 120)
    Task.objects.bulk_create(
        Task(id=f"{n:032}", name=f"t{n}", func="f", started=START, stopped=START) for n in range(150)
    )
    with CaptureQueriesContext(connection) as made:
        text = page(client, "success/")
    assert "120+" in text
    (count,) = [query["sql"] for query in made if "COUNT(" in query["sql"]]
    assert "LIMIT 121" in count
    with override_settings(USE_THOUSAND_SEPARATOR=True):
        page(client, "success/", p="2")
    assert "t0<" not in page(client, "success/", p="1")
    assert "1 result" in page(client, "success/", q="t149")


@pytest.mark.parametrize("model", [Success, Failure])
def test_list_is_ordered_by_an_index(model: Any) -> None:
    plan = model.objects.order_by("-stopped", "-id")[:100].explain()
    assert "qworker_task_stopped" in plan
    assert "TEMP B-TREE" not in plan


def test_count_does_not_read_large_columns(client: Client) -> None:
    make("bad", False, result=pickle.dumps("x"))
    with CaptureQueriesContext(connection) as made:
        page(client, "failure/")
    (count,) = [query["sql"] for query in made if "COUNT(" in query["sql"]]
    assert "result" not in count


def test_facets_are_disabled(client: Client) -> None:
    for name in ("success", "failure", "ormq"):
        assert "_facets" not in page(client, f"{name}/")
        page(client, f"{name}/", _facets="True")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0012, "0.001 s"), (3.5, "3.500 s"), (75.25, "75.2 s"), (7261.7, "7262 s")]
)
def test_durations_are_rounded(seconds: float, text: str) -> None:
    assert columns.duration(seconds) == text


def test_instants_have_seconds_and_local_time() -> None:
    assert columns.instant(START) == "03/01/2024 13:00:00"
    assert columns.instant(None) is None


# -- sites and subclasses of projects --


class Widened(FailAdmin):
    """Like in the manual of django-q2: a list with the result."""

    list_display = ("name", "func", "result", "args", "started")
    fields = ("name", "result")


class WidenedQueue(QueueAdmin):
    list_display = ("id", "func", "args", "group")


class Renamed(ScheduleAdmin):
    exclude = ("hook",)


class Chosen(ScheduleAdmin):
    fields = ("name", "func", "last_run")


SITE = admin.AdminSite(name="office")
SITE.register(Success, TaskAdmin)
SITE.register(Failure, Widened)
SITE.register(Schedule, Renamed)
SITE.register(OrmQ, WidenedQueue)
ALONE = admin.AdminSite(name="alone")
ALONE.register(Schedule, Chosen)


class Sites(Pages):
    @property
    def urlpatterns(self) -> list[Any]:
        return [path("office/", SITE.urls), path("admin/", admin.site.urls), path("alone/", ALONE.urls)]


@pytest.fixture
def office(client: Client) -> Any:
    pages = Sites()
    with override_settings(ROOT_URLCONF=pages):
        yield client


def test_links_lead_to_the_same_site(office: Client) -> None:
    key = make("one")
    Schedule.objects.create(name="s", func="math.sqrt", next_run=START, task=key)
    for site in ("office", "admin"):
        text = office.get(f"/{site}/qworker/schedule/").content.decode()
        assert f'"/{site}/qworker/success/{key}/change/"' in text
    assert "[one]" in office.get("/alone/qworker/schedule/").content.decode()


def test_subclass_shows_pickles_safely(office: Client) -> None:
    key = make("bad", False, result=HOSTILE["leaves"], args=GONE)
    make("more", False, result=pickle.dumps("fine"))
    with CaptureQueriesContext(connection) as made:
        text = office.get("/office/qworker/failure/").content.decode()
    assert "gone.away.Thing()" in text
    assert len(made) <= 8
    assert "sys.exit(3)" in office.get(f"/office/qworker/failure/{key}/change/").content.decode()


def test_subclass_of_the_queue_needs_few_queries(office: Client) -> None:
    for number in range(5):
        async_task("math.sqrt", number, group="many")
    with CaptureQueriesContext(connection) as made:
        text = office.get("/office/qworker/ormq/").content.decode()
    assert text.count("(3,)") == 1
    assert len(made) <= 8


def test_subclass_can_select_fields(office: Client) -> None:
    made = Schedule.objects.create(name="s", func="math.sqrt", next_run=START)
    for place in (f"{made.pk}/change/", "add/"):
        assert 'name="hook"' not in office.get(f"/office/qworker/schedule/{place}").content.decode()
        text = office.get(f"/alone/qworker/schedule/{place}").content.decode()
        assert 'name="func"' in text
        assert 'name="args"' not in text


def test_subclasses_pass_djangos_checks() -> None:
    for site in (SITE, ALONE, admin.site):
        assert [error for each in site._registry.values() for error in each.check()] == []


def test_project_can_replace_a_model_admin() -> None:
    site = admin.AdminSite()
    site.register(Failure, FailAdmin)
    site.unregister([Failure])
    site.register(Failure, Widened)
    request = RequestFactory().get("/")
    request.user = User(is_superuser=True, is_active=True, is_staff=True)
    key = make("bad", False, result=GONE)
    (row,) = site._registry[Failure].get_queryset(request)  # without a page
    assert row.pk == key
    assert site._registry[Failure].short_result(row) == "gone.away.Thing()"


@pytest.mark.parametrize("name", ["success", "failure"])
def test_list_is_sorted_by_an_index_for_any_query(client: Client, name: str) -> None:
    """Sorting a million rows takes seconds in each request."""
    make("a", success=name == "success")
    columns = len(admin.site.get_model_admin(Success if name == "success" else Failure).list_display)
    sorted_by = set()
    for order in [*range(columns + 2), *range(-columns - 1, 0)]:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            page(client, f"{name}/", o=str(order))
        (read,) = [one["sql"] for one in queries if "ORDER BY" in one["sql"] and '."func"' in one["sql"]]
        sorted_by.add(read.partition("ORDER BY ")[2].partition(" LIMIT")[0])
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {read}")
            plan = " ".join(str(row) for row in cursor.fetchall())
        assert "TEMP B-TREE FOR ORDER BY" not in plan, (order, plan)
    assert len(sorted_by) == 2, sorted_by  # stopped, both ways
