"""Writes the report of a run: report.md and report.html, the same content twice."""

from pathlib import Path

from benchmarks import markdown
from benchmarks.results import Results


def write(results: Results, out: Path) -> list[Path]:
    """Write both files into `out`; returns their paths."""
    from benchmarks import page  # with matplotlib, which only a report needs

    out.mkdir(parents=True, exist_ok=True)
    files = {out / "report.md": markdown.document(results), out / "report.html": page.document(results)}
    for path, content in files.items():
        path.write_text(content, encoding="utf-8")
    return list(files)
