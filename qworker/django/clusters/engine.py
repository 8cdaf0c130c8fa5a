"""engine: the app of a Django project, whose worker is a cluster.

Comes from:  ``qcluster``, ``qworker start`` in a Django project, and readers of results.
Goes to:     ``QWorker``, with settings made from ``Q_CLUSTER``.
Thread:      any; made on first use, and again when the settings change.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from django.core.signals import setting_changed
from django.db import connections, router

from qworker import QWorker, signals
from qworker.backends import open_backend
from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.components.component import Component
from qworker.conf import Settings
from qworker.django.brokers.choice import broker_class
from qworker.django.brokers.transported import close_transports
from qworker.django.conf import conf
from qworker.django.execution import connections as task_connections
from qworker.django.execution import work
from qworker.django.execution.results import TaskResults
from qworker.django.models import Task
from qworker.django.transports.databases import VENDORS, is_in_memory, url_of
from qworker.django.transports.opening import broker_alias, database_broker
from qworker.django.transports.packages import RUN
from qworker.django.transports.urls import url_and_options
from qworker.naming import import_object
from qworker.transports.lease import Broker

_lock = threading.Lock()
_made: list[QWorker] = []  # under _lock; at most one

CUSTOM = "qworker.django.brokers.custom"
"""Needed only for a custom broker."""
DEPENDS_ON = frozenset(["Q_CLUSTER", "DATABASES", "DATABASE_ROUTERS", "CACHES", "SECRET_KEY"])


def app() -> QWorker:
    """Return the app of this project. Raises ConfigurationError for invalid settings."""
    with _lock:
        if not _made:
            _made.append(make_app())
        return _made[0]


def forget() -> None:
    """Close the app and all connections to brokers; the next use makes new ones."""
    with _lock:
        while _made:
            _made.pop().close()
        close_transports()


def _on_setting_changed(*, setting: str, **_: Any) -> None:
    if setting in DEPENDS_ON:
        forget()


setting_changed.connect(_on_setting_changed, dispatch_uid="qworker.django.clusters.engine")


def settings_of() -> dict[str, Any]:
    """Return ``Q_CLUSTER`` as settings of qworker."""
    workers = conf.workers
    return {
        "task_default_queue": conf.cluster_name,
        "worker_concurrency": workers,
        "worker_prefetch_multiplier": max(1, math.ceil((conf.queue_limit or workers**2) / workers)),
        "worker_max_tasks_per_child": conf.recycle or None,
        "worker_max_memory_per_child": conf.max_rss,
        "task_time_limit": conf.timeout if conf.timeout and conf.timeout > 0 else None,
    }


def make_app(clock: Clock = SYSTEM_CLOCK) -> QWorker:
    """Return a new app with the settings of this project."""
    changes = settings_of()
    chosen = broker_class()
    if chosen.kind == "orm":
        made = _in_database(changes, clock)
    elif chosen.kind == "custom":
        transport = import_object(f"{CUSTOM}:CustomTransport")(chosen, conf.broker_class)
        made = _beside(transport, "disabled://", changes, clock)
    else:
        url, more = url_and_options(chosen.kind)
        made = _beside(url, url if chosen.kind == "redis" else "disabled://", {**changes, **more}, clock)
    made.autodiscover_tasks()
    made.task(
        name=RUN,
        base=work.PackageTask,
        acks_late=True,
        reject_on_worker_lost=True,
        ignore_result=False,
        keep_failed=False,  # failures are rows of Task
        max_retries=None,  # run_package() checks max_attempts
    )(work.run_package)
    return made


def _in_database(changes: dict[str, Any], clock: Clock) -> QWorker:
    alias = broker_alias()
    broker = database_broker(alias, clock=clock)
    kept_in = router.db_for_write(Task)
    settings = Settings(changes)
    plain = broker.url if broker.url.startswith("sqlite:") else f"db+{broker.url}"
    results = TaskResults(
        broker.url,
        settings,
        clock,
        lambda: open_backend(plain, settings, clock),
        kept_in,
        lambda url: kept_in == alias and url == broker.url,
    )
    return QWorker(
        "django", broker=broker, backend=results, clock=clock, set_as_current=False, changes=changes
    )


def _beside(broker: str | Broker, others: str, changes: dict[str, Any], clock: Clock) -> QWorker:
    """Return the app for a broker outside Django's databases. others: where results without a package go."""
    kept_in = router.db_for_write(Task)
    if others == "disabled://" and connections[kept_in].vendor in VENDORS and not is_in_memory(kept_in):
        changes = {**changes, "beat_store": url_of(kept_in)}  # the ledger of schedules
    settings = Settings(changes)
    results = TaskResults(
        others,
        settings,
        clock,
        lambda: open_backend(others, settings, clock),
        kept_in,
        lambda _: False,
    )
    return QWorker(
        "django", broker=broker, backend=results, clock=clock, set_as_current=False, changes=changes
    )


def close_connections(**_: Any) -> None:
    """Close all of Django's connections before forking: processes must not share them."""
    task_connections.close_all()


def before_task(sender: Any, **_: Any) -> None:
    """Prepare Django's connections for a task of qworker's own. (RUN prepares them itself, an eager call uses
    its caller's, and coroutines use connections of other threads.)"""
    context = sender.request
    if sender.name != RUN and not context.is_eager and not _in_event_loop():
        context.__dict__["callers"] = task_connections.begin()


def after_task(sender: Any, **_: Any) -> None:
    """Clean up Django's connections after before_task()."""
    callers = sender.request.__dict__.pop("callers", None)
    if callers is not None:
        task_connections.end(callers)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


signals.worker_init.connect(close_connections, weak=False)
signals.task_prerun.connect(before_task, weak=False)
signals.task_postrun.connect(after_task, weak=False)


# -- Later: a component that is imported when it starts --
# Thread: main; problems(): any. The first task does not wait for modules that it does not need: they are
# imported after it was claimed.


class Later(Component):
    """A component that is made when it starts. name: for the log. make: imports and makes it."""

    def __init__(self, name: str, make: Callable[[], Component]) -> None:
        self.name = name
        self._make = make
        self._part: Component | None = None
        self._ended = False

    def start(self) -> None:
        if self._part is None and not self._ended:
            self._part = self._make()
            self._part.start()

    def quiet(self) -> None:
        if self._part is not None:
            self._part.quiet()
        self._ended = True

    def stop(self, deadline: float = 0.0) -> None:
        self._ended = True
        if self._part is not None:
            self._part.stop(deadline)

    def problems(self) -> Sequence[str]:
        return () if self._part is None else self._part.problems()

    def join(self, seconds: float) -> bool:
        return self._part is None or self._part.join(seconds)
