"""The consumer of JetStream, which hears of revocations as well.

Comes from:  the Listener, by ``Broker.consumer``.
Goes to:     ``queue.py``, ``revocations.py``.
Thread:      the listener's, but for wake().
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.errors import BrokerUnavailable
from qworker.transports.lease import Claim, Revocation
from qworker.transports.nats.revocations import Revocations
from qworker.transports.nats.server import NatsServer
from qworker.transports.visibility.consumer import RemoteConsumer


class NatsConsumer(RemoteConsumer):
    """See RemoteConsumer."""

    _server: NatsServer
    _revocations: Revocations | None = None

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        generation = super().register(name, queues, concurrency)
        try:
            with self._server.errors(self._connection):
                self._revocations = Revocations(self._server, self._connection, self._notify)
        except BrokerUnavailable:
            self._let_go()
            raise
        return generation

    def lease(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, eta_window: float = 0.0
    ) -> Claim:
        claim = super().lease(queues, limit, delayed_limit, eta_window)
        revocations = self._revocations
        return claim._replace(last_revocation=None) if revocations and revocations.has_news else claim

    def revoked_since(self, cursor: int) -> tuple[int, list[Revocation]]:
        revocations = self._revocations
        if revocations is None:
            return cursor, []
        with self._leasing():
            return revocations.since(cursor)

    def _forget_all(self) -> None:
        super()._forget_all()
        self._revocations = None
