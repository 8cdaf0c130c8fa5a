"""Queues of RabbitMQ that are there, are not there, and are not served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import AMQPError, NotFound, PreconditionFailed

from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports.amqp.queues import NotServed, Queues

DOWN = "NOT_FOUND - home node 'rabbit@a' of durable queue 'q' in vhost '/' is down or inaccessible"
NONE = "NOT_FOUND - no queue 'q' in vhost '/'"


class FakeLink:
    """Answers each declaration, passive or not, with what the test has laid down."""

    address = SimpleNamespace(shown="amqp://here", user="guest")

    def __init__(self, passive: AMQPError | int, active: AMQPError | int) -> None:
        self._answers = {True: passive, False: active}

    def channel(self) -> Any:
        return self

    def close(self) -> None:
        pass

    def queue_bind(self, *words: Any) -> None:
        raise NotFound("NOT_FOUND - no exchange")  # nothing waits in this server

    def queue_declare(self, queue: str, passive: bool = False, **options: Any) -> Any:
        answer = self._answers[passive]
        if isinstance(answer, AMQPError):
            raise answer
        return SimpleNamespace(message_count=answer)

    def call(self, function: Any, *args: Any, **options: Any) -> Any:
        return function(*args, **options)


def link(passive: AMQPError | int, active: AMQPError | int = 0) -> Any:
    return FakeLink(passive, active)


def test_a_queue_that_is_not_there_is_made() -> None:
    assert Queues().look(link(NotFound(NONE)), "q") is None
    assert Queues().declare(link(NotFound(NONE), 3), "q") == 3
    assert Queues().declare(link(5), "q") == 5


@pytest.mark.parametrize("what", ["look", "declare"])
def test_one_that_is_there_and_not_served_is_no_missing_one(what: str) -> None:
    """Nor a mistake in the configuration, which would end a worker that starts beside its server."""
    with pytest.raises(NotServed, match=r"'x\.q' but does not serve it .*home node") as raised:
        getattr(Queues(prefix="x."), what)(link(NotFound(DOWN)), "q")
    assert isinstance(raised.value, BrokerUnavailable)


def test_one_that_stops_being_served_meanwhile() -> None:
    with pytest.raises(NotServed):
        Queues().declare(link(NotFound(NONE), NotFound(DOWN)), "q")


def test_one_that_cannot_be_made_is_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match="cannot be created"):
        Queues().declare(link(NotFound(NONE), PreconditionFailed("PRECONDITION_FAILED - invalid arg")), "q")
