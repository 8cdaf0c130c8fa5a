"""A script that waits for tasks: its steps are given on the command line, and it prints JSON.

Comes from:  tests of waiting, with one argument: '{"database": {…}, "do": ["told", …]}'
Goes to:     Django on that database; threads that store rows as a cluster does; standard output.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import django
from django.conf import settings

PATIENCE = 30_000
"""Timeout in milliseconds of a wait that should not reach it."""


def set_up(database: dict[str, Any], cluster: dict[str, Any]) -> None:
    if database["ENGINE"].endswith("mysql"):
        import pymysql

        pymysql.version_info = (2, 2, 7, "final", 0)  # Django checks the version of the driver
        pymysql.install_as_MySQLdb()
    settings.configure(
        SECRET_KEY="a key that only tests know, and nobody else does, so it is long",
        USE_TZ=True,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "qworker.django"],
        DATABASES={"default": {**database, "CONN_MAX_AGE": None}},
        CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        SILENCED_SYSTEM_CHECKS=["models.W037", "mysql.W002"],
        Q_CLUSTER={"name": "default", **cluster},
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from django.db import connection

    if connection.vendor == "sqlite":  # as its first cluster does
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode = WAL")


def values(**more: Any) -> dict[str, Any]:
    now = datetime.now(UTC)
    base = {"id": uuid4().hex, "name": uuid4().hex[:20], "func": "math.sqrt", "args": (4,), "kwargs": {}}
    return {
        **base,
        "result": 2.0,
        "started": now,
        "stopped": now,
        "success": True,
        "attempt_count": 1,
        **more,
    }


def store(*rows: dict[str, Any]) -> None:
    """Store rows like the thread of a cluster that stores results."""
    from django.db import connections

    from qworker import states
    from qworker.django.transports import task_rows

    def work() -> None:
        packed = [(row["id"], states.SUCCESS, task_rows.pack(row, "default"), None) for row in rows]
        task_rows.store(packed, "default")
        connections["default"].close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@contextmanager
def waiting(*calls: Callable[[], Any]) -> Any:
    """Threads that call functions; all of them are waiting when the block starts. Their values are a list."""
    from django.db import connections

    from qworker.django.waiting.watcher import watcher_of

    found: list[Any] = [None] * len(calls)

    def work(place: int, call: Callable[[], Any]) -> None:
        found[place] = call()
        connections["default"].close()

    threads = [threading.Thread(target=work, args=each) for each in enumerate(calls)]
    watcher = watcher_of("default", "default").watcher
    for thread in threads:
        thread.start()
    until(lambda: len(watcher._waiters) > len(calls) and watcher._notifications.opened)
    until(lambda: not any(waiter.new for waiter in watcher._all()))  # all of it has been queried
    yield found
    for thread in threads:
        thread.join()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def never_looking() -> Callable[[], None]:
    """Disable polling without notifications, until the returned function is called."""
    from qworker.django.waiting.watcher import watcher_of

    watcher = watcher_of("default", "default").watcher
    before = watcher.poll
    watcher.poll = watcher.stalled = 1e9
    return partial(setattr, watcher, "poll", before)


def told() -> list[Any]:
    """Threads and coroutines wait by id, name and group, and find results through notifications alone."""
    from qworker.django.tasks import fetch, result, result_group

    again = never_looking()
    one, two = values(), values(name="two", group="pair", result=3.0)
    three = values(group="pair", result=4.0)
    with waiting(
        lambda: result(one["id"], wait=PATIENCE),
        lambda: fetch("two", wait=PATIENCE).id == two["id"],
        lambda: sorted(result_group("pair", count=2)),
    ) as found:
        store(one)
        store(two)
        store(three)
    again()
    return list(found)


def coroutines() -> list[Any]:
    """Many coroutines wait without blocking the loop, and without a thread for each."""
    from qworker.django.tasks import afetch_group, aresult, aresult_group
    from qworker.django.waiting.watcher import watcher_of

    rows = [values(result=number, group="many") for number in range(40)]
    watcher = watcher_of("default", "default").watcher

    async def main() -> list[Any]:
        calls = [asyncio.create_task(aresult(row["id"], wait=PATIENCE)) for row in rows]
        calls.append(asyncio.create_task(aresult_group("many", count=40)))  # type: ignore[arg-type]
        late = await aresult("0" * 32, wait=20)
        while len(watcher.loops._calls) < len(calls):
            await asyncio.sleep(0.01)
        threads = threading.active_count()
        await asyncio.to_thread(store, *rows)
        *found, group = await asyncio.gather(*calls)
        count = await (await afetch_group("many", wait=PATIENCE)).acount()
        return [found == list(range(40)), sorted(group) == found, count, threads < 12, late]

    return asyncio.run(main())


def looks() -> list[tuple[int, float]]:
    """How many statements queried an endless task while one and ten callers waited for two seconds; and
    how many seconds that took."""
    from qworker.django.tasks import fetch, fetch_group

    class Counter(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def emit(self, record: logging.LogRecord) -> None:
            self.count += "SELECT" in record.getMessage() and "qworker_task" in record.getMessage()

    counter = Counter()
    logger = logging.getLogger("django.db.backends")
    logger.addHandler(counter)
    logger.setLevel(logging.DEBUG)
    settings.DEBUG = True
    numbers = []
    one, many = lambda: fetch("1" * 32, wait=2000), lambda: fetch_group("none", wait=2000, count=3)
    for calls in ([one], [many] * 10):
        counter.count, began = 0, time.monotonic()
        with waiting(*calls):
            pass
        numbers.append((counter.count, time.monotonic() - began))
    settings.DEBUG = False
    return numbers


def in_transaction() -> list[Any]:
    """Waiting inside a transaction whose snapshot cannot see new rows."""
    from django.db import connection, transaction

    from qworker.django.models import Task
    from qworker.django.tasks import fetch

    row = values()

    def call() -> list[Any]:
        if connection.vendor == "mysql":
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with transaction.atomic():
            with connection.cursor() as cursor:
                if connection.vendor == "postgresql":
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                Task.objects.count()
            task = fetch(row["id"], wait=PATIENCE)
            assert task is not None
            return [task.result, connection.in_atomic_block]

    with waiting(call) as found:
        store(row)
    return list(found)


def kept_connections() -> list[Any]:
    """A waiting thread keeps its connection, the watcher closes its own ones and reopens a broken one."""
    from django.db import connection

    from qworker.django.tasks import result
    from qworker.django.waiting.watcher import _watchers, watcher_of

    connection.ensure_connection()
    driver = connection.connection
    where = watcher_of("default", "default")
    row = values()
    with waiting(lambda: result(row["id"], wait=PATIENCE)) as found:
        until(lambda: bool(where._idle))
        broken = where._idle.pop()  # nothing uses it meanwhile
        broken.connection.close()  # as after a restart of the server
        where._idle.append(broken)
        store(row)
    until(lambda: not where._idle and not where.watcher._notifications.opened)
    same = connection.connection is driver and connection.is_usable()
    return [*found, same, len(_watchers), math.isfinite(where.watcher._times._at)]


def many_at_once() -> int:
    """More rows than fit into one notification."""
    from qworker.django.tasks import result

    again = never_looking()
    rows = [values() for _ in range(250)]
    with waiting(lambda: result(rows[249]["id"], wait=PATIENCE)) as found:
        store(*rows)
    again()
    return int(found[0])


def forked() -> int:
    """A child forked while a thread waits can wait, too, and the connections of the parent stay open."""
    import os

    from qworker.django.tasks import result

    row, other = values(), values()
    with waiting(lambda: result(row["id"], wait=PATIENCE)):
        child = os.fork()
        if child == 0:
            from django.db import connections

            connections["default"].connection = None
            os._exit(result(other["id"], wait=PATIENCE) != 2.0)
        store(other)
        code = os.waitpid(child, 0)[1]
        store(row)
    return code


def cached() -> list[int]:
    """How often the cache is read within a second."""
    from qworker.django.execution import cached as cache
    from qworker.django.tasks import aresult, result

    count = [0]
    before = cache.task

    def counted(task_id: str) -> Any:
        count[0] += 1
        return before(task_id)

    cache.task = counted
    result("none", wait=1000, cached=True)
    first, count[0] = count[0], 0
    asyncio.run(aresult("none", wait=1000, cached=True))
    cache.task = before
    return [first, count[0]]


DO = {
    each.__name__: each
    for each in (
        told, coroutines, looks, in_transaction, kept_connections, many_at_once, forked, cached,
    )
}  # fmt: skip

if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    set_up(order["database"], order.get("cluster", {}))
    print(json.dumps({name: DO[name]() for name in order["do"]}, default=str))
