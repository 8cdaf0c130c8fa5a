"""Interrupt operations anywhere: afterwards, the same process can still publish and read.

CPython runs signal handlers where a function begins, and after a call of a C function. A profile function is
called at exactly these points, so an exception that it raises is like that of a signal handler at the worst
moment. Every operation is interrupted at many of them, on every store. After each interrupt, the same app
must publish and read, in another thread (so no lock may be held) and in this one (so no state may be
inconsistent). In the end, the queue holds all published messages, and possibly the interrupted ones.

TEST_QWORKER_INTERRUPTS is the number of points at which each operation is interrupted; 0: at all of them.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from qworker import QWorker
from qworker.backends.sql.backend import SQLBackend
from qworker.errors import ResultTimeout
from qworker.transports.lease import DeadLetter
from tests.acceptance.sqs_server import Sqs
from tests.contract.place_mongodb import MongoPlace
from tests.contract.place_nats import NatsPlace
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.contract.place_sqs import SQS_OPTIONS
from tests.servers import new_prefix, require
from tests.support.disque_server import DisqueServer
from tests.support.ironmq_server import IronMQ
from tests.support.waiting import until

pytestmark = [
    pytest.mark.contract,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning"
    ),  # interrupted operations leave resources to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
POINTS = int(os.environ.get("TEST_QWORKER_INTERRUPTS", "12"))
PATIENCE = 20.0


class Interrupt(Exception):
    """Raised by the signal handler. Many timeout decorators raise an Exception, not a BaseException."""


class Env:
    """An app on some stores, and its operations. sure, unsure: number of messages that are in the queue, or
    may be."""

    def __init__(self, broker: str, backend: str | None, **settings: Any) -> None:
        self.queue = f"interrupted-{uuid.uuid4().hex[:12]}"
        self.app = QWorker(
            "interrupted",
            broker_url=broker,
            backend=backend,
            task_default_queue=self.queue,
            task_publish_timeout=5,
            task_publish_retry=False,
            set_as_current=False,
            **settings,
        )
        self.task = self.app.task(lambda *args: args, name="task")
        self.other = ThreadPoolExecutor(1)
        self.sure = self.unsure = 0
        self.known = self.store()
        self.operations: dict[str, Callable[[], object]] = {
            "delay": lambda: self.task.delay(1),
            "apply_many": lambda: self.task.apply_many([(1,), (2,), (3,)]),
            "state": lambda: self.app.AsyncResult(self.known).state,
            "get": lambda: self.app.AsyncResult(self.known).get(timeout=5),
            "wait": self.wait_until_timeout,
            "update_state": lambda: self.store("PROGRESS"),
            "revoke": lambda: self.app.control.revoke("nobody"),
            "depths": lambda: self.app.broker.admin.depths([self.queue]),
            "purge": lambda: self.app.broker.admin.purge("nothing"),
            "dead": self.app.broker.admin.dead,
            "dead_retry": lambda: self.app.broker.admin.dead_retry([2**50]),
            "dead_discard": lambda: self.app.broker.admin.dead_discard([2**50]),
        }

    def store(self, state: str = "SUCCESS") -> str:
        backend, id = self.app.backend, str(uuid.uuid4())
        properties = {"reply_to": backend.reply_to(), "correlation_id": id}
        backend.store(id, backend.meta(id, state, 5, properties=properties))
        return id

    def wait_until_timeout(self) -> None:
        try:
            self.app.AsyncResult("nobody").get(timeout=0.005)
        except ResultTimeout:
            pass

    def publish_and_read(self) -> None:
        """Publish and read."""
        self.task.delay(2)
        self.sure += 1
        assert self.app.AsyncResult(self.store()).get(timeout=PATIENCE / 2) == 5

    def check_all_threads(self, what: str) -> None:
        began = time.monotonic()
        for thread, step in (
            ("another thread", lambda: self.other.submit(self.publish_and_read).result(PATIENCE)),
            ("this one", self.publish_and_read),
        ):
            try:
                step()
            except Exception as error:
                raise AssertionError(f"after {what}, {thread} cannot continue: {error!r}") from error
        assert time.monotonic() - began < PATIENCE

    def check_queue(self) -> None:
        (info,) = [found for found in self.app.broker.admin.depths([self.queue]) if found.queue == self.queue]
        assert self.sure <= info.ready <= self.sure + self.unsure

    def check_pool(self) -> None:
        """Check that all connections of the result store are returned to its pool."""
        if isinstance(backend := self.app.backend, SQLBackend):
            pool = backend._database.engine.pool
            until(lambda: not pool.checkedout(), PATIENCE, pool.status)


@contextmanager
def closed(env: Env) -> Iterator[Env]:
    try:
        yield env
    finally:
        env.other.shutdown(wait=False)
        env.app.broker.admin.purge(env.queue)
        env.app.broker.admin.dead_discard([letter.tag for letter in env.app.broker.admin.dead(env.queue)])
        env.app.broker.close()
        env.app.backend.close()


STORES = (
    "sqlite",
    "redis",
    "rabbitmq",
    "postgresql",
    "mysql",
    pytest.param("mongodb", marks=pytest.mark.more_brokers),
    "ironmq",
    "nats",
    "memory",
    "memcached",
    "filesystem",
    "kombu-files",
)
""""memory" and "kombu-files" publish through kombu."""


@pytest.fixture(params=STORES)
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    kind = request.param
    file = f"sqlite:///{tmp_path}/q.db"
    prefix = {"global_keyprefix": new_prefix()}
    if kind in ("postgresql", "mysql"):
        place = (PostgreSQLPlace if kind == "postgresql" else MySQLPlace)(tmp_path)
        with closed(Env(place.url, f"db+{place.url}")) as env:
            yield env
        place.clear()
        return
    if kind == "mongodb":
        mongo = MongoPlace(tmp_path)
        with closed(Env(mongo.url, mongo.url)) as env:
            yield env
        mongo.clear()
        return
    if kind == "nats":
        nats = NatsPlace(tmp_path)
        options = {"stream": nats.layout.stream}
        with closed(Env(nats.url, "cache+memory://", broker_transport_options=options)) as env:
            yield env
        nats.clear()
        return
    settings: dict[str, Any] = {}
    if kind == "ironmq":
        server: IronMQ = request.getfixturevalue("ironmq")
        made = (server.url(f"p{uuid.uuid4().hex}"), "cache+memory://")
    elif kind == "redis":
        url = require("redis")
        settings = {"broker_transport_options": prefix, "result_backend_transport_options": prefix}
        made = (url, url)
    elif kind == "rabbitmq":
        made = (require("rabbitmq"), "rpc://")
    elif kind == "kombu-files":
        for name in ("messages", "control"):
            (tmp_path / name).mkdir()
        folders = {f"data_folder_{way}": f"{tmp_path}/messages" for way in ("in", "out")}
        settings = {"broker_transport_options": {**folders, "control_folder": f"{tmp_path}/control"}}
        made = ("filesystem://", "cache+memory://")
    elif kind == "memory":
        made = (f"memory://{uuid.uuid4().hex}", "cache+memory://")
    elif kind == "memcached":
        settings = {"result_backend_transport_options": prefix}
        made = (file, f"cache+{require('memcached')}")
    elif kind == "filesystem":
        made = (file, f"file://{tmp_path}/results")
    else:
        made = (file, None)
    with closed(Env(*made, **settings)) as env:
        yield env


class Cut:
    """Run *work*, and raise Interrupt at the *at*-th point where Python runs signal handlers."""

    def __init__(self, work: Callable[[], object], at: int) -> None:
        self.left = at
        self.where = ""
        self.lost = False
        """Whether it hit where Python cannot raise: in a finalizer, or in a generator that is closed."""
        hook, sys.unraisablehook = sys.unraisablehook, self.unraisable
        # Keep a reference: before CPython calls it, the garbage collector may run and a finalizer be
        # interrupted, which unsets the profile function. CPython would then call a freed object:
        # "'traceback' object is not callable".
        profile = self.profile
        try:
            sys.setprofile(profile)
            try:
                work()
            finally:
                sys.setprofile(None)
        except Interrupt:
            pass
        else:
            assert self.left >= 0 or self.lost, f"swallowed at {self.where}"
        finally:
            sys.unraisablehook = hook

    @property
    def happened(self) -> bool:
        return self.left < 0

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
            self.left -= 1
            if self.left < 0:
                sys.setprofile(None)
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} {event} {arg}"
                self.lost = _in_a_finalizer(frame)
                self.handle(signal.SIGALRM, frame)

    def handle(self, signum: int, frame: FrameType) -> None:
        raise Interrupt

    def unraisable(self, report: Any) -> None:
        self.lost = True


def _in_a_finalizer(frame: FrameType | None) -> bool:
    """Return whether a finalizer runs. A library's __del__ may catch the exception. That of a socket is
    written in C, and ignores exceptions in the text of its warning."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or (code.co_name == "__repr__" and code.co_filename == socket.__file__):
            return True
        frame = frame.f_back
    return False


def cut_points(work: Callable[[], object]) -> list[int]:
    """Return the points at which to interrupt *work*."""
    count = 1_000_000
    whole = Cut(work, count)
    found = range(count - whole.left)
    return list(found) if not POINTS or len(found) <= POINTS else sorted(_chosen(found, POINTS))


def _chosen(found: Sequence[int], count: int) -> list[int]:
    """Return the same sample each time: a suite that fails at random teaches people to run it again."""
    return random.Random(len(found)).sample(found, min(count, len(found)))


@pytest.mark.parametrize("name", ["delay", "apply_many", "state", "get", "wait", "update_state", "revoke"])
def test_operations_can_be_interrupted_at_any_point(env: Env, name: str) -> None:
    if name == "revoke" and "fanout" in env.app.broker.lacks:
        pytest.skip("this broker has no revocations")
    size = {"delay": 1, "apply_many": 3}.get(name, 0)
    work = env.operations[name]
    work()  # connects
    env.sure += 2 * size
    for point in cut_points(work):
        cut = Cut(work, point)
        if cut.happened:
            env.unsure += size
        else:
            env.sure += size
        env.check_all_threads(f"{name} was interrupted at {cut.where} ({point})")
    env.check_queue()
    env.check_pool()


@pytest.mark.parametrize("name", ["depths", "purge", "dead", "dead_retry", "dead_discard"])
def test_administration_can_be_interrupted_at_any_point(env: Env, name: str) -> None:
    """The dead letter that it processes is not lost, either."""
    broker = env.app.broker
    work = env.operations[name]
    generation = broker.consumer.register("interrupted@test", [env.queue], 1)
    env.task.delay(0)
    while not (found := broker.consumer.lease([env.queue], 1).messages):
        broker.consumer.wait(0.05)
    broker.consumer.settle(generation, [DeadLetter(found[0].tag, "why")])
    broker.consumer.deregister()
    work()
    for point in cut_points(work)[:: 2 if POINTS else 1]:
        cut = Cut(work, point)
        env.check_all_threads(f"{name} was interrupted at {cut.where} ({point})")
    env.check_queue()
    assert [letter.reason for letter in broker.admin.dead(env.queue)] == ["why"]


def test_sqs_calls_can_be_interrupted(sqs: Sqs) -> None:
    _interrupt_calls(sqs.url, SQS_OPTIONS)


def test_disque_calls_can_be_interrupted(disque: DisqueServer) -> None:
    disque.reset()
    _interrupt_calls(disque.url, {"wait_time_seconds": 1})


def _interrupt_calls(url: str, options: dict[str, Any]) -> None:
    with closed(Env(url, "cache+memory://", broker_transport_options=options)) as env:
        for name, size in (("delay", 1), ("apply_many", 3), ("depths", 0)):
            work = env.operations[name]
            work()
            env.sure += 2 * size
            for point in _chosen(cut_points(work), 4):
                cut = Cut(work, point)
                if cut.happened:
                    env.unsure += size
                else:
                    env.sure += size
                env.check_all_threads(f"{name} was interrupted at {cut.where} ({point})")
        env.check_queue()


def test_connecting_can_be_interrupted(env: Env) -> None:
    env.task.delay(1)
    env.sure += 1

    for point in _chosen(range(400), POINTS or 400):
        env.app.broker.close()
        cut = Cut(env.operations["delay"], point)
        env.unsure += 1
        env.check_all_threads(f"connecting was interrupted at {cut.where} ({point})")
    env.check_queue()


def test_operations_interrupted_by_real_signals(env: Env) -> None:
    def alarm(signum: int, frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        for _ in range(2 * POINTS or 500):
            env.unsure += 4
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.004))
                for name in ("delay", "state", "get", "update_state", "apply_many"):
                    env.operations[name]()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            env.check_all_threads("an alarm")
    finally:
        signal.signal(signal.SIGALRM, before)
    env.check_queue()


def test_interrupts_do_not_affect_publishing_in_another_thread(env: Env) -> None:
    """Another thread publishes while this one is interrupted repeatedly."""
    stop = threading.Event()
    sent: list[str] = []

    def publish() -> None:
        while not stop.is_set():
            sent.append(env.task.delay(3).id)

    publishing = env.other.submit(publish)
    work = env.operations["delay"]
    work()
    env.sure += 1
    for point in range(0, 200, 200 // (POINTS or 200) or 1):
        Cut(work, point)
        env.unsure += 1
    stop.set()
    publishing.result(PATIENCE)
    env.sure += len(sent)
    env.check_queue()
