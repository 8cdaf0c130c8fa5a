"""Settlements that a SQL store may never take: its rows have columns, which a text may not fit. (What every
store is held against is in the suite that we ship: ``qworker/testing/contract/suite/hostile.py``.)"""

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
    Desk,
    desk,
    ends,
    fuzz,
    hostile,
    texts,
    with_row,
)
from qworker.transports.lease import Ack, Broker, DeadLetter
from qworker.transports.sql.result_rows import pack
from tests.contract import lease_places

__all__ = ["clock", "desk", "open_", "place", "pytest_generate_tests", "store"]

pytestmark = pytest.mark.contract
PLACES = {name: lease_places.PLACES[name] for name in ("postgresql", "mysql")}


def _columns(tag: int, **columns: Any) -> Any:
    usual = {"status": "SUCCESS", "result": b"1", "traceback": None, "children": None, "date_done": None}
    return f"bad-{tag}", "SUCCESS", pack({**usual, **columns}), None


columns = st.one_of(
    st.tuples(st.sampled_from(("status", "result", "traceback", "children", "date_done")), texts).map(
        lambda pair: lambda desk, tag: _columns(tag, **{pair[0]: pair[1]})
    ),
    st.binary(max_size=50).map(
        lambda data: lambda desk, tag: (f"bad-{tag}", "SUCCESS", b"\0columns" + data, None)
    ),
)


def test_whatever_is_in_a_column_the_others_are_settled(
    place: Place, store: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    fuzz(place, store, st.one_of(hostile, st.builds(with_row, columns, ends)), caplog)


@pytest.mark.parametrize("text", [NUL, LONE, ASTRAL, "ü" * 20_000], ids=["nul", "lone", "astral", "long"])
def test_a_text_of_a_failure_takes_no_innocents_with_it(desk: Desk, text: str) -> None:
    first, second, third = desk.lease(3)
    error = b'{"exc_type":"ValueError","exc_message":["x"],"exc_module":"builtins"}'
    bad = ("bad", *_columns(second, status="FAILURE", result=error, traceback=text)[1:])
    ends = [
        Ack(first, desk.row("good-1")),
        Ack(second, bad),
        DeadLetter(third, text, desk.row("good-3", "FAILURE")),
    ]
    desk.settlements.carry_out(desk.generation, ends)
    assert desk.give_up() == set()
    assert [desk.status(name) for name in ("good-1", "bad", "good-3")] == ["SUCCESS", "FAILURE", "FAILURE"]
    assert len(desk.store.admin.dead()) == 1
