"""The configuration files of the page about clusters in production are valid, start a cluster, and let it
stop."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from qworker.conf import Settings
from tests.docs.pages import REPOSITORY, blocks

PAGE = REPOSITORY / "docs" / "how-to" / "django-production.md"
FILES = {block.file_name or block.text.split()[1]: block.text for block in blocks(PAGE.read_text("utf-8"))}
STARTS = ("shop-cluster.service", "supervisor.conf", "circus.ini", "compose.yaml", "cluster.k8s.yaml")
TIME = re.compile(
    r"(?:TimeoutStopSec|stopwaitsecs|graceful_timeout|stop_grace_period|GracePeriodSeconds)\W+(\d+)"
)


@pytest.mark.parametrize("name", STARTS)
def test_files_start_the_cluster_and_give_it_time_to_stop(name: str) -> None:
    text = FILES[name]
    assert re.search(r'manage\.py"?,? "?qcluster', text)
    given = TIME.search(text)
    assert given is not None
    assert int(given[1]) > Settings().worker_shutdown_timeout


@pytest.mark.parametrize(
    ("name", "section"),
    [("supervisor.conf", "program:shop-cluster"), ("circus.ini", "watcher:shop-cluster")],
)
def test_process_manager_files_can_be_parsed(name: str, section: str) -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(FILES[name])
    values = parser[section]
    assert values.get("stopsignal", values.get("stop_signal")) == "TERM"
    assert values.get("numprocesses", "1") == "1"
    assert name != "supervisor.conf" or values.getboolean("stopasgroup")


@pytest.mark.parametrize("name", ["compose.yaml", "cluster.k8s.yaml"])
def test_container_files_can_be_parsed(name: str) -> None:
    assert all(yaml.safe_load_all(FILES[name]))


def test_procfile_starts_a_worker() -> None:
    assert "worker: python manage.py qcluster\n" in FILES["Procfile"]


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is missing: install systemd")
    text = FILES["shop-cluster.service"].replace("/srv/shop/venv/bin/python", sys.executable)
    unit = tmp_path / "shop-cluster.service"
    unit.write_text(text.replace("/srv/shop", str(tmp_path)).replace("User=shop\n", ""))
    done = subprocess.run([program, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert unit.name not in done.stderr, done.stderr
