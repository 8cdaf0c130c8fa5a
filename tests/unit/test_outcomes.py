"""OUTCOMES, row by row: what each outcome means for the message, the stored state, the signal, the log and
the metrics; and that only the row decides it."""

from __future__ import annotations

import logging
import re
from typing import Any, NamedTuple
from uuid import UUID

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
from qworker.errors import ChordError, NotRegistered, QWorkerError
from qworker.message import marks, protocol
from qworker.message.exceptions import exception_to_dict
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
    UNCONFIRMED,
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
    """An outcome, and what is expected to follow from it.

    kind: kind of the outcome, whose text is "why". settlement: of message 1, without the row that the worker
    makes. stored: state and name of the exception in that row. signalled: the signal sent, and its arguments.
    task: options. leased: fields of the message. acked: before it ran. row: the result row sent by the child.
    """

    kind: str
    settlement: Settlement | None
    level: int | None
    stored: tuple[str, str] | None = None
    signalled: tuple[Any, ...] | None = None
    label: str | None = None
    task: dict[str, Any] = {}
    leased: dict[str, Any] = {}
    acked: bool = False
    row: Any = None

    def __str__(self) -> str:
        details = {**self.task, **self.leased, **({"acked": True} if self.acked else {})}
        return f"{self.kind} {details or ''}{' with its row' if self.row else ''}".strip()


def of_run(kind: str, settlement: Settlement, level: int, label: str, **more: Any) -> Case:
    """The outcome of a run whose child has sent the result row."""
    return Case(kind, settlement, level, label=label, row=ROW, **more)


LOST_FOR_GOOD: dict[str, Any] = {"stored": ("FAILURE", "WorkerLostError"), "signalled": ("failure",)}
TOO_LONG: dict[str, Any] = {"stored": ("FAILURE", "TimeLimitExceeded"), "signalled": ("failure",)}
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
    Case(UNCONFIRMED, Ack(1), ERROR, label="lost", acked=True, **LOST_FOR_GOOD),
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
    Case(COPY, Ack(1), WARNING, signalled=("rejected", "why")),
    Case(UNKNOWN, DeadLetter(1, "why"), ERROR, ("FAILURE", "NotRegistered")),
    Case(UNREADABLE, DeadLetter(1, "why"), ERROR, signalled=("rejected", "why")),
]
PLAIN = {case.kind: case for case in reversed(CASES)}
"""The first case of each kind."""


class End:
    """Request 1, settled by a Settler; what was settled, stored, signalled, logged and counted."""

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
        with listening() as sent_signals, caplog.at_level(logging.DEBUG):
            outcome = Outcome(case.kind, 1.25, "why", None, case.row)
            settled_request = self.unreadable(request) if case.kind in (UNKNOWN, UNREADABLE) else request
            self.settlement = end(self.app, settled_request, outcome, NOW)
        self.sent_signals = list(sent_signals)
        self.records = list(caplog.records)
        row = getattr(self.settlement, "row", None)
        self.stored = None
        if row is not None and row is not case.row:
            meta = self.app.backend.codec.decode(row[2])
            assert (row[:2], meta["task_id"]) == (("id-1", meta["status"]), "id-1")
            self.stored = (meta["status"], meta["result"]["exc_type"])
            (self.message,) = meta["result"]["exc_message"]
            self.settlement = self.settlement._replace(row=None)  # type: ignore[union-attr, call-arg]
        self.settler.ended([(request, outcome)]) if settled_request is request else None
        self.counted = [how for _, how in self.counters.ends()]
        self.waits = len(self.ready)

    def unreadable(self, request: Request) -> UnreadableMessage:
        leased = request.leased
        return UnreadableMessage(leased, NotRegistered("work"), protocol.parse_headers(leased.headers))


class listening:
    """Records the signals that are sent in the block."""

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
def test_outcome_decides_settlement_result_signal_log_and_label(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    found = End(case, caplog)
    assert found.settlement == case.settlement
    assert found.stored == case.stored
    assert found.sent_signals == ([] if case.signalled is None else [case.signalled])
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
def test_lost_task_message_mentions_deliveries_only_if_limited(
    more: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert End(Case(LOST, None, ERROR, **more), caplog).message == said


def test_rejected_task_that_was_acked_early_is_not_dead_lettered(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = End(PLAIN[REJECTED]._replace(acked=True), caplog).records
    assert record.getMessage().endswith("why (its message was acknowledged before it ran: nothing is kept)")


# -- the table is executed: changing a row changes what happens --


def signal_instead(app: Any, request: Any, outcome: Outcome, error: QWorkerError | None) -> None:
    signals.task_rejected.send(app, message=request.leased, exc="instead")


def dead_letter_instead(request: Any, outcome: Outcome, now: float) -> Settlement:
    return DeadLetter(request.tag, "instead")


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def change(kind: str, **columns: Any) -> None:
        monkeypatch.setitem(OUTCOMES, kind, OUTCOMES[kind]._replace(**columns))

    return change


EACH = pytest.mark.parametrize("kind", OUTCOMES)


@EACH
def test_message_column_decides_the_settlement(
    kind: str, changed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    changed(kind, message=dead_letter_instead)
    assert End(PLAIN[kind], caplog).settlement == DeadLetter(1, "instead")


@EACH
def test_state_column_decides_the_stored_state(
    kind: str, changed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    case = PLAIN[kind]._replace(row=None, kind=kind)
    error = OUTCOMES[kind].error or outcomes._as(NotRegistered)
    changed(kind, message=dead_letter_instead, state="INSTEAD", error=error)
    assert (End(case, caplog).stored or [None])[0] == "INSTEAD"
    changed(kind, state=None)
    assert End(case, caplog).stored is None


@EACH
def test_signal_column_decides_the_signal(kind: str, changed: Any, caplog: pytest.LogCaptureFixture) -> None:
    changed(kind, message=dead_letter_instead, signal=signal_instead)
    assert End(PLAIN[kind], caplog).sent_signals == [("rejected", "instead")]
    changed(kind, signal=None)
    assert End(PLAIN[kind], caplog).sent_signals == []


@EACH
def test_log_columns_decide_level_and_text(kind: str, changed: Any, caplog: pytest.LogCaptureFixture) -> None:
    changed(
        kind,
        level=logging.CRITICAL,
        log_format="instead of %s",
        fields=lambda request, outcome: (outcome.text,),
    )
    (record,) = End(PLAIN[kind], caplog).records
    assert record.levelno == logging.CRITICAL
    assert record.getMessage().startswith("instead of why")
    changed(kind, log_format="")
    assert End(PLAIN[kind], caplog).records == []


@EACH
def test_event_column_decides_the_logged_event(
    kind: str, changed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    changed(kind, log_format="instead", fields=lambda request, outcome: (), event="task-instead")
    End(PLAIN[kind], caplog)
    assert logged(caplog)[:1] == ["task-instead"]
    changed(kind, event=None)
    End(PLAIN[kind], caplog)
    assert logged(caplog) == []


@EACH
def test_log_record_has_task_attributes(kind: str, changed: Any, caplog: pytest.LogCaptureFixture) -> None:
    changed(kind, log_format="instead", fields=lambda request, outcome: ())
    (record, *_) = End(PLAIN[kind], caplog).records
    assert {"task_id", "task_name", "state", "runtime", "queue", "retries"} <= vars(record).keys()


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (SUCCESS, "SUCCESS"), (FAILURE, "FAILURE"), (EXPECTED, "FAILURE"), (RETRY, "RETRY"),
        (REJECTED, "REJECTED"), (REQUEUED, "PENDING"), (INTERRUPTED, "PENDING"), (REVOKED, "REVOKED"),
    ],
)  # fmt: skip
def test_log_record_has_the_state_of_the_call(
    kind: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    (record,) = End(PLAIN[kind], caplog).records
    found = {name: vars(record)[name] for name in ("task_id", "task_name", "state", "queue", "retries")}
    assert found == {
        "task_id": "id-1", "task_name": "work", "state": state, "queue": "celery", "retries": 0,
    }  # fmt: skip


@EACH
def test_part_column_decides_the_parts_of_joins(
    kind: str, changed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"headers": {JOINS: [["join", 3], ["other", 0]]}}
    case = PLAIN[kind]._replace(leased={**PLAIN[kind].leased, **headers})
    changed(kind, message=dead_letter_instead, part="INSTEAD")
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
def test_malformed_join_headers_give_no_parts(named: Any) -> None:
    assert parts_of({"id": "x", JOINS: named}, "SUCCESS") == ()
    assert parts_of({JOINS: [["join", 1]]}, "SUCCESS") == ()


@pytest.mark.parametrize("kind", [kind for kind in OUTCOMES if kind not in (UNKNOWN, UNREADABLE)])
def test_label_column_decides_the_metric(kind: str, changed: Any, caplog: pytest.LogCaptureFixture) -> None:
    changed(kind, label="instead")
    assert End(PLAIN[kind], caplog).counted == ["instead"]
    changed(kind, label=None)
    assert End(PLAIN[kind], caplog).counted == []


def test_events_have_celery_names() -> None:
    assert {rule.event for rule in OUTCOMES.values()} - {None} == CELERYS
    unmonitored = {kind for kind, rule in OUTCOMES.items() if rule.event is None}
    assert unmonitored == {IGNORED, REPLACED, UNSTARTED, LEASE_EXPIRED, COPY, UNREADABLE}


def test_columns_of_a_rule_have_defaults() -> None:
    """A new kind needs only a function for the message."""
    assert Rule(outcomes.keep) == OUTCOMES[UNSTARTED]


# -- details --


def made(task_options: dict[str, Any], fields: dict[str, Any] | None = None) -> tuple[Rooms, Request]:
    rooms = Rooms()
    rooms.app.task(name="work", **task_options)(lambda: None)
    return rooms, rooms.request(1, "work", timelimit=(9, None), **(fields or {}))


@pytest.mark.parametrize(
    ("before", "pause"), [(0, None), (1, 1), (2, 2), (3, 4), (5, 16), (6, MAX_REDELIVERY_SECONDS), (5000, 30)]
)
def test_requeued_message_is_delayed_longer_each_time(before: int, pause: float | None) -> None:
    rooms, one = made({}, {"requeued": before})
    settled = end(rooms.app, one, Outcome(REQUEUED, 0.0), NOW)
    assert settled == Release(1, None if pause is None else NOW + pause, requeued=True, redelivered=True)


def test_redelivery_delay_grows_with_each_lost_process_up_to_a_limit() -> None:
    pauses = []
    for deliveries in range(12):
        rooms, one = made({"max_deliveries": 100}, {"deliveries": deliveries})
        settlement = end(rooms.app, one, Outcome(LOST, text="why"), NOW)
        assert isinstance(settlement, Release)
        pauses.append((settlement.due or NOW) - NOW)
    assert pauses[:6] == [0, 1, 2, 4, 8, 16]
    assert set(pauses[6:]) == {MAX_REDELIVERY_SECONDS}


def test_ignored_results_are_not_stored() -> None:
    for options, fields in (({"ignore_result": True}, {}), ({}, {"ignore_result": True})):
        rooms, one = made(options, fields)
        assert end(rooms.app, one, Outcome(TIME_LIMIT, text="why"), NOW) == Ack(1)


def test_failures_that_the_worker_reports_are_stored_even_if_ignored() -> None:
    options = {"ignore_result": True, "store_errors_even_if_ignored": True}
    for kind, state in ((TIME_LIMIT, "FAILURE"), (EXPIRED, "REVOKED")):
        rooms, one = made(options)
        settlement = end(rooms.app, one, Outcome(kind, text="why"), NOW)
        assert isinstance(settlement, Ack)
        assert settlement.row is not None
        assert settlement.row[1] == state


@pytest.mark.parametrize("kind", [LOST, TIME_LIMIT, INTERRUPTED, POISONED])
def test_call_that_has_only_to_fail_keeps_the_error_of_its_chord(kind: str) -> None:
    cause = {"exc_type": "LookupError", "exc_module": "builtins", "exc_message": [UUID(int=7)]}
    for given, stored in (
        ({}, exception_to_dict(ChordError("one raised"))),
        ({marks.CAUSE: cause}, cause),
        ({marks.FAILED: {"id": "one"}}, None),  # an errback, which ran
    ):
        rooms, one = made({"max_deliveries": 1})
        one.headers.update({marks.FAILED: "one raised", **given})
        one.acked = True
        settlement = end(rooms.app, one, Outcome(kind, text="why"), NOW)
        assert isinstance(settlement, Ack | DeadLetter)
        assert settlement.row is not None
        rooms.app.backend.store_rows([settlement.row])
        meta = rooms.app.backend.get(one.id)
        assert meta is not None
        if stored is None:
            assert meta["result"]["exc_type"] in ("WorkerLostError", "TimeLimitExceeded")
        else:
            assert meta["result"] == stored


@pytest.mark.parametrize("acked", [False, True])
@pytest.mark.parametrize("kind", [SUCCESS, FAILURE, EXPECTED, REJECTED, LOST])
def test_result_stored_by_a_child_is_not_stored_again(kind: str, acked: bool) -> None:
    rooms, one = made({"max_deliveries": 1}, {})
    one.headers[JOINS] = [["join", 0]]
    one.acked = acked
    settlement = end(rooms.app, one, Outcome(kind, 1.0, "why", row=ROW, stored=True), NOW)
    assert isinstance(settlement, Ack | DeadLetter)
    assert (settlement.row is None) is not acked  # the parts of an acked message travel with the row
    assert [part.join for part in settlement.parts] == ["join"]


def test_no_result_is_stored_for_unreadable_headers() -> None:
    rooms, one = made({})
    unreadable = UnreadableMessage(one.leased, NotRegistered("work"), {})
    assert end(rooms.app, unreadable, Outcome(UNKNOWN, text="why"), NOW) == DeadLetter(1, "why")


def test_traceback_is_logged_for_unexpected_failures_only(
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
def test_runtime_of_finished_tasks_is_logged(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "1.250000s" in End(PLAIN[kind], caplog).records[0].getMessage()


def test_shadow_name_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rooms = Rooms()
    with caplog.at_level(logging.INFO):
        end(rooms.app, rooms.request(1, shadow="alias"), Outcome(SUCCESS, 0.1), NOW)
    assert "Task alias[id-1] succeeded" in caplog.text
