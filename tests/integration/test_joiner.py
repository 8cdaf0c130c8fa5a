"""The joiner in a StepWorker: bodies of joins, and their failures."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, Reject, chain, chord, graph, group
from qworker.backends.base import Found
from qworker.backends.joins import Finished, Join, Joins
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.canvas.join_body import JoinBody
from qworker.canvas.plan import PlannedJoin
from qworker.canvas.signatures import Signature
from qworker.components.ending.joiner import RETRY_SECONDS, Joiner
from qworker.errors import (
    BackendError,
    BrokerUnavailable,
    ChordError,
    ConfigurationError,
    EncodeError,
    PublishError,
)
from qworker.message.marks import JOINS
from qworker.naming import task_id
from qworker.publishing import bodies
from qworker.results.result import AsyncResult
from qworker.testing import FakeClock, StepWorker
from qworker.transports.lease import Envelope, Part, Sender
from tests.support.logging_events import logged
from tests.support.stores import KeepingStore, read

pytestmark = pytest.mark.integration


class Env:
    """An app on an SQLite file. results: URL of the result store; None: in the broker."""

    def __init__(self, directory: Path, results: str | None = None) -> None:
        self.clock = FakeClock()
        self.app = QWorker(
            "joins",
            broker=f"sqlite:///{directory}/queue.db",
            backend=results,
            clock=self.clock,
            set_as_current=False,
        )
        self.notified: list[Any] = []
        self.ran: list[Any] = []
        self.opened = ""
        """The last opened join."""
        task = self.app.task

        @task(name="give")
        def give(value: Any) -> Any:
            return value

        @task(name="fail")
        def fail(*given: Any) -> None:
            raise ValueError("no")

        @task(name="shout")
        def shout(words: int) -> None:
            raise ValueError(*("x" * 10_000 for _ in range(words)))

        @task(name="reject")
        def reject() -> None:
            raise Reject("never")

        @task(name="gather")
        def gather(values: list[Any]) -> list[Any]:
            self.ran.append(values)
            return values

        @task(name="named")
        def named(**values: Any) -> Any:
            self.ran.append(values)
            return values

        @task(name="nothing")
        def nothing() -> None:
            self.ran.append(None)

        @task(name="parent", bind=True)
        def parent(this: Any, values: list[Any]) -> Any:
            return this.request.parent_id

        @task(name="notified", bind=True)
        def notified(this: Any, failed: str) -> None:
            self.notified.append(failed)

    def join(
        self,
        members: Sequence[Signature],
        body: Signature | JoinBody | bytes,
        size: int | None = None,
        expires: float | None = None,
    ) -> AsyncResult[Any]:
        """Open a join and call its members; return the result of its body."""
        name, identity = task_id(), task_id()
        self.opened = name
        if isinstance(body, JoinBody):
            body.call.set(task_id=identity)
            body = json.dumps(body.fields()).encode()
        written = body if isinstance(body, bytes) else json.dumps(body.set(task_id=identity)).encode()
        self.app.backend.joins.open([Join(name, len(members) if size is None else size, written, expires)])
        for number, member in enumerate(members):
            member.clone(headers={JOINS: [[name, number]]}).apply_async()
        return self.app.AsyncResult(identity)

    def s(self, name: str, *args: Any, **options: Any) -> Signature:
        return Signature(name, args, options=options, app=self.app)


@pytest.fixture(params=["with the messages", "elsewhere"])
def env(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Env]:
    results = None if request.param == "with the messages" else f"sqlite:///{tmp_path}/results.db"
    env = Env(tmp_path, results)
    yield env
    env.app.close()


def test_body_is_called_once_with_the_values_in_order(env: Env) -> None:
    with StepWorker(env.app) as worker:
        result = env.join([env.s("give", number) for number in (3, 1, 2)], env.s("gather"))
        worker.run()
        assert result.get(timeout=5) == [3, 1, 2]
        worker.advance(env.app.conf.worker_lease_seconds + 1)
    assert env.ran == [[3, 1, 2]]
    assert env.app.backend.joins.count() == 0


BAD_OPTIONS: dict[str, Any] = {
    "expires": "tomorrow", "countdown": "x", "eta": "soon", "serializer": "nope", "compression": "zzz",
    "queue": "no such\0", "time_limit": "x", "soft_time_limit": -1, "link": "nolink", "shadow": 5,
    "root_id": 7, "parent_id": 3, "stamped_headers": 5, "stamps": 3, "argsrepr": 5,
    "replaced_task_nesting": "x", "retry_policy": 5, "group_index": "x", "headers": {"id": 5},
}  # fmt: skip
"""Invalid options in the body of a join."""


@pytest.mark.parametrize("option", BAD_OPTIONS)
def test_unsendable_body_fails_and_calls_its_errbacks(env: Env, option: str) -> None:
    with StepWorker(env.app) as worker:
        options = {
            option: BAD_OPTIONS[option],
            "link_error": [env.s("notified"), env.s("notified", expires="x")],
        }
        result = env.join([env.s("give", 1), env.s("give", 2)], env.s("gather", **options))
        worker.run()
        with pytest.raises(ChordError):
            result.get(timeout=0)
    assert env.notified == [result.id]
    assert env.ran == []
    assert env.app.backend.joins.count() == 0


@pytest.mark.parametrize("options", [{"weird": 1}, {"priority": 255}, {"priority": -3}], ids=str)
@pytest.mark.parametrize("inner", [False, True])
def test_options_that_celery_writes_into_a_body_are_ignored(
    env: Env, options: dict[str, Any], inner: bool
) -> None:
    body: Any = env.s("gather", **options)
    if inner:
        body = chain(body, env.s("give", **options))
        body = body.frozen("b").step
    with StepWorker(env.app) as worker:
        result = env.join([env.s("give", 1)], body)
        worker.run()
        assert env.app.AsyncResult("b" if inner else result.id).get(timeout=0) == [1]


@pytest.mark.parametrize("option", sorted(BAD_OPTIONS.keys() - {"root_id", "group_index"}))
def test_unsendable_parts_are_refused_at_the_call(env: Env, option: str) -> None:
    """The excluded options are replaced in workflows."""
    bad = {option: BAD_OPTIONS[option]}
    give, gather = env.s("give", 1), env.s("gather")
    for work in (
        chord([give], env.s("gather", **bad)),
        chord([give], chain(gather, env.s("gather", **bad))),
        chain(give, env.s("give", **bad)),
        chain(give, chord([env.s("give", **bad)], gather)),
        graph({"a": give, "b": env.s("named", **bad)}, after={"b": ["a"]}),
        chord([give], gather.clone(link_error=[env.s("notified", **bad)])),
        chain(give, env.s("give").clone(link=[env.s("give", **bad)])),
    ):
        with pytest.raises((PublishError, TypeError, ConfigurationError)):
            work.apply_async()
    assert env.app.backend.joins.count() == 0
    assert not any(queue.ready for queue in env.app.broker.admin.queues())


def test_single_member_can_pass_its_bare_value(env: Env) -> None:
    with StepWorker(env.app) as worker:
        result = env.join([env.s("give", 7)], JoinBody(env.s("gather"), one=True))
        worker.run()
        assert result.get(timeout=5) == 7


def test_values_can_be_passed_as_keyword_arguments(env: Env) -> None:
    members = [env.s("give", number) for number in range(3)]
    with StepWorker(env.app) as worker:
        result = env.join(members, JoinBody(env.s("named"), ["a", None, "c"]))
        worker.run()
        assert result.get(timeout=5) == {"a": 0, "c": 2}


def test_value_that_is_not_passed_may_be_missing(env: Env) -> None:
    members = [env.s("give", 1), env.s("give", 2, ignore_result=True)]
    with StepWorker(env.app) as worker:
        result = env.join(members, JoinBody(env.s("named"), ["a", None]))
        worker.run()
        assert result.get(timeout=5) == {"a": 1}


def test_always_body_gets_none_for_a_failed_member(env: Env) -> None:
    members = [env.s("give", 1), env.s("fail")]
    with StepWorker(env.app) as worker:
        result = env.join(members, JoinBody(env.s("named"), ["a", "b"], always=True))
        worker.run()
        assert result.get(timeout=5) == {"a": 1, "b": None}


def test_body_outside_of_a_chord_fails_with_the_members_error(env: Env) -> None:
    call = env.s("named").set(link_error=[env.s("notified")])
    with StepWorker(env.app) as worker:
        result = env.join([env.s("give", 1), env.s("fail")], JoinBody(call, ["a", "b"]))
        worker.run()
        with pytest.raises(ValueError, match=r"^no$"):
            result.get(timeout=5)
        assert result.traceback
    assert (env.ran, env.notified) == ([], [])


@pytest.mark.parametrize(
    "values", [None, "two", 1, [1], ["a"], ["a", "b", "c"], {"a": 1}, ["not a name", "a"], ["self", "app"]]
)
def test_invalid_values_end_the_join(env: Env, values: Any) -> None:
    with StepWorker(env.app) as worker:
        call = dict(env.s("nothing"))
        body = json.dumps({"call": call, "values": values}).encode()
        env.join([env.s("give", 1), env.s("give", 2)], body)
        worker.run()
        assert env.app.backend.joins.count() == 0
        assert env.join([env.s("give", 1)], env.s("gather")).id
        worker.run()
    assert env.ran == [[1]]


@pytest.mark.parametrize("how", ["fail", "reject", "revoked", "expired", "unknown"])
def test_unsuccessful_member_fails_the_body_and_errback_runs_once(env: Env, how: str) -> None:
    bad = env.s(how) if how in ("fail", "reject") else env.s("give", 1, task_id="bad")
    if how == "expired":
        bad.set(expires=0.5)
    if how == "unknown":
        env.app.conf.task_unknown_delays = ()
        bad = env.s("nobody.knows")
    body = env.s("gather").set(link_error=[env.s("notified")])
    result = env.join([env.s("give", 1), bad], body)
    if how == "revoked":
        env.app.control.revoke("bad")
    if how == "expired":
        env.clock.advance(1)
    with StepWorker(env.app) as worker:
        worker.run()
        with pytest.raises(ChordError, match=r"^Dependency .* raised "):
            result.get(timeout=5)
        worker.advance(env.app.conf.worker_lease_seconds + 1)
    assert (env.ran, env.notified) == ([], [result.id])
    assert env.app.backend.joins.count() == 0


def test_failed_body_is_a_failed_part_of_its_outer_join(env: Env) -> None:
    outer = task_id()
    last = env.s("gather").set(task_id=task_id())
    env.app.backend.joins.open([Join(outer, 1, json.dumps(last).encode())])
    inner = env.s("gather").set(headers={JOINS: [[outer, 0]]})
    with StepWorker(env.app) as worker:
        result = env.join([env.s("fail")], inner)
        worker.run()
        assert result.state == env.app.AsyncResult(last.id or "").state == "FAILURE"
    assert (env.ran, env.app.backend.joins.count()) == ([], 0)


def test_failed_chain_in_a_header_fails_the_join(env: Env) -> None:
    join, body = task_id(), env.s("gather").set(task_id=task_id())
    env.app.backend.joins.open([Join(join, 1, json.dumps(body).encode())])
    second = env.s("give").set(task_id="second")
    last = env.s("give").set(task_id="last", headers={JOINS: [[join, 0]]})
    env.s("fail").apply_async(chain=[dict(last), dict(second)])
    with StepWorker(env.app) as worker:
        worker.run()
        for name in ("second", "last"):
            with pytest.raises(ValueError, match=r"^no$"):
                env.app.AsyncResult(name).get(timeout=5)
        assert env.app.AsyncResult(body.id or "").state == "FAILURE"
    assert (env.ran, env.app.backend.joins.count()) == ([], 0)


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b"7", b"{}", b"[" * 20_000, b'{"task": 7}', b'{"call": 7, "values": "one"}']
)
def test_damaged_body_ends_its_join_and_not_the_worker(
    env: Env, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with StepWorker(env.app) as worker:
        env.join([env.s("give", 1)], body)
        worker.run()
        assert "join-failed" in logged(caplog)
        assert env.app.backend.joins.count() == 0
        assert env.join([env.s("give", 1)], env.s("gather")).id
        worker.run()
    assert env.ran == [[1]]


def test_body_that_does_not_accept_the_values_fails(env: Env) -> None:
    with StepWorker(env.app) as worker:
        result = env.join([env.s("give", 1)], env.s("nothing"))
        worker.run()
        with pytest.raises(ChordError, match="takes 0 positional arguments but 1 was given"):
            result.get(timeout=5)
    assert env.ran == []


def test_missing_values_fail_the_body(env: Env) -> None:
    with StepWorker(env.app) as worker:
        result = env.join([env.s("give", 1, task_id="first")], env.s("gather"), size=2)
        worker.run()
        env.app.backend.forget("first")
        env.s("give", 2).set(headers={JOINS: [[env.opened, 1]]}).apply_async()
        worker.run()
        with pytest.raises(ChordError, match="the result of member first is missing"):
            result.get(timeout=5)


def test_parent_of_a_body_is_a_member(env: Env) -> None:
    """Like in Celery."""
    with StepWorker(env.app) as worker:
        members = [env.s("give", 1, task_id="first"), env.s("give", 2, task_id="last")]
        result = env.join(members, env.s("parent"))
        worker.run()
        assert result.get(timeout=5) == "last"


def test_overdue_body_fails(env: Env) -> None:
    with StepWorker(env.app) as worker:
        until = env.clock.now() + 100
        result = env.join([env.s("give", 1)], env.s("gather"), size=2, expires=until)
        worker.advance(50)
        assert result.state == "PENDING"
        worker.advance(51)
        with pytest.raises(ChordError, match="not all dependencies have ended in time"):
            result.get(timeout=5)


def test_overdue_body_cannot_be_retried_with_values(env: Env) -> None:
    """Not all members are known, so there would be too few values."""
    with StepWorker(env.app) as worker:
        env.join([env.s("give", 1)], env.s("gather"), size=2, expires=env.clock.now() + 100)
        worker.advance(101)
        (failed,) = env.app.failed.list()
        with pytest.raises(ChordError, match="its members, which are no longer known"):
            env.app.failed.retry([failed.tag])
    assert env.ran == []


def test_group_body_fails_with_the_members_error_unless_very_long(env: Env) -> None:
    """Each of its messages carries the error."""
    with StepWorker(env.app) as worker:
        for words, error in ((1, ValueError), (7, ChordError)):
            body = group([env.s("give"), env.s("give")], app=env.app)
            result = chord([env.s("shout", words)], body, app=env.app).delay()
            worker.run()
            assert [type(each) for each in result.get(timeout=5, propagate=False)] == [error, error]


class Faulty(Joins):
    """A store with one complete join, which raises *error* at first."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.finished: list[Finished] = []
        self.sent: list[str] = []
        self.claims = 0
        self.waiting = [Finished("join", "f", b"", ())]
        self.failing: set[str] = set()

    def open(self, joins: Sequence[Join]) -> None:
        raise NotImplementedError

    def grow(self, join: str, task_id: str) -> int | None:
        raise NotImplementedError

    def add(self, parts: Sequence[Part]) -> None:
        raise NotImplementedError

    def claim(self, limit: int, seconds: float) -> list[Finished]:
        self.claims += 1
        if self.error is not None:
            raise self.error
        found, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return found

    def finish(self, join: Finished, envelopes: Sequence[Envelope], sender: Sender) -> bool:
        if join.id in self.failing:
            raise BrokerUnavailable("no answer")
        self.finished.append(join)
        self.sent += [str(read(each).headers["task"]) for each in envelopes]
        return True

    def drop(self, joins: Any) -> None:
        raise NotImplementedError

    def hold(self, body: str, publication: int, seconds: float) -> int:
        raise NotImplementedError

    def count(self) -> int:
        return 1


class Expiring(Faulty):
    """A store with joins that can be claimed again when their claims have expired. due: when, by id."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.due: dict[str, float] = {}

    def claim(self, limit: int, seconds: float) -> list[Finished]:
        now = self.clock.now()
        free = sorted((due, id) for id, due in self.due.items() if due <= now)[:limit]
        self.due |= {id: now + seconds for _, id in free}
        return [Finished(id, "f", b"", ()) for _, id in free]

    def finish(self, join: Finished, envelopes: Sequence[Envelope], sender: Sender) -> bool:
        finished = super().finish(join, envelopes, sender)
        del self.due[join.id]
        return finished


def test_joins_are_claimed_only_if_the_broker_reports_some(tmp_path: Path) -> None:
    joins, env = Faulty(), Env(tmp_path)
    seen, opened = [False, True], []

    def open_joins() -> Joins:
        opened.append(joins)
        return joins

    joiner = Joiner(env.app, lambda name, error: None, open_joins, lambda now: seen.pop(0))
    joiner.step(0.0)
    assert (joins.claims, opened) == (0, [])
    joiner.step(0.0)
    assert [join.id for join in joins.finished] == ["join"]
    env.app.close()


def test_result_store_of_the_broker_is_not_opened_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Env(tmp_path)
    assert env.app.results_with_broker

    def refuse(store: object) -> Joins:
        raise AssertionError("the joins were accessed")

    monkeypatch.setattr(type(env.app.backend), "joins", property(refuse))
    assert StepWorker(env.app).parts.joiner is not None
    env.app.close()


def test_claimed_joins_are_tried_again_before_their_claims_expire(tmp_path: Path) -> None:
    """A worker that could not send a body waited until its own claim had expired: 30 seconds. One that is
    never sent does not block the others."""
    joins, env = Faulty(), Env(tmp_path)
    joins.waiting = [Finished(name, "f", b"", ()) for name in "abc"]
    joins.failing = {"a", "b"}
    joiner = Joiner(env.app, lambda name, error: None, lambda: joins)
    assert joiner.step(0.0) == RETRY_SECONDS
    assert joins.finished == []
    for new in ("d", "e"):
        joins.waiting = [Finished(new, "f", b"", ())]
        assert joiner.step(0.0) == RETRY_SECONDS
    joins.failing = {"a"}
    assert joiner.step(0.0) == RETRY_SECONDS
    assert [join.id for join in joins.finished] == ["d", "c", "e", "b"]
    joins.failing = set()
    assert (joiner.step(0.0) or 0.0) > RETRY_SECONDS
    assert [(join.id, join.attempt) for join in joins.finished[-2:]] == [("b", 1), ("a", 3)]
    env.app.close()


def test_joins_that_cannot_be_sent_do_not_block_others(tmp_path: Path) -> None:
    """Sixteen joins of which a result could not be read stopped all chords of their worker: it claimed them
    again and again, and nothing else."""
    env = Env(tmp_path)
    joins = Expiring(env.clock)
    joins.failing = {f"bad-{number}" for number in range(40)}
    joins.due = dict.fromkeys(sorted(joins.failing), 0.0)
    joiner = Joiner(env.app, lambda name, error: None, lambda: joins)
    for _ in range(50):
        joiner.step(env.clock.monotonic())
        env.clock.advance(1.0)
    joins.due |= {"one": 0.0, "two": 0.0}
    for _ in range(2):
        joiner.step(env.clock.monotonic())
        env.clock.advance(1.0)
    assert [join.id for join in joins.finished] == ["one", "two"]
    env.app.close()


def test_claims_are_given_up_when_they_expire(tmp_path: Path) -> None:
    """A worker that is cut off from the broker leaves them to others, and claims no more."""
    joins, env, holds = Faulty(), Env(tmp_path), [True]
    joins.failing = {"join"}
    joiner = Joiner(env.app, lambda name, error: None, lambda: joins, has_lease=lambda: holds[0])
    assert joiner.step(env.clock.monotonic()) == RETRY_SECONDS
    holds[0], joins.waiting = False, [Finished("other", "f", b"", ())]
    env.clock.advance(env.app.conf.worker_lease_seconds + 1)
    joins.failing = set()
    assert (joiner.step(env.clock.monotonic()) or 0.0) > RETRY_SECONDS
    assert joins.finished == []
    holds[0] = True
    joiner.step(env.clock.monotonic())
    assert [join.id for join in joins.finished] == ["other"]
    env.app.close()


def test_claims_that_an_attempt_has_extended_are_kept_longer(tmp_path: Path) -> None:
    """Results are in another store than messages, where sending a body extends the claim."""
    joins, env = Faulty(), Env(tmp_path, "cache+memory://")
    joins.failing = {"join"}
    joiner = Joiner(env.app, lambda name, error: None, lambda: joins)
    joiner.step(env.clock.monotonic())
    env.clock.advance(env.app.conf.worker_lease_seconds + 1)
    joins.failing = set()
    joiner.step(env.clock.monotonic())
    assert [join.id for join in joins.finished] == ["join"]
    env.app.close()


def test_worker_without_a_lease_claims_no_joins(tmp_path: Path) -> None:
    env = Env(tmp_path)
    worker = StepWorker(env.app)
    worker.run()
    joins = env.app.backend.joins
    joins.open([Join("empty", 0, b"")])
    joiner = worker.parts.joiner
    assert joiner is not None
    env.clock.advance(env.app.conf.worker_lease_seconds + 1)
    joiner.step(env.clock.monotonic())
    assert joins.count() == 1
    worker.run()
    assert joins.count() == 0
    worker.stop()
    env.app.close()


def test_claimed_joins_are_sent_at_the_end(tmp_path: Path) -> None:
    """They waited for 30 seconds if the worker was stopped before it tried again."""
    joins, env = Faulty(), Env(tmp_path)
    joins.failing = {"join"}
    joiner = Joiner(env.app, lambda name, error: None, lambda: joins)
    joiner.step(0.0)
    joins.failing = set()
    joiner.closed()
    assert [join.id for join in joins.finished] == ["join"]
    env.app.close()


def test_an_outage_is_logged_less_and_less_often(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    joins, env = Faulty(BackendError("away")), Env(tmp_path)
    joiner = Joiner(env.app, lambda name, error: None, lambda: joins)
    for _ in range(100):
        joiner.step(0.0)
    assert logged(caplog) == ["joins-wait"] * 7
    env.app.close()


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (BackendError("away"), "WARNING"),
        (EncodeError("odd"), "WARNING"),
        (ConfigurationError("no rights"), "WARNING"),
        (RuntimeError("odd"), "ERROR"),
    ],
)
def test_failing_store_is_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, level: str
) -> None:
    joins, env = Faulty(error), Env(tmp_path)
    joiner = Joiner(env.app, lambda name, error: None, lambda: joins)
    assert joiner.step(0.0) == RETRY_SECONDS
    assert logged(caplog) == ["joins-wait"]
    assert [record.levelname for record in caplog.records if record.levelno >= 30] == [level]
    joins.error = None
    assert (joiner.step(0.0) or 0.0) > RETRY_SECONDS
    assert [join.id for join in joins.finished] == ["join"]
    env.app.close()


class UnavailableBackend(MemoryBackend):
    """away: while True, reading raises BackendError."""

    away = False

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        self._answer()
        return super().read_many(ids)

    def get_group(self, group: str) -> dict[str, Any] | None:
        self._answer()
        return super().get_group(group)

    def _answer(self) -> None:
        if self.away:
            raise BackendError("away")


@pytest.mark.parametrize("key", [None, ["k" * 32]], ids=["", "signed"])
def test_join_waits_if_the_store_becomes_unavailable(key: list[str] | None) -> None:
    """Without a key the values are read; with a key, first the added members."""
    plain = QWorker("joins", broker=KeepingStore(), set_as_current=False, security_key=key)
    backend = UnavailableBackend("cache+memory://", plain.conf, FakeClock())
    app = QWorker("joins", broker=KeepingStore(), backend=backend, set_as_current=False, security_key=key)
    call = Signature("gather", options={"task_id": "body"}, app=app)
    body = bodies.written(app, PlannedJoin("join", ("a",), JoinBody(call)))
    bodies.note_added(app, "join", 1, "b", 0.0)
    joins = Faulty()
    parts = tuple(Part("join", n, "ab"[n], "SUCCESS") for n in (0, 1))
    joins.waiting = [join] = [Finished("join", "f", body, parts)]
    for each in "ab":
        backend.store(each, backend.meta(each, "SUCCESS", each))
    joiner = Joiner(app, lambda name, error: None, lambda: joins)
    backend.away = True
    assert (joiner.step(0.0), joins.finished) == (RETRY_SECONDS, [])
    backend.away = False
    joiner.step(0.0)
    assert (joins.finished, joins.sent) == ([join], ["gather"])
    app.close()
    plain.close()
