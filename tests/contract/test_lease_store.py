"""The shipped contract suite, for every broker of ours."""

from __future__ import annotations

import pytest

from qworker.testing.contract.suite import *  # noqa: F403
from qworker.testing.contract.suite.machine import test_random_operations_lose_and_duplicate_no_messages
from tests.contract.lease_places import PLACES

pytestmark = pytest.mark.contract
test_random_operations_lose_and_duplicate_no_messages = pytest.mark.timeout(300)(
    test_random_operations_lose_and_duplicate_no_messages
)


def test_every_cannot_names_a_test_of_the_suite() -> None:
    named = {test for place in PLACES.values() for test in place.cannot}
    assert named <= set(globals())
