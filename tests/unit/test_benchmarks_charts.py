"""The page of the benchmarks and its charts, of made-up figures."""

import re
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import charts, markdown, page, report, results
from benchmarks.__main__ import main
from benchmarks.metrics import METRICS
from benchmarks.results import Spread
from tests.unit.test_benchmarks_report import FULL, grown, outcome

pytestmark = [
    pytest.mark.one_python,
    pytest.mark.skipif(find_spec("matplotlib") is None, reason="draws the charts: pip install matplotlib"),
]


def test_page_is_well_formed_and_self_contained() -> None:
    found = outcome(**FULL)
    found.peers["qworker"]["note"] = "a <b> & 'c'"
    html = page.document(found)
    for drawn in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ElementTree.fromstring(drawn)
    assert html.count("<svg") == 1 + len(FULL)
    assert "a &lt;b&gt; &amp; &#x27;c&#x27;" in html
    namespaces = re.compile(r' xmlns(:xlink)?="http://www.w3.org/[^"]*"')
    assert not re.search(r"""src=|href="(?!#)|https?:|@import|url\((?!#)""", namespaces.sub("", html))
    assert not set(charts.COLOURS.values()) & set(
        re.findall("#[0-9a-f]{6}", html.partition("</style></head>")[2])
    )
    assert "pass" in html
    assert "miss" in html


def test_widely_spread_figures_use_a_logarithmic_scale() -> None:
    near = charts.peers(METRICS["noop_rate"], {"qworker": Spread(3, 3, 3), "x": Spread(1, 1, 1)}, None)
    far = charts.peers(
        METRICS["noop_rate"], {"qworker": Spread(3000, 3000, 3000), "x": Spread(1, 1, 1)}, None
    )
    assert "logarithmic" not in near
    assert "logarithmic" in far
    assert far.count("<use") == 2  # one dot each


@pytest.mark.parametrize("value", [0.0, -5.0])
def test_zero_and_negative_figures_can_be_drawn(value: float) -> None:
    drawn = charts.peers(METRICS["eta_pss_growth"], {"qworker": Spread(value, value, value)}, 10.0)
    ElementTree.fromstring(drawn)
    assert "goal 10.0" in drawn


def test_reports_can_be_written_again_from_saved_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = outcome(**FULL)
    first = {path.name: path.read_text() for path in report.write(found, tmp_path / "a")}
    found.save(tmp_path / "results.json")
    assert main(["report", str(tmp_path / "results.json")]) == 0
    assert first == {name: (tmp_path / name).read_text() for name in ("report.md", "report.html")}
    assert "report.html" in capsys.readouterr().out


def test_one_point_and_equal_costs_can_be_drawn() -> None:
    ElementTree.fromstring(charts.lines("run one", {"qworker": [(10.0, 3.0)], "huey": [(10.0, 3.0)]}))


def test_several_runs_are_merged_into_one_report(tmp_path: Path) -> None:
    first = outcome(noop_rate={"qworker": 10.0, "huey-sqlite": 5.0})
    first.skipped = {"huey-redis": "no Redis answers"}
    first.cells[1].error = "no task ran"
    first.cells[1].figures = {}
    first.left_out = ["noop huey-redis"]
    second = outcome(noop_rate={"huey-sqlite": 4.0, "huey-redis": 6.0})
    second.scale, second.limits = 0.5, {"Redis PING, a round trip": 9.0}
    for name, run in (("a", first), ("b", second), ("growth", grown())):
        run.save(tmp_path / f"{name}.json")
    names = ["a.json", "b.json", "growth.json"]
    assert main(["report", *(str(tmp_path / name) for name in names), "--out", str(tmp_path)]) == 0

    whole = results.merge([results.load(tmp_path / name) for name in names])
    assert (tmp_path / "report.md").read_text() == markdown.document(whole)
    assert whole.groups() == ["embedded", "Redis"]
    assert (whole.scale, whole.skipped, whole.left_out) == (0.5, {}, [])
    assert whole.limits == {"Redis PING, a round trip": 9.0}
    assert whole.figure("noop_rate", "huey-sqlite") == Spread(4.0, 4.0, 4.0)
    assert not any(cell.error for cell in whole.cells)
    assert len(whole.growth) == 2


def test_growth_has_a_chart_for_each_figure() -> None:
    drawn = re.findall(r"<svg.*?</svg>", page.document(grown()), re.DOTALL)
    assert len(drawn) == 2
    assert "qworker: 50.0 → 60.0 µs" in drawn[0]


def test_chart_without_figures_is_empty() -> None:
    assert charts.against_best([]) == ""


def test_page_is_reproducible() -> None:
    assert page.document(outcome(**FULL)) == page.document(outcome(**FULL))
