"""The tasks of the Django test projects. Each takes a key that identifies the call.

Comes from:  clusters that django_site.py starts.
Goes to:     the ledger, by that key; the project's database.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance import ledger
from tests.acceptance.ledger import ENDED, STARTED


@contextmanager
def run(key: str) -> Iterator[None]:
    ledger.write(STARTED, key, 0, 0)
    yield
    ledger.write(ENDED, key, 0, 0)


def work(key: str, seconds: float = 0.0) -> str:
    with run(key):
        if seconds:
            time.sleep(seconds)
    return key


def until_file(key: str, path: str) -> str:
    """Wait for a file."""
    with run(key):
        while not Path(path).exists():
            time.sleep(0.01)
    return key


def write_row(key: str) -> str:
    """Write a row of the project."""
    from django.contrib.auth.models import Group

    with run(key):
        Group.objects.create(name=key)
    return key


def read_rows(key: str) -> int:
    from django.contrib.auth.models import Group

    with run(key):
        return Group.objects.count()


async def read_rows_async(key: str) -> int:
    from django.contrib.auth.models import Group

    with run(key):
        return await Group.objects.acount()


def told(task: Any) -> None:
    """A hook that records the task and its outcome in the ledger."""
    ledger.write(ENDED, f"hook-{task.id}-{'success' if task.success else 'failure'}", 0, 0)


def raising_hook(task: Any) -> None:
    told(task)
    raise ValueError("a hook that raises")


def exiting_hook(task: Any) -> None:
    told(task)
    raise SystemExit(3)


class Unsayable(Exception):
    """An exception without a usable str() or repr()."""

    def __str__(self) -> str:
        raise RuntimeError("no text of this")

    __repr__ = __str__


def raise_unsayable(key: str) -> None:
    with run(key):
        raise Unsayable


def fail(key: str, text: str = "as it was told") -> None:
    with run(key):
        pass
    raise ValueError(text)


def say(key: str, value: Any) -> Any:
    with run(key):
        return value


def size_of(key: str, value: bytes) -> int:
    with run(key):
        return len(value)


def big(key: str, size: int) -> bytes:
    with run(key):
        return os.urandom(size)


def lock(key: str) -> Any:
    """Return something that cannot be pickled."""
    import threading

    with run(key):
        return threading.Lock()


def spoil(key: str, given: list[Any]) -> str:
    """Add something that cannot be pickled to an argument."""
    import threading

    with run(key):
        given.append(threading.Lock())
    return key


def leave_transaction(key: str) -> str:
    """Write a row in a transaction that is never ended."""
    from django.contrib.auth.models import Group
    from django.db import transaction

    with run(key):
        transaction.atomic().__enter__()
        Group.objects.create(name=key)
    return key


def leave_autocommit_off(key: str) -> str:
    from django.contrib.auth.models import Group
    from django.db import transaction

    with run(key):
        transaction.set_autocommit(False)
        Group.objects.create(name=key)
    return key


def queries(key: str) -> int:
    """The number of queries that the connection of this process remembers, after one more."""
    from django.contrib.auth.models import Group
    from django.db import connection

    with run(key):
        Group.objects.count()
        return len(connection.queries)


def die(key: str, path: str) -> str:
    """Be killed the first time."""
    with run(key):
        if not Path(path).exists():
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return key
