"""Shared code of the SQL result store and the SQL broker: the rows of results, and the database of a URL.

Comes from:  ``backends/sql/backend.py``, in the child that ran the task.
Goes to:     ``backends/sql/backend.py`` in the worker, or the transaction of the ack (``results.py``).
Thread:      any; pure functions.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

LONGEST_ID = 155
"""Maximum characters of Celery's column ``task_id``."""
DIGEST = "sha256-"
_KEPT = LONGEST_ID - len(DIGEST) - 64

_MARK = b"\x00columns"
_FAMILIES = {"postgresql": ("postgresql", 5432), "postgres": ("postgresql", 5432), "mysql": ("mysql", 3306),
             "mariadb": ("mysql", 3306)}  # fmt: skip
_NAMING = ("host", "port", "options", "unix_socket")
"""Parameters that name the server, or a part of its database."""


def key_of(task_id: str) -> str:
    """Return the key of a task in the table: its id, unless that is too long, or could be mistaken for
    another's."""
    if len(task_id) <= LONGEST_ID and not task_id.endswith(" "):  # MySQL ignores trailing blanks
        return task_id
    return f"{task_id[:_KEPT]}{DIGEST}{sha256(task_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def pack(values: Mapping[str, Any]) -> bytes:
    """Return the payload of a row with these columns; date_done is ISO text."""
    return _MARK + marshal.dumps(dict(values))


def unpack(status: str, payload: bytes) -> dict[str, Any]:
    """Return the columns of a row; a payload that pack() did not make is the column ``result``."""
    if payload.startswith(_MARK):
        columns: dict[str, Any] = marshal.loads(payload[len(_MARK) :])
        return columns
    return {"status": status, "result": payload, "traceback": None, "children": None, "date_done": None}


def place_of(url: str) -> tuple[Any, ...] | None:
    """Return what identifies the database that *url* leads to, whatever the driver and user; None if it is
    not on a server."""
    parts = urlsplit(url.removeprefix("db+"))
    family, port = _FAMILIES.get(parts.scheme.partition("+")[0], ("", 0))
    if not family:
        return None
    query = dict(parse_qsl(parts.query))
    host = parts.hostname or "127.0.0.1"
    return (
        family,
        "127.0.0.1" if host == "localhost" else host,
        parts.port or port,
        unquote(parts.path.strip("/")),
        *(query.get(name) for name in _NAMING),
    )
