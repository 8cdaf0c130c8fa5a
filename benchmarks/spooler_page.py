"""The report of ``benchmarks.spooler``.

Comes from:  what a run has found.
Goes to:     spooler.md.
"""

from pathlib import Path

from benchmarks.markdown import table
from benchmarks.spooler import FIGURES, PLACES, SIDES, Found, ratio
from benchmarks.summary import median

_NOTE = (
    "Medians of both sides, in turn in one run. The ratio says how many times as good qworker is: as many "
    "jobs, or so many times less time. uWSGI's spoolers run at nice 19, and so does qworker here."
)


def write(found: Found, out: Path) -> list[Path]:
    """Write the page into `out`; returns its path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "spooler.md"
    path.write_text(document(found), encoding="utf-8")
    return [path]


def document(found: Found) -> str:
    """The report as Markdown."""
    about = ", ".join(f"{title} {text}" for title, text in found.machine.items())
    parts = ["# The spooler beside uWSGI's", f"{found.started}: {about}; {found.jobs:,} jobs", _NOTE]
    for place in PLACES:
        rows = _rows(found, place)
        if rows:
            head = ["", "unit", "uWSGI", "qworker", "ratio", "rounds"]
            parts += [f"## In {'memory' if place == 'memory' else 'files on a disk'}", table(head, rows)]
    failed = [
        f"- {each.side}, {each.place}, {each.figure}: {(each.error or '').strip().splitlines()[-1]}"
        for each in found.measured
        if each.error
    ]
    if failed:
        parts += ["## What has no figure", "\n".join(dict.fromkeys(failed))]
    return "\n\n".join(parts) + "\n"


def _rows(found: Found, place: str) -> list[list[str]]:
    rows = []
    for name, figure in FIGURES.items():
        sides = [found.values(side, place, name) for side in SIDES]
        if any(sides):
            times = ratio(found, place, name)
            shown = [f"{median(values):,.{figure.digits}f}" if values else "–" for values in sides]
            rounds = str(min(map(len, sides)))
            rows.append(
                [figure.title, figure.unit, *shown, "–" if times is None else f"{times:.2f}×", rounds]
            )
    return rows
