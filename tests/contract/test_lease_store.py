"""The suite for brokers that we ship, on every broker of ours."""

from __future__ import annotations

import pytest

from qworker.testing.contract.suite import *  # noqa: F403
from qworker.testing.contract.suite.machine import test_a_bag_with_leases
from tests.contract.lease_places import PLACES

pytestmark = pytest.mark.contract
test_a_bag_with_leases = pytest.mark.timeout(300)(test_a_bag_with_leases)


def test_what_a_place_cannot_do_is_in_the_suite() -> None:
    named = {test for place in PLACES.values() for test in place.cannot}
    assert named <= set(globals())
