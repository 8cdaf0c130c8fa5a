"""An interrupt leaves no turn taken, waits for what is deferred, and is not taken for the fault of what it
hit."""

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


class Stray(Exception):
    """What an alarm raises."""


@pytest.fixture
def body() -> Iterator[None]:
    """As if a task's body were on the stack of this thread."""
    interrupts.begin()
    yield
    interrupts.end()


def strike() -> None:
    interrupt(Stray())


# -- turns --


def test_a_turn_is_given_back_however_the_work_ends() -> None:
    turn = threading.Lock()
    assert with_lock(turn, 1.0, lambda: turn.locked())
    for error in (Stray, KeyboardInterrupt):

        def fail(error: type[BaseException] = error) -> None:
            raise error

        with pytest.raises(error):
            with_lock(turn, 1.0, fail)
        assert not turn.locked()


def test_who_does_not_get_the_turn_gives_nothing_back() -> None:
    turn = threading.Lock()
    with turn:
        with pytest.raises(LockTimeout):
            with_lock(turn, 0.01, strike)
        assert turn.locked()


# -- deferring --


def test_without_a_body_there_is_nothing_to_interrupt() -> None:
    strike()


@pytest.mark.usefixtures("body")
def test_an_interrupt_waits_for_what_is_deferred() -> None:
    done: list[str] = []

    def outer() -> None:
        deferred(strike)
        done.append("all")

    with pytest.raises(Stray):
        strike()
    with pytest.raises(Stray):
        deferred(outer)
    assert done == ["all"]
    assert deferred(lambda: 1) == 1


@pytest.mark.usefixtures("body")
def test_it_comes_in_place_of_the_error_of_what_was_deferred() -> None:
    def work() -> None:
        strike()
        raise OSError

    with pytest.raises(Stray) as told:
        deferred(work)
    assert isinstance(told.value.__context__, OSError)


@pytest.mark.usefixtures("body")
def test_after_the_last_thing_it_is_too_late() -> None:
    assert conclude(lambda: strike() or 7) == 7
    strike()


@pytest.mark.usefixtures("body")
def test_when_the_last_thing_fails_it_is_not() -> None:
    def work() -> None:
        strike()
        raise OSError

    with pytest.raises(Stray):
        conclude(work)


@pytest.mark.usefixtures("body")
def test_other_threads_defer_nothing() -> None:
    started, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        go_on.wait(10)

    thread = threading.Thread(target=deferred, args=(wait,))
    thread.start()
    started.wait(10)
    with pytest.raises(Stray):
        strike()
    go_on.set()
    thread.join(10)


# -- whose fault --


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Sets the alarm clock, as a user's timeout decorator does."""

    def ring(*args: object) -> None:
        raise Stray("time is up")

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def raised_by(work: Callable[[], object]) -> Exception:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - what the test looks at
        return error
    raise AssertionError


def test_what_a_handler_raises_passes_whatever_was_made_of_it(alarm: Callable[[float], None]) -> None:
    def work() -> None:
        try:
            alarm(0.01)
            time.sleep(5)
        except Exception as error:
            raise OSError("the server has gone") from error

    with pytest.raises(Stray):
        reraise_interrupt(raised_by(work))


def test_other_errors_are_what_they_are() -> None:
    reraise_interrupt(raised_by(lambda: 1 / 0))


def test_an_error_made_while_an_interrupt_is_handled_is_no_interrupt(alarm: Callable[[float], None]) -> None:
    def ours() -> None:
        reraise_interrupt(raised_by(lambda: 1 / 0))  # its context is what is being handled

    try:
        alarm(0.01)
        time.sleep(5)
    except Stray:
        ours()


@pytest.mark.usefixtures("body")
def test_our_own_interrupt_passes_too() -> None:
    with pytest.raises(Stray):
        reraise_interrupt(raised_by(strike))


# -- apart --


def test_the_main_thread_has_it_done_by_another() -> None:
    assert in_helper_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(Stray):
        in_helper_thread(lambda: (_ for _ in ()).throw(Stray))


def test_other_threads_do_it_themselves() -> None:
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(in_helper_thread(threading.get_ident) == threading.get_ident())
    )
    thread.start()
    thread.join(10)
    assert found == [True]


def test_what_is_done_apart_goes_on_when_we_are_interrupted(alarm: Callable[[float], None]) -> None:
    done, go_on = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait(10)
        done.set()

    alarm(0.02)
    with pytest.raises(Stray):
        in_helper_thread(work)
    go_on.set()
    assert done.wait(10)
    assert in_helper_thread(lambda: 1) == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_helpers_of_its_own() -> None:
    in_helper_thread(lambda: None)
    child = os.fork()
    if child == 0:
        os._exit(in_helper_thread(lambda: 3))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


# -- what catches whatever strangers and users cause --


class Odd(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def read_headers() -> None:
    raw = content_header('{"task": "add", "id": "x", "x-more": [1]}', None, 0, "an-id", 0)
    read_content(Delivery("consumer", "", "q", 1, False, raw, b""))


@pytest.mark.parametrize(
    "work",
    [
        read_headers,
        lambda: exception_from_dict(exception_to_dict(Odd("a", "b"))),
        lambda: exception_from_dict(exception_to_dict(ValueError({"a": [1.5, None]}))),
    ],
    ids=["headers of RabbitMQ", "an odd exception", "arguments of an exception"],
)
def test_what_a_handler_raises_is_no_fault_of_what_was_read(work: Callable[[], object]) -> None:
    """At each place where Python looks for signals."""
    place = 0
    while cut_short(work, place):
        place += 1
    assert place > 10


def cut_short(work: Callable[[], object], place: int) -> bool:
    """Raise as a signal's handler would at that place of *work*; False when it has no such place."""
    left = place

    def handler(signum: int, frame: object) -> None:
        raise Stray

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
    except Stray:
        return True
    finally:
        sys.setprofile(None)
    assert left >= 0, f"what was raised at place {place} was swallowed"
    return False
