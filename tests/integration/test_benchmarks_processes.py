"""The process tree that benchmarks measure and end: no process may escape it."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.processes import Tree
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")

ESCAPING = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("escaping", "w").write(str(os.getpid()))
        os.rename("escaping", "escaped")
        time.sleep(60)
    os._exit(0)
os.wait()
while not os.path.exists("escaped"):
    time.sleep(0.01)
open("ready", "w").close()
time.sleep(60)
"""
BUSY = """
import os, time
file = open("written", "wb")
file.write(b"x" * 4_000_000)
os.fsync(file.fileno())
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
open("ready", "w").close()
time.sleep(60)
"""


@pytest.fixture
def grow(tmp_path: Path) -> Iterator[Callable[[str], Tree]]:
    trees: list[Tree] = []

    def start(code: str) -> Tree:
        tree = Tree([sys.executable, "-c", code], os.environ, tmp_path)
        trees.append(tree)
        until((tmp_path / "ready").exists)
        return tree

    yield start
    for tree in trees:
        tree.kill()


def test_child_in_another_session_is_counted_and_killed(grow: Callable[[str], Tree], tmp_path: Path) -> None:
    tree = grow(ESCAPING)
    escaped = int((tmp_path / "escaped").read_text())
    assert set(tree.members()) == {tree.process.pid, escaped}
    tree.kill()
    assert tree.members() == []
    assert tree.process.returncode == -signal.SIGKILL


def test_cpu_memory_and_writes_are_measured(grow: Callable[[str], Tree], tmp_path: Path) -> None:
    tree = grow(BUSY)
    assert 0.2 <= tree.cpu_seconds() < 5
    assert 1_000_000 < tree.pss_bytes() < 200_000_000
    # A tmpfs has no device, and nothing is written to storage.
    on_disk = os.major(os.stat(tmp_path).st_dev) != 0
    assert tree.written_bytes() >= (4_000_000 if on_disk else 0)


def test_stop_returns_its_duration(grow: Callable[[str], Tree]) -> None:
    tree = grow(BUSY)
    taken = tree.stop(timeout=5)
    assert taken is not None
    assert taken < 5
    assert not tree.alive()


def test_process_that_ignores_the_signal_is_killed(grow: Callable[[str], Tree]) -> None:
    tree = grow(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{BUSY}")
    assert tree.stop(timeout=0.2) is None
    assert tree.members() == []
