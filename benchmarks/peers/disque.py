"""Peers on Disque, as the stand-in of our tests plays it: `python -m tests.support.disque_server`."""

from benchmarks.peer import Peer, qworker

_WORKLOADS = ("noop", "enqueue", "latency")

ROWS = (
    qworker(
        "qworker-disque",
        "Disque",
        workloads=(*_WORKLOADS, "bulk"),
        most={"noop": 10_000, "enqueue": 4_000, "bulk": 20_000},
        note="the server is our stand-in; acks after the task",
    ),
    Peer(
        "django-q-disque",
        "django-q",
        "djangoq_own",
        ("{python}", "-m", "django", "qcluster"),
        requirements=("django-q==1.3.9", "django==4.2.27", "redis==3.5.3", "setuptools<81"),
        workloads=_WORKLOADS,
        most={"noop": 2_000, "enqueue": 2_000},
        environment={"DJANGO_SETTINGS_MODULE": "benchmarks.adapters.djangoq_disque_settings"},
        server="Disque",
        note="Django-Q's last release on Django 4.2, for django-q2 knows no Disque; two workers; the server "
        "is our stand-in; gets ten at a time, acknowledges one at a time",
    ),
)  # fmt: skip
