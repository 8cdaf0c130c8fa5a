"""OUTCOMES, row by row: what each way to end means for the message, the stored state, the signal, the log and
the metrics; and that nothing but its row decides it."""

from __future__ import annotations

import logging
import re
from typing import Any, NamedTuple

import pytest

from qworker import QWorker, signals
from qworker.canvas.membership import parts_of
from qworker.components.ending import outcomes
from qworker.components.ending.outcomes import MAX_REDELIVERY_SECONDS, OUTCOMES, Rule, end
from qworker.components.ending.settler import Settler
from qworker.components.mailbox import Mailbox
from qworker.components.request import Request, UnreadableMessage
from qworker.components.status.counters import Counters
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.errors import NotRegistered, QWorkerError
from qworker.message import protocol
from qworker.message.marks import JOINS
from qworker.tasks.outcome import (
    COPY,
    EXPECTED,
    EXPIRED,
    FAILURE,
    IGNORED,
    INTERRUPTED,
    INVALID,
    LEASE_EXPIRED,
    LOST,
    POISONED,
    REJECTED,
    REPLACED,
    REQUEUED,
    RETRY,
    REVOKED,
    SUCCESS,
    TERMINATED,
    TIME_LIMIT,
    UNKNOWN,
    UNREADABLE,
    UNSTARTED,
    Outcome,
)
from qworker.transports.lease import Ack, DeadLetter, Part, Release, Settlement
from tests.support.logging_events import logged
from tests.support.rooms import Rooms

NOW = 1000.0
ROW = ("id-1", "SUCCESS", b"{}", None)
LATE = {"acks_on_failure_or_timeout": False}
CELERYS = {"task-succeeded", "task-failed", "task-retried", "task-rejected", "task-revoked"}
FIVE_DEATHS = {"deliveries": 4}


class Case(NamedTuple):
    """An end, and what is to come of it.

    kind: of the outcome, whose text is "why". settlement: of message 1, without the row that the worker
    makes. stored: state and name of the exception in that row. told: by which signal, and what of it.
    task: options. leased: fields of the message. acked: before it ran. row: which the run has brought.
    """

    kind: str
    settlement: Settlement | None
    level: int | None
    stored: tuple[str, str] | None = None
    told: tuple[Any, ...] | None = None
    label: str | None = None
    task: dict[str, Any] = {}
    leased: dict[str, Any] = {}
    acked: bool = False
    row: Any = None

    def __str__(self) -> str:
        details = {**self.task, **self.leased, **({"acked": True} if self.acked else {})}
        return f"{self.kind} {details or ''}{' with its row' if self.row else ''}".strip()


def of_run(kind: str, settlement: Settlement, level: int, label: str, **more: Any) -> Case:
    """The end of a run that has brought its row along."""
    return Case(kind, settlement, level, label=label, row=ROW, **more)


LOST_FOR_GOOD: dict[str, Any] = {"stored": ("FAILURE", "WorkerLostError"), "told": ("failure",)}
TOO_LONG: dict[str, Any] = {"stored": ("FAILURE", "TimeLimitExceeded"), "told": ("failure",)}
FAILED: dict[str, Any] = {"stored": ("FAILURE", "TaskError"), "label": "failure"}
INFO, WARNING, ERROR = logging.INFO, logging.WARNING, logging.ERROR
CASES = [
    of_run(SUCCESS, Ack(1, ROW), INFO, "success"),
    Case(SUCCESS, Ack(1), INFO, label="success"),
    of_run(RETRY, Ack(1, ROW), INFO, "retry"),
    of_run(FAILURE, Ack(1, ROW), ERROR, "failure"),
    of_run(FAILURE, DeadLetter(1, "failure: why", ROW), ERROR, "failure", task=LATE),
    Case(FAILURE, Ack(1), ERROR, **FAILED),
    of_run(EXPECTED, Ack(1, ROW), INFO, "failure"),
    of_run(EXPECTED, DeadLetter(1, "failure: why", ROW), INFO, "failure", task=LATE),
    Case(EXPECTED, Ack(1), INFO, **FAILED),
    Case(IGNORED, Ack(1), INFO, label="ignored"),
    Case(REPLACED, Ack(1), INFO, label="replaced"),
    of_run(REJECTED, DeadLetter(1, "rejected: why", ROW), WARNING, "rejected"),
    of_run(REJECTED, DeadLetter(1, "rejected: why", ROW), WARNING, "rejected", acked=True),
    Case(REQUEUED, Release(1, requeued=True, redelivered=True), WARNING, label="rejected"),
    Case(
        INVALID,
        DeadLetter(1, "invalid: why"),
        ERROR,
        ("FAILURE", "InvalidTaskError"),
        ("rejected", "why"),
        label="invalid",
    ),
    Case(LOST, Release(1, None, counted=True), ERROR, label="lost"),
    Case(LOST, Release(1, NOW + 1, counted=True), ERROR, label="lost", leased={"deliveries": 1}),
    Case(LOST, Release(1, NOW + 2, counted=True), ERROR, label="lost", leased={"deliveries": 2}),
    Case(
        LOST,
        DeadLetter(1, "why (delivery 5 of at most 5)", counted=True),
        ERROR,
        label="lost",
        leased=FIVE_DEATHS,
        **LOST_FOR_GOOD,
    ),
    Case(
        LOST,
        DeadLetter(1, "why (delivery 1 of at most 1)", counted=True),
        ERROR,
        label="lost",
        task={"max_deliveries": 1},
        **LOST_FOR_GOOD,
    ),
    Case(LOST, Ack(1), ERROR, label="lost", task={"reject_on_worker_lost": False}, **LOST_FOR_GOOD),
    Case(LOST, Ack(1), ERROR, label="lost", acked=True, **LOST_FOR_GOOD),
    Case(TIME_LIMIT, Ack(1), ERROR, label="time limit", **TOO_LONG),
    Case(
        TIME_LIMIT,
        DeadLetter(1, "the hard time limit of 9 s passed"),
        ERROR,
        label="time limit",
        task=LATE,
        **TOO_LONG,
    ),
    Case(
        TERMINATED,
        Ack(1),
        WARNING,
        ("REVOKED", "Terminated"),
        ("revoked", True, False),
        label="terminated",
    ),
    Case(INTERRUPTED, Release(1, redelivered=True), INFO, label="interrupted"),
    Case(INTERRUPTED, Release(1, redelivered=True), INFO, label="interrupted", leased=FIVE_DEATHS),
    Case(INTERRUPTED, Ack(1), INFO, label="interrupted", acked=True, **LOST_FOR_GOOD),
    Case(UNSTARTED, None, None),
    Case(LEASE_EXPIRED, Release(1, redelivered=True), None),
    Case(
        REVOKED,
        Ack(1),
        INFO,
        ("REVOKED", "TaskRevokedError"),
        ("revoked", False, False),
        label="revoked",
    ),
    Case(
        EXPIRED,
        Ack(1),
        INFO,
        ("REVOKED", "TaskRevokedError"),
        ("revoked", False, True),
        label="expired",
    ),
    Case(POISONED, DeadLetter(1, "why"), INFO, ("FAILURE", "WorkerLostError")),
    Case(COPY, Ack(1), WARNING, told=("rejected", "why")),
    Case(UNKNOWN, DeadLetter(1, "why"), ERROR, ("FAILURE", "NotRegistered")),
    Case(UNREADABLE, DeadLetter(1, "why"), ERROR, told=("rejected", "why")),
]
PLAIN = {case.kind: case for case in reversed(CASES)}
"""Of each kind the first case."""


class End:
    """Request 1, which comes to its end by a Settler; what was settled, stored, told, logged and counted."""

    def __init__(self, case: Case, caplog: pytest.LogCaptureFixture) -> None:
        self.rooms = Rooms()
        self.app: QWorker = self.rooms.app
        self.app.task(name="work", **case.task)(lambda: None)
        self.ready = ReadyQueue()
        self.mailbox: Any = Mailbox(lambda: None)
        self.counters = Counters()
        self.settler = Settler(self.app, self.ready, self.mailbox, counters=self.counters)
        request = self.rooms.request(1, "work", timelimit=(9, None), **case.leased)
        request.acked = case.acked
        caplog.clear()
        with listening() as heard, caplog.at_level(logging.DEBUG):
            outcome = Outcome(case.kind, 1.25, "why", None, case.row)
            whom = self.stranger(request) if case.kind in (UNKNOWN, UNREADABLE) else request
            self.settlement = end(self.app, whom, outcome, NOW)
        self.heard = list(heard)
        self.records = list(caplog.records)
        row = getattr(self.settlement, "row", None)
        self.stored = None
        if row is not None and row is not case.row:
            meta = self.app.backend.decode(row[2])
            assert (row[:2], meta["task_id"]) == (("id-1", meta["status"]), "id-1")
            self.stored = (meta["status"], meta["result"]["exc_type"])
            (self.message,) = meta["result"]["exc_message"]
            self.settlement = self.settlement._replace(row=None)  # type: ignore[union-attr, call-arg]
        self.settler.ended([(request, outcome)]) if whom is request else None
        self.counted = [how for _, how in self.counters.ends()]
        self.waits = len(self.ready)

    def stranger(self, request: Request) -> UnreadableMessage:
        leased = request.leased
        return UnreadableMessage(leased, NotRegistered("work"), protocol.parse_headers(leased.headers))


class listening:
    """What the signals say meanwhile."""

    def __enter__(self) -> list[tuple[Any, ...]]:
        self.said: list[tuple[Any, ...]] = []
        self.receivers = [
            (signals.task_failure, lambda **fields: self.said.append(("failure",))),
            (signals.task_rejected, lambda **fields: self.said.append(("rejected", fields["exc"]))),
            (
                signals.task_revoked,
                lambda **fields: self.said.append(("revoked", fields["terminated"], fields["expired"])),
            ),
        ]
        for signal, receiver in self.receivers:
            signal.connect(receiver, weak=False)
        return self.said

    def __exit__(self, *error: object) -> None:
        for signal, receiver in self.receivers:
            signal.disconnect(receiver)


def test_every_row_is_tested() -> None:
    assert {case.kind for case in CASES} == set(OUTCOMES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_how_a_request_ended_says_what_comes_of_it(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    found = End(case, caplog)
    assert found.settlement == case.settlement
    assert found.stored == case.stored
    assert found.heard == ([] if case.told is None else [case.told])
    assert found.counted == ([] if case.label is None else [case.label])
    assert [record.levelno for record in found.records] == ([] if case.level is None else [case.level])
    if case.kind in (UNKNOWN, UNREADABLE):
        assert re.match(r"message (1|id-1) in celery ", found.records[0].getMessage())
    elif case.level is not None:
        assert found.records[0].getMessage().startswith("Task work[id-1] ")
    assert found.waits == (case.kind == UNSTARTED)
    assert all("why" in record.getMessage() for record in found.records)
    dead = type(case.settlement) is DeadLetter and not case.settlement.failed and not case.acked
    assert all(("dead letter" in record.getMessage()) == dead for record in found.records)
    again = isinstance(case.settlement, Release) and (case.settlement.counted or case.settlement.requeued)
    assert all(("again" in record.getMessage()) == again for record in found.records)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"leased": FIVE_DEATHS}, "why (delivery 5 of at most 5)"),
        ({"task": {"reject_on_worker_lost": False}}, "why"),
        (
            {"acked": True},
            "why (its message was acknowledged before it ran, so it is not delivered again)",
        ),
    ],
    ids=str,
)
def test_who_lost_its_process_counts_only_deliveries_that_may_follow(
    more: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert End(Case(LOST, None, ERROR, **more), caplog).message == said


def test_what_was_acked_early_and_is_rejected_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = End(PLAIN[REJECTED]._replace(acked=True), caplog).records
    assert record.getMessage().endswith("why (its message was acknowledged before it ran: nothing is kept)")


# -- the table is executed: a row that is changed changes what happens --


def told_instead(app: Any, request: Any, outcome: Outcome, error: QWorkerError | None) -> None:
    signals.task_rejected.send(app, message=request.leased, exc="instead")


def store_instead(request: Any, outcome: Outcome, now: float) -> Settlement:
    return DeadLetter(request.tag, "instead")


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def change(kind: str, **columns: Any) -> None:
        monkeypatch.setitem(OUTCOMES, kind, OUTCOMES[kind]._replace(**columns))

    return change


EACH = pytest.mark.parametrize("kind", OUTCOMES)


@EACH
def test_the_message_column_decides(kind: str, changed: Any, caplog: pytest.LogCaptureFixture) -> None:
    changed(kind, message=store_instead)
    assert End(PLAIN[kind], caplog).settlement == DeadLetter(1, "instead")


@EACH
def test_the_state_column_decides(kind: str, changed: Any, caplog: pytest.LogCaptureFixture) -> None:
    case = PLAIN[kind]._replace(row=None, kind=kind)
    error = OUTCOMES[kind].error or outcomes._as(NotRegistered)
    changed(kind, message=store_instead, state="INSTEAD", error=error)
    assert (End(case, caplog).stored or [None])[0] == "INSTEAD"
    changed(kind, state=None)
    assert End(case, caplog).stored is None


@EACH
def test_the_signal_column_decides(kind: str, changed: Any, caplog: pytest.LogCaptureFixture) -> None:
    changed(kind, message=store_instead, signal=told_instead)
    assert End(PLAIN[kind], caplog).heard == [("rejected", "instead")]
    changed(kind, signal=None)
    assert End(PLAIN[kind], caplog).heard == []


@EACH
def test_the_log_columns_decide(kind: str, changed: Any, caplog: pytest.LogCaptureFixture) -> None:
    changed(
        kind, level=logging.CRITICAL, said="instead of %s", fields=lambda request, outcome: (outcome.text,)
    )
    (record,) = End(PLAIN[kind], caplog).records
    assert record.levelno == logging.CRITICAL
    assert record.getMessage().startswith("instead of why")
    changed(kind, said="")
    assert End(PLAIN[kind], caplog).records == []


@EACH
def test_the_event_column_decides(kind: str, changed: Any, caplog: pytest.LogCaptureFixture) -> None:
    changed(kind, said="instead", fields=lambda request, outcome: (), event="task-instead")
    End(PLAIN[kind], caplog)
    assert logged(caplog)[:1] == ["task-instead"]
    changed(kind, event=None)
    End(PLAIN[kind], caplog)
    assert logged(caplog) == []


@EACH
def test_the_log_record_has_what_filters_ask_for(
    kind: str, changed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    changed(kind, said="instead", fields=lambda request, outcome: ())
    (record, *_) = End(PLAIN[kind], caplog).records
    assert {"task_id", "task_name", "state", "runtime", "queue", "retries"} <= vars(record).keys()


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (SUCCESS, "SUCCESS"), (FAILURE, "FAILURE"), (EXPECTED, "FAILURE"), (RETRY, "RETRY"),
        (REJECTED, "REJECTED"), (REQUEUED, "PENDING"), (INTERRUPTED, "PENDING"), (REVOKED, "REVOKED"),
    ],
)  # fmt: skip
def test_the_log_record_says_what_became_of_the_call(
    kind: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    (record,) = End(PLAIN[kind], caplog).records
    found = {name: vars(record)[name] for name in ("task_id", "task_name", "state", "queue", "retries")}
    assert found == {
        "task_id": "id-1", "task_name": "work", "state": state, "queue": "celery", "retries": 0,
    }  # fmt: skip


@EACH
def test_the_part_column_decides(kind: str, changed: Any, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"headers": {JOINS: [["join", 3], ["other", 0]]}}
    case = PLAIN[kind]._replace(leased={**PLAIN[kind].leased, **headers})
    changed(kind, message=store_instead, part="INSTEAD")
    settlement = End(case, caplog).settlement
    assert isinstance(settlement, DeadLetter)
    assert settlement.parts == (Part("join", 3, "id-1", "INSTEAD"), Part("other", 0, "id-1", "INSTEAD"))
    changed(kind, part=None)
    settlement = End(case, caplog).settlement
    assert isinstance(settlement, DeadLetter)
    assert settlement.parts == ()


@pytest.mark.parametrize(
    "named",
    [None, 7, "join", {}, [[]], [["join"]], [["join", "0"]], [["join", -1]], [["join", True]], [[1, 1]],
     [["join", 2**31]], [["join", 1, 2]], [None]],
)  # fmt: skip
def test_what_names_no_join_is_part_of_none(named: Any) -> None:
    assert parts_of({"id": "x", JOINS: named}, "SUCCESS") == ()
    assert parts_of({JOINS: [["join", 1]]}, "SUCCESS") == ()


@pytest.mark.parametrize("kind", [kind for kind in OUTCOMES if kind not in (UNKNOWN, UNREADABLE)])
def test_the_label_column_decides(kind: str, changed: Any, caplog: pytest.LogCaptureFixture) -> None:
    changed(kind, label="instead")
    assert End(PLAIN[kind], caplog).counted == ["instead"]
    changed(kind, label=None)
    assert End(PLAIN[kind], caplog).counted == []


def test_events_have_celerys_names_and_every_final_end_has_one() -> None:
    assert {rule.event for rule in OUTCOMES.values()} - {None} == CELERYS
    unmonitored = {kind for kind, rule in OUTCOMES.items() if rule.event is None}
    assert unmonitored == {IGNORED, REPLACED, UNSTARTED, LEASE_EXPIRED, COPY, UNREADABLE}


def test_a_row_is_plain() -> None:
    """A new kind needs no more than what it does."""
    assert Rule(outcomes.keep) == OUTCOMES[UNSTARTED]


# -- details --


def made(task_options: dict[str, Any], fields: dict[str, Any] | None = None) -> tuple[Rooms, Request]:
    rooms = Rooms()
    rooms.app.task(name="work", **task_options)(lambda: None)
    return rooms, rooms.request(1, "work", timelimit=(9, None), **(fields or {}))


@pytest.mark.parametrize(
    ("before", "pause"), [(0, None), (1, 1), (2, 2), (3, 4), (5, 16), (6, MAX_REDELIVERY_SECONDS), (5000, 30)]
)
def test_what_its_task_puts_back_waits_longer_each_time(before: int, pause: float | None) -> None:
    rooms, one = made({}, {"requeued": before})
    settled = end(rooms.app, one, Outcome(REQUEUED, 0.0), NOW)
    assert settled == Release(1, None if pause is None else NOW + pause, requeued=True, redelivered=True)


def test_each_death_is_followed_by_a_longer_pause_up_to_a_limit() -> None:
    pauses = []
    for deliveries in range(12):
        rooms, one = made({"max_deliveries": 100}, {"deliveries": deliveries})
        settlement = end(rooms.app, one, Outcome(LOST, text="why"), NOW)
        assert isinstance(settlement, Release)
        pauses.append((settlement.due or NOW) - NOW)
    assert pauses[:6] == [0, 1, 2, 4, 8, 16]
    assert set(pauses[6:]) == {MAX_REDELIVERY_SECONDS}


def test_nothing_is_stored_of_a_task_whose_result_is_ignored() -> None:
    for options, fields in (({"ignore_result": True}, {}), ({}, {"ignore_result": True})):
        rooms, one = made(options, fields)
        assert end(rooms.app, one, Outcome(TIME_LIMIT, text="why"), NOW) == Ack(1)


@pytest.mark.parametrize("acked", [False, True])
@pytest.mark.parametrize("kind", [SUCCESS, FAILURE, EXPECTED, REJECTED, LOST])
def test_what_a_child_has_stored_is_not_stored_again(kind: str, acked: bool) -> None:
    rooms, one = made({"max_deliveries": 1}, {})
    one.headers[JOINS] = [["join", 0]]
    one.acked = acked
    settlement = end(rooms.app, one, Outcome(kind, 1.0, "why", row=ROW, stored=True), NOW)
    assert isinstance(settlement, Ack | DeadLetter)
    assert (settlement.row is None) is not acked  # what was acked takes its parts along with the row
    assert [part.join for part in settlement.parts] == ["join"]


def test_nothing_is_stored_of_a_message_whose_headers_cannot_be_read() -> None:
    rooms, one = made({})
    stranger = UnreadableMessage(one.leased, NotRegistered("work"), {})
    assert end(rooms.app, stranger, Outcome(UNKNOWN, text="why"), NOW) == DeadLetter(1, "why")


def test_only_a_failure_that_was_not_expected_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rooms, one = made({})
    with caplog.at_level(logging.INFO):
        end(rooms.app, one, Outcome(EXPECTED, 0.1, "ValueError('x')", "Traceback: here"), NOW)
    assert "ValueError('x')" in caplog.text
    assert "Traceback" not in caplog.text
    caplog.clear()
    end(rooms.app, one, Outcome(FAILURE, 0.1, "ValueError('x')", "Traceback: here"), NOW)
    assert caplog.text.count("Traceback: here") == 1
    assert caplog.text.count("ValueError('x')") == 1


@pytest.mark.parametrize("kind", [SUCCESS, RETRY, FAILURE, EXPECTED, IGNORED, REJECTED, REQUEUED])
def test_the_log_says_how_long_a_run_took_that_came_to_its_end(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert "1.250000s" in End(PLAIN[kind], caplog).records[0].getMessage()


def test_a_shadow_name_is_what_the_log_says(caplog: pytest.LogCaptureFixture) -> None:
    rooms = Rooms()
    with caplog.at_level(logging.INFO):
        end(rooms.app, rooms.request(1, shadow="alias"), Outcome(SUCCESS, 0.1), NOW)
    assert "Task alias[id-1] succeeded" in caplog.text
