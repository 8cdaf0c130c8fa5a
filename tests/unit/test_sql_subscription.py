"""When publishers are to notify a consumer, and when it looks for what they did not tell."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from qworker.transports.sql.consumer import FULL_CLAIMS, PAUSE_SECONDS, SECOND_LOOK, Subscription


class FakeLink:
    """Notes what is changed."""

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


def test_who_has_enough_is_not_notified_for_a_while() -> None:
    link, subscription = paused()
    assert not subscription.active
    assert not subscription.has_enough, "it is said once"
    assert 0 < subscription.rest() <= PAUSE_SECONDS
    subscription.claimed(9.0, full=False)
    assert subscription.rest() == 0, "it has not enough any more"
    assert len(link.done) == 1


def test_a_claim_that_is_not_full_counts_anew() -> None:
    subscription = Subscription()
    for full in (True, True, False, True, True):
        subscription.claimed(0.0, full)
        assert not subscription.has_enough


def test_who_listens_again_looks_once_more_a_little_later() -> None:
    """Whoever published before it said so has notified nobody."""
    link, subscription = paused()
    began = time.monotonic()
    subscription.resume(link, 7)
    assert subscription.active
    assert began + SECOND_LOOK <= subscription.look_at <= time.monotonic() + SECOND_LOOK
    look_at = subscription.look_at
    assert not subscription.look_is_due(look_at - 0.001)
    assert subscription.look_is_due(look_at)
    assert not subscription.look_is_due(look_at), "it is said once"


@pytest.mark.parametrize(("after", "left"), [(-0.001, True), (0.0, False)])
def test_a_claim_that_began_late_enough_is_that_look(after: float, left: bool) -> None:
    subscription = Subscription()
    subscription.missed()
    subscription.claimed(subscription.look_at + after, full=False)
    assert (subscription.look_at < math.inf) is left
