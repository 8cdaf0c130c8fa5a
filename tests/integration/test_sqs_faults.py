"""Amazon SQS on a bad day: throttled, slow, half an answer, somebody else's answer, the wrong region, keys
for another one, a queue that has gone. (tests/acceptance/test_sqs.py has a worker on such a day.)"""

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
FOR_EVER = 1000
MOMENTARY = ["throttled", "request-throttled", "503", "drop"]
"""What boto tries once more by itself."""
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
def test_what_passes_is_not_noticed(
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
def test_what_lasts_is_one_clear_error_and_nothing_is_lost(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str, fault: str
) -> None:
    store = open_()
    own = store.consumer.register("w", [queue], 1)
    store.sender.push(messages(queue, 1))
    (message,) = receive(store, 1, queue)
    faults.fail("DeleteMessageBatch", fault, FOR_EVER)
    with pytest.raises(BrokerUnavailable) as refused:
        store.consumer.settle(own, [Ack(message.tag)])
    assert "s3cr3t" not in str(refused.value)
    faults.heal()
    lost = store.consumer.settle(own, [Ack(message.tag)])
    assert lost == (
        set() if fault != "half" else lost
    )  # that one was carried out, and half of the answer came
    assert moto.counts(queue) == (0, 0, 0)
    faults.fail("SendMessageBatch", fault, FOR_EVER)
    with pytest.raises(BrokerUnavailable) as refused:
        store.sender.push(messages(queue, 1))
    assert str(refused.value).count(str(faults.port)) <= 2, "it is said once"
    assert "s3cr3t" not in str(refused.value)
    faults.heal()
    store.sender.push(messages(queue, 1))
    assert ids(receive(store, 1, queue)) == ["0"]


@pytest.mark.parametrize("fault", LASTING)
def test_a_worker_cannot_begin_meanwhile(open_: Open, faults: SqsFaults, queue: str, fault: str) -> None:
    faults.fail("*", fault, FOR_EVER)
    with pytest.raises(BrokerUnavailable) as refused:
        open_().consumer.register("w", [queue], 1)
    assert "s3cr3t" not in str(refused.value)
    faults.heal()
    open_().consumer.register("w", [queue], 1)


@pytest.mark.parametrize("fault", ["throttled", "503", "drop", "nonsense"])
def test_of_many_each_is_stored_once_though_some_portions_are_refused(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str, fault: str
) -> None:
    """Who gave up here would have the first ones again with the rest."""
    store = open_()
    faults.fail("SendMessageBatch", fault, times=3, after=4)
    store.sender.push(messages(queue, 100))
    assert moto.counts(queue) == (100, 0, 0)


def test_of_a_batch_only_what_was_throttled_is_sent_again(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    store = open_()
    faults.fail("SendMessageBatch", "partly", times=3)
    store.sender.push(messages(queue, BATCH))
    assert faults.entries == [10, 5, 3]
    assert moto.counts(queue) == (BATCH, 0, 0)


def test_of_a_batch_it_is_told_how_many_were_taken(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    store = open_()
    faults.fail("SendMessageBatch", "partly", then=["503"] * FOR_EVER)
    with pytest.raises(BrokerUnavailable, match="it had accepted 5 of 10 messages"):
        store.sender.push(messages(queue, BATCH), timeout=0.5)
    assert moto.counts(queue) == (5, 0, 0)


def test_of_a_batch_only_what_was_throttled_is_deleted_again(
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


def test_of_a_batch_only_what_was_throttled_is_given_back_again(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    """The others may have the rest by now, and keep it."""
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


def test_what_may_have_been_given_back_is_not_given_back_again(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    """It would be taken from who has it by now."""
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


def test_fifo_queues_store_once_what_was_sent_again(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    """The answer was lost, and so were those to boto's own tries."""
    store, name = open_(), f"{queue}.fifo"
    faults.fail("SendMessageBatch", "half", times=4, after=1)
    store.sender.push(messages(name, 2 * BATCH))
    assert moto.counts(name) == (2 * BATCH, 0, 0)


def test_of_many_it_is_told_how_many_were_taken(
    open_: Open, faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    store = open_()
    faults.fail("SendMessageBatch", "503", times=FOR_EVER, after=4)
    with pytest.raises(BrokerUnavailable, match="it had accepted 40 of 100 messages"):
        store.sender.push(messages(queue, 100), timeout=0.5)
    assert moto.counts(queue) == (4 * BATCH, 0, 0)


def test_many_may_take_longer_than_the_deadline_while_sqs_takes_them(
    faults: SqsFaults, moto: Sqs, queue: str
) -> None:
    """The deadline is for each portion. The text of an error names none that nobody has set."""
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
    faults.fail("SendMessageBatch", "503", FOR_EVER)
    with pytest.raises(BrokerUnavailable) as refused:
        task.apply_many([(number,) for number in range(100)])
    assert "0.05" not in str(refused.value)
    app.close()


def test_a_queue_that_has_gone_is_made_again(open_: Open, moto: Sqs, queue: str) -> None:
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
def test_what_is_no_region(open_: Open, queue: str, region: object) -> None:
    with pytest.raises(ConfigurationError, match="broker_transport_options: region"):
        open_("sqs://key:s3cr3t@", region=region).consumer.register("w", [queue], 1)


def test_a_region_that_is_not_there(open_: Open, queue: str) -> None:
    with pytest.raises(BrokerUnavailable, match="check whether region 'nowhere-1' is correct"):
        open_("sqs://key:s3cr3t@", region="nowhere-1").consumer.register("w", [queue], 1)


def test_keys_for_another_region(open_: Open, faults: SqsFaults, queue: str) -> None:
    faults.fail("*", "unscoped", FOR_EVER)
    with pytest.raises(ConfigurationError, match="should be scoped to a valid region") as refused:
        open_().consumer.register("w", [queue], 1)
    assert "s3cr3t" not in str(refused.value)
