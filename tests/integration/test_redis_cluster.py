"""The Redis broker and its results on a cluster whose slots move and whose nodes die."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis", reason='pip install "qworker-queue[redis]"')

from qworker import QWorker
from qworker.backends.joins import Join
from qworker.errors import BackendError, BrokerUnavailable
from qworker.transports.lease import Ack, DeadLetter, Part
from qworker.transports.redis.broker import RedisBroker
from tests.acceptance.private_servers import Redis, free_port, missing
from tests.acceptance.redis_cluster import Cluster
from tests.acceptance.tls_servers import SecureRedis
from tests.certificates import Certificates
from tests.servers import new_prefix
from tests.support.messages import call, message, names
from tests.support.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(missing("redis") is not None, reason="no redis-server here: install it"),
]

MOVES = re.compile("the cluster (is moving|has moved) our keys")
Open = Callable[..., RedisBroker]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(appendonly="no")) as made:
        yield made


@pytest.fixture
def prefix() -> str:
    return f"{{{new_prefix()}}}"


@pytest.fixture
def open_(cluster: Cluster, prefix: str) -> Iterator[Open]:
    with ExitStack() as opened:

        def open_one(results: str = prefix) -> RedisBroker:
            return opened.enter_context(closing(broker_on(cluster, prefix, results)))

        yield open_one


def broker_on(cluster: Cluster, prefix: str, results: str) -> RedisBroker:
    return RedisBroker(
        cluster.url, options={"global_keyprefix": prefix}, results={"global_keyprefix": results}
    )


def app_on(cluster: Cluster, prefix: str, results: str | None = None) -> QWorker:
    return QWorker(
        "proj",
        broker=cluster.url,
        set_as_current=False,
        broker_transport_options={"global_keyprefix": prefix},
        result_backend_transport_options={"global_keyprefix": results or prefix},
    )


def tried(step: Callable[[], Any]) -> Any:
    """Return the result of *step*; None if the cluster refused it because it moves the keys."""
    try:
        return step()
    except (BrokerUnavailable, BackendError) as error:
        if not MOVES.search(str(error)):
            raise
        return None


def test_no_message_is_lost_or_leased_twice_while_the_slot_moves(
    open_: Open, cluster: Cluster, prefix: str
) -> None:
    """Some keys are on one node and some on the other meanwhile: each operation is done or refused as a
    whole."""
    broker = open_()
    own = broker.consumer.register("w", ["q", "r"], 1)
    pushed = [f"early {number}" for number in range(40)]
    broker.sender.push([message(name, "qr"[number % 2]) for number, name in enumerate(pushed)])
    leased = broker.consumer.lease(["q", "r"], 20).messages
    seen, acked, outcomes = names(leased), 0, Counter[bool]()

    def between() -> None:
        nonlocal acked
        late = [message(f"late {outcomes.total()} {queue}", queue) for queue in "qr"]
        if tried(lambda: broker.sender.push(late) or True):
            pushed.extend(each.headers for each in late)
        row = (f"task {acked}", "SUCCESS", b'{"status": "SUCCESS"}', None)
        settled = tried(lambda: broker.consumer.settle(own, [Ack(leased[acked].tag, row)]))
        acked += settled is not None
        if claim := tried(lambda: broker.consumer.lease(["q", "r"], 1)):
            seen.extend(names(claim.messages))
            leased.extend(claim.messages)
        outcomes[settled is not None] += 1
        assert not settled, "the lease was lost"

    cluster.move(prefix, between)
    assert outcomes[False] > 5, "it was refused while there were keys on both nodes"
    until(lambda: tried(lambda: broker.sender.push([message("last", "r")]) or True))
    pushed.append("last")
    while claim := until(lambda: tried(lambda: broker.consumer.lease(["q", "r"], 100))):
        if not claim.messages:
            break
        seen += names(claim.messages)
        leased += claim.messages
    assert Counter(seen) == Counter(pushed)
    assert broker.consumer.settle(own, [Ack(each.tag) for each in leased[acked:]]) == set()
    assert broker.admin.queues() == []


def test_no_part_of_a_join_is_lost_while_the_slot_moves(cluster: Cluster, prefix: str) -> None:
    with closing(app_on(cluster, prefix)) as app:
        joins = app.backend.joins
        joins.open([Join("j", 30, b"body")])
        numbers = iter(range(30))
        refused = []

        def record(number: int) -> bool:
            return tried(lambda: joins.add([Part("j", number, f"t{number}", "SUCCESS")]) or True) is True

        def between() -> None:
            number = next(numbers)
            if not record(number):
                refused.append(number)

        cluster.move(prefix, between)
        assert refused
        for number in (*refused, *numbers):
            until(lambda number=number: record(number))
        (finished,) = joins.claim(1, 60.0)
        assert [part.number for part in finished.parts] == list(range(30))


def test_waiting_worker_hears_of_messages_after_the_slot_has_moved(
    open_: Open, cluster: Cluster, prefix: str
) -> None:
    broker, publisher = open_(), open_()
    broker.consumer.register("w", ["q"], 1)
    assert broker.consumer.lease(["q"], 1).messages == []
    assert broker.consumer.wait(0.05) is False

    def move_and_push() -> None:
        cluster.move(prefix)
        until(lambda: tried(lambda: publisher.sender.push([message("a")]) or True))

    def waits_again() -> bool:
        if broker.consumer.wait(0.1) and (claim := tried(lambda: broker.consumer.lease(["q"], 1))):
            found.extend(names(claim.messages))
            return False
        return bool(found)

    found: list[str] = []
    moving = threading.Thread(target=move_and_push)
    moving.start()
    until(waits_again)
    moving.join()
    assert found == ["a"]
    publisher.sender.push([message("b")])
    assert broker.consumer.wait(10.0) is True, "it is woken, and does not wait for its next look"
    assert names(broker.consumer.lease(["q"], 1).messages) == ["b"]


def test_caller_gets_its_result_after_the_slot_has_moved(cluster: Cluster, prefix: str) -> None:
    with closing(app_on(cluster, prefix)) as app, closing(app_on(cluster, prefix)) as other:
        results: list[Any] = []
        waiting = threading.Thread(target=lambda: results.append(app.AsyncResult("x").get(timeout=30)))
        waiting.start()
        until(lambda: app.backend._watcher._answered_at > 0)
        cluster.move(prefix)
        meta = other.backend.meta("x", "SUCCESS", 5)
        until(lambda: tried(lambda: other.backend.store("x", meta)))
        waiting.join()
        assert results == [5]


def test_results_in_another_slot_are_stored_apart_from_the_ack(
    open_: Open, cluster: Cluster, prefix: str
) -> None:
    others = f"{{{new_prefix()}}}"
    with closing(app_on(cluster, prefix, others)) as app:
        assert not app.results_with_broker
        app.backend.store("x", app.backend.meta("x", "FAILURE", {}))
        assert cluster.owner(others).do("KEYS", f"{others}*")
    with closing(app_on(cluster, prefix)) as app:
        assert app.results_with_broker
    broker = open_(results=others)
    own = broker.consumer.register("w", ["q"], 1)
    broker.sender.push([call("x", "q")])
    (leased,) = broker.consumer.lease(["q"], 1).messages
    assert broker.consumer.settle(own, [DeadLetter(leased.tag, "why")]) == set()
    assert broker.letters["dead"].retry() == 1
    assert len(broker.consumer.lease(["q"], 1).messages) == 1


def test_replica_takes_over(prefix: str) -> None:
    with (
        closing(Cluster(replicas=True, appendonly="no", **{"cluster-node-timeout": 2000})) as cluster,
        closing(broker_on(cluster, prefix, prefix)) as broker,
    ):
        own = broker.consumer.register("w", ["q"], 1)
        broker.sender.push([message("a"), message("b")])
        (first,) = broker.consumer.lease(["q"], 1).messages
        master = cluster.owner(prefix)
        assert master.do("WAIT", 1, 10_000) == 1, "the replica has it"
        master.kill()

        def leased() -> list[str]:
            try:
                return names(broker.consumer.lease(["q"], 1).messages)
            except BrokerUnavailable:
                return []

        assert until(leased) == ["b"]
        assert cluster.owner(prefix) is not master
        assert broker.consumer.settle(own, [Ack(first.tag)]) == set()


def test_connecting_takes_no_random_numbers_of_the_program(open_: Open) -> None:
    before = random.getstate()
    assert open_().admin.queues() == []
    assert random.getstate() == before


def test_node_of_a_cluster_is_recognized(cluster: Cluster) -> None:
    """Whether all keys of a script are in one slot or not."""
    for prefix in ("", "{x}"):
        node = next(each for each in cluster.nodes if each is not cluster.owner(prefix or "unacked"))
        broker = RedisBroker(node.url, options={"global_keyprefix": prefix})
        with closing(broker), pytest.raises(BrokerUnavailable, match=r"use redis\+cluster://"):
            broker.admin.queues()


def test_server_without_a_cluster_is_recognized() -> None:
    with closing(Redis()) as server:
        broker = RedisBroker(server.url.replace("redis:", "redis+cluster:"))
        with closing(broker), pytest.raises(BrokerUnavailable, match="it is not a cluster: use redis://"):
            broker.admin.queues()


def test_cluster_with_tls(tmp_path: Path) -> None:
    options = {"cluster-enabled": "yes", "cluster-port": free_port(), "tls-cluster": "yes"}
    with closing(SecureRedis(Certificates(tmp_path), **options)) as node:
        node.do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: b"cluster_state:ok" in node.do("CLUSTER", "INFO"))
        # redis-py asks for the address of localhost, which is not in the certificate.
        url = node.tls_url(ssl_check_hostname="false").replace("rediss:", "rediss+cluster:")
        with closing(RedisBroker(url)) as broker:
            broker.sender.push([message("a")])
            assert [info.ready for info in broker.admin.queues()] == [1]
        broker = RedisBroker(node.tls_url(host="127.0.0.1").replace("rediss:", "rediss+cluster:"))
        with closing(broker), pytest.raises(BrokerUnavailable, match="certificate"):
            broker.admin.queues()
