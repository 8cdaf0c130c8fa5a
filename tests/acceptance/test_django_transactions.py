"""Tasks called within transactions of a Django project; on each kind of database."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.django_site import TASKS, DjangoSite, site_on
from tests.support.django_databases import ProjectDatabase

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

CALLS = f"""
from django.contrib.auth.models import Group
from django.db import transaction
def call(key):
    Group.objects.create(name=key)
    async_task("{TASKS}.work", key)

class Undo(Exception): pass

try:
    with transaction.atomic():
        call("undone")
        raise Undo
except Undo:
    pass
with transaction.atomic():
    call("kept")
    try:
        with transaction.atomic():
            call("undone-with-its-savepoint")
            raise Undo
    except Undo:
        pass
    with transaction.atomic():
        call("kept-with-its-savepoint")
    transaction.on_commit(lambda: call("called-on-commit"))
call("outside")
transaction.set_autocommit(False)
call("undone-by-hand")
transaction.rollback()
call("committed-by-hand")
transaction.commit()
transaction.set_autocommit(True)
answer = sorted(Group.objects.values_list("name", flat=True))
"""
KEPT = ["called-on-commit", "committed-by-hand", "kept", "kept-with-its-savepoint", "outside"]


def test_task_is_enqueued_if_and_only_if_the_transaction_commits(django_site: DjangoSite) -> None:
    site = django_site
    cluster = site.start()
    assert site.do(CALLS) == KEPT
    site.until(lambda: all(site.ends(key) for key in KEPT), "the tasks that were committed")
    site.drained()
    assert len(site.tasks()) == len(KEPT)
    cluster.stop()


REFUSED = """
from django.db import DatabaseError, connection
from qworker.django.tasks import async_iter
with connection.cursor() as cursor:
    table = "message" if connection.vendor == "sqlite" else "qworker_message"
    cursor.execute(f"ALTER TABLE {table} RENAME TO elsewhere")
answer = []
for call in (lambda: async_task("math.sqrt", 4), lambda: async_iter("math.sqrt", [4, 9])):
    try:
        call()
    except DatabaseError:
        answer.append(connection.errors_occurred)
with connection.cursor() as cursor:
    cursor.execute(f"ALTER TABLE elsewhere RENAME TO {table}")
"""


def test_database_error_while_enqueuing_is_a_django_error(database: ProjectDatabase, tmp_path: Path) -> None:
    """Handlers for ORM errors catch it, and Django marks the connection."""
    with site_on(tmp_path, database) as site:
        assert site.do(REFUSED) == [True, True]


def test_pages_within_a_transaction(database: ProjectDatabase, tmp_path: Path) -> None:
    """With ATOMIC_REQUESTS, a page that fails enqueues no task."""
    database.settings["ATOMIC_REQUESTS"] = True
    with site_on(tmp_path, database) as site:
        cluster = site.start()
        found = site.do(
            """
            from django.contrib.auth.models import Group
            from django.test import Client
            client = Client(raise_request_exception=False)
            pages = [f"/{page}/{page}-{n}/" for n in range(5) for page in ("order", "fail")]
            codes = [client.get(page).status_code for page in pages]
            answer = codes, sorted(Group.objects.values_list("name", flat=True))
            """
        )
        assert found == [[200, 500] * 5, [f"order-{number}" for number in range(5)]]
        site.until(lambda: all(site.ends(f"order-{number}") for number in range(5)), "the tasks of pages")
        site.drained()
        assert len(site.tasks()) == 5
        cluster.stop()
