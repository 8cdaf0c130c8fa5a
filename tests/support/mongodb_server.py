"""A MongoDB for tests: mongoeco, which speaks MongoDB's protocol, in a process of its own.

Comes from:  tests/servers.py, once for a session; the acceptance tests that end it; benchmarks.
Goes to:     a port of this machine; the file that --file names, or else memory.
Thread:      one event loop.

It is run by a Python 3.13 of its own environment (``make .venv-mongoeco/.ready``), and so imports nothing of
ours. Two things that drivers send are unknown to it, and are translated here: names of commands in small
letters, and a float for the size of a capped collection. An insert of many goes in as one: mongoeco would
look through the whole collection for each of them. It has no replica set: no transactions that a driver
would begin by itself, and no change streams.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import Any

from mongoeco.api._async import _database_admin_write_commands as write_commands
from mongoeco.engines.memory import MemoryEngine
from mongoeco.engines.sqlite import SQLiteEngine
from mongoeco.wire import capabilities, executor
from mongoeco.wire.auth import WireAuthUser
from mongoeco.wire.proxy import AsyncMongoEcoProxyServer


def teach() -> None:
    """Let mongoeco take what drivers send."""
    known = {name.lower(): name for name in capabilities._ADMIN_CAPABILITIES}
    build = executor.WireCommandExecutor._build_request_context

    def build_request_context(self: Any, body: dict[str, Any], **kwargs: Any) -> Any:
        name = next(iter(body))
        if name != (real := known.get(name, name)):
            body = {real: body[name], **{key: value for key, value in body.items() if key != name}}
        if name == "create" and isinstance(body.get("size"), float):
            body["size"] = int(body["size"])
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


async def serve(port: int, file: str | None, users: list[str]) -> None:
    """Until a signal comes; says "ready" and the port when it listens."""
    teach()
    engine = SQLiteEngine(file) if file else MemoryEngine()
    known = tuple(WireAuthUser(*user.split(":", 1)) for user in users)
    server = AsyncMongoEcoProxyServer(engine=engine, port=port, auth_users=known)
    address = await server.start()
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
    given = parser.parse_args()
    asyncio.run(serve(given.port, given.file, given.user))
