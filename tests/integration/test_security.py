"""With a security_key: what a stranger who can write to the broker can and cannot do, and that nothing honest
is refused.

A worker is stepped, on a clock that stands still, on a broker in memory and on the embedded file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, signals
from qworker.clock import isoformat
from qworker.control import dead_letters
from qworker.errors import Reject, TaskRevoked
from qworker.message.protocol import TaskMessage, encode
from qworker.testing import FakeClock, MemoryStore, StepWorker
from qworker.transports.lease import Broker, Dead, DeadLetter, Envelope
from qworker.transports.sql.embedded.broker import SQLiteBroker
from qworker.transports.transfer import move

pytestmark = pytest.mark.integration
KEY = "a key that is long enough for the tests"
DAY = 86400.0


class House:
    """An app with a key, a stranger who has none, and a worker. ran: arguments of what ran."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind, self.directory = kind, directory
        self.clock = FakeClock()
        self.ran: list[Any] = []
        self.opened: list[Any] = []
        self.app = self.make_app(security_key=[KEY], security_max_age=DAY)
        self.worker = self.make_worker()

    def make_app(self, **settings: Any) -> QWorker:
        broker: Broker
        if self.kind == "sqlite":
            broker, backend = SQLiteBroker(f"sqlite:///{self.directory}/q.db", clock=self.clock), None
        else:
            first = next((app.broker for app in self.opened if isinstance(app, QWorker)), None)
            broker = first.another() if isinstance(first, MemoryStore) else MemoryStore(self.clock)
            backend = "cache+memory://"
        app = QWorker(
            "house", broker=broker, backend=backend, clock=self.clock, set_as_current=False, **settings
        )
        self.opened.insert(0, app)

        @app.task(name="add")
        def add(*args: Any) -> Any:
            self.ran.append(args)
            return sum(args)

        @app.task(name="again", bind=True, max_retries=2, default_retry_delay=2 * DAY)
        def again(task: Any) -> Any:
            self.ran.append(task.request.retries)
            if task.request.retries < 2:
                raise task.retry()
            return "in the end"

        @app.task(name="requeue", bind=True)
        def requeue(task: Any) -> Any:
            self.ran.append(task.request.delivery_info["redelivered"])
            if len(self.ran) < 3:
                raise Reject("not now", requeue=True)
            return "in the end"

        @app.task(name="dead-letter", bind=True)
        def dead_letter(task: Any) -> Any:
            self.ran.append("dead-letter")
            if len(self.ran) < 2:
                raise Reject("not here", requeue=False)
            return "in the end"

        @app.task(name="boom")
        def boom(*args: Any) -> Any:
            raise ValueError("boom")

        @app.task(name="told")
        def told(*args: Any) -> None:
            self.ran.append("told")

        return app

    def make_worker(self, **options: Any) -> StepWorker:
        worker = StepWorker(self.app, **{"concurrency": 2, **options})
        self.opened.append(worker)
        return worker

    def pass_time(self, seconds: float) -> None:
        for _ in range(8):
            self.clock.advance(seconds / 8)
            self.worker.run()

    def push(self, envelope: Envelope) -> None:
        """As a stranger does it."""
        self.app.broker.sender.push([envelope])
        self.worker.run()

    def dead(self) -> list[Dead]:
        return list(self.app.broker.admin.dead())

    def sent(self, call: Callable[[], Any]) -> tuple[Any, Envelope]:
        """What *call* returns, and the message that it sent."""
        seen: list[Envelope] = []
        push = self.app.broker.sender.push
        self.app.broker.sender.push = lambda envelopes, timeout=10.0: (
            seen.extend(envelopes),
            push(envelopes, timeout),
        )[1]  # type: ignore[method-assign]
        try:
            result = call()
        finally:
            self.app.broker.sender.push = push  # type: ignore[method-assign]
        return result, seen[0]


@pytest.fixture(params=["memory", "sqlite"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    made = House(request.param, tmp_path)
    yield made
    for opened in reversed(made.opened):
        opened.stop("cold") if isinstance(opened, StepWorker) else opened.close()


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Signals that tell how a task ended."""
    found: list[str] = []
    receivers = []
    for name in ("task_revoked", "task_unknown", "task_failure", "task_success", "task_received"):

        def receiver(said_by: str = name, **_: Any) -> None:
            found.append(said_by)

        getattr(signals, name).connect(receiver, weak=False)
        receivers.append((name, receiver))
    yield found
    for name, receiver in receivers:
        getattr(signals, name).disconnect(receiver)


def forged(id: str, task: str = "add", key: str | None = None, **fields: Any) -> Envelope:
    from qworker.message.signing import Signer

    own = {name: fields.pop(name) for name in ("due",) if name in fields}
    encoded = encode(TaskMessage(task, id, **fields), Signer([key]) if key else None)
    return Envelope("celery", encoded.headers, encoded.properties, encoded.body, **own)


# -- what a stranger tries --


@pytest.mark.parametrize("key", [None, "a key of the stranger's own, long enough"])
@pytest.mark.parametrize(
    ("task", "fields"),
    [
        ("add", {"args": (1, 2)}),
        ("add", {"expires": "2001-01-01T00:00:00+00:00"}),
        ("add", {"eta": "2033-01-01T00:00:00+00:00"}),
        ("no.such.task", {}),
        ("add", {"args": (), "kwargs": {"no": "such"}}),
        ("boom", {"errbacks": [{"task": "told", "args": [], "kwargs": {}, "options": {}}]}),
        ("add", {"callbacks": [{"task": "told", "args": [], "kwargs": {}, "options": {}}]}),
    ],
)
def test_a_forged_message_decides_nothing(
    house: House, heard: list[str], task: str, fields: dict[str, Any], key: str | None
) -> None:
    victim = house.app.send_task("add", (1, 2), countdown=60)
    house.worker.run()
    heard.clear()
    house.push(forged(victim.id, task, key, **fields))
    house.clock.advance(10)
    house.worker.run()
    assert victim.state == "PENDING"
    assert heard == []
    assert house.ran == []
    (letter,) = house.dead()
    assert "SecurityError" in letter.reason
    house.pass_time(60)
    assert victim.get(timeout=0) == 3


def test_protocol_1_decides_nothing_either(house: House, heard: list[str]) -> None:
    body = {
        "task": "add",
        "id": "victim",
        "args": [1, 2],
        "kwargs": {},
        "expires": "2001-01-01T00:00:00+00:00",
    }
    house.push(Envelope("celery", "{}", None, json.dumps(body).encode()))
    assert (heard, house.ran) == ([], [])
    assert house.app.AsyncResult("victim").state == "PENDING"
    assert len(house.dead()) == 1


def test_a_revoked_id_is_not_told_of_by_a_forged_message(house: House, heard: list[str]) -> None:
    house.app.control.revoke("victim")
    house.worker.run()
    house.push(forged("victim"))
    assert (heard, house.app.AsyncResult("victim").state) == ([], "PENDING")


@pytest.mark.parametrize("change", ["tenant", "expires", "reply_to", "body"])
def test_a_changed_message_is_refused(house: House, change: str) -> None:
    _, envelope = house.sent(
        lambda: house.app.send_task("add", (1, 2), headers={"tenant": "a"}, countdown=60)
    )
    headers, properties, body = (
        json.loads(envelope.headers),
        json.loads(envelope.properties or "{}"),
        envelope.body,
    )
    if change == "body":
        body = body.replace(b"1", b"7")
    elif change == "reply_to":
        properties["reply_to"] = "the stranger's"
    else:
        headers[change] = "2001-01-01T00:00:00+00:00"
    house.push(
        envelope._replace(headers=json.dumps(headers), properties=json.dumps(properties), body=body, due=None)
    )
    assert house.ran == []
    assert "does not match" in house.dead()[0].reason


def test_a_forged_order_to_revoke_is_not_heard(house: House, caplog: pytest.LogCaptureFixture) -> None:
    victim = house.app.send_task("add", (1, 2), countdown=60)
    other = house.app.send_task("add", (3, 4), countdown=60)
    house.app.broker.sender.revoke([victim.id], terminate=True)
    house.app.control.revoke(other.id)
    with caplog.at_level(logging.WARNING):
        house.pass_time(80)
    assert victim.get(timeout=0) == 3
    with pytest.raises(TaskRevoked):
        other.get(timeout=0)
    assert "the revocation is not signed" in caplog.text


# -- copies --


def test_a_copy_of_what_has_run_is_not_run(house: House, caplog: pytest.LogCaptureFixture) -> None:
    result, envelope = house.sent(lambda: house.app.send_task("add", (1, 2)))
    house.worker.run()
    for _ in range(3):
        house.push(envelope)
    assert house.ran == [(1, 2)]
    assert "it is a copy of a signed message" in caplog.text
    assert [info.ready for info in house.app.broker.admin.queues()] in ([], [0])
    assert result.get(timeout=0) == 3


def test_a_copy_of_what_waits_here_is_not_run(house: House) -> None:
    _, envelope = house.sent(lambda: house.app.send_task("add", (1, 2)))
    house.push(envelope)
    house.push(envelope)
    assert house.ran == [(1, 2)]


def test_a_copy_of_what_expired_tells_nothing_again(house: House) -> None:
    soon = isoformat(house.clock.now() + 5)
    result, envelope = house.sent(lambda: house.app.send_task("add", (1, 2), expires=soon))
    house.clock.advance(10)
    house.worker.run()
    assert result.state == "REVOKED"
    result.forget()
    house.push(envelope)
    assert result.state == "PENDING"


def test_beyond_what_a_worker_knows_the_age_bounds_a_copy(house: House) -> None:
    """A worker that has not had the message runs a copy of it once. The page says so."""
    _, envelope = house.sent(lambda: house.app.send_task("add", (1, 2)))
    house.worker.run()
    house.worker.stop("cold")
    house.worker = house.make_worker()
    house.push(envelope)
    assert house.ran == [(1, 2)] * 2
    house.worker.stop("cold")
    house.worker = house.make_worker()
    house.clock.advance(DAY + 1)
    house.push(envelope)
    assert house.ran == [(1, 2)] * 2
    (letter,) = house.dead()
    assert "security_max_age is 86400 s" in letter.reason


# -- what is honest --


def test_the_same_call_twice_runs_twice(house: House) -> None:
    for _ in range(2):
        house.app.send_task("add", (1, 2), task_id="chosen")
    house.worker.run()
    assert house.ran == [(1, 2)] * 2


def test_an_eta_may_be_further_off_than_the_age(house: House) -> None:
    result = house.app.send_task("add", (1, 2), countdown=5 * DAY)
    house.pass_time(5 * DAY + 60)
    assert result.get(timeout=0) == 3


def test_retries_are_signed_anew(house: House) -> None:
    result = house.app.send_task("again")
    house.worker.run()
    house.pass_time(5 * DAY)
    assert house.ran == [0, 1, 2]
    assert result.get(timeout=0) == "in the end"


def test_what_is_requeued_runs_again(house: House) -> None:
    result = house.app.send_task("requeue")
    house.worker.run()
    house.pass_time(120)
    assert len(house.ran) == 3
    assert result.get(timeout=0) == "in the end"


def test_an_unknown_task_runs_once_it_is_known(house: House) -> None:
    result = house.app.send_task("later.known", (1,))
    house.worker.run()

    @house.app.task(name="later.known")
    def known(x: int) -> int:
        return x

    house.pass_time(300)
    assert result.get(timeout=0) == 1


def test_what_a_dead_worker_held_runs_again(house: House) -> None:
    house.worker.stop("cold")
    house.worker = house.make_worker(on_demand=True)
    result = house.app.send_task("add", (1, 2))
    house.worker.run()  # it is held, and not run
    house.worker.stop("cold")  # gives it back
    house.worker = house.make_worker()
    house.worker.run()
    assert result.get(timeout=0) == 3


def test_a_dead_letter_runs_again(house: House) -> None:
    result = house.app.send_task("dead-letter")
    house.worker.run()
    assert dead_letters.retry(house.app) == (1, {})
    house.worker.run()
    assert house.ran == ["dead-letter", "dead-letter"]
    assert result.get(timeout=0) == "in the end"


def test_a_dead_letter_that_is_too_old_is_signed_anew(house: House) -> None:
    house.worker.stop("cold")
    old = house.app.send_task("add", (1, 2))
    house.clock.advance(2 * DAY)
    young = house.app.send_task("dead-letter")
    house.app.broker.sender.push([forged("forged", "add")])
    house.worker = house.make_worker()
    house.worker.run()
    assert old.state == "PENDING"
    assert len(house.dead()) == 3
    unsigned = next(letter for letter in house.dead() if "not signed" in letter.reason)
    why = {unsigned.tag: "the message is not signed, and this app has a security_key"}
    assert dead_letters.retry(house.app) == (2, why)
    house.worker.run()
    assert old.get(timeout=0) == 3
    assert young.get(timeout=0) == "in the end"
    assert house.dead() == [unsigned]
    assert dead_letters.retry(house.app, [unsigned.tag]) == (0, why)
    assert dead_letters.retry(house.app, []) == (0, {})
    assert house.dead() == [unsigned]


def test_the_old_failure_of_a_dead_letter_that_is_signed_anew_is_forgotten(house: House) -> None:
    house.app.conf.security_max_age = DAY / 4  # while results are kept for a day
    task_id = house.app.send_task("dead-letter").id
    house.worker.run()
    house.worker.stop("cold")
    house.clock.advance(DAY / 2)
    assert house.app.AsyncResult(task_id).state == "FAILURE"
    assert dead_letters.retry(house.app) == (1, {})
    result = house.app.AsyncResult(task_id)
    assert result.state == "PENDING"
    house.worker = house.make_worker()
    house.worker.run()
    assert result.get(timeout=0) == "in the end"


def test_a_dead_letter_that_is_not_signed_is_signed_when_that_is_asked_for(house: House) -> None:
    unsigned, damaged = forged("forged", "add"), forged("damaged", "add")
    house.app.broker.sender.push([unsigned, damaged._replace(headers="{}")])
    house.worker.run()
    assert house.ran == []
    letters = {letter.headers: letter for letter in house.dead()}
    assert dead_letters.retry(house.app).number == 0
    assert [letter.tag for letter in dead_letters.unsigned(house.app)] == [letters[unsigned.headers].tag]
    house.app.broker.sender.push([forged("late", "add")])  # while somebody looks at those
    house.worker.run()
    late = next(
        letter for letter in house.dead() if letter.tag not in {each.tag for each in letters.values()}
    )
    assert dead_letters.retry(house.app, sign=[letters[unsigned.headers].tag]) == (
        1,
        {
            letters["{}"].tag: "header 'task' is missing",
            late.tag: "the message is not signed, and this app has a security_key",
        },
    )
    house.worker.run()
    assert house.ran == [()]
    assert {letter.tag for letter in house.dead()} == {letters["{}"].tag, late.tag}


def test_what_follows_a_task_is_signed(house: House) -> None:
    link = house.app.signature("told")
    house.app.send_task("add", (1, 2), link=[link])
    house.app.send_task("boom", link_error=[link])
    house.worker.run()
    assert house.ran == [(1, 2), "told", "told"]
    assert house.dead() == []


def test_signatures_outlive_a_move(house: House, tmp_path: Path) -> None:
    house.worker.stop("cold")
    result = house.app.send_task("add", (1, 2), headers={"tenant": "a"})
    other = MemoryStore(house.clock)
    assert move(house.app.broker, other).moved == 1
    app = QWorker(
        "house",
        broker=other,
        backend=house.app.backend,
        clock=house.clock,
        set_as_current=False,
        security_key=[KEY],
    )

    @app.task(name="add", bind=True)
    def add(task: Any, *args: Any) -> Any:
        return task.request.tenant

    with StepWorker(app) as worker:
        worker.run()
        assert app.AsyncResult(result.id).get(timeout=0) == "a"


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("some", [False, True])
def test_who_waits_for_a_dead_letter_that_is_retried_sees_its_new_end(
    tmp_path: Path, signed: bool, some: bool
) -> None:
    """Also where results have a store of their own, of which the broker knows nothing."""
    keys: dict[str, Any] = {"security_key": [KEY]} if signed else {}
    app = QWorker(
        "apart",
        broker=f"sqlite:///{tmp_path}/q.db",
        backend=f"sqlite:///{tmp_path}/results.db",
        set_as_current=False,
        **keys,
    )
    app.task(lambda: 1, name="add")
    with app:
        (one, other) = (app.send_task("add") for _ in range(2))
        own = app.broker.consumer.register("w@h", ["celery"], 2)
        found = app.broker.consumer.lease(["celery"], 2).messages
        app.broker.consumer.settle(own, [DeadLetter(each.tag, "why") for each in found])
        for result in (one, other):
            app.backend.store(result.id, app.backend.meta(result.id, "FAILURE", {"exc_type": "E"}))
        tags = [letter.tag for letter in app.broker.admin.dead() if one.id in letter.headers]
        assert dead_letters.retry(app, tags if some else None) == (1 if some else 2, {})
        assert one.state == "PENDING"
        assert other.state == ("FAILURE" if some else "PENDING")
