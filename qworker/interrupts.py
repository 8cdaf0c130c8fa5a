"""Interrupts: exceptions that come out of nowhere, as Ctrl-C, a time limit or an alarm of the user's raises
them.

Comes from:  signal handlers, in the main thread, at any moment; the soft time limit, in a child of the pool.
Goes to:     whoever holds something that must not be left half done: a turn, a connection, a frame.
Thread:      any; the main one is the only one that signals interrupt.

Python looks for signals where a function begins, after a call of something written in C, and where a loop
turns. So:

- What must be one step is *one* call of something written in C: ``got.extend(map(lock.acquire, …))`` knows
  that it has the lock as soon as it has it, ``got = lock.acquire()`` may not. What undoes it comes first in
  ``finally``, as such a call. A context manager that is written in Python can do neither: its ``__exit__``
  may be interrupted before it begins.
- What may be left half done, such as a connection in the midst of an answer, is marked before and after
  (``whole``), and is thrown away by its next user, or at once, when the second mark is missing.
- What is not ours to mark, such as another library's pool of connections, is used ``apart()``: in a thread
  that no signal interrupts.
- Our own interrupt, the soft time limit, waits until what is ``deferred()`` is over: it is for the task's
  code.
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
"""After which a thread that apart() has made ends."""


class NotOurTurn(Exception):
    """The lock was kept by others for the whole time."""


class _Run:
    """The task whose body is on the main thread's stack. Owner: the main thread, its signal handlers
    included."""

    __slots__ = ("depth", "kept", "last", "open")

    def __init__(self) -> None:
        self.open = False
        """A body runs, and may be interrupted."""
        self.depth = 0
        """How many deferred() are on the stack."""
        self.kept: BaseException | None = None
        """What is to be raised when none is."""
        self.last: BaseException | None = None
        """What was raised."""


_run = _Run()
_main = threading.main_thread().ident


def begin() -> None:
    """A body begins on the main thread: interrupt() reaches it from now on."""
    _run.depth, _run.kept = 0, None
    _run.open = True


def end() -> None:
    """It has ended: an interrupt that comes now is too late."""
    _run.open = False


def interrupt(error: BaseException) -> None:
    """For a signal handler: raise *error* in the body that runs, now or when what is deferred is over; no
    body, no error."""
    if _run.open:
        _run.last = error
        if not _run.depth:
            raise error
        _run.kept = error


def deferred(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What *work* returns; our own interrupts wait for its end."""
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
    """deferred() for the last thing that a body does: once it is done, an interrupt is too late."""

    def last() -> T:
        value = work(*args, **kwargs)
        if get_ident() == _main:
            _run.open, _run.kept = False, None
        return value

    return deferred(last)


def in_turn(turn: Lock, seconds: float | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What *work* returns while we have *turn*, which is given back whatever happens, and waited for up to so
    many seconds.

    None: without end. Raises NotOurTurn when we did not get it.
    """
    got: list[bool] = []
    try:
        got.extend(map(turn.acquire, (True,), (-1.0 if seconds is None else max(0.0, seconds),)))
        if True not in got:
            raise NotOurTurn
        return deferred(work, *args, **kwargs) if _run.open else work(*args, **kwargs)
    finally:
        if True in got:
            turn.release()


def let_pass(error: BaseException) -> None:
    """For who makes another error of any *error* that comes: raise it, if it is an interrupt, or was caused
    by one.

    What a signal handler raises, of whatever type it is, is no fault of what it interrupts.
    """
    cause: BaseException | None = error
    while cause is not None:
        if cause is _run.last or _of_handler(cause):
            raise cause
        cause = cause.__cause__ or cause.__context__
        if cause is not None and _handled_above(cause):
            return


def _handled_above(error: BaseException) -> bool:
    """Whether it was caught, and is being handled, by somebody who called us: then it is only where we come
    from."""
    trace = error.__traceback__
    frame = sys._getframe(2).f_back
    while frame is not None:
        if trace is not None and trace.tb_frame is frame:
            return True
        frame = frame.f_back
    return False


def _of_handler(error: BaseException) -> bool:
    """Whether it came out of a signal handler: a function that was given the very frame below it."""
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


# -- apart --

_Order = tuple[Callable[[], Any], "SimpleQueue[tuple[bool, Any]]"]
_idle: list[SimpleQueue[_Order]] = []
"""Where threads wait that have nothing to do. Any thread: pop and append are atomic."""


def apart(work: Callable[[], T]) -> T:
    """What *work* returns, carried out where no signal interrupts it: on the main thread, by another one.

    When the main thread is interrupted meanwhile, *work* goes on to its end.
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
        del value, answer  # the error's frames are ours: each would keep the other alive


def within(seconds: float, work: Callable[[], None]) -> bool:
    """Carry out *work* by another thread, and wait for it no longer than *seconds*; tell whether it has ended
    by then. It goes on to its end in any case. Raises what it raises meanwhile."""
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
    """Have another thread carry out *work*; return where it puts the outcome. None: there is no thread."""
    answer: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
    try:
        orders = _idle.pop()
    except IndexError:
        orders = SimpleQueue()
        try:
            start_new_thread(_serve, (orders,))
        except RuntimeError:  # there may be no more threads, or the interpreter ends
            return None
    orders.put((work, answer))
    return answer


def undisturbed(work: Callable[P, T]) -> Callable[P, T]:
    """Decorator: what is called so is carried out apart()."""

    @wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return apart(lambda: work(*args, **kwargs))

    return call


def _serve(orders: SimpleQueue[_Order]) -> None:
    """Carry out what is ordered, as long as something comes now and then."""
    taken = False
    while True:
        try:
            work, answer = orders.get(timeout=IDLE_SECONDS)
        except Empty:
            try:
                _idle.remove(orders)
            except ValueError:
                if not taken:  # who took it says now what for, or was interrupted before he could
                    taken = True
                    continue
            return
        taken = False
        try:
            outcome = True, work()
        except BaseException as error:  # noqa: BLE001 - it is for who ordered
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
