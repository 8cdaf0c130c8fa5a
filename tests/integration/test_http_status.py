"""The HTTP status port of a worker: probes, Prometheus metrics, and malicious clients."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from qworker import QWorker, __version__
from qworker.components.status.http_status import MAX_CONNECTIONS
from qworker.errors import ConfigurationError
from qworker.testing import MemoryStore
from qworker.transports.lease import Envelope
from qworker.worker import Worker
from tests.support.waiting import until

parser = pytest.importorskip("prometheus_client.parser", reason="pip install prometheus_client")


class Watched:
    """A worker with a status port."""

    def __init__(self, lacks: Iterable[str] = ()) -> None:
        self.store = MemoryStore()
        self.store.lacks = self.store.lacks.union(lacks)
        self.app = QWorker(
            "watched",
            broker=self.store,
            backend="cache+memory://",
            set_as_current=False,
            worker_http_address="127.0.0.1:0",
            worker_pool="threads",
        )

        @self.app.task(name='odd "name"\\')
        def odd(number: int) -> int:
            return 1 // number

        self.odd = odd
        self.worker = Worker(self.app, concurrency=2)
        self.worker.start()
        assert self.worker.parts.http is not None
        self.port = self.worker.parts.http.port

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metrics(self) -> dict[str, Any]:
        """Return the values by sample name and labels, from Prometheus's own parser."""
        status, text = self.get("/metrics")
        assert status == 200
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.worker.stop()


def test_consuming_worker_is_alive_and_ready(watched: Watched) -> None:
    assert watched.get("/healthz")[0] == 200
    status, text = watched.get("/readyz?verbose=1")
    assert status == 200
    assert json.loads(text) == {
        "status": "ok",
        "reasons": [],
        "worker": watched.worker.hostname,
        "phase": "running",
        "problems": [],
    }
    assert watched.get("/")[0] == 404
    assert watched.get("/readyz", "HEAD") == (200, "")
    assert watched.get("/readyz", "POST")[0] == 501


def test_worker_is_not_ready_while_the_broker_is_unavailable(watched: Watched) -> None:
    watched.store.away = True
    until(lambda: watched.get("/readyz")[0] == 503)
    assert "the broker has not answered" in json.loads(watched.get("/readyz")[1])["reasons"][0]
    assert watched.get("/healthz")[0] == 200
    assert watched.metrics()[("qworker_up",)] == 0
    watched.store.away = False
    until(lambda: watched.get("/readyz")[0] == 200)
    metrics = watched.metrics()
    assert metrics[("qworker_up",)] == 1
    assert [dict(labels)["version"] for name, *labels in metrics if name == "qworker_info"] == [__version__]
    assert metrics[("qworker_broker_reconnects_total",)] == 1
    assert metrics[("qworker_broker_failures_total",)] >= 1


def test_metrics_count_finished_tasks(watched: Watched) -> None:
    name = ("task", 'odd "name"\\')
    for number in (1, 1, 1, 0):
        watched.odd.delay(number)
    until(lambda: watched.store.messages == 0)
    metrics = watched.metrics()
    assert metrics[("qworker_tasks_total", ("outcome", "success"), name)] == 3
    assert metrics[("qworker_tasks_total", ("outcome", "failure"), name)] == 1
    assert metrics[("qworker_task_runtime_seconds_count",)] == 4
    assert metrics[("qworker_task_runtime_seconds_bucket", ("le", "+Inf"))] == 4
    assert metrics[("qworker_task_runtime_seconds_bucket", ("le", "3600.0"))] == 4
    assert metrics[("qworker_pool_size",)] == 2
    assert metrics[("qworker_tasks_running",)] == 0
    assert metrics[("process_resident_memory_bytes",)] > 1 << 20
    assert 0 <= metrics[("qworker_broker_silence_seconds",)] < 5


def test_metrics_report_queues(watched: Watched) -> None:
    queue = ("queue", "celery")
    watched.odd.apply_async((1,), countdown=3600)
    watched.store.sender.push([Envelope("celery", "no headers", None, b"")])
    until(lambda: watched.store.admin.dead())
    metrics = watched.metrics()
    assert metrics[("qworker_queues_known",)] == 1
    assert metrics[("qworker_queue_messages_ready", queue)] == 0
    assert metrics[("qworker_queue_messages_delayed", queue)] == 1
    assert metrics[("qworker_queue_messages_dead", queue)] == 1
    assert metrics[("qworker_queue_oldest_message_seconds", queue)] == 0


def test_queue_metrics_are_missing_while_unavailable(watched: Watched) -> None:
    watched.store.away = True
    metrics = watched.metrics()
    assert metrics[("qworker_queues_known",)] == 0
    assert not [name for name, *_ in metrics if name.startswith("qworker_queue_")]


def test_broker_without_counts_reports_only_ready_messages() -> None:
    watched = Watched(lacks={"counts"})
    try:
        names = {name for name, *_ in watched.metrics() if name.startswith("qworker_queue_")}
        assert names == {"qworker_queue_messages_ready"}
    finally:
        watched.worker.stop()


def test_silent_clients_do_not_block_others(watched: Watched) -> None:
    slow = [socket.create_connection(("127.0.0.1", watched.port)) for _ in range(3 * MAX_CONNECTIONS)]
    slow[-1].sendall(b"GET /heal")
    try:
        assert watched.get("/readyz")[0] == 200
        slow[0].settimeout(10)
        assert slow[0].recv(1) == b""  # the oldest connection was closed
    finally:
        for one in slow:
            one.close()


@pytest.mark.parametrize("junk", [b"\x00\xff" * 5000 + b"\r\n\r\n", b"GET\r\n\r\n", b"G" * 100_000, b""])
def test_invalid_requests_are_harmless(watched: Watched, junk: bytes) -> None:
    with socket.create_connection(("127.0.0.1", watched.port), timeout=10) as client:
        try:
            client.sendall(junk)
        except ConnectionError:
            pass  # it has closed the connection
    assert watched.get("/healthz")[0] == 200


def test_port_in_use_raises_configuration_error(watched: Watched) -> None:
    app = QWorker(
        "second",
        broker=MemoryStore(),
        backend="cache+memory://",
        set_as_current=False,
        worker_http_address=f"127.0.0.1:{watched.port}",
        worker_pool="threads",
    )
    worker = Worker(app)
    with pytest.raises(ConfigurationError, match=r"worker_http_address: cannot listen on .*already in use"):
        worker.start()
    worker.stop()


def test_port_is_closed_when_the_worker_stops(watched: Watched) -> None:
    watched.worker.stop()
    watched.worker.stop()
    with pytest.raises(ConnectionRefusedError):
        watched.get("/healthz")
