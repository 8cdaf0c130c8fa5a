"""Interrupts release locks, wait for deferred work, and are not mistaken for errors of the code they hit."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from qworker import interrupts
from qworker.interrupts import (
    LockTimeout,
    conclude,
    deferred,
    in_helper_thread,
    interrupt,
    reraise_interrupt,
    with_lock,
)
from qworker.message.exceptions import exception_from_dict, exception_to_dict
from qworker.transports.amqp.codec import Delivery, content_header, read_content


class AlarmError(Exception):
    """Raised by the handler of an alarm."""


@pytest.fixture
def in_task_body() -> Iterator[None]:
    """Pretend that a task body is on the stack of this thread."""
    interrupts.begin()
    yield
    interrupts.end()


def send_interrupt() -> None:
    interrupt(AlarmError())


# -- locks --


def test_with_lock_releases_the_lock_on_success_and_error() -> None:
    lock = threading.Lock()
    assert with_lock(lock, 1.0, lambda: lock.locked())
    for error in (AlarmError, KeyboardInterrupt):

        def fail(error: type[BaseException] = error) -> None:
            raise error

        with pytest.raises(error):
            with_lock(lock, 1.0, fail)
        assert not lock.locked()


def test_with_lock_does_not_release_a_lock_it_did_not_get() -> None:
    lock = threading.Lock()
    with lock:
        with pytest.raises(LockTimeout):
            with_lock(lock, 0.01, send_interrupt)
        assert lock.locked()


# -- deferring --


def test_interrupt_without_a_task_body_does_nothing() -> None:
    send_interrupt()


@pytest.mark.usefixtures("in_task_body")
def test_interrupt_waits_for_deferred_work() -> None:
    done: list[str] = []

    def outer() -> None:
        deferred(send_interrupt)
        done.append("all")

    with pytest.raises(AlarmError):
        send_interrupt()
    with pytest.raises(AlarmError):
        deferred(outer)
    assert done == ["all"]
    assert deferred(lambda: 1) == 1


@pytest.mark.usefixtures("in_task_body")
def test_interrupt_replaces_the_error_of_deferred_work() -> None:
    def work() -> None:
        send_interrupt()
        raise OSError

    with pytest.raises(AlarmError) as caught:
        deferred(work)
    assert isinstance(caught.value.__context__, OSError)


@pytest.mark.usefixtures("in_task_body")
def test_interrupt_during_conclude_is_dropped() -> None:
    assert conclude(lambda: send_interrupt() or 7) == 7
    send_interrupt()


@pytest.mark.usefixtures("in_task_body")
def test_interrupt_is_raised_when_conclude_fails() -> None:
    def work() -> None:
        send_interrupt()
        raise OSError

    with pytest.raises(AlarmError):
        conclude(work)


@pytest.mark.usefixtures("in_task_body")
def test_deferred_work_of_other_threads_delays_no_interrupt() -> None:
    started, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        go_on.wait(10)

    thread = threading.Thread(target=deferred, args=(wait,))
    thread.start()
    started.wait(10)
    with pytest.raises(AlarmError):
        send_interrupt()
    go_on.set()
    thread.join(10)


# -- interrupts and other errors --


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Set an alarm, as a user's timeout decorator does."""

    def ring(*args: object) -> None:
        raise AlarmError("time is up")

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def raised_by(work: Callable[[], object]) -> Exception:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the test examines it
        return error
    raise AssertionError


def test_wrapped_exception_of_a_signal_handler_is_reraised(alarm: Callable[[float], None]) -> None:
    def work() -> None:
        try:
            alarm(0.01)
            time.sleep(5)
        except Exception as error:
            raise OSError("the server has gone") from error

    with pytest.raises(AlarmError):
        reraise_interrupt(raised_by(work))


def test_other_errors_are_not_reraised() -> None:
    reraise_interrupt(raised_by(lambda: 1 / 0))


def test_error_during_handling_of_an_interrupt_is_not_an_interrupt(alarm: Callable[[float], None]) -> None:
    def ours() -> None:
        reraise_interrupt(raised_by(lambda: 1 / 0))  # its context is the interrupt being handled

    try:
        alarm(0.01)
        time.sleep(5)
    except AlarmError:
        ours()


@pytest.mark.usefixtures("in_task_body")
def test_own_interrupt_is_reraised() -> None:
    with pytest.raises(AlarmError):
        reraise_interrupt(raised_by(send_interrupt))


# -- helper threads --


def test_in_helper_thread_uses_another_thread_on_the_main_thread() -> None:
    assert in_helper_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(AlarmError):
        in_helper_thread(lambda: (_ for _ in ()).throw(AlarmError))


def test_in_helper_thread_stays_on_threads_other_than_main() -> None:
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(in_helper_thread(threading.get_ident) == threading.get_ident())
    )
    thread.start()
    thread.join(10)
    assert found == [True]


def test_work_in_a_helper_thread_continues_after_an_interrupt(alarm: Callable[[float], None]) -> None:
    done, go_on = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait(10)
        done.set()

    alarm(0.02)
    with pytest.raises(AlarmError):
        in_helper_thread(work)
    go_on.set()
    assert done.wait(10)
    assert in_helper_thread(lambda: 1) == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_child_starts_its_own_helper_threads() -> None:
    in_helper_thread(lambda: None)
    child = os.fork()
    if child == 0:
        os._exit(in_helper_thread(lambda: 3))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


# -- code that catches all exceptions --


class UnusualException(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def read_headers() -> None:
    raw = content_header('{"task": "add", "id": "x", "x-more": [1]}', None, 0, "an-id", 0)
    read_content(Delivery("consumer", "", "q", 1, False, raw, b""))


@pytest.mark.parametrize(
    "work",
    [
        read_headers,
        lambda: exception_from_dict(exception_to_dict(UnusualException("a", "b"))),
        lambda: exception_from_dict(exception_to_dict(ValueError({"a": [1.5, None]}))),
    ],
    ids=["headers of RabbitMQ", "an odd exception", "arguments of an exception"],
)
def test_exception_of_a_signal_handler_is_never_swallowed(work: Callable[[], object]) -> None:
    """At each point where Python runs signal handlers."""
    place = 0
    while cut_short(work, place):
        place += 1
    assert place > 10


def cut_short(work: Callable[[], object], place: int) -> bool:
    """Raise like a signal handler at that point of *work*; return False if it has no such point."""
    left = place

    def handler(signum: int, frame: object) -> None:
        raise AlarmError

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                handler(signal.SIGALRM, frame)

    sys.setprofile(profile)
    try:
        work()
    except AlarmError:
        return True
    finally:
        sys.setprofile(None)
    assert left >= 0, f"what was raised at place {place} was swallowed"
    return False
