"""Publishing to SQS, in portions of ten.

Comes from:  any thread, by ``Broker.sender``; the consumer, for what goes on.
Goes to:     ``queue.py``, on a connection of its own.
Thread:      any, in turn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from botocore.exceptions import ClientError, ParamValidationError

from qworker.errors import BrokerUnavailable, PublishError
from qworker.transports.kombu.messages import Outgoing
from qworker.transports.kombu.sender import KombuSender
from qworker.transports.own_headers import DUE
from qworker.transports.sqs.queue import UNFIT, SqsQueue, portions
from qworker.transports.sqs.server import code_of

LONGEST_DELAY = 900
"""Seconds for which SQS keeps a message to itself, at most."""


class SqsSender(KombuSender):
    """What is due later goes to SQS with a delay."""

    def send(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> None:
        if not messages:
            return
        deadline = time.monotonic() + timeout
        with self._publishing(timeout):
            for name in dict.fromkeys(message.queue for message in messages):
                if name not in self._declared:
                    self._declared[name] = self._server.declare(self._connection, name)
                queue: SqsQueue = self._declared[name]
                entries = (
                    queue.entry(message, self._delay(message))
                    for message in messages
                    if message.queue == name
                )
                for portion in portions(entries):
                    if time.monotonic() >= deadline:
                        raise BrokerUnavailable(
                            f"{self._server.shown} took not all messages within {timeout:g} s"
                        )
                    try:
                        queue.send(portion)
                    except (ClientError, ParamValidationError) as error:
                        if isinstance(error, ParamValidationError) or code_of(error) in UNFIT:
                            raise PublishError(f"{self._server.shown}: {error}") from error
                        raise
        self._notify()

    def _delay(self, message: Outgoing) -> int:
        """For how many seconds SQS is to keep *message* to itself."""
        due = message.options["headers"].get(DUE)
        return 0 if due is None else max(0, min(LONGEST_DELAY, int(due - self._clock.now())))
