"""One suite for every result store."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qworker import QWorker, states
from qworker.backends import Backend, open_backend
from qworker.backends.keyvalue.filesystem import FilesystemBackend
from qworker.backends.keyvalue.keys import TASK_PREFIX
from qworker.backends.keyvalue.memcached import MemcachedBackend
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.backends.redis.backend import RedisBackend
from qworker.backends.sql.backend import SQLBackend
from qworker.backends.sql.tables import connect
from qworker.clock import SYSTEM_CLOCK, Clock, from_epoch
from qworker.conf import Settings
from qworker.errors import BackendError, DamagedResult, EncodeError, NotAvailable, NotSupported
from qworker.message.context import Context
from qworker.message.exceptions import exception_to_dict
from qworker.message.protocol import Body
from qworker.results import outline
from qworker.results.result import AsyncResult
from qworker.testing.clock import FakeClock
from tests.contract.place_mongodb import database_url, mongo_client
from tests.contract.place_redis import client_of
from tests.servers import URLS, require
from tests.support.stores import KeepingStore
from tests.support.waiting import until

pytestmark = pytest.mark.contract

DATABASES = ("postgresql", "mysql")
ON_REDIS = ("redis", "redis-cluster", "valkey")
SERVERS = (*DATABASES, *ON_REDIS, "memcached", "mongodb")
KINDS = ("memory", "sqlite", "filesystem", "sql-sqlite", *SERVERS)
EXPIRE_THEMSELVES = (*ON_REDIS, "memcached")
"""Stores that expire results without a sweep."""
CUSTOM = "PROGRESS"
ANY_STATE = (*sorted(states.ALL_STATES), CUSTOM)

Open = Callable[..., Backend]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test on every store, except tests that move the clock on memcached; test_memcached_backend
    waits there instead."""
    if "kind" in metafunc.fixturenames:
        timed = "pass_time" in metafunc.function.__code__.co_names
        kinds = [kind for kind in KINDS if not (timed and kind == "memcached")]
        metafunc.parametrize("kind", kinds, indirect=True)


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    if request.param in SERVERS:
        require(request.param)
    return str(request.param)


@pytest.fixture
def open_(kind: str, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens the store; each call opens the same one."""
    tables = {name: f"{name}_{uuid.uuid4().hex[:12]}" for name in ("task", "group", "keyvalue")}
    urls = {
        "memory": "cache+memory://",
        "sqlite": f"sqlite:///{tmp_path}/results.db",
        "filesystem": f"file://{tmp_path}/results",
        "sql-sqlite": f"db+sqlite:///{tmp_path}/sql.db",
        **{name: f"db+{URLS[name]}" for name in DATABASES},
        **{name: URLS[name] for name in ON_REDIS},
        "memcached": f"cache+{URLS['memcached']}",
        "mongodb": database_url(URLS["mongodb"], tmp_path),
    }
    options = {"global_keyprefix": f"{tables['task']}:"}
    opened: list[Backend] = []
    given: list[dict[str, Any]] = []

    def open_again(clock: Clock = SYSTEM_CLOCK, **values: Any) -> Backend:
        if kind == "memory" and given == [values] and "security_key" not in values:
            return opened[0]
        given.append(values)
        settings = {"database_table_names": tables, "result_backend_transport_options": options, **values}
        conf = Settings(settings, environ={}, directory=tmp_path)
        backend = open_backend(urls[kind], conf, clock)
        if isinstance(backend, MemoryBackend) and opened:
            backend._values = opened[0]._values
        opened.append(backend)
        return backend

    yield open_again
    for backend in opened:
        backend.close()
    if kind in ON_REDIS:
        prefix = next((each._prefix for each in opened if isinstance(each, RedisBackend)), "")
        with client_of(URLS[kind], prefix) as client:
            for key in client.scan_iter(f"{prefix}*", count=10_000) if prefix else ():
                client.delete(key)
    if kind == "mongodb":
        mongo_client(URLS["mongodb"]).drop_database(urls[kind].rpartition("/")[2].partition("?")[0])
    if kind in DATABASES:
        engine = connect(URLS[kind], {}, short_lived=True)
        with engine.connect() as connection:
            for table in tables.values():
                connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
        engine.dispose()


def store(
    backend: Backend, task_id: str, status: str = states.SUCCESS, result: Any = None, **extra: Any
) -> bool:
    return backend.store(task_id, backend.meta(task_id, status, result, **extra))


def pass_time(backend: Backend, clock: FakeClock, seconds: float) -> None:
    """Advance the clock by *seconds*. On Redis, which has its own, shorten the TTL of every key instead."""
    clock.advance(seconds)
    if isinstance(backend, RedisBackend):
        with client_of(backend.url, backend._prefix) as client:
            for key in client.scan_iter(f"{backend._prefix}*", count=10_000):
                left = client.pttl(key)
                if left >= 0:
                    client.pexpire(key, int(left - seconds * 1000))


def new_id() -> str:
    return str(uuid.uuid4())


# -- with a security_key --

KEY = "a key that is long enough for the tests"
FORGED: list[str] = []


class Attack:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _run, ()


def _run() -> None:
    FORGED.append("ran")


def test_results_are_signed(open_: Open) -> None:
    for serializer, more in product(
        ["json", "pickle", "yaml"], [{}, {"result_compression": "gzip", "result_extended": True}]
    ):
        settings = {"result_serializer": serializer, "result_accept_content": [serializer], **more}
        backend = open_(security_key=[KEY], **settings)
        good, error = new_id(), new_id()
        assert store(backend, good, result={"a": [1, "é"]}, traceback="t"), settings
        assert store(backend, error, states.FAILURE, exception_to_dict(ValueError("no"))), settings
        backend.save_group(good, [["a", None], ["b"]])
        reader = open_(security_key=["another key, which is the first of two", KEY], **settings)
        found = reader.get_many([good, error])
        assert found[good]["result"] == {"a": [1, "é"]}, settings
        assert (found[good]["status"], found[error]["status"]) == (states.SUCCESS, states.FAILURE), settings
        assert list(map(list, reader.get_group(good)))[1] == ["b"], settings


@pytest.mark.parametrize("key", [None, ["a key of somebody else's, which is long enough"]])
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_forged_result_is_refused_and_not_unpickled(
    open_: Open, serializer: str, key: list[str] | None
) -> None:
    settings = {"result_serializer": serializer, "result_accept_content": [serializer]}
    reader, forger = open_(security_key=[KEY], **settings), open_(security_key=key or [KEY], **settings)
    if key is None:
        forger.codec._signer = None
    lie: Any = Attack() if serializer == "pickle" else "a lie"
    task_id = new_id()
    assert store(forger, task_id, states.STARTED, lie)
    forger.save_group(task_id, lie)
    FORGED.clear()
    for read in (reader.get, lambda task_id: reader.get_many([task_id, new_id()]), reader.get_group):
        why = "it is signed with key '.*', which is not in security_key" if key else "it is not signed"
        with pytest.raises(BackendError, match=f"refused: {why}"):
            read(task_id)
    assert store(reader, task_id, result="the truth")
    assert reader.get(task_id)["result"] == "the truth"  # type: ignore[index]
    assert FORGED == []


def test_signed_result_of_another_task_is_refused(open_: Open) -> None:
    backend = open_(security_key=[KEY])
    one, other = new_id(), new_id()
    row = backend.row(one, backend.meta(one, states.SUCCESS, "of one"))
    assert row is not None
    backend.store_rows([(other, *row[1:])])
    with pytest.raises(BackendError, match=r"another task's|does not match"):
        backend.get(other)


@pytest.mark.parametrize(
    "change", ["status = 'FAILURE'", "result = NULL", "result = 'null'", "status = 'FAILURE', result = NULL"]
)
def test_changed_row_is_refused(tmp_path: Path, change: str) -> None:
    url = f"db+sqlite:///{tmp_path}/sql.db"
    backend = open_backend(
        url, Settings({"security_key": [KEY]}, environ={}, directory=tmp_path), SYSTEM_CLOCK
    )
    assert store(backend, "a", result=1)
    with connect(url, {}, short_lived=True).connect() as connection:
        connection.execute(sa.text(f"UPDATE celery_taskmeta SET {change}"))
    with pytest.raises(BackendError, match="refused"):
        backend.get("a")
    backend.close()


# -- damaged results --


def damage(backend: Backend, task_id: str) -> None:
    """Store an undecodable, unsigned result of *task_id*."""
    if isinstance(backend, MemcachedBackend):
        key = backend._key(TASK_PREFIX, task_id)
        backend._do(lambda client: client.set(key, b"[1, 2", 600))
    else:
        backend.store_rows([(task_id, states.SUCCESS, b"[1, 2", backend.expiry())])


SIGNED_OR_NOT = pytest.mark.parametrize("signed", [{}, {"security_key": [KEY]}], ids=["plain", "signed"])


@SIGNED_OR_NOT
def test_damaged_result_does_not_affect_reading_others(open_: Open, signed: dict[str, Any]) -> None:
    backend = open_(**signed)
    one, damaged, other = ids = [new_id() for _ in range(3)]
    store(backend, one, result=1)
    damage(backend, damaged)
    assert set(backend.wait(ids, 0)) == {one}
    store(backend, other, result=2)
    found = backend.read_many([*ids, new_id()])
    error = found.pop(damaged)
    assert isinstance(error, DamagedResult)
    assert (error.task_id, damaged in str(error)) == (damaged, True)
    assert {key: meta["result"] for key, meta in found.items()} == {one: 1, other: 2}  # type: ignore[call-overload]
    assert set(backend.wait(ids, 10)) == {one, other}
    for ask in (
        lambda: backend.get(damaged),
        lambda: backend.get_many(ids),
        lambda: backend.wait([damaged], 10),
        lambda: backend.wait([new_id(), damaged], 10),
    ):
        with pytest.raises(DamagedResult, match=damaged):
            ask()
    backend.forget(damaged)
    assert set(backend.get_many(ids)) == {one, other}


@SIGNED_OR_NOT
def test_damaged_result_does_not_affect_other_waiters(open_: Open, signed: dict[str, Any]) -> None:
    backend = open_(**signed)
    app = QWorker("proj", broker=KeepingStore(), backend=backend, set_as_current=False)
    one, damaged, other = results = [app.AsyncResult(new_id()) for _ in range(3)]

    async def value(result: AsyncResult[Any]) -> Any:
        return await result

    async def main() -> list[Any]:
        awaiting = [asyncio.ensure_future(value(result)) for result in results]
        await asyncio.sleep(0.1)  # all of them are polled together
        await asyncio.to_thread(damage, backend, damaged.id)
        with pytest.raises(DamagedResult, match=damaged.id):
            await asyncio.wait_for(awaiting[1], 20)
        assert not awaiting[0].done()
        assert not awaiting[2].done()
        for result in (one, other):
            await asyncio.to_thread(store, backend, result.id, result="of " + result.id)
        return await asyncio.wait_for(asyncio.gather(*awaiting, return_exceptions=True), 20)

    found = asyncio.run(main())
    assert [found[0], found[2]] == ["of " + one.id, "of " + other.id]
    assert isinstance(found[1], DamagedResult)
    with pytest.raises(DamagedResult, match=damaged.id):
        damaged.get(timeout=20)


@SIGNED_OR_NOT
def test_damaged_result_does_not_affect_other_callbacks(open_: Open, signed: dict[str, Any]) -> None:
    backend = open_(**signed)
    app = QWorker("proj", broker=KeepingStore(), backend=backend, set_as_current=False)
    one, damaged, other = results = [app.AsyncResult(new_id()) for _ in range(3)]
    kept: list[str] = []
    errors: list[BaseException] = []
    for result in results:
        result.then(lambda result: kept.append(result.id), on_error=errors.append)
    damage(backend, damaged.id)
    until(lambda: errors)
    store(backend, one.id)
    until(lambda: kept)
    store(backend, other.id)
    until(lambda: len(kept) == 2)
    assert kept == [one.id, other.id]
    (error,) = errors
    assert isinstance(error, DamagedResult)
    assert damaged.id in str(error)
    with pytest.raises(DamagedResult, match=damaged.id):
        damaged.then(print)


INVALID_COLUMNS = {
    "sql-sqlite": ("date_done = 'yesterday'", "status = CAST('SUCCESS' AS "
                                              "BLOB)", "traceback = CAST(X'FF' AS TEXT)"),
    "postgresql": ("date_done = 'infinity'",),
}  # fmt: skip


def test_unreadable_column_affects_only_its_row(open_: Open, kind: str, tmp_path: Path) -> None:
    backend = open_()
    changes = INVALID_COLUMNS.get(kind, ())
    damaged = [new_id() for _ in changes]
    for task_id in (*damaged, "good"):
        store(backend, task_id, result=task_id)
    if changes:
        table = backend._table  # type: ignore[attr-defined]
        with connect(backend.url, {}, short_lived=True).begin() as connection:
            for task_id, change in zip(damaged, changes, strict=True):
                connection.execute(
                    sa.text(f"UPDATE {table} SET {change} WHERE task_id = :id"), {"id": task_id}
                )
    elif isinstance(backend, FilesystemBackend):
        damaged = [new_id()]
        backend._path(TASK_PREFIX + damaged[0]).mkdir()
    found = backend.read_many([*damaged, "good"])
    assert found.pop("good")["result"] == "good"  # type: ignore[call-overload]
    assert {key for key, error in found.items() if isinstance(error, DamagedResult)} == set(damaged)


# -- storing and reading --


def test_unknown_task_has_no_result(open_: Open) -> None:
    assert open_().get(new_id()) is None


VALUES = [
    None,
    0,
    "Übermaß \N{SNOWMAN} \x00",
    [1, [2.5, None]],
    {"a": {"b": True}},
    datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
    Decimal("1.10"),
    uuid.UUID(int=7),
    b"\x00\xff",
    "x" * 200_000,
]


def test_values_are_read_as_they_were_stored(open_: Open) -> None:
    stored = {new_id(): value for value in VALUES}
    writer = open_()
    for task_id, value in stored.items():
        assert store(writer, task_id, result=value)
    reader = open_()
    for task_id, value in stored.items():
        meta = reader.get(task_id)
        assert meta is not None
        assert (meta["status"], meta["result"], meta["task_id"]) == (states.SUCCESS, value, task_id)


def test_traceback_children_and_date_are_stored(open_: Open) -> None:
    clock = FakeClock()
    context = Context(id="x", task="t", children=[AsyncResult("child")])
    error = {"exc_type": "ValueError", "exc_message": ["no"], "exc_module": "builtins"}
    store(open_(clock), "x", states.FAILURE, error, traceback="Traceback…\n", context=context)
    meta = open_(clock).get("x")
    assert meta is not None
    assert meta["traceback"] == "Traceback…\n"
    assert meta["result"] == error
    assert [list(child[0]) for child in meta["children"]] == [["child", None]]
    assert datetime.fromisoformat(meta["date_done"]) == from_epoch(clock.now())


def test_only_final_states_have_a_date(open_: Open) -> None:
    store(open_(), "x", states.STARTED)
    meta = open_().get("x")
    assert meta is not None
    assert meta["date_done"] is None


def test_result_extended_stores_the_call(open_: Open) -> None:
    headers = {"id": "x", "task": "proj.add", "retries": 2, "parent_id": None, "group": None}
    context = Context.from_message(
        headers, Body((1,), {"y": 2}, {}), delivery_info={"routing_key": "mail"}, hostname="w@h"
    )
    store(open_(result_extended=True), "x", result=3, context=context)
    meta = open_(result_extended=True).get("x")
    assert meta is not None
    kept = {key: meta[key] for key in ("name", "args", "kwargs", "worker", "retries", "queue")}
    assert kept == {
        "name": "proj.add", "args": [1], "kwargs": {"y": 2}, "worker": "w@h", "retries": 2, "queue": "mail",
    }  # fmt: skip


def test_unusual_task_ids_are_accepted(open_: Open) -> None:
    ids = ["../../etc/passwd", "a/b", "..", "%2e", "x'; DROP TABLE result; --", "*", "ü" * 60, "i" * 150]
    backend = open_()
    for number, task_id in enumerate(ids):
        store(backend, task_id, result=number)
    assert [meta["result"] for task_id in ids if (meta := backend.get(task_id))] == list(range(len(ids)))


@pytest.mark.parametrize(
    "values",
    [{"result_compression": "gzip"}, {"result_serializer": "msgpack", "result_accept_content": ["msgpack"]}],
)
def test_compression_and_other_serializers(open_: Open, values: dict[str, Any]) -> None:
    store(open_(**values), "x", result={"a": "b" * 1000})
    meta = open_(**values).get("x")
    assert meta is not None
    assert meta["result"] == {"a": "b" * 1000}


def test_compressed_results_are_read_without_the_setting(open_: Open, kind: str) -> None:
    if kind == "memory":
        return  # it keeps the settings that it was opened with
    store(open_(result_compression="gzip"), "x", result=1)
    meta = open_().get("x")
    assert meta is not None
    assert meta["result"] == 1


def test_encode_error_names_the_value(open_: Open) -> None:
    backend = open_()
    with pytest.raises(EncodeError, match=r"the result\['a'\]"):
        store(backend, "x", result={"a": object()})
    assert backend.get("x") is None


def test_forget(open_: Open) -> None:
    backend = open_()
    store(backend, "x")
    backend.forget("x")
    backend.forget("never-stored")
    assert open_().get("x") is None


def test_celerys_backend_methods(open_: Open) -> None:
    backend = open_()
    assert backend.get_task_meta("a") == {"status": "PENDING", "result": None}
    assert (backend.get_state("a"), backend.get_result("a"), backend.task_result_exists("a")) == (
        "PENDING",
        None,
        False,
    )
    backend.mark_as_started("a", pid=7)
    assert (backend.get_state("a"), backend.get_result("a")) == ("STARTED", {"pid": 7})
    backend.mark_as_retry("a", KeyError("again"), "Traceback: there")
    assert repr(backend.get_result("a")) == "KeyError('again')"
    assert backend.get_traceback("a") == "Traceback: there"
    assert backend.store_result("a", [1], "PROGRESS") == [1]
    backend.mark_as_done("a", {"x": 1})
    backend.mark_as_failure("a", ValueError("too late"))
    assert (backend.get_status("a"), backend.get_result("a"), backend.get_children("a")) == (
        "SUCCESS",
        {"x": 1},
        [],
    )
    backend.mark_as_failure("b", KeyError("no"), "Traceback: here")
    assert (repr(backend.get_result("b")), backend.get_traceback("b")) == (
        "KeyError('no')",
        "Traceback: here",
    )
    backend.mark_as_revoked("c", "not wanted")
    assert (backend.get_state("c"), str(backend.get_result("c"))) == ("REVOKED", "not wanted")
    assert backend.task_result_exists("c")
    request = Context(callbacks=[{"task": "next"}], errbacks=[{"task": "oh"}])
    with pytest.raises(NotAvailable, match="do not call the link of a request"):
        backend.mark_as_done("d", 1, request)
    with pytest.raises(NotAvailable, match="link_error"):
        backend.mark_as_failure("d", KeyError("no"), request=request)
    assert not backend.task_result_exists("d")


def test_get_many_omits_missing_results(open_: Open) -> None:
    backend = open_()
    ids = [new_id() for _ in range(5)]
    for task_id in ids[:3]:
        store(backend, task_id, result=task_id)
    found = backend.get_many(ids)
    assert {key: meta["result"] for key, meta in found.items()} == {key: key for key in ids[:3]}


def test_store_rows_stores_a_batch(open_: Open) -> None:
    backend = open_()
    store(backend, "old", states.SUCCESS, "stands")
    histories = [
        ("old", states.FAILURE, {}),
        ("new", states.STARTED, {"pid": 1}),
        ("other", states.FAILURE, {"exc_type": "X", "exc_message": [], "exc_module": "m"}),
        ("new", states.SUCCESS, [1, "ü"]),
        ("new", states.RETRY, {}),
    ]
    rows = [
        backend.row(task_id, backend.meta(task_id, status, result)) for task_id, status, result in histories
    ]
    for _ in range(2):  # a worker repeats a batch after an error
        open_().store_rows([row for row in rows if row is not None])
        found = {
            key: (meta["status"], meta["result"]) for key, meta in backend.get_many(["old", "new"]).items()
        }
        assert found == {"old": (states.SUCCESS, "stands"), "new": (states.SUCCESS, [1, "ü"])}
        assert (backend.get("other") or {})["status"] == states.FAILURE
    open_().store_rows([])


def test_concurrent_batches_do_not_block_each_other(open_: Open) -> None:
    backends, ids = [open_() for _ in range(4)], [new_id() for _ in range(30)]

    def work(number: int) -> None:
        backend = backends[number]
        for status in (states.STARTED, states.SUCCESS):
            mine = ids[number:] + ids[:number]
            rows = [backend.row(task_id, backend.meta(task_id, status, number)) for task_id in mine]
            backend.store_rows([row for row in rows if row is not None])

    in_threads(4, work)
    found = open_().get_many(ids)
    assert {meta["status"] for meta in found.values()} == {states.SUCCESS}
    assert set(found) == set(ids)


# -- a final state is not overwritten --


def test_only_allowed_states_replace_a_final_or_custom_one(open_: Open) -> None:
    backend = open_()
    for old, new in product([*sorted(states.READY_STATES), CUSTOM], ANY_STATE):
        task_id = new_id()
        store(backend, task_id, old, "old")
        stored, meta = store(backend, task_id, new, "new"), backend.get(task_id)
        assert meta is not None
        replaced = states.may_replace(old, new)
        expected = (True, new, "new") if replaced else (False, old, "old")
        assert (stored, meta["status"], meta["result"]) == expected, f"{old}, then {new}"


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequence=st.lists(st.sampled_from(ANY_STATE), min_size=1, max_size=8))
def test_sequences_of_states_follow_may_replace(open_: Open, sequence: list[str]) -> None:
    backend, task_id = open_(), new_id()
    expected: tuple[str, int] | None = None
    for number, status in enumerate(sequence):
        allowed = expected is None or states.may_replace(expected[0], status)
        assert store(backend, task_id, status, number) is allowed
        if allowed:
            expected = (status, number)
    meta = backend.get(task_id)
    assert meta is not None
    assert (meta["status"], meta["result"]) == expected


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run work(0) … work(count - 1) at the same time; raise the first error."""
    gate, errors = threading.Barrier(count), []

    def run(number: int) -> None:
        gate.wait()
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sequences=st.lists(
        st.lists(st.sampled_from(ANY_STATE), min_size=1, max_size=4), min_size=4, max_size=4
    ).filter(lambda sequences: any(states.SUCCESS in one for one in sequences))
)
def test_one_of_many_concurrent_writers_succeeds(open_: Open, sequences: list[list[str]]) -> None:
    backends, task_id = [open_() for _ in sequences], new_id()
    accepted: list[tuple[str, str]] = []

    def write(number: int) -> None:
        for step, status in enumerate(sequences[number]):
            if store(backends[number], task_id, status, f"{number}.{step}"):
                accepted.append((status, f"{number}.{step}"))

    in_threads(len(sequences), write)
    successes = [entry for entry in accepted if entry[0] == states.SUCCESS]
    assert len(successes) == 1
    meta = open_().get(task_id)
    assert meta is not None
    assert (meta["status"], meta["result"]) == successes[0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_uses_its_own_connection(open_: Open, kind: str) -> None:
    if kind == "memory":
        assert not open_().persistent  # no other process can read it
        return
    backend = open_()
    store(backend, "before", result=1)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if store(backend, "in-child", result=2) and backend.get("before") else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert {key for key in ("before", "in-child") if backend.get(key)} == {"before", "in-child"}
    assert store(backend, "after", result=3)


# -- waiting --


def test_wait_returns_stored_results_at_once(open_: Open) -> None:
    backend = open_()
    store(backend, "a", result=1)
    store(backend, "b", states.FAILURE, {})
    store(backend, "c", states.STARTED)
    assert set(backend.wait(["a", "b", "c", "d"], 5)) == {"a", "b"}


def test_wait_ends_after_the_timeout(open_: Open) -> None:
    calls: list[int] = []
    backend = open_()
    backend.get(new_id())  # connect first
    before = SYSTEM_CLOCK.monotonic()
    assert backend.wait([new_id()], 0.6, on_interval=lambda: calls.append(1), interval=0.02) == {}
    assert 0.59 <= SYSTEM_CLOCK.monotonic() - before < 10
    assert calls


def test_wait_with_zero_timeout_checks_once(open_: Open) -> None:
    backend = open_()
    store(backend, "x")
    assert set(backend.wait(["x"], 0)) == {"x"}
    assert backend.wait(["y"], 0) == {}


def test_waiting_caller_is_woken_by_a_result(open_: Open) -> None:
    waiting, storing = open_(), open_()
    storing.get("warm")
    took = []
    for task_id in (new_id() for _ in range(4)):
        timer = threading.Timer(0.1, store, (storing, task_id), {"result": 1})
        timer.start()
        before = SYSTEM_CLOCK.monotonic()
        found = waiting.wait([task_id], 10)
        took.append(SYSTEM_CLOCK.monotonic() - before)
        timer.join()
        assert found[task_id]["result"] == 1
    assert min(took) < 0.4  # the best of several: the machine may be busy


def test_many_threads_wait_at_once(open_: Open) -> None:
    storing = open_()
    found: list[str] = []
    ids = [new_id() for _ in range(6)]
    backends = [open_() for _ in range(2)]

    def work(number: int) -> None:
        if number == len(ids):
            for task_id in ids:
                store(storing, task_id)
        else:
            found.extend(backends[number % 2].wait([ids[number]], 10))

    in_threads(len(ids) + 1, work)
    assert sorted(found) == sorted(ids)


# -- time --


def test_result_over_message_max_bytes_is_refused(open_: Open) -> None:
    backend = open_(message_max_bytes=10_000)
    store(backend, "fits", result="x" * 9_000)
    with pytest.raises(EncodeError, match=r"over the limit of 10000 \(message_max_bytes\)"):
        store(backend, "large", result="x" * 10_000)
    with pytest.raises(EncodeError, match=r"over the limit of 10000 \(message_max_bytes\)"):
        backend.row("large", backend.meta("large", "SUCCESS", "x" * 10_000))
    assert backend.get("large") is None
    assert (backend.get("fits") or {})["result"] == "x" * 9_000


def test_results_expire_and_are_swept(open_: Open, kind: str) -> None:
    clock = FakeClock()
    backend = open_(clock, result_expires=60)
    store(backend, "old")
    backend.save_group("g", [["a", None], None])
    pass_time(backend, clock, 59)
    store(backend, "young")
    assert backend.get("old") is not None
    assert backend.sweep(clock.now()) == 0
    pass_time(backend, clock, 2)
    assert backend.get("old") is None
    assert backend.sweep(clock.now()) == (0 if kind in EXPIRE_THEMSELVES else 2)
    assert backend.get("young") is not None
    assert backend.get_group("g") is None


def keep_longer(backend: Backend, seconds: float) -> None:
    """Store results and groups: some kept longer, like those that a join needs, and some not."""
    for task_id, longer in (("kept", seconds), ("other", 0.0)):
        row = backend.row(task_id, backend.meta(task_id, states.SUCCESS, 7), longer)
        assert row is not None
        backend.store_rows([row])
        backend.save_group(f"{task_id} group", [["a", None], None], longer)


def test_results_for_a_join_are_kept_longer(open_: Open, kind: str) -> None:
    clock = FakeClock()
    backend = open_(clock, result_expires=60)
    keep_longer(backend, 600.0)
    pass_time(backend, clock, 61)
    assert backend.sweep(clock.now()) == (0 if kind in EXPIRE_THEMSELVES else 2)
    assert (backend.get("other"), backend.get_group("other group")) == (None, None)
    pass_time(backend, clock, 598)
    assert backend.sweep(clock.now()) == 0
    assert (backend.get("kept") or {})["result"] == 7
    assert backend.get_group("kept group") is not None
    pass_time(backend, clock, 2)
    assert backend.get("kept") is None
    assert backend.sweep(clock.now()) == (0 if kind in EXPIRE_THEMSELVES else 2)
    assert backend.get_group("kept group") is None


# -- locks, counters, groups --


def test_outline_of_a_workflow_is_stored(open_: Open) -> None:
    backend = open_()
    last, group = new_id(), new_id()
    line: list[Any] = [[group, None, [[["m", "add"]], [["n", "add", "IGNORED"]]]], [last, "total"]]
    assert outline.read(backend, last) is None
    outline.keep(backend, line, "caller")
    assert outline.read(backend, last) == outline.read(backend, group) == (line, "caller")
    assert outline.read(backend, "m") is None
    outline.forget(backend, last)
    assert outline.read(backend, group) is None


@pytest.mark.parametrize("never", [None, 0, "0s"])
def test_results_never_expire_if_configured(open_: Open, kind: str, never: Any) -> None:
    clock = FakeClock(SYSTEM_CLOCK.now())
    backend = open_(clock, result_expires=never)
    assert store(backend, "x", states.SUCCESS, 1)
    backend.store_rows([backend.row("y", backend.meta("y", states.SUCCESS, 2))])  # type: ignore[list-item]
    backend.save_group("g", ["x", "y"])
    pass_time(backend, clock, 50 * 365 * 86400)
    assert backend.sweep(clock.now()) == 0
    assert {name: meta["result"] for name, meta in backend.get_many(["x", "y"]).items()} == {"x": 1, "y": 2}
    assert backend.get_group("g") == ["x", "y"]


def test_lock_is_held_until_released_or_expired(open_: Open) -> None:
    clock = FakeClock()
    backend, key = open_(clock), new_id()
    assert backend.add(key, 10)
    assert not backend.add(key, 10)
    pass_time(backend, clock, 11)
    assert backend.add(key)
    pass_time(backend, clock, 10_000)
    assert not backend.add(key, 10)
    backend.delete(key)
    assert backend.add(key, 10)
    backend.delete(key)
    backend.delete(key)


def test_one_of_many_threads_gets_the_lock(open_: Open) -> None:
    backends, key, got = [open_() for _ in range(6)], new_id(), []
    in_threads(6, lambda number: got.append(backends[number].add(key, 60)))
    assert sorted(got) == [False] * 5 + [True]


def test_counter_counts_all_threads(open_: Open) -> None:
    backends, key, seen = [open_() for _ in range(4)], new_id(), []
    in_threads(4, lambda number: seen.extend(backends[number].incr(key, 60) for _ in range(5)))
    assert sorted(seen) == list(range(1, 21))


def test_expired_counter_restarts(open_: Open) -> None:
    clock = FakeClock()
    backend, key = open_(clock), new_id()
    assert [backend.incr(key, 10), backend.incr(key, 10)] == [1, 2]
    pass_time(backend, clock, 11)
    assert backend.incr(key, 10) == 1


def test_groups_are_stored_replaced_and_deleted(open_: Open) -> None:
    backend = open_()
    described = [["g", None], [[["a", None], None], [["b", None], None]]]
    assert backend.get_group("g") is None
    backend.save_group("g", [["g", None], []])
    backend.save_group("g", described)
    assert open_().get_group("g") == described
    backend.delete_group("g")
    backend.delete_group("g")
    assert backend.get_group("g") is None


def test_group_result_is_saved_and_restored(open_: Open) -> None:
    backend = open_()
    app = QWorker("proj", broker=KeepingStore(), backend=backend, set_as_current=False)
    inner = app.GroupResult("inner", [app.AsyncResult("b"), app.AsyncResult("c")])
    saved = app.GroupResult("outer", [app.AsyncResult("a"), inner], app.AsyncResult("before"))
    saved.save()
    restored = app.GroupResult.restore("outer")
    assert (restored, restored.parent.id, restored[1].id) == (saved, "before", "inner")
    restored.delete()
    assert app.GroupResult.restore("outer") is None


def test_group_get_waits_for_all_results(open_: Open) -> None:
    asking, storing = open_(), open_()
    app = QWorker("proj", broker=KeepingStore(), backend=asking, set_as_current=False)
    ids = [new_id() for _ in range(300)]
    asked: list[int] = []
    read_many = asking.read_many
    asking.read_many = lambda ids: asked.append(len(ids)) or read_many(ids)  # type: ignore[func-returns-value,method-assign]

    def store_all() -> None:
        until(lambda: len(asked) > 1)
        for start in range(0, len(ids), 50):
            rows = [
                storing.row(each, storing.meta(each, states.SUCCESS, each))
                for each in ids[start : start + 50]
            ]
            storing.store_rows([row for row in rows if row is not None])

    thread = threading.Thread(target=store_all)
    thread.start()
    group = app.GroupResult("g", [app.AsyncResult(each) for each in ids])
    assert group.get(timeout=60) == ids
    thread.join()
    assert group.completed_count() == len(ids)
    group.forget()
    assert asking.get_many(ids) == {}


def round_trips(backend: Backend, kind: str) -> list[str]:
    """Return a list that collects the requests of *backend* to its server or file; otherwise its reads."""
    asked: list[str] = []
    if isinstance(backend, SQLBackend):
        engine = backend._database.engine
        sa.event.listen(engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2]))
        return asked

    def counting(name: str, method: Any) -> Any:
        def count(*args: Any, **more: Any) -> Any:
            asked.append(name)
            return method(*args, **more)

        return count

    ways = {"sqlite": ("_read", "_write"), **dict.fromkeys(ON_REDIS, ("_ask",)), "memcached": ("_do",)}
    for name in ways.get(kind, ("read_many", "forget_many")):
        setattr(backend, name, counting(name, getattr(backend, name)))
    return asked


SMALLER = {"filesystem": 200, "mongodb": 200}
"""The size of a large group where each result is a file, and where the server of the tests is slow."""
CHECKS = {
    "ready": lambda group: group.ready() is False,
    "waiting": lambda group: group.waiting() is True,
    "failed": lambda group: group.failed() is True,
    "successful": lambda group: group.successful() is False,
    "completed_count": lambda group: group.completed_count() == len(group) - 2,
    "maybe_throw": lambda group: group.maybe_throw(propagate=False) is None,
}


def test_large_group_is_queried_in_few_round_trips(open_: Open, kind: str) -> None:
    backend = open_()
    app = QWorker("proj", broker=KeepingStore(), backend=backend, set_as_current=False)
    ids = [new_id() for _ in range(SMALLER.get(kind, 1000))]
    states_of = {ids[0]: states.FAILURE, ids[1]: states.STARTED}
    value = exception_to_dict(KeyError())
    rows = [backend.row(each, backend.meta(each, states_of.get(each, states.SUCCESS), value)) for each in ids]
    for start in range(0, len(rows), 100):
        backend.store_rows([row for row in rows[start : start + 100] if row is not None])
    asked = round_trips(backend, kind)
    few = 2  # an SQL statement has a maximum number of ids
    for name, check in CHECKS.items():
        asked.clear()
        assert check(app.GroupResult("g", [app.AsyncResult(each) for each in ids])), name
        assert len(asked) <= few, (name, len(asked))
    group = app.GroupResult("g", [app.AsyncResult(each) for each in ids])
    assert group.completed_count() == len(ids) - 2
    asked.clear()
    assert (group.failed(), group.waiting()) == (True, True)
    assert len(asked) <= 2  # one each, for the one that is still running
    asked.clear()
    group.forget()
    assert len(asked) <= few + 1
    assert backend.read_many(ids) == {}


def test_as_completed_of_a_large_group_reads_in_batches(open_: Open, kind: str) -> None:
    asking, storing = open_(), open_()
    app = QWorker("proj", broker=KeepingStore(), backend=asking, set_as_current=False)
    ids = [new_id() for _ in range(SMALLER.get(kind, 1000))]
    reads: list[int] = []
    read_many = asking.read_many
    asking.read_many = lambda ids: reads.append(len(ids)) or read_many(ids)  # type: ignore[func-returns-value,method-assign]
    group = app.GroupResult("g", [app.AsyncResult(each) for each in ids])

    def store_all() -> None:
        until(lambda: len(reads) > 1)
        for start in range(0, len(ids), 20):
            some = ids[start : start + 20]
            found = [storing.row(each, storing.meta(each, states.SUCCESS, each)) for each in some]
            storing.store_rows([row for row in found if row is not None])

    async def main() -> set[str]:
        return {result.id async for result in group.as_completed(timeout=60)}

    thread = threading.Thread(target=store_all)
    thread.start()
    assert asyncio.run(main()) == set(ids)
    thread.join()
    assert len(reads) < len(ids) / 4, reads


def test_group_can_be_awaited(open_: Open) -> None:
    app = QWorker("proj", broker=KeepingStore(), backend=open_(), set_as_current=False)
    ids = [new_id() for _ in range(5)]
    group = app.GroupResult("g", [app.AsyncResult(each) for each in ids])

    async def main() -> list[str]:
        values = []
        store(app.backend, ids[0], result=0)
        async for result in group.as_completed(timeout=60):
            values.append(await result)
            if len(values) < len(ids):
                await asyncio.to_thread(store, app.backend, ids[len(values)], result=len(values))
        assert await group == values
        return values

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_closed_backend_reopens_on_use(open_: Open) -> None:
    backend = open_()
    store(backend, "x")
    backend.close()
    backend.close()
    assert backend.get("x") is not None


# -- disabled and unreachable stores --


def test_disabled_backend_discards_results_and_raises_on_read() -> None:
    backend = open_backend("disabled://", Settings({}, environ={}), SYSTEM_CLOCK)
    assert store(backend, "x")
    backend.forget("x")
    with pytest.raises(NotSupported, match="set result_backend"):
        backend.get("x")
    with pytest.raises(NotSupported, match="locks"):
        backend.add("x")


def test_unreachable_server_raises_backend_error_without_password() -> None:
    conf = Settings({"database_engine_options": {"connect_args": {"connect_timeout": 2}}}, environ={})
    backend = open_backend("db+postgresql+psycopg://me:hunter2@127.0.0.1:1/none", conf, SYSTEM_CLOCK)
    with pytest.raises(BackendError) as caught:
        backend.get("x")
    assert "hunter2" not in str(caught.value)
    assert "me:********@127.0.0.1:1" in str(caught.value)
