"""Combines the demo's results into one report, and writes it as text.

Comes from:  driver, one Run for each task.
Goes to:     the terminal (text), and page (HTML).
Thread:      main; pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qworker.cli.demo.screen import bar, table

PACKAGES_SHOWN = 12
IMPORTS_SHOWN = 10
FAILURES_SHOWN = 6
BAR_WIDTH = 32


@dataclass(frozen=True)
class Run:
    """One task that ended. value: its return value, or the text of its error."""

    part: str
    ok: bool
    value: Any
    retries: int = 0


@dataclass(frozen=True)
class Part:
    """A row of the table: the purpose, and a sentence about the result, made once all tasks have ended."""

    name: str
    title: str
    runs: Sequence[Run]
    note: str = ""

    @property
    def ok(self) -> int:
        return sum(run.ok for run in self.runs)

    @property
    def retried(self) -> int:
        return sum(bool(run.retries) for run in self.runs)

    @property
    def span(self) -> tuple[float, float]:
        """First start and last end, epoch seconds; both 0.0 when nothing succeeded."""
        values = [run.value for run in self.runs if run.ok]
        if not values:
            return 0.0, 0.0
        return min(value["started"] for value in values), max(value["ended"] for value in values)

    @property
    def seconds(self) -> float:
        started, ended = self.span
        return ended - started


@dataclass
class Package:
    """Totals of one top-level package or module."""

    name: str
    files: int = 0
    lines: int = 0
    tokens: int = 0
    classes: int = 0
    functions: int = 0

    def add(self, analysis: dict[str, Any]) -> None:
        self.files += 1
        self.lines += analysis["lines"]
        self.tokens += analysis["tokens"]
        self.classes += analysis["classes"]
        self.functions += analysis["functions"]


@dataclass(frozen=True)
class Report:
    """The contents of the report, for the terminal and for HTML."""

    parts: Sequence[Part]
    packages: Sequence[Package]
    imports: Sequence[tuple[str, int]]
    failures: Sequence[str]
    total: Package
    size: int
    seconds: float
    facts: dict[str, str] = field(default_factory=dict)


def join(parts: Sequence[Part], analysed: Iterable[Run], seconds: float, facts: dict[str, str]) -> Report:
    """Combine the analyses into packages and counts. seconds: wall time from the first publish to the last
    result."""
    packages: dict[str, Package] = {}
    imports: Counter[str] = Counter()
    failures: list[str] = []
    total = Package("all")
    size = 0
    for run in analysed:
        if not run.ok:
            failures.append(str(run.value))
            continue
        packages.setdefault(run.value["package"], Package(run.value["package"])).add(run.value)
        total.add(run.value)
        size += run.value["size"]
        imports.update(run.value["imports"])
    return Report(
        parts=parts,
        packages=sorted(packages.values(), key=lambda package: -package.tokens),
        imports=imports.most_common(IMPORTS_SHOWN),
        failures=sorted(failures),
        total=total,
        size=size,
        seconds=seconds,
        facts=facts,
    )


def parts_rows(report: Report) -> list[list[str]]:
    return [
        [
            part.title,
            f"{len(part.runs):,}",
            f"{part.ok:,}",
            f"{len(part.runs) - part.ok:,}",
            f"{part.retried:,}",
            f"{part.seconds:.2f} s" if part.ok > 1 else "–",
            part.note,
        ]
        for part in report.parts
    ]


PARTS_HEADINGS = ("what ran", "tasks", "ok", "failed", "retried", "took", "")


def text(report: Report, *, ascii_only: bool = False) -> list[str]:
    """Return the report as lines for a terminal."""
    lines = [*table(PARTS_HEADINGS, parts_rows(report)), ""]
    total = report.total
    lines.append(
        f"{total.files:,} modules, {report.size / 1e6:.1f} MB, {total.lines:,} lines, {total.tokens:,} "
        "tokens, "
        f"{total.classes:,} classes, {total.functions:,} functions, read in {report.seconds:.1f} s"
    )
    shown = report.packages[:PACKAGES_SHOWN]
    if shown:
        lines += ["", "Largest packages, by tokens"]
        width = max(len(package.name) for package in shown)
        for package in shown:
            drawn = bar(package.tokens / shown[0].tokens, BAR_WIDTH, ascii_only=ascii_only)
            lines.append(
                f"  {package.name:<{width}}  {drawn}  {package.tokens:>9,}"
                f"  files {package.files:>4}  classes {package.classes:>5,}"
            )
    if report.imports:
        lines += ["", "Imported most: " + ", ".join(f"{name} ({count})" for name, count in report.imports)]
    if report.failures:
        lines += [
            "",
            f"Not valid in this version of Python, as their tasks reported ({len(report.failures)}):",
        ]
        lines += [f"  {short_path(failure)}" for failure in report.failures[:FAILURES_SHOWN]]
        hidden = len(report.failures) - FAILURES_SHOWN
        if hidden > 0:
            lines.append(f"  and {hidden} more, in the HTML report")
    return lines


def short_path(failure: str) -> str:
    """Return the error's text with its path shortened to the last two parts."""
    path, separator, message = failure.partition(": ")
    return "/".join(Path(path).parts[-2:]) + separator + message
