"""Results in a separate store: they are stored before their messages are acked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
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
from qworker.transports.lease import Ack, DeadLetter, Part, Store
from tests.support.logging_events import logged
from tests.support.rooms import Rooms


class Setup:
    """A writer without a thread; the first *failures* calls of store_rows() fail. batches: how many rows each
    call stored."""

    def __init__(self, failures: int = 0, **settings: Any) -> None:
        self.rooms = Rooms(**settings)
        self.clock, self.backend = self.rooms.clock, self.rooms.app.backend
        self.failures = failures
        self.batches: list[int] = []
        self.posted: list[SettlementOrder] = []
        self.parts: list[Part] = []
        self.writer = ResultWriter(
            self.rooms.app, lambda name, error: None, self.posted.extend, self.parts.extend
        )
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
        """Post an ack with a row; return the order that should be passed on."""
        self.writer.mailbox.post(SettlementOrder(None, Ack(tag, self.row(tag, **fields))))
        return SettlementOrder(None, Ack(tag))

    def step(self) -> float | None:
        return self.writer.step(self.clock.monotonic())

    def status(self, tag: int) -> str | None:
        meta = self.backend.get(f"id-{tag}")
        return None if meta is None else meta["status"]


def test_settlement_is_passed_on_after_the_result_is_stored() -> None:
    setup = Setup()
    orders = [setup.post(1), setup.post(2)]
    setup.step()
    assert setup.posted == orders
    assert (setup.status(1), setup.status(2)) == ("REVOKED", "REVOKED")


def test_waiting_results_are_stored_in_batches() -> None:
    setup = Setup()
    for tag in range(MAX_BATCH + 7):
        setup.post(tag)
    setup.step()
    assert setup.batches == [MAX_BATCH, 7]
    assert [order.settlement.tag for order in setup.posted] == list(range(MAX_BATCH + 7))  # type: ignore[union-attr]


def test_large_results_are_stored_in_smaller_batches() -> None:
    setup = Setup()
    for tag in range(3):
        setup.post(tag, result="x" * MAX_BATCH_BYTES)
    setup.step()
    assert setup.batches == [1, 1, 1]


def test_state_without_a_settlement_is_not_passed_on() -> None:
    setup = Setup()
    request = setup.rooms.request(1)
    setup.writer.mailbox.post(SettlementOrder(request, Store(setup.row(1, "STARTED")), final=False))
    setup.writer.mailbox.post(SettlementOrder(request, Store(setup.row(1, "SUCCESS"))))
    setup.step()
    assert setup.posted == [SettlementOrder(request, None)]
    assert setup.status(1) == "SUCCESS"


def test_unavailable_store_delays_settlements_in_order() -> None:
    setup = Setup(failures=2)
    orders = [setup.post(1), setup.post(2)]
    for _ in range(2):
        delay = setup.step()
        assert delay is not None
        assert 0.05 <= delay <= 10
        assert setup.posted == []
        setup.clock.advance(delay)
    setup.step()
    assert setup.posted == orders


def test_unavailable_store_is_not_retried_for_each_result() -> None:
    setup = Setup(failures=1)
    setup.post(1)
    delay = setup.step()
    setup.post(2)
    assert setup.step() == pytest.approx(delay)
    assert (setup.batches, setup.failures) == ([], 0)


def test_held_counts_waiting_results_by_size() -> None:
    setup = Setup(failures=1)
    setup.post(1)
    assert setup.writer.held() == 1
    setup.post(2, result="x" * (3 * UNIT_BYTES))
    delay = setup.step()
    assert setup.writer.held() == 5
    setup.clock.advance(delay or 0)
    setup.step()
    assert setup.writer.held() == 0


def test_unstorable_result_is_stored_as_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    good = setup._store_rows

    def picky(rows: Any) -> None:
        if any(b"too long" in row[2] for row in rows):
            raise EncodeError("the result does not fit its column")
        good(rows)

    setup._store_rows = picky  # type: ignore[assignment]
    orders = [setup.post(1, status="SUCCESS", result="too long"), setup.post(2, status="SUCCESS")]
    setup.step()
    assert setup.posted == orders
    assert (setup.status(1), setup.status(2)) == ("FAILURE", "SUCCESS")
    assert "cannot be stored" in caplog.text


def test_closing_stores_waiting_results() -> None:
    setup = Setup(failures=3, result_store_patience=60)
    order = setup.post(1)
    setup.writer.closed()
    assert setup.posted == [order]
    assert setup.clock.slept


def test_closing_gives_up_after_result_store_patience(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(failures=10**9, result_store_patience=5)
    setup.post(1)
    began = setup.clock.monotonic()
    with caplog.at_level(logging.ERROR):
        setup.writer.closed()
    assert setup.posted == []
    assert setup.clock.monotonic() - began <= 5
    assert "1 results were not stored" in caplog.text


def test_results_posted_after_the_end_are_stored_by_the_listener() -> None:
    setup = Setup()
    setup.writer.closed()
    order = setup.post(1)
    setup.writer.store_left()
    assert (setup.posted, setup.status(1)) == ([order], "REVOKED")


def test_listener_does_not_wait_twice_for_an_unavailable_store() -> None:
    """Settlements that need no result would wait with it."""
    setup = Setup(failures=10**9, result_store_patience=5)
    setup.post(1)
    setup.writer.closed()
    setup.post(2)
    began = setup.clock.monotonic()
    setup.writer.store_left()
    assert setup.clock.monotonic() == began
    assert setup.posted == []


class SlowStore(Setup):
    """store_rows() lasts until *answer* is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = threading.Event(), threading.Event()

    def store_rows(self, rows: Any) -> None:
        self.asked.set()
        assert self.answer.wait(10)
        super().store_rows(rows)


def test_listener_leaves_results_to_a_running_writer() -> None:
    setup = SlowStore()
    first = setup.post(1)
    setup.writer.start()
    assert setup.asked.wait(10)
    second = setup.post(2)
    setup.writer.stop()
    setup.writer.store_left()
    assert setup.posted == []
    setup.answer.set()
    assert setup.writer.join(10)
    assert setup.posted == [first, second]


class BrokenStore(Setup):
    """A store that raises an unexpected error for rows with *word* in them."""

    def __init__(self, word: bytes, **settings: Any) -> None:
        super().__init__(**settings)
        self.word = word
        self.tries = 0

    def store_rows(self, rows: Any) -> None:
        if any(self.word in row[2] for row in rows):
            self.tries += 1
            raise ZeroDivisionError("a fault of redis://user:secret@host/")
        super().store_rows(rows)

    def step_repeatedly(self, times: int) -> None:
        for _ in range(times):
            self.clock.advance(self.step() or 0.0)


def test_unexpected_store_error_is_retried_at_first(caplog: pytest.LogCaptureFixture) -> None:
    setup = BrokenStore(b"")
    orders = [setup.post(1), setup.post(2)]
    setup.step_repeatedly(TRIES - 1)
    assert (setup.posted, setup.tries) == ([], TRIES - 1)
    assert caplog.text.count("Traceback") == 1
    assert "result-store-lost" in logged(caplog)
    assert "secret" not in "".join(record.getMessage() for record in caplog.records)
    setup.word = b"nothing"
    setup.step()
    assert setup.posted == orders
    assert setup.writer.held() == 0


def test_result_that_breaks_the_store_is_stored_as_a_failure() -> None:
    setup = BrokenStore(b"poison")
    orders = [
        setup.post(1, status="SUCCESS"),
        setup.post(2, status="SUCCESS", result="poison"),
        setup.post(3, status="SUCCESS"),
    ]
    setup.step_repeatedly(TRIES)
    assert setup.posted == orders
    assert [setup.status(tag) for tag in (1, 2, 3)] == ["SUCCESS", "FAILURE", "SUCCESS"]
    meta = setup.backend.get("id-2")
    assert meta is not None
    assert "ZeroDivisionError" in str(meta["result"])


def test_message_is_dead_lettered_if_no_result_can_be_stored(caplog: pytest.LogCaptureFixture) -> None:
    setup = BrokenStore(b"")
    request = setup.rooms.request(4)
    setup.post(1)
    setup.writer.mailbox.post(SettlementOrder(None, DeadLetter(2, "it was bad", setup.row(2))))
    setup.writer.mailbox.post(SettlementOrder(request, Store(setup.row(3, "STARTED")), final=False))
    setup.writer.mailbox.post(SettlementOrder(request, Store(setup.row(4, "SUCCESS"))))
    setup.step_repeatedly(TRIES)
    first, second, third = setup.posted
    assert isinstance(first.settlement, DeadLetter)
    assert (first.settlement.tag, first.settlement.row) == (1, None)
    assert "ZeroDivisionError" in first.settlement.reason
    assert "secret" not in first.settlement.reason
    assert second == SettlementOrder(None, DeadLetter(2, "it was bad"))
    assert third == SettlementOrder(request, None)
    assert "id-4 cannot be stored" in caplog.text
    assert setup.writer.held() == 0


def test_retries_are_counted_anew_for_later_results() -> None:
    setup = BrokenStore(b"")
    setup.post(1)
    setup.step_repeatedly(TRIES)
    assert len(setup.posted) == 1
    setup.post(2)
    setup.step_repeatedly(TRIES - 1)
    assert len(setup.posted) == 1


def test_outage_while_giving_up_results_is_waited_for() -> None:
    setup = BrokenStore(b"poison")
    setup.post(1, status="SUCCESS")
    order = setup.post(2, status="SUCCESS", result="poison")
    setup.step_repeatedly(TRIES - 1)
    good = setup._store_rows
    setup._store_rows = lambda rows: (_ for _ in ()).throw(BackendError("away"))  # type: ignore[assignment]
    setup.step_repeatedly(3)
    assert setup.posted == []
    setup._store_rows = good
    setup.step_repeatedly(1)
    assert setup.posted[-1] == order
    assert [setup.status(tag) for tag in (1, 2)] == ["SUCCESS", "FAILURE"]


def test_failing_join_and_sweep_do_not_prevent_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup(worker_pool="threads")

    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError

    for name in ("add", "sweep"):
        monkeypatch.setattr(setup.backend, name, fail)
    setup.writer.opened()
    assert "the result store" in caplog.text
    order = setup.post(1)
    assert setup.step() == SWEEP_SECONDS
    assert setup.posted == [order]


def test_expired_results_are_swept_periodically() -> None:
    setup = Setup(result_expires=100)
    setup.post(1)
    setup.step()
    assert setup.status(1) is not None
    setup.clock.advance(SWEEP_SECONDS)
    assert setup.step() == SWEEP_SECONDS
    assert setup.backend._values == {}  # type: ignore[attr-defined]


def test_unusable_store_is_logged_at_startup(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no directory")
    broken = Setup(result_backend=f"file://{tmp_path}/file/results")
    broken.writer.opened()
    assert "results cannot be stored" in caplog.text
    caplog.clear()
    Setup(result_backend=f"file://{tmp_path}/results").writer.opened()
    assert caplog.text == ""


def test_memory_store_with_prefork_pool_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Setup(result_backend="cache+memory://", worker_pool="threads").writer.opened()
    assert caplog.text == ""
    Setup(result_backend="cache+memory://", worker_pool="prefork").writer.opened()
    assert "--pool threads" in caplog.text


class PickyStore(BrokenStore):
    """A store that raises *error* for rows with *word* in them."""

    def __init__(self, word: bytes, error: type[Exception] = EncodeError) -> None:
        super().__init__(word)
        self.error = error

    def store_rows(self, rows: Any) -> None:
        try:
            super().store_rows(rows)
        except ZeroDivisionError:
            raise self.error("it does not fit") from None


@pytest.mark.parametrize("error", [EncodeError, ZeroDivisionError])
def test_parts_of_refused_results_fail(error: type[Exception]) -> None:
    setup = PickyStore(b"BAD", error)
    for tag, result in ((1, "good"), (2, "BAD")):
        row, part = setup.row(tag, "SUCCESS", result), Part("join", tag, f"id-{tag}", "SUCCESS")
        setup.writer.mailbox.post(SettlementOrder(None, Ack(tag, row, (part,))))
    setup.step_repeatedly(TRIES)
    assert [(part.number, part.status) for part in setup.parts] == [(1, "SUCCESS"), (2, "FAILURE")]
    assert setup.posted == [SettlementOrder(None, Ack(1)), SettlementOrder(None, Ack(2))]


@pytest.mark.parametrize("lasting", [True, False])
def test_result_is_kept_if_its_part_cannot_be_recorded(
    lasting: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It was said to be refused, and its part was recorded as a failure."""
    setup, tries = Setup(), [0]

    def record(parts: Sequence[Part]) -> None:
        tries[0] += 1
        if lasting or tries[0] <= TRIES:
            raise ZeroDivisionError("a fault")
        setup.parts.extend(parts)

    setup.writer._record = record
    part = Part("join", 0, "id-1", "SUCCESS")
    setup.writer.mailbox.post(SettlementOrder(None, Ack(1, setup.row(1, "SUCCESS"), (part,))))
    for _ in range(TRIES):
        setup.clock.advance(setup.step() or 0.0)
    assert setup.status(1) == "SUCCESS"
    assert setup.posted == [SettlementOrder(None, Ack(1))]
    assert setup.parts == ([] if lasting else [part])
    assert ("the end of id-1 cannot be recorded" in caplog.text) is lasting
    assert "id-1 cannot be stored" not in caplog.text


def test_message_is_dead_lettered_if_its_failure_does_not_fit_either() -> None:
    setup = PickyStore(b"id-1")
    part = Part("join", 0, "id-1", "SUCCESS")
    setup.writer.mailbox.post(SettlementOrder(None, Ack(1, setup.row(1, "SUCCESS"), (part,))))
    second = setup.post(2)
    setup.step()
    first, *others = setup.posted
    assert others == [second]
    assert isinstance(first.settlement, DeadLetter)
    assert "it does not fit" in first.settlement.reason
    assert setup.parts == [part._replace(status="FAILURE")]


@pytest.mark.parametrize("error", [EncodeError, ZeroDivisionError])
def test_states_before_the_end_are_left_out_if_they_are_refused(error: type[Exception]) -> None:
    setup = PickyStore(b"BAD", error)
    request, part = setup.rooms.request(1), Part("join", 0, "id-1", "SUCCESS")
    setup.writer.mailbox.post(SettlementOrder(request, Store(setup.row(1, "STARTED", "BAD")), final=False))
    setup.writer.mailbox.post(SettlementOrder(request, Store(setup.row(1, "SUCCESS"), (part,))))
    setup.writer.mailbox.post(SettlementOrder(None, Ack(2, setup.row(2, "RETRY", "BAD"))))
    setup.step_repeatedly(TRIES)
    assert setup.posted == [SettlementOrder(request, None), SettlementOrder(None, Ack(2))]
    assert (setup.status(1), setup.status(2)) == ("SUCCESS", None)
    assert setup.parts == [part]
