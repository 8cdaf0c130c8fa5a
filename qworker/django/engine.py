"""Engine: the app of a Django project, whose worker is its cluster.

Comes from:  ``qcluster``, ``qworker start`` in a Django project, and whoever asks for results.
Goes to:     ``QWorker``, with the settings of ``Q_CLUSTER`` as its own.
Thread:      any; made when it is first needed, and anew when the settings change.
"""

from __future__ import annotations

import math
import threading
from typing import Any

from django.core.signals import setting_changed
from django.db import connections, router

from qworker import QWorker, signals
from qworker.backends import open_backend
from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.django import work
from qworker.django.brokers.transported import close_transports
from qworker.django.conf import conf
from qworker.django.models import Task
from qworker.django.packages import RUN
from qworker.django.results import TaskResults
from qworker.django.transport import broker_alias, database_broker, url_and_options

_lock = threading.Lock()
_made: list[QWorker] = []  # under _lock; at most one

DEPENDS_ON = frozenset(["Q_CLUSTER", "DATABASES", "DATABASE_ROUTERS", "CACHES", "SECRET_KEY"])


def app() -> QWorker:
    """Return the app of this project. Raises ConfigurationError when its settings are wrong."""
    with _lock:
        if not _made:
            _made.append(make_app())
        return _made[0]


def forget() -> None:
    """Close the app and all connections to brokers; the next use makes them anew."""
    with _lock:
        while _made:
            _made.pop().close()
        close_transports()


def _on_setting_changed(*, setting: str, **_: Any) -> None:
    if setting in DEPENDS_ON:
        forget()


setting_changed.connect(_on_setting_changed, dispatch_uid="qworker.django.engine")


def settings_of() -> dict[str, Any]:
    """Return what ``Q_CLUSTER`` says as settings of qworker."""
    workers = conf.workers
    return {
        "task_default_queue": conf.cluster_name,
        "worker_concurrency": workers,
        "worker_prefetch_multiplier": max(1, math.ceil((conf.queue_limit or workers**2) / workers)),
        "worker_max_tasks_per_child": conf.recycle or None,
        "worker_max_memory_per_child": conf.max_rss,
        "task_time_limit": conf.timeout if conf.timeout and conf.timeout > 0 else None,
    }


def make_app() -> QWorker:
    """Return a new app with the settings of this project."""
    changes = settings_of()
    if conf.broker == "orm":
        made = _in_database(changes)
    else:
        url, more = url_and_options()
        made = _beside(url, {**changes, **more})
    made.task(
        name=RUN, base=work.PackageTask, acks_late=True, reject_on_worker_lost=True, ignore_result=False
    )(work.run_package)
    return made


def _in_database(changes: dict[str, Any]) -> QWorker:
    alias = broker_alias()
    broker = database_broker(alias)
    kept_in = router.db_for_write(Task)
    settings = Settings(changes)
    plain = broker.url if broker.url.startswith("sqlite:") else f"db+{broker.url}"
    results = TaskResults(
        broker.url,
        settings,
        SYSTEM_CLOCK,
        lambda: open_backend(plain, settings, SYSTEM_CLOCK),
        kept_in,
        lambda url: kept_in == alias and url == broker.url,
    )
    return QWorker("django", broker=broker, backend=results, set_as_current=False, changes=changes)


def _beside(url: str, changes: dict[str, Any]) -> QWorker:
    settings = Settings(changes)
    others = url if url.startswith(("redis", "rediss")) else "disabled://"
    results = TaskResults(
        others,
        settings,
        SYSTEM_CLOCK,
        lambda: open_backend(others, settings, SYSTEM_CLOCK),
        router.db_for_write(Task),
        lambda _: False,
    )
    return QWorker("django", broker=url, backend=results, set_as_current=False, changes=changes)


def close_connections(**_: Any) -> None:
    """Close all of Django's connections: none may be open in two processes."""
    connections.close_all()


signals.worker_init.connect(close_connections, weak=False)
