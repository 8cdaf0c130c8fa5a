"""The leader falls silent while it makes many calls, in a transaction that holds the lease: between two
statements or within a large one. The database lets others lead within seconds, and the transaction has no
effect."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from qworker.beat.store import LEASE_SECONDS, EntryState, Firing
from qworker.clock import SYSTEM_CLOCK
from qworker.errors import BackendError, LeaseLost
from qworker.transports.sql.broker import SQLBroker
from tests.acceptance.proxy import Proxy
from tests.contract.schedule_places import SCOPE, MySQLSchedulePlace, PostgreSQLSchedulePlace, ServerPlace
from tests.support.messages import message
from tests.support.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(300)]

PLACES = {"postgresql": PostgreSQLSchedulePlace, "mysql": MySQLSchedulePlace}
PORTS = {"postgresql": 5432, "mysql": 3306}
QUEUE = "calls"
COUNT = 1000
TAKEOVER = 10 * LEASE_SECONDS
"""Seconds, on a busy machine. Without our own timeouts it takes minutes or hours."""
PIECE = 65536
"""Bytes that the proxy forwards at once."""


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerPlace]:
    place = PLACES[request.param](tmp_path)
    yield place
    place.clear()


@pytest.fixture
def proxy(place: ServerPlace) -> Iterator[Proxy]:
    parts = urlsplit(place.place.url)
    with Proxy(parts.port or PORTS[parts.scheme], parts.hostname or "127.0.0.1") as proxy:
        yield proxy


def firings() -> list[Firing]:
    """Calls whose messages are much larger than one piece."""
    state = EntryState("seen", 1.0, 2.0, 3.0, "task", 1, None)
    return [
        Firing(f"entry-{number}", 2.0, f"task-{number}", [message(f"{number} {'x' * 600}", QUEUE)], state)
        for number in range(COUNT)
    ]


def through_proxy(proxy: Proxy, url: str) -> str:
    return url.replace(urlsplit(url).netloc.rpartition("@")[2], f"127.0.0.1:{proxy.port}")


@pytest.mark.parametrize("pieces", range(5))
def test_others_lead_while_one_is_silent_during_its_calls(
    place: ServerPlace, proxy: Proxy, pieces: int
) -> None:
    url = through_proxy(proxy, place.place.url)
    with closing(SQLBroker(url)) as theirs, closing(place.open(url, SYSTEM_CLOCK, SCOPE)) as silent:
        assert silent.is_with(theirs.sender)
        lease = silent.take("silent", silent.look())
        silent.fire(
            lease, [Firing("first", 2.0, "first", [message("1", QUEUE)], EntryState("seen"))], theirs.sender
        )
        said, heard = proxy.up.count, proxy.down.pieces

        def is_silent() -> bool:
            """After this many pieces of the request; 0: after the response to the statement that locks the
            lease."""
            return proxy.up.count > said + pieces * PIECE if pieces else proxy.down.pieces >= heard + 2

        proxy.up.hold_when(is_silent)
        ends: list[object] = []

        def fire() -> None:
            try:
                ends.append(silent.fire(lease, firings(), theirs.sender))
            except (BackendError, LeaseLost) as error:
                ends.append(error)

        thread = Thread(target=fire)
        thread.start()
        until(is_silent)
        with closing(place.broker()) as broker, closing(place.store()) as other:
            at = time.monotonic()
            taken = other.take("other", other.look())
            assert time.monotonic() - at < TAKEOVER
            assert taken.holder == "other"
            assert not ends
            proxy.heal()
            thread.join(60)
            assert isinstance(ends[0], BackendError | LeaseLost)
            assert broker.admin.depths([QUEUE])[0].ready == 1
            assert len(other.fire(taken, firings(), broker.sender)) == COUNT
