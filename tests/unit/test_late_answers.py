"""A lease that ends while the server extends it or deletes its message."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from qworker.transports.disque.nodes import Answer
from qworker.transports.disque.queue import DisqueQueue
from qworker.transports.held.port import Received, ServerQueue
from qworker.transports.nats.queue import NatsQueue

NODE = ("h", 7711)
JOB = "D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1"
ANSWERS = {"WORKING": 30, "ACKJOB": 1, "FASTACK": 1}
Make = Callable[[Callable[[], None]], ServerQueue]


def nats(asked: Callable[[], None]) -> ServerQueue:
    def exchange(posts: Any) -> list[Any]:
        asked()
        return [SimpleNamespace(headers=None)]

    connection: Any = SimpleNamespace(exchange=exchange)
    return NatsQueue(connection, "q", stream="s", subject="s.q", consumer="q", lease_seconds=30)


def disque(asked: Callable[[], None]) -> ServerQueue:
    def ask(commands: Any, **_: Any) -> Answer:
        asked()
        return Answer([ANSWERS[command[0]] for command in commands], NODE)

    cluster: Any = SimpleNamespace(ask=ask)
    options: Any = SimpleNamespace(fastack=False)
    return DisqueQueue(cluster, "q", options)


def sqs(asked: Callable[[], None]) -> ServerQueue:
    pytest.importorskip("boto3", reason='pip install "qworker-queue[sqs]"')
    from qworker.transports.sqs.queue import SqsQueue

    def call(QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        asked()
        return {"Successful": Entries}

    client = SimpleNamespace(change_message_visibility_batch=call, delete_message_batch=call)
    channel = SimpleNamespace(_new_queue=str, canonical_queue_name=str, sqs=lambda queue: client)
    return SqsQueue(channel, "q", 30, 30)


@pytest.mark.parametrize("operation", ["extend", "finish"])
@pytest.mark.parametrize("make", [nats, disque, sqs])
def test_answer_after_the_end_of_a_lease_counts_as_lost(make: Make, operation: str) -> None:
    """The server may have delivered the message to another consumer before it executed the command."""
    ends: list[Received] = []

    def asked() -> None:
        for message in ends:
            message.expires = 0.0

    queue = make(asked)
    receipt = SimpleNamespace(job=JOB, node=NODE, until=math.inf)
    messages = [
        Received(queue, "{}", id=str(number), receipt=receipt, lease_seconds=30, redelivered=False)
        for number in range(2)
    ]
    assert getattr(queue, operation)(messages) == []
    ends.append(messages[1])
    assert getattr(queue, operation)(messages) == [messages[1]]
