"""The worker's permissions at its broker are revoked for some seconds: it waits, logs it, and continues."""

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


class Permissions(NamedTuple):
    """url: of a user who has them. take, give: revoke and grant them."""

    url: str
    take: Callable[[], Any]
    give: Callable[[], Any]


def _as_user(url: str, user: str = USER) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{PASSWORD}@{parts.hostname}:{parts.port}"))


def _redis(broken: Broken) -> Permissions:
    def acl(*rules: str) -> None:
        broken.server.do("ACL", "SETUSER", USER, *rules)

    acl("on", f">{PASSWORD}", "~*", "&*", "+@all")
    return Permissions(_as_user(broken.url), lambda: acl("-@all"), lambda: acl("+@all"))


def _postgresql(broken: Broken) -> Permissions:
    do = broken.server.do
    do(f"DROP ROLE IF EXISTS {USER}")
    do(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
    do(f"GRANT ALL ON SCHEMA public TO {USER}")
    kinds = ("TABLES", "SEQUENCES")
    return Permissions(
        _as_user(broken.url),
        lambda: [do(f"REVOKE ALL ON ALL {kind} IN SCHEMA public FROM {USER}") for kind in kinds],
        lambda: [do(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {USER}") for kind in kinds],
    )


def _rabbitmq(broken: Broken) -> Permissions:
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
    return Permissions(_as_user(broken.url), take, give)


PERMISSIONS = {"redis": _redis, "postgresql": _postgresql, "rabbitmq": _rabbitmq}


@pytest.mark.parametrize("broken", PERMISSIONS, indirect=True)
def test_worker_survives_revoked_permissions(
    broken: Broken, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with broken.exposed():
        permissions = PERMISSIONS[request.node.callspec.params["broken"]](broken)
        with RemoteSite(tmp_path, permissions.url, broken.direct) as site:
            _survives(site, permissions)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[MySQLPlace]:
    place = MySQLPlace(tmp_path)
    yield place
    place.clear()


def test_worker_survives_revoked_permissions_on_mysql(database: MySQLPlace, tmp_path: Path) -> None:
    parts = urlsplit(URLS["mysql"])
    user = database._name[:40]
    name = database.url.rpartition("/")[2]
    with closing(
        pymysql.connect(
            host=parts.hostname, port=parts.port or 3306, user=parts.username,
            password=parts.password or "", autocommit=True, ssl_disabled=True
        )
    ) as connection:  # fmt: skip
        cursor = connection.cursor()

        def take() -> None:
            cursor.execute(f"REVOKE ALL ON {name}.* FROM '{user}'@'%'")
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (user,))
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL {number}")

        cursor.execute(f"CREATE OR REPLACE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}'")
        permissions = Permissions(
            _as_user(database.url, user),
            take,
            lambda: cursor.execute(f"GRANT ALL ON {name}.* TO '{user}'@'%'"),
        )
        permissions.give()
        try:
            with RemoteSite(tmp_path, permissions.url, database.url, f"db+{permissions.url}") as site:
                _survives(site, permissions)
        finally:
            cursor.execute(f"DROP USER '{user}'@'%'")


def _survives(site: RemoteSite, permissions: Permissions) -> None:
    worker = site.start()
    go = site.path / "go"
    before = site.send("work", 1)
    site.ended(before)
    running = site.send("until_file", str(go))
    site.started(running)
    permissions.take()
    try:
        site.until(lambda: "does not answer" in worker.log, "the worker to say that it was refused")
        go.touch()  # its end cannot be reported now
        site.until(lambda: worker.log.count("does not answer") >= 3, "it to try again and again")
        assert worker.alive
    finally:
        permissions.give()
    site.send_many("work", [(number,) for number in range(5)])
    site.drained()
    assert worker.alive
    worker.stop()
    assert set(site.states().values()) == {"SUCCESS"}
