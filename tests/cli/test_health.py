"""qworker health: its answer for workers that run, have died, or cannot consume."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from qworker.cli.discovery import find_app
from qworker.cli.process import PidFile, pidfile_owner
from tests.support.waiting import until


def registered(name="w@here"):
    store = find_app("tasks").app.broker
    store.consumer.register(name, ["celery"], 1)
    return store


def test_missing_worker_is_not_ok(existing_broker, run):
    result = run("health")
    assert result.exit_code == 1
    assert "NOT OK: sqlite:" in result.stdout
    assert "does not list a worker" in result.stdout


def test_registered_worker_is_ok(tasks, run):
    store = registered()
    try:
        assert "ok: w@here consumes from sqlite:" in run("health").stdout
        assert run("health", "-n", "w@here").exit_code == 0
        result = run("health", "-n", "other@here", "--json")
        assert result.exit_code == 1
        answer = json.loads(result.stdout)
        assert answer["ok"] is False
        assert "does not list other@here; it lists w@here" in answer["checks"][0]["why"]
    finally:
        store.consumer.deregister()


def test_pid_file_of_a_dead_process_is_not_ok(tasks, run):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    Path("w.pid").write_text(f"{gone.pid}\n")
    assert run("health", "--pidfile", "w.pid").exit_code == 1
    assert run("health", "--pidfile", "none.pid").exit_code == 1
    for text in ("", "nonsense", "-1", "9" * 40):
        Path("w.pid").write_text(text)
        assert pidfile_owner("w.pid") is None, text


def test_reused_process_id_is_not_the_worker(tasks):
    Path("w.pid").write_text(f"{os.getpid()}\n")
    assert pidfile_owner("w.pid") is None  # the process lives, but does not hold the lock


def test_doctor_checks_each_of_several_brokers(tasks, run, monkeypatch):
    monkeypatch.setenv("QWORKER_BROKER_URL", "sqlite:///one.db;sqlite:///two.db")
    result = run("doctor")
    assert result.exit_code == 0, result.stdout
    assert "names several brokers" in result.stdout
    assert "there is no" in run("queues").stderr


HOLD = (
    "import sys, time; from qworker.cli.process import PidFile\nwith PidFile('w.pid'): print(1, "
    "flush=True); time.sleep(60)"
)


def test_locked_pid_file_counts_as_live_but_not_as_consuming(existing_broker, run, environment):
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, env=environment)
    try:
        holder.stdout.readline()
        assert pidfile_owner("w.pid") == holder.pid
        assert run("health", "--pidfile", "w.pid", "--live").exit_code == 0
        result = run("health", "--pidfile", "w.pid")  # it runs, but does not consume
        assert result.exit_code == 1
        assert f"does not list process {holder.pid}" in result.stdout
        assert PidFile("w.pid").path == str(Path("w.pid").absolute())
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_health_asks_the_status_port_of_a_worker(tasks, run, shell, environment, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("QWORKER_WORKER_HTTP_ADDRESS", f"127.0.0.1:{port}")
    refused = run("health")
    assert refused.exit_code == 1
    assert f"no worker answers on 127.0.0.1:{port}" in refused.stdout
    command = [sys.executable, "-m", "qworker", "start", "-c", "1", "--pidfile", "w.pid", "-l", "ERROR"]
    worker = subprocess.Popen(
        command, env={**environment, "QWORKER_WORKER_HTTP_ADDRESS": f"127.0.0.1:{port}"}
    )
    try:
        until(lambda: "is running" in run("health", "--pidfile", "w.pid").stdout)
        assert run("health", "--pidfile", "w.pid").exit_code == 0
        assert run("health", "--live").exit_code == 0
        monkeypatch.delenv("QWORKER_WORKER_HTTP_ADDRESS")
        assert shell("health", "--pidfile", "w.pid").returncode == 0
    finally:
        worker.terminate()
        assert worker.wait(60) == 0
    assert shell("health", "--pidfile", "w.pid").returncode == 1


def test_wrong_entries_are_reported_but_healthy(tasks, run, environment, monkeypatch):
    """Restarting the worker would not correct them."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setenv("QWORKER_WORKER_HTTP_ADDRESS", address)
    monkeypatch.setenv("QWORKER_BEAT_SCHEDULE", '{"bad": {"task": "t", "schedule": "never"}}')
    command = [sys.executable, "-m", "qworker", "start", "-c", "1", "--beat", "-l", "CRITICAL"]
    settings = {name: os.environ[name] for name in ("QWORKER_WORKER_HTTP_ADDRESS", "QWORKER_BEAT_SCHEDULE")}
    worker = subprocess.Popen(command, env={**environment, **settings})
    try:
        until(lambda: "is running; the entry bad is not called: " in run("health").stdout)
        assert run("health").exit_code == run("health", "--live").exit_code == 0
        assert run("beat", "remove", "bad").exit_code == 0
        until(lambda: "the entry bad" not in run("health").stdout)
    finally:
        worker.terminate()
        assert worker.wait(60) == 0


@pytest.mark.parametrize("wrong", ["localhost", "8080", "host:port", "h:99999", "::1:80"])
def test_invalid_http_address_is_refused(tasks, run, monkeypatch, wrong):
    monkeypatch.setenv("QWORKER_WORKER_HTTP_ADDRESS", wrong)
    result = run("health")
    assert result.exit_code == 1
    assert "worker_http_address" in result.stderr
