"""A RabbitMQ alarm, during which it accepts no messages, and a process that dies meanwhile."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.brokers import RemoteSite
from tests.acceptance.ledger import STARTED
from tests.acceptance.private_servers import serving
from tests.acceptance.processes import kill

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(180)]


def test_work_continues_if_a_requeued_task_cannot_be_sent(tmp_path: Path) -> None:
    with serving("rabbitmq") as server, RemoteSite(tmp_path, server.url, server.url) as site:
        worker = site.start("-c", "2")
        dying = site.send("until_file", str(tmp_path / "go"))
        site.started(dying)
        ids = site.send_many("work", [(number, 0.01) for number in range(300)])
        server.do("set_vm_memory_high_watermark", "absolute", "1MB")
        (record,) = site.records(dying, STARTED)
        kill(record.pid, signal.SIGKILL)
        # All of them end during the alarm; there was a bug that blocked all acks meanwhile.
        site.until(lambda: "accepts no messages" in worker.log, "the alarm to be noticed")
        site.ended(*ids)
        assert len(site.records(dying, STARTED)) == 1, "what died cannot come back yet"
        server.do("set_vm_memory_high_watermark", "absolute", "1GB")
        (tmp_path / "go").touch()
        site.drained(60.0)
        runs = Counter(each.id for each in site.records(kind=STARTED))
        assert runs.pop(dying) == 2
        assert set(runs.values()) == {1}
        assert worker.alive


def test_worker_started_during_an_alarm_takes_tasks(tmp_path: Path) -> None:
    with serving("rabbitmq") as server, RemoteSite(tmp_path, server.url, server.url) as site:
        ids = site.send_many("work", [(number, 0.0) for number in range(20)])
        server.do("set_vm_memory_high_watermark", "absolute", "1MB")
        worker = site.start("-c", "2")
        site.ended(*ids)
        assert worker.alive
