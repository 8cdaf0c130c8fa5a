"""Results in MongoDB, in the collections and fields of Celery's own store, which can read and write them too.

Comes from:  ``result_backend = "mongodb://host/database"``, ``mongodb+srv://…``.
Goes to:     ``celery_taskmeta`` and ``celery_groupmeta``, or their names in ``mongodb_backend_settings``;
             locks and counters in ``qworker_keyvalue``.
Thread:      any; PyMongo's client has a pool of connections, which is not shared across a fork.

If the broker is the same database, it stores the results itself, with the ack. qworker's documents also have
the field ``expires``, and those of groups ``described``; Celery ignores both. There are no joins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from qworker.backends.base import Backend, Found, Meta
from qworker.backends.codec import About
from qworker.clock import Clock, from_epoch, parse_iso
from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError, DamagedResult, EncodeError
from qworker.interrupts import reraise_interrupt
from qworker.message.kombu_json import loads
from qworker.message.serialization import encode_json
from qworker.process.forked import forgetful
from qworker.safe_repr import storable
from qworker.transports.lease import ResultRow
from qworker.transports.mongodb.layout import DATABASE, Document, Names
from qworker.transports.mongodb.result_documents import pack, store
from qworker.transports.mongodb.server import Collections, Server, epoch_of, errors, pymongo, storable_value
from qworker.transports.portions import portions

KEYS = "qworker_keyvalue"
PORTION = 500
"""Number of ids per query."""
CONNECT_SECONDS = 4.0

T = TypeVar("T")
_backends = forgetful()


class MongoBackend(Backend):
    """Results in a database; it connects on first use."""

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        where = located(url, conf.mongodb_backend_settings)
        options = {**conf.result_backend_transport_options, **where.options}
        options.pop("global_keyprefix", None)  # for stores with keys
        self._server = Server(
            where.url,
            options,
            CONNECT_SECONDS,
            Names(result=where.results),
            setting="result_backend",
            database=where.database,
        )
        self._place, self._groups = where.place, where.groups
        self._fields = Fields(self)
        _backends.add(self)

    def _after_fork(self) -> None:
        """In a forked child: the connections belong to the parent."""
        self._server.abandon()

    def same_store(self, store_url: str) -> bool:
        return store_url.startswith("mongodb") and located(store_url, {}).place == self._place

    @property
    def safe_url(self) -> str:
        return self._server.safe_url

    def _do(self, work: Callable[[Collections], T]) -> T:
        """Return *work* applied to the collections; convert errors of the server."""
        try:
            return self._server.run(work)
        except (BrokerUnavailable, ConfigurationError) as error:
            reraise_interrupt(error)
            raise BackendError(str(error)) from error

    # -- tasks --

    def store(self, task_id: str, meta: Meta) -> bool:
        row = self.row(task_id, meta)
        return self._do(lambda found: store(found, [row])) > 0

    def row(self, task_id: str, meta: Meta, kept: float = 0.0) -> ResultRow:
        return task_id, meta["status"], pack(task_id, self._fields.of(task_id, meta)), self.expiry(delay=kept)

    def store_rows(self, rows: Any) -> None:
        self._do(lambda found: store(found, rows))

    def get(self, task_id: str) -> Meta | None:
        return self.get_many([task_id]).get(task_id)

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        found: dict[str, Found] = {}
        for portion in portions(filter(storable_value, ids), PORTION):
            for stored in self._do(partial(_find, {"_id": {"$in": portion}})):
                each = self._fields.found(stored)
                if each is not None:
                    found[stored["_id"]] = each
        return found

    def forget(self, task_id: str) -> None:
        self.forget_many([task_id])

    def forget_many(self, ids: Iterable[str]) -> None:
        for portion in portions(filter(storable_value, ids), PORTION):
            self._do(partial(_delete, {"_id": {"$in": portion}}))

    # -- locks and counters --

    def add(self, key: str, ttl: float | None = None) -> bool:
        def work(found: Collections) -> bool:
            self._forget_expired(found, key)
            try:
                found.database[KEYS].insert_one({"_id": key, "value": 1, **self._lasting(ttl)})
            except errors.DuplicateKeyError:
                return False
            return True

        return self._do(work)

    def incr(self, key: str, ttl: float | None = None) -> int:
        lasting = self._lasting(ttl)
        change = {"$inc": {"value": 1}, **({"$set": lasting} if lasting else {"$unset": {"expires": ""}})}

        def work(found: Collections) -> int:
            self._forget_expired(found, key)
            while True:
                try:
                    after: Mapping[str, Any] = found.database[KEYS].find_one_and_update(
                        {"_id": key}, change, upsert=True, return_document=pymongo.ReturnDocument.AFTER
                    )
                    return int(after["value"])
                except errors.DuplicateKeyError:  # another client has inserted it
                    continue

        return self._do(work)

    def delete(self, key: str) -> None:
        self._do(lambda found: found.database[KEYS].delete_one({"_id": key}))

    def _lasting(self, ttl: float | None) -> Document:
        """Return the field with the time of expiry; {} for data that does not expire."""
        return {} if ttl is None else {"expires": self.clock.now() + ttl}

    def _forget_expired(self, found: Collections, key: str) -> None:
        past = {"$lte": self.clock.now()}
        found.database[KEYS].delete_one({"_id": key, "expires": past})

    # -- groups --

    def save_group(self, group_id: str, result: Any, kept: float = 0.0) -> None:
        document = {
            "_id": group_id,
            "result": self._fields.text(self.codec.encode_value(_ids(result))),
            "date_done": from_epoch(self.clock.now()),
            "described": self.codec.encode_value({"result": result}, ("group", group_id)),
            **self._lasting(None if self.expires is None else self.expires + kept),
        }
        self._do(
            lambda found: found.database[self._groups].replace_one({"_id": group_id}, document, upsert=True)
        )

    def get_group(self, group_id: str) -> Any:
        stored = self._do(lambda found: found.database[self._groups].find_one({"_id": group_id}))
        if stored is None:
            return None
        expires = stored.get("expires")
        if expires is not None and expires <= self.clock.now():
            return None
        if "described" in stored or self.codec.signs:
            return self.codec.decode_value(stored.get("described", b""), ("group", group_id))["result"]
        ids = self.codec.decode_value(stored["result"], ("group", group_id))
        return [[group_id, None], [[[task_id, None], None] for task_id in ids]]

    def delete_group(self, group_id: str) -> None:
        self._do(lambda found: found.database[self._groups].delete_one({"_id": group_id}))

    # -- maintenance --

    def sweep(self, now: float) -> int:
        def work(found: Collections) -> int:
            groups, keys = found.database[self._groups], found.database[KEYS]
            wheres: list[tuple[Any, Document]] = [
                (each, {"expires": {"$lte": now}}) for each in (found.result, groups, keys)
            ]
            if self.expires is not None:  # stored by Celery
                old = {"date_done": {"$lte": from_epoch(now - self.expires)}, "expires": None}
                wheres += [(found.result, old), (groups, old)]
            return sum(int(each.delete_many(where).deleted_count) for each, where in wheres)

        return self._do(work)

    def close(self) -> None:
        super().close()
        self._server.close()


def _find(where: Document, found: Collections) -> list[Document]:
    return list(found.result.find(where))


def _delete(where: Document, found: Collections) -> None:
    found.result.delete_many(where)


def _ids(result: Any) -> list[str]:
    """Return the ids of the members of a group in this format; [] for another format."""
    try:
        return [child[0][0] for child in result[1] if isinstance(child[0][0], str)]
    except (TypeError, LookupError):
        return []


# -- A result as the fields of a document in Celery's layout, and back --

_OWN = frozenset({"_id", "expires", "task_id", "status", "result", "traceback", "children", "date_done"})


class Fields:
    """Converts results of *backend*."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._codec = backend.codec

    def of(self, task_id: str, meta: Meta) -> Document:
        """Return the fields of *meta* in stored form. Raises EncodeError."""
        status, done, traceback = meta["status"], meta.get("date_done"), meta.get("traceback")
        data = self._codec.encode_result(meta.get("result"), ("result", task_id, status))
        return {
            "status": status,
            "result": self.text(data),
            "traceback": storable(traceback) if isinstance(traceback, str) else None,
            "children": self._plain("children", task_id, meta.get("children") or []),
            "date_done": None if done is None else parse_iso(done),
            **{
                name: self._plain(name, task_id, value)
                for name, value in meta.items()
                if name not in _OWN and "\0" not in name
            },
        }

    def text(self, data: bytes) -> str | bytes:
        """Return serialised data in Celery's form: as text if it is text."""
        if self._codec.content[1] == "utf-8" and not data.startswith(b"\0"):
            try:
                return data.decode()
            except UnicodeDecodeError:
                pass
        return data

    def _plain(self, name: str, task_id: str, value: Any) -> Any:
        """Return *value* as MongoDB values, like Celery; as bytes if values are signed or it cannot be
        represented."""
        if value is None or (isinstance(value, str) and storable_value(value)):
            return value
        if not self._codec.signs:
            try:
                plain = json.loads(encode_json(value, {name: value}))
            except (EncodeError, ValueError, RecursionError):
                pass
            else:
                if storable_value(plain):
                    return plain
        return self._codec.encode_value(value, (name, task_id))

    def _value(self, stored: Any, about: About, task_id: str) -> Any:
        """Undo _plain()."""
        if isinstance(stored, bytes):
            return self._codec.decode_value(stored, about, task_id)
        if not isinstance(stored, dict | list):
            return stored
        if self._codec.signs:
            raise self._codec.damaged(task_id, f"is refused: its {about[0]} are not signed")
        return loads(json.dumps(stored, default=str))

    def found(self, stored: Document) -> Found | None:
        """Return the metadata in a document, or why it cannot be read; None when it has expired."""
        task_id = str(stored["_id"])
        try:
            return self._meta(stored, task_id)
        except DamagedResult as error:
            return error
        except Exception as error:  # noqa: BLE001 - fields may have any type
            reraise_interrupt(error)
            return self._codec.damaged(task_id, f"cannot be read: {error}")

    def _meta(self, stored: Document, task_id: str) -> Meta | None:
        done = stored.get("date_done")
        moment = epoch_of(done) if isinstance(done, datetime) else None
        expires = stored.get("expires")
        if expires is None and moment is not None and self._backend.expires is not None:
            expires = moment + self._backend.expires
        if expires is not None and expires <= self._backend.clock.now():
            return None
        status = stored["status"]
        if not isinstance(status, str):
            raise TypeError(f"its status is {status!r:.80}")
        meta: Meta = {
            name: self._value(value, (name, task_id), task_id)
            for name, value in stored.items()
            if name not in _OWN
        }
        result, about = stored["result"], ("result", task_id, status)
        return meta | {
            "task_id": task_id,
            "status": status,
            "result": None
            if result is None and not self._codec.signs
            else self._codec.decode_value(result or b"", about, task_id),
            "traceback": stored.get("traceback"),
            "children": self._value(stored.get("children"), ("children", task_id), task_id) or [],
            "date_done": done.replace(tzinfo=UTC).isoformat() if isinstance(done, datetime) else None,
        }


# -- ``mongodb_backend_settings`` --
# They override the URL. Unknown keys are options of PyMongo's client, like those under ``options``.

GROUPS = "celery_groupmeta"
_CLIENT = {"user": "username", "password": "password", "max_pool_size": "maxPoolSize"}
"""Celery's names for options of the client."""
_PORT = 27017


class Where(NamedTuple):
    """Where results are stored. database: None for the URL's. options: of the client."""

    url: str
    database: str | None
    results: str
    groups: str
    options: Mapping[str, Any]

    @property
    def place(self) -> tuple[Any, ...]:
        """The servers and the database, without the user."""
        hosts, database = _place(self.url)
        return hosts, self.database or database


def located(url: str, settings: Mapping[str, Any]) -> Where:
    """Combine *url* and *settings*. Raises ConfigurationError for invalid ones."""
    given = dict(settings)
    database, results, groups = (
        _name(given, *each)
        for each in (
            ("database", None),
            ("taskmeta_collection", Names().result),
            ("groupmeta_collection", GROUPS),
        )
    )
    hosts = given.pop("mongo_host", None)
    if "host" in given or "port" in given:
        hosts = _hosts(given.pop("host", "localhost"), given.pop("port", _PORT))
    options = given.pop("options", {})
    if not isinstance(options, Mapping):
        raise _wrong("options", options, "a dictionary of options of PyMongo's client")
    options = {**options, **{_CLIENT.get(name, name): value for name, value in given.items()}}
    return Where(_led_to(url, hosts), database, str(results), str(groups), options)


def _name(given: dict[str, Any], key: str, usual: str | None) -> str | None:
    value = given.pop(key, usual)
    if value is not None and not (isinstance(value, str) and value):
        raise _wrong(key, value, "a name")
    return value


def _hosts(host: Any, port: Any) -> Any:
    """Return the hosts, or the URL, in *host*; hosts without a port get *port*."""
    if isinstance(host, str) and "://" in host:
        return host
    hosts = [host] if isinstance(host, str) else host
    if not isinstance(hosts, list | tuple) or not all(isinstance(each, str) for each in hosts):
        raise _wrong("host", host, "a host, a list of hosts or a URL")
    return [each if ":" in each else f"{each}:{port}" for each in hosts]


def _led_to(url: str, hosts: Any) -> str:
    """Return *url* with *hosts* instead of its own; None: unchanged."""
    if isinstance(hosts, str):
        return hosts if "://" in hosts else _led_to(url, [hosts])
    if hosts is None:
        return f"{url}localhost" if url == "mongodb://" else url
    start, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, _ = authority.rpartition("@")
    return f"{start.partition('+')[0]}://{user}{at}{','.join(hosts)}{slash}{path}"


def _wrong(key: str, value: Any, wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"mongodb_backend_settings: {key!r} is {value!r:.80}, but must be {wanted}",
        setting="mongodb_backend_settings",
    )


def _place(url: str) -> tuple[tuple[str, ...], str]:
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2].lower().split(",")
    named = {host if ":" in host or "+srv" in parts.scheme else f"{host}:{_PORT}" for host in hosts}
    plain = {host.replace("localhost:", "127.0.0.1:") for host in named}
    return tuple(sorted(plain)), parts.path.strip("/") or DATABASE
