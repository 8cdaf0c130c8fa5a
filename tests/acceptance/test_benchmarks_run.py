"""The benchmark harness, run as a person would, on qworker alone: the peers' environments would need a network."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")
def test_a_small_run_measures_counts_and_reports(tmp_path: Path) -> None:
    workloads = ["noop", "stored", "enqueue", "bulk", "start"]
    done = benchmarks(
        "run",
        "--peers",
        "qworker",
        "--workloads",
        ",".join(workloads),
        "--scale",
        "0.01",
        "--out",
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr

    found = json.loads((tmp_path / "results.json").read_text())
    assert [cell["workload"] for cell in found["cells"]] == workloads
    for cell in found["cells"]:
        assert cell["error"] is None
        assert (cell["lost"], cell["repeated"]) == (0, 0)
        assert all(value > 0 for value in cell["figures"].values())
    assert len(found["limits"]) == 4

    assert "| drain no-op tasks " in done.stdout
    assert (tmp_path / "report.md").read_text() in done.stdout
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_list_names_peers_and_workloads() -> None:
    done = benchmarks("list")
    assert done.returncode == 0
    assert "huey-sqlite" in done.stdout
    assert "beside-long" in done.stdout
