"""The same tests for workers on the less common brokers: the demo's work, kill -9 of a worker, a child and
the server under load, ``qworker move``, and other commands.

MongoDB, Disque, IronMQ and SQS are stand-ins; NATS is a private real server. Behaviour of a single broker
is tested in test_mongodb.py, test_disque.py, test_ironmq.py, test_nats.py and test_sqs.py.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qworker.cli.demo import driver, tasks
from qworker.cli.demo.analysis import choose_files, write_samples
from tests.acceptance.brokers import Options, RemoteSite
from tests.acceptance.disque_servers import Disque
from tests.acceptance.invariants import check
from tests.acceptance.ironmq_process import IronProcess
from tests.acceptance.mongodb_process import Mongo
from tests.acceptance.nats_server import Nats
from tests.acceptance.processes import gone, kill
from tests.acceptance.sqs_server import REGION, Sqs
from tests.acceptance.together import killed_server_loses_nothing, repeated
from tests.contract.place_mongodb import database_url, mongo_client
from tests.support.ironmq_server import TOKEN

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(180)]

NAMED_MONGODB = os.environ.get("TEST_QWORKER_MONGODB_URL")
"""A real server, which is not killed."""
SECRETS = (TOKEN, "s3cr3t@", "secret@")
PATIENCE = 90.0
"""Seconds for the whole demo."""
BYTES_TO_READ = 1_500_000
"""Of the demo's modules: about sixty."""


def _lapse_at_once(server: Any) -> None:
    """IronMQ hides received messages for at least 30 s: the stand-in lets them expire. Not before the dead
    worker's poll has ended, which would get the messages again."""
    time.sleep(1.2)
    server.tell(expire=True)


@dataclass(frozen=True)
class Kind:
    """start: a new, empty server. product: its name in ``config check`` for missing features. settings:
    transport options. lapse: returns a dead worker's messages to the queue; otherwise that takes some
    seconds. lasting: a server whose data survives kill -9; None: no such server."""

    start: Callable[[], Any]
    product: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    lapse: Callable[[Any], None] = lambda server: None
    lasting: Callable[[], Any] | None = None


KINDS = {
    "mongodb": Kind(Mongo, lasting=lambda: Mongo(keeps=True)),
    "disque": Kind(Disque, "Disque", {"retry": 4, "wait_time_seconds": 5}, lasting=Disque),
    "ironmq": Kind(IronProcess, "IronMQ", {"wait_time_seconds": 1}, _lapse_at_once, lasting=IronProcess),
    "nats": Kind(Nats, "NATS JetStream", lasting=Nats),
    "sqs": Kind(
        Sqs,
        "Amazon SQS",
        {"region": REGION, "visibility_timeout": 6},
        lasting=lambda: Sqs(keeps=True),
    ),
}


def of(*kinds: str, quick: tuple[str, ...] = ()) -> Any:
    """Run the test on these brokers; by default only on those that are *quick*."""
    marks = {name: () if name in quick else (pytest.mark.more_brokers,) for name in kinds}
    params = [pytest.param(name, marks=marks[name], id=name) for name in kinds]
    return pytest.mark.parametrize("kind", params)


@contextmanager
def site_on(kind: str, url: str, path: Path) -> Iterator[RemoteSite]:
    """A site on the server at *url*. Its workers must not log secrets."""
    options, results = Options(KINDS[kind].settings), None
    if kind == "mongodb":
        url = results = database_url(url, path)
    with RemoteSite(
        path, url, url, results, worker_lease_seconds=3.0, broker_transport_options=options
    ) as site:
        yield site
        for worker in site.workers:
            assert not any(secret in worker.log for secret in SECRETS)


@pytest.fixture
def server(kind: str) -> Iterator[Any]:
    with closing(KINDS[kind].start()) as server:
        yield server


@pytest.fixture
def remote(kind: str, server: Any, tmp_path: Path) -> Iterator[RemoteSite]:
    if kind == "mongodb" and NAMED_MONGODB:
        with site_on(kind, NAMED_MONGODB, tmp_path) as site:
            yield site
        mongo_client(NAMED_MONGODB).drop_database(site.url.rpartition("/")[2].partition("?")[0])
    else:
        with site_on(kind, server.url, tmp_path) as site:
            yield site


@of(*KINDS, quick=("disque",))
def test_demo_tasks_end_as_expected(remote: RemoteSite) -> None:
    """What ``qworker start --demo`` publishes: async tasks, rate limits, retries, a scheduled task, a task
    that kills its process."""
    app = tasks.app
    app.conf.update(
        broker_url=remote.url,
        result_backend=remote.settings["result_backend"],
        broker_transport_options=remote.settings["broker_transport_options"],
    )
    worker = remote.start(app="qworker.cli.demo.tasks:app")
    try:
        files = [*write_samples(remote.path), *choose_files(BYTES_TO_READ)]
        due = time.time() + driver.APPOINTMENT_SECONDS
        published = driver.publish(files, remote.path, due)
        ids = {result.id for results in published.values() for result in results}
        metas: dict[str, Any] = {}
        deadline = time.monotonic() + PATIENCE
        while missing := ids - metas.keys():
            assert time.monotonic() < deadline, worker.log
            metas.update(app.backend.wait(missing, timeout=0.25))
    finally:
        app.close()
    parts = driver.parts_of(published, metas)
    assert driver.surprises(parts, PATIENCE) == []  # a stand-in may be slow
    remote.until(lambda: remote.waiting() == 0, "all to be acknowledged")
    worker.stop()
    assert remote.left() == []


@of(*KINDS, quick=("nats",))
def test_worker_killed_under_load_is_replaced(kind: str, remote: RemoteSite, server: Any) -> None:
    """Its children die with it, another worker gets all its messages, and only running tasks run again."""
    first = remote.start()
    go = remote.path / "go"
    long = [remote.send("until_file", str(go)) for _ in range(2)]
    remote.started(*long)
    remote.send_many("work", [(number, 0.002) for number in range(40)])
    for number in range(3):
        remote.send("work", number, countdown=1.5)
    first.kill()
    for pid in first.seen:
        remote.until(lambda pid=pid: gone(pid), "the children to go with their worker")
    second = remote.start(name="two")
    second.wait_pool()
    KINDS[kind].lapse(server)
    remote.started(*long, times=2)
    go.touch()
    remote.drained()
    second.stop()
    check(remote)
    assert repeated(remote) == 2, "only what was running ran twice"


@of(*KINDS)
def test_child_killed_under_load_is_replaced(remote: RemoteSite) -> None:
    """Its task runs again at once; the worker continues. A task that always kills its child becomes a dead
    letter."""
    worker = remote.start()
    go = remote.path / "go"
    id = remote.send("until_file", str(go))
    remote.send_many("work", [(number, 0.01) for number in range(30)])
    for times in (1, 2):
        (start,) = remote.started(id, times=times)
        kill(start.pid)
        (again,) = remote.started(id, times=times + 1)
        assert again.attempt == times + 1
    go.touch()
    poison = remote.send("misbehave", "kill")
    remote.until(lambda: poison in remote.dead(), "the task to be given up")
    (letter,) = json.loads(remote.qworker("dead", "list", "--json"))
    assert letter["queue"] == "celery"
    remote.drained()
    worker.stop()
    check(remote)
    remote.qworker("dead", "retry", "--all")
    assert remote.dead() == {}
    assert remote.waiting() == 1


@of(*(name for name, kind in KINDS.items() if kind.lasting))
def test_server_killed_under_load_loses_nothing(kind: str, tmp_path: Path) -> None:
    lasting = KINDS[kind].lasting
    assert lasting is not None
    with closing(lasting()) as server, site_on(kind, server.url, tmp_path) as remote:
        killed_server_loses_nothing(remote, server.kill, server.start)


@of(*KINDS)
def test_messages_are_moved_to_another_broker_and_back(remote: RemoteSite) -> None:
    """More than one batch, each message once; a worker runs them afterwards."""
    file = f"sqlite:///{remote.path / 'moved.db'}"
    remote.send_many("work", [(number,) for number in range(130)])
    there, back = (
        remote.qworker("move", "--yes", *urls) for urls in ((remote.url, file), (file, remote.url))
    )
    assert "Moved 130 messages" in there
    assert "Moved 130 messages" in back
    worker = remote.start()
    remote.drained()
    worker.stop()
    check(remote)
    assert repeated(remote) == 0


@of(*KINDS, quick=("disque",))
def test_commands(kind: str, remote: RemoteSite) -> None:
    counted = not KINDS[kind].product
    assert ("are empty" if counted else "No message is ready in any queue") in remote.qworker("queues")
    id = remote.send("work", 1, countdown=300)
    remote.send_many("work", [(number,) for number in range(7)])
    (row,) = json.loads(remote.qworker("queues", "--json"))
    assert row["queue"] == "celery"
    assert row["ready"] in (7, 8)  # NATS returns delayed messages to the server when a worker fetches them
    assert row["dead"] == 0
    worker = remote.start()
    remote.until(lambda: remote.waiting() == 1, "all but the late one to end")
    said = {
        words: remote.qworker(*words.split()) for words in ("config check", "doctor", "workers", "dead list")
    }
    assert not any(secret in text for secret in SECRETS for text in said.values())
    product = KINDS[kind].product
    assert (f"on {product}" if product else "in order") in said["config check"]
    assert "countdown" not in said["config check"]
    worker.stop()
    remote.send("work", 2)
    # A poll of the worker may still have taken one: SQS only knows how many were visible before.
    assert "Removed" in remote.qworker("purge", "--yes")
    assert remote.left() == []
    assert not remote.records(id)
