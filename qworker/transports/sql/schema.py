"""The tables of the SQL broker, and the statements of consumers on them.

Comes from:  ``postgresql.py`` and ``mysql.py``, at their first use of a database.
Goes to:     the database.
Thread:      any; constants.

Ready, delayed and leased messages have an index each, so that taking a message costs the same however many
wait. PostgreSQL's indexes are partial; MySQL has none of that kind, so the state is a column of the first
two. ``urgency`` is the negated priority: so the most urgent come first in a plain index. Stored names are not
changed, since workers of several versions share the tables: an ``owner`` is a consumer, its ``id`` the
generation, ``marks`` its running file, ``armed_until`` until when it wants notifications.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qworker.transports.lease import Kind

VERSION = 1
"""The version of the tables; an older qworker does not touch newer ones."""
ADDITIONS = (("qworker_owner", "presence", "text"), ("qworker_failed", "", ""))
"""Table, column and type ("": the whole table) of later additions, made so that earlier consumers ignore
them: workers of both versions share the tables. ``qworker_schema`` has the row 1 for the version, and one
with the next id for each addition; all have that version, which is all that an earlier consumer reads."""
SQL_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
"""The SQL mode of our sessions on MySQL and MariaDB, whatever the server's is: text that does not fit is an
error, and a backslash escapes."""
READY, DELAYED, LEASED = 0, 1, 2
LETTERS: Mapping[Kind, str] = {"dead": "qworker_dead", "failed": "qworker_failed"}
"""The tables of letters, by kind."""

NOW = "extract(epoch FROM clock_timestamp())"
"""The server's clock."""
COLUMNS = "tag, queue, urgency, due, deliveries, redelivered, parked, headers, properties, body"
"""Columns of ``qworker_message``, as read by link.leased()."""
LAST_REVOKED = "SELECT coalesce(max(seq), 0) FROM qworker_revoked"
NEXT_DUE = "SELECT min(due) FROM qworker_message WHERE queue = %s AND state = 1"
NEW_COLUMNS = "queue, urgency, due, state, sent, headers, properties, body"
"""The columns of a new message."""

_CHURN = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, "
    "autovacuum_vacuum_cost_delay = 0"
)

POSTGRESQL = (
    "CREATE TABLE IF NOT EXISTS qworker_schema (id smallint PRIMARY KEY, version integer NOT NULL)",
    f"""CREATE TABLE IF NOT EXISTS qworker_message (
        tag bigserial PRIMARY KEY, queue text NOT NULL, urgency smallint NOT NULL, due double precision,
        state smallint NOT NULL, owner bigint, deliveries integer NOT NULL DEFAULT 0,
        redelivered smallint NOT NULL DEFAULT 0, parked integer NOT NULL DEFAULT 0,
        sent double precision NOT NULL,
        headers text NOT NULL, properties text, body bytea NOT NULL) WITH ({_CHURN})""",
    "CREATE INDEX IF NOT EXISTS qworker_message_ready ON qworker_message (queue, urgency, tag) WHERE "
    "state = 0",
    "CREATE INDEX IF NOT EXISTS qworker_message_delayed ON qworker_message (queue, due) WHERE state = 1",
    "CREATE INDEX IF NOT EXISTS qworker_message_held ON qworker_message (owner) WHERE state = 2",
    """CREATE TABLE IF NOT EXISTS qworker_dead (
        tag bigint PRIMARY KEY, queue text NOT NULL, reason text NOT NULL, died_at double precision NOT NULL,
        deliveries integer NOT NULL, urgency smallint NOT NULL, headers text NOT NULL, properties text,
        body bytea NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS qworker_dead_died ON qworker_dead (died_at, tag, queue)",
    "CREATE TABLE IF NOT EXISTS qworker_failed (LIKE qworker_dead INCLUDING ALL)",
    f"""CREATE TABLE IF NOT EXISTS qworker_owner (
        id bigserial PRIMARY KEY, name text NOT NULL, pid bigint NOT NULL, boot text NOT NULL,
        lock_path text NOT NULL,
        marks text NOT NULL, queues text NOT NULL, concurrency integer NOT NULL,
        started double precision NOT NULL,
        lease_until double precision NOT NULL, armed_until double precision NOT NULL DEFAULT 0,
        running text NOT NULL DEFAULT '') WITH (fillfactor = 50, {_CHURN})""",
    """CREATE TABLE IF NOT EXISTS qworker_revoked (
        seq bigserial PRIMARY KEY, task_id text NOT NULL, terminate smallint NOT NULL,
        signal_name text NOT NULL,
        expires double precision NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS qworker_revoked_expires ON qworker_revoked (expires)",
)

MYSQL_TABLE = "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
MYSQL = (
    "CREATE TABLE IF NOT EXISTS qworker_schema (id smallint PRIMARY KEY, version integer NOT NULL) "
    f"{MYSQL_TABLE}",
    f"""CREATE TABLE IF NOT EXISTS qworker_message (
        tag bigint AUTO_INCREMENT PRIMARY KEY, queue varchar(255) NOT NULL, urgency smallint NOT NULL,
        due double,
        state smallint NOT NULL, owner bigint, deliveries integer NOT NULL DEFAULT 0,
        redelivered smallint NOT NULL DEFAULT 0, parked integer NOT NULL DEFAULT 0, sent double NOT NULL,
        headers longtext NOT NULL, properties longtext, body longblob NOT NULL,
        KEY qworker_message_ready (queue, state, urgency, tag), KEY qworker_message_delayed (queue, state,
        due),
        KEY qworker_message_held (owner)) {MYSQL_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS qworker_dead (
        tag bigint PRIMARY KEY, queue varchar(255) NOT NULL, reason longtext NOT NULL,
        died_at double NOT NULL,
        deliveries integer NOT NULL, urgency smallint NOT NULL, headers longtext NOT NULL,
        properties longtext,
        body longblob NOT NULL, KEY qworker_dead_died (died_at, tag, queue)) {MYSQL_TABLE}""",
    "CREATE TABLE IF NOT EXISTS qworker_failed LIKE qworker_dead",
    f"""CREATE TABLE IF NOT EXISTS qworker_owner (
        id bigint AUTO_INCREMENT PRIMARY KEY, name varchar(255) NOT NULL, pid bigint NOT NULL,
        boot varchar(64) NOT NULL, lock_path text NOT NULL, marks text NOT NULL, queues text NOT NULL,
        concurrency integer NOT NULL, started double NOT NULL, lease_until double NOT NULL,
        armed_until double NOT NULL DEFAULT 0, running mediumtext NOT NULL) {MYSQL_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS qworker_revoked (
        seq bigint AUTO_INCREMENT PRIMARY KEY, task_id varchar(255) NOT NULL, terminate smallint NOT NULL,
        signal_name varchar(255) NOT NULL, expires double NOT NULL,
        KEY qworker_revoked_expires (expires)) {MYSQL_TABLE}""",
)
NEXT_NUMBER = """SELECT greatest(coalesce(max({column}), 0) + 1,
floor(extract(epoch FROM clock_timestamp()) * 1000000)) FROM {table}"""
"""The number of a new consumer or revocation; see ``lease.py``."""
NEW_OWNER = """INSERT INTO qworker_owner (id, name, pid, boot, lock_path, marks, queues, concurrency,
started, lease_until,
armed_until, running, presence) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, {until}, {armed}, '', %s)"""
PUT_BACK = """UPDATE qworker_message SET state = 0, owner = NULL, redelivered = 1
WHERE tag = ANY(%s) AND owner = %s"""
CHECK_OWNER = "SELECT id FROM qworker_owner WHERE id = %s FOR UPDATE"
"""Whether a consumer counts as alive; within a transaction, it stays so until the end."""
PRESENT = "SELECT tag FROM qworker_message WHERE tag = ANY(%s)"
CLAIM_AGAIN = """UPDATE qworker_message SET state = 2, owner = %s
WHERE tag = ANY(%s) AND state <> 2 AND owner IS NULL"""
REVOKED_SINCE = """SELECT seq, task_id, terminate, signal_name FROM qworker_revoked
WHERE seq > %s AND expires > %s ORDER BY seq"""

# -- Waking one waiting consumer, on PostgreSQL --

# A consumer's session holds a shared lock on its id, so that the dead are not chosen. The lock is not kept
# until the commit: meanwhile other publishers would take the dead consumer for a living one.
_WAITING = f"""SELECT id FROM qworker_owner WHERE armed_until > {NOW}
AND $queue = ANY(string_to_array(queues, chr(10)))
AND CASE WHEN pg_try_advisory_lock(id) THEN NOT pg_advisory_unlock(id) ELSE true END"""
_ANYWHERE = "(SELECT min(id) + (random() * (max(id) - min(id)))::bigint - 1 FROM qworker_owner)"
_WAKE = f"""SELECT id, pg_notify(%s || '_' || id, %s) FROM $wanted
(({_WAITING} AND id > coalesce(CAST(nullif(%s, '') AS bigint), {_ANYWHERE}) ORDER BY id LIMIT 1)
UNION ALL ({_WAITING} ORDER BY id LIMIT 1) LIMIT 1) AS chosen"""
_WAKE_ONE = _WAKE.replace("$wanted", "").replace("$queue", "CAST(%s AS text)")
_WAKE_EACH = _WAKE.replace(
    "$wanted", "unnest(string_to_array(%s, chr(10))) AS wanted (queue), LATERAL"
).replace("$queue", "wanted.queue")  # planning it takes 0.2 ms longer


def waking(
    channel: str, queues: Iterable[str], after: int | None = None, payload: str = ""
) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that wakes one waiting consumer of each of *queues*, and returns their ids, and
    its values; without WHERE. It wakes the next one whose id is higher than *after*, or the first one; None:
    a random number. A consumer of several queues is notified once."""
    names = list(dict.fromkeys(queues))
    # Always text: for each type of a value the server would prepare another statement.
    start = "" if after is None else str(after)
    if len(names) == 1:
        return _WAKE_ONE, (channel, payload, names[0], start, names[0])
    return _WAKE_EACH, (channel, payload, "\n".join(names), start)
