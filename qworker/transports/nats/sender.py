"""Publishing to JetStream, and calling tasks off.

Comes from:  any thread, by ``Broker.sender``; the consumer, for what goes on.
Goes to:     ``queue.py``, ``revocations.py``, on a connection of its own.
Thread:      any, in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.naming import task_ids
from qworker.transports.lease import Envelope
from qworker.transports.nats.client import Post
from qworker.transports.nats.direct import DirectConnection
from qworker.transports.nats.queue import BATCH, publish
from qworker.transports.nats.revocations import encoded
from qworker.transports.nats.server import NatsServer
from qworker.transports.visibility.queue import batches
from qworker.transports.visibility.sender import RemoteSender


class NatsSender(RemoteSender):
    """See RemoteSender."""

    _server: NatsServer

    def _connect(self) -> DirectConnection:
        return self._server.connect_directly()

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        self.send(self._outgoing(envelopes), timeout)  # who is interrupted leaves a connection that knows it

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        self._publishing(10.0, lambda: self._revoke(ids, terminate, signal))
        self._notify()

    def _revoke(self, ids: Sequence[str], terminate: bool, signal: str) -> None:
        layout = self._server.layout
        self._server.declare_revocations(self._connection)
        posts = (Post(layout.revoked_subject, encoded(id, terminate, signal)) for id in ids)
        for batch in batches(posts, BATCH):
            publish(self._connection, layout.revoked_stream, batch, task_ids())
