"""The joiner in a worker that is stepped: what follows the members of a join, and when it fails."""

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
from qworker.errors import BackendError, ChordError, ConfigurationError, EncodeError, PublishError
from qworker.message.marks import JOINS
from qworker.naming import task_id
from qworker.publishing import bodies
from qworker.results.result import AsyncResult
from qworker.testing import FakeClock, StepWorker
from qworker.transports.lease import Envelope, Part, Sender
from tests.support.logging_events import logged
from tests.support.stores import KeepingStore, read

pytestmark = pytest.mark.integration


class House:
    """An app on a SQLite file. results: where they are kept; None: beside the messages."""

    def __init__(self, directory: Path, results: str | None = None) -> None:
        self.clock = FakeClock()
        self.app = QWorker(
            "joins",
            broker=f"sqlite:///{directory}/queue.db",
            backend=results,
            clock=self.clock,
            set_as_current=False,
        )
        self.told: list[Any] = []
        self.ran: list[Any] = []
        self.opened = ""
        """The join that was opened last."""
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

        @task(name="told", bind=True)
        def told(this: Any, failed: str) -> None:
            self.told.append(failed)

    def join(
        self,
        members: Sequence[Signature],
        body: Signature | JoinBody | bytes,
        size: int | None = None,
        expires: float | None = None,
    ) -> AsyncResult[Any]:
        """Open a join and call its members; the result of its body."""
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
def house(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    results = None if request.param == "with the messages" else f"sqlite:///{tmp_path}/results.db"
    house = House(tmp_path, results)
    yield house
    house.app.close()


def test_the_body_is_called_once_with_the_values_in_the_order_of_the_members(house: House) -> None:
    with StepWorker(house.app) as worker:
        result = house.join([house.s("give", number) for number in (3, 1, 2)], house.s("gather"))
        worker.run()
        assert result.get(timeout=5) == [3, 1, 2]
        worker.advance(house.app.conf.worker_lease_seconds + 1)
    assert house.ran == [[3, 1, 2]]
    assert house.app.backend.joins.count() == 0


BAD_OPTIONS: dict[str, Any] = {
    "expires": "tomorrow", "countdown": "x", "eta": "soon", "serializer": "nope", "compression": "zzz",
    "queue": "no such\0", "time_limit": "x", "soft_time_limit": -1, "link": "nolink", "shadow": 5,
    "root_id": 7, "parent_id": 3, "stamped_headers": 5, "stamps": 3, "argsrepr": 5,
    "replaced_task_nesting": "x", "retry_policy": 5, "group_index": "x", "headers": {"id": 5},
}  # fmt: skip
"""What a stranger may have written into the body of a join."""


@pytest.mark.parametrize("option", BAD_OPTIONS)
def test_a_body_that_cannot_be_sent_ends_and_its_errbacks_are_called(house: House, option: str) -> None:
    with StepWorker(house.app) as worker:
        options = {option: BAD_OPTIONS[option], "link_error": [house.s("told"), house.s("told", expires="x")]}
        result = house.join([house.s("give", 1), house.s("give", 2)], house.s("gather", **options))
        worker.run()
        with pytest.raises(ChordError):
            result.get(timeout=0)
    assert house.told == [result.id]
    assert house.ran == []
    assert house.app.backend.joins.count() == 0


@pytest.mark.parametrize("options", [{"weird": 1}, {"priority": 255}, {"priority": -3}], ids=str)
@pytest.mark.parametrize("inner", [False, True])
def test_what_celery_writes_into_a_body_is_passed_over(
    house: House, options: dict[str, Any], inner: bool
) -> None:
    body: Any = house.s("gather", **options)
    if inner:
        body = chain(body, house.s("give", **options))
        body = body.frozen("b").step
    with StepWorker(house.app) as worker:
        result = house.join([house.s("give", 1)], body)
        worker.run()
        assert house.app.AsyncResult("b" if inner else result.id).get(timeout=0) == [1]


@pytest.mark.parametrize("option", sorted(BAD_OPTIONS.keys() - {"root_id", "group_index"}))
def test_what_could_not_be_sent_later_is_refused_at_the_call(house: House, option: str) -> None:
    """Those that are left out are settled anew where a call stands in a workflow."""
    bad = {option: BAD_OPTIONS[option]}
    give, gather = house.s("give", 1), house.s("gather")
    for work in (
        chord([give], house.s("gather", **bad)),
        chord([give], chain(gather, house.s("gather", **bad))),
        chain(give, house.s("give", **bad)),
        chain(give, chord([house.s("give", **bad)], gather)),
        graph({"a": give, "b": house.s("named", **bad)}, after={"b": ["a"]}),
        chord([give], gather.clone(link_error=[house.s("told", **bad)])),
        chain(give, house.s("give").clone(link=[house.s("give", **bad)])),
    ):
        with pytest.raises((PublishError, TypeError, ConfigurationError)):
            work.apply_async()
    assert house.app.backend.joins.count() == 0
    assert not any(queue.ready for queue in house.app.broker.admin.queues())


def test_the_only_member_may_give_its_bare_value(house: House) -> None:
    with StepWorker(house.app) as worker:
        result = house.join([house.s("give", 7)], JoinBody(house.s("gather"), one=True))
        worker.run()
        assert result.get(timeout=5) == 7


def test_members_may_give_their_values_as_keyword_arguments(house: House) -> None:
    members = [house.s("give", number) for number in range(3)]
    with StepWorker(house.app) as worker:
        result = house.join(members, JoinBody(house.s("named"), ["a", None, "c"]))
        worker.run()
        assert result.get(timeout=5) == {"a": 0, "c": 2}


def test_a_value_that_is_not_given_need_not_be_there(house: House) -> None:
    members = [house.s("give", 1), house.s("give", 2, ignore_result=True)]
    with StepWorker(house.app) as worker:
        result = house.join(members, JoinBody(house.s("named"), ["a", None]))
        worker.run()
        assert result.get(timeout=5) == {"a": 1}


def test_what_always_runs_gets_none_of_a_member_that_failed(house: House) -> None:
    members = [house.s("give", 1), house.s("fail")]
    with StepWorker(house.app) as worker:
        result = house.join(members, JoinBody(house.s("named"), ["a", "b"], always=True))
        worker.run()
        assert result.get(timeout=5) == {"a": 1, "b": None}


def test_what_is_no_chord_fails_along_with_the_error_of_the_member(house: House) -> None:
    call = house.s("named").set(link_error=[house.s("told")])
    with StepWorker(house.app) as worker:
        result = house.join([house.s("give", 1), house.s("fail")], JoinBody(call, ["a", "b"]))
        worker.run()
        with pytest.raises(ValueError, match=r"^no$"):
            result.get(timeout=5)
        assert result.traceback
    assert (house.ran, house.told) == ([], [])


@pytest.mark.parametrize(
    "values", [None, "two", 1, [1], ["a"], ["a", "b", "c"], {"a": 1}, ["not a name", "a"], ["self", "app"]]
)
def test_values_that_do_not_fit_end_the_join(house: House, values: Any) -> None:
    with StepWorker(house.app) as worker:
        call = dict(house.s("nothing"))
        body = json.dumps({"call": call, "values": values}).encode()
        house.join([house.s("give", 1), house.s("give", 2)], body)
        worker.run()
        assert house.app.backend.joins.count() == 0
        assert house.join([house.s("give", 1)], house.s("gather")).id
        worker.run()
    assert house.ran == [[1]]


@pytest.mark.parametrize("how", ["fail", "reject", "revoked", "expired", "unknown"])
def test_a_member_that_does_not_succeed_fails_the_body_which_is_told_once(house: House, how: str) -> None:
    bad = house.s(how) if how in ("fail", "reject") else house.s("give", 1, task_id="bad")
    if how == "expired":
        bad.set(expires=0.5)
    if how == "unknown":
        house.app.conf.task_unknown_delays = ()
        bad = house.s("nobody.knows")
    body = house.s("gather").set(link_error=[house.s("told")])
    result = house.join([house.s("give", 1), bad], body)
    if how == "revoked":
        house.app.control.revoke("bad")
    if how == "expired":
        house.clock.advance(1)
    with StepWorker(house.app) as worker:
        worker.run()
        with pytest.raises(ChordError, match=r"^Dependency .* raised "):
            result.get(timeout=5)
        worker.advance(house.app.conf.worker_lease_seconds + 1)
    assert (house.ran, house.told) == ([], [result.id])
    assert house.app.backend.joins.count() == 0


def test_a_body_that_fails_is_a_failed_part_of_its_own_join(house: House) -> None:
    outer = task_id()
    last = house.s("gather").set(task_id=task_id())
    house.app.backend.joins.open([Join(outer, 1, json.dumps(last).encode())])
    inner = house.s("gather").set(headers={JOINS: [[outer, 0]]})
    with StepWorker(house.app) as worker:
        result = house.join([house.s("fail")], inner)
        worker.run()
        assert result.state == house.app.AsyncResult(last.id or "").state == "FAILURE"
    assert (house.ran, house.app.backend.joins.count()) == ([], 0)


def test_the_rest_of_a_chain_fails_along_and_the_join_hears_of_its_last(house: House) -> None:
    join, body = task_id(), house.s("gather").set(task_id=task_id())
    house.app.backend.joins.open([Join(join, 1, json.dumps(body).encode())])
    second = house.s("give").set(task_id="second")
    last = house.s("give").set(task_id="last", headers={JOINS: [[join, 0]]})
    house.s("fail").apply_async(chain=[dict(last), dict(second)])
    with StepWorker(house.app) as worker:
        worker.run()
        for name in ("second", "last"):
            with pytest.raises(ValueError, match=r"^no$"):
                house.app.AsyncResult(name).get(timeout=5)
        assert house.app.AsyncResult(body.id or "").state == "FAILURE"
    assert (house.ran, house.app.backend.joins.count()) == ([], 0)


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b"7", b"{}", b"[" * 20_000, b'{"task": 7}', b'{"call": 7, "values": "one"}']
)
def test_a_damaged_body_ends_with_its_join_and_not_with_the_worker(
    house: House, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with StepWorker(house.app) as worker:
        house.join([house.s("give", 1)], body)
        worker.run()
        assert "join-failed" in logged(caplog)
        assert house.app.backend.joins.count() == 0
        assert house.join([house.s("give", 1)], house.s("gather")).id
        worker.run()
    assert house.ran == [[1]]


def test_a_body_that_does_not_take_the_values_fails(house: House) -> None:
    with StepWorker(house.app) as worker:
        result = house.join([house.s("give", 1)], house.s("nothing"))
        worker.run()
        with pytest.raises(ChordError, match="takes 0 positional arguments but 1 was given"):
            result.get(timeout=5)
    assert house.ran == []


def test_values_that_are_gone_fail_the_body(house: House) -> None:
    with StepWorker(house.app) as worker:
        result = house.join([house.s("give", 1, task_id="first")], house.s("gather"), size=2)
        worker.run()
        house.app.backend.forget("first")
        house.s("give", 2).set(headers={JOINS: [[house.opened, 1]]}).apply_async()
        worker.run()
        with pytest.raises(ChordError, match="the result of member first is missing"):
            result.get(timeout=5)


def test_the_parent_of_a_body_is_a_member(house: House) -> None:
    """As in Celery."""
    with StepWorker(house.app) as worker:
        members = [house.s("give", 1, task_id="first"), house.s("give", 2, task_id="last")]
        result = house.join(members, house.s("parent"))
        worker.run()
        assert result.get(timeout=5) == "last"


def test_what_is_overdue_fails(house: House) -> None:
    with StepWorker(house.app) as worker:
        until = house.clock.now() + 100
        result = house.join([house.s("give", 1)], house.s("gather"), size=2, expires=until)
        worker.advance(50)
        assert result.state == "PENDING"
        worker.advance(51)
        with pytest.raises(ChordError, match="not all dependencies have ended in time"):
            result.get(timeout=5)


def test_an_overdue_body_is_not_retried_with_the_members_that_had_ended(house: House) -> None:
    """Not all are known, so the values would be too few."""
    with StepWorker(house.app) as worker:
        house.join([house.s("give", 1)], house.s("gather"), size=2, expires=house.clock.now() + 100)
        worker.advance(101)
        (failed,) = house.app.failed.list()
        with pytest.raises(ChordError, match="whose members are not known any more"):
            house.app.failed.retry([failed.tag])
    assert house.ran == []


def test_a_group_fails_with_the_error_of_the_member_unless_that_is_very_long(house: House) -> None:
    """Each of its messages carries the error."""
    with StepWorker(house.app) as worker:
        for words, error in ((1, ValueError), (7, ChordError)):
            body = group([house.s("give"), house.s("give")], app=house.app)
            result = chord([house.s("shout", words)], body, app=house.app).delay()
            worker.run()
            assert [type(each) for each in result.get(timeout=5, propagate=False)] == [error, error]


class Faulty(Joins):
    """Joins of which one is finished, in a store that says *error* at first."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.finished: list[Finished] = []
        self.sent: list[str] = []
        self.claims = 0
        self.join = Finished("join", "token", b"", ())

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
        return [] if self.finished else [self.join]

    def finish(self, join: Finished, envelopes: Sequence[Envelope], sender: Sender) -> bool:
        self.finished.append(join)
        self.sent += [str(read(each).headers["task"]) for each in envelopes]
        return True

    def drop(self, joins: Any) -> None:
        raise NotImplementedError

    def hold(self, body: str, publication: int, seconds: float) -> int:
        raise NotImplementedError

    def count(self) -> int:
        return 1


def test_the_store_is_asked_only_when_the_broker_has_seen_a_join(tmp_path: Path) -> None:
    joins, house = Faulty(), House(tmp_path)
    seen, opened = [False, True], []

    def open_joins() -> Joins:
        opened.append(joins)
        return joins

    joiner = Joiner(house.app, lambda name, error: None, open_joins, lambda now: seen.pop(0))
    joiner.step(0.0)
    assert (joins.claims, opened) == (0, [])
    joiner.step(0.0)
    assert [join.id for join in joins.finished] == ["join"]
    house.app.close()


def test_a_store_that_is_the_brokers_is_not_opened_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path)
    assert house.app.results_with_broker

    def refuse(store: object) -> Joins:
        raise AssertionError("the joins were asked for")

    monkeypatch.setattr(type(house.app.backend), "joins", property(refuse))
    assert StepWorker(house.app).parts.joiner is not None
    house.app.close()


@pytest.mark.parametrize("error", [BackendError("away"), EncodeError("odd"), ConfigurationError("no rights")])
def test_a_store_that_says_no_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    joins, house = Faulty(error), House(tmp_path)
    joiner = Joiner(house.app, lambda name, error: None, lambda: joins)
    assert joiner.step(0.0) == RETRY_SECONDS
    assert logged(caplog) == ["joins-wait"]
    joins.error = None
    assert (joiner.step(0.0) or 0.0) > RETRY_SECONDS
    assert [join.id for join in joins.finished] == ["join"]
    house.app.close()


class Away(MemoryBackend):
    """away: while True, nothing can be read."""

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
def test_a_join_waits_for_a_store_that_is_away_while_it_is_read(key: list[str] | None) -> None:
    """Without a key the values are read; with one, who was added to the join is read before."""
    plain = QWorker("joins", broker=KeepingStore(), set_as_current=False, security_key=key)
    backend = Away("cache+memory://", plain.conf, FakeClock())
    app = QWorker("joins", broker=KeepingStore(), backend=backend, set_as_current=False, security_key=key)
    call = Signature("gather", options={"task_id": "body"}, app=app)
    body = bodies.written(app, PlannedJoin("join", ("a",), JoinBody(call)))
    bodies.note_added(app, "join", 1, "b", 0.0)
    joins = Faulty()
    joins.join = Finished("join", "f", body, tuple(Part("join", n, "ab"[n], "SUCCESS") for n in (0, 1)))
    for each in "ab":
        backend.store(each, backend.meta(each, "SUCCESS", each))
    joiner = Joiner(app, lambda name, error: None, lambda: joins)
    backend.away = True
    assert (joiner.step(0.0), joins.finished) == (RETRY_SECONDS, [])
    backend.away = False
    joiner.step(0.0)
    assert (joins.finished, joins.sent) == ([joins.join], ["gather"])
    app.close()
    plain.close()
