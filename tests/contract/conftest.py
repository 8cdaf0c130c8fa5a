"""Fixtures of several suites: the servers of this test process, and places for joins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.transports.lease import Broker
from tests.acceptance.sqs_server import Sqs
from tests.contract.join_places import JOIN_PLACES, JoinPlace
from tests.contract.place_disque import disque_server
from tests.contract.place_ironmq import ironmq_server
from tests.contract.place_sqs import sqs_server
from tests.support.disque_server import DisqueServer
from tests.support.ironmq_server import IronMQ


@pytest.fixture(scope="session")
def sqs() -> Iterator[Sqs]:
    with sqs_server() as server:
        yield server


@pytest.fixture(scope="session")
def ironmq() -> Iterator[IronMQ]:
    with ironmq_server() as server:
        yield server


@pytest.fixture(scope="session")
def disque() -> Iterator[DisqueServer]:
    with disque_server() as server:
        yield server


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Iterator[JoinPlace]:
    """Return a place for joins, for suites that do not define one."""
    place = JOIN_PLACES[kind](tmp_path)
    yield place
    place.clear()


@pytest.fixture
def broker(place: JoinPlace) -> Iterator[Broker]:
    broker = place.broker()
    yield broker
    broker.close()
