"""Holds figures against each other and against the targets. Pure: Results in, rows for the report out."""

from dataclasses import dataclass

from benchmarks import limits
from benchmarks.goals import TARGETS, Goal, Target
from benchmarks.metrics import METRICS, Metric
from benchmarks.peers import PEERS
from benchmarks.results import Results, Spread

PASS, MISS, UNKNOWN = "pass", "miss", "not measured"
OURS = "qworker"


@dataclass(frozen=True)
class Row:
    """One target judged. `best` is the best peer on the same broker; `ratio` above 1 means that the subject
    is better, and is None where no peer has the figure or where a ratio says nothing (zero, or below).
    `limit` is what the server or the machine would allow, in the figure's unit; None where no limit was
    measured for it."""

    metric: Metric
    target: Target
    figure: Spread | None
    best: tuple[str, Spread] | None
    ratio: float | None
    required: float | None
    verdict: str
    aim: str
    limit: float | None = None


def ours(peer: str) -> bool:
    """Whether that name is a variant of qworker rather than a peer."""
    return peer == OURS or peer.startswith(f"{OURS}-")


def best_peer(results: Results, metric: Metric, group: str) -> tuple[str, Spread] | None:
    """The peer on that broker with the best median, qworker left out; None when no peer has the figure."""
    peers = [(name, spread) for name, spread in results.figures(metric.name, group).items() if not ours(name)]
    if not peers or not metric.better:
        return None
    choose = max if metric.better == "higher" else min
    return choose(peers, key=lambda item: item[1].median)


def ratio(metric: Metric, mine: float, other: float) -> float | None:
    """How many times better `mine` is than `other`, or None where that says nothing."""
    if mine <= 0 or other <= 0 or not metric.better:
        return None
    return mine / other if metric.better == "higher" else other / mine


def required(results: Results, metric: str, goal: Goal) -> float | None:
    """The bound in the figure's unit; None when the peer it refers to was not measured in this run."""
    if not goal.peer:
        return goal.bound
    spread = results.figure(metric, goal.peer)
    return None if spread is None else goal.bound * spread.median


def judge(results: Results, target: Target) -> Row:
    """Judge one target by the medians of this run."""
    metric = METRICS[target.metric]
    figure = results.figure(metric.name, target.subject)
    best = best_peer(results, metric, group_of(results, target))
    bounds = [required(results, metric.name, goal) for goal in target.goals]
    known = [bound for bound in bounds if bound is not None]
    strictest = (max if target.at_least else min)(known) if known else None
    return Row(
        metric,
        target,
        figure,
        best,
        ratio(metric, figure.median, best[1].median) if figure and best else None,
        strictest,
        _verdict(figure, bounds, target.at_least),
        _verdict(figure, [required(results, metric.name, target.aim)], target.at_least) if target.aim else "",
        limits.bound(results.limits, metric, group_of(results, target)),
    )


def group_of(results: Results, target: Target) -> str:
    """The broker that the target is about."""
    return results.group(target.subject) if target.subject in results.peers else PEERS[target.subject].group


def judge_all(results: Results, group: str | None = None) -> list[Row]:
    """Every target whose workload was run on its broker, for any peer, in the order of the table; those of
    one broker if `group` names it."""
    measured = {(results.group(cell.peer), cell.workload) for cell in results.cells}
    return [
        judge(results, target)
        for target in TARGETS
        if (group_of(results, target), METRICS[target.metric].workload) in measured
        and group in (None, group_of(results, target))
    ]


def _verdict(figure: Spread | None, bounds: list[float | None], at_least: bool) -> str:
    if figure is None:
        return UNKNOWN
    known = [bound for bound in bounds if bound is not None]
    if any(figure.median < bound if at_least else figure.median > bound for bound in known):
        return MISS
    return PASS if len(known) == len(bounds) else UNKNOWN
