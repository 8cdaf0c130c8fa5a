"""A MongoDB server, or a replica set: the client, and the conversion of its errors.

Comes from:  ``broker_url``; ``result_backend``, for ``backends/mongodb.py``.
Goes to:     PyMongo, which finds the primary, has a pool of connections and retries once after a failover.
Thread:      any; the client is created on first use, and a forked child creates its own.

Writes are acknowledged by the majority of the members, from their journals, unless the URL says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from threading import Lock
from typing import Any, TypeVar

from qworker.conf.secrets import mask_urls
from qworker.errors import BrokerUnavailable, ConfigurationError, EncodeError, QWorkerError
from qworker.interrupts import in_helper_thread, reraise_interrupt
from qworker.transports.connect_errors import explained
from qworker.transports.mongodb.layout import DATABASE, INDEXES, RECORD_OF_ALL, Document, Names

pymongo: Any = import_module("pymongo")
uri_parser: Any = import_module("pymongo.uri_parser")
errors: Any = import_module("pymongo.errors")
bson: Any = import_module("bson")
bson_errors: Any = import_module("bson.errors")

T = TypeVar("T")

SOCKET_SECONDS = 20.0
"""Maximum seconds for a server's answer."""
_REFUSED = {18, 8000}
"""Codes of authentication errors. _FORBIDDEN is that of missing permissions."""
_FORBIDDEN = 13
_abandoned: list[Any] = []
"""Clients of a parent: closing one would contact its servers."""


class Server:
    """The database that *url* names, with its collections.

    setting: the one with the URL, for errors. options: PyMongo's, overridden by the URL. database: its name,
    None: that of the URL. Raises ConfigurationError for an unknown parameter of the URL."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any],
        connect_timeout: float,
        names: Names | None = None,
        setting: str = "broker_url",
        database: str | None = None,
    ) -> None:
        self.url = url
        self.safe_url = mask_urls(url)
        self.setting = setting
        self.names = names or Names()
        self.lock = Lock()
        self._options = dict(options)
        self._name = database
        self._connect_timeout = connect_timeout
        self._client: Any = None
        self._database: Any = None
        self._reached = False
        self._replicated = False
        try:  # PyMongo's client only warns about an unknown name
            if query := url.partition("?")[2]:
                uri_parser.split_options(query)
        except (errors.PyMongoError, ValueError, TypeError) as error:
            text = f"not all parameters of {self.safe_url} are MongoDB's: {mask_urls(str(error))}"
            raise self._wrong(f"{setting}: {text}") from None

    # -- the connection --

    def _settings(self) -> dict[str, Any]:
        milliseconds = int(self._connect_timeout * 1000)
        ours = {
            "appname": "qworker",
            "connectTimeoutMS": milliseconds,
            "serverSelectionTimeoutMS": milliseconds,
            "socketTimeoutMS": int(SOCKET_SECONDS * 1000),
            "w": "majority",
            "journal": True,
            "readPreference": "primary",
            **self._options,
        }
        written = self.url.partition("?")[2].lower()
        stated = {pair.partition("=")[0] for pair in written.split("&")}
        aliases = {"journal": {"journal", "j"}}
        return {name: value for name, value in ours.items() if not aliases.get(name, {name.lower()}) & stated}

    def _open(self) -> Any:
        """Return the database, with its indexes created."""
        if self._database is None:
            if self._client is None:
                try:
                    self._client = pymongo.MongoClient(self.url, **self._settings())
                except (ValueError, TypeError) as error:  # raised for ports, and for options
                    raise errors.ConfigurationError(str(error)) from error
            usual = self._client.get_default_database(DATABASE)
            database = self._client[self._name] if self._name else usual
            hello = self._client.admin.command("hello")
            self._replicated = bool(hello.get("setName") or hello.get("msg") == "isdbgrid")
            for name, indexes in INDEXES.items():
                for keys, options in indexes:
                    database[getattr(self.names, name)].create_index(list(keys), **options)
            self._database = database
            self._reached = True
        return self._database

    def run(self, work: Callable[[Collections], T]) -> T:
        """Return *work* applied to the collections, where signals do not interrupt it.

        Raises BrokerUnavailable when the server does not answer, or refuses; then the work may be partly
        done."""
        return in_helper_thread(lambda: self._try(work))

    def _try(self, work: Callable[[Collections], T]) -> T:
        try:
            return work(Collections(self._open(), self.names, self._client, self._replicated))
        except (errors.PyMongoError, OSError, bson_errors.BSONError, OverflowError, UnicodeError) as error:
            reraise_interrupt(error)
            meaning = self.meaning(error)
            if not isinstance(meaning, EncodeError):
                self._database = None  # the next server may be of another kind, or have no indexes
            raise meaning from error

    def now(self) -> float:
        """Return epoch seconds on the server's clock."""
        return self.run(lambda found: clock_of(found.database))

    def close(self) -> None:
        """Close the connections; the next use opens others. Safe to call twice."""
        client, self._client, self._database = self._client, None, None
        if client is not None:
            in_helper_thread(client.close)

    def abandon(self) -> None:
        """In a forked child: the connections belong to the parent."""
        if self._client is not None:
            _abandoned.append(self._client)
        self._client = self._database = None
        self.lock = Lock()

    # -- errors --

    def meaning(self, error: Exception) -> QWorkerError:
        """Return our error for one of the driver's, without secrets."""
        text = f"{self.safe_url}: {_text(error)}"
        if isinstance(error, (errors.DocumentTooLarge, OverflowError, UnicodeError, bson_errors.BSONError)):
            return EncodeError(f"MongoDB cannot store it: {_text(error)}")
        if isinstance(error, (errors.InvalidURI, errors.ConfigurationError, errors.InvalidName)):
            return self._wrong(f"{self.setting}: {text}; write mongodb://USER:PASSWORD@HOST/DATABASE")
        code = getattr(error, "code", None)
        if code in _REFUSED or "authentication failed" in str(error).lower():
            return self._wrong(
                f"{text}: the user name, the password or authSource is wrong: they are in the URL, as in "
                "mongodb://USER:PASSWORD@HOST/DATABASE?authSource=admin, with %40 for @ and so on"
            )
        if code == _FORBIDDEN:
            return self._wrong(f"{text}: the user of the URL needs the role readWrite in its database")
        return BrokerUnavailable(f"{self.safe_url}: {explained(_text(error))}")

    def _wrong(self, text: str) -> QWorkerError:
        """Return a ConfigurationError, or BrokerUnavailable if the configuration has worked before: then the
        server may be repaired."""
        if self._reached:
            return BrokerUnavailable(text)
        return ConfigurationError(text, setting=self.setting)


class Collections:
    """The collections, for one operation. replicated: the server is a replica set or a sharded cluster, and
    so has transactions and change streams."""

    def __init__(self, database: Any, names: Names, client: Any, replicated: bool) -> None:
        self.database = database
        self.names = names
        self.message, self.batch = database[names.message], database[names.batch]
        self.dead, self.failed = database[names.dead], database[names.failed]
        self.owner, self.revoked, self.result = (
            database[names.owner],
            database[names.revoked],
            database[names.result],
        )
        self.registry = database[names.registry]
        self._client = client
        self.replicated = replicated

    def atomically(self, work: Callable[[Any], T]) -> T:
        """Return *work* applied to a session (None: there is none), in one transaction if the server supports
        it; it is called again after a conflict."""
        if not self.replicated:
            return work(None)
        with self._client.start_session() as session:
            found: T = session.with_transaction(work)
            return found

    def number(self, field: str, count: int = 1) -> int:
        """Return the first of *count* unused numbers; see ``lease.py``. They are microseconds of the server's
        clock, or one more than the last if that is more."""
        which = {"_id": RECORD_OF_ALL}
        microseconds = int(clock_of(self.database) * 1_000_000)
        self.owner.update_one(which, {"$max": {field: microseconds}}, upsert=True)
        after = pymongo.ReturnDocument.AFTER
        found: Document = self.owner.find_one_and_update(
            which, {"$inc": {field: count}}, return_document=after
        )
        return int(found[field]) - count + 1


def clock_of(database: Any) -> float:
    """Return epoch seconds on the server's clock."""
    moment = database.client.admin.command("hello").get("localTime")
    return time.time() if moment is None else epoch_of(moment)


def storable_value(value: Any) -> bool:
    """Return whether *value* can be a field of a document."""
    try:
        bson.encode({"value": value})
    except (bson_errors.BSONError, ValueError, TypeError, OverflowError, RecursionError):
        return False
    return True


def epoch_of(moment: datetime) -> float:
    """Return the epoch seconds of a MongoDB time, which is UTC."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _text(error: Exception) -> str:
    """Return the driver's text on one line, without passwords, the description of its topology and the whole
    answer."""
    text = " ".join(str(error).split())
    for appendix in (", Topology Description", ", full error"):
        text = text.partition(appendix)[0]
    return mask_urls(text or type(error).__name__)
