"""Stores: an app's broker and result store, opened on first use.

Comes from:  ``app.broker``, ``app.backend``, and code that depends on where results are kept.
Goes to:     the transports and backends.
Thread:      any; they are opened and closed under the app's lock.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from qworker.backends import Backend, open_backend
from qworker.backends.place import REPLIES, ResultPlace, file_of, result_place
from qworker.message.context import is_in_worker
from qworker.transports import open_broker
from qworker.transports.lease import Broker

if TYPE_CHECKING:
    from threading import RLock

    from qworker.clock import Clock
    from qworker.conf import Settings


class _App(Protocol):
    conf: Settings
    clock: Clock
    lock: RLock


class Stores:
    """The stores of *app*. broker, backend: existing stores; None opens those named by the settings."""

    def __init__(self, app: _App, broker: Broker | None = None, backend: Backend | None = None) -> None:
        self._app = app
        self._broker = broker
        self._backend = backend
        self._given = backend is not None
        """Whether the result store was passed in, instead of being named by the settings."""
        self._place: tuple[Any, ResultPlace] | None = None  # and the revision of the settings
        self._results_with_broker: bool | None = None

    @property
    def broker(self) -> Broker:
        """The broker."""
        return self._broker or self._open_broker()

    def use_broker(self, broker: Broker) -> None:
        """Make *broker*, which was not used yet, the broker of the app."""
        with self._app.lock:
            self._broker, self._results_with_broker, self._place = broker, None, None

    def _open_broker(self) -> Broker:
        app = self._app
        with app.lock:
            if self._broker is None:
                self._broker = open_broker(app.conf.broker_url, app.conf)
            return self._broker

    @property
    def backend(self) -> Backend:
        """The result store."""
        return self._backend or self._open_backend()

    def _open_backend(self) -> Backend:
        app = self._app
        with app.lock:
            if self._backend is None:
                place = self.place
                self._backend = open_backend(place.url, place.conf, app.clock)
            return self._backend

    @property
    def place(self) -> ResultPlace:
        """Where the settings keep results."""
        conf = self._app.conf
        known = self._place  # read once: another thread may replace it
        if known is None or known[0] is not conf.revision:
            conf.resolve()
            # The embedded broker knows the path of its file.
            embedded = conf.broker_url is None or conf.broker_url.startswith("sqlite:")
            asked = embedded and conf.result_backend is None
            known = conf.revision, result_place(conf, self.broker.url if asked else None)
            self._place = known
        return known[1]

    @property
    def why_none(self) -> str:
        """Why results are not available, and what to do; "" if they are."""
        return "" if self._given else self.place.why_none

    @property
    def missing_results(self) -> str | None:
        """The missing file or directory of the result store; None if it exists, and for servers. Code that
        only reads results must not create it."""
        path = file_of(self.backend.url)
        return None if path is None or os.path.lexists(path) else path

    @property
    def results_with_broker(self) -> bool:
        """Whether results are in the broker's own store, so that a worker stores them with the ack."""
        if self._results_with_broker is None:
            broker = self.broker
            with_broker = not self._given and self.place.with_broker
            kept = "results" not in broker.lacks
            self._results_with_broker = kept and (with_broker or self.backend.same_store(broker.url))
        return self._results_with_broker

    @property
    def sends_results(self) -> bool:
        """Whether results are sent to the caller, so that a call must name the caller's queue."""
        if self._given and self._backend is not None:
            return self._backend.url.startswith(REPLIES)
        return self.place.replies

    @property
    def reply_to(self) -> str | None:
        """The queue for the results of this process; None in tasks, and unless results are sent (``rpc://``).

        Raises BrokerUnavailable when the queue is needed and cannot be created.
        """
        if not self.sends_results or self._app.conf.task_always_eager or is_in_worker():
            return None
        return self.backend.reply_to()

    def close(self) -> None:
        """Close both; the next use opens them again."""
        with self._app.lock:
            for opened in (self._broker, self._backend):
                if opened is not None:
                    opened.close()
            self._broker = self._backend = self._results_with_broker = self._place = None
            self._given = False
