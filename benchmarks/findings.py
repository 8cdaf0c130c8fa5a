"""What the report says in words, before and beside the tables; Markdown and HTML say the same."""

from collections.abc import Sequence

from benchmarks.judgement import MISS, PASS, Row
from benchmarks.results import Results

TITLE = "qworker beside its peers"
RATIO_NOTE = (
    "How many times better than the best peer of each figure, on a logarithmic scale around 1: "
    "to the right of the line is better, to the left is worse."
)


def machine(results: Results) -> str:
    """Where, when and how the figures were taken, in one line."""
    rounds = f"{results.rounds} round{'s' if results.rounds > 1 else ''}"
    places = [f"{title} {value}" for title, value in results.machine.items()]
    return ", ".join([results.started, *places, rounds, f"scale {results.scale:g}"])


def headline(rows: Sequence[Row]) -> str:
    """How many targets hold, in one sentence."""
    met = sum(row.verdict == PASS for row in rows)
    missed = sum(row.verdict == MISS for row in rows)
    rest = len(rows) - met - missed
    return f"{met} of {len(rows)} targets met, {missed} missed" + (
        f", {rest} not measured in this run." if rest else "."
    )


def warnings(results: Results) -> list[str]:
    """What a reader must know before believing the figures; often nothing."""
    found = []
    if results.scale < 1:
        found.append(f"Run at scale {results.scale:g}: a trial, too short to be held against the targets.")
    found.extend(f"Left out {name}: {why}." for name, why in results.skipped.items())
    noisy = results.noisy()
    if noisy:
        found.append(
            f"{len(noisy)} of {len(results.cells)} cells began while the machine was busy with other work (a fixed loop "
            "took more than 1.5 times its least). Ratios within the run still say something; more rounds say more."
        )
    failed = [f"{cell.workload}, {cell.peer}: {cell.error}" for cell in results.cells if cell.error]
    found.extend(f"No figure for {line}" for line in failed)
    return found


def total(results: Results) -> str:
    """One sentence on losses and repeats; a table of `losses` follows when there are any."""
    tasks = sum(cell.tasks for cell in results.cells)
    if losses(results):
        return f"{tasks:,} tasks; these cells lost some or ran some twice:"
    return f"{tasks:,} tasks: none lost, none run twice."


def losses(results: Results) -> list[list[str]]:
    """Cells that lost or repeated tasks: peer, workload, round, tasks, lost, run again."""
    return [
        [cell.peer, cell.workload, str(cell.round), f"{cell.tasks:,}", f"{cell.lost:,}", f"{cell.repeated:,}"]
        for cell in results.cells
        if cell.lost or cell.repeated
    ]


LOSSES_HEAD = ["peer", "workload", "round", "tasks", "lost", "run again"]


def limits(results: Results) -> list[list[str]]:
    """Physical limits: what, rows a second, microseconds for each."""
    return [[title, f"{rate:,.0f}", f"{1e6 / rate:,.1f}"] for title, rate in results.limits.items()]


LIMITS_HEAD = ["what", "rows/s", "µs each"]


def peers(results: Results) -> list[list[str]]:
    """Who was measured: name, version, note."""
    return [[name, peer["version"], peer["note"]] for name, peer in results.peers.items()]


PEERS_HEAD = ["peer", "version", "note"]
TARGETS_HEAD = ["figure", "qworker", "best peer", "ratio", "target", "", "then aim for", ""]
