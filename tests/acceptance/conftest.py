"""Fixtures of the acceptance tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from copy import copy
from pathlib import Path

import pytest

from tests.acceptance.brokers import Broken, RemoteSite
from tests.acceptance.django_site import DjangoSite, migrated, site_on
from tests.acceptance.harness import Site, opened
from tests.acceptance.private_servers import BROKERS, serving
from tests.acceptance.spool_site import SpoolSite
from tests.servers import require
from tests.support.cases import cases
from tests.support.django_databases import KINDS, ProjectDatabase


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site with a database and a ledger, without workers yet; all its processes are gone afterwards."""
    with opened(tmp_path) as site:
        yield site


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[SpoolSite]:
    """The same, with a spool directory."""
    with closing(SpoolSite(tmp_path)) as site:
        yield site


@pytest.fixture(scope="session")
def _private_servers() -> Iterator[Callable[[str, str], Broken]]:
    """A function that returns the server for a kind and a purpose, started on first use and kept."""
    with ExitStack() as stack:
        running: dict[tuple[str, str], Broken] = {}

        def get(kind: str, purpose: str) -> Broken:
            if (kind, purpose) not in running:
                running[kind, purpose] = Broken(stack.enter_context(serving(kind)))
            return running[kind, purpose]

        yield get


@pytest.fixture(params=BROKERS)
def broken(request: pytest.FixtureRequest, _private_servers: Callable[[str, str], Broken]) -> Broken:
    """A broker of each kind that a test may break; choose kinds with ``parametrize("broken", [...],
    indirect=True)``."""
    return _private_servers(request.param, "broker")


@pytest.fixture
def results(_private_servers: Callable[[str, str], Broken], tmp_path: Path) -> Iterator[Broken]:
    """A Redis for results that a test may break; clients use ``results.url``."""
    results = _private_servers("redis", "results")
    with results.exposed():
        yield results


@pytest.fixture(params=["embedded", "redis"])
def anywhere(
    request: pytest.FixtureRequest, _private_servers: Callable[[str, str], Broken], tmp_path: Path
) -> Iterator[Site]:
    """A site on the embedded broker, and one on a server."""
    if request.param == "embedded":
        with opened(tmp_path) as site:
            yield site
    else:
        broken = _private_servers(request.param, "broker")
        with broken.exposed(), RemoteSite(tmp_path, broken.url, broken.direct) as site:
            yield site


@pytest.fixture
def remote(broken: Broken, tmp_path: Path) -> Iterator[RemoteSite]:
    """A site on ``broken``, otherwise like ``site``."""
    with broken.exposed(), RemoteSite(tmp_path, broken.url, broken.direct) as site:
        yield site


@pytest.fixture(scope="session")
def _project_databases(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], ProjectDatabase]]:
    """A function that returns the database of a kind, migrated on first use and kept."""
    made: dict[str, ProjectDatabase] = {}

    def get(kind: str) -> ProjectDatabase:
        if kind not in made:
            url = "" if kind == "sqlite" else require(kind)
            made[kind] = migrated(kind, tmp_path_factory.mktemp(f"django-{kind}"), url)
        return made[kind]

    yield get
    for database in made.values():
        database.drop()


@contextmanager
def _emptied(found: ProjectDatabase, tmp_path: Path) -> Iterator[ProjectDatabase]:
    if found.kind == "sqlite":
        mine = ProjectDatabase("sqlite", tmp_path)
        with closing(found.connect()) as original, closing(mine.connect()) as connection:
            original.backup(connection)
        yield mine
        return
    found.empty()
    mine = copy(found)
    mine.settings = dict(found.settings)  # which the test may change
    yield mine
    found.sever()


@pytest.fixture(params=KINDS)
def database(
    request: pytest.FixtureRequest, _project_databases: Callable[[str], ProjectDatabase], tmp_path: Path
) -> Iterator[ProjectDatabase]:
    """The database of a Django project, migrated and empty, of each kind; choose kinds with
    ``parametrize("database", [...], indirect=True)``."""
    with _emptied(_project_databases(request.param), tmp_path) as database:
        yield database


@pytest.fixture
def django_site(database: ProjectDatabase, tmp_path: Path) -> Iterator[DjangoSite]:
    """A Django project with its database as the broker, without clusters yet; all its processes are gone
    afterwards."""
    with site_on(tmp_path, database) as site:
        yield site


@pytest.fixture(params=cases([*KINDS, "redis"], ["sqlite", "postgresql", "redis"]))
def django_anywhere(
    request: pytest.FixtureRequest,
    _project_databases: Callable[[str], ProjectDatabase],
    _private_servers: Callable[[str, str], Broken],
    tmp_path: Path,
) -> Iterator[DjangoSite]:
    """Like django_site, and also with Redis as the broker and results in a database."""
    kind, cluster = request.param, {}
    if kind == "redis":
        server = _private_servers("redis", "django")
        server.server.do("FLUSHALL")
        kind, cluster = "postgresql", {"redis": server.server.url}
    with (
        _emptied(_project_databases(kind), tmp_path) as database,
        site_on(tmp_path, database, cluster=cluster) as site,
    ):
        yield site
