"""The one SQLite file that qworker needs when no server is configured.

Comes from:  a ``sqlite:///path`` URL, or nothing at all (``.qworker/qworker.db`` beside the project).
Goes to:     ``transports/sqlite.py`` (messages) and ``backends/sqlite.py`` (results), which share the file.
Thread:      any; see each module.

The file is in WAL mode. Who needs to be told of a change does not poll the file: it hangs up a *bell*, a
named pipe in the directory beside it, and writers ring all bells of a kind after they commit.
"""

from qworker.embedded.bells import REVOKED, Bell, Ringer
from qworker.embedded.database import Database, boot_id, transaction, write
from qworker.embedded.handle import Handle
from qworker.embedded.place import DEFAULT_PATH, NETWORK_FILE_SYSTEMS, database_path, file_system
from qworker.embedded.schema import (
    DELAYED,
    LEASED,
    NEXT_NUMBER,
    NEXT_TAG,
    READY,
    SCHEMA_VERSION,
    UPSERT_RESULT,
)

__all__ = [
    "DEFAULT_PATH", "DELAYED", "LEASED", "NETWORK_FILE_SYSTEMS", "NEXT_NUMBER", "NEXT_TAG", "READY", "REVOKED",
    "SCHEMA_VERSION", "UPSERT_RESULT", "Bell", "Database", "Handle", "Ringer", "boot_id", "database_path",
    "file_system", "transaction", "write",
]  # fmt: skip
