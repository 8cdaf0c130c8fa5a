"""Stores: an app's broker and result store, opened when they are first used.

Comes from:  ``app.broker`` and ``app.backend``, and what is asked of both together.
Goes to:     the transports and backends.
Thread:      any; they are opened and closed under the app's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qworker.backends import Backend, open_backend
from qworker.context import current_context
from qworker.transports import open_store
from qworker.transports.lease import LeaseStore

if TYPE_CHECKING:
    from qworker.app import QWorker


def broker(app: QWorker) -> LeaseStore:
    """Open the broker of *app*, or return what is open."""
    with app._lock:
        if app._broker is None:
            app._broker = open_store(app.conf.broker_url, app.conf)
        return app._broker


def backend(app: QWorker) -> Backend:
    """Open the result store of *app*, or return what is open."""
    with app._lock:
        if app._backend is None:
            url = app.conf.broker_url
            embedded = url is None or (url.startswith("sqlite:") and ";" not in url)
            results = app.conf.result_backend or (app.broker.url if embedded else "disabled://")
            app._backend = open_backend(results, app.conf, app.clock)
        return app._backend


def results_with_broker(app: QWorker) -> bool:
    """Whether results are kept in the broker's own store, so that a worker stores them together with the
    ack."""
    if app._results_with_broker is None:
        store = app.broker
        app._results_with_broker = "results" not in store.lacks and app.backend.same_store(store.url)
    return app._results_with_broker


def reply_to(app: QWorker) -> str | None:
    """The queue in which this process gets its results; None unless they are sent (``rpc://``), and inside of
    a task.

    Raises BrokerUnavailable when there has to be one, and cannot be made.
    """
    conf = app.conf
    if conf.result_backend != "rpc://" or conf.task_always_eager or current_context() is not None:
        return None
    return app.backend.reply_to()


def close(app: QWorker) -> None:
    """Let go of the broker and the result store; the next use opens them again."""
    with app._lock:
        for opened in (app._broker, app._backend):
            if opened is not None:
                opened.close()
        app._broker = app._backend = app._results_with_broker = None
        app._waiters.clear()
