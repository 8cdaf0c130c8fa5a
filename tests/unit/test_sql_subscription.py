"""When publishers notify a consumer, and when it polls for messages without a notification."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from qworker.transports.sql.consumer import FULL_CLAIMS, PAUSE_SECONDS, SECOND_LOOK, Subscription


class FakeLink:
    """Records the statements."""

    polls = False

    def __init__(self) -> None:
        self.done: list[str] = []

    def do(self, statement: str, values: tuple[Any, ...]) -> int:
        assert values == (7,)
        self.done.append(statement)
        return 1


def paused() -> tuple[Any, Subscription]:
    link, subscription = FakeLink(), Subscription()
    for number in range(FULL_CLAIMS):
        assert not subscription.has_enough
        subscription.claimed(float(number), full=True)
    assert subscription.has_enough
    subscription.pause(link, 7)  # type: ignore[arg-type]
    return link, subscription


def test_busy_consumer_pauses_its_subscription() -> None:
    link, subscription = paused()
    assert not subscription.active
    assert not subscription.has_enough, "it is reported once"
    assert 0 < subscription.rest() <= PAUSE_SECONDS
    subscription.claimed(9.0, full=False)
    assert subscription.rest() == 0, "a partial claim ends the pause"
    assert len(link.done) == 1


def test_partial_claim_resets_the_count() -> None:
    subscription = Subscription()
    for full in (True, True, False, True, True):
        subscription.claimed(0.0, full)
        assert not subscription.has_enough


def test_resumed_consumer_polls_again_after_second_look() -> None:
    """Publishers that did not see the subscription yet have not sent a notification."""
    link, subscription = paused()
    began = time.monotonic()
    subscription.resume(link, 7)
    assert subscription.active
    assert began + SECOND_LOOK <= subscription.look_at <= time.monotonic() + SECOND_LOOK
    look_at = subscription.look_at
    assert not subscription.look_is_due(look_at - 0.001)
    assert subscription.look_is_due(look_at)
    assert not subscription.look_is_due(look_at), "it is reported once"


@pytest.mark.parametrize(("after", "left"), [(-0.001, True), (0.0, False)])
def test_late_claim_replaces_the_second_look(after: float, left: bool) -> None:
    subscription = Subscription()
    subscription.missed()
    subscription.claimed(subscription.look_at + after, full=False)
    assert (subscription.look_at < math.inf) is left
