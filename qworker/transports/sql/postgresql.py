"""PostgreSQL as a broker: a Link by psycopg.

Comes from:  ``broker.py``, for ``postgresql://`` URLs.
Goes to:     the tables of ``schema.py``.
Thread:      one at a time.

A publisher notifies one waiting consumer by NOTIFY: one of those that have a subscription in
``qworker_owner.armed_until`` (``consumer.py``), from a random place on. A consumer without room passes it on,
also if it had room when it was notified, and one that does not take all wakes another. A commit with a
notification waits for all other such commits, so none is sent if nobody waits. The worker's own commits need
not reach the disk at once (``synchronous_commit = off``): the worker repeats those that a crash of the server
undoes (``consumer.py``).

Behind a pooler (``pooler.py``) there is no session: consumers poll, and settings are repeated in each
transaction.
"""

from __future__ import annotations

import math
import re
import select
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from qworker.conf.secrets import mask_urls
from qworker.errors import BrokerUnavailable, ConfigurationError, PublishError
from qworker.naming import install_command
from qworker.transports.connect_errors import POSTGRESQL as TLS
from qworker.transports.connect_errors import (
    PREPARE_THRESHOLD,
    check_libpq,
    explained,
    prepare_threshold_of,
)
from qworker.transports.lease import MAX_LEASE_BYTES, Part, RowsLocked
from qworker.transports.sql.join_rows import JoinTables, postgresql_record
from qworker.transports.sql.link import (
    IDLE_SECONDS,
    Claimed,
    ClaimOrder,
    DriverError,
    Link,
    MessageRow,
    Notified,
    Row,
    detach_socket,
    leased,
)
from qworker.transports.sql.polling import Polling
from qworker.transports.sql.pooler import (
    NOTICE,
    POOLER,
    STATEMENT_MODE,
    UNSUPPORTED_PARAMETER,
    pooler_of,
)
from qworker.transports.sql.refusals import refused
from qworker.transports.sql.result_upserts import postgresql_upsert
from qworker.transports.sql.schema import (
    ADDITIONS,
    COLUMNS,
    LAST_REVOKED,
    NEW_COLUMNS,
    NOW,
    POSTGRESQL,
    VERSION,
    waking,
)

try:
    import psycopg
    from psycopg.adapt import Dumper
    from psycopg.conninfo import conninfo_to_dict

    from qworker.transports.sql.timeout_connection import ANSWER_SECONDS, TimeoutConnection
except ImportError as error:
    raise ConfigurationError(
        f"{error.name or 'psycopg'} is not installed, which postgresql:// needs: "
        f"{install_command('postgresql')}",
        setting="broker_url",
    ) from error

TYPES = ("text", "int2", "float8", "int2", "float8", "text", "text", "bytea")
"""The types of NEW_COLUMNS."""
ARRAYS = ", ".join(f"CAST(%s AS {name}[])" for name in TYPES)
COPY_FROM = 32
"""Minimum number of messages for which COPY is faster than INSERT."""
LOCK_SCHEMA = "SELECT pg_advisory_xact_lock(7291406110 + hashtext(current_schema()))"
"""Tables in other schemas of the database may be made at the same time."""
SOMEBODY_LISTENS = f"EXISTS (SELECT 1 FROM qworker_owner WHERE armed_until > {NOW})"
REMOVE = "DELETE FROM qworker_message WHERE tag = ANY(%s) AND owner = %s RETURNING tag"
BY_INDEX = ("enable_seqscan = off", "enable_bitmapscan = off", "jit = off")
BROKEN_CLASSES = ("08", "57P", "58", "XX")
PASSING = ("40001", "40P01", "25P02")
LOCKED = "55P03"
MISSING_TABLE = ("42P01", "42703")
TAKEN = "23505"
END_SESSION = """SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted AND objsubid = 1
AND datname = current_database() AND (classid::bigint << 32) + objid::bigint = %s
AND pid <> pg_backend_pid() AND pg_has_role(usesysid, 'USAGE')"""
"""listen() has locked the number of a consumer; publishers try for an exclusive lock. The numbers are
microseconds, and so unique in the database, also beside the locks of applications."""
BY_CONSUMER = re.compile(r"[0-9]{1,18}")
_NOTE = "INSERT INTO qworker_schema (id, version) VALUES (%s, %s) ON CONFLICT DO NOTHING"


class ArrayDumper(Dumper):
    """Writes a list as a PostgreSQL array. psycopg's own dumper examines each value five times."""

    def dump(self, obj: Any) -> bytes:
        return f"{{{','.join(map(_item, obj))}}}".encode()


def _item(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, bytes):
        return f'"\\\\x{value.hex()}"'
    return repr(value)


def _queues(rows: Sequence[MessageRow]) -> Iterator[str]:
    return (queue for queue, *_ in rows)


def fields_of(url: str) -> dict[str, Any]:
    """Return the arguments of psycopg's connection for *url*. psycopg.ProgrammingError when libpq does not
    know a parameter; ConfigurationError for an invalid one of psycopg's own."""
    start, mark, query = url.partition("?")
    pairs = query.split("&")
    ours = (PREPARE_THRESHOLD, POOLER)
    plain = "&".join(pair for pair in pairs if pair.partition("=")[0] not in ours)
    fields: dict[str, Any] = dict(conninfo_to_dict(f"{start}{mark}{plain}" if plain else start))
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name == PREPARE_THRESHOLD:
            fields[name] = prepare_threshold_of(value, "broker_url")
        elif name == POOLER:
            fields[name] = pooler_of(value, "broker_url")
    return fields


def _no_url(error: Exception) -> ConfigurationError:
    text = mask_urls(str(error).strip())
    return ConfigurationError(f"broker_url is not a URL of PostgreSQL: {text}", setting="broker_url")


class PostgreSQLLink(Link):
    """url: in libpq's notation, and with ``prepare_threshold`` and ``pooler``. relaxed: commits need not be
    on the disk when they return, and locked rows are reported at once."""

    errors = (psycopg.Error,)

    def __init__(
        self,
        url: str,
        connect_timeout: float,
        options: Mapping[str, Any],
        relaxed: bool,
        lease_seconds: float = math.inf,
    ) -> None:
        super().__init__(lease_seconds)
        self._notified = Notified.NONE
        self._passed_by: str | None = None
        """Of the notification that is not used yet, the first consumer that passed it on; "" if none has."""
        self._woken: int | None = None
        """The consumer that was notified last."""
        self._claims = QueueDrains()
        self._begin = "BEGIN"
        self._polling: Polling | None = None
        try:
            ours = {name: options[name] for name in (PREPARE_THRESHOLD, POOLER) if name in options}
            if POOLER in ours:
                pooler_of(ours[POOLER], "broker_transport_options")
            fields: dict[str, Any] = {
                **ours,
                "connect_timeout": max(2, round(connect_timeout)),
                "keepalives_idle": 30,
                "keepalives_interval": 10,
                "keepalives_count": 3,
                "tcp_user_timeout": int(ANSWER_SECONDS * 1000),
                "application_name": "qworker",
                **fields_of(url),
            }
            self._connection = TimeoutConnection.connect(autocommit=True, **fields)
        except psycopg.ProgrammingError as error:
            raise _no_url(error) from None
        except psycopg.Error as error:
            if UNSUPPORTED_PARAMETER in str(error):
                raise ConfigurationError(
                    "the pooler accepts no such parameter in broker_url; for a search_path, use ALTER ROLE … "
                    f"SET search_path ({str(error).strip()})",
                    setting="broker_url",
                ) from error
            raise BrokerUnavailable(f"PostgreSQL cannot be reached: {explained(str(error), TLS)}") from error
        if not self._connection.pooled:
            if PREPARE_THRESHOLD not in fields:
                self._connection.prepare_threshold = 2
            self._connection.add_notify_handler(self._note)
        else:
            self.polls, self._polling = True, Polling(self.ask, self._next_dues)
            self.notice = "" if POOLER in fields else NOTICE
        self._relaxed = relaxed
        self._rest = select.poll()
        self._rest.register(self._connection.fileno(), select.POLLIN)

    @contextmanager
    def within(self, deadline: float) -> Iterator[None]:
        self._connection.deadline = deadline
        try:
            yield
        finally:
            self._connection.deadline = None

    @staticmethod
    def check(url: str) -> None:
        try:
            check_libpq(fields_of(url), "broker_url")
        except psycopg.ProgrammingError as error:
            raise _no_url(error) from None

    def _note(self, notification: Any) -> None:
        self._take(notification.channel, notification.payload)

    def prepare(self) -> None:
        settings = [
            f"statement_timeout = '{ANSWER_SECONDS:g}s'",
            f"lock_timeout = {round(self._wait_seconds * 1000)}",
            f"idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'",
            "default_transaction_isolation = 'read committed'",
        ]
        if self._relaxed:
            # All queries of a worker have an index. Plans made for a small table must work for a large one.
            settings += ["synchronous_commit = off", "plan_cache_mode = force_generic_plan", *BY_INDEX]
        self.configure(settings)

    def configure(self, settings: Sequence[str]) -> None:
        if self._connection.pooled:
            local = (f"SET LOCAL {each}" for each in settings)
            self._begin = "; ".join(["BEGIN ISOLATION LEVEL READ COMMITTED", *local])
            with self.transaction():  # a pooler that has no transactions says so now
                pass
        else:
            self._connection.execute("; ".join(f"SET {each}" for each in settings))

    def has_tables(self) -> bool:
        return bool(self.ask("SELECT to_regclass('qworker_schema') IS NOT NULL")[0][0])

    def make_tables(self) -> None:
        super().make_tables()
        self.table = f"qworker_{self.ask('SELECT to_regclass(%s)::oid', ('qworker_message',))[0][0]}"

    def create(self) -> None:
        with self.transaction():
            self.do(LOCK_SCHEMA)
            for statement in POSTGRESQL:
                self.do(statement)
            self.do(_NOTE, (1, VERSION))
            for id, (table, column, kind) in enumerate(ADDITIONS, 2):
                if column:
                    self.do(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} {kind}")
                self.do(_NOTE, (id, VERSION))

    add = create

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._connection.execute(statement, values or None).fetchall()

    def do(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self._connection.execute(statement, values or None).rowcount

    def new_tag(self) -> int:
        return int(self.ask("SELECT nextval(pg_get_serial_sequence('qworker_message', 'tag'))")[0][0])

    def remove(self, tags: Sequence[int], owner: int) -> set[int]:
        return {tag for (tag,) in self.ask(REMOVE, (tags, owner))}

    def begin(self) -> None:
        self._connection.execute(self._begin)

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self._connection.execute("ROLLBACK")

    def use_client_cursor(self) -> None:
        self._connection.cursor_factory = psycopg.ClientCursor
        self._connection.adapters.register_dumper(list, ArrayDumper)
        self._connection.prepare_threshold = None

    def flush(self) -> None:
        # A transaction that has written nothing does not wait: this is the smallest possible write. As one
        # message, it cannot be interrupted: a lost confirmation would lose the tasks that were acknowledged.
        self._connection.execute(
            f"{self._begin}; SET LOCAL synchronous_commit = on; "
            "SELECT pg_logical_emit_message(true, 'qworker', ''); COMMIT",
            prepare=False,
        )

    def crash(self) -> tuple[str, float]:
        # A crash, of one of its processes too, resets statistics; a shutdown in good order keeps them.
        found = self.ask(f"SELECT stats_reset, {NOW} - extract(epoch FROM stats_reset) FROM pg_stat_bgwriter")
        ((reset, age),) = found
        return ("", math.inf) if reset is None else (str(reset), float(age))

    # -- publishing --

    def table_and_channel(self) -> tuple[str, str]:
        where = (
            "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('qworker_message')"
        )
        found = self.ask(where)  # empty if the table is missing: the insert will fail
        return ".".join([*(schema for (schema,) in found), "qworker_message"]), self.table

    def insert(self, rows: Sequence[MessageRow]) -> None:
        if len(rows) < COPY_FROM:
            # One statement, so one exchange with the server and one commit.
            places = ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s)"] * len(rows))
            statement = f"WITH stored AS (INSERT INTO qworker_message ({NEW_COLUMNS}) VALUES {places}) "
            self._wake(statement, [value for row in rows for value in row], rows)
            return
        with self.transaction():
            self.copy(rows)
            self._wake("", (), rows)

    def _wake(self, statement: str, values: Sequence[Any], rows: Sequence[MessageRow]) -> None:
        """Run *statement*, and wake consumers for *rows*: the next ones, so that each gets its share."""
        wake, more = waking(self.table, _queues(rows), self._woken)
        found = self.ask(statement + wake, [*values, *more])
        self._woken = found[-1][0] if found else self._woken

    def add_messages(self, rows: Sequence[MessageRow], table: str) -> None:
        # Not with COPY: PostgreSQL would wait forever for a client that falls silent during it.
        arrays = [list(values) for values in zip(*rows, strict=True)]
        self.do(f"INSERT INTO {table} ({NEW_COLUMNS}) SELECT * FROM unnest({ARRAYS})", arrays)

    def copy(self, rows: Sequence[MessageRow]) -> None:
        statement = f"COPY qworker_message ({NEW_COLUMNS}) FROM STDIN (FORMAT BINARY)"
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(TYPES)
            write = copy.write_row
            for row in rows:
                write(row)

    def notify(self) -> None:
        self.do(f"SELECT pg_notify(%s, '') WHERE {SOMEBODY_LISTENS}", (self.table,))

    # -- notifications --

    def listen(self, generation: int) -> None:
        if self._polling:
            self.notified(())
            return
        self.do(f"LISTEN {self.table}; LISTEN {self.table}_{generation}")
        # It waits for a publisher that looks at this moment whether we are dead.
        self.ask("SELECT pg_advisory_lock_shared(%s)", (generation,))
        self.notified(())

    def end_session(self, generation: int) -> bool:
        try:
            return (True,) in self.ask(END_SESSION, (generation,))
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction):
            return False

    def notified(self, queues: Collection[str]) -> Notified:
        if self._polling:
            return self._polling.notified(queues)
        server = self._connection.pgconn
        server.consume_input()
        while (found := server.notifies()) is not None:
            self._take(found.relname.decode(), found.extra.decode())
        notified, self._notified = self._notified, Notified.NONE
        return notified

    def _take(self, channel: str, payload: str) -> None:
        if channel == self.table:
            self._notified = Notified.ALL
        else:
            if not BY_CONSUMER.fullmatch(payload):  # any user of the database may notify
                payload = ""
            self._notified = max(self._notified, Notified.ONE)
            # Of two, the one that goes further.
            self._passed_by = payload if self._passed_by in (None, payload) else ""

    def wake_another(self, generation: int, queues: Sequence[str]) -> None:
        first = int(self._passed_by or generation)
        self._passed_by = None
        wake, values = waking(self.table, queues, generation, str(first))
        # Only those between us and the first, which may no longer wait.
        joint = "AND" if first > generation else "OR"
        self.do(f"{wake} WHERE id > %s {joint} id < %s", (*values, generation, first))

    def fileno(self) -> int:
        return -1 if self._polling else self._connection.fileno()

    # -- leasing --

    def _claim(self, order: ClaimOrder) -> Claimed:
        next_due = self._next_dues.get(order.queue, order.now)
        found = self._claims.claim(self._connection, order, next_due)
        if found.ready or found.early:
            self._passed_by = None
            if self._polling:
                self._polling.claimed()
        return found

    # -- results --

    def columns(self, table: str) -> dict[str, bool]:
        rows = self.ask(
            "SELECT attname, atthasdef OR attidentity <> '' FROM pg_attribute WHERE attrelid = "
            "to_regclass(%s) "
            "AND attnum > 0 AND NOT attisdropped",
            (table,),
        )
        return dict(rows)

    def make_results(self, table: str) -> None:
        self.do(LOCK_SCHEMA)
        self.do("CREATE SEQUENCE IF NOT EXISTS task_id_sequence")
        self.do(
            f"""CREATE TABLE IF NOT EXISTS {table} (id bigint NOT NULL DEFAULT nextval('task_id_sequence')
            PRIMARY KEY,
            task_id varchar(155) UNIQUE, status varchar(50), result bytea, date_done timestamp,
            traceback text,
            children bytea, name varchar(155), args bytea, kwargs bytea, worker varchar(155), retries integer,
            queue varchar(155), stamps bytea)"""
        )
        self.do(f"CREATE INDEX IF NOT EXISTS ix_{table}_date_done ON {table} (date_done)")

    def upsert(self, table: str, columns: Sequence[str], rows: Sequence[Row], makes_ids: bool) -> None:
        for statement, values in postgresql_upsert(table, tuple(columns), rows, makes_ids):
            self.do(statement, values)

    def record_parts(self, tables: JoinTables, parts: Sequence[Part]) -> None:
        statement = postgresql_record(tables, parts)
        if statement is not None:
            self.do(*statement)

    # -- errors --

    def gone(self) -> bool:
        return bool(self._rest.poll(0))  # it sent data without a request: it closes the connection

    def driver_error(self, error: Exception) -> DriverError:
        code = getattr(error, "sqlstate", None) or ""
        text = str(error).strip().partition("\n")[0]
        if code in PASSING:
            return DriverError(BrokerUnavailable(f"PostgreSQL was too busy: {text}"), transient=True)
        if code == LOCKED:  # a consumer does not try again: it has a lease to renew
            where = getattr(getattr(error, "diag", None), "context", None) or ""
            text = ", ".join(filter(None, [text, *where.splitlines()[:1]]))
            text = f"another transaction has locked rows or tables: {text}"
            return DriverError(RowsLocked(text), transient=not self._relaxed)
        if not self._connection.closed and refused(error):
            # For a number in use, another attempt may find a free one.
            return DriverError(PublishError(f"PostgreSQL cannot store this: {text}"), transient=code == TAKEN)
        if STATEMENT_MODE in text:
            error = ConfigurationError(
                "the database is behind a pooler in statement mode, which has no transactions: use its "
                f"transaction or session mode ({text})",
                setting="broker_url",
            )
            return DriverError(error, fatal=True)
        if self._connection.closed or not code or code.startswith(BROKEN_CLASSES):
            return DriverError(BrokerUnavailable(f"PostgreSQL does not answer: {text}"), fatal=True)
        if code in MISSING_TABLE:
            return DriverError(BrokerUnavailable(f"the tables of the broker are gone: {text}"), fatal=True)
        if code == "42501" or code.startswith("28"):
            return DriverError(
                ConfigurationError(f"PostgreSQL refuses this user: {text}", setting="broker_url"), fatal=True
            )
        # A read-only server is one that was just replaced: its successor is found by connecting again.
        return DriverError(BrokerUnavailable(f"PostgreSQL refused: {text}"), fatal=True)

    def close(self) -> None:
        try:
            self._connection.close()
        except psycopg.Error:
            pass

    def abandon(self) -> None:
        try:
            detach_socket(self._connection.fileno())
        except (psycopg.Error, OSError):
            pass


# -- Claims: messages are taken in batches, without waiting for others, at constant cost --
# A claim is one statement, and so one round trip: its last row, without a tag, tells when the next message is
# due, and the number of the last revocation.
#
# Taken messages leave dead entries at the front of the index, which every further claim would have to skip
# until vacuum runs: after a million messages 30 ms each time. So in a long drain a claim begins where the
# last one ended, and only four times a second at the very front, for messages that came back there.

# An array, not a join: then the plan does not depend on the planner's row estimates. A consumer that declares
# this one dead deletes its row first, and so waits until messages taken here are visible.
_TAKE = f"""WITH me AS (SELECT id FROM qworker_owner WHERE id = %s FOR KEY SHARE),
$selection,
fitting AS (SELECT tag FROM (SELECT tag, sum(size) OVER (ORDER BY place,
tag ROWS UNBOUNDED PRECEDING) - size AS before
FROM taken) AS sized WHERE before < {MAX_LEASE_BYTES}),
claimed AS (UPDATE qworker_message SET state = 2, owner = (SELECT id FROM me)
WHERE tag = ANY(ARRAY(SELECT tag FROM fitting)) AND EXISTS (SELECT 1 FROM me) RETURNING {COLUMNS})
SELECT {COLUMNS} FROM claimed"""
_DELAYED = "FROM qworker_message WHERE queue = %s AND state = 1"
_SOON = f"""taken AS MATERIALIZED (SELECT tag, due AS place, octet_length(body) AS size {_DELAYED}
AND due <= %s
ORDER BY due LIMIT %s FOR UPDATE SKIP LOCKED)"""
# Few messages became due since the last claim; earlier ones were made ready by PROMOTE_DUE.
_READY = f"""ready AS MATERIALIZED (SELECT tag, urgency AS place, octet_length(body) AS size
FROM qworker_message
WHERE queue = %s AND state = 0 $after ORDER BY urgency, tag LIMIT %s FOR UPDATE SKIP LOCKED),
fallen_due AS MATERIALIZED (SELECT tag, urgency AS place, octet_length(body) AS size {_DELAYED} AND due <= %s
ORDER BY due LIMIT 100 FOR UPDATE SKIP LOCKED),
taken AS (SELECT * FROM ready UNION ALL SELECT * FROM fallen_due ORDER BY place, tag LIMIT %s)"""
_AFTER = """AND (urgency, tag) > (%s, %s) AND NOT EXISTS
(SELECT 1 FROM qworker_message WHERE queue = %s AND state = 0 AND urgency < %s)"""
_NEXT = f"""UNION ALL SELECT NULL, NULL, NULL, (SELECT due {_DELAYED} AND tag <> ALL(ARRAY(SELECT tag
FROM fitting))
ORDER BY due LIMIT 1), ({LAST_REVOKED}), NULL, NULL, NULL, NULL, NULL"""
CLAIM = f"{_TAKE} {_NEXT}".replace("$selection", _READY.replace("$after", ""))
CLAIM_AFTER = f"{_TAKE} {_NEXT}".replace("$selection", _READY.replace("$after", _AFTER))
CLAIM_DELAYED = _TAKE.replace("$selection", _SOON)
PROMOTE_DUE = f"""UPDATE qworker_message SET state = 0 WHERE tag = ANY(ARRAY(SELECT tag {_DELAYED}
AND due <= %s ORDER BY due LIMIT 1000 FOR UPDATE SKIP LOCKED))"""
LONG_DRAIN = 2000
"""Messages taken in a row without finding the queue empty."""
FRONT_SECONDS = 0.25


class _Drain(NamedTuple):
    """taken: messages in a row. urgency, tag: of the last one. front_at: monotonic seconds when the front is
    checked again."""

    taken: int
    urgency: int
    tag: int
    front_at: float


class QueueDrains:
    """The state of a connection's claims: how far each queue has been drained."""

    def __init__(self) -> None:
        self._drains: dict[str, _Drain] = {}

    def claim(self, connection: Any, order: ClaimOrder, next_due: float | None) -> Claimed:
        """Carry out *order*. next_due: when the first delayed message is due, according to the last claim."""
        generation, queue, now, limit, delayed_limit, until = order
        limit = max(0, limit)
        if next_due is not None and next_due <= now:
            connection.execute(PROMOTE_DUE, (queue, now))
        drain = self._drains.get(queue)
        clock = time.monotonic()
        after = limit > 0 and drain is not None and drain.taken >= LONG_DRAIN and clock < drain.front_at
        statement = CLAIM
        place: Row = ()
        if after and drain:
            statement, place = CLAIM_AFTER, (drain.urgency, drain.tag, queue, drain.urgency)
        values = (generation, queue, *place, limit, queue, now, limit, queue)
        early: list[Row] = []
        if delayed_limit > 0:
            # One transaction: a retry must not lose what the first statement has taken
            with connection.pipeline():
                soon = connection.execute(CLAIM_DELAYED, (generation, queue, until, delayed_limit))
                ready = connection.execute(statement, values)
            early = soon.fetchall()
        else:
            ready = connection.execute(statement, values)
        rows, following, last_revocation = _parted(ready)
        if after and len(rows) < limit and sum(len(row[-1]) for row in rows) < MAX_LEASE_BYTES:
            after = False
            rest = limit - len(rows)
            try:
                front = connection.execute(CLAIM, (generation, queue, rest, queue, now, rest, queue))
                rows += _parted(front)[0]
            except psycopg.Error:  # keep what was taken; the next request reports the error
                if not rows and not early:
                    raise
        self._note(queue, rows, limit, drain, drain.front_at if drain and after else clock + FRONT_SECONDS)
        return Claimed(
            [leased(row) for row in rows], [leased(row) for row in early], following, last_revocation
        )

    def _note(
        self, queue: str, rows: Sequence[Row], limit: int, drain: _Drain | None, front_at: float
    ) -> None:
        if limit <= 0:
            return
        if len(rows) < limit:
            self._drains.pop(queue, None)
            return
        urgency, tag = max((row[2], row[0]) for row in rows)
        before = drain.taken if drain else 0
        self._drains[queue] = _Drain(before + len(rows), urgency, tag, front_at)


def _parted(cursor: Any) -> tuple[list[Row], float | None, int]:
    """Return the messages of a claim, when the next one is due, and the last revocation."""
    *rows, last = cursor.fetchall()
    return rows, last[3], last[4]
