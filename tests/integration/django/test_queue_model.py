"""The queue model, through its view in the project's SQLite file."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection

from qworker.django.models import OrmQ
from qworker.django.signing import SignedPackage
from qworker.django.tables.adoption import insert
from qworker.errors import QWorkerError

PACKAGE = {
    "id": "a" * 32,
    "name": "four-words",
    "func": "math.sqrt",
    "args": (4,),
    "kwargs": {},
    "timeout": 3,
}
UNTIL = datetime(2030, 1, 1, 12, tzinfo=UTC)


def sql(statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall()


def message(package: Any = PACKAGE, queue: str = "default") -> OrmQ:
    text = package if isinstance(package, str) else SignedPackage.dumps(package)
    with connection.cursor() as cursor:
        insert(cursor, "sqlite", queue, text)
    return OrmQ.objects.latest("id")


def hold(row: OrmQ) -> None:
    sql(
        "INSERT INTO owner (id, name, pid, boot, queues, concurrency, lease_until, started, marks) "
        "VALUES (7, 'worker@here', 1, '', '[]', 1, %s, 0, '')",
        UNTIL.timestamp(),
    )
    sql("UPDATE message SET state = 2, owner = 7 WHERE tag = %s", row.pk)


def test_message_shows_its_package() -> None:
    found = message()
    assert found.key == "default"
    assert found.task == PACKAGE
    assert (found.task_id(), found.name(), found.func()) == ("a" * 32, "four-words", "math.sqrt")
    assert (found.group(), found.args(), found.kwargs()) == (None, (4,), {})
    assert found.q_options() == {"timeout": 3}
    assert found.lock is None


def test_function_is_shown_by_path() -> None:
    assert message({**PACKAGE, "func": json.dumps}).func() == "json.dumps"
    assert message({**PACKAGE, "func": datetime.now}).func() == "datetime.datetime.now"
    assert message({**PACKAGE, "func": str.upper}).func() == "builtins.str.upper"


def test_undecodable_package_shows_the_error() -> None:
    found = message("forged")
    assert found.payload == "forged"
    assert found.task_id() == "*BadSignature"
    assert (found.func(), found.name()) == (None, None)


@pytest.mark.parametrize(
    "body", [b"\xff", b"{}", b"[]", b"[[1, 2], {}, {}]", b"[[1], {}, {}]", b"7", b"[" * 10_000]
)
def test_foreign_message_has_no_package(body: bytes) -> None:
    row = message()
    sql("UPDATE message SET body = %s WHERE tag = %s", body, row.pk)
    found = OrmQ.objects.get(pk=row.pk)
    assert found.payload == ""
    assert found.task == {}
    assert found.task_id() is None


def test_leased_message_is_locked_until_its_lease_ends() -> None:
    row = message()
    hold(row)
    assert OrmQ.objects.get().lock == UNTIL


def test_message_of_a_missing_consumer_has_no_lock() -> None:
    row = message()
    sql("UPDATE message SET state = 2, owner = 99 WHERE tag = %s", row.pk)
    assert OrmQ.objects.get().lock is None


def test_removing_the_lock_releases_the_message() -> None:
    row = message()
    hold(row)
    found = OrmQ.objects.get()
    found.lock = None
    found.key = "other"
    found.save()
    assert sql("SELECT queue, state, owner, due FROM message") == [("other", 0, None, None)]


def test_setting_the_lock_delays_the_message() -> None:
    found = message()
    found.lock = UNTIL
    found.save()
    assert sql("SELECT state, due FROM message") == [(1, UNTIL.timestamp())]
    assert OrmQ.objects.get().lock == UNTIL


def test_save_keeps_a_lease_taken_meanwhile() -> None:
    found = message()
    hold(found)
    found.key = "other"
    found.save()
    assert sql("SELECT queue, state, owner FROM message") == [("other", 2, 7)]


def test_save_does_not_restore_a_deleted_message() -> None:
    found = message()
    sql("DELETE FROM message")
    found.save()
    assert sql("SELECT count(*) FROM message") == [(0,)]


def test_messages_can_be_deleted() -> None:
    first, second, _ = message(), message(), message(queue="other")
    first.delete()
    assert OrmQ.objects.filter(key="default").delete() == (1, {"qworker.OrmQ": 1})
    assert not OrmQ.objects.filter(pk=second.pk).exists()
    assert OrmQ.objects.count() == 1


def test_messages_can_be_updated_in_bulk() -> None:
    message(), message()
    assert OrmQ.objects.update(key="elsewhere") == 2
    assert OrmQ.objects.filter(key="elsewhere").count() == 2


def test_django_q2_package_with_any_timeout_is_accepted() -> None:
    """django-q2 does not validate it before a worker uses it, which then crashes."""
    assert [message({**PACKAGE, "timeout": odd}).name() for odd in ("3", [3], -1)] == ["four-words"] * 3


def test_message_cannot_be_created_with_save() -> None:
    with pytest.raises(QWorkerError, match="async_task"):
        OrmQ(key="default").save()
    with pytest.raises(QWorkerError, match=r"Broker\.enqueue"):
        OrmQ.objects.create(key="default", payload=SignedPackage.dumps(PACKAGE), lock=UNTIL)
    assert OrmQ.objects.count() == 0


def test_locks_are_read_with_one_query(django_assert_queries: Any) -> None:
    for _ in range(3):
        row = message()
    hold(row)
    with django_assert_queries(1):
        assert [found.lock for found in OrmQ.objects.all()] == [None, None, UNTIL]


@pytest.fixture
def django_assert_queries() -> Any:
    """Return a context manager that checks the number of queries."""
    from contextlib import contextmanager

    from django.test.utils import CaptureQueriesContext

    @contextmanager
    def count(expected: int) -> Any:
        with CaptureQueriesContext(connection) as made:
            yield
        assert len(made) == expected, [query["sql"] for query in made]

    return count
