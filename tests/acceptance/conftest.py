"""Fixtures of the acceptance tests. Comes from: pytest. Goes to: tests/acceptance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.brokers import Broken, RemoteSite
from tests.acceptance.harness import Site, opened
from tests.acceptance.private_servers import SERVERS, serving


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A place with a database and a ledger,
    and no worker yet; whatever was started there is gone afterwards."""
    with opened(tmp_path) as site:
        yield site


@pytest.fixture(scope="session")
def _private_servers() -> Iterator[Callable[[str, str], Broken]]:
    """Gives the server of a kind and a purpose, which is started when it is first asked for and then kept."""
    with ExitStack() as stack:
        running: dict[tuple[str, str], Broken] = {}

        def get(kind: str, purpose: str) -> Broken:
            if (kind, purpose) not in running:
                running[kind, purpose] = Broken(stack.enter_context(serving(kind)))
            return running[kind, purpose]

        yield get


@pytest.fixture(params=SERVERS)
def broken(request: pytest.FixtureRequest, _private_servers: Callable[[str, str], Broken]) -> Broken:
    """A broker that may be broken, of each kind; name the kinds with
    ``parametrize("broken", [...], indirect=True)``."""
    return _private_servers(request.param, "broker")


@pytest.fixture
def results(_private_servers: Callable[[str, str], Broken], tmp_path: Path) -> Iterator[Broken]:
    """A Redis for results that may be broken; ``results.url`` is where clients find it."""
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
    """A site on ``broken``, as ``site`` otherwise."""
    with broken.exposed(), RemoteSite(tmp_path, broken.url, broken.direct) as site:
        yield site
