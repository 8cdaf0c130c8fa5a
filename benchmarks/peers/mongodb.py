"""Peers on MongoDB: a real one, or SecantusDB, as `benchmarks/mongodb_server.py` starts it."""

from benchmarks.peer import celery, qworker

_WORKLOADS = ("noop", "stored", "enqueue", "latency")

ROWS = (
    qworker(
        "qworker-mongodb",
        "MongoDB",
        workloads=(*_WORKLOADS, "bulk"),
        most={"noop": 2_000, "stored": 2_000, "enqueue": 2_000, "bulk": 5_000},
        note="acks after the task; each call returns when it is in the journal",
    ),
    celery(
        "celery-mongodb",
        "MongoDB",
        requirements=("celery==5.7.0", "pymongo==4.20.1"),
        workloads=_WORKLOADS,
        most={"noop": 2_000, "stored": 2_000, "enqueue": 2_000},
        note="prefork, on kombu's `mongodb://`; what it read is gone, so a killed worker loses it; it polls, "
        "and waits for no journal",
    ),
)
