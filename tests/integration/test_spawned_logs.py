"""Spawned children log like the worker, and log what their tasks print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TASKS = """
from qworker import QWorker

app = QWorker("tasks")


@app.task
def speak():
    print("these words were printed")
"""


@pytest.mark.timeout(90)
@pytest.mark.parametrize("method", ["forkserver", "spawn", "zygote"])
def test_child_logs_like_its_worker(tmp_path: Path, method: str) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "qworker"]
    arguments = ["start", "-c", "1", "--start-method", method, "--log-json", "-f", "w.log", "-n", "w@h"]
    worker = subprocess.Popen([*command, *arguments], cwd=tmp_path, env=environment)
    try:
        subprocess.run([*command, "call", "speak"], cwd=tmp_path, env=environment, check=True, timeout=60)
        log = tmp_path / "w.log"
        deadline = time.monotonic() + 60
        while not (log.exists() and "these words" in log.read_text()):
            assert time.monotonic() < deadline
            assert worker.poll() is None
            time.sleep(0.05)
    finally:
        worker.terminate()
        assert worker.wait(60) == 0
    (line,) = [line for line in log.read_text().splitlines() if "these words" in line]
    said = json.loads(line)
    assert said["level"] == "WARNING"
    assert "w@h" in said.values()
