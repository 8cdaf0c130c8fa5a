"""The RPC result backend, over kombu's transports for memory, RabbitMQ and Redis."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import Connection

from qworker import QWorker
from qworker.backends.codec import ResultCodec
from qworker.backends.rpc.backend import Connector, RpcBackend
from qworker.conf import Settings
from qworker.errors import BackendError, BrokerUnavailable, DamagedResult, NotSupported
from qworker.message.context import Context
from qworker.message.protocol import Body, parse_properties
from qworker.results.result import AsyncResult
from qworker.tasks.execution import execute
from qworker.testing import FakeClock, MemoryStore
from tests.acceptance.proxy import Proxy
from tests.servers import port_of, require
from tests.support.stores import KeepingStore

pytestmark = [
    pytest.mark.contract,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

Make = Callable[..., RpcBackend]


@pytest.fixture(params=["memory", "rabbitmq", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else require(request.param)


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    made: list[RpcBackend] = []
    prefix = f"{uuid.uuid4().hex}:"

    def make(**settings: Any) -> RpcBackend:
        app = QWorker(
            "rpc",
            broker_url=url,
            backend="rpc://",
            broker_transport_options={"global_keyprefix": prefix} if url.startswith("redis") else {},
            set_as_current=False,
            **settings,
        )
        backend = app.backend
        assert isinstance(backend, RpcBackend)
        made.append(backend)
        return backend

    yield make
    for backend in made:
        backend.close()


def send(
    backend: RpcBackend, queue: str | None, task_id: str, result: Any = None, status: str = "SUCCESS"
) -> None:
    properties = {"reply_to": queue, "correlation_id": task_id}
    backend.store(task_id, backend.meta(task_id, status, result, properties=properties))


def test_result_is_sent_only_to_the_caller(make: Make) -> None:
    caller, other, worker = make(), make(), make()
    queue = caller.reply_to()
    assert queue == caller.reply_to() != other.reply_to()
    send(worker, queue, "x", {"a": [1, "ü"]})
    assert caller.wait(["x"], 10)["x"]["result"] == {"a": [1, "ü"]}
    assert other.get("x") is None
    assert worker.get("x") is None
    assert caller.get_many(["x", "y"]).keys() == {"x"}


def test_failure_in_place_of_a_refused_result_reaches_the_caller(make: Make) -> None:
    caller, worker = make(), make()
    properties = {"reply_to": caller.reply_to(), "correlation_id": "x"}
    refused = worker.row("x", worker.meta("x", "SUCCESS", "too long", properties=properties))
    assert refused is not None
    row = worker.row_why_not(refused, "FAILURE", BackendError("it is too long"))
    assert row is not None
    worker.store_rows([row])
    assert caller.wait(["x"], 10)["x"]["result"]["exc_message"] == ["it is too long"]


def test_unsigned_replies_are_ignored(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    key = {"security_key": ["a key that is long enough for the tests"]}
    caller, worker, unsigned = make(**key), make(**key), make()
    other = make(security_key=["a key of somebody else's, which is long enough"])
    queue = caller.reply_to()
    send(unsigned, queue, "x", "a lie")
    send(other, queue, "x", "another lie")
    send(worker, queue, "x", "the truth")
    assert caller.wait(["x"], 10)["x"]["result"] == "the truth"
    assert caplog.text.count("a reply cannot be read") == 2


class _UndecodableCodec(ResultCodec):
    """Writes a result with a type that nobody can decode."""

    def encode(self, meta: Any) -> bytes:
        return super().encode(meta).replace(b'"hole"', b'{"__type__":"invoice","__value__":3}')


def test_undecodable_reply_raises_damaged_result(make: Make) -> None:
    caller, worker = make(), make()
    queue = caller.reply_to()
    worker.codec.__class__ = _UndecodableCodec
    send(worker, queue, "x", "hole")
    send(worker, queue, "last", 1)
    assert caller.wait(["last"], 10)["last"]["result"] == 1
    with pytest.raises(DamagedResult):
        caller.get("x")


def test_final_state_is_not_overwritten(make: Make) -> None:
    caller, worker = make(), make()
    queue = caller.reply_to()
    for task_id, status in (("x", "STARTED"), ("x", "SUCCESS"), ("x", "FAILURE"), ("last", "SUCCESS")):
        send(worker, queue, task_id, {}, status)
    caller.wait(["last"], 10)
    assert (caller.get("x") or {})["status"] == "SUCCESS"


def test_batch_of_results_arrives_completely(make: Make) -> None:
    caller, worker = make(), make()
    properties = {"reply_to": caller.reply_to()}
    ids = [str(number) for number in range(100)]
    metas = [worker.meta(task_id, "SUCCESS", task_id, properties=properties) for task_id in ids]
    rows = [worker.row(meta["task_id"], meta) for meta in metas]
    worker.store_rows([row for row in rows if row is not None])
    deadline = time.monotonic() + 10
    while len(caller.get_many(ids)) < 100 and time.monotonic() < deadline:
        caller.wait([key for key in ids if caller.get(key) is None], 0.1)
    assert [(caller.get(key) or {})["result"] for key in ids] == ids


def test_result_without_reply_queue_is_not_sent(make: Make) -> None:
    backend = make()
    assert backend.row("x", backend.meta("x", "SUCCESS", 1)) is None
    assert not backend.store("x", backend.meta("x", "SUCCESS", 1))


def test_awaiting_caller_gets_the_result(make: Make) -> None:
    caller, worker = make(), make()
    app = QWorker("rpc", broker=MemoryStore(FakeClock()), backend=caller, set_as_current=False)
    queue = caller.reply_to()
    timer = threading.Timer(0.1, lambda: send(worker, queue, "x", 5))
    timer.start()

    async def main() -> Any:
        return await asyncio.wait_for(AsyncResult[Any]("x", app=app), 10)

    assert asyncio.run(main()) == 5
    timer.join()


def test_unresponsive_server_times_out() -> None:
    """It has accepted the connection, but answers no requests."""
    with Proxy(port_of("rabbitmq")) as proxy:
        conf = Settings({"broker_url": proxy.url(require("rabbitmq"))}, environ={})
        connector = Connector(conf)
        connection = connector.connect()
        proxy.down.lost = True
        began = time.monotonic()
        with pytest.raises(connector.broken):
            connection.default_channel.queue_declare("silent", auto_delete=True)
        assert 5 < time.monotonic() - began < 30


def test_errors_mask_the_password_of_the_broker() -> None:
    connector = Connector(Settings({"broker_url": "amqp://me:secret@rabbit.example//"}, environ={}))
    why = connector.why(ConnectionRefusedError(111, "Connection refused"))
    assert "(amqp://me:********@rabbit.example//)" in why


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_has_its_own_reply_queue(make: Make, url: str) -> None:
    if url == "memory://":
        return  # it has no other processes
    caller = make()
    queue = caller.reply_to()
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(60, exit=True)  # shows where it hangs, if it does
        try:
            own = caller.reply_to()
            send(caller, own, "in-child", 1)
            send(caller, queue, "x", 2)
            os._exit(0 if own != queue and caller.wait(["in-child"], 10) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert caller.wait(["x"], 10)["x"]["result"] == 2
    assert caller.get("in-child") is None


def test_connecting_does_not_import_librabbitmq(make: Make, url: str) -> None:
    """A child forked during an import in another thread waits for its end for ever."""
    sought: list[str] = []

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            sought.append(name)

    caller = make()
    send(caller, caller.reply_to(), "first", 1)
    caller.close()
    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
    try:
        send(caller, caller.reply_to(), "second", 2)
        assert caller.wait(["second"], 10)
    finally:
        sys.meta_path.remove(Finder)  # type: ignore[arg-type]
    assert "librabbitmq" not in sought


def test_default_socket_timeout_is_not_changed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that set it temporarily, and restore the old value, can leave it set for ever."""
    set_to: list[float | None] = []
    before = set(threading.enumerate())
    caller = make()
    send(caller, caller.reply_to(), "x", 1)
    assert caller.wait(["x"], 10)
    (reader,) = set(threading.enumerate()) - before
    for other in before - {threading.current_thread()}:
        if other.name == reader.name:
            other.join(10)  # from the previous test
    monkeypatch.setattr("socket.setdefaulttimeout", set_to.append)
    caller.close()
    reader.join(10)
    assert not reader.is_alive()
    assert set_to == []


def test_reply_has_celerys_format(make: Make, url: str) -> None:
    if not url.startswith("amqp"):
        return  # the format is the same on all; on RabbitMQ, the queue is easy to read
    backend = make()
    with Connection(url) as connection:
        queue = connection.SimpleBuffer(uuid.uuid4().hex)
        send(backend, queue.queue.name, "x", 5)
        message = queue.get(timeout=10)
        message.ack()
        queue.queue.delete()
    assert message.properties["correlation_id"] == "x"
    assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
    meta = json.loads(message.body)
    assert {key: meta[key] for key in ("task_id", "status", "result", "traceback", "children")} == {
        "task_id": "x", "status": "SUCCESS", "result": 5, "traceback": None, "children": [],
    }  # fmt: skip


def test_locks_and_groups_are_not_supported(make: Make) -> None:
    backend = make()
    for ask in (backend.add, backend.incr, backend.delete, backend.get_group, backend.delete_group):
        with pytest.raises(NotSupported):
            ask("x")


def test_unavailable_broker_raises_for_worker_and_caller() -> None:
    app = QWorker("rpc", broker_url="amqp://me:hunter2@127.0.0.1:1//", backend="rpc://", set_as_current=False)
    backend = app.backend
    with pytest.raises(BackendError):
        backend.store("x", backend.meta("x", "SUCCESS", properties={"reply_to": "q"}))
    with pytest.raises(BrokerUnavailable) as caught:
        backend.reply_to()
    assert "hunter2" not in str(caught.value)


def test_reply_queue_is_set_for_calls_outside_of_a_worker_only(make: Make) -> None:
    backend = make()
    store = KeepingStore()
    app = QWorker("rpc", broker=store, backend=backend, result_backend="rpc://", set_as_current=False)

    @app.task(name="inner")
    def inner() -> None: ...

    @app.task(name="outer")
    def outer() -> None:
        inner.delay()

    inner.delay()
    inner.apply_async()
    inner.apply_many([(), ()])
    outer.apply()
    body = Body((), {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})
    execute(app, outer, Context.from_message({"task": "outer", "id": "x"}, body, task=outer), body)
    answers = [(parse_properties(sent.envelope.properties) or {}).get("reply_to") for sent in store.sent]
    assert answers == [backend.reply_to()] * 5 + [None]
