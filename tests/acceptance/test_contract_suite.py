"""The contract suite for brokers, run like in another project: with plain pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.acceptance
REPOSITORY = Path(__file__).resolve().parents[2]
IN_MEMORY = """
from qworker.clock import boottime
from qworker.testing import MemoryStore
from qworker.testing.contract import Assumption, Place
from qworker.testing.contract.suite import *

class Own(MemoryStore):
    pass

class OwnPlace(Place):
    lacks = frozenset({Assumption.OTHER_PROCESSES})
    cannot = {"test_numbers_are_not_reused_after_data_loss": "memory is not lost"}
    examples = 5
    first = None

    def open(self, **options):
        broker = Own(**{"uptime": boottime, **options}, shared_with=self.first)
        self.first = self.first or broker
        return broker

    def result(self, task_id):
        row = self.first.results.get(task_id)
        return None if row is None else (row[1], row[2])

    def count(self):
        return self.first.messages

PLACES = {"own": OwnPlace}
"""
IN_A_FILE = """
import sqlite3
from qworker.testing.contract import Place
from qworker.testing.contract.suite import *
from qworker.transports.sql.embedded.broker import SQLiteBroker

class OwnPlace(Place):
    def open(self, **options):
        return SQLiteBroker(f"sqlite:///{self.directory}/own.db", **options)

    def count(self):
        connection = sqlite3.connect(self.directory / "own.db")
        return connection.execute("SELECT count(*) FROM message").fetchone()[0]

PLACES = {"own": OwnPlace}
"""


def run(directory: Path, text: str, *arguments: str) -> tuple[int, str]:
    """Run the test module *text* in a project in *directory*; returns the exit code and the output."""
    (directory / "test_own.py").write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    # A separate directory: concurrent pytest runs conflict over the symlinks in the default one.
    own = ["-p", "no:cacheprovider", f"--basetemp={directory / 'temporary'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", *own, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_correct_broker_passes_and_unsupported_tests_are_skipped(tmp_path: Path) -> None:
    code, said = run(tmp_path, IN_MEMORY)
    assert code == 0, said
    assert "memory is not lost" in said
    assert "lacks other_processes" in said
    passed = int(said.rpartition(" passed")[0].rpartition("\n")[2].split()[0])
    assert passed >= 80


def test_broker_without_fencing_fails_with_a_readable_report(tmp_path: Path) -> None:
    """It accepts settlements of old generations."""
    careless = IN_MEMORY.replace(
        "class Own(MemoryStore):\n    pass",
        "class Own(MemoryStore):\n"
        "    def settle(self, generation, settlements):\n"
        "        return super().settle(self._generation, settlements)",
    )
    code, said = run(tmp_path, careless)
    assert code == 1, said
    assert "FAILED test_own.py::test_old_generation_cannot_settle[own]" in said
    assert "assert set() == {" in said  # proves that pytest rewrites the assertions


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_other_processes_can_open_the_place(tmp_path: Path, mode: str) -> None:
    chosen = "messages_of_a_killed_process or parent_and_child_have or push_notifies_other"
    code, said = run(tmp_path, IN_A_FILE, f"--import-mode={mode}", "-k", chosen)
    assert code == 0, said
    assert "3 passed" in said


def test_undeclared_capability_is_reported(tmp_path: Path) -> None:
    quiet = IN_MEMORY.replace("frozenset({", "frozenset({FANOUT, ").replace(
        "from qworker.clock", "from qworker.transports.capabilities import FANOUT\nfrom qworker.clock"
    )
    code, said = run(tmp_path, quiet, "-k", "broker_declares or every_consumer_receives_revocations")
    assert code == 1, said
    assert "1 failed, 1 skipped" in said
    assert "lacks fanout" in said


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_missing_dependency_is_reported_with_the_install_command(missing: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; import qworker.testing.contract.suite"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert f"{missing} is not installed, which the contract suite needs: " in done.stderr
    assert 'pip install "qworker-queue[testing]"' in done.stderr
    assert subprocess.run([sys.executable, "-c", script.rpartition(".")[0]], check=False).returncode == 0
