"""Results in a store of their own: they are stored before their messages are acked."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from qworker.components.ending.result_writer import (
    MAX_BATCH,
    MAX_BATCH_BYTES,
    SWEEP_SECONDS,
    TRIES,
    UNIT_BYTES,
    ResultWriter,
)
from qworker.components.mailbox import SettlementOrder
from qworker.errors import BackendError, EncodeError
from qworker.transports.lease import Ack, DeadLetter, Store
from tests.support.logging_events import logged
from tests.support.rooms import Rooms


class Desk:
    """A writer without a thread; *failures* store_rows() calls fail first. batches: how many rows came at a
    time."""

    def __init__(self, failures: int = 0, **settings: Any) -> None:
        self.rooms = Rooms(**settings)
        self.clock, self.backend = self.rooms.clock, self.rooms.app.backend
        self.failures = failures
        self.batches: list[int] = []
        self.posted: list[SettlementOrder] = []
        self.writer = ResultWriter(self.rooms.app, lambda name, error: None, self.posted.extend)
        self._store_rows = self.backend.store_rows
        self.backend.store_rows = self.store_rows  # type: ignore[method-assign]

    def store_rows(self, rows: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise BackendError("the store is away")
        self.batches.append(len(rows))
        self._store_rows(rows)

    def row(self, tag: int, status: str = "REVOKED", result: Any = None) -> Any:
        return self.backend.row(f"id-{tag}", self.backend.meta(f"id-{tag}", status, result))

    def post(self, tag: int, **fields: Any) -> SettlementOrder:
        """Post an ack with a row; return what is to be left of it."""
        self.writer.mailbox.post(SettlementOrder(None, Ack(tag, self.row(tag, **fields))))
        return SettlementOrder(None, Ack(tag))

    def step(self) -> float | None:
        return self.writer.step(self.clock.monotonic())

    def status(self, tag: int) -> str | None:
        meta = self.backend.get(f"id-{tag}")
        return None if meta is None else meta["status"]


def test_the_letter_goes_on_once_the_result_is_stored() -> None:
    desk = Desk()
    letters = [desk.post(1), desk.post(2)]
    desk.step()
    assert desk.posted == letters
    assert (desk.status(1), desk.status(2)) == ("REVOKED", "REVOKED")


def test_what_has_come_meanwhile_is_stored_at_a_time() -> None:
    desk = Desk()
    for tag in range(MAX_BATCH + 7):
        desk.post(tag)
    desk.step()
    assert desk.batches == [MAX_BATCH, 7]
    assert [letter.settlement.tag for letter in desk.posted] == list(range(MAX_BATCH + 7))  # type: ignore[union-attr]


def test_large_results_are_not_stored_all_at_a_time() -> None:
    desk = Desk()
    for tag in range(3):
        desk.post(tag, result="x" * MAX_BATCH_BYTES)
    desk.step()
    assert desk.batches == [1, 1, 1]


def test_of_a_state_without_a_settlement_nothing_goes_on() -> None:
    desk = Desk()
    request = desk.rooms.request(1)
    desk.writer.mailbox.post(SettlementOrder(request, Store(desk.row(1, "STARTED")), final=False))
    desk.writer.mailbox.post(SettlementOrder(request, Store(desk.row(1, "SUCCESS"))))
    desk.step()
    assert desk.posted == [SettlementOrder(request, None)]
    assert desk.status(1) == "SUCCESS"


def test_while_the_store_is_away_nothing_goes_on_and_the_order_stays() -> None:
    desk = Desk(failures=2)
    letters = [desk.post(1), desk.post(2)]
    for _ in range(2):
        delay = desk.step()
        assert delay is not None
        assert 0.05 <= delay <= 10
        assert desk.posted == []
        desk.clock.advance(delay)
    desk.step()
    assert desk.posted == letters


def test_a_store_that_is_away_is_not_asked_again_for_every_result() -> None:
    desk = Desk(failures=1)
    desk.post(1)
    delay = desk.step()
    desk.post(2)
    assert desk.step() == pytest.approx(delay)
    assert (desk.batches, desk.failures) == ([], 0)


def test_what_waits_is_held_and_large_results_count_as_more() -> None:
    desk = Desk(failures=1)
    desk.post(1)
    assert desk.writer.held() == 1
    desk.post(2, result="x" * (3 * UNIT_BYTES))
    delay = desk.step()
    assert desk.writer.held() == 5
    desk.clock.advance(delay or 0)
    desk.step()
    assert desk.writer.held() == 0


def test_a_result_that_can_never_be_stored_is_a_failure_and_keeps_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    good = desk._store_rows

    def picky(rows: Any) -> None:
        if any(b"too long" in row[2] for row in rows):
            raise EncodeError("the result does not fit its column")
        good(rows)

    desk._store_rows = picky  # type: ignore[assignment]
    letters = [desk.post(1, status="SUCCESS", result="too long"), desk.post(2, status="SUCCESS")]
    desk.step()
    assert desk.posted == letters
    assert (desk.status(1), desk.status(2)) == ("FAILURE", "SUCCESS")
    assert "cannot be stored" in caplog.text


def test_at_its_end_it_stores_what_still_waits() -> None:
    desk = Desk(failures=3, result_store_patience=60)
    letter = desk.post(1)
    desk.writer.closed()
    assert desk.posted == [letter]
    assert desk.clock.slept


def test_its_patience_at_the_end_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(failures=10**9, result_store_patience=5)
    desk.post(1)
    began = desk.clock.monotonic()
    with caplog.at_level(logging.ERROR):
        desk.writer.closed()
    assert desk.posted == []
    assert desk.clock.monotonic() - began <= 5
    assert "1 results were not stored" in caplog.text


class Broken(Desk):
    """Its store raises what no store should, for rows with *word* in them."""

    def __init__(self, word: bytes, **settings: Any) -> None:
        super().__init__(**settings)
        self.word = word
        self.tries = 0

    def store_rows(self, rows: Any) -> None:
        if any(self.word in row[2] for row in rows):
            self.tries += 1
            raise ZeroDivisionError("a fault of redis://user:secret@host/")
        super().store_rows(rows)

    def try_on(self, times: int) -> None:
        for _ in range(times):
            self.clock.advance(self.step() or 0.0)


def test_a_fault_of_a_store_is_taken_for_its_being_away_at_first(caplog: pytest.LogCaptureFixture) -> None:
    desk = Broken(b"")
    letters = [desk.post(1), desk.post(2)]
    desk.try_on(TRIES - 1)
    assert (desk.posted, desk.tries) == ([], TRIES - 1)
    assert caplog.text.count("Traceback") == 1
    assert "result-store-lost" in logged(caplog)
    assert "secret" not in "".join(record.getMessage() for record in caplog.records)
    desk.word = b"nothing"
    desk.step()
    assert desk.posted == letters
    assert desk.writer.held() == 0


def test_a_result_at_which_a_store_fails_is_a_failure_and_keeps_nobody_for_long() -> None:
    desk = Broken(b"poison")
    letters = [
        desk.post(1, status="SUCCESS"),
        desk.post(2, status="SUCCESS", result="poison"),
        desk.post(3, status="SUCCESS"),
    ]
    desk.try_on(TRIES)
    assert desk.posted == letters
    assert [desk.status(tag) for tag in (1, 2, 3)] == ["SUCCESS", "FAILURE", "SUCCESS"]
    meta = desk.backend.get("id-2")
    assert meta is not None
    assert "ZeroDivisionError" in str(meta["result"])


def test_what_a_broken_store_takes_in_no_form_becomes_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    desk = Broken(b"")
    request = desk.rooms.request(4)
    desk.post(1)
    desk.writer.mailbox.post(SettlementOrder(None, DeadLetter(2, "it was bad", desk.row(2))))
    desk.writer.mailbox.post(SettlementOrder(request, Store(desk.row(3, "STARTED")), final=False))
    desk.writer.mailbox.post(SettlementOrder(request, Store(desk.row(4, "SUCCESS"))))
    desk.try_on(TRIES)
    first, second, third = desk.posted
    assert isinstance(first.settlement, DeadLetter)
    assert (first.settlement.tag, first.settlement.row) == (1, None)
    assert "ZeroDivisionError" in first.settlement.reason
    assert "secret" not in first.settlement.reason
    assert second == SettlementOrder(None, DeadLetter(2, "it was bad"))
    assert third == SettlementOrder(request, None)
    assert "id-4 is not stored" in caplog.text
    assert desk.writer.held() == 0


def test_the_next_results_are_tried_as_patiently_as_the_first() -> None:
    desk = Broken(b"")
    desk.post(1)
    desk.try_on(TRIES)
    assert len(desk.posted) == 1
    desk.post(2)
    desk.try_on(TRIES - 1)
    assert len(desk.posted) == 1


def test_a_store_that_goes_away_while_results_are_given_up_is_waited_for() -> None:
    desk = Broken(b"poison")
    desk.post(1, status="SUCCESS")
    letter = desk.post(2, status="SUCCESS", result="poison")
    desk.try_on(TRIES - 1)
    good = desk._store_rows
    desk._store_rows = lambda rows: (_ for _ in ()).throw(BackendError("away"))  # type: ignore[assignment]
    desk.try_on(3)
    assert desk.posted == []
    desk._store_rows = good
    desk.try_on(1)
    assert desk.posted[-1] == letter
    assert [desk.status(tag) for tag in (1, 2)] == ["SUCCESS", "FAILURE"]


def test_a_store_that_fails_at_everything_else_lets_the_worker_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(worker_pool="threads")

    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError

    for name in ("add", "sweep"):
        monkeypatch.setattr(desk.backend, name, fail)
    desk.writer.opened()
    assert "the result store" in caplog.text
    letter = desk.post(1)
    assert desk.step() == SWEEP_SECONDS
    assert desk.posted == [letter]


def test_expired_results_are_deleted_now_and_then() -> None:
    desk = Desk(result_expires=100)
    desk.post(1)
    desk.step()
    assert desk.status(1) is not None
    desk.clock.advance(SWEEP_SECONDS)
    assert desk.step() == SWEEP_SECONDS
    assert desk.backend._values == {}  # type: ignore[attr-defined]


def test_a_store_that_does_not_work_is_told_of_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")
    broken = Desk(result_backend=f"file://{tmp_path}/file/results")
    broken.writer.opened()
    assert "results cannot be stored" in caplog.text
    caplog.clear()
    Desk(result_backend=f"file://{tmp_path}/results").writer.opened()
    assert caplog.text == ""


def test_results_in_memory_are_warned_of_where_only_a_child_sees_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Desk(result_backend="cache+memory://", worker_pool="threads").writer.opened()
    assert caplog.text == ""
    Desk(result_backend="cache+memory://", worker_pool="prefork").writer.opened()
    assert "--pool threads" in caplog.text
