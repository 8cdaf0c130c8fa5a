"""MariaDB and MySQL as a broker: a Link by PyMySQL.

Comes from:  ``broker.py``, for ``mysql://`` and ``mariadb://`` URLs.
Goes to:     the tables of ``schema.py``.
Thread:      one at a time.

Related statements are sent in one packet: each round trip wakes the server and us, which costs more than most
statements.

These servers have no notifications. Waiting workers poll, often after recent traffic, rarely otherwise,
whether there is anything to take: so the first one to look takes a message, and the others see nothing.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from qworker.conf.secrets import mask_urls
from qworker.errors import BrokerUnavailable, ConfigurationError, PublishError
from qworker.naming import install_command
from qworker.transports.connect_errors import INVALID_HOST, explained
from qworker.transports.connect_errors import MYSQL as SPELLING
from qworker.transports.lease import MAX_LEASE_BYTES, RowsLocked
from qworker.transports.portions import first_that_fit, portions_by_size
from qworker.transports.sql.link import (
    IDLE_SECONDS,
    Claimed,
    ClaimOrder,
    DriverError,
    Link,
    MessageRow,
    Notified,
    Row,
    leased,
)
from qworker.transports.sql.mysql_options import MySQLOptions, options_of
from qworker.transports.sql.polling import Polling
from qworker.transports.sql.refusals import refused
from qworker.transports.sql.result_upserts import mysql_upsert
from qworker.transports.sql.schema import (
    ADDITIONS,
    COLUMNS,
    LAST_REVOKED,
    MYSQL,
    MYSQL_TABLE,
    NEW_COLUMNS,
    NEXT_DUE,
    SQL_MODE,
    VERSION,
)
from qworker.transports.sql.schema import NOW as POSTGRESQL_NOW

try:
    import pymysql
    from pymysql.constants import CLIENT, SERVER_STATUS

    from qworker.transports.sql.limited_connection import LimitedConnection
except ImportError as error:
    raise ConfigurationError(
        f"{error.name or 'pymysql'} is not installed, which mysql:// needs: {install_command('mysql')}",
        setting="broker_url",
    ) from error

ANSWER_SECONDS = 30.0
"""Seconds after which a silent server is given up, if the URL has no ``read_timeout``."""
NOW = "UNIX_TIMESTAMP(NOW(6))"
_NOTE = "INSERT IGNORE INTO qworker_schema (id, version) VALUES (%s, %s)"
# A consumer that declares this one dead deletes its row first, and so waits until messages taken here are
# visible.
ALIVE = "SELECT id FROM qworker_owner WHERE id = %s LOCK IN SHARE MODE"
CLAIM = """SELECT tag, length(body) FROM qworker_message WHERE queue = %s AND state = 0
ORDER BY urgency, tag LIMIT %s FOR UPDATE SKIP LOCKED"""
LATER = """SELECT tag, length(body), due FROM qworker_message WHERE queue = %s AND state = 1 AND due <= %s
ORDER BY due LIMIT %s FOR UPDATE SKIP LOCKED"""
PROMOTE_DUE = "UPDATE qworker_message SET state = 0 WHERE tag = ANY(%s)"
PROMOTED_AT_ONCE = 1000
TAKE = "UPDATE qworker_message SET state = 2, owner = %s WHERE tag = ANY(%s)"
OUTLOOK = f"SELECT ({NEXT_DUE}), ({LAST_REVOKED})"
TAKEN = f"SELECT {COLUMNS} FROM qworker_message WHERE tag = ANY(%s)"
FROM_HELD = "FROM qworker_message WHERE tag = ANY(%s) AND owner = %s"
INSERT = f"INSERT INTO qworker_message ({NEW_COLUMNS}) VALUES"
PLACES = f"({', '.join(['%s'] * len(NEW_COLUMNS.split(',')))})"
BEGIN, COMMIT = ("BEGIN", ()), ("COMMIT", ())
CONSUMER = "concat('qworker ', left(sha2(database(), 256), 32), ' ', %s)"
"""The name of a consumer's lock, which is known to the whole server and has 64 characters at most."""
ONE_PACKET = 32
"""Maximum messages, and bytes, stored in one packet with everything that belongs to them."""
PACKET_BYTES = 512 * 1024
CONFLICT = 1213
LOCKED = (1205, 3572)
MISSING_TABLE = (1146, 1054, 1049)
REFUSED = (1044, 1045, 1142, 1143, 1227, 1698)
TAKEN_NUMBER = 1062
_USUAL: Mapping[str, Any] = {
    "host": "127.0.0.1",
    "port": 3306,
    "user": "",
    "password": "",
    "database": "",
    "charset": "utf8mb4",
}


def url_options(url: str) -> MySQLOptions:
    """Return PyMySQL's arguments for *url*; ConfigurationError for unknown options."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        text = f"broker_url: {mask_urls(url)}: {INVALID_HOST}"
        raise ConfigurationError(text, setting="broker_url") from None
    asked = options_of(parse_qsl(parts.query, keep_blank_values=True), "broker_url")
    in_url = {
        "host": parts.hostname,
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.lstrip("/")),
    }
    fields = {**_USUAL, **asked.fields, **{name: value for name, value in in_url.items() if value}}
    return asked._replace(fields=fields)


class MySQLLink(Link):
    """url: mysql://user:password@host:port/database?ssl_ca=…, with options as in ``mysql_options.py``."""

    errors = (pymysql.Error,)
    polls = True

    def __init__(
        self,
        url: str,
        connect_timeout: float,
        options: Mapping[str, Any],
        relaxed: bool,
        lease_seconds: float = math.inf,
    ) -> None:
        super().__init__(lease_seconds)
        self._relaxed = relaxed
        asked = url_options(url)
        if not asked.fields["database"]:
            raise ConfigurationError(
                "broker_url names no database: mysql://user@host/database", setting="broker_url"
            )
        seconds = asked.fields.get("connect_timeout", max(1, round(connect_timeout)))
        try:
            arguments = {
                **asked.arguments(),
                "autocommit": True,
                "client_flag": CLIENT.MULTI_STATEMENTS,
                "connect_timeout": seconds,
                # Also for the greeting, which comes after what PyMySQL calls connecting.
                "read_timeout": seconds,
                "write_timeout": seconds,
                "sql_mode": SQL_MODE,
            }
            self._connection = LimitedConnection(**arguments)
        except (pymysql.Error, OSError) as error:
            code = error.args[0] if error.args else 0
            if code in REFUSED or code == 1049:
                raise ConfigurationError(
                    f"MySQL refuses this URL: {explained(str(error.args[-1]), SPELLING)}",
                    setting="broker_url",
                ) from error
            why = explained(str(error.args[-1] if error.args else error), SPELLING)
            raise BrokerUnavailable(f"MySQL cannot be reached: {why}") from error
        given = [asked.fields[name] for name in ("read_timeout", "write_timeout") if name in asked.fields]
        self._timeout: float = min(given, default=ANSWER_SECONDS)
        self._connection.answer_within(self._timeout)
        self._texts: dict[str, str] = {}
        self._polling = Polling(self.ask, self._next_dues)

    @contextmanager
    def within(self, deadline: float) -> Iterator[None]:
        self._connection.answer_within(min(self._timeout, max(0.05, deadline - time.monotonic())))
        try:
            yield
        finally:
            self._connection.answer_within(self._timeout)

    @staticmethod
    def check(url: str) -> None:
        tls = url_options(url).tls
        if tls is not None:
            tls.checked("broker_url")

    def prepare(self) -> None:
        # It counts the time without a byte, so that large statements on slow networks are not affected. Locks
        # on more rows than meant, of all that a statement has read, may keep others from ending the session.
        wait = max(1, round(self._wait_seconds))
        idle = math.ceil(min(IDLE_SECONDS, max(1.0, self._lease_seconds / 3)))
        self.configure(
            (
                "SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
                f"SESSION innodb_lock_wait_timeout = {wait}, lock_wait_timeout = {wait} "
                f"/*M!100300 , SESSION idle_transaction_timeout = {idle} */",
            )
        )

    def has_tables(self) -> bool:
        return bool(self.ask("SHOW TABLES LIKE 'qworker\\_schema'"))

    def create(self) -> None:
        with self._making():
            for statement in MYSQL:
                self.do(statement)
            self.do(_NOTE, (1, VERSION))
            for id, (table, column, kind) in enumerate(ADDITIONS, 2):
                if column and not self.ask(f"SHOW COLUMNS FROM {table} LIKE %s", (column,)):
                    self.do(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
                self.do(_NOTE, (id, VERSION))

    add = create

    @contextmanager
    def _making(self) -> Iterator[None]:
        """Lock against other processes that create tables."""
        name = "SELECT {}(concat('qworker ', left(database(), 50)){})"
        if self.ask(name.format("get_lock", ", 30"))[0][0] != 1:
            raise BrokerUnavailable("another process is still creating the tables of the broker: try again")
        # The lock ends with the connection, should this process freeze now.
        self.do(f"SET @qworker_wait = @@wait_timeout, SESSION wait_timeout = {IDLE_SECONDS}")
        try:
            yield
        finally:
            self.do("SET SESSION wait_timeout = @qworker_wait")
            self.ask(name.format("release_lock", ""))

    def _text(self, statement: str) -> str:
        text = self._texts.get(statement)
        if text is None:
            text = statement.replace("= ANY(%s)", "IN %s")
            text = text.replace(POSTGRESQL_NOW, NOW)
            self._texts[statement] = text
        return text

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(self._text(statement), values or None)
            return list(cursor.fetchall())

    def do(self, statement: str, values: Sequence[Any] = ()) -> int:
        with self._connection.cursor() as cursor:
            return int(cursor.execute(self._text(statement), values or None))

    def do_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        connection = self._connection
        most = min(PACKET_BYTES, connection.longest // 2) if connection.longest else PACKET_BYTES
        with connection.cursor() as cursor:
            for text in statements(statement, rows, most, connection.encoding, connection.escape):
                cursor.execute(text)

    def _together(self, *statements: tuple[str, Sequence[Any]]) -> list[list[Row]]:
        """Return the rows of each of *statements*, carried out in order in one round trip; after the first
        failure, none."""
        found: list[list[Row]] = []
        with self._connection.cursor() as cursor:
            texts = [cursor.mogrify(self._text(text), values or None) for text, values in statements]
            cursor.execute(";".join(texts))
            while True:
                found.append(list(cursor.fetchall()))
                if not cursor.nextset():
                    return found

    def _transacted(self, *statements: tuple[str, Sequence[Any]]) -> list[list[Row]]:
        """The same in one transaction: the open one, or a new one."""
        if self._connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
            return self._together(*statements)
        return self._together(BEGIN, *statements, COMMIT)[1:-1]

    def new_tag(self) -> int:
        empty = (
            "INSERT INTO qworker_message (queue, urgency, state, sent, headers, body) VALUES ('', 0, 9, "
            "0, '', '')"
        )
        with self._connection.cursor() as cursor:
            cursor.execute(empty)
            tag = int(cursor.lastrowid)
        self.do("DELETE FROM qworker_message WHERE tag = %s", (tag,))
        return tag

    def remove(self, tags: Sequence[int], owner: int) -> set[int]:
        if not tags:
            return set()
        values = (tags, owner)
        held, _ = self._transacted(
            (f"SELECT tag {FROM_HELD} FOR UPDATE", values), (f"DELETE {FROM_HELD}", values)
        )
        return {tag for (tag,) in held}

    def begin(self) -> None:
        self._connection.begin()

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    # -- publishing --

    def table_and_channel(self) -> tuple[str, str]:
        database = str(self.ask("SELECT database()")[0][0]).replace("`", "``")
        return f"`{database}`.qworker_message", ""

    def insert(self, rows: Sequence[MessageRow]) -> None:
        _check(rows)
        if len(rows) <= ONE_PACKET and sum(map(_size, rows)) <= PACKET_BYTES:
            values = ", ".join([PLACES] * len(rows))
            self.do(f"{INSERT} {values}", [value for row in rows for value in row])
            return
        with self.transaction():
            self.copy(rows)

    def copy(self, rows: Sequence[MessageRow]) -> None:
        _check(rows)
        self.do_many(f"{INSERT} {PLACES}", rows)

    def add_messages(self, rows: Sequence[MessageRow], table: str) -> None:
        _check(rows)
        plain = table.replace("%", "%%")
        self.do_many(f"INSERT INTO {plain} ({NEW_COLUMNS}) VALUES {PLACES}", rows)

    def notify(self) -> None:
        pass  # waiting consumers poll

    # -- notifications --

    def listen(self, generation: int) -> None:
        with suppress(pymysql.Error):  # a cluster may refuse such locks; a broken connection fails below
            self._by_name(f"get_lock({CONSUMER}, 1)", generation)  # names this session for end_session()
        self.notified(())

    def end_session(self, generation: int) -> bool:
        with suppress(pymysql.Error):  # it has ended meanwhile, or belongs to another user
            session = self._by_name(f"is_used_lock({CONSUMER})", generation)
            if session not in (None, self._connection.thread_id()):
                self.do("KILL %s", (session,))
                return True
        return False

    def _by_name(self, function: str, generation: int) -> Any:
        """Return the value of *function*, of the lock of a consumer. None behind a proxy: it has numbers of
        its own for sessions, and KILL would end another client's."""
        own = self._connection.thread_id()
        return self.ask(f"SELECT IF(connection_id() + 0 = %s, {function}, NULL)", (own, generation))[0][0]

    def notified(self, queues: Collection[str]) -> Notified:
        return self._polling.notified(queues)

    def wake_another(self, generation: int, queues: Sequence[str]) -> None:
        pass  # they see what is left

    def fileno(self) -> int:
        return -1

    # -- leasing --

    def _claim(self, order: ClaimOrder) -> Claimed:
        generation, queue, now, limit, delayed_limit, until = order
        delayed_limit = max(0, delayed_limit)
        claim = (CLAIM, (queue, max(0, limit)))
        later = (LATER, (queue, until if delayed_limit else now, PROMOTED_AT_ONCE + delayed_limit))
        outlook = (OUTLOOK, (queue,))
        _, alive, waiting, free = self._together(BEGIN, (ALIVE, (generation,)), later, claim)
        if not alive:
            self.rollback()
            return Claimed([], [], *self.ask(*outlook)[0])
        due_now = [tag for tag, _, due in waiting if due <= now]
        if due_now:
            _, free = self._together((PROMOTE_DUE, (due_now,)), claim)
        del waiting[: len(due_now)]
        ready: list[int] = first_that_fit(free, MAX_LEASE_BYTES)
        early: list[int] = first_that_fit([row[:2] for row in waiting[:delayed_limit]], MAX_LEASE_BYTES)
        tags = [*ready, *early]
        if not tags:
            seen, _ = self._together(outlook, COMMIT)
            return Claimed([], [], *seen[0])
        self._polling.claimed()
        _, rows, seen, _ = self._together((TAKE, (generation, tags)), (TAKEN, (tags,)), outlook, COMMIT)
        found = {row[0]: leased(row) for row in rows}
        return Claimed([found[tag] for tag in ready], [found[tag] for tag in early], *seen[0])

    # -- results --

    def columns(self, table: str) -> dict[str, bool]:
        rows = self.ask(
            "SELECT column_name, extra LIKE '%%auto_increment%%' OR column_default IS NOT NULL "
            "FROM information_schema.columns WHERE table_schema = database() AND table_name = %s",
            (table,),
        )
        return {str(name): bool(filled) for name, filled in rows}

    def make_results(self, table: str) -> None:
        self.do(
            f"""CREATE TABLE IF NOT EXISTS {table} (id bigint AUTO_INCREMENT PRIMARY KEY,
            task_id varchar(155) UNIQUE, status varchar(50), result longblob, date_done datetime,
            traceback mediumtext,
            children longblob, name varchar(155), args longblob, kwargs longblob, worker varchar(155),
            retries integer, queue varchar(155), stamps longblob,
            KEY ix_{table}_date_done (date_done)) {MYSQL_TABLE}"""
        )

    def upsert(self, table: str, columns: Sequence[str], rows: Sequence[Row], makes_ids: bool) -> None:
        for statement, values in mysql_upsert(table, tuple(columns), rows, makes_ids):
            with self._connection.cursor() as cursor:
                cursor.execute(statement, values)

    # -- errors --

    def gone(self) -> bool:
        return bool(self._connection.gone())

    def driver_error(self, error: Exception) -> DriverError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[-1]) if error.args else str(error)
        if code == CONFLICT:
            return DriverError(BrokerUnavailable(f"MySQL was too busy: {text}"), transient=True)
        if code in LOCKED:  # a consumer does not try again: it has a lease to renew
            text = f"another transaction has locked rows: {text}"
            return DriverError(RowsLocked(text), transient=not self._relaxed)
        if refused(error):
            return DriverError(
                PublishError(f"MySQL cannot store this: {text}"), transient=code == TAKEN_NUMBER
            )
        if code in REFUSED:
            return DriverError(
                ConfigurationError(f"MySQL refuses this user: {text}", setting="broker_url"), fatal=True
            )
        if code in MISSING_TABLE:
            return DriverError(BrokerUnavailable(f"the tables of the broker are gone: {text}"), fatal=True)
        return DriverError(BrokerUnavailable(f"MySQL does not answer: {text}"), fatal=True)

    def close(self) -> None:
        try:
            self._connection.close()
        except (pymysql.Error, OSError):
            pass

    def abandon(self) -> None:
        self._connection.abandon()


def _check(rows: Sequence[MessageRow]) -> None:
    """Raise TypeError for a body that is not bytes: PyMySQL would store its repr()."""
    for row in rows:
        if not isinstance(row[-1], bytes):
            raise TypeError(f"the body of a message must be bytes, not {type(row[-1]).__name__}")


def _size(row: MessageRow) -> int:
    """Return roughly how many bytes *row* adds to a statement."""
    *_, headers, properties, body = row
    return len(headers) + len(properties or "") + len(body)


# -- Many rows in few statements: PyMySQL writes each value by five calls, which takes more than the server
# needs to store it --

LARGE = 64 * 1024
"""Minimum bytes of values that are not written in hexadecimal, which doubles their length."""


def statements(
    statement: str, rows: Sequence[Sequence[Any]], most: int, encoding: str, escape: Callable[[Any], str]
) -> Iterator[bytes]:
    """Yield *statement*, an INSERT with VALUES (%s, …), with the values of some of *rows* at a time.

    most: maximum bytes of the values in a statement, unless one row is longer. escape: writes the values that
    literal() does not.
    """
    head, _, rest = statement.partition(" VALUES (")
    _, _, tail = rest.partition(")")
    begin, end = f"{head} VALUES ".encode(encoding), tail.encode(encoding)
    texts = (
        f"({','.join([literal(value, escape) for value in row])})".encode(encoding, "surrogateescape")
        for row in rows
    )
    for some in portions_by_size(texts, sys.maxsize, most, len):
        yield begin + b",".join(some) + end


def literal(value: Any, escape: Callable[[Any], str]) -> str:
    """Return *value* in SQL syntax, where a backslash escapes."""
    kind = type(value)
    if kind is str:
        if "\\" in value or "'" in value or "\0" in value:
            return escape(value)
        return f"'{value}'"
    if value is None:
        return "NULL"
    if kind is int:
        return str(value)
    if kind is bytes and len(value) < LARGE:
        return f"x'{value.hex()}'"
    return escape(value)
