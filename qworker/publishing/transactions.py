"""Transactions: publishes calls within a transaction of the caller, so that both are committed or neither.

Comes from:  ``app.publishing_in``; publishing, for calls sent together.
Goes to:     ``publisher.py``, which gets the sender of this context; ``Sender.join``.
Thread:      any; each thread and coroutine has its own context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from qworker.contracts import App
from qworker.transports.lease import Envelope, Sender


class _Replacement(NamedTuple):
    """sender: publishes or collects the calls of *app*. transaction: publishes in the caller's transaction;
    None without one."""

    app: App
    sender: Sender
    transaction: Sender | None


_replacement: ContextVar[_Replacement | None] = ContextVar("qworker_sender", default=None)


def sender(app: App) -> Sender:
    """Return the current sender of *app*: its broker's, or that of publishing_in() or holding_back()."""
    replacement = _replacement.get()
    return app.broker.sender if replacement is None or replacement.app is not app else replacement.sender


def transaction_of(app: App) -> Sender | None:
    """Return the sender in the caller's transaction; None outside of a transaction."""
    replacement = _replacement.get()
    return None if replacement is None or replacement.app is not app else replacement.transaction


def is_sent_later(app: App) -> bool:
    """Return whether calls of *app* are sent later: they are collected, or wait for the caller's commit."""
    replacement = _replacement.get()
    return replacement is not None and replacement.app is app


@contextmanager
def publishing_in(app: App, connection: Any) -> Iterator[None]:
    """Publish calls made within the block through *connection*. See ``QWorker.publishing_in``."""
    joined = app.broker.sender.join(connection)
    token = _replacement.set(_Replacement(app, joined, joined))
    try:
        yield
    finally:
        _replacement.reset(token)


class _CollectingSender(Sender):
    """Collects envelopes, to be sent together with others."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        self.envelopes += envelopes


@contextmanager
def holding_back(app: App) -> Iterator[list[Envelope]]:
    """Collect the calls made within the block instead of sending them."""
    held = _CollectingSender()
    token = _replacement.set(_Replacement(app, held, transaction_of(app)))
    try:
        yield held.envelopes
    finally:
        _replacement.reset(token)
