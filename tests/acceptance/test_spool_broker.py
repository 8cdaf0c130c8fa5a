"""``spool://`` as the broker of an app, whose workers are killed: their messages are available at once,
for other and for new workers."""

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
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, broker=f"spool://{tmp_path}/spool", worker_lease_seconds=3600)
    with closing(site):
        yield site


def left(site: Site) -> int:
    """The number of messages, leased or not."""
    with closing(SpoolBroker(f"{site.path}/spool")) as broker:
        return sum(info.ready + info.delayed + info.leased for info in broker.admin.queues())


def ended(site: Site) -> Counter[str]:
    return Counter(record.id for record in site.records(kind=ENDED))


def test_messages_of_a_killed_worker_are_available_at_once(site: Site) -> None:
    """To a worker that is already running, notified by the kernel only. Running tasks run again, and no
    others."""
    go = site.path / "go"
    first = site.start(app=JOBS)
    held = [site.send("until_file", str(go)) for _ in range(2)]
    site.started(*held)
    second = site.start(name="two", app=JOBS)
    rest = [site.send("work", number) for number in range(50)]
    site.until(lambda: set(ended(site)) == set(rest), "the other one to do the rest")
    first.kill()
    again = site.started(*held, times=2)
    assert {record.pid for record in again} <= set(second.pool())
    go.touch()
    site.until(lambda: left(site) == 0, "the queue to be empty")
    second.stop()
    assert ended(site) == dict.fromkeys([*held, *rest], 1)
    assert Counter(record.id for record in site.records(kind=STARTED)) == (
        dict.fromkeys(rest, 1) | dict.fromkeys(held, 2)
    )


def test_new_worker_gets_all_messages_of_a_killed_one(site: Site) -> None:
    go = site.path / "go"
    first = site.start(app=JOBS)
    held = [site.send("until_file", str(go)) for _ in range(2)]
    site.started(*held)
    waiting = [site.send("work", number) for number in range(50)]  # it has claimed some of them
    later = site.send("work", 1, countdown=1.5)
    first.kill()
    second = site.start(name="two", app=JOBS)
    site.started(*held, times=2)
    go.touch()
    site.until(lambda: left(site) == 0, "the queue to be empty")
    second.stop()
    assert ended(site) == dict.fromkeys([*held, *waiting, later], 1)
    (record,) = site.records(later, STARTED)
    assert record.wall >= site.due[later] - 0.01


def test_process_left_by_a_task_keeps_no_locks(site: Site) -> None:
    """A forked process does not inherit the locks of its parents."""
    go = site.path / "go"
    first = site.start(app=JOBS)
    held = site.send("leave_a_child", str(go))
    site.started(held)
    pool = first.pool()
    first.kill()
    for pid in pool:
        site.until(lambda pid=pid: gone(pid), "the children to go with their worker")
    second = site.start(name="two", app=JOBS)
    site.started(held, times=2)
    go.touch()
    site.until(lambda: left(site) == 0, "the queue to be empty")
    second.stop()
    assert ended(site) == {held: 1}


def test_fork_of_a_consumer_does_not_keep_its_messages(site: Site) -> None:
    """Of the process that leased them."""
    ids = {site.send("work", number) for number in range(3)}
    read, write = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            broker = SpoolBroker(f"{site.path}/spool")
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
        with closing(SpoolBroker(f"{site.path}/spool")) as broker:
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

            site.until(all_back, "what the dead process held")
            broker.consumer.deregister()
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(read)
        os.close(write)


def test_dead_child_is_counted_and_loses_nothing(site: Site) -> None:
    go = site.path / "go"
    worker = site.start(app=JOBS)
    held = [site.send("until_file", str(go)) for _ in range(2)]
    site.started(*held)
    os.kill(worker.pool()[0], signal.SIGKILL)
    site.until(lambda: len(site.records(kind=STARTED)) == 3, "one of them to start again")
    go.touch()
    site.until(lambda: left(site) == 0, "the queue to be empty")
    worker.stop()
    assert ended(site) == dict.fromkeys(held, 1)
