"""What is measured: each figure's name, unit and direction.

A table and nothing else: workloads produce figures under these names, the report reads them; goals.py says
what is wanted.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One figure. `better` is "higher", "lower", or "" when it only informs; `digits` after the decimal
    point."""

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
        Metric("emptied_rate", "emptied", "drain no-op tasks, none left", "tasks/s", "higher"),
        Metric("stored_rate", "stored", "drain, results stored", "tasks/s", "higher"),
        Metric("enqueue_rate", "enqueue", "enqueue, one call at a time", "calls/s", "higher"),
        Metric("bulk_rate", "bulk", "enqueue in bulk, 500 at a time", "calls/s", "higher"),
        Metric("latency_p50", "latency", "idle latency, p50", "ms", "lower", 2),
        Metric("latency_p95", "latency", "idle latency, p95", "ms", "lower", 2),
        Metric("latency_p99", "latency", "idle latency, p99", "ms", "lower", 2),
        Metric("cpu1_efficiency", "cpu1", "1 ms tasks: share of two cores", "", "higher", 2),
        Metric("cpu10_efficiency", "cpu10", "10 ms tasks: share of two cores", "", "higher", 2),
        Metric("eta_tasks", "eta", "ETA: tasks", "", ""),
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
        Metric("chain_time", "chain", "chain of 100, call to last end", "ms", "lower", 1),
        Metric("chord_time", "chord", "chord of 1,000, call to the body's end", "ms", "lower", 1),
        Metric("group_publish_rate", "group", "group of 10,000, published", "calls/s", "higher"),
        Metric("group_collect_rate", "group", "group of 10,000, values collected", "values/s", "higher"),
        Metric("large_chord_rate", "large-chord", "chord of 50,000, to the body's end", "tasks/s", "higher"),
        Metric("large_chord_memory", "large-chord", "its caller's memory, a member", "kB", "lower", 2),
        Metric("half_chord_memory", "large-chord", "the same, chord of 25,000", "kB", "lower", 2),
        Metric("stop_finished", "stop", "stop: share of running tasks let finish", "", "", 2),
    )
}
