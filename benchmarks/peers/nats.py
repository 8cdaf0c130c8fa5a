"""Peers on NATS JetStream, whose streams are files."""

from pathlib import Path

from benchmarks.peer import Peer, celery, qworker

HERE = Path(__file__).parents[2]

_WORKLOADS = ("noop", "enqueue", "latency")

ROWS = (
    qworker(
        "qworker-nats",
        "NATS",
        workloads=(*_WORKLOADS, "bulk"),
        note="acks after the task; each publish is confirmed",
    ),
    Peer(
        "taskiq-nats",
        "taskiq",
        "taskiq_nats",
        ("{bin}/taskiq", "worker", "benchmarks.adapters.taskiq_nats:broker", "-w", "{concurrency}",
         "--log-level", "WARNING"),
        requirements=("taskiq==0.13.0", "taskiq-nats==0.7.0", "nats-py==2.16.0", "uvloop==0.23.0"),
        workloads=_WORKLOADS,
        server="NATS",
        note="PullBasedJetStreamBroker, 100 messages a fetch (1 by default), async bodies; acknowledges "
        "after the task; each publish is confirmed",
    ),
    celery(
        "celery-nats-qworker",
        "NATS",
        requirements=("celery==5.7.0", "nats-py==2.16.0", f"--editable={HERE}"),  # which registers nats://
        workloads=_WORKLOADS,
        most={"noop": 5_000},
        environment={"BENCHMARK_TRANSPORT": "qworker"},
        note="Celery's own worker, prefork, on `qworker+nats://`, the only transport of NATS that there is "
        "for it; acknowledges when a task begins",
    ),
)  # fmt: skip
