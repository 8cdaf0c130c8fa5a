"""The Amazon SQS broker with faults: throttling, delays, truncated or invalid replies, wrong regions and
keys, deleted queues. (tests/acceptance/test_sqs.py has a worker.)"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from qworker import QWorker
from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports import open_broker
from qworker.transports.held.broker import HeldBroker
from qworker.transports.lease import Ack, Release
from tests.acceptance.sqs_server import REGION, Sqs
from tests.support.messages import envelope, ids
from tests.support.receiving import receive
from tests.support.sqs_faults import SqsFaults

pytestmark = pytest.mark.integration
Open = Callable[..., HeldBroker]
BATCH = 10
ALWAYS = 1000
MOMENTARY = ["throttled", "request-throttled", "503", "drop"]
"""Faults that boto retries."""
LASTING = [*MOMENTARY, "nonsense", "half"]


@pytest.fixture(scope="module")
def moto() -> Iterator[Sqs]:
    with closing(Sqs()) as server:
        yield server


@pytest.fixture(scope="module")
def _faults(moto: Sqs) -> Iterator[SqsFaults]:
    with closing(SqsFaults(moto.endpoint)) as faults:
        yield faults


@pytest.fixture
def faults(moto: Sqs, _faults: SqsFaults) -> Iterator[SqsFaults]:
    moto.reset()
    yield _faults
    _faults.heal()


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex[:8]}"


@pytest.fixture
def open_(faults: SqsFaults, caplog: pytest.LogCaptureFixture) -> Iterator[Open]:
    opened: list[HeldBroker] = []
    caplog.set_level(logging.DEBUG, logger="qworker")

    def open_one(url: str | None = None, **options: Any) -> HeldBroker:
        transport = {"region": REGION, "wait_time_seconds": 1, **options}
        store = open_broker(url or faults.url, Settings({"broker_transport_options": transport}))
        assert isinstance(store, HeldBroker)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()
    assert "s3cr3t" not in caplog.text


def messages(queue: str, count: int) -> list[Any]:
    return [envelope(str(number), queue) for number in range(count)]


@pytest.mark.parametrize("fault", MOMENTARY)
def test_momentary_fault_is_retried(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str, fault: str
) -> None:
    store = open_()
    faults.fail("SendMessageBatch", fault)
    store.sender.push(messages(queue, 1))
    own = store.consumer.register("w", [queue], 1)
    faults.fail("ReceiveMessage", fault)
    (message,) = receive(store, 1, queue)
    faults.fail("DeleteMessageBatch", fault)
    assert store.consumer.settle(own, [Ack(message.tag)]) == set()
    assert moto.counts(queue) == (0, 0, 0)


@pytest.mark.parametrize("fault", LASTING)
def test_lasting_fault_raises_and_loses_nothing(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str, fault: str
) -> None:
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    store.sender.push(messages(queue, 1))
    (message,) = receive(store, 1, queue)
    faults.fail("DeleteMessageBatch", fault, ALWAYS)
    with pytest.raises(BrokerUnavailable) as refused:
        store.consumer.settle(own, [Ack(message.tag)])
    assert "s3cr3t" not in str(refused.value)
    faults.heal()
    lost = store.consumer.settle(own, [Ack(message.tag)])
    assert lost == (set() if fault != "half" else lost)  # it was done, and half of the reply arrived
    assert moto.counts(queue) == (0, 0, 0)
    faults.fail("SendMessageBatch", fault, ALWAYS)
    with pytest.raises(BrokerUnavailable) as refused:
        store.sender.push(messages(queue, 1))
    assert str(refused.value).count(str(faults.port)) <= 2, "the message is not repeated"
    assert "s3cr3t" not in str(refused.value)
    faults.heal()
    store.sender.push(messages(queue, 1))
    assert ids(receive(store, 1, queue)) == ["0"]


@pytest.mark.parametrize("fault", LASTING)
def test_register_raises_during_a_lasting_fault(
    open_: Open, faults: SqsFaults, queue: str, fault: str
) -> None:
    faults.fail("*", fault, ALWAYS)
    with pytest.raises(BrokerUnavailable) as refused:
        open_().consumer.register("w", [queue], 1)
    assert "s3cr3t" not in str(refused.value)
    faults.heal()
    open_().consumer.register("w", [queue], 1)


@pytest.mark.parametrize("fault", ["throttled", "503", "drop", "nonsense"])
def test_large_push_with_refused_portions_stores_each_message_once(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str, fault: str
) -> None:
    """Repeating the whole push would duplicate the first messages."""
    store = open_()
    faults.fail("SendMessageBatch", fault, times=3, after=4)
    store.sender.push(messages(queue, 100))
    assert moto.counts(queue) == (100, 0, 0)


def test_only_throttled_messages_of_a_batch_are_sent_again(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    store = open_()
    faults.fail("SendMessageBatch", "partly", times=3)
    store.sender.push(messages(queue, BATCH))
    assert faults.entries == [10, 5, 3]
    assert moto.counts(queue) == (BATCH, 0, 0)


def test_partly_accepted_batch_reports_the_number(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    store = open_()
    faults.fail("SendMessageBatch", "partly", then=["503"] * ALWAYS)
    with pytest.raises(BrokerUnavailable, match="it had accepted 5 of 10 messages"):
        store.sender.push(messages(queue, BATCH), timeout=0.5)
    assert moto.counts(queue) == (5, 0, 0)


def test_only_throttled_messages_of_a_batch_are_deleted_again(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    store.sender.push(messages(queue, BATCH))
    tags = [message.tag for message in receive(store, BATCH, queue)]
    faults.fail("DeleteMessageBatch", "partly", times=3)
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match="Slow down"):
            store.consumer.settle(own, [Ack(tag) for tag in tags])
    assert store.consumer.settle(own, [Ack(tag) for tag in tags]) == set()
    assert faults.entries == [10, 5, 3]
    assert moto.counts(queue) == (0, 0, 0)


def test_only_throttled_messages_of_a_batch_are_released_again(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    """Other consumers may have the rest by now, and keep it."""
    store, other = open_(), open_()
    own = store.consumer.register("w", [queue], 1)
    theirs = other.consumer.register("x", [queue], 1)
    store.sender.push(messages(queue, BATCH))
    tags = [message.tag for message in receive(store, BATCH, queue)]
    faults.fail("ChangeMessageVisibilityBatch", "partly", times=1)
    with pytest.raises(BrokerUnavailable, match="Slow down"):
        store.consumer.settle(own, [Release(tag) for tag in tags])
    taken = receive(other, BATCH // 2, queue)
    assert store.consumer.settle(own, [Release(tag) for tag in tags]) == set()
    assert moto.counts(queue)[0] == BATCH // 2
    assert other.consumer.settle(theirs, [Ack(message.tag) for message in taken]) == set()
    assert moto.counts(queue) == (BATCH // 2, 0, 0)


def test_uncertain_release_is_not_repeated(open_: Open, faults: SqsFaults, moto: Sqs, queue: str) -> None:
    """It would be taken from its new holder."""
    store, other = open_(), open_()
    own = store.consumer.register("w", [queue], 1)
    theirs = other.consumer.register("x", [queue], 1)
    store.sender.push(messages(queue, 1))
    (message,) = receive(store, 1, queue)
    faults.fail("ChangeMessageVisibilityBatch", "half", times=2)
    with pytest.raises(BrokerUnavailable):
        store.consumer.settle(own, [Release(message.tag)])
    (again,) = receive(other, 1, queue)
    assert store.consumer.settle(own, [Release(message.tag)]) == set()
    assert moto.counts(queue) == (0, 0, 1)
    assert other.consumer.settle(theirs, [Ack(again.tag)]) == set()
    assert moto.counts(queue) == (0, 0, 0)


def test_fifo_queue_stores_resent_messages_once(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    """The reply is lost, and so are those to boto's retries."""
    store, name = open_(), f"{queue}.fifo"
    faults.fail("SendMessageBatch", "half", times=4, after=1)
    store.sender.push(messages(name, 2 * BATCH))
    assert moto.counts(name) == (2 * BATCH, 0, 0)


def test_partly_accepted_push_reports_the_number(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    store = open_()
    faults.fail("SendMessageBatch", "503", times=ALWAYS, after=4)
    with pytest.raises(BrokerUnavailable, match="it had accepted 40 of 100 messages"):
        store.sender.push(messages(queue, 100), timeout=0.5)
    assert moto.counts(queue) == (4 * BATCH, 0, 0)


def test_timeout_applies_to_each_portion(faults: SqsFaults, moto: Sqs, queue: str) -> None:
    """And errors do not mention internal timeouts."""
    app = QWorker(
        "slow",
        broker=faults.url,
        broker_transport_options={"region": REGION},
        task_publish_timeout=0.3,
        task_default_queue=queue,
        set_as_current=False,
    )
    task = app.task(lambda number: number, name="task")
    task.delay(0)
    faults.delay = 0.1
    task.apply_many([(number,) for number in range(100)])
    assert moto.counts(queue) == (101, 0, 0)
    faults.fail("SendMessageBatch", "503", ALWAYS)
    with pytest.raises(BrokerUnavailable) as refused:
        task.apply_many([(number,) for number in range(100)])
    assert "0.05" not in str(refused.value)
    app.close()


def test_deleted_queue_is_created_again(open_: Open, moto: Sqs, queue: str) -> None:
    store = open_()
    store.sender.push(messages(queue, 1))
    client = moto.client()
    client.delete_queue(QueueUrl=client.get_queue_url(QueueName=queue)["QueueUrl"])
    app_side = open_()
    with pytest.raises(BrokerUnavailable, match="does not exist"):
        store.sender.push(messages(queue, 1))
    store.sender.push(messages(queue, 1))
    app_side.consumer.register("w", [queue], 1)
    assert ids(receive(app_side, 1, queue)) == ["0"]


@pytest.mark.parametrize("region", ["eu central 1", "Frankfurt!", 5])
def test_invalid_region_is_refused(open_: Open, queue: str, region: object) -> None:
    with pytest.raises(ConfigurationError, match="broker_transport_options: region"):
        open_("sqs://key:s3cr3t@", region=region).consumer.register("w", [queue], 1)


def test_unknown_region_raises_broker_unavailable(open_: Open, queue: str) -> None:
    with pytest.raises(BrokerUnavailable, match="check whether region 'nowhere-1' is correct"):
        open_("sqs://key:s3cr3t@", region="nowhere-1").consumer.register("w", [queue], 1)


def test_keys_for_another_region_are_refused(open_: Open, faults: SqsFaults, queue: str) -> None:
    faults.fail("*", "unscoped", ALWAYS)
    with pytest.raises(ConfigurationError, match="should be scoped to a valid region") as refused:
        open_().consumer.register("w", [queue], 1)
    assert "s3cr3t" not in str(refused.value)
