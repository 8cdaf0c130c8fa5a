"""Results that the worker decides itself, in a store of their own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from qworker.components.listener import Letter
from qworker.components.result_writer import SWEEP_SECONDS, ResultWriter
from qworker.errors import BackendError
from qworker.transports.lease import Ack
from tests.unit.rooms import Rooms


class Desk:
    """A writer without a thread; *failures* store() calls fail first."""

    def __init__(self, failures: int = 0, **settings: Any) -> None:
        self.rooms = Rooms(**settings)
        self.clock, self.backend = self.rooms.clock, self.rooms.app.backend
        self.failures = failures
        self.posted: list[Letter] = []
        self.writer = ResultWriter(self.rooms.app, lambda name, error: None, self.posted.append)
        store = self.backend.store

        def flaky(task_id: str, meta: dict[str, Any]) -> bool:
            if self.failures:
                self.failures -= 1
                raise BackendError("the store is away")
            return store(task_id, meta)

        self.backend.store = flaky  # type: ignore[method-assign]

    def post(self, tag: int) -> Letter:
        letter = Letter(None, Ack(tag))
        meta = self.backend.meta(
            f"id-{tag}", "REVOKED", {"exc_type": "X", "exc_message": [], "exc_module": "m"}
        )
        self.writer.mailbox.post((letter, meta))
        return letter

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


def test_while_the_store_is_away_nothing_goes_on_and_the_order_stays() -> None:
    desk = Desk(failures=2)
    letters = [desk.post(1), desk.post(2)]
    assert 0.05 <= (desk.step() or 0) <= 10
    assert 0.05 <= (desk.step() or 0) <= 10
    assert desk.posted == []
    desk.step()
    assert desk.posted == letters


def test_a_result_that_cannot_be_serialised_does_not_keep_the_message_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    letter = Letter(None, Ack(1))
    desk.writer.mailbox.post((letter, desk.backend.meta("id-1", "FAILURE", object())))
    desk.step()
    assert desk.posted == [letter]
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
