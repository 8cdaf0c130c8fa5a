"""Whether a pooler, such as PgBouncer, stands between this process and PostgreSQL, and what it keeps.

Comes from:  ``timeout_connection.py``, for each connection; ``backends/sql/backend.py``.
Goes to:     ``postgresql.py``, which then does without a session; the result store, which then has no
             notifications.
Thread:      any; pure, except that is_pooled() asks the server.

In transaction mode consecutive transactions of a connection use any of the pooler's connections to the
server. What belongs to a session (LISTEN, SET, advisory locks, prepared statements) would be left on
one of these, for its next client. The mode cannot be seen, but the pooler can: it cannot give every client
the process number of its server, so it returns an invented one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qworker.errors import ConfigurationError

POOLER = "pooler"
"""The parameter of URLs, and of ``broker_transport_options``, that says how connections are pooled."""
MODES = ("session", "transaction")
STATEMENT_MODE = "statement pooling mode"
"""What PgBouncer's error says about transactions in its third mode."""
UNSUPPORTED_PARAMETER = "unsupported startup parameter"
"""What PgBouncer's error says about ``options``, which would be settings of the session."""
NOTICE = (
    "the database is behind a connection pooler, such as PgBouncer, so this worker is not notified of "
    "messages, and looks for them up to four times a second: give workers a direct URL; or add "
    "pooler=transaction to the parameters of broker_url if that is intended, or pooler=session if the pooler "
    "keeps a connection to the server for each client"
)


def pooler_of(text: object, setting: str) -> str:
    """Return the value of POOLER. ConfigurationError for anything but one of MODES."""
    if text not in MODES:
        raise ConfigurationError(f"{setting}: {POOLER} must be session or transaction, not {text!r}", setting)
    return str(text)


def is_pooled(pooler: str | None, pid: int, execute: Callable[[str], Any]) -> bool:
    """Return whether a connection has no session of its own. pooler: what the configuration says, if
    anything. pid: of the server's process, as it was told when connecting. execute: runs a statement."""
    if pooler is not None:
        return pooler == "transaction"
    return bool(execute("SELECT pg_backend_pid()").fetchone()[0] != pid)
