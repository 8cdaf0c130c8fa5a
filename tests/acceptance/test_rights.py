"""Somebody withdraws the worker's rights at its broker for some seconds: it waits, says so, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import pymysql
import pytest

from tests.acceptance.brokers import Broken, RemoteSite
from tests.contract.place_sql import MySQLPlace
from tests.servers import URLS

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

USER, PASSWORD = "limited", "secret"


class Rights(NamedTuple):
    """url: of a user who has them. take, give: change that."""

    url: str
    take: Callable[[], Any]
    give: Callable[[], Any]


def _as_user(url: str, user: str = USER) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{PASSWORD}@{parts.hostname}:{parts.port}"))


def _redis(broken: Broken) -> Rights:
    def acl(*rules: str) -> None:
        broken.server.do("ACL", "SETUSER", USER, *rules)

    acl("on", f">{PASSWORD}", "~*", "&*", "+@all")
    return Rights(_as_user(broken.url), lambda: acl("-@all"), lambda: acl("+@all"))


def _postgresql(broken: Broken) -> Rights:
    do = broken.server.do
    do(f"DROP ROLE IF EXISTS {USER}")
    do(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
    do(f"GRANT ALL ON SCHEMA public TO {USER}")
    kinds = ("TABLES", "SEQUENCES")
    return Rights(
        _as_user(broken.url),
        lambda: [do(f"REVOKE ALL ON ALL {kind} IN SCHEMA public FROM {USER}") for kind in kinds],
        lambda: [do(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {USER}") for kind in kinds],
    )


def _rabbitmq(broken: Broken) -> Rights:
    do = broken.server.do
    host = urlsplit(broken.url).path.lstrip("/")
    if USER not in do("list_users"):
        do("add_user", USER, PASSWORD)

    def give() -> None:
        do("set_permissions", "-p", host, USER, ".*", ".*", ".*")

    def take() -> None:
        do("clear_permissions", "-p", host, USER)
        do("close_all_connections", "-p", host, "its rights were withdrawn")

    give()
    return Rights(_as_user(broken.url), take, give)


RIGHTS = {"redis": _redis, "postgresql": _postgresql, "rabbitmq": _rabbitmq}


@pytest.mark.parametrize("broken", RIGHTS, indirect=True)
def test_a_worker_outlives_the_loss_of_its_rights(
    broken: Broken, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with broken.exposed():
        rights = RIGHTS[request.node.callspec.params["broken"]](broken)
        with RemoteSite(tmp_path, rights.url, broken.direct) as site:
            _outlives(site, rights)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[MySQLPlace]:
    place = MySQLPlace(tmp_path)
    yield place
    place.clear()


def test_a_worker_outlives_the_loss_of_its_rights_on_mysql(database: MySQLPlace, tmp_path: Path) -> None:
    parts = urlsplit(URLS["mysql"])
    user = database._name[:40]
    name = database.url.rpartition("/")[2]
    with closing(
        pymysql.connect(
            host=parts.hostname, port=parts.port or 3306, user=parts.username,
            password=parts.password or "", autocommit=True
        )
    ) as connection:  # fmt: skip
        cursor = connection.cursor()

        def take() -> None:
            cursor.execute(f"REVOKE ALL ON {name}.* FROM '{user}'@'%'")
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (user,))
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL {number}")

        cursor.execute(f"CREATE OR REPLACE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}'")
        rights = Rights(
            _as_user(database.url, user),
            take,
            lambda: cursor.execute(f"GRANT ALL ON {name}.* TO '{user}'@'%'"),
        )
        rights.give()
        try:
            with RemoteSite(tmp_path, rights.url, database.url, f"db+{rights.url}") as site:
                _outlives(site, rights)
        finally:
            cursor.execute(f"DROP USER '{user}'@'%'")


def _outlives(site: RemoteSite, rights: Rights) -> None:
    worker = site.start()
    go = site.path / "go"
    before = site.send("work", 1)
    site.ended(before)
    running = site.send("until_file", str(go))
    site.started(running)
    rights.take()
    try:
        site.until(lambda: "does not answer" in worker.log, "the worker to say that it was refused")
        go.touch()  # its end cannot be told now
        site.until(lambda: worker.log.count("does not answer") >= 3, "it to try again and again")
        assert worker.alive
    finally:
        rights.give()
    site.send_many("work", [(number,) for number in range(5)])
    site.drained()
    assert worker.alive
    worker.stop()
    assert set(site.states().values()) == {"SUCCESS"}
