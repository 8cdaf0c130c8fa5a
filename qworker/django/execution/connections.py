"""connections: prepares and closes Django's connections around a task, as Django does for a request.

Comes from:  ``work.py`` and ``clusters/engine.py``, around each task; threads of a cluster, at each step.
Goes to:     Django's connections of this thread.
Thread:      the one that runs the task.

A connection that the server has closed does not fail a task: its socket is readable without a request, which
is checked without a round trip. A transaction that a task leaves open would include later tasks' writes, so
it is rolled back.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

from django.db import connections, reset_queries

from qworker.django.conf import logger


def begin() -> frozenset[str]:
    """Prepare the connections for a task: close those that are too old, or were closed by the server.

    Returns the aliases of the connections on which the caller has a transaction, for end().
    """
    reset_queries()
    _close_old()
    for connection in _open():
        if not _in_transaction(connection) and _was_left(connection):
            connection.close()
    return in_transaction()


def in_transaction() -> frozenset[str]:
    """Return the aliases of connections with an open transaction."""
    return frozenset(connection.alias for connection in _open() if _in_transaction(connection))


def roll_back(callers: frozenset[str] = frozenset()) -> None:
    """Roll back transactions that the task has left open, except on the aliases in *callers*."""
    for connection in _open():
        if connection.alias in callers:
            continue
        if _in_transaction(connection):
            logger.warning(
                "a task left a transaction open on the database %r: it is rolled back", connection.alias
            )
            connection.in_atomic_block = False  # else close() only marks it, and it is never reopened
            connection.close()


def end(callers: frozenset[str] = frozenset()) -> None:
    """Roll back transactions that the task has left open, and close connections that are too old."""
    roll_back(callers)
    _close_old()


def drop_broken() -> None:
    """Close all connections, except those with an open transaction."""
    for connection in _open():
        if not _in_transaction(connection):
            connection.close()


def close_all() -> None:
    """Close all connections and their pools: processes must not share them."""
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        close_pool = getattr(connection, "close_pool", None)  # PostgreSQL's alone
        if close_pool is not None:
            close_pool()


def close_idle() -> None:
    """Like close_all(), but if a connection has an open transaction, keep it, and all pools."""
    if in_transaction():
        drop_broken()
    else:
        close_all()


_inherited: list[Any] = []
"""Connections left by abandon(); kept, since deleting a connection may close it."""


def abandon() -> None:
    """In a forked child, leave all connections and pools to the parent, which still uses them. The next use
    of a database opens a new connection."""
    for connection in connections.all(initialized_only=True):
        pools = getattr(connection, "_connection_pools", {})  # PostgreSQL's alone
        _inherited.extend((connection, pools.pop(connection.alias, None)))
        del connections[connection.alias]


def _close_old() -> None:
    """Close connections that are too old. (Django's own function also closes those with an open
    transaction.)"""
    for connection in _open():
        if not _in_transaction(connection):
            connection.close_if_unusable_or_obsolete()


def _in_transaction(connection: Any) -> bool:
    return bool(connection.in_atomic_block or connection.autocommit != connection.settings_dict["AUTOCOMMIT"])


def _open() -> Iterator[Any]:
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            yield connection


def _was_left(connection: Any) -> bool:
    """Return whether the server has closed *connection*."""
    if connection.vendor == "sqlite":
        return False
    number = _descriptor(connection.connection)
    if number is not None:
        poll = select.poll()
        poll.register(number, select.POLLIN)
        if not poll.poll(0):
            return False
    return not connection.is_usable()


def _descriptor(driver: Any) -> int | None:
    """Return the file descriptor of the driver's socket; None if it is not available."""
    try:
        number = int(getattr(driver, "_sock", driver).fileno())
    except Exception:  # noqa: BLE001 - any driver's errors, also for a closed connection
        return None
    return number if number >= 0 else None
