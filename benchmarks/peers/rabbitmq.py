"""Peers on RabbitMQ. It keeps no results: those who store some store them in Redis."""

from benchmarks.peer import Peer, celery, qworker, without

ROWS = (
    qworker(
        "qworker-rabbitmq",
        "RabbitMQ",
        results="Redis",
        most={"enqueue": 10_000},
        note="every publish confirmed by RabbitMQ before the call returns; acks after the task; results "
        "in Redis",
    ),
    qworker(
        "qworker-rabbitmq-unconfirmed",
        "RabbitMQ",
        workloads=("enqueue", "bulk", "latency"),
        environment={"BENCHMARK_CONFIRM": "0"},
        note="confirm_publish off, as the peers publish: what RabbitMQ does not take is lost unseen",
    ),
    qworker(
        "qworker-rabbitmq-quorum",
        "RabbitMQ",
        workloads=("noop", "enqueue", "bulk", "latency"),
        environment={"BENCHMARK_QUEUE_TYPE": "quorum"},
        most={"enqueue": 10_000},
        note="task_default_queue_type quorum, which outlives the loss of a node; every publish confirmed; "
        "acks after the task",
    ),
    celery(
        "celery-rabbitmq",
        "RabbitMQ",
        results="Redis",
        requirements=("celery==5.7.0", "packaging==26.0", "redis==8.1.0", "hiredis==3.5.0"),
        workloads=without("bulk"),
        most={"stored": 10_000, "eta": 25_000},
        note="prefork, its defaults; publishes unconfirmed; acknowledges when a task begins: a killed worker "
        "loses the "
        "task it runs; results in Redis",
    ),
    Peer(
        "dramatiq-rabbitmq",
        "dramatiq",
        "dramatiq_rabbitmq",
        ("{bin}/dramatiq", "benchmarks.adapters.dramatiq_rabbitmq", "-p", "{concurrency}", "-t", "8"),
        requirements=("dramatiq[rabbitmq]==2.2.1", "redis==8.1.0", "hiredis==3.5.0"),
        workloads=without("bulk"),
        server="RabbitMQ",
        results="Redis",
        note="2 processes of 8 threads, its default on two cores; publishes unconfirmed; acknowledges after "
        "the task; "
        "results in Redis",
    ),
)
