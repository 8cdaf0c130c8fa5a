"""Batches of valid results and results that a result store refuses: the writer never waits for the latter.

The tests use ResultWriter on every result store. The valid results of a batch are stored and their messages
settled. An invalid one becomes a failure with the reason, or its message a dead letter. Nothing is raised,
and nothing is retried that cannot succeed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qworker import QWorker
from qworker.components.ending.result_writer import ResultWriter
from qworker.components.mailbox import SettlementOrder
from qworker.errors import EncodeError
from qworker.testing import MemoryStore
from qworker.transports.lease import Ack, DeadLetter
from qworker.transports.sql.result_rows import pack
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.servers import URLS, prefix_of, require

pytestmark = pytest.mark.contract

KINDS = ("memory", "sqlite", "filesystem", "sql-sqlite", "postgresql", "mysql", "redis", "memcached")
TEXTS = (
    "bob\0",
    "bob\ud800",
    "bob\U0001f600",
    "",
    "x" * 300,
    "ü" * 20_000,
    "\udfff\0" * 40,
    "'\\\"%s;--",
    "\x7f",
)


class Harness:
    """A ResultWriter without a thread, for a result store of *kind*."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.place: Any = {"postgresql": PostgreSQLPlace, "mysql": MySQLPlace}.get(kind, lambda path: None)(
            directory
        )
        urls = {
            "memory": "cache+memory://",
            "sqlite": f"sqlite:///{directory}/results.db",
            "filesystem": f"file://{directory}/results",
            "sql-sqlite": f"db+sqlite:///{directory}/sql.db",
        }
        if self.place is not None:
            url = f"db+{self.place.url}"
        elif kind in ("redis", "memcached"):
            require(kind)
            url = URLS[kind] if kind == "redis" else f"cache+{URLS[kind]}"
        else:
            url = urls[kind]
        self.app = QWorker(
            "fuzz", broker=MemoryStore(), backend=url, set_as_current=False, result_extended=True,
            result_expires=60,
            result_backend_transport_options={"global_keyprefix": prefix_of(directory)},
        )  # fmt: skip
        self.posted: list[SettlementOrder] = []
        self.writer = ResultWriter(self.app, lambda name, error: None, self.posted.extend)
        self._numbers = iter(range(1, 10**9))

    def write(self, rows: list[Any]) -> list[SettlementOrder]:
        """Write each row as that of an ack; return the resulting settlement orders."""
        tags = [next(self._numbers) for _ in rows]
        self.writer.mailbox.post_many(
            SettlementOrder(None, Ack(tag, row)) for tag, row in zip(tags, rows, strict=True)
        )
        self.writer.step(self.app.clock.monotonic())
        assert self.writer.held() == 0, "all rows should be written"
        found, self.posted[:] = {order.settlement.tag: order for order in self.posted}, []  # type: ignore[union-attr]
        return [found[tag] for tag in tags]

    def close(self) -> None:
        self.app.backend.close()
        if self.place is not None:
            self.place.clear()


@pytest.fixture(params=KINDS)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(request.param, tmp_path)
    yield harness
    harness.close()


texts = st.sampled_from(TEXTS) | st.text(st.characters(), max_size=300)
pieces = st.fixed_dictionaries(
    {}, optional={"result": texts, "traceback": texts, "name": texts, "worker": texts, "queue": texts,
                  "args": st.lists(texts, max_size=2), "children": st.just([("x", None)])},
)  # fmt: skip
statuses = st.sampled_from(("SUCCESS", "FAILURE", "REVOKED", "RETRY", "STARTED", "PROGRESS", "x" * 60))
columns = st.dictionaries(
    st.sampled_from(("status", "result", "traceback", "children", "date_done", "name")), texts
)


def test_invalid_results_do_not_affect_others_in_the_batch(harness: Harness) -> None:
    backend = harness.app.backend
    sql = harness.place is not None or harness.kind == "sql-sqlite"

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(batch=st.lists(st.tuples(statuses, pieces, st.none() | columns), min_size=1, max_size=8))
    def fuzz(batch: list[Any]) -> None:
        rows, good = [], []
        for status, extra, raw in batch:
            good.append(f"good-{next(harness._numbers)}")
            rows.append(backend.row(good[-1], backend.meta(good[-1], "SUCCESS", good[-1])))
            bad = f"bad-{next(harness._numbers)}"
            if raw is not None and sql:
                usual = {
                    "status": status,
                    "result": b"1",
                    "traceback": None,
                    "children": None,
                    "date_done": None,
                }
                rows.append((bad, status, pack({**usual, **raw}), None))
                continue
            try:
                rows.append(backend.row(bad, backend.meta(bad, status, **extra)))
            except EncodeError:
                continue  # a child turns this into a failure
        orders = harness.write(rows)
        assert all(isinstance(order.settlement, Ack | DeadLetter) for order in orders)
        assert {name: meta["result"] for name, meta in backend.get_many(good).items()} == {
            name: name for name in good
        }

    fuzz()


def test_result_that_is_too_large_becomes_a_failure(harness: Harness) -> None:
    if harness.kind not in ("mysql", "memcached"):
        return  # it accepts up to message_max_bytes
    backend = harness.app.backend
    large = backend.row("large", backend.meta("large", "SUCCESS", '"' * 8_000_000))
    orders = harness.write([backend.row("one", backend.meta("one", "SUCCESS", 1)), large])
    assert all(isinstance(order.settlement, Ack) for order in orders)
    found = backend.get_many(["one", "large"])
    assert {name: meta["status"] for name, meta in found.items()} == {"one": "SUCCESS", "large": "FAILURE"}


def test_undecodable_stored_result_is_replaced(tmp_path: Path) -> None:
    harness = Harness("filesystem", tmp_path)
    backend = harness.app.backend
    assert backend.store("x", backend.meta("x", "RETRY"))
    for path in (tmp_path / "results").glob("celery-task-meta-*"):
        path.write_bytes(b"\xff\xfe no JSON")
    (order,) = harness.write([backend.row("x", backend.meta("x", "SUCCESS", 7))])
    assert isinstance(order.settlement, Ack)
    meta = backend.get("x")
    assert meta is not None
    assert meta["result"] == 7
    harness.close()
