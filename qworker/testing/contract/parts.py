"""Calls of the optional parts of a broker, for tests that declare that they need the part (``asks``).

Comes from:  the suite.
Goes to:     the parts of a broker.
Thread:      the test's.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.transports.lease import Broker, MessageState, Peeked, Revocation
from qworker.transports.presence import Presence


def revoke(store: Broker, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
    assert store.revocations is not None
    store.revocations.sender.revoke(ids, terminate, signal)


def revoked_since(store: Broker, cursor: int) -> tuple[int, list[Revocation]]:
    assert store.revocations is not None
    return store.revocations.consumer.revoked_since(cursor)


def present(store: Broker, text: str) -> None:
    assert store.presence is not None
    store.presence.consumer.present(text)


def workers(store: Broker) -> list[Presence]:
    assert store.presence is not None
    return store.presence.admin.workers()


def peek(store: Broker, queue: str, state: MessageState, limit: int) -> list[Peeked]:
    assert store.peeking is not None
    return store.peeking.peek(queue, state, limit)


def next_due(store: Broker, queues: Sequence[str]) -> float | None:
    assert store.delayed is not None
    return store.delayed.next_due(queues)


def flush_delayed(store: Broker, queue: str) -> int:
    assert store.delayed is not None
    return store.delayed.flush_delayed(queue)
