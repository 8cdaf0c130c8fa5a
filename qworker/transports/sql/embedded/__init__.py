"""The embedded broker: one SQLite file, used when no server is configured.

Comes from:  a ``sqlite:///path`` URL, or nothing at all (``.qworker/qworker.db`` beside the project).
Goes to:     ``broker`` (messages) and ``backends/sql/sqlite.py`` (results), which share the file.
Thread:      any; see each module.

The file is in WAL mode. A process that needs notifications does not poll the file: it creates a *notification
pipe*, a named pipe in the directory beside it, and writers write one byte after they commit: to all pipes of
a kind, or for a new message to one consumer's.

Modules, in reading order: ``path`` (the path of the file), ``schema``, ``database`` (a connection),
``handle`` (sharing a connection), ``notify``, ``broker`` (its administration, dead letters, failed tasks, and
kombu's exchanges), and its parts: ``sender``, ``consumer``; ``join_rows`` (parts of joins, with the ack),
``damage`` (bad rows).
"""

from qworker.transports.sql.embedded.database import Database, transaction, write
from qworker.transports.sql.embedded.handle import FileSession, Handle
from qworker.transports.sql.embedded.notify import NotificationPipe, Notifier
from qworker.transports.sql.embedded.path import (
    DEFAULT_PATH,
    NETWORK_FILE_SYSTEMS,
    database_path,
    file_system,
)
from qworker.transports.sql.embedded.schema import (
    DELAYED,
    LEASED,
    NEXT_NUMBER,
    NEXT_TAG,
    READY,
    SCHEMA_VERSION,
    UPSERT_RESULT,
)

__all__ = [
    "DEFAULT_PATH", "DELAYED", "LEASED", "NETWORK_FILE_SYSTEMS", "NEXT_NUMBER", "NEXT_TAG", "READY",
    "SCHEMA_VERSION", "UPSERT_RESULT", "Database", "FileSession", "Handle", "NotificationPipe", "Notifier",
    "database_path", "file_system", "transaction", "write",
]  # fmt: skip
