"""Random faults of every broker for some minutes; ``python -m tests.acceptance.nemesis`` runs longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.brokers import Broken
from tests.acceptance.nemesis import unleash

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(300)]

SECONDS = {"redis": 20.0, "postgresql": 20.0, "rabbitmq": 20.0}


def test_all_invariants_hold(broken: Broken, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    reckoning = unleash(broken, tmp_path, SECONDS[request.node.callspec.params["broken"]], seed=94)
    print(reckoning)
    assert sum(reckoning.harms.values()) > 5
    assert reckoning.accepted > 100
