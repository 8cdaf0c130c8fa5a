"""What is measured: each figure's name, unit and direction, and the targets that qworker is held to.

A table and nothing else: workloads produce figures under these names, the report reads them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One figure. `better` is "higher", "lower", or "" when it only informs; `digits` after the decimal point."""

    name: str
    workload: str
    title: str
    unit: str
    better: str
    digits: int = 0


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("noop_rate", "noop", "drain no-op tasks", "tasks/s", "higher"),
        Metric("stored_rate", "stored", "drain, results stored", "tasks/s", "higher"),
        Metric("enqueue_rate", "enqueue", "enqueue, one call at a time", "calls/s", "higher"),
        Metric("bulk_rate", "bulk", "enqueue in bulk, 500 at a time", "calls/s", "higher"),
        Metric("latency_p50", "latency", "idle latency, p50", "ms", "lower", 2),
        Metric("latency_p95", "latency", "idle latency, p95", "ms", "lower", 2),
        Metric("latency_p99", "latency", "idle latency, p99", "ms", "lower", 2),
        Metric("cpu1_efficiency", "cpu1", "1 ms tasks: share of two cores", "", "higher", 2),
        Metric("cpu10_efficiency", "cpu10", "10 ms tasks: share of two cores", "", "higher", 2),
        Metric("eta_late_p50", "eta", "ETA at 2,500/s: late, p50", "ms", "lower", 1),
        Metric("eta_late_p99", "eta", "ETA at 2,500/s: late, p99", "ms", "lower", 1),
        Metric("eta_earliest", "eta", "ETA at 2,500/s: earliest (below 0 = too early)", "ms", "", 2),
        Metric("eta_accept_rate", "eta", "ETA: enqueued while the worker runs", "calls/s", "higher"),
        Metric("eta_pss_before", "eta", "ETA: worker's memory before", "MB", "lower", 1),
        Metric("eta_pss_growth", "eta", "ETA: memory added by holding them", "MB", "lower", 1),
        Metric("behind_eta", "behind-eta", "plain task behind 500 ETA tasks", "ms", "lower", 1),
        Metric("beside_worst", "beside-long", "1 ms task beside 1 s tasks, worst", "ms", "lower", 1),
        Metric("beside_p50", "beside-long", "1 ms task beside 1 s tasks, p50", "ms", "lower", 1),
        Metric("idle_pss", "idle", "idle: memory of the tree (PSS)", "MB", "lower", 1),
        Metric("idle_processes", "idle", "idle: processes", "", ""),
        Metric("idle_cpu", "idle", "idle: processor", "%", "lower", 2),
        Metric("idle_written", "idle", "idle: written to disk in 20 s", "kB", "lower", 1),
        Metric("start_seconds", "start", "start to first task", "s", "lower", 2),
        Metric("stop_beyond", "stop", "stop beyond the running task", "s", "lower", 2),
        Metric("stop_finished", "stop", "stop: share of running tasks let finish", "", "", 2),
    )
}


@dataclass(frozen=True)
class Goal:
    """What a figure must reach: a bound by itself, or `bound` times the figure of `peer` in the same run."""

    bound: float
    peer: str = ""


@dataclass(frozen=True)
class Target:
    """The goals of one figure of `subject`; all must hold. `aim` is what to try for after that."""

    metric: str
    goals: tuple[Goal, ...]
    aim: Goal | None = None
    subject: str = "qworker"
    floor: bool | None = None

    @property
    def at_least(self) -> bool:
        """Whether the figure must be at or above its goals, rather than at or below."""
        return self.floor if self.floor is not None else METRICS[self.metric].better == "higher"


TARGETS: tuple[Target, ...] = (
    Target("noop_rate", (Goal(2.5, "huey-sqlite"), Goal(30, "celery-sqlalchemy")), Goal(20_000)),
    Target("stored_rate", (Goal(2.5, "huey-sqlite"),), Goal(4, "huey-sqlite")),
    Target("enqueue_rate", (Goal(1, "huey-sqlite"),)),
    Target("enqueue_rate", (Goal(3, "huey-sqlite"),), subject="qworker-normal"),
    Target("bulk_rate", (Goal(60_000),), Goal(150_000)),
    Target("latency_p50", (Goal(1.0),), Goal(0.5)),
    Target("latency_p99", (Goal(4.0),)),
    Target("cpu1_efficiency", (Goal(0.85),), Goal(0.92)),
    Target("cpu10_efficiency", (Goal(0.90),), Goal(0.95)),
    Target("eta_late_p99", (Goal(250),), Goal(50)),
    Target("eta_earliest", (Goal(0),), floor=True),
    Target("eta_pss_growth", (Goal(10),), Goal(1)),
    Target("behind_eta", (Goal(10),)),
    Target("beside_worst", (Goal(10),)),
    Target("idle_pss", (Goal(40),), Goal(33)),
    Target("idle_cpu", (Goal(0.1),)),
    Target("idle_written", (Goal(0),)),
    Target("start_seconds", (Goal(0.4),), Goal(0.2)),
    Target("stop_beyond", (Goal(0.1),)),
    Target("stop_finished", (Goal(1),), floor=True),
)
