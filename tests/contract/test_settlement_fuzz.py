"""Settlements that an SQL server may refuse, because a value does not fit its column.

The cases for every broker are in ``qworker/testing/contract/suite/hostile.py``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from qworker.testing.contract.place import Place
from qworker.testing.contract.suite import clock, open_, place, pytest_generate_tests, store
from qworker.testing.contract.suite.hostile import (
    ASTRAL,
    LONE,
    NUL,
    Harness,
    ends,
    fuzz,
    harness,
    hostile,
    texts,
    with_row,
)
from qworker.transports.lease import Ack, Broker, DeadLetter
from qworker.transports.sql.result_rows import pack
from tests.contract import lease_places

__all__ = ["clock", "harness", "open_", "place", "pytest_generate_tests", "store"]

pytestmark = pytest.mark.contract
PLACES = {name: lease_places.PLACES[name] for name in ("postgresql", "mysql")}


def _columns(tag: int, **columns: Any) -> Any:
    usual = {"status": "SUCCESS", "result": b"1", "traceback": None, "children": None, "date_done": None}
    return f"bad-{tag}", "SUCCESS", pack({**usual, **columns}), None


columns = st.one_of(
    st.tuples(st.sampled_from(("status", "result", "traceback", "children", "date_done")), texts).map(
        lambda pair: lambda harness, tag: _columns(tag, **{pair[0]: pair[1]})
    ),
    st.binary(max_size=50).map(
        lambda data: lambda harness, tag: (f"bad-{tag}", "SUCCESS", b"\0columns" + data, None)
    ),
)


def test_invalid_column_values_do_not_affect_other_settlements(
    place: Place, store: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    fuzz(place, store, st.one_of(hostile, st.builds(with_row, columns, ends)), caplog)


@pytest.mark.parametrize("text", [NUL, LONE, ASTRAL, "ü" * 20_000], ids=["nul", "lone", "astral", "long"])
def test_unusual_failure_text_does_not_affect_other_settlements(harness: Harness, text: str) -> None:
    first, second, third = harness.lease(3)
    error = b'{"exc_type":"ValueError","exc_message":["x"],"exc_module":"builtins"}'
    bad = ("bad", *_columns(second, status="FAILURE", result=error, traceback=text)[1:])
    ends = [
        Ack(first, harness.row("good-1")),
        Ack(second, bad),
        DeadLetter(third, text, harness.row("good-3", "FAILURE")),
    ]
    harness.settlements.carry_out(harness.generation, ends)
    assert harness.release_held() == set()
    assert [harness.status(name) for name in ("good-1", "bad", "good-3")] == ["SUCCESS", "FAILURE", "FAILURE"]
    assert len(harness.store.admin.dead()) == 1
