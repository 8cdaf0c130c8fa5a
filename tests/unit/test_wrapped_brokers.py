"""Wrappers of brokers pass on all members of the interface, or withhold them by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qworker.publishing.transactions import _CollectingSender
from qworker.spooler.running.combined import SpoolCombined, SpoolDepths, SpoolInstead
from qworker.spooler.running.dispatch import JobDispatch, JobLane
from qworker.spooler.running.job_messages import job_messages
from qworker.spooler.watching.directory import SpoolDirectory
from qworker.testing import FakeClock
from qworker.transports.failover import ROUND_ROBIN, Brokers, FailoverBroker, FailoverConsumer
from qworker.transports.lease import Admin, Letters, Sender
from qworker.transports.sql.embedded.sender import JoinedSender
from qworker.transports.sql.sender import TransactionalSender
from tests.support.promise import BESIDES, FIELDS, RecordingBroker, missing_members, not_defined

NOT_WITH_FAILOVER = {
    "failed": "failed tasks of one server would not be found at the other",
    "stored_results": "nor results, which have a store of their own",
    "registry": "nor what was declared there",
}
NOT_INSTEAD = {
    "consumer": "the directories are what is consumed, and nothing of the broker",
    "revoked_since": "what is called off there is none of the directories' jobs",
    "failed": "jobs are set aside in their directory",
    "stored_results": "results have a store of their own, whatever the app's broker would do with them",
    "by_queue": "nothing is taken from the app's broker",
    "registry": "kombu's users have the app's own broker",
    "lacks": "it lacks what the directories do",
    "lowest_first": "priorities are the directories'",
    "silent_seconds": "nothing is silent in a directory",
}
NOT_IN_A_TRANSACTION = {"join": "it is joined already"}


def spooled(kind: type, inner: Any, directory: Path) -> Any:
    clock = FakeClock()

    def lanes(queues: object) -> list[JobLane]:
        place = SpoolDirectory(directory, clock=clock)
        return [JobLane(place, job_messages(place.path, None, results=False), 1)]

    return kind(inner, JobDispatch(lanes, clock), SpoolDepths(inner.admin, [str(directory)], clock))


@pytest.mark.parametrize(
    ("kind", "withheld"), [(SpoolCombined, {}), (SpoolInstead, NOT_INSTEAD)], ids=["combined", "instead"]
)
def test_spooler_wrappers_pass_on_the_broker_interface(
    kind: type, withheld: dict[str, str], tmp_path: Path
) -> None:
    inner = RecordingBroker()
    assert missing_members(spooled(kind, inner, tmp_path), inner, withheld) == []


def test_failover_broker_passes_on_the_broker_interface() -> None:
    inner = RecordingBroker()
    assert missing_members(FailoverBroker([inner]), inner, NOT_WITH_FAILOVER) == []  # type: ignore[list-item]


@pytest.mark.parametrize("kind", [JoinedSender, TransactionalSender, _CollectingSender])
def test_transactional_senders_define_push(kind: type) -> None:
    assert not_defined(kind, [Sender], NOT_IN_A_TRANSACTION) == []


class Silent(FailoverConsumer):
    def confirm(self) -> None:
        """Does not ask the broker."""


class Forgetful(FailoverBroker):
    def __init__(self, inner: Any) -> None:
        super().__init__([inner])
        self.consumer = Silent(Brokers([inner], ROUND_ROBIN), FakeClock().monotonic)


def test_wrapper_missing_a_member_is_detected() -> None:
    inner = RecordingBroker()
    found = missing_members(Forgetful(inner), inner, {**NOT_WITH_FAILOVER, "lacks": "", "lack": ""})
    assert found == [
        "lack is withheld, and is no part of the promise",
        "confirm is forgotten",
        "lacks is withheld by name, and passed on",
    ]


class Counting(Admin):
    def count(self) -> int:
        return 0


class Touching(Letters):
    def touch(self) -> None: ...


def test_wrapper_missing_a_new_member_is_detected() -> None:
    """Of a side, and of a part. A missing new part is a type error, as Broker.__init__ requires it."""
    new = {**FIELDS, "admin": {"": Counting}, "letters": {"dead": Touching}, "history": {"": Counting}}
    inner = RecordingBroker()
    wrapper = FailoverBroker([inner])  # type: ignore[list-item]
    wrapper.history = None  # type: ignore[attr-defined]
    withheld = {name: why for name, why in NOT_WITH_FAILOVER.items() if name != "failed"}
    assert missing_members(wrapper, inner, withheld, new, [*BESIDES, "ping"]) == [
        "count is forgotten", "touch is forgotten", "history is forgotten", "ping is forgotten",
    ]  # fmt: skip


def test_fields_of_the_broker_interface() -> None:
    assert list(FIELDS) == [
        "url", "sender", "consumer", "admin", "lacks", "letters", "revocations", "presence", "peeking",
        "delayed", "stored_results", "by_queue", "registry", "lowest_first", "silent_seconds",
    ]  # fmt: skip
    values = {name for name, parts in FIELDS.items() if not parts}
    assert values == {"url", "lacks", "lowest_first", "silent_seconds"}
