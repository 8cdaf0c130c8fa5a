"""Real workers and callers on a Redis Cluster of three servers: a worker is killed, a node is restarted, the
slot moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.brokers import RemoteSite, Stream
from tests.acceptance.invariants import check
from tests.acceptance.private_servers import missing
from tests.acceptance.redis_cluster import Cluster
from tests.acceptance.together import (
    everything_runs_exactly_once,
    killed_worker_is_taken_over_by_another,
    repeated,
)

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.fault,
    pytest.mark.timeout(180),
    pytest.mark.skipif(missing("redis") is not None, reason="no redis-server here: install it"),
]
OUR_KEYS = "{qworker}"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(appendfsync="always")) as made:
        yield made


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[RemoteSite]:
    with RemoteSite(tmp_path, cluster.url, cluster.url, cluster.url) as made:
        yield made


def test_everything_runs_once_without_faults(site: RemoteSite) -> None:
    everything_runs_exactly_once(site)


def test_killed_worker_is_taken_over_by_another(site: RemoteSite) -> None:
    killed_worker_is_taken_over_by_another(site)


def test_nothing_is_lost_or_repeated_while_the_slot_moves(site: RemoteSite, cluster: Cluster) -> None:
    """Three times: callers and workers follow it to another node."""
    workers = [site.start("-c", "2", name=name) for name in ("one", "two")]
    stream = Stream(site, rate=50.0)
    for number in (1, 2, 3):
        site.until(lambda number=number: len(site.sent) > 40 * number, "calls")
        before = cluster.owner(OUR_KEYS)
        cluster.move(OUR_KEYS)
        assert cluster.owner(OUR_KEYS) is not before
        after = site.send("work", -number)
        site.ended(after)
    stream.stop()
    site.drained()
    for worker in workers:
        worker.stop()
    check(site)
    assert repeated(site) == 0


def test_restarted_node_loses_nothing(site: RemoteSite, cluster: Cluster) -> None:
    worker = site.start("-c", "2")
    stream = Stream(site)
    site.until(lambda: len(site.sent) > 20, "calls")
    node = cluster.owner(OUR_KEYS)
    node.kill()
    site.until(lambda: site.unsure, "a call that fails")
    node.start()
    cluster.wait()
    sent = len(site.sent)
    site.until(lambda: len(site.sent) > sent + 20, "more calls")
    stream.stop()
    site.drained()
    worker.stop()
    check(site, deliveries=6)
