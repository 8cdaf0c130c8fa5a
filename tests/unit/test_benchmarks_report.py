"""The arithmetic and the report of the benchmarks, on made-up figures."""

import re
from pathlib import Path

import pytest

from benchmarks import (
    findings,
    formats,
    growth,
    limits,
    markdown,
    records,
    results,
)
from benchmarks.__main__ import _chosen, _parser, main
from benchmarks.adapters.services import SERVERS
from benchmarks.bodies import RECORD
from benchmarks.fault_page import HEAD
from benchmarks.goals import TARGETS, Goal, Target
from benchmarks.growth import CURVES
from benchmarks.judgement import MISS, PASS, UNKNOWN, best_peer, judge, judge_all
from benchmarks.metrics import METRICS
from benchmarks.peer import EVERYTHING, WORKFLOWS
from benchmarks.peers import GROUPS, PEERS
from benchmarks.results import CellResult, Point, Results, Spread
from benchmarks.run import describe, plan
from benchmarks.summary import median, percentile
from benchmarks.workloads import WORKLOADS

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.one_python


def outcome(**figures: dict[str, float | list[float]]) -> Results:
    """Results from keyword arguments metric={peer: value, or values of the rounds}."""
    found = Results(started="2030-01-02T03:04:05+00:00", machine={"processor": "2 × test"})
    for metric, peers in figures.items():
        for peer, values in peers.items():
            group = PEERS[peer].group if peer in PEERS else "embedded"
            found.peers.setdefault(peer, {"version": "1.0", "note": f"note on {peer}", "group": group})
            for number, value in enumerate(values if isinstance(values, list) else [values], 1):
                found.cells.append(
                    CellResult(peer, METRICS[metric].workload, number, {metric: value}, tasks=100, noise=8.0)
                )
    return found


def target(metric: str, subject: str = "qworker") -> Target:
    return next(found for found in TARGETS if (found.metric, found.subject) == (metric, subject))


# --- statistics


@pytest.mark.parametrize(
    ("rank", "expected"), [(0, 1), (1, 1), (50, 50), (95, 95), (99, 99), (99.5, 100), (100, 100)]
)
def test_percentile_is_the_nearest_rank(rank: float, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), rank) == expected


def test_percentile_of_one_value_is_that_value() -> None:
    assert [percentile([7.0], rank) for rank in (0, 50, 99)] == [7.0, 7.0, 7.0]


def test_statistics_of_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile([], 50)
    with pytest.raises(ValueError, match="median"):
        median([])


# --- records


def test_tally_counts_lost_and_repeated_records(tmp_path: Path) -> None:
    path = tmp_path / "records"
    begun = RECORD.pack(12, 1, 5, 0)
    runs = [RECORD.pack(task, 1, 5, 9) for task in (10, 11, 11, 12, 99)]
    path.write_bytes(begun + b"".join(runs) + b"half a rec")
    assert records.count(path) == 6
    found = records.ended(records.read(path), base=10, expected=4)
    assert [record.task for record in found] == [10, 11, 11, 12]
    assert records.tally(found, 4) == records.Tally(expected=4, lost=1, repeated=1)


def test_missing_file_has_no_records(tmp_path: Path) -> None:
    assert records.read(tmp_path / "none") == []
    assert records.count(tmp_path / "none") == 0


def test_record_is_24_bytes() -> None:
    assert RECORD.size == 24


# --- results


def test_results_survive_saving_and_loading(tmp_path: Path) -> None:
    before = outcome(noop_rate={"qworker": [1.0, 3.0], "huey-sqlite": 2.0})
    before.cells[0].error = "it said no"
    before.save(tmp_path / "results.json")
    assert results.load(tmp_path / "results.json") == before


def test_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"schema": 0}')
    with pytest.raises(ValueError, match="schema 0"):
        results.load(tmp_path / "old.json")


def test_figure_is_the_median_of_its_rounds() -> None:
    found = outcome(noop_rate={"qworker": [10.0, 40.0, 20.0]})
    assert found.figure("noop_rate", "qworker") == Spread(median=20.0, least=10.0, most=40.0)
    assert found.figure("noop_rate", "huey-sqlite") is None


def test_cells_on_a_busy_machine_are_listed() -> None:
    found = outcome(noop_rate={"qworker": [1.0, 2.0, 3.0]})
    found.cells[1].noise = 13.0
    assert found.noisy() == [found.cells[1]]
    assert "1 of 3 cells" in "".join(findings.warnings(found))


# --- judgement


def test_target_relative_to_two_peers_requires_both() -> None:
    peers = {"huey-sqlite": 4_000.0, "celery-sqlalchemy": 300.0}
    assert judge(outcome(noop_rate={"qworker": 10_000.0, **peers}), target("noop_rate")).verdict == PASS
    assert judge(outcome(noop_rate={"qworker": 9_999.0, **peers}), target("noop_rate")).verdict == MISS
    peers["celery-sqlalchemy"] = 400.0
    row = judge(outcome(noop_rate={"qworker": 10_000.0, **peers}), target("noop_rate"))
    assert (row.verdict, row.required) == (MISS, 12_000.0)


def test_target_with_a_missing_peer_is_unknown_or_missed() -> None:
    only_huey = {"huey-sqlite": 4_000.0}
    assert (
        judge(outcome(noop_rate={"qworker": 20_000.0, **only_huey}), target("noop_rate")).verdict == UNKNOWN
    )
    assert judge(outcome(noop_rate={"qworker": 1_000.0, **only_huey}), target("noop_rate")).verdict == MISS
    assert judge(outcome(noop_rate=only_huey), target("noop_rate")).verdict == UNKNOWN


def test_lower_is_better_where_the_metric_says_so() -> None:
    row = judge(
        outcome(latency_p50={"qworker": 0.8, "huey-sqlite": 0.4, "celery-sqlalchemy": 70.0}),
        target("latency_p50"),
    )
    assert row.best == ("huey-sqlite", Spread(0.4, 0.4, 0.4))
    assert (row.ratio, row.verdict, row.aim) == (0.5, PASS, MISS)


def test_only_peers_on_the_same_broker_are_compared() -> None:
    found = outcome(
        noop_rate={"qworker": 9.0, "huey-sqlite": 5.0, "huey-redis": 8.0, "qworker-redis": 12.0, "rq": 1.0}
    )
    assert judge(found, target("noop_rate")).best == ("huey-sqlite", Spread(5.0, 5.0, 5.0))
    row = judge(found, target("noop_rate", "qworker-redis"))
    assert (row.best, row.ratio) == (("huey-redis", Spread(8.0, 8.0, 8.0)), 1.5)
    assert [row.target.subject for row in judge_all(found, "Redis")] == ["qworker-redis"]
    assert found.groups() == ["embedded", "Redis"]


def test_figure_is_compared_with_the_limit_of_the_server() -> None:
    found = outcome(enqueue_rate={"qworker-redis": 8_000.0}, latency_p50={"qworker-redis": 0.4})
    found.limits = {"Redis LPUSH, one at a time": 32_000.0, "Redis PING, a round trip": 20_000.0}
    assert formats.limit(judge(found, target("enqueue_rate", "qworker-redis"))) == "25% of 32,000 calls/s"
    assert formats.limit(judge(found, target("latency_p50", "qworker-redis"))) == "8.0 times 0.05 ms"
    assert judge(found, target("noop_rate", "qworker-redis")).limit is None
    found.limits = {"SQLite WAL, 1-row commits, synchronous=FULL": 5_000.0}
    assert judge(found, target("enqueue_rate", "qworker-redis")).limit is None


def test_early_task_misses_its_target() -> None:
    assert judge(outcome(eta_earliest={"qworker": -0.1}), target("eta_earliest")).verdict == MISS
    assert judge(outcome(eta_earliest={"qworker": 0.0}), target("eta_earliest")).verdict == PASS


def test_variant_is_judged_by_its_own_figure_and_is_not_a_peer() -> None:
    found = outcome(enqueue_rate={"qworker": 5_000.0, "qworker-normal": 16_000.0, "huey-sqlite": 5_000.0})
    assert judge(found, target("enqueue_rate", "qworker-normal")).verdict == PASS
    assert best_peer(found, METRICS["enqueue_rate"], "embedded") == (
        "huey-sqlite",
        Spread(5_000.0, 5_000.0, 5_000.0),
    )


def test_zero_gives_no_ratio() -> None:
    row = judge(outcome(idle_written={"qworker": 0.0, "huey-sqlite": 12.0}), target("idle_written"))
    assert (row.ratio, row.verdict) == (None, PASS)


def test_only_targets_of_the_workloads_run_are_judged() -> None:
    rows = judge_all(outcome(latency_p50={"huey-sqlite": 1.0}))
    assert [row.metric.name for row in rows] == ["latency_p50", "latency_p99"]


# --- consistency of the tables


def test_targets_and_metrics_refer_to_existing_names() -> None:
    assert (
        {metric.workload for metric in METRICS.values()}
        == set(WORKLOADS)
        == {*EVERYTHING, *WORKFLOWS, "emptied"}
    )
    for found in TARGETS:
        assert found.metric in METRICS
        assert found.subject in PEERS
        assert METRICS[found.metric].workload in PEERS[found.subject].workloads
        for goal in (*found.goals, *([found.aim] if found.aim else [])):
            assert not goal.peer or PEERS[goal.peer].group == PEERS[found.subject].group
            assert not goal.peer or METRICS[found.metric].workload in PEERS[goal.peer].workloads


def test_every_peer_has_its_adapter_and_known_workloads() -> None:
    adapters = Path(formats.__file__).parent / "adapters"
    for peer in PEERS.values():
        assert (adapters / f"{peer.adapter}.py").is_file()
        assert set(peer.workloads) | set(peer.most) <= set(WORKLOADS)
        assert not peer.server or peer.server in SERVERS


def test_limits_refer_to_existing_metrics_and_groups() -> None:
    assert len({limit.title for limit in limits.LIMITS}) == len(limits.LIMITS)
    for limit in limits.LIMITS:
        assert set(limit.bounds) <= set(METRICS)
        assert limit.group == "machine" or limit.group in {peer.group for peer in PEERS.values()}


def test_growth_needs_support_by_the_adapter() -> None:
    assert growth.has("qworker-redis", CURVES["queues"])
    assert not growth.has("huey-redis", CURVES["queues"])
    assert growth.has("huey-redis", CURVES["children"])
    assert not growth.has("rq", CURVES["children"])


def test_rounds_go_over_all_peers_of_a_workload_before_the_next() -> None:
    cells = [
        (number, workload, peer.name)
        for number, workload, peer in plan(["qworker", "qworker-normal"], ["noop", "bulk"], 2)
    ]
    once = [("noop", "qworker"), ("bulk", "qworker"), ("bulk", "qworker-normal")]
    assert cells == [(number, *cell) for number in (1, 2) for cell in once]


# --- formatting


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("noop_rate", 12_345.6, "12,346"),
        ("latency_p50", 0.376, "0.38"),
        ("latency_p50", 0.0004, "0.0004"),
        ("eta_earliest", -286.294, "−286.29"),
        ("idle_written", 0.0, "0.0"),
        ("eta_pss_growth", -0.00001, "0.0"),
    ],
)
def test_number_formatting(metric: str, value: float, expected: str) -> None:
    assert formats.number(METRICS[metric], value) == expected


def test_figures_show_the_spread_of_the_rounds() -> None:
    assert formats.figure(METRICS["noop_rate"], Spread(2_000, 1_000, 3_000)) == "2,000 (1,000–3,000) tasks/s"
    assert formats.figure(METRICS["noop_rate"], Spread(2_000, 2_000, 2_000)) == "2,000 tasks/s"
    assert formats.figure(METRICS["noop_rate"], None) == "–"


def test_goal_formatting() -> None:
    assert formats.goals(target("noop_rate")) == "≥ 2.5 × huey-sqlite, ≥ 30 × celery-sqlalchemy"
    assert formats.goals(target("latency_p50")) == "≤ 1.00 ms"
    assert formats.goal(target("eta_earliest"), Goal(0)) == "≥ 0.00 ms"


def test_description_of_a_cell_has_losses_and_failure() -> None:
    cell = CellResult("arq", "noop", 1, {"noop_rate": 12_345.678}, lost=3, repeated=1)
    assert "noop_rate 12,345.7" in describe(cell)
    assert "LOST 3 REPEATED 1" in describe(cell)
    cell.error = "no task ran"
    assert describe(cell).endswith("failed: no task ran")


FULL = {
    "noop_rate": {"qworker": 18_000.0, "huey-sqlite": 5_000.0, "celery-sqlalchemy": 320.0},
    "latency_p50": {"qworker": 0.9, "huey-sqlite": 0.5, "celery-sqlalchemy": 990.0},
    "eta_earliest": {"qworker": 0.1, "huey-sqlite": -900.0},
}


def test_markdown_row_has_figure_ratio_target_and_mark() -> None:
    text = markdown.document(outcome(**FULL))
    line = next(line for line in text.splitlines() if line.startswith("| drain no-op tasks ") and "≥" in line)
    assert "| drain no-op tasks, tasks/s | 18,000 (3.60× ✔) |" in re.sub(" +", " ", text)
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "drain no-op tasks",
        "18,000 tasks/s",
        "5,000 tasks/s huey-sqlite",
        "3.60×",
        "–",
        "≥ 2.5 × huey-sqlite, ≥ 30 × celery-sqlalchemy",
        "✔",
        "≥ 20,000 tasks/s",
        "✘",
    ]
    assert "none lost, none run twice" in text


def test_text_plot_grows_to_the_better_side() -> None:
    lines = markdown.plot(judge_all(outcome(**FULL))).splitlines()
    better = next(line for line in lines if line.startswith("drain no-op"))
    worse = next(line for line in lines if line.startswith("idle latency, p50"))
    assert re.search(r" │█+", better)
    assert re.search(r"█+│ ", worse)


def test_empty_plot_says_that_it_has_no_figures() -> None:
    assert "no figure" in markdown.plot([])


def test_table_cells_cannot_break_the_table() -> None:
    assert markdown.table(["a"], [["x|y\nz"]]).splitlines()[-1] == "| x\\|y z |"


def test_losses_are_in_the_report() -> None:
    found = outcome(noop_rate={"qworker": 1.0})
    found.cells[0].lost = 2
    assert "| qworker | noop     | 1     | 100   | 2    | 0         |" in markdown.document(found)


def test_failures_and_partial_runs_are_warned_about() -> None:
    found = outcome(noop_rate={"qworker": 1.0})
    found.scale = 0.1
    found.cells[0].error = "no task ran"
    found.skipped = {"huey-redis": "no Redis answers"}
    assert [line.split(":")[0] for line in findings.warnings(found)] == [
        "Run at scale 0.1",
        "Left out huey-redis",
        "No figure for noop, qworker",
    ]


def grown(peer: str = "qworker") -> Results:
    found = Results(started="2030-01-02T03:04:05+00:00")
    found.peers[peer] = {"version": "1.0", "note": "", "group": "embedded"}
    found.growth = [
        Point(peer, "queued", x, {"run": cost, "publish": 20.0}) for x, cost in ((1e4, 60.0), (1e3, 50.0))
    ]
    return found


def test_growth_is_reported_as_a_table() -> None:
    found = grown()
    found.growth[0].error = "it stopped\nhere"
    text = markdown.document(found)
    assert "### With messages waiting" in text
    line = next(line for line in text.splitlines() if line.startswith("| run one"))
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["run one", "qworker", "50.0", "60.0"]
    assert "No figure for queued at 10,000, qworker: it stopped here" in text
    assert "Losses" not in text


def test_file_without_groups_is_loaded(tmp_path: Path) -> None:
    found = outcome(noop_rate={"huey-redis": 1.0, "gone": 1.0})
    for peer in found.peers.values():
        del peer["group"]
    found.save(tmp_path / "old.json")
    again = results.load(tmp_path / "old.json")
    assert [again.group(peer) for peer in again.peers] == ["Redis", "embedded"]


def test_groups_and_peers_options_are_combined() -> None:
    parse = _parser().parse_args
    assert _chosen(parse(["run", "--groups", "mariadb", "--peers", "rq"]), []) == ["rq", "qworker-mariadb"]
    assert _chosen(parse(["run"]), ["qworker"]) == ["qworker"]


def test_unknown_peer_is_refused_with_a_list_of_peers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "--peers", "huey-sqlite,rabbit"])
    assert stopped.value.code == 2
    assert "unknown: rabbit; choose from qworker" in capsys.readouterr().err


def test_page_lists_every_group() -> None:
    page = (REPOSITORY / "docs/explanation/benchmarks.md").read_text(encoding="utf-8")
    named = re.search(r"`--groups` takes brokers \(([^)]*)\)", page)
    assert named
    assert set(re.findall(r"`(\w+)`", named[1])) == set(GROUPS)


def test_missing_plot_packages_are_reported_before_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    def find_nothing(name: str) -> None:
        """No package is installed."""

    for command in (["run"], ["growth"], ["schedulers"], ["report", "none.json"]):
        assert main(command, find=find_nothing) == 2
        assert 'pip install -e ".[bench]"' in capsys.readouterr().err
    assert main(["list"], find=find_nothing) == 0


def test_head_of_the_faults_page_is_up_to_date() -> None:
    written = (REPOSITORY / "docs/explanation/faults.md").read_text(encoding="utf-8").split("\n## ")[0]
    run = re.search(r"run on (\S+) \(([^)]*)\)", written)
    assert run
    assert written == HEAD.format(date=run[1], machine=run[2])
