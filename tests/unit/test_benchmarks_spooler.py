"""The benchmark of spoolers: ratios and report, of made-up figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import spooler, spooler_page
from benchmarks.spooler import FIGURES, Found, Measured

pytestmark = pytest.mark.one_python


def found(*measured: Measured) -> Found:
    return Found("2030-01-01T00:00:00+00:00", {"processor": "two"}, 5000, list(measured))


def sides(figure: str, theirs: list[float], ours: list[float], place: str = "memory") -> list[Measured]:
    return [Measured("uwsgi", place, figure, value) for value in theirs] + [
        Measured("qworker", place, figure, value) for value in ours
    ]


@pytest.mark.parametrize(
    ("figure", "theirs", "ours", "ratio"),
    [
        ("work_off", [100.0, 200.0, 900.0], [50.0, 100.0, 100.0], 0.5),
        ("wake_foreign", [30_000.0], [1.0], 30_000.0),
        ("future_cpu", [1.0], [0.0], None),
        ("enqueue", [1.0], [], None),
    ],
)
def test_ratio_of_medians(figure: str, theirs: list[float], ours: list[float], ratio: float | None) -> None:
    assert spooler.ratio(found(*sides(figure, theirs, ours)), "memory", figure) == ratio


def test_page_has_figures_and_failures() -> None:
    page = spooler_page.document(
        found(
            *sides("work_off", [50_000.0], [40_000.0]),
            *sides("enqueue", [80_000.0], [], place="disk"),
            Measured("qworker", "disk", "enqueue", None, "it ended:\nno space left"),
        )
    )
    assert "## In memory" in page
    cells = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if "jobs/s" in line]
    assert cells == [
        ["", FIGURES["work_off"].title, "jobs/s", "50,000", "40,000", "0.80×", "1", ""],
        ["", FIGURES["enqueue"].title, "jobs/s", "80,000", "–", "–", "0", ""],
    ]
    assert "- qworker, disk, enqueue: no space left" in page


def test_several_runs_are_loaded_as_one(tmp_path: Path) -> None:
    for number in (1, 2):
        found(*sides("enqueue", [float(number)], [])).save(tmp_path / f"{number}.json")
    whole = spooler.load([tmp_path / "1.json", tmp_path / "2.json"])
    assert whole.values("uwsgi", "memory", "enqueue") == [1.0, 2.0]
