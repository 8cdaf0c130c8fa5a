"""Peers on MongoDB: a real one, or the stand-in of our tests: `tests/support/mongodb_server.py --port 27017`.

That one looks through all documents for each question, so the numbers of tasks are small.
"""

from benchmarks.peer import celery, qworker

_WORKLOADS = ("noop", "stored", "enqueue", "latency")

ROWS = (
    qworker(
        "qworker-mongodb",
        "MongoDB",
        workloads=(*_WORKLOADS, "bulk"),
        most={"noop": 500, "stored": 500, "enqueue": 500, "latency": 30, "bulk": 500},
        note="acks after the task",
    ),
    celery(
        "celery-mongodb",
        "MongoDB",
        requirements=("celery==5.7.0", "pymongo==4.20.1"),
        workloads=_WORKLOADS,
        most={"noop": 500, "stored": 500, "enqueue": 500, "latency": 30},
        note="prefork, on kombu's `mongodb://`; what it read is gone, so a killed worker loses it; it polls",
    ),
)
