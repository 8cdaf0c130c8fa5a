"""The MongoDB broker: interrupted pushes, calls per task, errors, and Celery's results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pymongo
import pytest

from qworker.backends import open_backend
from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError
from qworker.transports.lease import Ack, DeadLetter, Release, Settlement
from qworker.transports.mongodb.broker import MongoBroker
from qworker.transports.mongodb.claim import take_early, take_ready
from qworker.transports.mongodb.layout import DELAYED, LEASED, READY, new_tags
from qworker.transports.mongodb.server import Collections
from tests.contract.place_mongodb import MongoPlace
from tests.servers import require, start_mongodb
from tests.support.messages import message, names
from tests.support.mongodb_calls import Before, Calls, calls_of_a_batch
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration


@pytest.fixture
def place(tmp_path: Path) -> Iterator[MongoPlace]:
    place = MongoPlace(tmp_path)
    yield place
    place.clear()


@pytest.fixture
def store(place: MongoPlace) -> Iterator[MongoBroker]:
    store = MongoBroker(place.url)
    store.consumer.register("w@test", ["q"], 1)
    yield store
    store.close()


def arriving(batch: str, *headers: str) -> list[dict[str, Any]]:
    """Return messages that are stored, but not published yet."""
    fields = {"q": "q", "s": 3, "to": 0, "batch": batch, "u": 0, "due": None, "n": 0, "r": False, "p": 0}
    fields |= {"sent": 0.0, "properties": None, "body": b""}
    return [
        {"_id": tag, **fields, "headers": text}
        for tag, text in zip(new_tags(len(headers)), headers, strict=True)
    ]


def test_interrupted_push_is_published_completely_or_not_at_all(
    store: MongoBroker, place: MongoPlace
) -> None:
    place.database.qworker_message.insert_many(arriving("published", "a", "b") + arriving("never", "c", "d"))
    place.database.qworker_batch.insert_one({"_id": "published"})
    assert store.consumer.lease(["q"], 10).messages == []
    assert store.consumer.reclaim() == []
    assert names(store.consumer.lease(["q"], 10).messages) == ["a", "b"]
    assert place.database.qworker_batch.count_documents({}) == 0
    assert store.consumer.sweep("dead", 1e9, 1000) == 2, "messages without a batch after an hour"


def test_messages_leased_by_a_reclaimed_generation_are_released(
    store: MongoBroker, place: MongoPlace
) -> None:
    """Its record was deleted, and it died before noticing."""
    store.sender.push([message("a")])
    place.database.qworker_message.update_many({}, {"$set": {"s": 2, "owner": 12345}})
    store.consumer.reclaim()
    assert names(store.consumer.lease(["q"], 10).messages) == ["a"]


def test_idle_consumer_is_notified_of_delayed_messages(store: MongoBroker, place: MongoPlace) -> None:
    """Even if another process publishes them, and none is ready."""
    other = MongoBroker(place.url)
    now = time.time()
    for due in (now + 300, now + 200):
        assert store.consumer.lease(["q"], 10).messages == []
        other.sender.push([message(str(due), due=due)])
        assert store.consumer.wait(PATIENCE)
        assert store.consumer.lease(["q"], 10).next_due == due
    other.sender.push([message("later", due=now + 400)])
    assert not store.consumer.wait(0.0), "an earlier message is already known"
    other.close()


@pytest.mark.parametrize(
    "ending",
    [
        lambda tag: Release(tag, counted=True),
        lambda tag: Release(tag, requeued=True),
        lambda tag: Release(tag, redelivered=True),
        lambda tag: DeadLetter(tag, "why"),
        Ack,
    ],
    ids=["counted", "put-back", "redelivered", "given-up", "ended"],
)
@pytest.mark.parametrize("early", [False, True], ids=["ready", "early"])
def test_message_changed_since_the_query_is_not_claimed(
    store: MongoBroker, place: MongoPlace, ending: Callable[[int], Settlement], early: bool
) -> None:
    """Another consumer leased and settled it after the query. The other message is claimed."""
    other = MongoBroker(place.url)
    own = other.consumer.register("other@test", ["q"], 1)
    until = time.time() + 60
    due = until - 30 if early else None
    store.sender.push([message("a", due=due), message("b", due=due)])

    def meanwhile() -> None:
        window = (0, 1, 60.0) if early else (1, 0, 0.0)
        (leased,) = other.consumer.lease(["q"], *window).messages
        other.consumer.settle(own, [ending(leased.tag)])

    def claim(found: Collections) -> list[dict[str, Any]]:
        found.message = Before(found.message, "update_many", meanwhile)
        order = (found, store.consumer._generation, "q", 9)
        return take_early(*order, until) if early else take_ready(*order, ["q"], time.time())[0]

    assert [each["headers"] for each in store._server.run(claim)] == [message("b").headers]
    other.close()


@pytest.mark.parametrize(
    "where",
    [
        {"s": READY},
        {"s": DELAYED, "due": {"$lte": 5.0}},
        {"s": LEASED, "owner": {"$exists": True}},
    ],
)
def test_waiting_messages_are_found_by_an_index(
    store: MongoBroker, place: MongoPlace, where: dict[str, Any]
) -> None:
    """Partial indexes are used, because a full index would be written on each change of a message."""
    store.sender.push([message("a")])
    plan = place.database.qworker_message.find({"q": "q", **where}).explain()
    assert any(word in str(plan) for word in ("IXSCAN", "usableVirtualIndexes")), plan  # mongoeco's term


def test_claim_updates_by_id(place: MongoPlace) -> None:
    """So that the server need not search for them, whether their counts have changed or not."""
    calls = Calls()
    store = MongoBroker(place.url, options={"event_listeners": [calls]})
    generation = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message(text) for text in "ab"])
    taken = store.consumer.lease(["q"], 10).messages
    store.consumer.settle(generation, [Release(taken[0].tag, counted=True)])
    assert names(store.consumer.lease(["q"], 10).messages) == ["a"]
    store.consumer.settle(
        generation, [Release(each.tag, counted=number == 0) for number, each in enumerate(taken)]
    )
    assert sorted(names(store.consumer.lease(["q"], 10).messages)) == ["a", "b"]
    claims = [each for each in calls.updated if each["u"].get("$set", {}).get("s") == LEASED]
    assert [len(each["q"]["_id"]["$in"]) for each in claims] == [2, 1, 2]
    store.close()


def test_message_postponed_since_the_query_has_its_new_time(store: MongoBroker) -> None:
    until = time.time() + 60
    store.sender.push([message("a", due=until - 30)])

    def claim(found: Collections) -> list[dict[str, Any]]:
        put_off = partial(found.message.update_one, {}, {"$set": {"due": until + 300}})
        found.message = Before(found.message, "update_many", put_off)
        return take_early(found, store.consumer._generation, "q", 9, until)

    assert [each["due"] for each in store._server.run(claim)] == [until + 300]


def test_number_of_calls_for_each_task(place: MongoPlace) -> None:
    """Of 16 with results: a query, a claim, the owner's record; then a check, results and messages."""
    assert calls_of_a_batch(place.url) == ["aggregate", "update", "find", "find", "update", "delete"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """Return the URL, without a user, of a server that accepts only "me" with the password "right"."""
    require("mongodb")
    process, url = start_mongodb("--user", "me:right")
    yield f"{url}&authSource=admin&authMechanism=SCRAM-SHA-256"  # the only one that mongoeco supports
    process.kill()
    process.wait()


@pytest.mark.parametrize("who", ["me:hunter2@", "you:hunter2@"])
def test_wrong_credentials_raise_an_error_without_the_password(guarded: str, who: str) -> None:
    url = guarded.replace("://", f"://{who}")
    broker = MongoBroker(url)
    with pytest.raises(ConfigurationError, match="password") as caught:
        broker.sender.push([message("a")])
    backend = open_backend(url, Settings({}, environ={}), SYSTEM_CLOCK)
    with pytest.raises(BackendError, match="password") as caught_too:
        backend.get("id")
    for text in (str(caught.value), str(caught_too.value)):
        assert "hunter2" not in text
        assert "\n" not in text
        assert "full error" not in text
    broker.close()
    backend.close()


def test_credentials_in_the_url_and_in_the_settings(guarded: str) -> None:
    broker = MongoBroker(guarded.replace("://", "://me:right@"))
    broker.consumer.register("w@test", ["q"], 1)
    broker.sender.push([message("a")])
    assert names(broker.consumer.lease(["q"], 1).messages) == ["a"]
    broker.close()
    given = {"mongodb_backend_settings": {"user": "me", "password": "right"}}
    backend = open_backend(guarded, Settings(given, environ={}), SYSTEM_CLOCK)
    backend.store("id", backend.meta("id", "SUCCESS", 5))
    found = backend.get("id")
    assert found is not None
    assert found["result"] == 5
    backend.close()


def test_settings_of_celerys_mongodb_backend_are_supported(place: MongoPlace, tmp_path: Path) -> None:
    from celery import Celery

    other = f"{place.database.name}_other"
    words = {"database": other, "taskmeta_collection": "tasks", "groupmeta_collection": "groups"}
    options = {"max_pool_size": 3, "options": {"appname": "of-celery"}}
    theirs = Celery("proj", broker="memory://", backend=place.url, set_as_current=False)
    theirs.conf.mongodb_backend_settings = words
    settings = Settings({"mongodb_backend_settings": words | options}, environ={}, directory=tmp_path)
    ours = open_backend(place.url, settings, SYSTEM_CLOCK)
    assert not ours.same_store(place.url), "the broker's database is another"
    theirs.backend.store_result("of-theirs", [1, 2], "SUCCESS")
    found = ours.get("of-theirs")
    assert found is not None
    assert found["result"] == [1, 2]
    ours.store("of-ours", ours.meta("of-ours", "SUCCESS", 5))
    ours.save_group("h", [["h", None], [[["of-ours", None], None]]])
    assert [each.id for each in theirs.backend.restore_group("h")] == ["of-ours"]
    database = place.database.client[other]
    assert set(database.list_collection_names()) >= {"tasks", "groups"}
    ours.close()
    theirs.backend._get_connection().close()
    place.database.client.drop_database(other)


@pytest.mark.parametrize(
    "url",
    ["mongodb://me:hunter2@127.0.0.1:1/x", "mongodb://me:hunter2@127.0.0.1:1/x?serverSelectionTimeoutMS=50"],
)
def test_unreachable_server_raises_without_the_password(url: str) -> None:
    store = MongoBroker(url, connect_timeout=0.1)
    with pytest.raises(BrokerUnavailable) as caught:
        store.sender.push([message("a")], timeout=1.0)
    assert "hunter2" not in str(caught.value)
    store.close()


@pytest.mark.parametrize(
    "url", ["mongodb://", "mongodb://me:hunt@er2@host/x", "mongodb://host:port/x", "mongodb://host/a b"]
)
def test_invalid_url_is_refused(url: str) -> None:
    store = MongoBroker(url, connect_timeout=0.1)
    with pytest.raises(ConfigurationError, match="broker_url") as caught:
        store.sender.push([message("a")])
    assert "er2" not in str(caught.value)


def test_results_are_compatible_with_celery(place: MongoPlace, tmp_path: Path) -> None:
    from celery import Celery

    theirs = Celery("proj", broker="memory://", backend=place.url, set_as_current=False)
    settings = Settings({}, environ={}, directory=tmp_path)
    ours = open_backend(place.url, settings, SYSTEM_CLOCK)
    assert ours.same_store(place.url)
    ours.store("of-ours", ours.meta("of-ours", "SUCCESS", {"a": [1, "é"]}))
    result = theirs.AsyncResult("of-ours")
    assert (result.state, result.get(timeout=10)) == ("SUCCESS", {"a": [1, "é"]})
    theirs.backend.store_result("of-theirs", [1, 2], "SUCCESS")
    found = ours.get("of-theirs")
    assert found is not None
    assert (found["status"], found["result"]) == ("SUCCESS", [1, 2])
    group = theirs.GroupResult("g", [theirs.AsyncResult("of-ours"), theirs.AsyncResult("of-theirs")])
    theirs.backend.save_group("g", group)
    assert [child[0][0] for child in ours.get_group("g")[1]] == ["of-ours", "of-theirs"]
    ours.save_group("h", [["h", None], [[["of-ours", None], None]]])
    restored = theirs.backend.restore_group("h")
    assert [each.id for each in restored] == ["of-ours"]
    ours.close()
    theirs.backend._get_connection().close()


def test_default_write_concern_is_majority() -> None:
    for query, expected in (("", ("majority", True)), ("?w=1&journal=false", (1, False))):
        store = MongoBroker(f"mongodb://127.0.0.1:1/x{query}")
        client = pymongo.MongoClient(store.url, **store._server._settings(), connect=False)
        written = client.write_concern.document
        assert (written["w"], written["j"]) == expected
        client.close()
