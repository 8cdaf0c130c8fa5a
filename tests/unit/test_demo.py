"""The demo without a worker: analysis of files, aggregation of results, and output."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from qworker.cli.demo import page, report
from qworker.cli.demo.analysis import NotPython, analyse_file, choose_files, package_of, write_samples
from qworker.cli.demo.screen import Screen, bar, table

SOURCE = '''"""A module."""
import os, os.path
import sys
from collections import abc
from . import sibling


class A:
    class B:
        async def method(self):
            import json


def function():
    pass
'''


def test_analysis_counts_the_contents_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(SOURCE, encoding="utf-8")
    found = analyse_file(str(file))
    assert found["classes"] == 2
    assert found["functions"] == 2
    assert found["imports"] == ["collections", "json", "os", "sys"]
    assert found["lines"] == SOURCE.count("\n")
    assert found["size"] == len(SOURCE)
    assert found["tokens"] > 30
    assert found["package"] == "some"


def test_sample_files_fail_as_intended(tmp_path: Path) -> None:
    undecodable, python2 = write_samples(tmp_path)
    with pytest.raises((UnicodeError, LookupError)):
        analyse_file(str(undecodable))
    assert analyse_file(str(undecodable), "latin-1")["lines"] == 1
    with pytest.raises(NotPython, match=r"sample_python2\.py: line 1: Missing parentheses"):
        analyse_file(str(python2))


def test_unknown_encoding_is_a_lookup_error(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text("# coding: klingon\n", encoding="ascii")
    with pytest.raises(LookupError, match="klingon"):
        analyse_file(str(file))


def test_file_with_a_null_byte_is_not_python(tmp_path: Path) -> None:
    file = tmp_path / "null.py"
    file.write_bytes(b"a = 1\x00\n")
    with pytest.raises(NotPython):
        analyse_file(str(file))


def test_chosen_files_are_within_budget_and_reproducibly_shuffled() -> None:
    files = choose_files(budget=1_000_000)
    assert len(files) > 20
    known = [
        file for file in files if not {"test", "tests"} & set(file.parts) and "lib2to3" not in file.parts
    ]
    assert sum(file.stat().st_size for file in known) <= 1_000_000
    assert known != sorted(known)
    assert len(set(files)) == len(files)
    assert files == choose_files(budget=1_000_000)


def test_package_is_the_top_level_name() -> None:
    import asyncio.tasks
    import json

    assert package_of(Path(asyncio.tasks.__file__)) == "asyncio"
    assert package_of(Path(json.__file__)) == "json"


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0, "    "), (1, "████"), (0.5, "██  "), (0.53, "██▏ "), (-1, "    "), (7, "████")],
)
def test_bars_are_exact_to_an_eighth(fraction: float, expected: str) -> None:
    assert bar(fraction, 4) == expected


def test_bars_without_unicode() -> None:
    assert bar(0.5, 4, ascii_only=True) == "##  "


def test_table_aligns_numbers_right_and_text_left() -> None:
    assert table(("name", "size"), [("a", "1"), ("long name", "1,000")]) == [
        "name        size",
        "─────────  ─────",
        "a              1",
        "long name  1,000",
    ]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def test_progress_is_redrawn_on_a_terminal_and_cleared_before_text() -> None:
    stream = Terminal()
    screen = Screen(stream)
    screen.progress(1, 2, "half")
    screen.progress(2, 2, "all")
    screen.say("done")
    assert "\n" not in stream.getvalue().removesuffix("done\n")
    assert stream.getvalue().count("\r") == 4
    assert stream.getvalue().endswith("\rdone\n")


def test_progress_is_four_lines_without_a_terminal() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    for done in range(101):
        screen.progress(done, 100, "files")
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == [
        "25/100",
        "50/100",
        "75/100",
        "100/100",
    ]


def test_terminal_without_unicode_gets_ascii() -> None:
    stream = Terminal("latin-1")
    screen = Screen(stream)
    screen.progress(1, 2, "half")
    screen.say("─ · Zoë 漢")
    assert stream.getvalue().isascii()


def analysed(name: str, tokens: int, **changes: Any) -> report.Run:
    value = {
        "path": f"/lib/{name}/x.py",
        "package": name,
        "size": 10,
        "lines": 2,
        "tokens": tokens,
        "classes": 1,
    }
    value |= {"functions": 3, "imports": ["os"], "pid": 7, "started": 100.0, "ended": 100.5, "retries": 0}
    return report.Run("analyse", True, value | changes)


def small_report() -> report.Report:
    runs = [
        analysed("small", 5),
        analysed("large", 50, imports=["os", "<sys>"], pid=8, started=100.2, ended=101.0),
        report.Run("analyse", True, analysed("large", 20).value, retries=1),
        report.Run("analyse", False, "/lib/bad/<x>.py: line 1: no"),
    ]
    one = {"pid": 7, "started": 100.1, "ended": 100.6, "retries": 0}
    parts = [
        report.Part("analyse", "modules", runs, "fast"),
        report.Part("digest", "async", [report.Run("digest", True, one)]),
        report.Part("notify", "calls", [report.Run("notify", True, one | {"number": 3})]),
        report.Part(
            "die_once", "killed", [report.Run("die_once", True, one | {"killed": 8, "killed_at": 100.4})]
        ),
        report.Part("nothing", "nothing ended", [report.Run("nothing", False, "why")]),
    ]
    return report.join(parts, runs, 1.5, {"python": "3.11", "children": "2", "version": "0.1.0"})


def test_results_are_joined_by_package() -> None:
    joined = small_report()
    assert [(package.name, package.files, package.tokens) for package in joined.packages] == [
        ("large", 2, 70),
        ("small", 1, 5),
    ]
    assert joined.total.files == 3
    assert joined.total.functions == 9
    assert joined.size == 30
    assert joined.imports == [("os", 3), ("<sys>", 1)]
    assert joined.failures == ["/lib/bad/<x>.py: line 1: no"]


def test_parts_count_their_runs() -> None:
    rows = report.parts_rows(small_report())
    assert rows[0] == ["modules", "4", "3", "1", "1", "1.00 s", "fast"]
    assert rows[-1] == ["nothing ended", "1", "0", "1", "0", "–", ""]


def test_text_shows_packages_and_failures() -> None:
    lines = report.text(small_report())
    assert any(line.startswith("  large  ████") for line in lines)
    assert "  bad/<x>.py: line 1: no" in lines
    assert any(line.startswith("3 modules, 0.0 MB, 6 lines, 75 tokens") for line in lines)


def test_page_is_well_formed_and_escaped(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    page.write(small_report(), target)
    html = target.read_text(encoding="utf-8")
    assert "<x>" not in html
    assert "&lt;sys&gt;" in html
    drawings = html.split("<svg")[1:]
    for drawing in drawings:
        ElementTree.fromstring("<svg" + drawing.partition("</svg>")[0] + "</svg>")
    timeline = next(drawing for drawing in drawings if "killed here" in drawing)
    assert "child 8, killed" in timeline
    assert timeline.count('class="analyse"') == 3
    assert "http" not in html.replace('lang="en"', "")


def test_timeline_has_a_lane_for_a_child_killed_at_its_first_task() -> None:
    value = {"pid": 7, "started": 100.0, "ended": 100.5, "killed": 9, "killed_at": 99.5}
    parts = [report.Part("die_once", "killed", [report.Run("die_once", True, value)])]
    drawing = page.timeline(report.join(parts, [], 1.5, {}))
    assert drawing.index("child 9, killed") < drawing.index("child 7<")
    assert "killed here" in drawing


def test_page_without_successful_tasks(tmp_path: Path) -> None:
    runs = [report.Run("analyse", False, "/a/b.py: no")]
    empty = report.join([report.Part("analyse", "modules", runs)], runs, 0.0, {})
    assert "No task succeeded" in page.page(empty)
    assert report.text(empty)
