"""The commands that show clusters, in the shop of the examples, beside a cluster that lives."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE

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


def test_a_living_cluster_is_shown(shop: Path) -> None:
    (identity,) = manage(shop, "qinfo", "--ids").split()
    assert re.fullmatch(r"[0-9a-f-]{36}", identity)
    assert re.search(r"Clusters +1 ", manage(shop, "qinfo"))
    monitor = manage(shop, "qmonitor", "--run-once")
    assert re.search(r"Queued 0 \(0\) +Success 0 +Failures 0", monitor)
    assert re.search(r" (Idle|Working) ", monitor)
    assert re.search(r"worker 1 +\d+ ", manage(shop, "qmemory", "--run-once", "--workers"))


def test_the_configuration_keeps_its_secrets(shop: Path) -> None:
    settings = (shop / "settings.py").read_text()
    secret = re.search(r'SECRET_KEY = "([^"]+)"', settings)
    shown = manage(shop, "qinfo", "--config")
    assert "WORKERS: " in shown
    assert secret is None or secret[1] not in shown
