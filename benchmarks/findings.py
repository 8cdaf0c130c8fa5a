"""What the report says in words, before and beside the tables; Markdown and HTML say the same."""

from collections.abc import Sequence

from benchmarks import formats
from benchmarks.growth import CURVES, FIGURES
from benchmarks.judgement import MISS, PASS, Row, best_peer, ours, ratio
from benchmarks.metrics import METRICS
from benchmarks.peer import EMBEDDED
from benchmarks.results import Results

TITLE = "qworker beside its peers"
RATIO_NOTE = (
    "How many times better than the best peer on the same broker, on a logarithmic scale around 1: "
    "to the right of the line is better, to the left is worse."
)
GLANCE_NOTE = (
    "qworker's figure on each broker and, in brackets, how many times better than the best peer "
    "there; ✔ at least as good."
)
GLANCE = (
    "noop_rate",
    "stored_rate",
    "enqueue_rate",
    "bulk_rate",
    "latency_p50",
    "latency_p99",
    "cpu1_efficiency",
    "eta_late_p99",
    "behind_eta",
    "beside_worst",
    "idle_pss",
    "start_seconds",
    "stop_beyond",
)
LIMIT_NOTE = (
    "A bare loop around the server's own client, with messages of 300 bytes: what qworker has to stay below. "
    "Several processes at once can do more than one loop."
)


def heading(group: str) -> str:
    """The title of a broker's part."""
    return "Embedded, without a server" if group == EMBEDDED else f"On {group}"


def measured_groups(results: Results) -> list[str]:
    """The brokers that have figures in this run."""
    return [
        group
        for group in results.groups()
        if any(results.group(cell.peer) == group for cell in results.cells)
    ]


def glance(results: Results) -> tuple[list[str], list[list[str]]]:
    """Head and rows: what qworker has on each broker, and the ratio to the best peer there."""
    groups = measured_groups(results)
    rows = []
    for name in GLANCE:
        metric = METRICS[name]
        line = [f"{metric.title}{f', {metric.unit}' if metric.unit else ''}"]
        for group in groups:
            mine = [spread for peer, spread in results.figures(name, group).items() if ours(peer)]
            best = best_peer(results, metric, group)
            text = formats.number(metric, mine[0].median) if mine else formats.NOTHING
            times = ratio(metric, mine[0].median, best[1].median) if mine and best else None
            if times is not None:
                text += f" ({formats.ratio(times)}{' ✔' if times >= 1 else ''})"
            line.append(text)
        if any(text != formats.NOTHING for text in line[1:]):
            rows.append(line)
    return ["", *groups], rows


def figures(results: Results, group: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows: every figure of every peer on that broker, the median with least and most when rounds
    differ."""
    peers = [peer for peer in results.peers if results.group(peer) == group]
    rows = [
        [metric.title, metric.unit, *(formats.figure(metric, found.get(peer), unit=False) for peer in peers)]
        for metric in METRICS.values()
        if (found := results.figures(metric.name, group))
    ]
    return ["figure", "unit", *peers], rows


def growth(results: Results, curve: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows of one growth curve: a row for each figure of each peer, microseconds a task."""
    points = [point for point in results.growth if point.curve == curve]
    places = sorted({point.x for point in points})
    rows = []
    for figure, words in FIGURES.items():
        for peer in dict.fromkeys(point.peer for point in points):
            values = {
                point.x: point.figures[figure]
                for point in points
                if point.peer == peer and figure in point.figures
            }
            if values:
                rows.append(
                    [words, peer, *(f"{values[x]:,.1f}" if x in values else formats.NOTHING for x in places)]
                )
    return ["µs a task", "peer", *(f"{x:,.0f}" for x in places)], rows


def curves(results: Results) -> list[str]:
    """The growth curves of this run."""
    return [name for name in CURVES if any(point.curve == name for point in results.growth)]


def machine(results: Results) -> str:
    """Where, when and how the figures were taken, in one line."""
    rounds = f"{results.rounds} round{'s' if results.rounds > 1 else ''}"
    places = [f"{title} {value}" for title, value in results.machine.items()]
    return ", ".join([results.started, *places, rounds, f"scale {results.scale:g}"])


def headline(rows: Sequence[Row]) -> str:
    """How many goals hold, in one sentence."""
    met = sum(row.verdict == PASS for row in rows)
    missed = sum(row.verdict == MISS for row in rows)
    rest = len(rows) - met - missed
    return f"{met} of {len(rows)} goals met, {missed} missed" + (
        f", {rest} not measured in this run." if rest else "."
    )


def warnings(results: Results) -> list[str]:
    """What a reader must know before believing the figures; often nothing."""
    found = []
    if results.scale < 1:
        found.append(f"Run at scale {results.scale:g}: a trial, too short to be held against the goals.")
    found.extend(f"Left out {name}: {why}." for name, why in results.skipped.items())
    if results.left_out:
        found.append(
            f"Left out, for the time was over or a server is missing: {', '.join(results.left_out)}."
        )
    noisy = results.noisy()
    if noisy:
        found.append(
            f"{len(noisy)} of {len(results.cells)} cells began while the machine was busy with other work (a "
            "fixed loop "
            "took more than 1.5 times its least). Ratios within the run still say something; more rounds "
            "say more."
        )
    failed = [f"{cell.workload}, {cell.peer}: {brief(cell.error)}" for cell in results.cells if cell.error]
    failed += [
        f"{point.curve} at {point.x:,.0f}, {point.peer}: {brief(point.error)}"
        for point in results.growth
        if point.error
    ]
    found.extend(f"No figure for {line}" for line in failed)
    return found


def brief(error: str) -> str:
    """The first and the last line of what a peer said; the rest is in the JSON file."""
    said = error.strip().splitlines()
    return f"{said[0]} … {said[-1].strip()}" if len(said) > 2 else " ".join(said)


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
    """Physical limits: what, how many a second, microseconds for each."""
    return [[title, f"{rate:,.0f}", f"{1e6 / rate:,.1f}"] for title, rate in results.limits.items()]


LIMITS_HEAD = ["what", "a second", "µs each"]


def peers(results: Results) -> list[list[str]]:
    """Who was measured: name, broker, version, note."""
    return [
        [name, results.group(name), peer["version"], peer["note"]] for name, peer in results.peers.items()
    ]


PEERS_HEAD = ["peer", "broker", "version", "note"]
TARGETS_HEAD = ["figure", "qworker", "best peer", "ratio", "of the limit", "goal", "", "then aim for", ""]
