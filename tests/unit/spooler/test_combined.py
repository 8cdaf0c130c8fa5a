"""SpoolCombined: the app's own broker and spool directories, as one broker for a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from qworker.errors import LeaseLost
from qworker.spooler.files.writing import Writer
from qworker.spooler.running.combined import SpoolCombined, SpoolDepths, SpoolInstead
from qworker.spooler.running.dispatch import JobDispatch, JobLane
from qworker.spooler.running.job_messages import job_messages
from qworker.spooler.watching.directory import SpoolDirectory
from qworker.testing import FakeClock
from qworker.testing.store import MemoryStore
from qworker.transports.lease import Ack, Release
from tests.support.messages import message

ROW = ("job", "SUCCESS", b"-2", None)


@pytest.fixture
def own(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock, lease_seconds=15.0)


@pytest.fixture
def jobs(writer: Writer, clock: FakeClock) -> JobDispatch:
    def lanes(queues: object) -> list[JobLane]:
        directory = SpoolDirectory(writer.path, clock=clock)
        return [JobLane(directory, job_messages(directory.path, None, results=True), 1)]

    return JobDispatch(lanes, clock)


@pytest.fixture
def both(own: MemoryStore, jobs: JobDispatch, writer: Writer, clock: FakeClock) -> Iterator[SpoolCombined]:
    broker = SpoolCombined(own, jobs, SpoolDepths(own.admin, [writer.path], clock))
    yield broker
    broker.close()


def test_jobs_and_messages_have_tags_of_different_sign(
    both: SpoolCombined, own: MemoryStore, writer: Writer
) -> None:
    generation = both.consumer.register("w", ["q"], 2)
    both.sender.push([message("a")])
    path = writer.write({})
    messages = [leased for _ in range(2) for leased in both.consumer.lease(["q"], 10).messages]
    assert sorted(leased.tag > 0 for leased in messages) == [False, True]
    os.unlink(path)
    assert both.consumer.settle(generation, [Ack(leased.tag) for leased in messages]) == set()
    assert own.messages == 0
    assert both.consumer.settle(generation, [Ack(-1), Ack(1)]) == {-1, 1}


def test_jobs_and_messages_are_leased_alternately(both: SpoolCombined, writer: Writer) -> None:
    both.consumer.register("w", ["q"], 2)
    both.sender.push([message(str(number)) for number in range(100)])
    for _ in range(400):
        writer.write({})
    tags = [leased.tag for _ in range(10) for leased in both.consumer.lease(["q"], 4).messages]
    assert sum(tag > 0 for tag in tags) >= 10
    assert sum(tag < 0 for tag in tags) >= 10


def test_result_of_a_job_is_stored_with_the_broker(
    both: SpoolCombined, own: MemoryStore, writer: Writer
) -> None:
    generation = both.consumer.register("w", ["q"], 2)
    writer.write({})
    (leased,) = both.consumer.lease(["q"], 10).messages
    both.consumer.settle(generation, [Ack(leased.tag, ROW)])
    assert own.results == {"job": ROW}


def test_settlements_fail_while_the_broker_is_unavailable(
    both: SpoolCombined, own: MemoryStore, writer: Writer
) -> None:
    generation = both.consumer.register("w", ["q"], 2)
    writer.write({})
    (leased,) = both.consumer.lease(["q"], 10).messages
    own.away = True
    with pytest.raises(Exception, match="away"):
        both.consumer.settle(generation, [Ack(leased.tag, ROW)])
    own.away = False
    assert both.consumer.settle(generation, [Ack(leased.tag, ROW)]) == set()


def test_jobs_survive_a_lost_lease(
    both: SpoolCombined, own: MemoryStore, writer: Writer, clock: FakeClock
) -> None:
    both.consumer.register("w", ["q"], 2)
    writer.write({})
    both.sender.push([message("a")])
    messages = [leased for _ in range(2) for leased in both.consumer.lease(["q"], 10).messages]
    clock.advance(20)
    own.another().reclaim()
    with pytest.raises(LeaseLost):
        both.consumer.extend()
    again = both.consumer.register("w", ["q"], 2)
    offered = [leased for _ in range(2) for leased in both.consumer.lease(["q"], 10).messages]
    assert {leased.tag for leased in offered} == {leased.tag for leased in messages}
    assert both.consumer.settle(again, [Release(leased.tag) for leased in offered]) == set()


def test_new_file_ends_a_wait_for_the_broker(both: SpoolCombined, writer: Writer) -> None:
    both.consumer.register("w", ["q"], 2)
    both.consumer.lease(["q"], 10)
    assert both.consumer.wait(0.01) is False
    writer.write({})
    assert both.consumer.wait(30) is True
    assert len(both.consumer.lease(["q"], 10).messages) == 1


def test_spool_instead_leases_nothing_from_the_broker(
    own: MemoryStore, jobs: JobDispatch, writer: Writer, clock: FakeClock
) -> None:
    broker = SpoolInstead(own, jobs, SpoolDepths(own.admin, [writer.path], clock))
    broker.consumer.register("w", ["q"], 2)
    broker.sender.push([message("a", queue="q")])
    writer.write({})
    assert len(broker.consumer.lease(["q"], 10).messages) == 1
    assert own.messages == 1
    assert "results" in broker.lacks
    broker.close()
    broker.close()


def test_depths_include_jobs(both: SpoolCombined, writer: Writer, clock: FakeClock) -> None:
    both.sender.push([message("a")])
    writer.write({})
    writer.write({}, at=clock.now() + 100)
    own, spool = both.admin.depths(["q"])
    assert (own.queue, own.ready) == ("q", 1)
    assert (spool.queue, spool.ready, spool.delayed, spool.leased, spool.dead) == (
        f"spool:{writer.path}", 1, 1, 0, 0,
    )  # fmt: skip


def test_rescan_finds_files_without_a_notification(jobs: JobDispatch, writer: Writer) -> None:
    jobs.register("w", (), 1)
    assert jobs.lease((), 10).messages == []
    writer.write({})
    jobs._lanes[0].directory._watcher.read()  # the notification is lost
    assert jobs.wait(0.0) is False
    jobs.rescan()
    assert jobs.wait(10.0) is True
    assert len(jobs.lease((), 10).messages) == 1
    jobs.deregister()
