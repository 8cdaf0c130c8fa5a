"""Interrupt anywhere: whatever a signal's handler cuts short, the same process publishes and reads on.

CPython looks for signals where a function begins and after a call of something written in C. A profile
function is called at exactly these places, so an exception that it raises is as a signal's at the worst
moment. Every operation is cut short at many of them, on every store; after each cut the same app has to
publish and to read, on another thread (for which no lock may be left) and on this one (which may go on with
nothing that is half done). In the end the queue holds what was published, and at most what was cut short
besides.

TEST_QWORKER_INTERRUPTS says at how many places each operation is cut short; 0: at all of them.
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
    ),  # what is cut short is left to the collector of garbage
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PLACES = int(os.environ.get("TEST_QWORKER_INTERRUPTS", "12"))
PATIENCE = 20.0


class Stray(Exception):
    """What an alarm raises; many a timeout decorator has an Exception for it, not a BaseException."""


class Shop:
    """An app on some stores, with what is done in it. sure, unsure: messages that are in the queue, or may
    be."""

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
            "wait": self.wait_in_vain,
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

    def wait_in_vain(self) -> None:
        try:
            self.app.AsyncResult("nobody").get(timeout=0.005)
        except ResultTimeout:
            pass

    def go_on(self) -> None:
        """Publish and read, as if nothing had been."""
        self.task.delay(2)
        self.sure += 1
        assert self.app.AsyncResult(self.store()).get(timeout=PATIENCE / 2) == 5

    def go_on_everywhere(self, what: str) -> None:
        began = time.monotonic()
        for thread, step in (
            ("another thread", lambda: self.other.submit(self.go_on).result(PATIENCE)),
            ("this one", self.go_on),
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
        """No connection of the result store's is lent to nobody."""
        if isinstance(backend := self.app.backend, SQLBackend):
            pool = backend._database.engine.pool
            until(lambda: not pool.checkedout(), PATIENCE, pool.status)


@contextmanager
def closed(shop: Shop) -> Iterator[Shop]:
    try:
        yield shop
    finally:
        shop.other.shutdown(wait=False)
        shop.app.broker.admin.purge(shop.queue)
        shop.app.broker.admin.dead_discard([letter.tag for letter in shop.app.broker.admin.dead(shop.queue)])
        shop.app.broker.close()
        shop.app.backend.close()


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
"""Of them "memory" and "kombu-files" publish by way of kombu."""


@pytest.fixture(params=STORES)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    kind = request.param
    file = f"sqlite:///{tmp_path}/q.db"
    prefix = {"global_keyprefix": new_prefix()}
    if kind in ("postgresql", "mysql"):
        place = (PostgreSQLPlace if kind == "postgresql" else MySQLPlace)(tmp_path)
        with closed(Shop(place.url, f"db+{place.url}")) as shop:
            yield shop
        place.clear()
        return
    if kind == "mongodb":
        mongo = MongoPlace(tmp_path)
        with closed(Shop(mongo.url, mongo.url)) as shop:
            yield shop
        mongo.clear()
        return
    if kind == "nats":
        nats = NatsPlace(tmp_path)
        options = {"stream": nats.layout.stream}
        with closed(Shop(nats.url, "cache+memory://", broker_transport_options=options)) as shop:
            yield shop
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
    with closed(Shop(*made, **settings)) as shop:
        yield shop


class Cut:
    """Runs *work*, and raises Stray at the place number *at* where Python looks for signals."""

    def __init__(self, work: Callable[[], object], at: int) -> None:
        self.left = at
        self.where = ""
        self.lost = False
        """It hit where Python itself can raise nothing: a finalizer, or a generator that is closed."""
        hook, sys.unraisablehook = sys.unraisablehook, self.unraisable
        # Held here: between CPython's look at it and its call garbage may be collected, and a finalizer be
        # cut short, which takes it off. What is called then is whatever lies in its place by now:
        # "'traceback' object is not callable".
        profile = self.profile
        try:
            sys.setprofile(profile)
            try:
                work()
            finally:
                sys.setprofile(None)
        except Stray:
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
        raise Stray

    def unraisable(self, report: Any) -> None:
        self.lost = True


def _in_a_finalizer(frame: FrameType | None) -> bool:
    """Whether the collector of garbage is at work. A library's __del__ may catch what is raised in it; that
    of a socket is written in C, and loses what the text of its warning raises."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or (code.co_name == "__repr__" and code.co_filename == socket.__file__):
            return True
        frame = frame.f_back
    return False


def places(work: Callable[[], object]) -> list[int]:
    """Where to cut *work* short: some of all places, others each time."""
    count = 1_000_000
    whole = Cut(work, count)
    found = range(count - whole.left)
    return list(found) if not PLACES or len(found) <= PLACES else sorted(_chosen(found, PLACES))


def _chosen(found: Sequence[int], count: int) -> list[int]:
    """The same ones each time: a suite that fails by the luck of the draw teaches people to run it again."""
    return random.Random(len(found)).sample(found, min(count, len(found)))


@pytest.mark.parametrize("name", ["delay", "apply_many", "state", "get", "wait", "update_state", "revoke"])
def test_cut_short_at_any_place(shop: Shop, name: str) -> None:
    if name == "revoke" and "fanout" in shop.app.broker.lacks:
        pytest.skip("this broker has no revocations")
    size = {"delay": 1, "apply_many": 3}.get(name, 0)
    work = shop.operations[name]
    work()  # connections are made
    shop.sure += 2 * size
    for place in places(work):
        cut = Cut(work, place)
        if cut.happened:
            shop.unsure += size
        else:
            shop.sure += size
        shop.go_on_everywhere(f"{name} was cut short at {cut.where} ({place})")
    shop.check_queue()
    shop.check_pool()


@pytest.mark.parametrize("name", ["depths", "purge", "dead", "dead_retry", "dead_discard"])
def test_administration_cut_short_at_any_place(shop: Shop, name: str) -> None:
    """Nor does it lose the dead letter that it has in its hand."""
    broker = shop.app.broker
    work = shop.operations[name]
    generation = broker.consumer.register("interrupted@test", [shop.queue], 1)
    shop.task.delay(0)
    while not (found := broker.consumer.lease([shop.queue], 1).messages):
        broker.consumer.wait(0.05)
    broker.consumer.settle(generation, [DeadLetter(found[0].tag, "why")])
    broker.consumer.deregister()
    work()
    for place in places(work)[:: 2 if PLACES else 1]:
        cut = Cut(work, place)
        shop.go_on_everywhere(f"{name} was cut short at {cut.where} ({place})")
    shop.check_queue()
    assert [letter.reason for letter in broker.admin.dead(shop.queue)] == ["why"]


def test_cut_short_on_its_way_to_sqs(sqs: Sqs) -> None:
    _cut_short_on_its_way(sqs.url, SQS_OPTIONS)


def test_cut_short_on_its_way_to_disque(disque: DisqueServer) -> None:
    disque.reset()
    _cut_short_on_its_way(disque.url, {"wait_time_seconds": 1})


def _cut_short_on_its_way(url: str, options: dict[str, Any]) -> None:
    with closed(Shop(url, "cache+memory://", broker_transport_options=options)) as shop:
        for name, size in (("delay", 1), ("apply_many", 3), ("depths", 0)):
            work = shop.operations[name]
            work()
            shop.sure += 2 * size
            for place in _chosen(places(work), 4):
                cut = Cut(work, place)
                if cut.happened:
                    shop.unsure += size
                else:
                    shop.sure += size
                shop.go_on_everywhere(f"{name} was cut short at {cut.where} ({place})")
        shop.check_queue()


def test_cut_short_while_connecting(shop: Shop) -> None:
    shop.task.delay(1)
    shop.sure += 1

    for place in _chosen(range(400), PLACES or 400):
        shop.app.broker.close()
        cut = Cut(shop.operations["delay"], place)
        shop.unsure += 1
        shop.go_on_everywhere(f"connecting was cut short at {cut.where} ({place})")
    shop.check_queue()


def test_cut_short_by_real_signals(shop: Shop) -> None:
    def alarm(signum: int, frame: object) -> None:
        raise Stray

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        for _ in range(2 * PLACES or 500):
            shop.unsure += 4
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.004))
                for name in ("delay", "state", "get", "update_state", "apply_many"):
                    shop.operations[name]()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Stray:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            shop.go_on_everywhere("an alarm")
    finally:
        signal.signal(signal.SIGALRM, before)
    shop.check_queue()


def test_others_messages_are_sent_once(shop: Shop) -> None:
    """While this thread is cut short again and again, another one publishes beside it."""
    stop = threading.Event()
    sent: list[str] = []

    def publish() -> None:
        while not stop.is_set():
            sent.append(shop.task.delay(3).id)

    beside = shop.other.submit(publish)
    work = shop.operations["delay"]
    work()
    shop.sure += 1
    for place in range(0, 200, 200 // (PLACES or 200) or 1):
        Cut(work, place)
        shop.unsure += 1
    stop.set()
    beside.result(PATIENCE)
    shop.sure += len(sent)
    shop.check_queue()
