"""Publishing within a transaction of the caller's: a task that exists exactly if the caller's data does.

Comes from:  ``app.publishing_in``; publishing, for calls that are sent together.
Goes to:     ``publisher.py``, which asks where the calls of this context go; ``Sender.join``.
Thread:      any; a context of its own for each thread and coroutine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from qworker.transports.lease import Envelope, Sender

if TYPE_CHECKING:
    from qworker.app import QWorker

_replacement: ContextVar[tuple[QWorker, Sender] | None] = ContextVar("qworker_sender", default=None)


def sender(app: QWorker) -> Sender:
    """What publishes the calls of *app* now: its broker, or what publishing_in() has put in its stead."""
    replacement = _replacement.get()
    return app.broker.sender if replacement is None or replacement[0] is not app else replacement[1]


def is_held_back(app: QWorker) -> bool:
    """Tell whether calls of *app* are collected now, and not sent."""
    return isinstance(sender(app), _Held)


@contextmanager
def publishing_in(app: QWorker, connection: Any) -> Iterator[None]:
    """Publish what is called within the block by *connection*. See ``QWorker.publishing_in``."""
    token = _replacement.set((app, app.broker.sender.join(connection)))
    try:
        yield
    finally:
        _replacement.reset(token)


class _Held(Sender):
    """Keeps what is published, for somebody who sends it together with more."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        self.envelopes += envelopes


@contextmanager
def holding_back(app: QWorker) -> Iterator[list[Envelope]]:
    """Collect what is called within the block instead of sending it."""
    held = _Held()
    token = _replacement.set((app, held))
    try:
        yield held.envelopes
    finally:
        _replacement.reset(token)
