"""OUTCOMES, row by row: what each way to end means for the message, the stored state, the signal and the
log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from qworker import signals
from qworker.components import request
from qworker.components.request import (
    EXPIRED,
    INTERRUPTED,
    LOST,
    MAX_REDELIVERY_SECONDS,
    OUTCOMES,
    REVOKED,
    TERMINATED,
    TIME_LIMIT,
    end,
    finish,
    receive,
)
from qworker.tasks import execution
from qworker.tasks.execution import Outcome
from qworker.transports.lease import Ack, Bury, Release, Settlement
from tests.unit.rooms import ACCEPT, Rooms

ROW = ("id-1", "SUCCESS", b"{}", None)
NOW = 1000.0


class Row(NamedTuple):
    """kind: how it ended. task: options of the task. settlement: what becomes of message 1."""

    kind: str
    settlement: Settlement
    level: int
    task: dict[str, Any] = {}
    outcome: dict[str, Any] = {}


PUT_BACK = Release(1, parked=True, redelivered=True)
FINISHED = [
    Row(execution.SUCCESS, Ack(1, ROW), logging.INFO),
    Row(execution.RETRY, Ack(1, ROW), logging.INFO),
    Row(execution.FAILURE, Ack(1, ROW), logging.ERROR),
    Row(execution.FAILURE, Ack(1, ROW), logging.INFO, outcome={"expected": True}),
    Row(
        execution.FAILURE,
        Bury(1, "failure: said", ROW),
        logging.ERROR,
        task={"acks_on_failure_or_timeout": False},
    ),
    Row(execution.IGNORED, Ack(1, ROW), logging.INFO),
    Row(execution.REJECTED, Bury(1, "rejected: said", ROW), logging.WARNING),
    Row(execution.REJECTED, PUT_BACK, logging.WARNING, outcome={"requeue": True}),
    Row(execution.INVALID, Bury(1, "invalid: said", ROW), logging.ERROR),
]


class Stored(NamedTuple):
    """What end() has stored: the state and the name of the exception, None for nothing. terminated and
    expired: what task_revoked said; failure: whether task_failure was sent."""

    state: str | None
    error: str | None = None
    revoked: tuple[bool, bool] | None = None
    failure: bool = False


class End(NamedTuple):
    why: str
    settlement: Settlement
    stored: Stored
    level: int
    task: dict[str, Any] = {}
    leased: dict[str, Any] = {}
    acked: bool = False


LOST_FOR_GOOD = Stored("FAILURE", "WorkerLostError", failure=True)
NOTHING = Stored(None)
ENDED = [
    End(LOST, Release(1, None, counted=True), NOTHING, logging.ERROR),
    End(LOST, Release(1, NOW + 1, counted=True), NOTHING, logging.ERROR, leased={"deliveries": 1}),
    End(LOST, Release(1, NOW + 2, counted=True), NOTHING, logging.ERROR, leased={"deliveries": 2}),
    End(
        LOST,
        Bury(1, "why (delivery 5 of at most 5)", counted=True),
        LOST_FOR_GOOD,
        logging.ERROR,
        leased={"deliveries": 4},
    ),
    End(
        LOST,
        Bury(1, "why (delivery 1 of at most 1)", counted=True),
        LOST_FOR_GOOD,
        logging.ERROR,
        task={"max_deliveries": 1},
    ),
    End(LOST, Ack(1), LOST_FOR_GOOD, logging.ERROR, task={"reject_on_worker_lost": False}),
    End(LOST, Ack(1), LOST_FOR_GOOD, logging.ERROR, acked=True),
    End(TIME_LIMIT, Ack(1), Stored("FAILURE", "TimeLimitExceeded", failure=True), logging.ERROR),
    End(
        TIME_LIMIT,
        Bury(1, "the hard time limit of 9 s passed"),
        Stored("FAILURE", "TimeLimitExceeded", failure=True),
        logging.ERROR,
        task={"acks_on_failure_or_timeout": False},
    ),
    End(TERMINATED, Ack(1), Stored("REVOKED", "Terminated", (True, False)), logging.WARNING),
    End(REVOKED, Ack(1), Stored("REVOKED", "TaskRevokedError", (False, False)), logging.INFO),
    End(EXPIRED, Ack(1), Stored("REVOKED", "TaskRevokedError", (False, True)), logging.INFO),
    End(INTERRUPTED, Release(1, redelivered=True), NOTHING, logging.INFO),
    End(INTERRUPTED, Release(1, redelivered=True), NOTHING, logging.INFO, leased={"deliveries": 4}),
    End(INTERRUPTED, Ack(1), LOST_FOR_GOOD, logging.INFO, acked=True),
]


@pytest.mark.parametrize(
    ("before", "pause"), [(0, None), (1, 1), (2, 2), (3, 4), (5, 16), (6, MAX_REDELIVERY_SECONDS), (5000, 30)]
)
def test_what_its_task_puts_back_waits_longer_each_time(before: int, pause: float | None) -> None:
    _, one = made({}, {"parked": before})
    settled = finish(one, Outcome(execution.REJECTED, requeue=True), NOW)
    assert settled == PUT_BACK._replace(due=None if pause is None else NOW + pause)


def made(task_options: dict[str, Any], leased: dict[str, Any] | None = None) -> tuple[Rooms, request.Request]:
    rooms = Rooms()
    rooms.app.task(name="work", **task_options)(lambda: None)
    return rooms, rooms.request(1, "work", timelimit=(9, None), **(leased or {}))


@pytest.fixture
def heard() -> Iterator[list[tuple[str, Any]]]:
    said: list[tuple[str, Any]] = []

    def revoked(**fields: Any) -> None:
        said.append(("revoked", (fields["terminated"], fields["expired"])))

    def failed(**fields: Any) -> None:
        said.append(("failure", fields["task_id"]))

    signals.task_revoked.connect(revoked)
    signals.task_failure.connect(failed)
    yield said
    signals.task_revoked.disconnect(revoked)
    signals.task_failure.disconnect(failed)


def test_every_row_is_tested() -> None:
    assert {row.kind for row in FINISHED} | {row.why for row in ENDED} == set(OUTCOMES)


@pytest.mark.parametrize(
    "row", FINISHED, ids=lambda row: f"{row.kind} {row.task or row.outcome or ''}".strip()
)
def test_how_a_run_ended_says_what_happens_to_the_message(row: Row, caplog: pytest.LogCaptureFixture) -> None:
    _, one = made(row.task)
    outcome = Outcome(row.kind, 1.25, "said", row=ROW, **row.outcome)
    with caplog.at_level(logging.DEBUG):
        assert finish(one, outcome, NOW) == row.settlement
    (record,) = caplog.records
    assert record.levelno == row.level
    assert record.getMessage().startswith("Task work[id-1] ")
    assert "1.250000s" in record.getMessage()
    assert "said" in record.getMessage()


@pytest.mark.parametrize(
    "row", ENDED, ids=lambda row: f"{row.why} {row.task or row.leased or row.acked or ''}".strip()
)
def test_what_the_worker_ends_itself(
    row: End, heard: list[tuple[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    rooms, one = made(row.task, row.leased)
    one.acked = row.acked
    with caplog.at_level(logging.DEBUG):
        settlement, meta = end(rooms.app, one, row.why, "why", NOW)
    assert settlement == row.settlement
    if row.stored.state is None:
        assert meta is None
    else:
        assert meta is not None
        assert (meta["task_id"], meta["status"], meta["result"]["exc_type"]) == (
            "id-1",
            row.stored.state,
            row.stored.error,
        )
    expected: list[tuple[str, Any]] = [("failure", "id-1")] if row.stored.failure else []
    expected += [("revoked", row.stored.revoked)] if row.stored.revoked is not None else []
    assert heard == expected
    assert [record.levelno for record in caplog.records] == [row.level]
    assert caplog.messages[0].endswith(": why")
    assert "0.000000s" not in caplog.text


def test_each_death_is_followed_by_a_longer_pause_up_to_a_limit() -> None:
    pauses = []
    for deliveries in range(12):
        rooms, one = made({"max_deliveries": 100}, {"deliveries": deliveries})
        settlement, _ = end(rooms.app, one, LOST, "why", NOW)
        assert isinstance(settlement, Release)
        pauses.append((settlement.due or NOW) - NOW)
    assert pauses[:6] == [0, 1, 2, 4, 8, 16]
    assert set(pauses[6:]) == {MAX_REDELIVERY_SECONDS}


def test_nothing_is_stored_of_a_task_whose_result_is_ignored() -> None:
    for options, fields in (({"ignore_result": True}, {}), ({}, {"ignore_result": True})):
        rooms, one = made(options, fields)
        assert end(rooms.app, one, TIME_LIMIT, "why", NOW) == (Ack(1), None)


def test_only_a_failure_that_was_not_expected_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, one = made({})
    finish(one, Outcome(execution.FAILURE, 0.1, "ValueError('x')", "Traceback: here", expected=True), NOW)
    assert "Traceback" not in caplog.text
    caplog.clear()
    finish(one, Outcome(execution.FAILURE, 0.1, "ValueError('x')", "Traceback: here"), NOW)
    assert caplog.text.count("Traceback: here") == 1
    assert caplog.text.count("ValueError('x')") == 1


def test_a_shadow_name_is_what_the_log_says(caplog: pytest.LogCaptureFixture) -> None:
    rooms = Rooms()
    with caplog.at_level(logging.INFO):
        finish(rooms.request(1, shadow="alias"), Outcome(execution.SUCCESS), NOW)
    assert "Task alias[id-1] succeeded" in caplog.text


# -- receiving --


def test_a_request_knows_its_limits_and_times() -> None:
    rooms = Rooms()
    one = rooms.request(
        1, eta="2023-11-14T22:13:21+00:00", expires="2023-11-14T22:13:22+00:00", timelimit=(9, 8)
    )
    assert (one.eta, one.expires) == (rooms.clock.now() + 1, rooms.clock.now() + 2)
    assert (one.time_limit, one.soft_time_limit) == (9, 8)
    assert not one.is_async
    assert one.acks_late
    assert rooms.request(1, "nap").is_async
    assert not rooms.request(1, "once").acks_late


def test_limits_are_the_tasks_unless_the_message_has_its_own() -> None:
    rooms = Rooms()
    rooms.app.task(name="limited", time_limit=30, soft_time_limit=20)(lambda: None)
    plain = rooms.request(1, "limited")
    assert (plain.time_limit, plain.soft_time_limit) == (30, 20)
    own = rooms.request(1, "limited", timelimit=(3, 2))
    assert (own.time_limit, own.soft_time_limit) == (3, 2)


def test_a_message_of_protocol_1_goes_on_as_protocol_2() -> None:
    rooms = Rooms()
    body = b'{"task": "add", "id": "old", "args": [1, 2], "kwargs": {}}'
    old = rooms.leased(1)._replace(headers="{}", properties='{"content_type": "application/json"}', body=body)
    one = receive(rooms.app, old, 1, ACCEPT)
    assert (one.id, one.name) == ("old", "add")
    again = receive(rooms.app, one.leased, 1, ACCEPT)  # what the child gets is as good as a new one
    assert (again.id, again.name) == ("old", "add")
    assert again.leased.body.startswith(b"[[1,")


def test_what_inspect_shows_is_plain() -> None:
    one = Rooms().request(5, "add", 1, 2, queue="mail", priority=3, redelivered=True)
    one.pid, one.acked = 77, True
    assert one.describe() == {
        "id": "id-5",
        "name": "add",
        "args": "(1, 2)",
        "kwargs": "{}",
        "hostname": one.headers["origin"],
        "acknowledged": True,
        "worker_pid": 77,
        "delivery_info": {"exchange": "", "routing_key": "mail", "priority": 3, "redelivered": True},
    }


def test_the_body_is_left_for_the_child() -> None:
    """The worker's own threads decode headers, never a body: a body of any kind is received."""
    rooms = Rooms()
    one = receive(rooms.app, rooms.leased(1)._replace(body=b"\xff not even text"), 1, ACCEPT)
    assert one.leased.body == b"\xff not even text"
