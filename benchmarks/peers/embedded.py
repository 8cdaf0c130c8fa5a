"""Peers without a server: the queue is a file of the cell's directory."""

import signal

from benchmarks.peer import Peer, celery, qworker, without

ROWS = (
    qworker("qworker", note="embedded broker, every publish fsynced (synchronous=FULL); acks after the task"),
    qworker(
        "qworker-normal",
        workloads=("enqueue", "bulk"),
        environment={"BENCHMARK_SYNCHRONOUS": "NORMAL"},
        note="embedded broker, publishes survive a crash of the process but not of the machine "
        "(synchronous=NORMAL)",
    ),
    Peer(
        "huey-sqlite",
        "huey",
        "huey_sqlite",
        (
            "{bin}/huey_consumer",
            "benchmarks.adapters.huey_sqlite.huey",
            "-w",
            "{concurrency}",
            "-k",
            "process",
            "-q",
        ),
        requirements=("huey==3.5.4",),
        workloads=without("bulk"),
        stop_signal=signal.SIGINT,
        note="SqliteHuey, WAL, SQLite's default durability (FULL); acknowledges nothing: takes a task out of "
        "the queue "
        "before it runs, so a killed worker loses it; stopped by SIGINT, its graceful signal",
    ),
    celery(
        "celery-sqlalchemy",
        requirements=("celery==5.7.0", "sqlalchemy==2.1.9"),
        workloads=without("bulk", "eta"),
        most={
            "noop": 3000,
            "stored": 2000,
            "enqueue": 3000,
            "latency": 30,
            "cpu1": 1000,
            "behind-eta": 200,
        },
        note="sqla+sqlite:///, prefork; acknowledges when a task begins; fewer tasks, for it polls once a "
        "second; no ETA "
        "drain, it cannot enqueue them in time",
    ),
)
