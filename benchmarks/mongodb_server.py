"""A MongoDB for benchmarks: SecantusDB, which is Python around WiredTiger, the storage engine of MongoDB.

It has an environment of its own (`pip install SecantusDB==0.7.0b3`, Python 3.10 or newer), so nothing of ours
is imported here.

What MongoDB does by an index, it does by looking at more documents, on which queues live or die. So that is
added here, where it looks for the first documents of an order, where it knows their ids, and in `$unionWith`.
As it comes, each message that kombu takes costs it a look at all that wait.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import wiredtiger
from secantus import SecantusDBServer, aggregate, storage
from secantus.sortkey import COMPOUND_SEP, encode_value_directed

Document = dict[str, Any]


def in_order(
    store: Any, db: str, coll: str, where: Mapping[str, Any], sort: Mapping[str, Any], count: int
) -> list[Document] | None:
    """The first *count* documents that are equal to *where*, as *sort* has them; None: no index says."""
    if not where or any(name[0] == "$" or not isinstance(value, (str, int)) for name, value in where.items()):
        return None
    for index, keys, options in store._iter_indexes(db, coll):
        condition = options.get("partialFilterExpression", {})
        equal = {name: value for name, value in where.items() if name not in condition}
        names = list(keys)
        leading, rest = names[: len(equal)], names[len(equal) :]
        if (
            equal
            and set(leading) == equal.keys()
            and rest[: len(sort)] == list(sort)
            and {*keys.values(), *sort.values()} == {1}
            and condition.items() <= where.items()
            and not {"sparse", "collation"} & options.keys()
            and not store.index_is_multikey(db, coll, index)
        ):
            parts = [encode_value_directed(where[name], 1) for name in leading]
            first = storage._escape_kb(COMPOUND_SEP.join(parts) + COMPOUND_SEP)
            return store._docs_by_recordids(db, coll, _read(store, (db, coll, index), first, count))
    return None


def _read(store: Any, index: tuple[str, str, str], first: bytes, count: int) -> list[int]:
    """Up to *count* numbers of documents whose keys begin with *first*, in the order of the keys."""
    cursor = store._cursor(storage._IDX_ENTRIES_TABLE)
    cursor.set_key(*index, first)
    near = cursor.search_near()
    found: list[int] = []
    if near == wiredtiger.WT_NOTFOUND or (near < 0 and cursor.next() != 0):
        return found
    while len(found) < count:
        *where, entry = cursor.get_key()
        key, number = storage._unpack_entry(bytes(entry))
        if tuple(where) != index or not key.startswith(first):
            break
        if number is not None:
            found.append(number)
        if cursor.next() != 0:
            break
    return found


def first_of(pipeline: Any) -> tuple[Document, dict[str, Any]] | None:
    """The filter, and the other arguments of find(), if that could answer *pipeline*."""
    stages = [next(iter(stage.items())) for stage in pipeline or [] if len(stage) == 1]
    names = [name for name, _ in stages]
    if names not in (["$match", "$sort", "$limit"], ["$match", "$sort", "$skip", "$limit"]):
        return None
    return stages[0][1], {name[1:]: value for name, value in stages[1:]}


_last: tuple[Any, frozenset[Any]] = ([], frozenset())


def lookup(values: list[Any]) -> frozenset[Any]:
    """The numbers in *values*, which are the same for each document of a command."""
    global _last
    of, found = _last
    if of is not values:
        _last = values, found = values, frozenset(each for each in values if isinstance(each, int))
    return found


def teach() -> None:
    """Let SecantusDB use its indexes as MongoDB does."""
    matches = storage.matches
    find_all, by_index = storage.Storage.find_matching, storage.Storage._try_index_id_keys
    union_all = aggregate._STAGES["$unionWith"]

    def find_matching(self: Any, db: str, coll: str, filter: Document | None = None, **options: Any) -> Any:
        given = {name: value for name, value in options.items() if value and name != "let"}
        if {"sort", "limit"} <= given.keys() <= {"sort", "limit", "skip"}:
            skip = given.get("skip", 0)
            self._refresh_read_snapshot()
            with self._lock:
                found = in_order(self, db, coll, filter or {}, given["sort"], skip + given["limit"])
            if found is not None:
                return found[skip:]
        return find_all(self, db, coll, filter, **options)

    def ids_by_index(self: Any, db: str, coll: str, filter: Document, **options: Any) -> Any:
        if "_id" in filter:
            found = by_index(self, db, coll, {"_id": filter["_id"]}, **options)
            if found is not None:
                return found
        return by_index(self, db, coll, filter, **options)

    def matches_quickly(document: Document, where: Document, **options: Any) -> bool:
        ids = where.get("_id")
        if type(ids) is dict and ids.keys() == {"$in"} and isinstance(document["_id"], int):
            if document["_id"] not in lookup(ids["$in"]):
                return False
            where = {name: value for name, value in where.items() if name != "_id"}
        return bool(matches(document, where, **options))

    def union_with(docs: list[Document], spec: Any, ctx: Any) -> list[Document]:
        first = first_of(spec.get("pipeline")) if isinstance(spec, Mapping) else None
        if first is None:
            return list(union_all(docs, spec, ctx))
        where, options = first
        return docs + list(ctx.storage.find_matching(ctx.db_name, spec["coll"], where, **options))

    storage.matches = matches_quickly
    storage.Storage.find_matching = find_matching
    storage.Storage._try_index_id_keys = ids_by_index
    aggregate._STAGES["$unionWith"] = union_with


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=27017)
    port = parser.parse_args().port
    teach()
    with tempfile.TemporaryDirectory(prefix="mongodb-") as directory:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        with SecantusDBServer(port=port, storage_path=directory, replica_set_name=None):
            print("ready", port, flush=True)
            signal.pause()
