"""cached_calls: the functions of ``tasks.py`` for the cache alone, under django-q2's names.

Comes from:  projects that were written for it.
Goes to:     ``fetching.py`` and ``execution/cached.py``.
Thread:      any.

A broker may be given, as there; it is the cache of the settings all the same.
"""

from __future__ import annotations

from typing import Any

from qworker.django.brokers import Broker
from qworker.django.models import Task
from qworker.django.waiting import fetching


def result_cached(task_id: str, wait: int = 0, broker: Broker | None = None) -> Any:
    """Like result(), in the cache."""
    found = fetching.task(task_id, wait, True)
    return None if found is None else found.result


def fetch_cached(task_id: str, wait: int = 0, broker: Broker | None = None) -> Task | None:
    """Like fetch(), in the cache."""
    return fetching.task(task_id, wait, True)


def result_group_cached(
    group_id: str,
    failures: bool = False,
    wait: int = 0,
    count: int | None = None,
    broker: Broker | None = None,
) -> list[Any] | None:
    """Like result_group(), in the cache."""
    return fetching.results(group_id, failures, wait, count, True)


def fetch_group_cached(
    group_id: str,
    failures: bool = True,
    wait: int = 0,
    count: int | None = None,
    broker: Broker | None = None,
) -> Any:
    """Like fetch_group(), in the cache."""
    return fetching.members(group_id, failures, wait, count, True)


def count_group_cached(group_id: str, failures: bool = False, broker: Broker | None = None) -> int | None:
    """Like count_group(), in the cache."""
    return fetching.size(group_id, failures, True)


def delete_group_cached(group_id: str, broker: Broker | None = None) -> int:
    """Like delete_group() with its tasks, in the cache."""
    return fetching.delete_group(group_id, True, True)
