"""Results that are sent to who called, over brokers that kombu reaches: in memory, RabbitMQ, Redis."""

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
from qworker.backends.rpc.backend import RpcBackend
from qworker.backends.rpc.replies import Connector
from qworker.conf import Settings
from qworker.errors import BackendError, BrokerUnavailable, DamagedResult, NotSupported
from qworker.message.protocol import parse_properties
from qworker.results.result import AsyncResult
from qworker.testing import FakeClock, MemoryStore
from tests.acceptance.proxy import Proxy
from tests.servers import require
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


def test_the_result_comes_to_who_called_and_to_nobody_else(make: Make) -> None:
    caller, other, worker = make(), make(), make()
    queue = caller.reply_to()
    assert queue == caller.reply_to() != other.reply_to()
    send(worker, queue, "x", {"a": [1, "ü"]})
    assert caller.wait(["x"], 10)["x"]["result"] == {"a": [1, "ü"]}
    assert other.get("x") is None
    assert worker.get("x") is None
    assert caller.get_many(["x", "y"]).keys() == {"x"}


def test_a_reply_that_is_not_signed_is_passed_over(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    key = {"security_key": ["a key that is long enough for the tests"]}
    caller, worker, stranger = make(**key), make(**key), make()
    other = make(security_key=["a key of somebody else's, which is long enough"])
    queue = caller.reply_to()
    send(stranger, queue, "x", "a lie")
    send(other, queue, "x", "another lie")
    send(worker, queue, "x", "the truth")
    assert caller.wait(["x"], 10)["x"]["result"] == "the truth"
    assert caplog.text.count("a reply cannot be read") == 2


class _Unreadable(RpcBackend):
    """Sends what nobody can read: what Celery makes of such a dictionary."""

    def encode(self, meta: Any) -> bytes:
        return super().encode(meta).replace(b'"hole"', b'{"__type__":"invoice","__value__":3}')


def test_who_waits_for_a_reply_that_cannot_be_read_is_told(make: Make) -> None:
    caller, worker = make(), make()
    queue = caller.reply_to()
    worker.__class__ = _Unreadable
    send(worker, queue, "x", "hole")
    send(worker, queue, "last", 1)
    assert caller.wait(["last"], 10)["last"]["result"] == 1
    with pytest.raises(DamagedResult):
        caller.get("x")


def test_a_final_state_stands(make: Make) -> None:
    caller, worker = make(), make()
    queue = caller.reply_to()
    for task_id, status in (("x", "STARTED"), ("x", "SUCCESS"), ("x", "FAILURE"), ("last", "SUCCESS")):
        send(worker, queue, task_id, {}, status)
    caller.wait(["last"], 10)
    assert (caller.get("x") or {})["status"] == "SUCCESS"


def test_a_batch_arrives_whole(make: Make) -> None:
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


def test_where_nobody_waits_nothing_is_sent(make: Make) -> None:
    backend = make()
    assert backend.row("x", backend.meta("x", "SUCCESS", 1)) is None
    assert not backend.store("x", backend.meta("x", "SUCCESS", 1))


def test_who_awaits_gets_it(make: Make) -> None:
    caller, worker = make(), make()
    app = QWorker("rpc", broker=MemoryStore(FakeClock()), backend=caller, set_as_current=False)
    queue = caller.reply_to()
    timer = threading.Timer(0.1, lambda: send(worker, queue, "x", 5))
    timer.start()

    async def main() -> Any:
        return await asyncio.wait_for(AsyncResult[Any]("x", app=app), 10)

    assert asyncio.run(main()) == 5
    timer.join()


def test_a_server_that_falls_silent_is_given_up() -> None:
    """It has accepted the connection, and answers nothing that it is asked on it."""
    with Proxy(5672) as proxy:
        conf = Settings({"broker_url": proxy.url(require("rabbitmq"))}, environ={})
        connector = Connector(conf)
        connection = connector.connect()
        proxy.down.lost = True
        began = time.monotonic()
        with pytest.raises(connector.broken):
            connection.default_channel.queue_declare("silent", auto_delete=True)
        assert 5 < time.monotonic() - began < 30


def test_errors_name_the_broker_without_its_password() -> None:
    connector = Connector(Settings({"broker_url": "amqp://me:secret@rabbit.example//"}, environ={}))
    why = connector.why(ConnectionRefusedError(111, "Connection refused"))
    assert "(amqp://me:********@rabbit.example//)" in why


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_queue_of_its_own(make: Make, url: str) -> None:
    if url == "memory://":
        return  # which is nobody else's
    caller = make()
    queue = caller.reply_to()
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(60, exit=True)  # where it hangs, if it does
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


def test_connecting_imports_nothing_that_a_fork_could_leave_half_done(make: Make, url: str) -> None:
    """A child that is forked during an import of another thread's waits for the end of it for ever."""
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


def test_the_timeout_of_all_new_sockets_of_the_process_is_left_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that set it for a while, and put back what they found, can leave it set for ever."""
    set_to: list[float | None] = []
    before = set(threading.enumerate())
    caller = make()
    send(caller, caller.reply_to(), "x", 1)
    assert caller.wait(["x"], 10)
    (reader,) = set(threading.enumerate()) - before
    for other in before - {threading.current_thread()}:
        if other.name == reader.name:
            other.join(10)  # of the test before
    monkeypatch.setattr("socket.setdefaulttimeout", set_to.append)
    caller.close()
    reader.join(10)
    assert not reader.is_alive()
    assert set_to == []


def test_the_message_is_that_of_celery(make: Make, url: str) -> None:
    if not url.startswith("amqp"):
        return  # looked at where messages can be taken out of a queue by anybody
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


def test_there_are_no_locks_and_no_groups(make: Make) -> None:
    backend = make()
    for ask in (backend.add, backend.incr, backend.delete, backend.get_group, backend.delete_group):
        with pytest.raises(NotSupported):
            ask("x")


def test_a_broker_that_is_away_is_said_so_to_both_sides() -> None:
    app = QWorker("rpc", broker_url="amqp://me:hunter2@127.0.0.1:1//", backend="rpc://", set_as_current=False)
    backend = app.backend
    with pytest.raises(BackendError):
        backend.store("x", backend.meta("x", "SUCCESS", properties={"reply_to": "q"}))
    with pytest.raises(BrokerUnavailable) as caught:
        backend.reply_to()
    assert "hunter2" not in str(caught.value)


def test_calls_name_the_queue_and_calls_inside_of_tasks_do_not(make: Make) -> None:
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
    answers = [(parse_properties(sent.envelope.properties) or {}).get("reply_to") for sent in store.sent]
    assert answers == [backend.reply_to()] * 4 + [None]
