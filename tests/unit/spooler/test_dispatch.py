"""JobDispatch: which files are put into one message, and what follows when it is settled."""

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


def names_in(leased: Leased) -> list[str]:
    """The file names in a message."""
    (_, paths), _, _ = json.loads(leased.body)
    return [str(path) for path in paths]


def test_message_names_its_files(dispatch: Open, writer: Writer) -> None:
    name = os.path.basename(writer.write({}))
    consumer = dispatch()
    (leased,) = consumer.lease((), 10).messages
    headers = json.loads(leased.headers)
    assert json.loads(leased.body)[0] == [writer.path, [name]]
    assert (headers["task"], headers["id"], headers["timelimit"]) == (RUN, name, [30.0, None])
    assert headers["ignore_result"] is True
    assert consumer.lease((), 10).messages == []


def test_delayed_job_is_dispatched_when_due(dispatch: Open, writer: Writer, clock: FakeClock) -> None:
    writer.write({}, at=clock.now() + 100)
    consumer = dispatch()
    claim = consumer.lease((), 10, 5, 7.0)
    assert (claim.messages, claim.next_due) == ([], clock.now() + 107), "the listener subtracts the lookahead"
    assert consumer.lease((), 10).next_due == clock.now() + 100
    clock.advance(100)
    assert len(consumer.lease((), 10).messages) == 1


def test_batch_size_grows_for_short_jobs(dispatch: Open, writer: Writer, clock: FakeClock) -> None:
    for _ in range(300):
        writer.write({})
    consumer = dispatch()
    first = consumer.lease((), 2).messages
    assert [len(names_in(leased)) for leased in first] == [FIRST, FIRST]
    for path in (path for leased in first for path in names_in(leased)):
        (Path(writer.path) / path).unlink()
    clock.advance(0.01)
    consumer.settle_held([Ack(leased.tag) for leased in first])
    # As many as two processes can run in ten milliseconds each.
    assert [len(names_in(leased)) for leased in consumer.lease((), 2).messages] == [2 * FIRST, 2 * FIRST]


def test_acked_files_that_still_exist_are_dispatched_again(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    """A revoked message is acked like one that was run."""
    for _ in range(4):
        writer.write({})
    consumer = dispatch(concurrency=1)
    (leased,) = consumer.lease((), 1).messages
    paths = names_in(leased)
    (Path(writer.path) / paths[0]).unlink()
    consumer.settle_held([Ack(leased.tag)])
    clock.advance(1.0)
    assert sorted(names_in(consumer.lease((), 1).messages[0])) == sorted(paths[1:])


def test_requeued_files_that_exist_are_dispatched_again(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    for _ in range(4):
        writer.write({})
    consumer = dispatch(concurrency=1)
    (leased,) = consumer.lease((), 1).messages
    paths = names_in(leased)
    (Path(writer.path) / paths[3]).unlink()
    consumer.settle_held([Release(leased.tag, clock.now() + 60, requeued=True, redelivered=True)])
    assert consumer.lease((), 1).messages == [], "they have just been tried without success"
    clock.advance(1.0)
    assert sorted(names_in(consumer.lease((), 1).messages[0])) == sorted(paths[:3])


def test_few_files_are_divided_among_the_processes(dispatch: Open, writer: Writer, clock: FakeClock) -> None:
    consumer = dispatch(concurrency=4)
    consumer._lanes[0].learn(100, 0.001)
    for _ in range(8):
        writer.write({})
    assert [len(names_in(leased)) for leased in consumer.lease((), 100).messages] == [2, 2, 2, 2]


def test_many_files_are_dispatched_in_parts(dispatch: Open, writer: Writer) -> None:
    consumer = dispatch(concurrency=2, most=1)
    for _ in range(AT_ONCE * 2 + 3):
        writer.write({})
    assert len(consumer.lease((), 100).messages) == AT_ONCE * 2
    assert consumer.rest() == 0.0
    assert consumer.wait(5.0)
    assert not consumer._more
    assert len(consumer.lease((), 100).messages) == 3
    assert not consumer._more


def test_number_of_files_per_lease_is_limited(dispatch: Open, writer: Writer) -> None:
    consumer = dispatch(concurrency=2)
    consumer._lanes[0].learn(1000, 0.001)
    for _ in range(NAMES_AT_ONCE * 2 + 3):
        writer.write({})
    first = consumer.lease((), 100).messages
    assert sum(len(names_in(leased)) for leased in first) == NAMES_AT_ONCE * 2
    assert consumer.wait(5.0), "the remaining files are reported at once"
    assert sum(len(names_in(leased)) for leased in consumer.lease((), 100).messages) == 3


def test_changes_of_running_files_do_not_wake_the_listener(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    path = writer.write({})
    writer.write({}, at=clock.now() + 1000.0)  # while a file is delayed, changes of attributes are notified
    consumer = dispatch()
    assert len(consumer.lease((), 10).messages) == 1
    assert consumer.lease((), 10).messages == []
    consumer.wait(0.0)  # consume the notifications of writing
    os.setxattr(path, ATTRIBUTE, b"1")
    assert consumer.files() != []
    assert not consumer.wait(5.0)
    assert (consumer.files(), consumer.rest()) == ([], pytest.approx(POLL_COOLDOWN)), (
        "the directory is not watched during the cooldown"
    )
    writer.write({})
    clock.advance(POLL_COOLDOWN)
    assert consumer.wait(5.0), "new files are noticed after the cooldown"


def test_attribute_changes_are_not_watched_without_delayed_files(dispatch: Open, writer: Writer) -> None:
    path = writer.write({})
    consumer = dispatch()
    assert len(consumer.lease((), 10).messages) == 1
    assert consumer.lease((), 10).messages == []
    consumer.wait(0.0)  # consume the notification of writing
    os.setxattr(path, ATTRIBUTE, b"1")
    with selectors.DefaultSelector() as selector:
        selector.register(consumer.files()[0], selectors.EVENT_READ)
        assert selector.select(0) == []


def test_changed_due_time_of_a_delayed_file_is_noticed(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    path = writer.write({})
    consumer = dispatch()
    (leased,) = consumer.lease((), 10).messages
    assert consumer.lease((), 10).messages == []
    os.utime(path, (5, clock.now() + 1000.0))  # as when the job is given back
    consumer.settle_held([Ack(leased.tag)])
    while consumer.wait(0.0):
        assert consumer.lease((), 10).messages == []
    clock.advance(POLL_COOLDOWN)
    os.utime(path, (5, clock.now()))
    assert consumer.wait(5.0)
    assert len(consumer.lease((), 10).messages) == 1


def test_full_worker_is_not_woken_for_more_files(dispatch: Open, writer: Writer) -> None:
    consumer = dispatch(concurrency=2, most=1)
    for _ in range(AT_ONCE * 2 + 3):
        writer.write({})
    consumer.lease((), AT_ONCE * 2)
    consumer.wait(0.0)  # consume the notifications of writing
    assert consumer.rest() > 0.0


def test_each_file_gets_its_own_message_with_most_one(dispatch: Open, writer: Writer) -> None:
    consumer = dispatch(most=1)
    consumer._lanes[0].learn(100, 0.001)
    for _ in range(5):
        writer.write({})
    assert [len(names_in(leased)) for leased in consumer.lease((), 100).messages] == [1] * 5


def test_removed_files_are_forgotten_and_delayed_ones_return(
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
    assert names_in(again) == [os.path.basename(back)]


@pytest.mark.parametrize("order", [Release, lambda tag: Release(tag, counted=True)])
def test_released_job_is_dispatched_again_at_once(
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
    ids=["the worker ends", "its process died", "it was never started"],
)
def test_job_cut_short_by_the_end_of_the_worker_counts_no_attempt(
    writer: Writer, release: Release, attempts: int
) -> None:
    """All other ends count, and so do earlier deaths."""
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
    os.setxattr(f"{writer.path}/{path}", ATTRIBUTE, b"1")  # as the running process does
    consumer.settle_held([release._replace(tag=each.tag) for each in leased])
    assert os.getxattr(f"{writer.path}/{earlier}", ATTRIBUTE) == b"1"
    assert os.getxattr(f"{writer.path}/{path}", ATTRIBUTE) == b"%d" % attempts
    assert {name for each in consumer.lease((), 10).messages for name in names_in(each)} == {earlier, path}
    consumer.deregister()


def test_failed_dispatch_is_retried_with_growing_delays(
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


def test_files_waiting_behind_a_long_job_are_dispatched_again(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    consumer = dispatch(concurrency=1)
    consumer._lanes[0].learn(100, 0.001)
    for _ in range(5):
        writer.write({}, at=1)
    (first,) = consumer.lease((), 10).messages
    assert len(names_in(first)) == 5
    assert consumer.lease((), 10).messages == []
    assert consumer.rest() == pytest.approx(STALE_SECONDS)
    clock.advance(STALE_SECONDS + 0.01)
    again = consumer.lease((), 10).messages + consumer.lease((), 10).messages
    assert sorted(path for leased in again for path in names_in(leased)) == sorted(names_in(first))
    # When the first message finally ends, it has no effect on the files.
    assert consumer.settle_held([Ack(first.tag)]) == set()


def test_wait_ends_once_when_waiting_files_are_redispatched(
    dispatch: Open, writer: Writer, clock: FakeClock
) -> None:
    consumer = dispatch(concurrency=1)
    consumer._lanes[0].learn(100, 0.001)
    for _ in range(2):
        writer.write({}, at=1)
    assert len(consumer.lease((), 10).messages) == 1
    assert consumer.lease((), 10).messages == []
    consumer.wait(0.0)  # consume the notifications of writing
    assert consumer.lease((), 10).messages == []
    assert consumer.wait(0.0) is False
    clock.advance(STALE_SECONDS + 0.01)
    assert consumer.wait(0.0) is True
    assert consumer.wait(0.0) is False


def test_tag_is_settled_only_once(dispatch: Open, writer: Writer) -> None:
    writer.write({})
    consumer = dispatch()
    (leased,) = consumer.lease((), 10).messages
    generation = consumer._generation
    assert consumer.settle(generation, [Store(("id", "SUCCESS", b"", None))]) == set()
    assert consumer.settle(generation - 1, [Ack(leased.tag)]) == {leased.tag}
    assert consumer.settle(generation, [Ack(leased.tag)]) == set()
    assert consumer.settle(generation, [Ack(leased.tag)]) == {leased.tag}


def test_held_job_is_offered_again_with_its_tag(dispatch: Open, writer: Writer) -> None:
    writer.write({})
    consumer = dispatch()
    (leased,) = consumer.lease((), 10).messages
    consumer.offer_again()
    assert consumer.lease((), 10).messages == [leased]
    assert consumer.lease((), 10).messages == []


def test_deregistered_dispatch_raises_lease_lost(dispatch: Open) -> None:
    consumer = dispatch()
    consumer.deregister()
    consumer.deregister()
    for ask in (lambda: consumer.lease((), 1), consumer.extend):
        with pytest.raises(LeaseLost):
            ask()


def test_wait_reports_new_files_once(dispatch: Open, writer: Writer) -> None:
    consumer = dispatch()
    assert consumer.lease((), 10).messages == []
    assert consumer.wait(0.0) is False
    writer.write({})
    assert consumer.wait(10.0) is True
    assert consumer.wait(0.0) is False, "a full worker must not spin"
    assert len(consumer.lease((), 10).messages) == 1


def test_unprintable_file_names_get_an_id(dispatch: Open, writer: Writer) -> None:
    odd = b"uwsgi_spoolfile_on_\xff\n'\"\\"
    (Path(os.fsdecode(os.fsencode(writer.path) + b"/" + odd))).write_bytes(b"\x11\0\0\0")
    consumer = dispatch()
    (leased,) = consumer.lease((), 10).messages
    assert os.fsencode(names_in(leased)[0]) == odd
    headers = json.loads(leased.headers)
    assert headers["id"] == job_id(os.fsdecode(odd))
    assert headers["id"].isprintable()


def test_signal_message_has_no_file() -> None:
    leased = signal_message(7, 17, "/spool")
    assert json.loads(leased.body)[0] == [17]
    assert json.loads(leased.headers)["ignore_result"] is True


@pytest.fixture
def dispatch_with_timer(writer: Writer, clock: FakeClock) -> Iterator[JobDispatch]:
    """A dispatch with a timer that raises signal 7 every five seconds."""
    table = SignalTable()
    table.register(7, "spooler", print)
    table.add_timer(7, 5)
    directory = SpoolDirectory(writer.path, clock=clock)
    lane = JobLane(directory, job_messages(directory.path, 30.0, results=False))
    consumer = JobDispatch(lambda queues: [lane], clock, SignalSource([writer.path], table))
    consumer.register("spooler", (), 2)
    consumer.lease((), 10)  # the timer starts
    yield consumer
    consumer.deregister()


def signals_of(leased: list[Leased]) -> list[int]:
    return [json.loads(each.body)[0][0] for each in leased]


def test_unstarted_signal_is_dispatched_again(dispatch_with_timer: JobDispatch, clock: FakeClock) -> None:
    """It has no file, so the dispatch must redeliver it if the worker returns it unstarted."""
    clock.advance(5)
    assert dispatch_with_timer.has_news()
    (leased,) = dispatch_with_timer.lease((), 10).messages
    assert dispatch_with_timer.settle_held([Release(leased.tag)]) == set()
    assert not dispatch_with_timer.has_news(), "a full worker is not woken repeatedly"
    assert dispatch_with_timer.lease((), 0).messages == []
    (again,) = dispatch_with_timer.lease((), 10).messages
    assert signals_of([leased, again]) == [7, 7]
    assert again.tag != leased.tag
    dispatch_with_timer.settle_held([Ack(again.tag)])
    assert dispatch_with_timer.lease((), 10).messages == []


@pytest.mark.parametrize(
    "end",
    [
        lambda tag: Release(tag, redelivered=True),
        lambda tag: Release(tag, counted=True),
        lambda tag: DeadLetter(tag, "too many deaths"),
    ],
)
def test_started_signal_is_not_dispatched_again(
    dispatch_with_timer: JobDispatch, clock: FakeClock, end: Callable[[int], Ack | Release | DeadLetter]
) -> None:
    clock.advance(5)
    (leased,) = dispatch_with_timer.lease((), 10).messages
    dispatch_with_timer.settle_held([end(leased.tag)])
    assert dispatch_with_timer.lease((), 10).messages == []


def test_signals_wait_for_room_in_order(dispatch_with_timer: JobDispatch, clock: FakeClock) -> None:
    for _ in range(3):
        clock.advance(5)
        dispatch_with_timer.has_news()
    assert dispatch_with_timer.lease((), 0).messages == []
    first = dispatch_with_timer.lease((), 2).messages
    assert signals_of(first) == [7, 7]
    dispatch_with_timer.settle_held([Release(first[0].tag), Ack(first[1].tag)])
    assert signals_of(dispatch_with_timer.lease((), 10).messages) == [7, 7]
