"""The management commands that show clusters, in the shop of the examples, with a running cluster."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE, readable

pytestmark = pytest.mark.acceptance
SHOP = Path(__file__).resolve().parents[2] / "examples" / "django_shop"


def manage(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "shop"
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("*.sqlite3*", "__pycache__"))
    manage(folder, "migrate")
    log = folder / "cluster.log"
    with log.open("w") as file:
        cluster = subprocess.Popen(
            [sys.executable, "manage.py", "qcluster"], cwd=folder, stdout=file, stderr=file, env=os.environ
        )
    try:
        until = time.monotonic() + PATIENCE
        while "running." not in log.read_text():
            assert cluster.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield folder
    finally:
        cluster.send_signal(signal.SIGTERM)
        assert cluster.wait(PATIENCE) == 0, log.read_text()


def test_running_cluster_is_shown(shop: Path) -> None:
    (identity,) = manage(shop, "qinfo", "--ids").split()
    assert re.fullmatch(r"[0-9a-f-]{36}", identity)
    assert re.search(r"Clusters +1 ", manage(shop, "qinfo"))
    monitor = manage(shop, "qmonitor", "--run-once")
    assert re.search(r"Queued 0 \(0\) +Success 0 +Failures 0", monitor)
    assert re.search(r" (Idle|Working) ", monitor)
    assert re.search(r"worker 1 +\d+ ", manage(shop, "qmemory", "--run-once", "--workers"))


class InTerminal:
    """A command in its own terminal. shown: its output so far."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 90, 0, 0))
        # It is the session's controlling terminal, so that Ctrl-C sends a signal.
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", *words],
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(theirs)
        self.shown = ""

    def see(self, wanted: str) -> None:
        """Wait until the regular expression *wanted* matches the output."""
        until = time.monotonic() + PATIENCE
        while not re.search(wanted, self.shown, re.DOTALL):
            assert self.process.poll() is None, self.shown
            assert time.monotonic() < until, self.shown
            if readable(self._ours, seconds=0.1):
                came = os.read(self._ours, 65536).decode(errors="replace")
                self.shown += came
                # Answer cursor position queries; blessed waits for them.
                os.write(self._ours, b"\x1b[1;1R" * came.count("\x1b[6n"))

    def press(self, key: str) -> int:
        """Press a key that ends the command; return its exit code."""
        os.write(self._ours, key.encode())
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


@pytest.mark.timeout(240)
def test_live_view_runs_until_a_key_is_pressed(shop: Path) -> None:
    headings = {"qmonitor": "State", "qmemory": "Sentinel MB"}
    for (command, heading), key in itertools.product(headings.items(), ("q", "\x03")):
        terminal = InTerminal(shop, command)
        try:
            terminal.see(rf"{heading}.*Press q to quit.*{heading}.*Press q to quit")  # drawn twice
            assert terminal.press(key) == 0
            # A newline after the last row would scroll the first one off the screen.
            assert not re.search(r"\x1b\[J\s*\n", terminal.shown), terminal.shown
            assert "Traceback" not in terminal.shown
        finally:
            terminal.close()


def test_qinfo_config_hides_secrets(shop: Path) -> None:
    settings = (shop / "settings.py").read_text()
    secret = re.search(r'SECRET_KEY = "([^"]+)"', settings)
    shown = manage(shop, "qinfo", "--config")
    assert "WORKERS: " in shown
    assert secret is None or secret[1] not in shown
