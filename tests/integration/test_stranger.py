"""What is read back with a security_key: the table of the page on security, row by row, by somebody who has
the passwords and no key.

The stranger is an app on the same servers with a key of its own. What he writes is a pickle wherever one may
stand, which says so when it is opened.
"""

from __future__ import annotations

import json
import pickle
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, group
from qworker.control import dead_letters
from qworker.errors import DamagedResult, NotSupported
from qworker.message.marks import MARKS
from qworker.message.protocol import TaskMessage, encode
from qworker.results import outline
from qworker.results.group_result import GroupResult
from qworker.states import SUCCESS
from qworker.testing import StepWorker
from qworker.testing.contract import Place
from qworker.transports.lease import Envelope
from qworker.transports.sql.embedded.broker import SQLiteBroker
from qworker.transports.transfer import move
from tests.contract.place_amqp import AMQPPlace
from tests.contract.place_redis import RedisPlace
from tests.contract.place_spool import SpoolPlace
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.contract.place_sqlite import SQLitePlace
from tests.servers import new_prefix, require

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/how-to/security.md"
KEY, ATTACKER_KEY = "k" * 32, "s" * 32
PICKLE = {"content_type": "application/x-python-serialize", "content_encoding": "binary"}
BROKERS: dict[str, type[Place]] = {
    "sqlite": SQLitePlace,
    "redis": RedisPlace,
    "postgresql": PostgreSQLPlace,
    "mysql": MySQLPlace,
    "rabbitmq": AMQPPlace,
    "spool": SpoolPlace,
}
RESULTS = ("sqlite", "files", "redis", "postgresql", "mysql", "memcached")
TABLE = {
    "messages": ["test_messages", "test_security.py::test_changed_message_is_refused"],
    "headers that were added to a message": ["test_added_headers_are_refused"],
    "the broker's marks: queue, priority, due time, deliveries, `x-…`": [
        "test_broker_marks_do_not_change_the_call"
    ],
    "dead letters": ["test_dead_letters", "test_moved"],
    "failed tasks": [
        "test_failed_tasks",
        "test_failed_tasks.py::test_forged_failed_task_is_refused_and_not_unpickled",
    ],
    "results": ["test_results"],
    "saved groups and the outlines of workflows": ["test_forged_groups_and_outlines_are_refused"],
    "bodies of joins": ["test_forged_bodies_of_joins_are_refused"],
    "parts of joins: which members have ended, and how": [
        "test_sealed_joins.py::test_forged_parts_fail_the_chord",
        "test_sealed_joins.py::test_forged_failure_of_a_member_is_ignored",
        "test_sealed_joins.py::test_forged_parts_fail_a_graph_node",
    ],
    "members added to a chord": ["test_sealed_joins.py::test_forged_member_fails_the_chord"],
    "size, claim, due time and done marks of joins; which copy of a body runs": [
        "test_forged_hold_can_only_prevent_a_body"
    ],
    "parts of chords in Celery's format": ["test_forged_parts_in_celerys_format_are_refused"],
    "edits of schedules": [
        "test_sealed_schedules.py::test_unsigned_entries_are_not_called",
        "test_sealed_schedules.py::test_sealed_entry_cannot_be_altered_or_copied",
    ],
    "states, slots and the lease of schedules": [
        "test_sealed_schedules.py::test_slots_with_forged_task_ids_are_ignored",
        "test_sealed_schedules.py::test_forged_task_id_is_not_revoked",
    ],
    "revocations": ["test_revocations"],
    "presence and leases of workers, registered queues and tasks, notifications": ["test_presence"],
    "replies of `rpc://`": ["../contract/test_rpc_backend.py::test_unsigned_replies_are_ignored"],
    "message files of `spool://`": ["test_messages"],
}
"""The rows of the page, and the tests for each."""

opened: list[str] = []
"""What was unpickled by a test."""


def _opened(what: str) -> str:
    opened.append(what)
    return what


class Evil:
    """Records that it was unpickled."""

    def __init__(self, what: str = "evil") -> None:
        self.what = what

    def __reduce__(self) -> Any:
        return _opened, (self.what,)


@pytest.fixture(autouse=True)
def check_nothing_is_unpickled() -> Iterator[None]:
    opened.clear()
    yield
    assert opened == []


def test_page_and_table_have_the_same_rows() -> None:
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("| what is read | with a key |")
    rows = [line.split("|")[1].strip() for line in rest.partition("\n\n")[0].splitlines()[2:]]
    assert rows == list(TABLE)
    for names in TABLE.values():
        for name in names:
            file, separator, function = name.rpartition("::")
            path = Path(__file__).parent / file if separator else Path(__file__)
            assert re.search(rf"^def {function}\(", path.read_text(encoding="utf-8"), re.MULTILINE), name


# -- brokers --


class Env:
    """The app with its key, and the attacker. ran: arguments of tasks that ran."""

    def __init__(self, directory: Path, place: Place) -> None:
        self.directory, self.place = directory, place
        self.ran: list[Any] = []
        self.app = self.make(security_key=[KEY], accept_content=["json", "pickle"])
        self.attacker = self.make(security_key=[ATTACKER_KEY], accept_content=["json", "pickle"])
        self.queue = "celery"

    def make(self, **settings: Any) -> QWorker:
        app = QWorker(
            "env",
            broker=self.place.open(),
            backend=f"sqlite:///{self.directory}/results.db",
            set_as_current=False,
            task_unknown_delays=(),
            **settings,
        )

        @app.task(name="add")
        def add(*args: Any) -> int:
            self.ran.append(args)
            return sum(args)

        @app.task(name="boom")
        def boom(*args: Any) -> None:
            self.ran.append(args)
            raise ValueError("boom")

        return app

    def sent(self, name: str, *args: Any, **options: Any) -> tuple[Any, Envelope]:
        """Return the result and the message of a call, without publishing it."""
        sender, seen = self.app.broker.sender, []
        push = sender.push
        sender.push = lambda envelopes, timeout=10.0: seen.extend(envelopes)  # type: ignore[method-assign]
        try:
            result = self.app.send_task(name, args, **options)
        finally:
            sender.push = push  # type: ignore[method-assign]
        return result, seen[0]

    def push(self, *envelopes: Envelope) -> None:
        self.attacker.broker.sender.push(envelopes)

    def run(self, app: QWorker | None = None) -> None:
        with StepWorker(app or self.app) as worker:
            worker.run()

    def run_all(self) -> None:
        """Run a worker until a valid message that is sent last has run."""
        result = self.app.send_task("add", (40, 2))
        with StepWorker(self.app) as worker:
            for _ in range(50):
                worker.run()
                if result.ready():
                    break
        assert result.get(timeout=0) == 42
        self.ran.remove((40, 2))

    def reasons(self) -> list[str]:
        return [letter.reason for letter in self.app.broker.admin.dead()]

    def close(self) -> None:
        self.attacker.close()
        self.app.close()


@pytest.fixture(params=BROKERS)
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    place = BROKERS[request.param](tmp_path)
    made = Env(tmp_path, place)
    yield made
    made.close()
    place.clear()


def forged(task: str, id: str, **headers: Any) -> Envelope:
    """Return an unsigned message with a pickle as its body."""
    body = pickle.dumps(((Evil(task),), {}, {"callbacks": None, "errbacks": None, "chain": [1]}))
    return Envelope("celery", json.dumps({"id": id, "task": task, **headers}), json.dumps(PICKLE), body)


PAST = "2020-01-01T00:00:00+00:00"


def test_messages(env: Env) -> None:
    env.push(
        forged("add", "id-1"),
        forged("no.such.task", "id-2"),
        forged("add", "id-3", expires=PAST),
        forged("add", "id-4", eta=PAST),
        forged("add", "id-5", signature="v1:a:1:b::c"),
        Envelope("celery", "{}", json.dumps(PICKLE), pickle.dumps(Evil("protocol 1"))),
    )
    env.run_all()
    assert env.ran == []
    reasons = env.reasons()
    assert len(reasons) == 6
    assert all("SecurityError" in reason for reason in reasons)
    assert all(env.app.AsyncResult(f"id-{number}").state == "PENDING" for number in range(1, 6))


def test_added_headers_are_refused(env: Env) -> None:
    messages = []
    for name in sorted(MARKS):
        _, envelope = env.sent("add", 1, 2)
        headers = json.loads(envelope.headers) | {name: [["a join", 0]]}
        messages.append(envelope._replace(headers=json.dumps(headers)))
    _, envelope = env.sent("add", 3, 4)
    headers = json.loads(envelope.headers) | {"traceparent": "added", "argsrepr": "(5,)"}
    env.push(*messages, envelope._replace(headers=json.dumps(headers)))
    env.run_all()
    assert env.ran == [(3, 4)]
    assert len(env.reasons()) == len(MARKS)
    assert all("was added after the message was signed" in reason for reason in env.reasons())


def test_broker_marks_do_not_change_the_call(env: Env) -> None:
    """A message at another time, or with other marks, is the same call."""
    result, envelope = env.sent("add", 3, 4, countdown=3600, priority=0)
    headers = json.loads(envelope.headers) | {"redelivered": True, "x-death": [{"count": 5}]}
    env.push(envelope._replace(headers=json.dumps(headers), due=None))
    with StepWorker(env.app) as worker:
        worker.run()
    assert env.ran == [], "the due time is signed"
    assert result.state == "PENDING"


def test_dead_letters(env: Env) -> None:
    env.push(forged("add", "id-1"), forged("boom", "id-2"))
    env.run_all()
    assert len(env.app.broker.admin.dead()) == 2
    done = dead_letters.retry(env.app)
    assert done.number == 0
    assert len(done.refused) == 2
    env.run_all()
    assert env.ran == []
    assert len(env.reasons()) == 2


def test_moved(env: Env) -> None:
    env.push(forged("add", "id-1"))
    other = SQLiteBroker(f"sqlite:///{env.directory}/other.db")
    try:
        assert move(env.app.broker, other).moved == 1
        assert [peeked.headers for peeked in other.admin.peek("celery", "ready", 10)]
    finally:
        other.close()


def test_failed_tasks(env: Env) -> None:
    """A worker of the attacker has stored it."""
    if "failed" not in env.app.broker.letters:
        assert isinstance(env.place, SpoolPlace)
        return
    body = encode(TaskMessage("boom", "id-1", (1,), serializer="pickle"), env.attacker.signer)
    env.push(Envelope("celery", body.headers, body.properties, body.body))
    env.run(env.attacker)
    assert env.ran == [(1,)]
    (found,) = env.app.failed.list()
    assert env.app.failed.get(found.tag).task == "boom"
    assert env.app.failed.retry().number == 0
    env.run_all()
    assert env.ran == [(1,)]
    assert env.app.backend.read_many(["id-1"]), "its stored result is kept"


def test_revocations(env: Env) -> None:
    if isinstance(env.place, SpoolPlace):
        with pytest.raises(NotSupported):
            env.attacker.control.revoke("id-1")
        return
    result = env.app.send_task("add", (1, 2))
    env.attacker.control.revoke(result.id, terminate=True)
    env.run_all()
    assert result.get(timeout=0) == 3


def test_presence(env: Env) -> None:
    """A forged worker is listed, without any other effect."""
    with StepWorker(env.attacker) as worker:
        presence = env.attacker.broker.presence
        if presence is None:
            return
        for text in ("", "[]", '{"tasks": 5, "phase": ["evil"]}', "\0\x1b[2J", "{" * 1000):
            presence.consumer.present(text)
            env.app.workers()
        del worker
    env.run_all()


# -- result stores --


@pytest.fixture(params=RESULTS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[QWorker, QWorker]]:
    """Return the app and the attacker, on one result store."""
    kind, place = request.param, None
    options: dict[str, Any] = {"broker": "memory://"}
    if kind == "redis":
        options["result_backend_transport_options"] = {"global_keyprefix": new_prefix()}
    if kind in ("postgresql", "mysql"):
        place = BROKERS[kind](tmp_path)
        url = place.results_url
    elif kind in ("sqlite", "files"):
        (tmp_path / "files").mkdir()
        url = f"sqlite:///{tmp_path}/results.db" if kind == "sqlite" else f"file://{tmp_path}/files"
    elif kind == "memcached":
        url = require(kind).replace("memcached://", "cache+memcached://")
    else:
        url = require(kind)
    content = {"accept_content": ["json", "pickle"], "result_serializer": "pickle", "backend": url}
    app = QWorker("env", set_as_current=False, security_key=[KEY], **options, **content)
    attacker = QWorker("env", set_as_current=False, security_key=[ATTACKER_KEY], **options, **content)
    yield app, attacker
    attacker.close()
    app.close()
    if place is not None:
        place.clear()


def store(app: QWorker, task_id: str, value: Any) -> None:
    app.backend.store(task_id, app.backend.meta(task_id, SUCCESS, value))


def test_results(stores: tuple[QWorker, QWorker]) -> None:
    app, attacker = stores
    name = f"id-{new_prefix()}"
    store(attacker, name, Evil())
    with pytest.raises(DamagedResult, match="not in security_key"):
        app.AsyncResult(name).get(timeout=0)
    assert isinstance(app.backend.read_many([name])[name], DamagedResult)
    assert app.AsyncResult(name).forget() is None
    store(app, name, 5)
    assert app.AsyncResult(name).get(timeout=0) == 5


def test_forged_groups_and_outlines_are_refused(stores: tuple[QWorker, QWorker]) -> None:
    app, attacker = stores
    name = f"id-{new_prefix()}"
    attacker.backend.save_group(name, [[name, None], [[["another", None], None], Evil()]])
    with pytest.raises(DamagedResult, match="not in security_key"):
        GroupResult.restore(name, app=app)
    attacker.backend.save_group(f"qworker-workflow-{name}", {"line": [[name, "evil"]], "parent": Evil()})
    assert outline.read(app.backend, name) is None
    outline.keep(app.backend, [[name, "add"]], None)
    assert outline.read(app.backend, name) == outline.Outline([[name, "add"]], None)


# -- joins --


Change = Callable[[QWorker, QWorker, str, bytes], bytes]
BODIES: dict[str, Change] = {
    "a pickle": lambda app, attacker, join, body: pickle.dumps(Evil()),
    "a call of the stranger's": lambda app, attacker, join, body: attacker.backend.codec.encode_value(
        dict(attacker.tasks["add"].s(66))
    ),
    "that of another join": lambda app, attacker, join, body: app.backend.codec.encode_value(
        dict(app.tasks["add"].s(66)), ("join", "another")
    ),
    "altered": lambda app, attacker, join, body: body.replace(b"gather", b"add\0\0\0"),
}


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Env]:
    made = Env(tmp_path, SQLitePlace(tmp_path))
    yield made
    made.close()


@pytest.mark.parametrize("what", BODIES)
def test_forged_bodies_of_joins_are_refused(joined: Env, what: str) -> None:
    app, attacker = joined.app, joined.attacker

    @app.task(name="gather")
    def gather(values: list[int]) -> None:
        joined.ran.append(values)

    result = (group(app.tasks["add"].s(1), app.tasks["add"].s(2)) | gather.s()).apply_async()
    with closing(sqlite3.connect(joined.directory / "results.db")) as file, file:
        ((join, body),) = file.execute("SELECT id, body FROM joins")
        file.execute("UPDATE joins SET body = ?", (BODIES[what](app, attacker, join, body),))
    joined.run_all()
    assert sorted(joined.ran) == [(1,), (2,)]
    assert result.state in ("PENDING", "FAILURE")


def test_forged_hold_can_only_prevent_a_body(joined: Env) -> None:
    """An attacker can only prevent a body from running, which deleting it does, too."""

    @joined.app.task(name="gather")
    def gather(values: list[int]) -> None:
        joined.ran.append(values)

    add = joined.app.tasks["add"]
    result = (group(add.s(1), add.s(2)) | gather.s()).apply_async()
    joined.attacker.backend.joins.hold(result.id, 7, 1000.0)
    joined.run_all()
    assert [each for each in joined.ran if each not in ((1,), (2,))] in ([], [[1, 2]])


def test_forged_parts_in_celerys_format_are_refused(tmp_path: Path) -> None:
    """An unsigned value is refused; `config check` warns that the order is not signed."""
    prefix = new_prefix()
    options: dict[str, Any] = {
        "broker": require("redis"),
        "backend": require("redis"),
        "broker_transport_options": {"global_keyprefix": prefix},
        "result_backend_transport_options": {"global_keyprefix": prefix},
    }
    app = QWorker("env", set_as_current=False, security_key=[KEY], canvas_format="celery", **options)
    attacker = QWorker("env", set_as_current=False, security_key=[ATTACKER_KEY], **options)
    ran = []

    @app.task(name="add")
    def add(x: int) -> int:
        return x

    @app.task(name="gather")
    def gather(values: list[int]) -> None:
        ran.append(values)

    with app, attacker:
        result = (group(add.s(1), add.s(2)) | gather.s()).apply_async()
        ours, theirs = app.backend.joins, attacker.backend.joins
        part = theirs.chord_part(result.parent.id, 0, result.parent.results[0].id, SUCCESS, 66, b"")
        assert part is not None
        theirs.add([part])
        with StepWorker(app) as worker:
            worker.run()
        assert ran in ([], [[1, 2]])
        with pytest.raises(DamagedResult, match="not in security_key"):
            ours.read_chord_part(part)
    found = [problem.severity for problem in app.conf.problems() if problem.setting == "canvas_format"]
    assert found == ["warning"]
