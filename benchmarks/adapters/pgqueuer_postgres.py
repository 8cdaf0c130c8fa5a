"""PgQueuer on PostgreSQL, in a schema of its own that is dropped at the end. Its workers are asyncio
programs."""

import asyncio
import datetime
import json
import logging
import signal
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks import bodies
from benchmarks.adapters.services import POSTGRES_URL, QUEUE


async def connect() -> asyncpg.Connection:
    """A connection that sees our schema only."""
    return await asyncpg.connect(POSTGRES_URL, server_settings={"search_path": QUEUE})


async def work() -> None:
    """One worker until SIGTERM. `pgq run` would do the same, but fails at its log level in this version."""
    logging.getLogger("pgqueuer").setLevel(logging.WARNING)
    queuer = PgQueuer(AsyncpgDriver(await connect()))

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        bodies.noop(*json.loads(job.payload or b""))

    @queuer.entrypoint("burn")
    async def burn(job: Job) -> None:
        bodies.burn(*json.loads(job.payload or b""))

    @queuer.entrypoint("pause")
    async def pause(job: Job) -> None:
        await bodies.async_pause(*json.loads(job.payload or b""))

    @queuer.entrypoint("due")
    async def due(job: Job) -> None:
        bodies.due(*json.loads(job.payload or b""))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
    await queuer.run(batch_size=50)


@cache
def _producer() -> tuple[asyncio.AbstractEventLoop, asyncpg.Connection, Queries]:
    """The producer's loop and connection; made on first use, for the worker imports this module too."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(connect())
    return loop, connection, Queries(AsyncpgDriver(connection))


def prepare() -> None:
    """Make the schema anew and PgQueuer's tables in it."""
    finish()
    loop, connection, queries = _producer()
    loop.run_until_complete(connection.execute(f"CREATE SCHEMA {QUEUE}"))
    loop.run_until_complete(queries.install())


def send(task: str, *args: Any) -> None:
    """Enqueue one job."""
    loop, _, queries = _producer()
    loop.run_until_complete(queries.enqueue(task, json.dumps(args).encode()))


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one job for `due`; PgQueuer takes a delay."""
    loop, _, queries = _producer()
    delay = datetime.timedelta(seconds=max(0.0, due - time.time()))
    loop.run_until_complete(queries.enqueue(task, json.dumps(args).encode(), execute_after=delay))


def send_many(task: str, calls: Sequence[tuple[Any, ...]]) -> None:
    """Enqueue many jobs with one statement."""
    loop, _, queries = _producer()
    payloads = [json.dumps(args).encode() for args in calls]
    loop.run_until_complete(queries.enqueue([task] * len(calls), payloads, [0] * len(calls)))


def finish() -> None:
    """Drop the schema."""
    loop, connection, _ = _producer()
    loop.run_until_complete(connection.execute(f"DROP SCHEMA IF EXISTS {QUEUE} CASCADE"))


if __name__ == "__main__":
    uvloop.run(work())
