"""With a security_key: what write access to the broker without the key allows, and that nothing valid is
refused.

A StepWorker with a fake clock, on a broker in memory and on the embedded broker.
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


class Env:
    """An app with a key, and a worker. ran: the arguments of tasks that ran."""

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
            "env", broker=broker, backend=backend, clock=self.clock, set_as_current=False, **settings
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

        @app.task(name="notified")
        def notified(*args: Any) -> None:
            self.ran.append("notified")

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
        """Publish *envelope* like an attacker."""
        self.app.broker.sender.push([envelope])
        self.worker.run()

    def dead(self) -> list[Dead]:
        return list(self.app.broker.admin.dead())

    def sent(self, call: Callable[[], Any]) -> tuple[Any, Envelope]:
        """Return what *call* returns, and the message that it sends."""
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
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    made = Env(request.param, tmp_path)
    yield made
    for opened in reversed(made.opened):
        opened.stop("cold") if isinstance(opened, StepWorker) else opened.close()


@pytest.fixture
def received() -> Iterator[list[str]]:
    """Collect the names of signals about tasks."""
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


# -- attacks --


@pytest.mark.parametrize("key", [None, "a key of the stranger's own, long enough"])
@pytest.mark.parametrize(
    ("task", "fields"),
    [
        ("add", {"args": (1, 2)}),
        ("add", {"expires": "2001-01-01T00:00:00+00:00"}),
        ("add", {"eta": "2033-01-01T00:00:00+00:00"}),
        ("no.such.task", {}),
        ("add", {"args": (), "kwargs": {"no": "such"}}),
        ("boom", {"errbacks": [{"task": "notified", "args": [], "kwargs": {}, "options": {}}]}),
        ("add", {"callbacks": [{"task": "notified", "args": [], "kwargs": {}, "options": {}}]}),
    ],
)
def test_forged_message_has_no_effect(
    env: Env, received: list[str], task: str, fields: dict[str, Any], key: str | None
) -> None:
    victim = env.app.send_task("add", (1, 2), countdown=60)
    env.worker.run()
    received.clear()
    env.push(forged(victim.id, task, key, **fields))
    env.clock.advance(10)
    env.worker.run()
    assert victim.state == "PENDING"
    assert received == []
    assert env.ran == []
    (letter,) = env.dead()
    assert "SecurityError" in letter.reason
    env.pass_time(60)
    assert victim.get(timeout=0) == 3


def test_forged_protocol_1_message_has_no_effect(env: Env, received: list[str]) -> None:
    body = {
        "task": "add",
        "id": "victim",
        "args": [1, 2],
        "kwargs": {},
        "expires": "2001-01-01T00:00:00+00:00",
    }
    env.push(Envelope("celery", "{}", None, json.dumps(body).encode()))
    assert (received, env.ran) == ([], [])
    assert env.app.AsyncResult("victim").state == "PENDING"
    assert len(env.dead()) == 1


def test_forged_message_with_a_revoked_id_has_no_effect(env: Env, received: list[str]) -> None:
    env.app.control.revoke("victim")
    env.worker.run()
    env.push(forged("victim"))
    assert (received, env.app.AsyncResult("victim").state) == ([], "PENDING")


@pytest.mark.parametrize("change", ["tenant", "expires", "reply_to", "body"])
def test_changed_message_is_refused(env: Env, change: str) -> None:
    _, envelope = env.sent(lambda: env.app.send_task("add", (1, 2), headers={"tenant": "a"}, countdown=60))
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
    env.push(
        envelope._replace(headers=json.dumps(headers), properties=json.dumps(properties), body=body, due=None)
    )
    assert env.ran == []
    assert "does not match" in env.dead()[0].reason


def test_forged_revocation_is_ignored(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    victim = env.app.send_task("add", (1, 2), countdown=60)
    other = env.app.send_task("add", (3, 4), countdown=60)
    env.app.broker.sender.revoke([victim.id], terminate=True)
    env.app.control.revoke(other.id)
    with caplog.at_level(logging.WARNING):
        env.pass_time(80)
    assert victim.get(timeout=0) == 3
    with pytest.raises(TaskRevoked):
        other.get(timeout=0)
    assert "the revocation is not signed" in caplog.text


# -- copies --


def test_copy_of_a_finished_message_is_not_run(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    result, envelope = env.sent(lambda: env.app.send_task("add", (1, 2)))
    env.worker.run()
    for _ in range(3):
        env.push(envelope)
    assert env.ran == [(1, 2)]
    assert "it is a copy of a signed message" in caplog.text
    assert [info.ready for info in env.app.broker.admin.queues()] in ([], [0])
    assert result.get(timeout=0) == 3


def test_copy_of_a_waiting_message_is_not_run(env: Env) -> None:
    _, envelope = env.sent(lambda: env.app.send_task("add", (1, 2)))
    env.push(envelope)
    env.push(envelope)
    assert env.ran == [(1, 2)]


def test_copy_of_an_expired_message_has_no_effect(env: Env) -> None:
    soon = isoformat(env.clock.now() + 5)
    result, envelope = env.sent(lambda: env.app.send_task("add", (1, 2), expires=soon))
    env.clock.advance(10)
    env.worker.run()
    assert result.state == "REVOKED"
    result.forget()
    env.push(envelope)
    assert result.state == "PENDING"


def test_security_max_age_limits_copies(env: Env) -> None:
    """A worker that has not received the message runs a copy of it once, as documented."""
    _, envelope = env.sent(lambda: env.app.send_task("add", (1, 2)))
    env.worker.run()
    env.worker.stop("cold")
    env.worker = env.make_worker()
    env.push(envelope)
    assert env.ran == [(1, 2)] * 2
    env.worker.stop("cold")
    env.worker = env.make_worker()
    env.clock.advance(DAY + 1)
    env.push(envelope)
    assert env.ran == [(1, 2)] * 2
    (letter,) = env.dead()
    assert "security_max_age is 86400 s" in letter.reason


# -- valid messages --


def test_two_calls_with_one_id_run_twice(env: Env) -> None:
    for _ in range(2):
        env.app.send_task("add", (1, 2), task_id="chosen")
    env.worker.run()
    assert env.ran == [(1, 2)] * 2


def test_eta_may_exceed_security_max_age(env: Env) -> None:
    result = env.app.send_task("add", (1, 2), countdown=5 * DAY)
    env.pass_time(5 * DAY + 60)
    assert result.get(timeout=0) == 3


def test_retries_are_signed_again(env: Env) -> None:
    result = env.app.send_task("again")
    env.worker.run()
    env.pass_time(5 * DAY)
    assert env.ran == [0, 1, 2]
    assert result.get(timeout=0) == "in the end"


def test_requeued_message_runs_again(env: Env) -> None:
    result = env.app.send_task("requeue")
    env.worker.run()
    env.pass_time(120)
    assert len(env.ran) == 3
    assert result.get(timeout=0) == "in the end"


def test_unknown_task_runs_when_registered(env: Env) -> None:
    result = env.app.send_task("later.known", (1,))
    env.worker.run()

    @env.app.task(name="later.known")
    def known(x: int) -> int:
        return x

    env.pass_time(300)
    assert result.get(timeout=0) == 1


def test_message_of_a_stopped_worker_runs_again(env: Env) -> None:
    env.worker.stop("cold")
    env.worker = env.make_worker(on_demand=True)
    result = env.app.send_task("add", (1, 2))
    env.worker.run()  # it is held, but not run
    env.worker.stop("cold")  # releases it
    env.worker = env.make_worker()
    env.worker.run()
    assert result.get(timeout=0) == 3


def test_retried_dead_letter_runs_again(env: Env) -> None:
    result = env.app.send_task("dead-letter")
    env.worker.run()
    assert dead_letters.retry(env.app) == (1, {})
    env.worker.run()
    assert env.ran == ["dead-letter", "dead-letter"]
    assert result.get(timeout=0) == "in the end"


def test_old_dead_letter_is_signed_again(env: Env) -> None:
    env.worker.stop("cold")
    old = env.app.send_task("add", (1, 2))
    env.clock.advance(2 * DAY)
    young = env.app.send_task("dead-letter")
    env.app.broker.sender.push([forged("forged", "add")])
    env.worker = env.make_worker()
    env.worker.run()
    assert old.state == "PENDING"
    assert len(env.dead()) == 3
    unsigned = next(letter for letter in env.dead() if "not signed" in letter.reason)
    why = {unsigned.tag: "the message is not signed, and this app has a security_key"}
    assert dead_letters.retry(env.app) == (2, why)
    env.worker.run()
    assert old.get(timeout=0) == 3
    assert young.get(timeout=0) == "in the end"
    assert env.dead() == [unsigned]
    assert dead_letters.retry(env.app, [unsigned.tag]) == (0, why)
    assert dead_letters.retry(env.app, []) == (0, {})
    assert env.dead() == [unsigned]


def test_signing_a_dead_letter_again_deletes_its_failure(env: Env) -> None:
    env.app.conf.security_max_age = DAY / 4  # while results are kept for a day
    task_id = env.app.send_task("dead-letter").id
    env.worker.run()
    env.worker.stop("cold")
    env.clock.advance(DAY / 2)
    assert env.app.AsyncResult(task_id).state == "FAILURE"
    assert dead_letters.retry(env.app) == (1, {})
    result = env.app.AsyncResult(task_id)
    assert result.state == "PENDING"
    env.worker = env.make_worker()
    env.worker.run()
    assert result.get(timeout=0) == "in the end"


def test_unsigned_dead_letter_can_be_signed_explicitly(env: Env) -> None:
    unsigned, damaged = forged("forged", "add"), forged("damaged", "add")
    env.app.broker.sender.push([unsigned, damaged._replace(headers="{}")])
    env.worker.run()
    assert env.ran == []
    letters = {letter.headers: letter for letter in env.dead()}
    assert dead_letters.retry(env.app).number == 0
    assert [letter.tag for letter in dead_letters.unsigned(env.app)] == [letters[unsigned.headers].tag]
    env.app.broker.sender.push([forged("late", "add")])  # arrives during the review
    env.worker.run()
    late = next(letter for letter in env.dead() if letter.tag not in {each.tag for each in letters.values()})
    assert dead_letters.retry(env.app, sign=[letters[unsigned.headers].tag]) == (
        1,
        {
            letters["{}"].tag: "header 'task' is missing",
            late.tag: "the message is not signed, and this app has a security_key",
        },
    )
    env.worker.run()
    assert env.ran == [()]
    assert {letter.tag for letter in env.dead()} == {letters["{}"].tag, late.tag}


def test_callbacks_and_errbacks_are_signed(env: Env) -> None:
    link = env.app.signature("notified")
    env.app.send_task("add", (1, 2), link=[link])
    env.app.send_task("boom", link_error=[link])
    env.worker.run()
    assert env.ran == [(1, 2), "notified", "notified"]
    assert env.dead() == []


def test_signatures_survive_a_move(env: Env, tmp_path: Path) -> None:
    env.worker.stop("cold")
    result = env.app.send_task("add", (1, 2), headers={"tenant": "a"})
    other = MemoryStore(env.clock)
    assert move(env.app.broker, other).moved == 1
    app = QWorker(
        "env",
        broker=other,
        backend=env.app.backend,
        clock=env.clock,
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
def test_retrying_a_dead_letter_resets_its_result(tmp_path: Path, signed: bool, some: bool) -> None:
    """Also with a separate result store."""
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
