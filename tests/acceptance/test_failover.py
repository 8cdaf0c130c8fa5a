"""Two brokers: the first is killed or frozen, and producers and workers continue with the second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qworker import QWorker
from tests.acceptance.harness import Site, until
from tests.acceptance.private_servers import Redis

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

RECOVERY = {"kill": 10.0, "freeze": 25.0}
"""Seconds from the loss of the first broker until the calls sent since then are done. A frozen one is only
considered lost after the response timeout of 10 s."""


class FailoverSite(Site):
    """A site on two servers; results are in a file."""

    def __init__(self, path: Path, first: Redis, second: Redis) -> None:
        self.first, self.second = first, second
        self.results = f"sqlite:///{path / 'results.db'}"
        super().__init__(path, broker=f"{first.url};{second.url}", result_backend=self.results)

    def done(self, ids: list[str]) -> bool:
        return all(self.client.AsyncResult(id).ready() for id in ids)

    def left(self, server: Redis) -> int:
        with closing(QWorker("looker", broker=server.url, set_as_current=False)) as looker:
            return sum(queue.ready + queue.leased for queue in looker.broker.admin.queues())


@pytest.fixture
def two(tmp_path: Path) -> Iterator[FailoverSite]:
    with (
        closing(Redis()) as first,
        closing(Redis()) as second,
        closing(FailoverSite(tmp_path, first, second)) as site,
    ):
        yield site


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_work_continues_on_the_second_broker(two: FailoverSite, fault: str) -> None:
    worker = two.start("-c", "2")
    before = [two.send("work", number, 0.01) for number in range(20)]
    until(lambda: two.done(before), "what the first server had", worker)
    getattr(two.first, fault)()
    lost = time.monotonic()
    after = [two.send("work", number, 0.01) for number in range(20)]
    until(lambda: two.done(after), "what the second server has", worker)
    assert time.monotonic() - lost < RECOVERY[fault], worker.log
    assert worker.alive
    assert "working with" in worker.log
    assert "Traceback" not in worker.log
    until(lambda: two.left(two.second) == 0, "the last acks", worker)
    assert {len(two.started(id)) for id in before + after} == {1}
    worker.stop()


def test_messages_of_the_lost_broker_run_after_its_return(two: FailoverSite) -> None:
    """Tasks that were running when it died were not acked there: they run again, and nothing is lost."""
    worker = two.start("-c", "1")
    go = two.path / "go"
    running = two.send("until_file", str(go))
    two.started(running)
    waiting = [two.send("work", number, 0.01) for number in range(5)]
    two.first.kill()
    later = [two.send("work", number, 0.01) for number in range(5)]
    until(lambda: "working with" in worker.log, "the change of server", worker)
    go.touch()
    until(lambda: two.done([running, *later]), "what runs, and what was sent since", worker)
    worker.stop()
    assert not two.done(waiting)
    two.first.start()
    again = two.start("-c", "1")  # the first broker answers again, so it is used
    until(lambda: two.done(waiting), "what the first server had kept", again)
    until(lambda: two.left(two.first) == 0, "the last acks", again)
    assert two.left(two.second) == 0
    two.started(running, times=2)
    assert {len(two.started(id)) for id in waiting + later} == {1}
    again.stop()
