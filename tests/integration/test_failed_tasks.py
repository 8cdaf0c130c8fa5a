"""Failed tasks: what is kept of them, and retrying them."""

from __future__ import annotations

import json
import pickle
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.control import dead_letters
from qworker.errors import (
    BrokerUnavailable,
    ConfigurationError,
    Ignore,
    MessageError,
    NotSupported,
    PublishError,
    Reject,
    SecurityError,
)
from qworker.message.marks import FAILED, MEMBERS
from qworker.message.reading import parse_headers
from qworker.message.signing import Signer
from qworker.testing import FakeClock, MemoryStore, StepWorker
from qworker.testing.store import MemoryLetters
from qworker.transports.lease import Again, Dead, Envelope, Kind
from tests.contract.place_nats import NatsPlace
from tests.support.waiting import until

pytestmark = pytest.mark.integration

fine: set[int] = set()
"""Numbers for which halve() no longer fails."""


def make(broker: str | MemoryStore, **settings: object) -> QWorker:
    app = QWorker("proj", broker=broker, set_as_current=False, **settings)  # type: ignore[arg-type]

    @app.task(name="halve")
    def halve(number: int, secret: str = "") -> float:
        if number not in fine:
            raise ValueError(f"{number} is odd")
        return number / 2

    @app.task(name="add")
    def add(number: float, other: int) -> float:
        return number + other

    @app.task(name="again", bind=True, max_retries=2, default_retry_delay=0)
    def again(self: object, number: int) -> None:
        raise self.retry(exc=KeyError(number))  # type: ignore[attr-defined]

    @app.task(name="expected", throws=(KeyError,))
    def expected() -> None:
        raise KeyError("as was said")

    @app.task(name="off", keep_failed=False)
    def off() -> None:
        raise KeyError("nobody asks")

    @app.task(name="early", acks_late=False)
    def early() -> None:
        raise KeyError("its message is gone")

    @app.task(name="ignores")
    def ignores() -> None:
        raise Ignore

    @app.task(name="rejects")
    def rejects() -> None:
        raise Reject("bad")

    return app


@pytest.fixture(autouse=True)
def clear_fine() -> None:
    fine.clear()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[QWorker]:
    with make(f"sqlite:///{tmp_path}/q.db") as made:
        yield made


def run(app: QWorker) -> None:
    with StepWorker(app) as worker:
        worker.run()


def test_failed_task_is_listed_and_retried(app: QWorker) -> None:
    result = app.tasks["halve"].apply_async((3,), {"secret": "s3cret"}, kwargsrepr="{'secret': '***'}")
    run(app)
    assert result.failed()
    (found,) = app.failed.list()
    assert (found.id, found.task, found.attempts, found.args) == (result.id, "halve", 1, "(3,)")
    assert found.error == "ValueError('3 is odd')"
    assert "raise ValueError" in found.traceback
    assert "s3cret" not in repr(found)
    assert app.failed.get(found.tag) == found
    fine.add(3)
    assert app.failed.retry([found.tag]).number == 1
    assert app.failed.list() == []
    assert app.AsyncResult(result.id).state == "PENDING"
    run(app)
    assert app.AsyncResult(result.id).get(timeout=1) == 1.5
    assert app.failed.list() == []


def test_retry_selects_tasks_and_changes_arguments(app: QWorker) -> None:
    halve = app.tasks["halve"]
    first, second = halve.delay(3, secret="kept"), halve.delay(5)
    app.tasks["again"].delay(7)
    run(app)
    assert [found.task for found in app.failed.list(task="halve")] == ["halve", "halve"]
    assert [found.id for found in app.failed.list(error="3 is")] == [first.id]
    assert [found.id for found in app.failed.list(queue="none")] == []
    assert len(app.failed.list(limit=2)) == 2
    assert len(app.failed.list(each.tag for each in app.failed)) == 3
    (tried,) = app.failed.list(task="again")
    assert (tried.attempts, tried.error) == (3, "KeyError(7)")
    fine.add(8)
    (chosen,) = app.failed.list(error="3 is")
    assert app.failed.retry([chosen.tag], args=[8]).number == 1
    run(app)
    assert app.AsyncResult(first.id).get(timeout=1) == 4.0
    assert app.AsyncResult(second.id).failed()
    assert app.failed.retry(task="again").number == 1
    run(app)
    assert app.failed.list(task="again")[0].attempts == 3, "its previous retries count, too"
    assert app.failed.discard(error="odd") == 1
    assert app.failed.discard() == 1
    assert list(app.failed) == []


def test_retried_chain_continues_at_the_failed_step(app: QWorker) -> None:
    halve, add = app.tasks["halve"], app.tasks["add"]
    result = (halve.s(3) | add.s(10)).apply_async()
    run(app)
    assert app.AsyncResult(result.id).failed()
    assert [found.task for found in app.failed.list()] == ["halve"], "steps that did not run are not kept"
    fine.add(3)
    app.failed.retry()
    run(app)
    assert app.AsyncResult(result.id).get(timeout=1) == 11.5


def test_only_failures_are_kept(app: QWorker) -> None:
    for name in ("expected", "off", "early", "ignores", "rejects"):
        app.tasks[name].delay()
    app.tasks["halve"].apply_async((3,), expires="2020-01-01T00:00:00Z")
    revoked = app.tasks["halve"].delay(3)
    revoked.revoke()
    run(app)
    assert app.failed.list() == []
    assert [letter.reason.partition(":")[0] for letter in app.broker.admin.dead()] == ["rejected"]


def test_task_keep_failed_false_keeps_nothing(tmp_path: Path) -> None:
    with make(f"sqlite:///{tmp_path}/q.db", task_keep_failed=False) as app:
        app.tasks["halve"].delay(3)
        run(app)
        assert app.failed.list() == []


def test_broker_without_failed_tasks_raises_not_supported() -> None:
    clock = FakeClock()
    with make(MemoryStore(clock), backend="cache+memory://", clock=clock) as app:
        result = app.tasks["halve"].delay(3)
        run(app)
        assert result.failed()
        assert app.broker.admin.dead() == []
        with pytest.raises(NotSupported, match="task_acks_on_failure_or_timeout"):
            app.failed.list()


def test_retry_deletes_the_failure_in_a_separate_result_store() -> None:
    clock = FakeClock()
    broker = MemoryStore(clock, keeps_failed=True)
    with make(broker, backend="cache+memory://", clock=clock) as app:
        result = app.tasks["halve"].delay(3)
        run(app)
        assert app.AsyncResult(result.id).state == "FAILURE"
        assert app.failed.retry().number == 1
        assert app.AsyncResult(result.id).state == "PENDING"


def test_retried_signed_task_is_signed_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with make(url, security_key="k" * 32) as app:
        result = app.tasks["halve"].delay(3)
        run(app)
        fine.add(4)
        (found,) = app.failed.list()
        app.failed.retry([found.tag], args=[4])
        run(app)
        assert app.AsyncResult(result.id).get(timeout=1) == 2.0


def test_signed_task_cannot_be_retried_without_the_key(tmp_path: Path) -> None:
    """Without a signature, it would become a dead letter at workers with the key."""
    url = f"sqlite:///{tmp_path}/q.db"
    with make(url, security_key="k" * 32) as app:
        app.tasks["halve"].delay(3)
        run(app)
    with make(url) as keyless:
        (found,) = keyless.failed.list()
        with pytest.raises(SecurityError, match="this process has no security_key"):
            keyless.failed.retry([found.tag])
        number, refused = keyless.failed.retry()
        assert (number, refused.keys()) == (0, {found.tag})
        assert "this process has no security_key" in refused[found.tag]
        assert len(keyless.failed.list()) == 1


@pytest.mark.parametrize("change", ["body", "unsigned", "another key", "membership"])
def test_forged_failed_task_is_refused_and_not_unpickled(tmp_path: Path, change: str) -> None:
    """Write access to the store without the key does not allow running code in a retrying process, or getting
    other calls signed."""
    url, opened = f"sqlite:///{tmp_path}/q.db", tmp_path / "opened"
    with make(url, security_key="k" * 32, accept_content=["json", "pickle"]) as app:
        result = app.tasks["halve"].delay(3)
        valid = app.tasks["halve"].delay(5)
        run(app)
        (valid_one,) = app.failed.list(error="5 is")
        (found,) = app.failed.list(error="3 is")
        body = pickle.dumps(((_Opens(str(opened)),), {}, {"chain": [_Opens(str(opened))]}))
        with closing(sqlite3.connect(tmp_path / "q.db")) as file, file:
            ((text,),) = file.execute("SELECT headers FROM failed WHERE tag = ?", (found.tag,))
            headers = json.loads(text)
            if change == "unsigned":
                del headers["signature"]
            elif change == "another key":
                own = {name: value for name, value in headers.items() if name != "signature"}
                headers["signature"] = Signer(["x" * 32]).sign(parse_headers(json.dumps(own)), body)
            elif change == "membership":
                headers[FAILED] = "a member has failed"
                headers[MEMBERS] = {"ids": [valid.id], "given": True}
            properties = {"content_type": "application/x-python-serialize", "content_encoding": "binary"}
            if change != "membership":
                file.execute(
                    "UPDATE failed SET headers = ?, properties = ?, body = ? WHERE tag = ?",
                    (json.dumps(headers), json.dumps(properties), body, found.tag),
                )
            else:
                file.execute("UPDATE failed SET headers = ? WHERE tag = ?", (json.dumps(headers), found.tag))
        assert app.failed.get(found.tag).id == result.id
        for given in ({}, {"args": [4]}, {"kwargs": {"secret": "new"}}):
            with pytest.raises(SecurityError, match=f"failed task {found.tag} is refused"):
                app.failed.retry([found.tag], **given)  # type: ignore[arg-type]
        fine.update((4, 5))
        number, refused = app.failed.retry()
        assert (number, refused.keys()) == (1, {found.tag}), "the valid one is sent"
        assert "is refused, and its body is not read" in refused[found.tag]
        run(app)
        assert not opened.exists()
        assert [each.tag for each in app.failed.list()] == [found.tag]
        assert app.AsyncResult(result.id).failed(), "its failure is kept"
        assert app.AsyncResult(valid_one.id).get(timeout=1) == 2.5


def test_security_max_age_does_not_apply_to_failed_tasks(tmp_path: Path) -> None:
    clock = FakeClock()
    broker = MemoryStore(clock, keeps_failed=True)
    settings = {"security_key": "k" * 32, "security_max_age": 3600, "clock": clock}
    with make(broker, backend="cache+memory://", **settings) as app:
        result = app.tasks["halve"].delay(3)
        run(app)
        clock.advance(2 * 3600)
        fine.add(3)
        assert app.failed.retry().number == 1
        run(app)
        assert app.AsyncResult(result.id).get(timeout=1) == 1.5


class _Opens:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return open, (self.path, "w")


def test_unregistered_task_can_be_listed_and_retried(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with make(url) as app:
        app.tasks["halve"].delay(3)
        run(app)
    with QWorker("other", broker=url, set_as_current=False) as other:
        (found,) = other.failed.list()
        assert found.task == "halve"
        assert other.failed.retry([found.tag], kwargs={"secret": "new"}).number == 1
        with pytest.raises(ConfigurationError, match="no failed task"):
            other.failed.get(found.tag)


def test_undecodable_arguments_cannot_be_changed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with make(url, task_serializer="yaml", accept_content=["json", "yaml"]) as app:
        app.tasks["halve"].delay(3)
        run(app)
    with make(url) as app:
        (found,) = app.failed.list()
        with pytest.raises(MessageError):
            app.failed.retry([found.tag], args=[4])
        assert [each.tag for each in app.failed.list()] == [found.tag]


def test_invalid_tags_and_limits_are_refused(app: QWorker) -> None:
    for tags in (1, "1", ["1"]):
        with pytest.raises(TypeError, match=r"is not valid: give a list of numbers"):
            app.failed.retry(tags)  # type: ignore[arg-type]
    for limit in (0, -1, 1.5, None, "1"):
        with pytest.raises(ValueError, match="is not valid: use a number of 1 or more"):
            app.failed.list(limit=limit)


# -- unsendable messages --


class PickyStore(MemoryStore):
    """A broker that refuses messages with *unsendable* in the body, after sending the others before it."""

    error: type[Exception] = PublishError

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.letters = {kind: PickyLetters(kind, self) for kind in self.letters}


class PickyLetters(MemoryLetters):
    unsendable = b"unsendable"

    def __init__(self, kind: Kind, store: PickyStore) -> None:
        super().__init__(kind, store)
        self._error = store.error

    def send_again(self, calls: Sequence[Again]) -> int:
        count = 0
        for call in calls:
            if self.unsendable in call.body:
                raise self._error("too much for it")
            count += super().send_again([call])
        return count

    def retry(self, tags: Sequence[int] | None = None) -> int:
        count = 0
        for letter in reversed(list(self.newest())):
            if tags is None or letter.tag in tags:
                if self.unsendable in letter.body:
                    raise self._error("too much for it")
                count += super().retry([letter.tag])
        return count


def separate_backend(tmp_path: Path, kind: str) -> dict[str, str]:
    return {"backend": {"memory": "cache+memory://", "sql": f"db+sqlite:///{tmp_path}/results.db"}[kind]}


@pytest.mark.parametrize("kind", ["memory", "sql"])
@pytest.mark.parametrize("which", [[0], [2], [5], [0, 1, 4], range(6)])
def test_refused_messages_stay_failed_and_others_are_retried(
    tmp_path: Path, kind: str, which: Sequence[int]
) -> None:
    clock = FakeClock()
    with make(PickyStore(clock, keeps_failed=True), clock=clock, **separate_backend(tmp_path, kind)) as app:
        results = []
        for number in range(6):
            secret = "unsendable" if number in which else "fit"
            results.append(app.tasks["halve"].delay(2 * number + 1, secret=secret))
            run(app)
            clock.advance(1)
        tracebacks = [app.AsyncResult(result.id).traceback for result in results]
        tags = {each.id: each.tag for each in app.failed.list()}
        number, refused = app.failed.retry()
        assert number == 6 - len(which)
        assert refused == {tags[results[each].id]: "too much for it" for each in which}
        assert {each.tag for each in app.failed.list()} == refused.keys()
        for number, result in enumerate(results):
            if number in which:
                with pytest.raises(ValueError, match=f"{2 * number + 1} is odd"):
                    app.AsyncResult(result.id).get(timeout=0)
                assert app.AsyncResult(result.id).traceback == tracebacks[number]
            else:
                assert app.AsyncResult(result.id).state == "PENDING"
        fine.update(range(12))
        run(app)
        assert {app.AsyncResult(result.id).state for result in results} >= (
            {"SUCCESS", "FAILURE"} if 0 < len(which) < 6 else {"FAILURE"}
        )


def test_unavailable_broker_keeps_failed_tasks(tmp_path: Path) -> None:
    class UnavailableStore(PickyStore):
        error = BrokerUnavailable

    with make(UnavailableStore(keeps_failed=True), backend="cache+memory://") as app:
        result = app.tasks["halve"].delay(3, secret="unsendable")
        run(app)
        with pytest.raises(BrokerUnavailable):
            app.failed.retry()
        assert app.AsyncResult(result.id).failed()


def test_retry_over_message_max_bytes_is_refused_before_sending(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with make(url) as app:
        small, large = app.tasks["halve"].delay(3), app.tasks["halve"].delay(5, secret="x" * 3000)
        packed = app.tasks["halve"].apply_async((7,), compression="gzip")
        run(app)
    with make(url, message_max_bytes=2048) as app:
        tags = {each.id: each.tag for each in app.failed.list()}
        with pytest.raises(PublishError, match=r"over the limit of 2,048 \(message_max_bytes\)"):
            app.failed.retry([tags[small.id], tags[large.id]])
        assert len(app.failed.list()) == 3
        for error, result in (("3 is", small), ("7 is", packed)):
            number, refused = app.failed.retry(error=error, kwargs={"secret": "x" * 3000})
            assert (number, refused.keys()) == (0, {tags[result.id]})
            assert "over the limit of 2,048 (message_max_bytes)" in refused[tags[result.id]]
        number, refused = app.failed.retry()
        assert (number, refused.keys()) == (2, {tags[large.id]})
        assert [app.AsyncResult(each.id).state for each in (small, packed, large)] == [
            "PENDING",
            "PENDING",
            "FAILURE",
        ]


def test_undecodable_failed_task_does_not_affect_others(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with make(url) as app:
        app.tasks["halve"].delay(3)
        broken = app.tasks["halve"].delay(5)
        run(app)
        (found,) = app.failed.list(error="5 is")
        with closing(sqlite3.connect(tmp_path / "q.db")) as file, file:
            file.execute("UPDATE failed SET properties = 'x' WHERE tag = ?", (found.tag,))
        number, refused = app.failed.retry()
        assert (number, refused.keys()) == (1, {found.tag})
        assert app.AsyncResult(broken.id).failed()


def test_retry_over_the_max_payload_of_nats_stays_failed(tmp_path: Path) -> None:
    place = NatsPlace(tmp_path)
    options = {"stream": place.layout.stream}
    settings = {"broker_transport_options": options, "backend": "cache+memory://", "message_max_bytes": 2**22}
    try:
        with make(place.url, **settings) as app:
            large = app.tasks["halve"].delay(3, secret="x" * 600_000)
            small = app.tasks["halve"].delay(5)

            def both_have_failed() -> bool:
                run(app)
                return len(app.failed.list()) == 2

            until(both_have_failed)
            tags = {each.id: each.tag for each in app.failed.list()}
            number, refused = app.failed.retry(args=["y" * 200_000])
            assert (number, refused.keys()) == (1, {tags[large.id]})
            assert "max_payload" in refused[tags[large.id]]
            assert app.AsyncResult(large.id).failed()
            assert app.AsyncResult(small.id).state == "PENDING"
            assert [each.id for each in app.failed.list()] == [large.id]
    finally:
        place.clear()


@pytest.mark.parametrize("kind", ["dead", "failed"])
@pytest.mark.parametrize(("separate_results", "unsendable"), [(False, False), (True, False), (True, True)])
def test_protocol_1_messages_can_be_retried(
    tmp_path: Path, separate_results: bool, unsendable: bool, kind: str
) -> None:
    """Their ids are in their bodies: the old failure was kept, and waiting callers got it."""
    is_dead = kind == "dead"
    settings = {"backend": "cache+memory://"} if separate_results else {}
    broker = PickyStore(keeps_failed=not is_dead) if separate_results else f"sqlite:///{tmp_path}/q.db"
    with make(broker, task_acks_on_failure_or_timeout=not is_dead, **settings) as app:
        call = {
            "task": "halve",
            "id": "old",
            "args": [3, "unsendable" if unsendable else "fit"],
            "kwargs": {},
        }
        content = {"content_type": "application/json", "content_encoding": "utf-8"}
        body = json.dumps(call).encode()
        app.broker.sender.push([Envelope("celery", "{}", json.dumps(content), body)])
        run(app)
        assert app.AsyncResult("old").failed()
        done = dead_letters.retry(app) if is_dead else app.failed.retry()
        assert (done.number, list(done.refused.values())) == (
            (0, ["too much for it"]) if unsendable else (1, [])
        )
        assert app.AsyncResult("old").state == ("FAILURE" if unsendable else "PENDING")
        fine.add(3)
        run(app)
        assert app.AsyncResult("old").state == ("FAILURE" if unsendable else "SUCCESS")


def test_refused_dead_letter_is_kept_and_others_are_retried() -> None:
    settings = {"backend": "cache+memory://", "task_acks_on_failure_or_timeout": False}
    with make(PickyStore(), **settings) as app:
        results = [app.tasks["halve"].delay(3, secret=secret) for secret in ("fit", "unsendable", "also fit")]
        run(app)
        letters = {json.loads(letter.headers)["id"]: letter.tag for letter in app.broker.admin.dead()}
        assert dead_letters.retry(app) == (2, {letters[results[1].id]: "too much for it"})
        states = [app.AsyncResult(result.id).state for result in results]
        assert states == ["PENDING", "FAILURE", "PENDING"]
        assert [letter.tag for letter in app.broker.admin.dead()] == [letters[results[1].id]]


@pytest.mark.parametrize("kind", ["dead", "failed"])
def test_letter_without_queue_is_not_sent(tmp_path: Path, kind: Kind) -> None:
    """Another program may have put a message among the letters."""
    with make(f"sqlite:///{tmp_path}/q.db") as app:
        letters = app.broker.letters[kind]
        letters.push([Dead(0, "", "not written by qworker", 1.0, 0, "{}", None, b"")])
        (foreign,) = letters.newest()
        done = dead_letters.retry(app) if kind == "dead" else app.failed.retry()
        assert done == (0, {foreign.tag: "the message does not say to which queue it belongs"})
        assert list(letters.newest()) == [foreign]


def test_oldest_dead_letter_is_sent_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make(f"sqlite:///{tmp_path}/q.db") as app:
        letters, sent = app.broker.letters["dead"], list[int]()
        letters.push([Dead(0, "q", "why", number, 0, "{}", None, b"") for number in (1.0, 2.0, 3.0)])
        tags = [letter.tag for letter in letters.newest()]

        def retry(these: Sequence[int]) -> int:
            sent.extend(these)
            return len(these)

        monkeypatch.setattr(letters, "retry", retry)
        assert dead_letters.retry(app).number == 3
        assert sent == tags[::-1]
