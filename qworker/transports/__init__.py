"""The brokers: a LeaseStore for each URL scheme that we have one for.

Comes from:  ``app.broker``.
Goes to:     the store's module, imported when its scheme is asked for.
Thread:      any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qworker.errors import ConfigurationError

if TYPE_CHECKING:
    from qworker.conf import Settings
    from qworker.transports.lease import LeaseStore


def register() -> None:
    """Teach kombu, and so Celery, that ``sqlite:///path`` is the embedded broker."""
    from kombu.transport import TRANSPORT_ALIASES

    TRANSPORT_ALIASES["sqlite"] = "qworker.transports.channel:Transport"


def open_store(url: str | None, conf: Settings) -> LeaseStore:
    """Return the store at *url* (None: the embedded broker at its default place); nothing is opened yet.

    Raises ConfigurationError for a scheme that there is no store for.
    """
    scheme = (url or "sqlite://").partition(":")[0]
    if scheme != "sqlite":
        raise ConfigurationError(
            f"broker_url: there is no broker for {scheme}:// in this version; use sqlite:///path/to/file.db, or leave "
            "broker_url unset for the embedded broker",
            setting="broker_url",
        )
    from qworker.transports.sqlite import SQLiteStore

    return SQLiteStore(
        url,
        synchronous=conf.embedded_synchronous,
        lease_seconds=conf.worker_lease_seconds,
        revoke_expires=conf.revoke_expires,
    )
