"""A real worker's status port: when children die, during a broker outage, and while it is frozen."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.harness import Site, WorkerProcess, until
from tests.acceptance.private_servers import Redis, free_port
from tests.acceptance.processes import kill

parser = pytest.importorskip("prometheus_client.parser", reason="pip install prometheus_client")
pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


class Probed:
    """A worker of *site* with a status port."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.port = free_port()
        site.settings = {**site.settings, "worker_http_address": f"127.0.0.1:{self.port}"}
        self.worker: WorkerProcess = site.start("-c", "2", "--pidfile", "w.pid")

    def get(self, path: str) -> tuple[int, str]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def metric(self, name: str) -> float:
        families = parser.text_string_to_metric_families(self.get("/metrics")[1])
        (value,) = [sample.value for family in families for sample in family.samples if sample.name == name]
        return float(value)

    def command(self, *options: str) -> tuple[int, Any]:
        """Exit code and JSON output of ``qworker health``."""
        done = subprocess.run(
            [sys.executable, "-m", "qworker", "health", "-A", "tests.acceptance.fault_tasks:app", "--json",
            *options],
            cwd=self.site.path,
            env=self.site.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def away(tmp_path: Path) -> Iterator[tuple[Redis, Probed]]:
    with closing(Redis()) as server:
        site = Site(tmp_path, broker=server.url, result_backend=f"sqlite:///{tmp_path / 'results.db'}")
        with closing(site):
            yield server, Probed(site)


def test_deaths_and_replacements_are_counted(site: Site) -> None:
    probed = Probed(site)
    victim, _ = probed.worker.wait_pool(2)
    assert probed.metric("qworker_pool_process_starts_total") == 2
    kill(victim)
    until(lambda: probed.metric("qworker_pool_process_starts_total") == 3, "a new process", probed.worker)
    assert probed.metric("qworker_pool_process_deaths_total") == 1
    until(lambda: probed.metric("qworker_pool_processes") == 2, "two processes", probed.worker)
    assert probed.metric("qworker_pool_resident_memory_bytes") > 1 << 20
    assert probed.get("/readyz")[0] == 200
    probed.worker.stop()


def test_worker_is_not_ready_during_a_broker_outage(
    away: tuple[Redis, Probed],
) -> None:
    server, probed = away
    assert probed.command()[0] == 0
    server.kill()
    until(lambda: probed.get("/readyz")[0] == 503, "the worker to notice", probed.worker)
    (reason,) = json.loads(probed.get("/readyz")[1])["reasons"]
    assert "the broker has not answered" in reason
    assert probed.get("/healthz")[0] == 200
    code, answer = probed.command()
    assert (code, answer["ok"]) == (1, False)
    assert "the broker has not answered" in answer["checks"][0]["why"]
    assert probed.command("--live")[0] == 0
    assert probed.metric("qworker_up") == 0
    server.start()
    until(lambda: probed.get("/readyz")[0] == 200, "the worker to be back", probed.worker, seconds=5.0)
    assert probed.metric("qworker_broker_reconnects_total") == 1
    id = probed.site.send("work", 1)
    until(lambda: probed.site.client.AsyncResult(id).ready(), "work to go on", probed.worker)
    probed.worker.stop()


def test_frozen_worker_is_not_healthy(site: Site) -> None:
    probed = Probed(site)
    assert probed.command("--pidfile", "w.pid")[0] == 0
    probed.worker.signal(signal.SIGSTOP)
    code, answer = probed.command("--live", "--timeout", "1", "--pidfile", "w.pid")
    probed.worker.signal(signal.SIGCONT)
    assert code == 1
    assert [check["ok"] for check in answer["checks"]] == [
        True,
        False,
    ]  # the process exists, but does not answer
    until(lambda: probed.command()[0] == 0, "the worker to answer again", probed.worker)
    probed.worker.stop()


def test_draining_worker_is_live_but_not_ready(site: Site) -> None:
    probed = Probed(site)
    go = site.path / "go"
    id = site.send("until_file", str(go))
    site.started(id)
    probed.worker.signal(signal.SIGTERM)
    until(lambda: probed.get("/readyz")[0] == 503, "the worker to stop taking tasks", probed.worker)
    assert json.loads(probed.get("/readyz")[1])["reasons"] == ["the worker is draining"]
    assert probed.get("/healthz")[0] == 200
    go.touch()
    assert probed.worker.wait() == 0
    site.finished(id)
