"""Brokers of kombu's transports."""

from __future__ import annotations

from typing import Any

from qworker.transports.held.broker import HeldBroker
from qworker.transports.kombu.server import KombuServer


def kombu_broker(
    url: str,
    *,
    options: dict[str, Any] | None = None,
    poll: float = 0.2,
    timeout: float = 4.0,
    use_ssl: Any = None,
    **more: Any,
) -> HeldBroker:
    """Return the broker at *url*. options: transport_options of kombu. poll: seconds between polls. timeout:
    seconds for connecting. more: for HeldBroker."""
    return HeldBroker(url, KombuServer(url, options or {}, timeout, use_ssl, poll), **more)
