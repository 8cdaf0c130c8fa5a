"""Sides: the same code, run with Celery and with qworker, to compare the results.

Comes from:  test_celery_guide, whose snippets are functions of a side.
Goes to:     a worker of each in this process: Celery's in a thread, ours step by step.
Thread:      the test's, and that of Celery's worker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import celery
from celery import exceptions as celery_exceptions
from celery import signals as celery_signals
from celery import states as celery_states
from celery.backends import cache
from celery.contrib.testing.worker import start_worker
from celery.result import allow_join_result
from kombu.transport.memory import Channel

import qworker
from qworker import errors, signals, states
from qworker.testing import MemoryStore, StepWorker

PATIENCE = 20.0


class Side:
    """A library with names that both have: App, Task, shared_task, errors, signals, states,
    allow_join_result."""

    name: str
    App: Callable[..., Any]
    Task: Any
    shared_task: Any
    errors: Any
    signals: Any
    states: Any
    current_task: Any
    current_app: Any
    allow_join_result: Any

    @contextmanager
    def worker(self, app: Any) -> Iterator[Callable[[Any], Any]]:
        """Run a worker of *app*; yields a function that waits until a result is ready, and returns it."""
        raise NotImplementedError


class CelerySide(Side):
    name = "celery"
    Task, shared_task = celery.Task, staticmethod(celery.shared_task)
    errors, signals, states = celery_exceptions, celery_signals, celery_states
    current_task, current_app = celery.current_task, celery.current_app
    allow_join_result = staticmethod(allow_join_result)

    def App(self, main: str = "proj", cls: Any = None, **options: Any) -> Any:
        Channel.queues.clear()  # Celery's in-memory transport is global: remove messages of other tests
        cache._DUMMY_CLIENT_CACHE.clear()
        options = {"broker": "memory://", "backend": "cache+memory://", **options}
        return (cls or celery.Celery)(main, worker_hijack_root_logger=False, **options)

    base = celery.Celery

    @contextmanager
    def worker(self, app: Any) -> Iterator[Callable[[Any], Any]]:
        def ended(result: Any) -> Any:
            deadline = time.monotonic() + PATIENCE
            while not result.ready():
                assert time.monotonic() < deadline, result.state
                time.sleep(0.005)
            return result

        with (
            logging_kept(),
            start_worker(app, perform_ping_check=False, pool="solo", loglevel=logging.CRITICAL),
        ):
            yield ended


class QWorkerSide(Side):
    name = "qworker"
    Task, shared_task = qworker.Task, staticmethod(qworker.shared_task)
    errors, signals, states = errors, signals, states
    current_task, current_app = qworker.current_task, qworker.current_app
    allow_join_result = staticmethod(qworker.allow_join_result)

    def App(self, main: str = "proj", cls: Any = None, **options: Any) -> Any:
        options = {"broker": MemoryStore(), "backend": "cache+memory://", **options}
        return (cls or qworker.QWorker)(main, **options)

    base = qworker.QWorker

    @contextmanager
    def worker(self, app: Any) -> Iterator[Callable[[Any], Any]]:
        with StepWorker(app) as worker:

            def ended(result: Any) -> Any:
                deadline = time.monotonic() + PATIENCE
                while not result.ready():
                    assert time.monotonic() < deadline, result.state
                    worker.run()
                return result

            yield ended


@contextmanager
def logging_kept() -> Iterator[None]:
    """Undo the changes of a Celery worker to the root logger of this process."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


CELERY, QWORKER = CelerySide(), QWorkerSide()
