"""JobDispatch: which names are given out together, and what becomes of them."""

from __future__ import annotations

import json
import os
import selectors
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qworker.errors import LeaseLost
from qworker.spooler.files.attempts import ATTRIBUTE
from qworker.spooler.files.writing import Writer
from qworker.spooler.running.dispatch import (
    AT_ONCE,
    FIRST,
    MOST,
    NAMES_AT_ONCE,
    POLL_COOLDOWN,
    STALE_SECONDS,
    JobDispatch,
    JobLane,
)
from qworker.spooler.running.job_messages import RUN, job_id, job_messages, signal_message
from qworker.spooler.uwsgi.signal_table import SignalTable
from qworker.spooler.uwsgi.timers import SignalSource
from qworker.spooler.watching.directory import COARSE, SpoolDirectory
from qworker.testing import FakeClock
from qworker.transports.lease import Ack, DeadLetter, Leased, Release, Store
from tests.support.waiting import until

Open = Callable[..., JobDispatch]


@pytest.fixture
def dispatch(writer: Writer, clock: FakeClock) -> Iterator[Open]:
    opened: list[JobDispatch] = []

    def make(concurrency: int = 2, most: int = MOST) -> JobDispatch:
        def lanes(queues: object) -> list[JobLane]:
            directory = SpoolDirectory(writer.path, clock=clock)
            return [JobLane(directory, job_messages(directory.path, 30.0, results=False), most)]

        opened.append(JobDispatch(lanes, clock))
        opened[-1].register("spooler", (), concurrency)
        return opened[-1]

    yield make
    for each in opened:
        each.deregister()


def given(leased: Leased) -> list[str]:
    """The files that a message names."""
    (_, paths), _, _ = json.loads(leased.body)
    return [str(path) for path in paths]


def test_a_message_names_the_files_and_is_readable(dispatch: Open, writer: Writer) -> None:
    name = os.path.basename(writer.write({}))
    consumer = dispatch()
    (leased,) = consumer.lease((), 10).messages
    headers = json.loads(leased.headers)
    assert json.loads(leased.body)[0] == [writer.path, [name]]
    assert (headers["task"], headers["id"], headers["timelimit"]) == (RUN, name, [30.0, None])
    assert headers["ignore_result"] is True
    assert consumer.lease((), 10).messages == []


def test_what_is_not_due_is_not_named_and_the_listener_comes_back_when_it_is(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    writer.write({}, at=clock.now() + 100)
    consumer = dispatch()
    claim = consumer.lease((), 10, 5, 7.0)
    assert (claim.messages, claim.next_due) == ([], clock.now() + 107), (
        "the listener subtracts what it asks ahead"
    )
    assert consumer.lease((), 10).next_due == clock.now() + 100
    clock.advance(100)
    assert len(consumer.lease((), 10).messages) == 1


def test_the_first_go_some_together_and_the_next_as_they_are_short(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    for _ in range(300):
        writer.write({})
    consumer = dispatch()
    first = consumer.lease((), 2).messages
    assert [len(given(leased)) for leased in first] == [FIRST, FIRST]
    for path in (path for leased in first for path in given(leased)):
        (Path(writer.path) / path).unlink()
    clock.advance(0.01)
    consumer.settle_held([Ack(leased.tag) for leased in first])
    # So many in ten milliseconds of each of two processes.
    assert [len(given(leased)) for leased in consumer.lease((), 2).messages] == [2 * FIRST, 2 * FIRST]


def test_who_has_left_no_file_is_believed_unless_the_last_is_there(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    """A message that was revoked ends as if it had been run."""
    for _ in range(4):
        writer.write({})
    consumer = dispatch(concurrency=1)
    (leased,) = consumer.lease((), 1).messages
    paths = given(leased)
    (Path(writer.path) / paths[0]).unlink()
    consumer.settle_held([Ack(leased.tag)])
    clock.advance(1.0)
    assert sorted(given(consumer.lease((), 1).messages[0])) == sorted(paths[1:])


def test_what_is_said_to_be_left_is_looked_at(dispatch: Open, writer: Writer, clock: FakeClock) -> None:
    for _ in range(4):
        writer.write({})
    consumer = dispatch(concurrency=1)
    (leased,) = consumer.lease((), 1).messages
    paths = given(leased)
    (Path(writer.path) / paths[3]).unlink()
    consumer.settle_held([Release(leased.tag, clock.now() + 60, requeued=True, redelivered=True)])
    assert consumer.lease((), 1).messages == [], "they were tried in vain just now"
    clock.advance(1.0)
    assert sorted(given(consumer.lease((), 1).messages[0])) == sorted(paths[:3])


def test_a_handful_is_divided_among_the_processes(dispatch: Open, writer: Writer, clock: FakeClock) -> None:
    consumer = dispatch(concurrency=4)
    consumer._lanes[0].learn(100, 0.001)
    for _ in range(8):
        writer.write({})
    assert [len(given(leased)) for leased in consumer.lease((), 100).messages] == [2, 2, 2, 2]


def test_many_are_given_out_in_parts_and_the_next_part_is_told_of_once(
    dispatch: Open, writer: Writer
) -> None:
    consumer = dispatch(concurrency=2, most=1)
    for _ in range(AT_ONCE * 2 + 3):
        writer.write({})
    assert len(consumer.lease((), 100).messages) == AT_ONCE * 2
    assert consumer.rest() == 0.0
    assert consumer.wait(5.0)
    assert not consumer._more
    assert len(consumer.lease((), 100).messages) == 3
    assert not consumer._more


def test_no_more_are_looked_for_at_once_than_keep_the_processes_busy(dispatch: Open, writer: Writer) -> None:
    consumer = dispatch(concurrency=2)
    consumer._lanes[0].learn(1000, 0.001)
    for _ in range(NAMES_AT_ONCE * 2 + 3):
        writer.write({})
    first = consumer.lease((), 100).messages
    assert sum(len(given(leased)) for leased in first) == NAMES_AT_ONCE * 2
    assert consumer.wait(5.0), "the others are told of at once"
    assert sum(len(given(leased)) for leased in consumer.lease((), 100).messages) == 3


def test_what_happens_to_files_that_are_run_is_no_news(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    path = writer.write({})
    writer.write({}, at=clock.now() + 1000.0)  # while one rests, changes of attributes are told
    consumer = dispatch()
    assert len(consumer.lease((), 10).messages) == 1
    assert consumer.lease((), 10).messages == []
    consumer.wait(0.0)  # the files were written
    os.setxattr(path, ATTRIBUTE, b"1")
    assert consumer.files() != []
    assert not consumer.wait(5.0)
    assert (consumer.files(), consumer.rest()) == ([], pytest.approx(POLL_COOLDOWN)), "so it is not heard of"
    writer.write({})
    clock.advance(POLL_COOLDOWN)
    assert consumer.wait(5.0), "what is new is heard of a moment later"


def test_nothing_is_told_of_attributes_while_no_file_rests(dispatch: Open, writer: Writer) -> None:
    path = writer.write({})
    consumer = dispatch()
    assert len(consumer.lease((), 10).messages) == 1
    assert consumer.lease((), 10).messages == []
    consumer.wait(0.0)  # the file was written
    os.setxattr(path, ATTRIBUTE, b"1")
    with selectors.DefaultSelector() as selector:
        selector.register(consumer.files()[0], selectors.EVENT_READ)
        assert selector.select(0) == []


def test_a_file_that_rests_is_heard_of_when_its_time_changes(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    path = writer.write({})
    consumer = dispatch()
    (leased,) = consumer.lease((), 10).messages
    assert consumer.lease((), 10).messages == []
    os.utime(path, (5, clock.now() + 1000.0))  # as who gives it back does
    consumer.settle_held([Ack(leased.tag)])
    while consumer.wait(0.0):
        assert consumer.lease((), 10).messages == []
    clock.advance(POLL_COOLDOWN)
    os.utime(path, (5, clock.now()))
    assert consumer.wait(5.0)
    assert len(consumer.lease((), 10).messages) == 1


def test_who_has_room_for_no_more_is_not_told_of_more(dispatch: Open, writer: Writer) -> None:
    consumer = dispatch(concurrency=2, most=1)
    for _ in range(AT_ONCE * 2 + 3):
        writer.write({})
    consumer.lease((), AT_ONCE * 2)
    consumer.wait(0.0)  # the files have been written
    assert consumer.rest() > 0.0


def test_one_by_one_where_each_has_a_result(dispatch: Open, writer: Writer) -> None:
    consumer = dispatch(most=1)
    consumer._lanes[0].learn(100, 0.001)
    for _ in range(5):
        writer.write({})
    assert [len(given(leased)) for leased in consumer.lease((), 100).messages] == [1] * 5


def test_what_is_gone_is_forgotten_and_what_was_given_back_comes_when_it_is_due(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    gone, back = writer.write({}), writer.write({})
    consumer = dispatch()
    messages = consumer.lease((), 10).messages
    os.unlink(gone)
    os.utime(back, (0, clock.now() + 5))
    assert consumer.settle_held([Ack(leased.tag) for leased in messages]) == set()
    assert consumer.lease((), 10).messages == []
    clock.advance(5)
    (again,) = consumer.lease((), 10).messages
    assert given(again) == [os.path.basename(back)]


@pytest.mark.parametrize("order", [Release, lambda tag: Release(tag, counted=True)])
def test_what_was_not_run_comes_again_at_once(
    dispatch: Open, writer: Writer, order: Callable[[int], Release]
) -> None:
    writer.write({}, at=1)
    consumer = dispatch()
    (leased,) = consumer.lease((), 10).messages
    consumer.settle_held([order(leased.tag)])
    assert len(consumer.lease((), 10).messages) == 1


@pytest.mark.parametrize(
    ("release", "attempts"),
    [(Release(0, redelivered=True), 0), (Release(0, counted=True), 1), (Release(0), 1)],
    ids=["the worker ends", "its process died", "it was never begun"],
)
def test_what_the_end_of_the_worker_cuts_short_counts_no_attempt(
    writer: Writer, release: Release, attempts: int
) -> None:
    """All else does, as do deaths from before."""
    earlier = os.path.basename(writer.write({}, at=1))
    path = os.path.basename(writer.write({}, at=1))
    directory = SpoolDirectory(writer.path)
    for name in (earlier, path):
        os.setxattr(f"{writer.path}/{name}", ATTRIBUTE, b"0")
    os.setxattr(f"{writer.path}/{earlier}", ATTRIBUTE, b"1")
    until(lambda: time.time() > os.stat(f"{writer.path}/{earlier}").st_ctime + 2 * COARSE)
    lane = JobLane(directory, job_messages(directory.path, None, results=False))
    consumer = JobDispatch(lambda queues: [lane])
    consumer.register("spooler", (), 1)
    leased = consumer.lease((), 10).messages
    os.setxattr(f"{writer.path}/{path}", ATTRIBUTE, b"1")  # as who runs it does
    consumer.settle_held([release._replace(tag=each.tag) for each in leased])
    assert os.getxattr(f"{writer.path}/{earlier}", ATTRIBUTE) == b"1"
    assert os.getxattr(f"{writer.path}/{path}", ATTRIBUTE) == b"%d" % attempts
    assert {name for each in consumer.lease((), 10).messages for name in given(each)} == {earlier, path}
    consumer.deregister()


def test_what_was_tried_in_vain_comes_again_after_a_while_that_grows(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    writer.write({}, at=1)
    consumer = dispatch()
    waits = []
    for _ in range(5):
        (leased,) = consumer.lease((), 10).messages
        consumer.settle_held([DeadLetter(leased.tag, "why")])
        due = consumer.lease((), 10).next_due
        assert due is not None
        waits.append(due - clock.now())
        clock.advance(waits[-1] + 0.0001)
    assert waits == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16], rel=0.01)


def test_behind_a_long_job_others_are_given_what_waits(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    consumer = dispatch(concurrency=1)
    consumer._lanes[0].learn(100, 0.001)
    for _ in range(5):
        writer.write({}, at=1)
    (first,) = consumer.lease((), 10).messages
    assert len(given(first)) == 5
    assert consumer.lease((), 10).messages == []
    assert consumer.rest() == pytest.approx(STALE_SECONDS)
    clock.advance(STALE_SECONDS + 0.01)
    again = consumer.lease((), 10).messages + consumer.lease((), 10).messages
    assert sorted(path for leased in again for path in given(leased)) == sorted(given(first))
    # The first message ends at last, and says nothing any more of the names.
    assert consumer.settle_held([Ack(first.tag)]) == set()


def test_who_waits_is_told_that_names_are_for_others_now(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    consumer = dispatch(concurrency=1)
    consumer._lanes[0].learn(100, 0.001)
    for _ in range(2):
        writer.write({}, at=1)
    assert len(consumer.lease((), 10).messages) == 1
    assert consumer.lease((), 10).messages == []
    consumer.wait(0.0)  # what the system has told of the writing
    assert consumer.lease((), 10).messages == []
    assert consumer.wait(0.0) is False
    clock.advance(STALE_SECONDS + 0.01)
    assert consumer.wait(0.0) is True
    assert consumer.wait(0.0) is False


def test_a_tag_is_settled_once_and_stored_rows_are_not_its_business(dispatch: Open, writer: Writer) -> None:
    writer.write({})
    consumer = dispatch()
    (leased,) = consumer.lease((), 10).messages
    generation = consumer._generation
    assert consumer.settle(generation, [Store(("id", "SUCCESS", b"", None))]) == set()
    assert consumer.settle(generation - 1, [Ack(leased.tag)]) == {leased.tag}
    assert consumer.settle(generation, [Ack(leased.tag)]) == set()
    assert consumer.settle(generation, [Ack(leased.tag)]) == {leased.tag}


def test_offered_again_what_is_held_comes_with_its_tag(dispatch: Open, writer: Writer) -> None:
    writer.write({})
    consumer = dispatch()
    (leased,) = consumer.lease((), 10).messages
    consumer.offer_again()
    assert consumer.lease((), 10).messages == [leased]
    assert consumer.lease((), 10).messages == []


def test_who_is_not_registered_takes_nothing(dispatch: Open) -> None:
    consumer = dispatch()
    consumer.deregister()
    consumer.deregister()
    for ask in (lambda: consumer.lease((), 1), consumer.extend):
        with pytest.raises(LeaseLost):
            ask()


def test_news_is_told_once(dispatch: Open, writer: Writer) -> None:
    consumer = dispatch()
    assert consumer.lease((), 10).messages == []
    assert consumer.wait(0.0) is False
    writer.write({})
    assert consumer.wait(10.0) is True
    assert consumer.wait(0.0) is False, "who has no room must not spin"
    assert len(consumer.lease((), 10).messages) == 1


def test_names_that_are_no_ids(dispatch: Open, writer: Writer) -> None:
    odd = b"uwsgi_spoolfile_on_\xff\n'\"\\"
    (Path(os.fsdecode(os.fsencode(writer.path) + b"/" + odd))).write_bytes(b"\x11\0\0\0")
    consumer = dispatch()
    (leased,) = consumer.lease((), 10).messages
    assert os.fsencode(given(leased)[0]) == odd
    headers = json.loads(leased.headers)
    assert headers["id"] == job_id(os.fsdecode(odd))
    assert headers["id"].isprintable()


def test_a_signal_is_a_message_without_a_file() -> None:
    leased = signal_message(7, 17, "/spool")
    assert json.loads(leased.body)[0] == [17]
    assert json.loads(leased.headers)["ignore_result"] is True


@pytest.fixture
def raising(writer: Writer, clock: FakeClock) -> Iterator[JobDispatch]:
    """One whose signal 7 is raised every five seconds."""
    table = SignalTable()
    table.register(7, "spooler", print)
    table.add_timer(7, 5)
    directory = SpoolDirectory(writer.path, clock=clock)
    lane = JobLane(directory, job_messages(directory.path, 30.0, results=False))
    consumer = JobDispatch(lambda queues: [lane], clock, SignalSource([writer.path], table))
    consumer.register("spooler", (), 2)
    consumer.lease((), 10)  # the timer begins
    yield consumer
    consumer.deregister()


def signals_of(leased: list[Leased]) -> list[int]:
    return [json.loads(each.body)[0][0] for each in leased]


def test_a_signal_that_has_not_begun_is_given_out_again(raising: JobDispatch, clock: FakeClock) -> None:
    """No file stands for it: what the worker gives back because its processes are busy comes from here."""
    clock.advance(5)
    assert raising.has_news()
    (leased,) = raising.lease((), 10).messages
    assert raising.settle_held([Release(leased.tag)]) == set()
    assert not raising.has_news(), "who has no room for it is not told again and again"
    assert raising.lease((), 0).messages == []
    (again,) = raising.lease((), 10).messages
    assert signals_of([leased, again]) == [7, 7]
    assert again.tag != leased.tag
    raising.settle_held([Ack(again.tag)])
    assert raising.lease((), 10).messages == []


@pytest.mark.parametrize(
    "end",
    [
        lambda tag: Release(tag, redelivered=True),
        lambda tag: Release(tag, counted=True),
        lambda tag: DeadLetter(tag, "too many deaths"),
    ],
)
def test_a_signal_whose_handler_has_begun_is_not(
    raising: JobDispatch, clock: FakeClock, end: Callable[[int], Ack | Release | DeadLetter]
) -> None:
    clock.advance(5)
    (leased,) = raising.lease((), 10).messages
    raising.settle_held([end(leased.tag)])
    assert raising.lease((), 10).messages == []


def test_a_signal_waits_for_room_and_keeps_its_place(raising: JobDispatch, clock: FakeClock) -> None:
    for _ in range(3):
        clock.advance(5)
        raising.has_news()
    assert raising.lease((), 0).messages == []
    first = raising.lease((), 2).messages
    assert signals_of(first) == [7, 7]
    raising.settle_held([Release(first[0].tag), Ack(first[1].tag)])
    assert signals_of(raising.lease((), 10).messages) == [7, 7]
