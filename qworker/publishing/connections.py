"""Connections: objects like kombu's, which ``app.connection_for_write()`` and the pools return.

Comes from:  ``app.connection_for_read``, ``connection_for_write``, ``connection``, ``app.pool``,
             ``app.producer_pool``.
Goes to:     ``with`` blocks around ``apply_async(connection=…)`` or ``producer=…``, and probes that call
             ensure_connection().
Thread:      any. They have no state; the app has the connections to the broker, and shares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from qworker.conf.secrets import mask_urls
from qworker.contracts import App
from qworker.errors import BrokerUnavailable, NotAvailable, PublishError

HANDED_IN = ("connection", "producer", "publisher")
"""Options of apply_async that name a connection."""


class Connection:
    """The app's access to its broker. release() and close() do nothing."""

    def __init__(self, app: App) -> None:
        self.app = app

    def as_uri(self, include_password: bool = False) -> str:
        """Return the broker's URL, with its password masked unless *include_password*."""
        url = self.app.broker.url
        return url if include_password else mask_urls(url)

    @property
    def connected(self) -> bool:
        """Whether the broker answers now."""
        try:
            self.connect()
        except BrokerUnavailable:
            return False
        return True

    def connect(self) -> Connection:
        """Send a query to the broker. Raises BrokerUnavailable if it does not answer."""
        self.app.broker.admin.depths((self.app.conf.task_default_queue,))
        return self

    def ensure_connection(
        self,
        errback: Callable[[BaseException, float], Any] | None = None,
        max_retries: int | None = None,
        interval_start: float = 2,
        interval_step: float = 2,
        interval_max: float = 30,
        **ignored: Any,
    ) -> Connection:
        """Wait until the broker answers.

        - errback: called before each wait with the error and the seconds to wait.
        - max_retries (number): attempts after the first; None for no limit.
        - interval_start, interval_step, interval_max: the first wait, the increase for each further wait, and
          the longest wait, in seconds.

        Raises BrokerUnavailable after the last attempt.
        """
        pause, tries = interval_start, 0
        while True:
            try:
                return self.connect()
            except BrokerUnavailable as error:
                if max_retries is not None and tries >= max_retries:
                    raise
                if errback is not None:
                    errback(error, pause)
                self.app.clock.sleep(pause)
                tries += 1
                pause = min(pause + interval_step, interval_max)

    def release(self) -> None:
        """Do nothing."""

    close = release

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Connection: {self.as_uri()}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise _only_calls(f"app.connection().{name}")


class Producer(Connection):
    """The object that app.producer_pool returns, for ``apply_async(producer=…)``."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise _only_calls(f"a producer's {name}")


class Pool:
    """app.pool and app.producer_pool: acquire() returns a connection or a producer at once."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def acquire(self, block: bool = False, timeout: float | None = None) -> Any:
        """Return a new one at once, for a ``with`` block."""
        return self._make()

    def force_close_all(self) -> None:
        """Do nothing."""


def refuse_other_brokers(app: App, name: str, option: str, given: Any) -> None:
    """Raise PublishError unless *given*, for a call of task *name*, is None or a connection of *app*."""
    if given is not None and not (isinstance(given, Connection) and given.app is app):
        raise PublishError(
            f"calling {name}: {option}={given!r:.100} is not a connection of this app, which sends its calls "
            "to its own broker; for another broker make another app, and call other_app.send_task()"
        )


def _only_calls(what: str) -> NotAvailable:
    return NotAvailable(
        f"{what} is not in qworker: send calls with app.send_task() or task.apply_async(); for messages of "
        "another kind use kombu itself"
    )
