"""Procrastinate on PostgreSQL, in a schema of its own that is dropped at the end. It passes keyword arguments
only."""

import datetime
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector

from benchmarks import bodies
from benchmarks.adapters.event_loop import body
from benchmarks.adapters.services import POSTGRES_URL, QUEUE

app = App(connector=PsycopgConnector(conninfo=POSTGRES_URL, kwargs={"options": f"-c search_path={QUEUE}"}))


def _task(name: str) -> Any:
    run: Callable[..., Coroutine[Any, Any, Any]] = body(name)

    async def job(args: list[Any]) -> Any:
        return await run(*args)

    return app.task(name=name)(job)


TASKS = {name: _task(name) for name in bodies.TASKS}


def _execute(*statements: str) -> None:
    with psycopg.connect(POSTGRES_URL, autocommit=True, connect_timeout=5) as connection:
        for statement in statements:
            connection.execute(statement)


def prepare() -> None:
    """Make the schema anew and Procrastinate's tables in it."""
    finish()
    _execute(f"CREATE SCHEMA {QUEUE}")
    app.open()
    app.schema_manager.apply_schema()


def send(task: str, *args: Any) -> None:
    """Enqueue one call."""
    TASKS[task].defer(args=list(args))


def send_many(task: str, calls: Sequence[tuple[Any, ...]]) -> None:
    """Enqueue many calls with one statement."""
    TASKS[task].batch_defer(*({"args": list(args)} for args in calls))


def send_at(due: float, task: str, *args: Any) -> None:
    """Enqueue one call for `due`."""
    instant = datetime.datetime.fromtimestamp(due, datetime.UTC)
    TASKS[task].configure(schedule_at=instant).defer(args=list(args))


def finish() -> None:
    """Drop the schema."""
    _execute(f"DROP SCHEMA IF EXISTS {QUEUE} CASCADE")
