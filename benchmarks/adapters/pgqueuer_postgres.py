"""PgQueuer on PostgreSQL, the enqueueing side, in a schema of its own that is dropped at the end."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.adapters.services import POSTGRES_URL, QUEUE

_loop = asyncio.new_event_loop()
_connection = _loop.run_until_complete(asyncpg.connect(POSTGRES_URL, server_settings={"search_path": QUEUE}))
_queries = Queries(AsyncpgDriver(_connection))


def prepare() -> None:
    """Make the schema anew and PgQueuer's tables in it."""
    finish()
    _loop.run_until_complete(_connection.execute(f"CREATE SCHEMA {QUEUE}"))
    _loop.run_until_complete(_queries.install())


def send(task: str, *args: Any) -> None:
    """Enqueue one job."""
    _loop.run_until_complete(_queries.enqueue(task, json.dumps(args).encode()))


def send_many(task: str, calls: Sequence[tuple[Any, ...]]) -> None:
    """Enqueue many jobs with one statement."""
    payloads = [json.dumps(args).encode() for args in calls]
    _loop.run_until_complete(_queries.enqueue([task] * len(calls), payloads, [0] * len(calls)))


def finish() -> None:
    """Drop the schema."""
    _loop.run_until_complete(_connection.execute(f"DROP SCHEMA IF EXISTS {QUEUE} CASCADE"))
