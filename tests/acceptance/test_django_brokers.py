"""The Broker class as documented in the manual, on each broker that a project can have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.sqs_server import REGION, Sqs
from tests.servers import require
from tests.support.disque_server import DisqueServer
from tests.support.django_place import DjangoPlace
from tests.support.ironmq_server import TOKEN, IronMQ

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]

KINDS = ("sqlite", "postgresql", "mysql", "redis", "sqs", "mongo", "disque", "ironmq")
HIDING = ("sqs", "disque", "ironmq")
"""They hide received messages for their own period."""
SCRIPT = """
import itertools
import pickle

from qworker.django.brokers import Broker
from qworker.django.conf import conf
from qworker.django.signing import SignedPackage
from qworker.django.status import Stat


def package(number):
    return SignedPackage.dumps({
        "id": f"{number:032x}", "name": f"n{number}", "func": "math.sqrt", "args": (number,), "kwargs": {},
    })


def take(broker, number=1):
    taken = []
    until(lambda: taken.extend(broker.dequeue() or ()) or len(taken) >= number)
    return taken


def of(broker):
    # some hide those that are on their way to us
    return broker.queue_size() + (broker.lock_size() or 0)


def numbers(taken):
    return sorted(SignedPackage.loads(text)["args"][0] for _, text in taken)


broker, other = get_broker(), get_broker(conf.prefix + "_other")
found["class"] = [isinstance(broker, Broker), type(broker).__name__, broker.list_key == conf.prefix,
                  other.list_key == conf.prefix + "_other", get_broker().cache is not None]
found["about"] = [broker.ping(), broker.info()]
found["empty"] = [broker.dequeue() or [], broker.queue_size(), broker.lock_size()]

tracked = [broker.enqueue(package(number)) for number in range(4)]
other.enqueue(package(9))
until(lambda: of(broker) == 4)
found["enqueued"] = [tracked[0] is not None, until(lambda: of(other))]

elsewhere = take(other)
found["other"] = numbers(elsewhere)
other.acknowledge(elsewhere[0][0])
taken = []
for settle in itertools.cycle((broker.acknowledge, broker.fail, broker.delete)):
    some = take(broker)
    taken += some
    found.setdefault("portions", []).append([len(some), broker.lock_size()])
    for receipt, _ in some:
        settle(receipt)
    if len(taken) >= 4:
        break
found["taken"] = numbers(taken)
until(lambda: of(broker) == 0)

third = get_broker(conf.prefix + "_third")
for number in range(3):
    third.enqueue(package(number))
until(lambda: of(third) == 3)
third.purge_queue()
until(lambda: of(third) == 0)
for number in range(3):
    broker.enqueue(package(number))
until(lambda: of(broker) >= 3)
copy = pickle.loads(pickle.dumps(broker))
found["copy"] = [copy.list_key == broker.list_key, of(copy) >= 3]
broker.delete_queue()
until(lambda: copy.queue_size() == 0)
found["deleted"] = copy.queue_size()
broker.enqueue(package(8))
found["again"] = until(lambda: 8 in numbers(take(broker)))
found["workers"] = [each.name for each in Stat.get_all() if "broker" in each.name]
"""


@contextmanager
def _sqs(directory: Path) -> Iterator[DjangoPlace]:
    server = Sqs()
    server.start()
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "endpoint_url": server.endpoint}
    try:
        yield DjangoPlace(directory, "sqs", {}, bulk=3, sqs={"aws_region": REGION, **keys})
    finally:
        server.stop()


@contextmanager
def _mongo(directory: Path) -> Iterator[DjangoPlace]:
    url = require("mongodb")
    made = DjangoPlace(directory, "mongo", {}, bulk=3, mongo={"host": url})
    made.configure(mongo_db=made.name)
    yield made
    import pymongo

    client: Any = pymongo.MongoClient(url)
    with closing(client):
        client.drop_database(made.name)


@contextmanager
def _disque(directory: Path) -> Iterator[DjangoPlace]:
    with closing(DisqueServer(nodes=2, password="a/b")) as server:
        nodes = server.url.rpartition("@")[2].split(",")
        yield DjangoPlace(directory, "disque", {}, bulk=3, disque_nodes=nodes, disque_auth="a/b")


@contextmanager
def _ironmq(directory: Path) -> Iterator[DjangoPlace]:
    with closing(IronMQ()) as server:
        where = {"host": "127.0.0.1", "port": server.port, "protocol": "http"}
        options = {**where, "project_id": "shop", "token": TOKEN}
        yield DjangoPlace(directory, "ironmq", {}, bulk=3, iron_mq=options)


SERVED = {"sqs": _sqs, "mongo": _mongo, "disque": _disque, "ironmq": _ironmq}
"""Brokers other than Redis and the database; the project itself uses an SQLite file."""


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DjangoPlace]:
    directory = tmp_path_factory.mktemp("project")
    if request.param in SERVED:
        with SERVED[request.param](directory) as made:
            yield made
    else:
        made = DjangoPlace(directory, request.param, {}, bulk=3)
        yield made
        made.clear()


@pytest.fixture(scope="module")
def found(place: DjangoPlace) -> dict[str, Any]:
    said: dict[str, Any] = place.script(SCRIPT)
    return said


CLASSES = {
    "redis": ("Redis", "Redis"),
    "sqs": ("Sqs", "AWS SQS"),
    "mongo": ("Mongo", "MongoDB"),
    "disque": ("Disque", "Disque"),
    "ironmq": ("IronMQBroker", "IronMQ"),
}
"""By kind: the class, and the beginning of its info()."""
ORM = ("ORM", "ORM default")


def test_get_broker_returns_the_configured_class_for_a_queue(
    place: DjangoPlace, found: dict[str, Any]
) -> None:
    assert found["class"] == [True, CLASSES.get(place.kind, ORM)[0], True, True, True]


def test_ping_and_info(place: DjangoPlace, found: dict[str, Any]) -> None:
    answers, info = found["about"]
    assert answers is True
    assert info.startswith(CLASSES.get(place.kind, ORM)[1])
    assert any(digit in info for digit in "0123456789")


def test_packages_are_enqueued_counted_and_dequeued(place: DjangoPlace, found: dict[str, Any]) -> None:
    tells_locked = place.kind != "ironmq"
    assert found["empty"] == [[], 0, 0 if tells_locked else None]
    assert found["enqueued"] == [True, 1]
    assert found["taken"] == [0, 1, 2, 3]
    for number, locked in found["portions"]:
        assert 1 <= number <= 3
        assert locked >= number if tells_locked else locked is None


def test_two_brokers_of_a_process_use_separate_queues(found: dict[str, Any]) -> None:
    assert found["other"] == [9]


def test_settled_packages_are_not_redelivered(found: dict[str, Any]) -> None:
    assert found["copy"] == [True, True]
    assert found["deleted"] == 0


def test_deleted_queue_can_be_used_again(found: dict[str, Any]) -> None:
    assert found["again"] is True


def test_dequeuing_by_hand_does_not_register_a_cluster(found: dict[str, Any]) -> None:
    assert found["workers"] == []


def test_unsettled_package_is_redelivered_after_the_retry_time(place: DjangoPlace) -> None:
    if place.kind in HIDING:
        pytest.skip("it keeps its own time for what was received; its contract suite looks at that")
    place.configure(retry=1)
    said = place.script(
        SCRIPT[: SCRIPT.index("broker, other =")]
        + """
broker = get_broker(conf.prefix + "_retry")
broker.enqueue(package(5))
(first, _), = take(broker)
(again, text), = take(broker)
found["number"] = SignedPackage.loads(text)["args"]
broker.acknowledge(again)
found["left"] = [broker.queue_size(), broker.lock_size()]
broker.enqueue(package(6))
take(broker)
"""
    )
    assert said == {"number": [5], "left": [0, 0]}
    place.configure(retry=60)
    said = place.script(  # the process that had dequeued it has ended
        SCRIPT[: SCRIPT.index("broker, other =")]
        + """
broker = get_broker(conf.prefix + "_retry")
((receipt, _),) = take(broker)
broker.acknowledge(receipt)
found["left"] = [broker.queue_size(), broker.lock_size()]
"""
    )
    assert said == {"left": [0, 0]}


def test_cluster_stores_its_results_in_the_database(place: DjangoPlace) -> None:
    if place.kind not in SERVED:
        pytest.skip("test_django_manual.py runs a cluster on it")
    # A client that died during a request may still be given the next message of its queue.
    place.configure(name=f"{place.name}_ran")
    with place.cluster():
        said = place.script(
            """
ids = [async_task("math.sqrt", number, group="g") for number in (4, 9)]
ids.append(async_task("math.sqrt", -1))
found["results"] = [result(each, wait=30_000) for each in ids[:2]]
found["failed"] = "ValueError" in str(result(ids[2], wait=30_000))
found["kept"] = [Task.objects.filter(id__in=ids).count(), Failure.objects.count()]
until(lambda: get_broker().queue_size() == 0)
"""
        )
    place.configure(name=place.name)
    assert said == {"results": [2.0, 3.0], "failed": True, "kept": [3, 1]}


def test_database_broker_deletes_a_package_by_task_id(place: DjangoPlace) -> None:
    if place.kind in CLASSES:
        pytest.skip("other brokers delete what was taken; the manual's do, too")
    said = place.script(
        """
broker = get_broker("delete")
one, two = (async_task("math.sqrt", number, broker=broker) for number in (4, 9))
broker.delete(one)
found["left"] = [each.task_id() == two for each in OrmQ.objects.filter(key="delete")]
"""
    )
    assert said == {"left": [True]}


def test_ping_of_an_unreachable_server_is_false(tmp_path: Path) -> None:
    place = DjangoPlace(tmp_path, "sqlite", {}, redis="redis://127.0.0.1:1/0")
    assert place.script('found["ping"] = get_broker().ping()') == {"ping": False}
