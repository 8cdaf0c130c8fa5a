"""Interrupts: asynchronous exceptions, such as Ctrl-C, a time limit or an alarm of the user's.

Comes from:  signal handlers, in the main thread, at any moment; the soft time limit, in a child of the pool.
Goes to:     code that holds something that must not be left half done: a lock, a connection, a frame.
Thread:      any; signals only interrupt the main one.

Python handles signals at the start of a function, after a call of a C function, and at the end of a loop
iteration. So:

- What must be atomic is *one* call of a C function: after ``got.extend(map(lock.acquire, …))`` it is recorded
  that we have the lock; after ``got = lock.acquire()`` it may not be. The cleanup comes first in ``finally``,
  as such a call. A context manager written in Python cannot do this: its ``__exit__`` may be interrupted
  before it begins.
- What may be left half done, such as a connection in the middle of an answer, is marked before and after
  (``whole``), and discarded by its next user, or at once, if the second mark is missing.
- What we cannot mark, such as another library's pool of connections, is used ``in_helper_thread()``, which
  signals do not interrupt.
- Our own interrupt, the soft time limit, waits until ``deferred()`` code has ended: it is meant for the
  task's code.
"""

from __future__ import annotations

import os
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable
from functools import wraps
from queue import Empty, SimpleQueue
from threading import Lock, get_ident
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

IDLE_SECONDS = 60.0
"""After which an idle thread made by in_helper_thread() ends."""


class LockTimeout(Exception):
    """Others held the lock for the whole time."""


class _Run:
    """The task whose body is on the main thread's stack. Owner: the main thread, including its signal
    handlers."""

    __slots__ = ("depth", "kept", "last", "open")

    def __init__(self) -> None:
        self.open = False
        """A body is running, and may be interrupted."""
        self.depth = 0
        """How many deferred() calls are on the stack."""
        self.kept: BaseException | None = None
        """To be raised when there are none."""
        self.last: BaseException | None = None
        """The last one raised."""


_run = _Run()
_main = threading.main_thread().ident


def begin() -> None:
    """A body begins on the main thread: interrupt() applies to it from now on."""
    _run.depth, _run.kept = 0, None
    _run.open = True


def end() -> None:
    """It has ended: later interrupts have no effect."""
    _run.open = False


def interrupt(error: BaseException) -> None:
    """For a signal handler: raise *error* in the running body, now or after deferred code; without a body, do
    nothing."""
    if _run.open:
        _run.last = error
        if not _run.depth:
            raise error
        _run.kept = error


def deferred(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return *work*(), and delay our own interrupts until its end."""
    run = _run
    if not run.open or get_ident() != _main:
        return work(*args, **kwargs)
    run.depth += 1
    try:
        return work(*args, **kwargs)
    finally:
        run.depth -= 1
        if not run.depth and run.kept is not None:
            error, run.kept = run.kept, None
            raise error


def conclude(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """deferred() for the last action of a body: once it is done, interrupts have no effect."""

    def last() -> T:
        value = work(*args, **kwargs)
        if get_ident() == _main:
            _run.open, _run.kept = False, None
        return value

    return deferred(last)


def with_lock(
    lock: Lock, seconds: float | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return *work*() while holding *lock*, which is always released. Wait for it up to so many
    seconds.

    None: without limit. Raises LockTimeout when we did not get it.
    """
    got: list[bool] = []
    try:
        got.extend(map(lock.acquire, (True,), (-1.0 if seconds is None else max(0.0, seconds),)))
        if True not in got:
            raise LockTimeout
        return deferred(work, *args, **kwargs) if _run.open else work(*args, **kwargs)
    finally:
        if True in got:
            lock.release()


def reraise_interrupt(error: BaseException) -> None:
    """For code that converts any *error* to another one: raise it, if it is an interrupt, or was caused by
    one.

    An exception raised by a signal handler, of any type, is not an error of the interrupted code. Only the
    main thread is interrupted: the threads of a worker's and a scheduler's parts need no such call.
    """
    cause: BaseException | None = error
    while cause is not None:
        if cause is _run.last or _of_handler(cause):
            raise cause
        cause = cause.__cause__ or cause.__context__
        if cause is not None and _handled_above(cause):
            return


def _handled_above(error: BaseException) -> bool:
    """Whether a caller of ours caught it and is handling it: then it is only our context."""
    trace = error.__traceback__
    frame = sys._getframe(2).f_back
    while frame is not None:
        if trace is not None and trace.tb_frame is frame:
            return True
        frame = frame.f_back
    return False


def _of_handler(error: BaseException) -> bool:
    """Whether it was raised in a signal handler: a function that was called with the frame below it."""
    below = None
    trace = error.__traceback__
    while trace is not None:
        if below is not None:
            for value in trace.tb_frame.f_locals.values():
                if value is below or (type(value) is tuple and any(item is below for item in value)):
                    return True
        below, trace = trace.tb_frame, trace.tb_next
    return False


def interruptible() -> bool:
    """Whether a signal may raise here."""
    return get_ident() == _main


# -- helper threads --

_Order = tuple[Callable[[], Any], "SimpleQueue[tuple[bool, Any]]"]
_idle: list[SimpleQueue[_Order]] = []
"""Queues of idle threads. Any thread: pop and append are atomic."""


def in_helper_thread(work: Callable[[], T]) -> T:
    """Return *work*(), called where signals do not interrupt it: if this is the main thread, by another one.

    If the main thread is interrupted meanwhile, *work* continues to its end.
    """
    if get_ident() != _main:
        return work()
    answer = _ordered(work)
    if answer is None:
        return deferred(work)
    done, value = deferred(answer.get)
    if done:
        return value  # type: ignore[no-any-return]
    try:
        raise value
    finally:
        del value, answer  # the frames of the error include ours: a reference cycle


def within(seconds: float, work: Callable[[], None]) -> bool:
    """Call *work* in another thread, and wait for it no longer than *seconds*; tell whether it has ended by
    then. It continues to its end in any case. Raises its error if it ended in time."""
    answer = _ordered(work)
    if answer is None:
        deferred(work)
        return True
    try:
        done, value = deferred(answer.get, timeout=seconds)
    except Empty:
        return False
    if done:
        return True
    try:
        raise value
    finally:
        del value, answer  # as above


def _ordered(work: Callable[[], Any]) -> SimpleQueue[tuple[bool, Any]] | None:
    """Have another thread call *work*; return a queue for the outcome. None: there is no thread."""
    answer: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
    try:
        orders = _idle.pop()
    except IndexError:
        orders = SimpleQueue()
        try:
            start_new_thread(_serve, (orders,))
        except RuntimeError:  # no more threads can be started, or the interpreter is shutting down
            return None
    orders.put((work, answer))
    return answer


def undisturbed(work: Callable[P, T]) -> Callable[P, T]:
    """Decorator: calls run in_helper_thread()."""

    @wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return in_helper_thread(lambda: work(*args, **kwargs))

    return call


def _serve(orders: SimpleQueue[_Order]) -> None:
    """Carry out orders, until none arrives for a while."""
    taken = False
    while True:
        try:
            work, answer = orders.get(timeout=IDLE_SECONDS)
        except Empty:
            try:
                _idle.remove(orders)
            except ValueError:
                if not taken:  # the thread that took it is about to send an order, or was interrupted
                    taken = True
                    continue
            return
        taken = False
        try:
            outcome = True, work()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            outcome = False, error
        _idle.append(orders)
        answer.put(outcome)
        del work, answer, outcome


def _after_fork() -> None:
    global _main
    _main = get_ident()
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
