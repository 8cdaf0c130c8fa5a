"""``spool://`` as the broker of an app, whose workers are killed: what they held is back at once, for others
and for those who come after them."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qworker.spooler.broker.spool_broker import SpoolBroker
from tests.acceptance.harness import Site
from tests.acceptance.ledger import ENDED, STARTED
from tests.acceptance.processes import gone
from tests.acceptance.spool_site import JOBS

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


@pytest.fixture
def messages(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, broker=f"spool://{tmp_path}/spool", worker_lease_seconds=3600)
    with closing(site):
        yield site


def left(site: Site) -> int:
    """How many messages are there, whoever holds them."""
    with closing(SpoolBroker(f"{site.path}/spool")) as broker:
        return sum(info.ready + info.delayed + info.leased for info in broker.admin.queues())


def ended(site: Site) -> Counter[str]:
    return Counter(record.id for record in site.records(kind=ENDED))


def test_what_a_killed_worker_held_is_back_at_once(messages: Site) -> None:
    """For a worker that is there already, and is told by nobody but the kernel. Each runs again that ran, and
    no other."""
    go = messages.path / "go"
    first = messages.start(app=JOBS)
    held = [messages.send("until_file", str(go)) for _ in range(2)]
    messages.started(*held)
    second = messages.start(name="two", app=JOBS)
    rest = [messages.send("work", number) for number in range(50)]
    messages.until(lambda: set(ended(messages)) == set(rest), "the other one to do the rest")
    first.kill()
    again = messages.started(*held, times=2)
    assert {record.pid for record in again} <= set(second.pool())
    go.touch()
    messages.until(lambda: left(messages) == 0, "the queue to be empty")
    second.stop()
    assert ended(messages) == dict.fromkeys([*held, *rest], 1)
    assert Counter(record.id for record in messages.records(kind=STARTED)) == (
        dict.fromkeys(rest, 1) | dict.fromkeys(held, 2)
    )


def test_who_starts_after_a_killed_worker_has_all_that_it_held(messages: Site) -> None:
    go = messages.path / "go"
    first = messages.start(app=JOBS)
    held = [messages.send("until_file", str(go)) for _ in range(2)]
    messages.started(*held)
    waiting = [messages.send("work", number) for number in range(50)]  # some of which it has claimed
    later = messages.send("work", 1, countdown=1.5)
    first.kill()
    second = messages.start(name="two", app=JOBS)
    messages.started(*held, times=2)
    go.touch()
    messages.until(lambda: left(messages) == 0, "the queue to be empty")
    second.stop()
    assert ended(messages) == dict.fromkeys([*held, *waiting, later], 1)
    (record,) = messages.records(later, STARTED)
    assert record.wall >= messages.due[later] - 0.01


def test_what_a_child_of_a_task_lives_on_holds_nothing(messages: Site) -> None:
    """A forked process does not keep the locks of its parents."""
    go = messages.path / "go"
    first = messages.start(app=JOBS)
    held = messages.send("leave_a_child", str(go))
    messages.started(held)
    pool = first.pool()
    first.kill()
    for pid in pool:
        messages.until(lambda pid=pid: gone(pid), "the children to go with their worker")
    second = messages.start(name="two", app=JOBS)
    messages.started(held, times=2)
    go.touch()
    messages.until(lambda: left(messages) == 0, "the queue to be empty")
    second.stop()
    assert ended(messages) == {held: 1}


def test_a_fork_of_the_holder_neither_holds_nor_keeps_its_messages(messages: Site) -> None:
    """In the process itself that holds them."""
    ids = {messages.send("work", number) for number in range(3)}
    read, write = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            broker = SpoolBroker(f"{messages.path}/spool")
            broker.consumer.register("holder", ["celery"], 1)
            assert len(broker.consumer.lease(["celery"], 10).messages) == 3
            child = os.fork()
            if child == 0:
                signal.pause()
            os.write(write, b"%d" % child)
            signal.pause()
        finally:
            os._exit(1)
    child = int(os.read(read, 20))
    try:
        with closing(SpoolBroker(f"{messages.path}/spool")) as broker:
            broker.consumer.register("other", ["celery"], 1)
            assert broker.consumer.lease(["celery"], 10).messages == []
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)
            found: set[str] = set()

            def all_back() -> bool:
                broker.consumer.wait(0.1)
                leased = broker.consumer.lease(["celery"], 10).messages
                found.update(id for id in ids for message in leased if id in message.headers)
                return found == ids

            messages.until(all_back, "what the dead process held")
            broker.consumer.deregister()
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(read)
        os.close(write)


def test_a_dead_child_counts_a_delivery_and_nothing_is_lost(messages: Site) -> None:
    go = messages.path / "go"
    worker = messages.start(app=JOBS)
    held = [messages.send("until_file", str(go)) for _ in range(2)]
    messages.started(*held)
    os.kill(worker.pool()[0], signal.SIGKILL)
    messages.until(lambda: len(messages.records(kind=STARTED)) == 3, "one of them to start again")
    go.touch()
    messages.until(lambda: left(messages) == 0, "the queue to be empty")
    worker.stop()
    assert ended(messages) == dict.fromkeys(held, 1)
