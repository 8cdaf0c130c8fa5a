"""Registrations that fail anywhere: the worker registers again, and has lost nothing.

In a second registration, each call from a consumer's module to another function fails in turn: before it, or
after it, as if its answer was lost. Whether or not the server has registered the worker by then, the next
registration must succeed, return the held message, and settle it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from qworker.errors import BrokerUnavailable
from qworker.testing.contract.collecting import pytest_generate_tests
from qworker.testing.contract.fixtures import Open, clock, generation, open_, place, take
from qworker.testing.contract.messages import message, names
from qworker.testing.contract.place import Place
from qworker.transports.lease import Ack
from tests.contract import lease_places

__all__ = ["PLACES", "clock", "open_", "place", "pytest_generate_tests"]

pytestmark = pytest.mark.contract
PLACES = {kind: place for kind, place in lease_places.PLACES.items() if kind not in ("memory", "failover")}
"""Without the one that calls no server, and the one that registers with another."""
CONSUMERS = ("/consumer.py", "/lease_consumer.py", "/dispatch.py")
OURS = ("/qworker/transports/", "/qworker/spooler/")


class Failing:
    """Raises at the call number *point* from a consumer's module. event: "call" or "return"."""

    def __init__(self, event: str, point: int) -> None:
        self.event = event
        self.left = point

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == self.event and self._counts(frame):
            self.left -= 1
            if self.left < 0:
                sys.setprofile(None)
                raise BrokerUnavailable(f"{event} of {frame.f_code.co_qualname}")

    def _counts(self, frame: FrameType) -> bool:
        caller, callee = frame.f_back, frame.f_code
        return (
            caller is not None
            and caller.f_code.co_filename.endswith(CONSUMERS)
            and not _gives_back(caller)
            and any(part in callee.co_filename for part in OURS)
            and not callee.co_name.startswith(("__", "<"))
        )


def _gives_back(frame: FrameType | None) -> bool:
    """Whether *frame* gives back the messages of HeldConsumer, which handles errors of the server itself."""
    while frame is not None and frame.f_code.co_name != "_let_go":
        frame = frame.f_back
    return frame is not None


@contextmanager
def failing(event: str, point: int) -> Iterator[Failing]:
    failing = Failing(event, point)
    sys.setprofile(failing)
    try:
        yield failing
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("event", ["call", "return"])
def test_registration_that_failed_is_repeated(open_: Open, place: Place, event: str) -> None:
    store = open_(registered=True)
    store.sender.push([message("a")])
    assert names(take(store)) == ["a"]
    for point in range(500):
        error = None
        with failing(event, point) as found:
            try:
                generation(store)
            except BrokerUnavailable as raised:
                error = raised
        if found.left >= 0:
            break
        assert error is not None
        own = generation(store)
        assert names(take(store)) == ["a"], error
    assert point > 0
    own = generation(store)
    (leased,) = take(store)
    assert store.consumer.settle(own, [Ack(leased.tag)]) == set()
    assert place.count() == 0
