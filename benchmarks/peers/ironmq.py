"""Peers on IronMQ, as the stand-in of our tests plays it: `python -m tests.support.ironmq_server`."""

from benchmarks.peer import Peer, qworker

_WORKLOADS = ("noop", "emptied", "enqueue", "latency")

ROWS = (
    qworker(
        "qworker-ironmq",
        "IronMQ",
        workloads=(*_WORKLOADS, "bulk"),
        most={"noop": 10_000, "emptied": 10_000, "enqueue": 4_000, "bulk": 20_000},
        note="the server is our stand-in; acks after the task",
    ),
    Peer(
        "django-q2-ironmq",
        "django-q2",
        "djangoq_own",
        ("{python}", "-m", "django", "qcluster"),
        requirements=(
            "django-q2==1.11.1", "django==5.2.19", "iron-mq==0.9", "iron-core==1.2.1", "setuptools<81",
        ),
        workloads=_WORKLOADS,
        most={"noop": 2_000, "emptied": 2_000, "enqueue": 2_000},
        environment={"DJANGO_SETTINGS_MODULE": "benchmarks.adapters.djangoq_ironmq_settings"},
        server="IronMQ",
        note="two workers; the server is our stand-in; gets ten at a time, deletes one at a time; a class of "
        "ours hands on the id of the reservation, without which version 3 of IronMQ refuses to delete; "
        "processes are not replaced after 500 tasks, as they are by default",
    ),
)  # fmt: skip
