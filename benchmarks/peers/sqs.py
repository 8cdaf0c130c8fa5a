"""Peers on SQS, as moto plays it: `python -m tests.acceptance.sqs_server`."""

from benchmarks.peer import celery, qworker

_WORKLOADS = ("noop", "enqueue", "latency")

ROWS = (
    qworker(
        "qworker-sqs",
        "SQS",
        workloads=_WORKLOADS,
        most={"noop": 1_000, "enqueue": 2_000, "latency": 100},
        note="the server is moto; acks after the task",
    ),
    celery(
        "celery-sqs",
        "SQS",
        requirements=("celery==5.7.0", "boto3==1.44.8", "pycurl==7.49.0", "urllib3==2.8.0"),
        workloads=_WORKLOADS,
        most={"noop": 1_000, "enqueue": 2_000, "latency": 100},
        note="prefork, its defaults; the server is moto; acknowledges when a task begins",
    ),
)
