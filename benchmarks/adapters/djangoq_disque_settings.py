"""Django's settings for Django-Q on Disque: those on Redis, but for the broker."""

from urllib.parse import urlsplit

from benchmarks.adapters import djangoq_settings
from benchmarks.adapters.djangoq_settings import *  # noqa: F403
from benchmarks.adapters.services import DISQUE_URL, plain_name

_parts = urlsplit(DISQUE_URL)
Q_CLUSTER = {
    **{name: value for name, value in djangoq_settings.Q_CLUSTER.items() if name != "redis"},
    "name": plain_name(),
    "disque_nodes": [f"{_parts.hostname}:{_parts.port or 7711}"],
    "bulk": 10,
}
