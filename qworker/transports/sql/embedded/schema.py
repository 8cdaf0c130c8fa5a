"""The contents of the file: its tables, and the rule by which results are replaced.

Comes from:  nothing.
Goes to:     ``database.py``, which makes the tables; the statements of the transport and the result store.
Thread:      any; constants.
"""

from __future__ import annotations

from qworker.transports.sql.result_states import MAY_REPLACE

SCHEMA_VERSION = 6

READY, DELAYED, LEASED = 0, 1, 2
"""States of a row in ``message``."""

# STRICT if SQLite supports it: otherwise text in a column of numbers is only noticed in computations. A file
# of an older version gets missing parts: so far every version only added some.
SCHEMA = """
CREATE TABLE IF NOT EXISTS message (
    tag INTEGER PRIMARY KEY, queue TEXT NOT NULL, priority INTEGER NOT NULL DEFAULT 0, due REAL,
    state INTEGER NOT NULL DEFAULT 0, owner INTEGER, deliveries INTEGER NOT NULL DEFAULT 0,
    redelivered INTEGER NOT NULL DEFAULT 0, parked INTEGER NOT NULL DEFAULT 0, sent REAL NOT NULL,
    headers TEXT NOT NULL, properties TEXT, body BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS message_ready ON message (queue, priority DESC, tag) WHERE state = 0;
CREATE INDEX IF NOT EXISTS message_delayed ON message (queue, due) WHERE state = 1;
CREATE INDEX IF NOT EXISTS message_leased ON message (owner) WHERE state = 2;
CREATE TABLE IF NOT EXISTS dead (
    tag INTEGER PRIMARY KEY, queue TEXT NOT NULL, reason TEXT NOT NULL, died_at REAL NOT NULL,
    deliveries INTEGER NOT NULL, priority INTEGER NOT NULL, headers TEXT NOT NULL, properties TEXT,
    body BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS dead_age ON dead (died_at, tag, queue);
CREATE TABLE IF NOT EXISTS failed (
    tag INTEGER PRIMARY KEY, queue TEXT NOT NULL, reason TEXT NOT NULL, died_at REAL NOT NULL,
    deliveries INTEGER NOT NULL, priority INTEGER NOT NULL, headers TEXT NOT NULL, properties TEXT,
    body BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS failed_age ON failed (died_at, tag, queue);
CREATE TABLE IF NOT EXISTS owner (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, pid INTEGER NOT NULL, boot TEXT NOT NULL,
    queues TEXT NOT NULL, concurrency INTEGER NOT NULL, lease_until REAL NOT NULL, started REAL NOT NULL,
    marks TEXT NOT NULL, presence TEXT NOT NULL DEFAULT '') STRICT;
CREATE TABLE IF NOT EXISTS revoked (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL, terminate INTEGER NOT NULL,
    signal TEXT NOT NULL,
    expires REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS result (
    task_id TEXT PRIMARY KEY, status TEXT NOT NULL, payload BLOB NOT NULL,
    expires REAL) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS result_expires ON result (expires) WHERE expires IS NOT NULL;
CREATE TABLE IF NOT EXISTS key_value (key TEXT PRIMARY KEY, value TEXT NOT NULL, expires REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS joins (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, remaining INTEGER NOT NULL,
    due REAL, token TEXT, expires REAL, body BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS joins_due ON joins (due) WHERE due IS NOT NULL;
CREATE TABLE IF NOT EXISTS part (
    seq INTEGER NOT NULL, number INTEGER NOT NULL, task_id TEXT NOT NULL, status TEXT NOT NULL,
    PRIMARY KEY (seq, number)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS highest (tag INTEGER NOT NULL) STRICT;
INSERT INTO highest SELECT ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'message'), 0)
    WHERE NOT EXISTS (SELECT 1 FROM highest);
CREATE TRIGGER IF NOT EXISTS message_highest AFTER DELETE ON message
    WHEN old.tag > ifnull((SELECT max(tag) FROM message), 0) BEGIN UPDATE highest
    SET tag = max(tag, old.tag); END;
"""

ADDED_COLUMNS = (("owner", "presence", "TEXT NOT NULL DEFAULT ''"),)
"""Table, column and type of later additions that older files lack."""

NEXT_NUMBER = "max(?, (SELECT ifnull(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = '{table}'))"
"""The number of a new owner or revocation, given the microseconds of the wall clock; see ``lease.py``."""

NEXT_TAG = "max(ifnull((SELECT max(tag) FROM message), 0), (SELECT tag FROM highest)) + 1"
"""The tag of a new message: never a reused one. AUTOINCREMENT would ensure the same, but with an additional
page in every publisher's commit; this way the deletion of the last message writes, once per batch."""

UPSERT_RESULT = f"""
INSERT INTO result (task_id, status, payload, expires) VALUES (?, ?, ?, ?)
ON CONFLICT (task_id) DO UPDATE SET status = excluded.status, payload = excluded.payload,
expires = excluded.expires
WHERE {MAY_REPLACE.format(old="result.status", new="excluded.status")}
"""
"""Compare-and-set of ``(task_id, status, payload, expires)`` by the rule of ``states.may_replace``."""
