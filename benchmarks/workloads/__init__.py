"""The workloads by name. Each is a function that takes a Cell and returns its figures, named as in
`metrics`."""

from collections.abc import Callable

from benchmarks.cell import Cell
from benchmarks.workloads import delayed, drain, flows, lifecycle, waiting

Workload = Callable[[Cell], dict[str, float]]

WORKLOADS: dict[str, Workload] = {
    "noop": drain.noop,
    "emptied": drain.emptied,
    "stored": drain.stored,
    "enqueue": drain.enqueue,
    "bulk": drain.bulk,
    "latency": waiting.latency,
    "cpu1": drain.cpu1,
    "cpu10": drain.cpu10,
    "eta": delayed.eta,
    "behind-eta": delayed.behind_eta,
    "beside-long": waiting.beside_long,
    "idle": lifecycle.idle,
    "start": lifecycle.start,
    "stop": lifecycle.stop,
    "chain": flows.chain,
    "chord": flows.chord,
    "group": flows.group,
    "large-chord": flows.large_chord,
}
