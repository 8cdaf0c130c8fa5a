"""Queues of RabbitMQ that exist, are missing, or are not served by any node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import AMQPError, NotFound, PreconditionFailed

from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports.amqp.queues import NotServed, Queues

HOME_NODE_DOWN = "NOT_FOUND - home node 'rabbit@a' of durable queue 'q' in vhost '/' is down or inaccessible"
NO_QUEUE = "NOT_FOUND - no queue 'q' in vhost '/'"


class FakeLink:
    """Answers passive and active declarations as the test says: a number of messages, or an error."""

    address = SimpleNamespace(shown="amqp://here", user="guest")

    def __init__(self, passive: AMQPError | int, active: AMQPError | int) -> None:
        self._answers = {True: passive, False: active}

    def channel(self) -> Any:
        return self

    def close(self) -> None:
        pass

    def queue_bind(self, *words: Any) -> None:
        raise NotFound("NOT_FOUND - no exchange")  # no delays in this server

    def queue_declare(self, queue: str, passive: bool = False, **options: Any) -> Any:
        answer = self._answers[passive]
        if isinstance(answer, AMQPError):
            raise answer
        return SimpleNamespace(message_count=answer)

    def call(self, function: Any, *args: Any, **options: Any) -> Any:
        return function(*args, **options)


def link(passive: AMQPError | int, active: AMQPError | int = 0) -> Any:
    return FakeLink(passive, active)


def test_missing_queue_is_declared() -> None:
    assert Queues().look(link(NotFound(NO_QUEUE)), "q") is None
    assert Queues().declare(link(NotFound(NO_QUEUE), 3), "q") == 3
    assert Queues().declare(link(5), "q") == 5


@pytest.mark.parametrize("what", ["look", "declare"])
def test_unserved_queue_is_not_reported_as_missing(what: str) -> None:
    """Nor a configuration error, which would end a worker that starts together with its server."""
    with pytest.raises(NotServed, match=r"'x\.q' but does not serve it .*home node") as raised:
        getattr(Queues(prefix="x."), what)(link(NotFound(HOME_NODE_DOWN)), "q")
    assert isinstance(raised.value, BrokerUnavailable)


def test_queue_that_becomes_unserved_while_it_is_declared() -> None:
    with pytest.raises(NotServed):
        Queues().declare(link(NotFound(NO_QUEUE), NotFound(HOME_NODE_DOWN)), "q")


def test_refused_declaration_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="cannot be created"):
        Queues().declare(
            link(NotFound(NO_QUEUE), PreconditionFailed("PRECONDITION_FAILED - invalid arg")), "q"
        )
