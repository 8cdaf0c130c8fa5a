"""An app as its own program: app.worker_main() under ``if __name__ == "__main__"``."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qworker.context import all_apps

PROGRAM = """
    from qworker import QWorker

    app = QWorker("program")


    @app.task
    def add(x: int, y: int) -> int:
        return x + y


    if __name__ == "__main__":
        app.worker_main(["worker", "--loglevel=INFO", "-c", "1"{}])
"""


@pytest.mark.parametrize("more", ["", ', "-P", "threads"'])
def test_app_module_runs_as_its_own_worker(project, more):
    here = project(**{"program.py": PROGRAM.format(more)})
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "program.py"], cwd=here, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if "ready; broker" in line:
                    break
            program = importlib.import_module("program")
            assert program.add.name == "program.add"
            assert program.add.delay(1, 2).get(timeout=60) == 3, said
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            for app in all_apps():
                app.close()
    assert process.returncode == 0
