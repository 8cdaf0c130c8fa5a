"""Django's settings for django-q2 on IronMQ: those on Redis, but for the broker."""

from urllib.parse import urlsplit

from benchmarks.adapters import djangoq_settings
from benchmarks.adapters.djangoq_settings import *  # noqa: F403
from benchmarks.adapters.services import ironmq_url

_parts = urlsplit(ironmq_url())
Q_CLUSTER = {
    **{name: value for name, value in djangoq_settings.Q_CLUSTER.items() if name != "redis"},
    "iron_mq": {
        "host": _parts.hostname,
        "port": _parts.port,
        "protocol": "http",
        "project_id": _parts.username,
        "token": _parts.password,
    },
    "broker_class": "benchmarks.adapters.djangoq_ironmq_broker.Reserving",
    "bulk": 10,
    "recycle": 1_000_000,  # after two processes had run 500 each, nothing ran for half a minute
}
