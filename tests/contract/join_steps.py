"""Common steps of the tests of joins, and of the processes that they start.

Comes from:  test_joins.py, test_join_settlements.py and test_redis_joins.py.
Goes to:     the joins of a store, and its broker.
"""

from __future__ import annotations

from collections.abc import Iterable

from qworker.backends.joins import Finished, Joins
from qworker.transports.lease import Broker, Part
from tests.support.messages import message

QUEUE = "bodies"
SECONDS = 30.0
BODY = b"\x00the body\xff"


def parts(join: str, numbers: Iterable[int], status: str = "SUCCESS") -> list[Part]:
    return [Part(join, number, f"task-{join}-{number}", status) for number in numbers]


def drain(joins: Joins, broker: Broker) -> list[Finished]:
    """Claim and finish all joins, like a worker; return those finished by this call."""
    done = []
    while found := joins.claim(16, SECONDS):
        done += [join for join in found if joins.finish(join, [message(join.id, QUEUE)], broker.sender)]
    return done


def sent(broker: Broker) -> int:
    return broker.admin.depths([QUEUE])[0].ready
