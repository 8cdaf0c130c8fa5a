"""Tasks that fail for good: what is kept of them, and what becomes of those that are sent again."""

from __future__ import annotations

import json
import pickle
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qworker import QWorker
from qworker.errors import ConfigurationError, Ignore, MessageError, NotSupported, Reject, SecurityError
from qworker.message.marks import FAILED, MEMBERS
from qworker.message.reading import parse_headers
from qworker.message.signing import Signer
from qworker.testing import FakeClock, MemoryStore, StepWorker

pytestmark = pytest.mark.integration

fine: set[int] = set()
"""Numbers that halve() does not fail for any more."""


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
def nothing_is_fine() -> None:
    fine.clear()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[QWorker]:
    with make(f"sqlite:///{tmp_path}/q.db") as made:
        yield made


def run(app: QWorker) -> None:
    with StepWorker(app) as worker:
        worker.run()


def test_what_failed_is_shown_and_sent_again(app: QWorker) -> None:
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


def test_others_are_left_and_arguments_can_be_changed(app: QWorker) -> None:
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
    assert app.failed.list(task="again")[0].attempts == 3, "all its retries were before it"
    assert app.failed.discard(error="odd") == 1
    assert app.failed.discard() == 1
    assert list(app.failed) == []


def test_a_chain_goes_on_from_where_it_failed(app: QWorker) -> None:
    halve, add = app.tasks["halve"], app.tasks["add"]
    result = (halve.s(3) | add.s(10)).apply_async()
    run(app)
    assert app.AsyncResult(result.id).failed()
    assert [found.task for found in app.failed.list()] == ["halve"], "what never ran has not failed here"
    fine.add(3)
    app.failed.retry()
    run(app)
    assert app.AsyncResult(result.id).get(timeout=1) == 11.5


def test_what_has_not_failed_is_not_kept(app: QWorker) -> None:
    for name in ("expected", "off", "early", "ignores", "rejects"):
        app.tasks[name].delay()
    app.tasks["halve"].apply_async((3,), expires="2020-01-01T00:00:00Z")
    revoked = app.tasks["halve"].delay(3)
    revoked.revoke()
    run(app)
    assert app.failed.list() == []
    assert [letter.reason.partition(":")[0] for letter in app.broker.admin.dead()] == ["rejected"]


def test_nothing_is_kept_where_a_word_turns_it_off(tmp_path: Path) -> None:
    with make(f"sqlite:///{tmp_path}/q.db", task_keep_failed=False) as app:
        app.tasks["halve"].delay(3)
        run(app)
        assert app.failed.list() == []


def test_a_broker_without_a_place_says_so() -> None:
    clock = FakeClock()
    with make(MemoryStore(clock), backend="cache+memory://", clock=clock) as app:
        result = app.tasks["halve"].delay(3)
        run(app)
        assert result.failed()
        assert app.broker.admin.dead() == []
        with pytest.raises(NotSupported, match="task_acks_on_failure_or_timeout"):
            app.failed.list()


def test_results_in_a_store_of_their_own_are_forgotten_too() -> None:
    clock = FakeClock()
    broker = MemoryStore(clock, keeps_failed=True)
    with make(broker, backend="cache+memory://", clock=clock) as app:
        result = app.tasks["halve"].delay(3)
        run(app)
        assert app.AsyncResult(result.id).state == "FAILURE"
        assert app.failed.retry().number == 1
        assert app.AsyncResult(result.id).state == "PENDING"


def test_one_that_was_signed_is_signed_anew_and_no_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with make(url, security_key="k" * 32) as app:
        result = app.tasks["halve"].delay(3)
        run(app)
        fine.add(4)
        (found,) = app.failed.list()
        app.failed.retry([found.tag], args=[4])
        run(app)
        assert app.AsyncResult(result.id).get(timeout=1) == 2.0


def test_without_the_key_a_signed_one_stays(tmp_path: Path) -> None:
    """It would be sent without a signature, and become a dead letter of the workers that have the key."""
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
def test_with_a_key_nothing_is_read_that_is_not_signed(tmp_path: Path, change: str) -> None:
    """Who can write to the store, and has no key, neither runs code in the process of who retries, nor has
    another call signed."""
    url, opened = f"sqlite:///{tmp_path}/q.db", tmp_path / "opened"
    with make(url, security_key="k" * 32, accept_content=["json", "pickle"]) as app:
        result = app.tasks["halve"].delay(3)
        honest = app.tasks["halve"].delay(5)
        run(app)
        (honest_one,) = app.failed.list(error="5 is")
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
                headers[MEMBERS] = {"ids": [honest.id], "given": True}
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
        assert (number, refused.keys()) == (1, {found.tag}), "the honest one is sent"
        assert "is refused, and its body is not read" in refused[found.tag]
        run(app)
        assert not opened.exists()
        assert [each.tag for each in app.failed.list()] == [found.tag]
        assert app.AsyncResult(result.id).failed(), "its failure is not forgotten"
        assert app.AsyncResult(honest_one.id).get(timeout=1) == 2.5


def test_how_old_a_failed_task_is_does_not_matter(tmp_path: Path) -> None:
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
    """Opens a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return open, (self.path, "w")


def test_a_task_that_nobody_knows_any_more_can_be_looked_at_and_changed(tmp_path: Path) -> None:
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


def test_arguments_that_cannot_be_read_are_not_changed_and_nothing_is_sent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with make(url, task_serializer="yaml", accept_content=["json", "yaml"]) as app:
        app.tasks["halve"].delay(3)
        run(app)
    with make(url) as app:
        (found,) = app.failed.list()
        with pytest.raises(MessageError):
            app.failed.retry([found.tag], args=[4])
        assert [each.tag for each in app.failed.list()] == [found.tag]


def test_what_cannot_be_meant_is_refused(app: QWorker) -> None:
    for tags in (1, "1", ["1"]):
        with pytest.raises(TypeError, match=r"is not valid: give a list of numbers"):
            app.failed.retry(tags)  # type: ignore[arg-type]
    for limit in (0, -1, 1.5, None, "1"):
        with pytest.raises(ValueError, match="is not valid: give a number from 1 on"):
            app.failed.list(limit=limit)
