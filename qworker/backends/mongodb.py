"""Results in MongoDB, in the collections and fields of Celery's own store there, which reads and writes them
too.

Comes from:  ``result_backend = "mongodb://host/database"``, ``mongodb+srv://…``.
Goes to:     ``celery_taskmeta`` and ``celery_groupmeta``, or what ``mongodb_backend_settings`` calls them;
             locks and counters in ``qworker_keyvalue``.
Thread:      any; PyMongo's client keeps a pool of connections, and none crosses a fork.

Where the broker is the same database, it stores the results itself, beside the ack. A document of ours has
``expires`` besides, and that of a group ``described``; Celery looks at neither. There are no joins here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from qworker.backends.base import Backend, Found, Meta
from qworker.backends.mongodb_fields import Fields
from qworker.backends.mongodb_settings import located
from qworker.clock import Clock, from_epoch
from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError, DamagedResult
from qworker.interrupts import let_pass
from qworker.transports.forked import forgetful
from qworker.transports.lease import ResultRow
from qworker.transports.mongodb.layout import Document, Names
from qworker.transports.mongodb.result_documents import pack, store
from qworker.transports.mongodb.server import Collections, Server, errors, pymongo, storable_value

KEYS = "qworker_keyvalue"
PORTION = 500
"""How many ids are asked for at once."""
CONNECT_SECONDS = 4.0

T = TypeVar("T")
_backends = forgetful()


class MongoBackend(Backend):
    """Results in a database, which is connected to at the first use."""

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        where = located(url, conf.mongodb_backend_settings)
        options = {**conf.result_backend_transport_options, **where.options}
        options.pop("global_keyprefix", None)  # of stores that have keys
        self._server = Server(
            where.url,
            options,
            CONNECT_SECONDS,
            Names(result=where.results),
            setting="result_backend",
            database=where.database,
        )
        self._place, self._groups = where.place, where.groups
        self._fields = Fields(self, self._serializer)
        _backends.add(self)

    def _after_fork(self) -> None:
        """In a forked child: the connections are the parent's."""
        self._server.abandon()

    def same_store(self, store_url: str) -> bool:
        return store_url.startswith("mongodb") and located(store_url, {}).place == self._place

    @property
    def safe_url(self) -> str:
        return self._server.safe_url

    def _do(self, work: Callable[[Collections], T]) -> T:
        """What *work* makes of the collections; errors of the server come out as ours."""
        try:
            return self._server.run(work)
        except (BrokerUnavailable, ConfigurationError) as error:
            let_pass(error)
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
        found = self.read_many([task_id]).get(task_id)
        if isinstance(found, DamagedResult):
            raise found
        return found

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        found: dict[str, Found] = {}
        wanted = [task_id for task_id in ids if storable_value(task_id)]
        for start in range(0, len(wanted), PORTION):
            some = {"_id": {"$in": wanted[start : start + PORTION]}}
            for stored in self._do(partial(_find, some)):
                each = self._fields.found(stored)
                if each is not None:
                    found[stored["_id"]] = each
        return found

    def forget(self, task_id: str) -> None:
        self.forget_many([task_id])

    def forget_many(self, ids: Iterable[str]) -> None:
        wanted = [task_id for task_id in ids if storable_value(task_id)]
        for start in range(0, len(wanted), PORTION):
            some = {"_id": {"$in": wanted[start : start + PORTION]}}
            self._do(partial(_delete, some))

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
                except errors.DuplicateKeyError:  # another has inserted it
                    continue

        return self._do(work)

    def delete(self, key: str) -> None:
        self._do(lambda found: found.database[KEYS].delete_one({"_id": key}))

    def _lasting(self, ttl: float | None) -> Document:
        """The field that says until when; none for what stays."""
        return {} if ttl is None else {"expires": self.clock.now() + ttl}

    def _forget_expired(self, found: Collections, key: str) -> None:
        past = {"$lte": self.clock.now()}
        found.database[KEYS].delete_one({"_id": key, "expires": past})

    # -- groups --

    def save_group(self, group_id: str, result: Any, kept: float = 0.0) -> None:
        document = {
            "_id": group_id,
            "result": self._fields.text(self.encode_value(_ids(result))),
            "date_done": from_epoch(self.clock.now()),
            "described": self.encode_value({"result": result}, None, ("group", group_id)),
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
        if "described" in stored or self.signs:
            return self.decode_value(stored.get("described", b""), ("group", group_id))["result"]
        ids = self.decode_value(stored["result"], ("group", group_id))
        return [[group_id, None], [[[task_id, None], None] for task_id in ids]]

    def delete_group(self, group_id: str) -> None:
        self._do(lambda found: found.database[self._groups].delete_one({"_id": group_id}))

    # -- keeping house --

    def sweep(self, now: float) -> int:
        def work(found: Collections) -> int:
            groups, keys = found.database[self._groups], found.database[KEYS]
            wheres: list[tuple[Any, Document]] = [
                (each, {"expires": {"$lte": now}}) for each in (found.result, groups, keys)
            ]
            if self.expires is not None:  # what Celery has stored
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
    """The ids of the members of a group that is described so; [] when it is described otherwise."""
    try:
        return [child[0][0] for child in result[1] if isinstance(child[0][0], str)]
    except (TypeError, LookupError):
        return []
