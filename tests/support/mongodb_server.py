"""A MongoDB for tests: mongoeco, which speaks MongoDB's protocol, in a process of its own.

Comes from:  tests/servers.py, once for a session; the acceptance tests that end it; benchmarks.
Goes to:     a port of this machine; the file that --file names, or else memory.
Thread:      one event loop.

It is run by a Python 3.13 of its own environment (``make .venv-mongoeco/.ready``), and so imports nothing of
ours. Two things that drivers send are unknown to it, and are translated here: names of commands in small
letters, and a float for the size of a capped collection. An insert of many goes in as one: mongoeco would
look through the whole collection for each of them.

With --replica-set it says that it is the primary of one, so that drivers begin transactions; with --member
that another, at that address, is in the set: one that is started on the same file when this one has died is
what the others of a set elect, with what a majority had. And what
mongoeco has of change streams, which is not on the wire, is put there: ``$changeStream`` of one database, and
getMore that waits. After a database was dropped its streams miss some changes: who tests them drops none.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import time
from typing import Any

from bson.timestamp import Timestamp
from mongoeco.api._async import _database_admin_write_commands as write_commands
from mongoeco.engines.memory import MemoryEngine
from mongoeco.engines.sqlite import SQLiteEngine
from mongoeco.types import ChangeEventSnapshot
from mongoeco.wire import capabilities, executor
from mongoeco.wire._executor_handlers import WireSpecialCommandHandlers
from mongoeco.wire.auth import WireAuthUser
from mongoeco.wire.handshake import WireHandshakeService
from mongoeco.wire.proxy import AsyncMongoEcoProxyServer


def teach() -> None:
    """Translate the commands of drivers for mongoeco."""
    known = {name.lower(): name for name in capabilities._ADMIN_CAPABILITIES}
    build = executor.WireCommandExecutor._build_request_context

    def build_request_context(self: Any, body: dict[str, Any], **kwargs: Any) -> Any:
        name = next(iter(body))
        if name != (real := known.get(name, name)):
            body = {real: body[name], **{key: value for key, value in body.items() if key != name}}
        if name == "create" and isinstance(body.get("size"), float):
            body["size"] = int(body["size"])
        if body.get("aggregate") == 1:  # of a database
            body = {**body, "aggregate": "$cmd.aggregate"}
        return build(self, body, **kwargs)

    executor.WireCommandExecutor._build_request_context = build_request_context
    commands = next(each for each in vars(write_commands).values() if hasattr(each, "command_insert"))
    insert_each = commands.command_insert

    async def command_insert(self: Any, spec: dict[str, Any], *, session: Any = None) -> Any:
        documents = spec.get("documents") or []
        if len(documents) < 2 or not spec.get("ordered", True):
            return await insert_each(self, spec, session=session)
        collection = self._admin._database.get_collection(spec["insert"])
        await collection.insert_many(documents, session=session)
        return {"n": len(documents), "ok": 1.0}

    commands.command_insert = command_insert


def be_a_primary(name: str, members: list[str]) -> None:
    """Say so of *members*, which has the address once it is known."""
    build = WireHandshakeService.build_hello_response

    def build_hello_response(self: Any, **kwargs: Any) -> Any:
        answer = build(self, **kwargs)
        me = members[0]
        return {
            **answer,
            "setName": name,
            "setVersion": 1,
            "hosts": members,
            "me": me,
            "primary": me,
            "secondary": False,
        }

    WireHandshakeService.build_hello_response = build_hello_response


def teach_change_streams() -> None:
    """Let drivers open change streams of a database."""
    dispatch = WireSpecialCommandHandlers.dispatch
    numbers = itertools.count(1_000_000_000)  # larger than the ids of mongoeco's own cursors
    streams: dict[int, Any] = {}

    to_document = ChangeEventSnapshot.to_document

    def described(self: Any) -> Any:
        document = to_document(self)
        if (
            self.operation_type == "update"
        ):  # it does not tell which fields have changed, so report all of them
            document["updateDescription"] = {"updatedFields": dict(self.full_document), "removedFields": []}
        return document

    ChangeEventSnapshot.to_document = described

    async def read(stream: Any, milliseconds: int) -> list[Any]:
        stream._max_await_time_ms = milliseconds
        change = await stream.try_next()
        return [] if change is None else [change]

    async def dispatch_streams(self: Any, context: Any) -> Any:
        command, name = context.command_document, context.command_name
        space = f"{context.db_name}.$cmd.aggregate"
        stages = command.get("pipeline") or [{}]
        if name == "aggregate" and "$changeStream" in stages[0]:
            self._auth.require_authenticated(context.connection, name)
            number = next(numbers)
            streams[number] = self._client.get_database(context.db_name).watch(list(stages[1:]))
            opened = {"id": number, "ns": space, "firstBatch": []}
            return {"cursor": opened, "operationTime": Timestamp(int(time.time()), 1), "ok": 1.0}
        if name == "getMore" and command["getMore"] in streams:
            number = command["getMore"]
            found = await read(streams[number], command.get("maxTimeMS", 1000))
            return {"cursor": {"id": number, "ns": space, "nextBatch": found}, "ok": 1.0}
        if name == "killCursors" and (ours := [each for each in command["cursors"] if each in streams]):
            for number in ours:
                streams.pop(number).close()
            return {
                "cursorsKilled": ours,
                "cursorsNotFound": [],
                "cursorsAlive": [],
                "cursorsUnknown": [],
                "ok": 1.0,
            }
        return await dispatch(self, context)

    WireSpecialCommandHandlers.dispatch = dispatch_streams


async def serve(
    port: int, file: str | None, users: list[str], replica_set: str | None, others: list[str]
) -> None:
    """Until a signal comes; says "ready" and the port when it listens."""
    teach()
    members: list[str] = []
    if replica_set:
        be_a_primary(replica_set, members)
        teach_change_streams()
    engine = SQLiteEngine(file) if file else MemoryEngine()
    known = tuple(WireAuthUser(*user.split(":", 1)) for user in users)
    server = AsyncMongoEcoProxyServer(engine=engine, port=port, auth_users=known)
    address = await server.start()
    members += [f"127.0.0.1:{address.port}", *others]
    print("ready", address.port, flush=True)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--file", default=None)
    parser.add_argument("--user", action="append", default=[])
    parser.add_argument("--replica-set", default=None)
    parser.add_argument("--member", action="append", default=[])
    given = parser.parse_args()
    asyncio.run(serve(given.port, given.file, given.user, given.replica_set, given.member))
