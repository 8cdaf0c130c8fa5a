"""A custom broker class as a transport: unsupported parts of the interface are withheld by name."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.django.brokers.custom import MOST_FAILURES, CustomTransport
from qworker.django.signing import SignedPackage
from qworker.errors import BrokerUnavailable
from qworker.transports.lease import Ack, Admin, Consumer, DeadLetter, Release, Sender, Settlement
from tests.support.promise import FIELDS, not_defined

WITHHELD = {
    "join": "no method of the class publishes by somebody's connection",
    "poll_seconds": "it is asked as often as by default",
}
WITHOUT = {
    "letters": "fail() takes what was taken, and shows it no more; failed tasks are rows of the project's",
    "revocations": "no method of the class tells other workers anything",
    "presence": "workers are not listed by it",
    "peeking": "none of its methods shows a package without giving it out",
    "delayed": "it has nothing delayed",
    "stored_results": "results and joins are not kept with it",
    "by_queue": "kombu's users take nothing from it",
    "registry": "nor have they exchanges there",
}


def test_interface_is_implemented_or_withheld_by_name() -> None:
    assert not_defined(CustomTransport, [Sender, Consumer, Admin], WITHHELD) == []
    transport = CustomTransport(lambda queue: None, "own")  # type: ignore[arg-type,return-value]
    assert {field for field, parts in FIELDS.items() if parts and not getattr(transport, field)} == {*WITHOUT}


class ProjectBroker:
    """A class of a project whose calls fail *failures* times, before or after they have taken effect."""

    def __init__(self, packages: int, failures: int, after: bool) -> None:
        text = SignedPackage.dumps({"id": "1", "name": "one", "func": "f", "args": (), "kwargs": {}})
        self.queued = [text] * packages
        self.taken: dict[int, str] = {}
        self.failures, self._after = failures, after
        self.failed: list[int] = []

    def enqueue(self, text: str) -> None:
        self.queued.append(text)

    def dequeue(self) -> list[tuple[int, str]]:
        found = list(enumerate(self.queued, len(self.taken)))
        self.queued = []
        self.taken |= dict(found)
        return found

    def _call(self, receipt: int) -> None:
        if self.failures and not self._after:
            self.failures -= 1
            raise OSError("the connection was reset")
        self.taken.pop(receipt, None)
        if self.failures:
            self.failures -= 1
            raise OSError("the connection was reset")

    acknowledge = _call

    def fail(self, receipt: int) -> None:
        self._call(receipt)
        self.failed.append(receipt)


def settled(transport: Any, tags: list[int], settlements: list[Settlement]) -> int:
    """Settle like the listener; return the number of attempts."""
    for attempt in range(1, 20):
        try:
            lost = transport.settle(1, settlements)
        except BrokerUnavailable:
            continue
        assert lost - set(transport.settled_before(lost)) == set()
        assert transport.settle(1, settlements) == set(tags)
        assert transport.settled_before(tags) == set()
        return attempt
    raise AssertionError("it is never settled")


@pytest.mark.parametrize("after", [False, True])
def test_failing_calls_of_the_class_are_repeated(after: bool) -> None:
    broker = ProjectBroker(3, 2, after)
    transport: Any = CustomTransport(lambda queue: broker, "own")  # type: ignore[arg-type,return-value]
    transport.register("w@h", ["q"], 1)
    tags = [leased.tag for leased in transport.lease(["q"], 3).messages]
    assert settled(transport, tags, [Ack(tags[0]), Release(tags[1]), DeadLetter(tags[2], "why")]) == 2
    assert (broker.taken, len(broker.queued), broker.failed) == ({}, 1, [2])


def test_package_that_cannot_be_acknowledged_does_not_block_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = ProjectBroker(1, 99, after=False)
    transport: Any = CustomTransport(lambda queue: broker, "own")  # type: ignore[arg-type,return-value]
    transport.register("w@h", ["q"], 1)
    (leased,) = transport.lease(["q"], 1).messages
    assert settled(transport, [leased.tag], [Ack(leased.tag)]) == MOST_FAILURES + 1
    assert "may be delivered again" in caplog.text


def test_packages_of_other_queues_are_kept_when_a_queue_fails() -> None:
    brokers = {"a": ProjectBroker(1, 0, after=False), "b": ProjectBroker(0, 0, after=False)}
    transport: Any = CustomTransport(lambda queue: brokers[queue], "own")  # type: ignore[arg-type,return-value]
    transport.register("w@h", ["a", "b"], 1)
    brokers["b"].queued = None  # type: ignore[assignment]
    (leased,) = transport.lease(["a", "b"], 9).messages
    assert leased.queue == "a"
    with pytest.raises(BrokerUnavailable):
        transport.lease(["a", "b"], 9)


def test_all_packages_are_returned_at_the_end() -> None:
    broker = ProjectBroker(3, 2, after=False)
    transport: Any = CustomTransport(lambda queue: broker, "own")  # type: ignore[arg-type,return-value]
    transport.register("w@h", ["q"], 1)
    assert len(transport.lease(["q"], 3).messages) == 3
    transport.deregister()
    assert (broker.taken, len(broker.queued)) == ({}, 3)
    assert len(transport.lease(["q"], 3).messages) == 3
    broker.failures = 99
    with pytest.raises(BrokerUnavailable, match="3 packages"):
        transport.deregister()
    assert broker.failures > 90


def test_undecodable_package_whose_rejection_fails_is_passed_over() -> None:
    broker = ProjectBroker(1, 1, after=False)
    broker.queued.insert(0, "damaged")
    transport: Any = CustomTransport(lambda queue: broker, "own")  # type: ignore[arg-type,return-value]
    transport.register("w@h", ["q"], 1)
    assert len(transport.lease(["q"], 3).messages) == 1


def test_failing_settlement_is_repeated() -> None:
    """The caller acknowledges again; the message must not stay leased for ever."""
    from qworker.django.brokers.taking import Taking

    broker = ProjectBroker(1, 1, after=False)
    transport: Any = CustomTransport(lambda queue: broker, "own")  # type: ignore[arg-type,return-value]
    taking = Taking(transport, "q")
    (leased,) = taking.take()
    with pytest.raises(BrokerUnavailable):
        taking.settle(Ack(leased.tag))
    taking.settle(Ack(leased.tag))
    assert (broker.taken, taking._until) == ({}, {})
