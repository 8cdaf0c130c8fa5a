"""The benchmark commands, with qworker alone: the peers' environments would need a network."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.servers import require

REPOSITORY = Path(__file__).resolve().parents[2]


def benchmarks(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")
def test_run_measures_all_workloads_and_writes_reports(tmp_path: Path) -> None:
    workloads = ["noop", "stored", "enqueue", "bulk", "start", "chain", "chord", "group", "large-chord"]
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
    assert found["peers"]["qworker"]["group"] == "embedded"
    assert len(found["limits"]) == 8
    assert all(rate > 0 for rate in found["limits"].values())

    assert "| drain no-op tasks " in done.stdout
    assert (tmp_path / "report.md").read_text() in done.stdout
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")
@pytest.mark.parametrize("server", ["sqlite", "redis", "postgresql"])
def test_fleet_measures_idle_workers_and_calls(server: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/fleet.db" if server == "sqlite" else require(server)
    done = benchmarks(
        "fleet", "--urls", url, "--workers", "3", "--seconds", "1", "--calls", "5", "--out", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "fleet.json").read_text())
    assert (found["url"], found["workers"], found["lost"]) == (server, 3, 0)
    assert 0 < found["latency"][0] <= found["latency"][1] < 5000
    if server != "sqlite":
        assert found["connections"] >= 3
    assert f"| {server} | 3 |" in done.stdout


def test_fleet_without_a_server_says_so(tmp_path: Path) -> None:
    done = benchmarks("fleet", "--urls", "redis://127.0.0.1:1", "--workers", "1", "--out", str(tmp_path))
    assert done.returncode == 1
    assert "redis://127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")
def test_growth_measures_a_short_queue(tmp_path: Path) -> None:
    done = benchmarks(
        "growth", "--peers", "qworker", "--curves", "queued", "--scale", "0.001", "--out", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    points = json.loads((tmp_path / "growth.json").read_text())["growth"]
    assert [(point["curve"], point["x"], point["error"]) for point in points] == [("queued", 1e3, None)]
    assert set(points[0]["figures"]) == {"run", "publish", "publish_bulk"}
    assert all(value > 0 for point in points for value in point["figures"].values())
    assert "### With messages waiting" in (tmp_path / "report.md").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")
def test_steady_measures_waves_beside_waiting_messages(tmp_path: Path) -> None:
    words = ("--peers", "qworker", "--tasks", "200", "--waiting", "500", "--out", str(tmp_path))
    done = benchmarks("steady", *words)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "steady.json").read_text())
    assert (found["waiting"], found["lost"], found["repeated"], found["error"]) == (500, 0, 0, "")
    assert [sample["done"] for sample in found["samples"]] == list(range(20, 201, 20))
    for sample in found["samples"]:
        assert sample["rate"] > 0
        assert 0 < sample["latency"][0] <= sample["latency"][1]
        assert sample["size"]["bytes"] > 500 * 100
    assert "| qworker | 500 | 200 |" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")
def test_qworker_on_redis_has_its_own_report_section(tmp_path: Path) -> None:
    done = benchmarks(
        *("run", "--peers", "qworker-redis", "--workloads", "noop,stored", "--scale", "0.01"),
        *("--out", str(tmp_path)),
        # A separate database, since a run empties it.
        BENCHMARK_REDIS=urlsplit(require("redis"))._replace(path="/14").geturl(),
    )
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "report.md").read_text()
    assert "## On Redis" in report
    assert "none lost, none run twice" in report
    assert "| Redis RPOP, 100 at a time" in report


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")
def test_schedulers_measures_memory_and_takeover(tmp_path: Path) -> None:
    """Without the calls of each minute: waiting for one may take a minute."""
    done = benchmarks(
        *("schedulers", "--peers", "qworker", "--points", "20", "--bursts", "0", "--leaders", "1"),
        *("--scale", "0.1", "--out", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    (point,) = json.loads((tmp_path / "schedulers.json").read_text())["points"]
    assert (point["peer"], point["entries"], point["error"]) == ("qworker", 20, None)
    assert set(point["figures"]) == {
        *("first_start", "start", "idle_cpu", "others_cpu", "memory", "takeover", "takeover_most")
    }
    assert "## A leader is killed" in (tmp_path / "schedulers.md").read_text()
    assert "</svg>" in (tmp_path / "schedulers.svg").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")
def test_django_measures_all_workloads(tmp_path: Path) -> None:
    """Only qworker: the environment of django-q2 would need a network."""
    done = benchmarks(
        *("django", "--packages", "qworker-django", "--brokers", "sqlite", "--scale", "0.01"),
        *("--out", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / "django.json").read_text())["cells"]
    assert [cell["workload"] for cell in cells] == [
        *("drain", "drain-memory", "enqueue", "start", "run-once", "keep-all", "keep-none"),
    ]
    for cell in cells:
        assert (cell["broker"], cell["error"], cell["lost"]) == ("sqlite", None, 0)
        assert cell["value"] > 0
    page = (tmp_path / "django.md").read_text()
    assert page in done.stdout
    assert "| sqlite" in page
    assert "## What save_limit costs" in page


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read /proc")
def test_spooler_measures_qworker_and_uwsgi(tmp_path: Path) -> None:
    """Without wakeups: uWSGI may take half a minute to notice a job from outside."""
    pytest.importorskip("pyuwsgi", reason="a real uWSGI: `pip install pyuwsgi`")
    done = benchmarks(
        *("spooler", "--workloads", "work_off,enqueue", "--places", "memory", "--rounds", "1"),
        *("--scale", "0.01", "--out", str(tmp_path)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads((tmp_path / "spooler.json").read_text())["measured"]
    assert {(each["side"], each["figure"]) for each in measured} == {
        (side, figure) for side in ("uwsgi", "qworker") for figure in ("work_off", "start", "enqueue")
    }
    assert all(each["value"] > 0 and each["error"] is None for each in measured)
    assert (tmp_path / "spooler.md").read_text() in done.stdout


def test_list_names_peers_and_workloads() -> None:
    done = benchmarks("list")
    assert done.returncode == 0
    assert "huey-sqlite" in done.stdout
    assert "beside-long" in done.stdout
