"""``qworker start --demo``, run like a new user does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = """
from qworker.cli.demo import analysis, driver
from qworker.cli.main import main

driver.choose_files = lambda: analysis.choose_files(8_000_000)
main()
"""
"""The command ``qworker``, with a demo that reads little: the packages of the tests take it a minute."""

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(directory: Path) -> subprocess.CompletedProcess[str]:
    """One run of the demo for all tests here, with the user's own broker configured, which it must not
    touch."""
    (directory / "pyproject.toml").write_text('[tool.qworker]\ntask_default_queue = "theirs"\n')
    (directory / "tmp").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "TMPDIR": str(directory / "tmp"),
        "QWORKER_BROKER_URL": f"sqlite:///{directory / 'theirs.db'}",
        "PYTHONIOENCODING": "utf-8",
    }
    return subprocess.run(
        [sys.executable, "-c", COMMAND, "start", "--demo"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=140,
    )


def test_demo_exits_successfully(demo: subprocess.CompletedProcess[str]) -> None:
    assert demo.returncode == 0, demo.stdout


def test_demo_reads_hundreds_of_modules(demo: subprocess.CompletedProcess[str]) -> None:
    totals = re.search(r"^([\d,]+) modules, .* read in ([\d.]+) s$", demo.stdout, re.MULTILINE)
    assert totals is not None, demo.stdout
    assert int(totals[1].replace(",", "")) > 300


def test_demo_table_has_every_part(demo: subprocess.CompletedProcess[str]) -> None:
    rows = dict(
        re.findall(r"^(\w[\w ,-]+?) {2,}([\d,]+ +[\d,]+ +[\d,]+ +[\d,]+) ", demo.stdout, re.MULTILINE)
    )
    counts = {title: [int(cell.replace(",", "")) for cell in cells.split()] for title, cells in rows.items()}
    assert counts["async tasks"] == [200, 200, 0, 0]
    assert counts["a disk that fails twice"] == [1, 1, 0, 1]
    assert counts["rate-limited calls"] == [25, 25, 0, 0]
    assert counts["an appointment"] == [1, 1, 0, 0]
    assert counts["a task that kills its process"] == [1, 1, 0, 0]
    tasks, ok, failed, retried = counts["modules read, one task each"]
    assert tasks == ok + failed
    assert failed >= 1
    assert retried >= 1


def test_demo_progress_is_plain_text_without_a_terminal(demo: subprocess.CompletedProcess[str]) -> None:
    assert "\r" not in demo.stdout
    assert "\x1b" not in demo.stdout
    assert len(re.findall(r"^ +\d+/\d+  .* files \d+/\d+  async ", demo.stdout, re.MULTILINE)) == 4


def test_demo_report_is_written_to_the_printed_path(
    demo: subprocess.CompletedProcess[str], directory: Path
) -> None:
    said = re.search(r"timeline: (.+)$", demo.stdout, re.MULTILINE)
    assert said is not None, demo.stdout
    report = Path(said[1])
    assert report == directory / ".qworker" / "demo" / "report.html"
    html = report.read_text(encoding="utf-8")
    assert html.count("<svg") >= 2
    assert ", killed" in html


def test_demo_leaves_no_files_or_processes(demo: subprocess.CompletedProcess[str], directory: Path) -> None:
    assert list((directory / "tmp").iterdir()) == []
    assert sorted(path.name for path in directory.iterdir()) == [".qworker", "pyproject.toml", "tmp"]
    assert [path.name for path in (directory / ".qworker").iterdir()] == ["demo"]
    ours = str(directory / "tmp")
    left = []
    for process in psutil.process_iter(["cwd", "cmdline"]):
        if (process.info["cwd"] or "").startswith(ours):
            left.append(process.info["cmdline"])
    assert left == []
