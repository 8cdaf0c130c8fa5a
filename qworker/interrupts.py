"""Interrupts: asynchronous exceptions, such as Ctrl-C, a time limit or a user's alarm.

Comes from:  signal handlers, in the main thread, at any moment; the soft time limit, in a child of the pool.
Goes to:     code that holds a lock, a connection or a half-sent frame and must not be interrupted.
Thread:      any; signals only interrupt the main one.

Python handles signals at the start of a function, after a call of a C function, and at the end of a loop
iteration. So:

- An atomic step must be *one* call of a C function. ``got.extend(map(lock.acquire, …))`` acquires the lock
  and records that in one step; ``got = lock.acquire()`` may be interrupted in between. The cleanup must also
  be such a call, first in ``finally``. A context manager written in Python cannot do this: its ``__exit__``
  may be interrupted before it begins.
- State that may be left half done, such as a connection in the middle of an answer, is marked before and
  after (``whole``). If the second mark is missing, it is discarded at once or by its next user.
- Objects that we cannot mark, such as another library's connection pool, are used ``in_helper_thread()``,
  which signals do not interrupt.
- Our own interrupt, the soft time limit, is meant for the task's code, so it waits for ``deferred()`` code.
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
"""An idle helper thread ends after this time."""


class LockTimeout(Exception):
    """The lock could not be acquired in time."""


class _Run:
    """The state of the task body on the main thread. Owner: the main thread and its signal handlers."""

    __slots__ = ("depth", "kept", "last", "open")

    def __init__(self) -> None:
        self.open = False
        """A body is running, and may be interrupted."""
        self.depth = 0
        """The number of deferred() calls on the stack."""
        self.kept: BaseException | None = None
        """The interrupt to raise at the end of the outermost deferred() call."""
        self.last: BaseException | None = None
        """The last interrupt."""


_run = _Run()
_main = threading.main_thread().ident


def begin() -> None:
    """Mark the start of a body on the main thread; interrupt() applies to it from now on."""
    _run.depth, _run.kept = 0, None
    _run.open = True


def end() -> None:
    """Mark the end of the body; later interrupts have no effect."""
    _run.open = False


def interrupt(error: BaseException) -> None:
    """Raise *error* in the running body, now or after deferred code; without a body, do nothing. For signal
    handlers."""
    if _run.open:
        _run.last = error
        if not _run.depth:
            raise error
        _run.kept = error


def deferred(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return *work*(), and delay interrupt() until its end."""
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
    """deferred() for the last action of a body; later interrupts have no effect."""

    def last() -> T:
        value = work(*args, **kwargs)
        if get_ident() == _main:
            _run.open, _run.kept = False, None
        return value

    return deferred(last)


def with_lock(
    lock: Lock, seconds: float | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return *work*(), called while holding *lock*; the lock is always released.

    Wait for the lock up to *seconds* (None: without limit), then raise LockTimeout.
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
    """Raise the interrupt that *error* is or was caused by, if any. For code that converts errors.

    An exception raised by a signal handler, of any type, is not an error of the interrupted code. Threads
    other than the main one need no such call.
    """
    cause: BaseException | None = error
    while cause is not None:
        if cause is _run.last or _of_handler(cause):
            raise cause
        cause = cause.__cause__ or cause.__context__
        if cause is not None and _handled_above(cause):
            return


def _handled_above(error: BaseException) -> bool:
    """Whether a caller of ours is already handling *error*: then it is only the context of a later error."""
    trace = error.__traceback__
    frame = sys._getframe(2).f_back
    while frame is not None:
        if trace is not None and trace.tb_frame is frame:
            return True
        frame = frame.f_back
    return False


def _of_handler(error: BaseException) -> bool:
    """Whether *error* was raised in a signal handler: a function called with its caller's frame."""
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
"""The queues of idle threads. Used by any thread, because pop and append are atomic."""


def in_helper_thread(work: Callable[[], T]) -> T:
    """Return *work*(), called by another thread if this is the main one, so that signals do not interrupt it.

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
    """Call *work* in another thread and wait up to *seconds*; return whether it ended in time. Raises its
    error if it did; otherwise it continues to its end."""
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
    """Let another thread call *work*; return the queue for its outcome, None if no thread can be started."""
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
    """Decorate *work* to run in_helper_thread()."""

    @wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return in_helper_thread(lambda: work(*args, **kwargs))

    return call


def _serve(orders: SimpleQueue[_Order]) -> None:
    """Run the work that arrives in *orders*, until none does for IDLE_SECONDS."""
    taken = False
    while True:
        try:
            work, answer = orders.get(timeout=IDLE_SECONDS)
        except Empty:
            try:
                _idle.remove(orders)
            except ValueError:
                if not taken:  # a thread took our queue: it is about to send an order, or was interrupted
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
