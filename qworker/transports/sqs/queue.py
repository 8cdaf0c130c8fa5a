"""One queue of Amazon SQS, in batches.

Comes from:  ``broker.py``.
Goes to:     the boto client of kombu's channel.
Thread:      see ServerQueue; boto's clients serve several.

kombu's transport sends and gets one message at a time, and does nothing else while it waits for one.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from botocore.exceptions import ClientError, ParamValidationError

from qworker.errors import PublishError
from qworker.transports.held.messages import Outgoing
from qworker.transports.held.port import (
    Count,
    NewMessage,
    NotAll,
    Received,
    ServerQueue,
    by_lease,
    expired_leases,
)

FIFO = ".fifo"
"""Suffix of queues that keep an order; they cannot delay single messages."""
LONGEST_DELAY = 900
"""Maximum seconds for which SQS delays a message."""
GONE = frozenset({"ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight"})
"""SQS's errors for a message that has since been delivered to another consumer, or deleted."""
REFUSED = frozenset({"BatchRequestTooLong", "InvalidParameterValue", "InvalidMessageContents"})
"""Its errors for messages that it will never accept."""


NONSENSE = "the answer is not one of SQS"


class SqsQueue(ServerQueue):
    """The queue *name*, created if missing. hidden: seconds for which received messages are hidden from
    others. visibility: the same for extended ones."""

    batch = 10
    portion_bytes = 250_000
    look_seconds = 1.0  # so that all of SQS's servers are queried

    def __init__(self, channel: Any, name: str, hidden: int, visibility: int) -> None:
        self.channel = channel
        self.name = name
        self.hidden = hidden
        self.visibility = visibility
        self.fifo = name.endswith(FIFO)
        self.longest_delay = 0 if self.fifo else LONGEST_DELAY
        self.url: str = channel._new_queue(name)

    @property
    def client(self) -> Any:
        """Return boto's client; the channel renews it when its credentials expire."""
        return self.channel.sqs(queue=self.channel.canonical_queue_name(self.name))

    def text(self, message: Outgoing) -> str:
        return base64.b64encode(super().text(message).encode()).decode()

    def send(self, entries: Sequence[NewMessage]) -> None:
        numbered = [
            {"Id": str(number), "MessageBody": entry.text, **self._way(entry)}
            for number, entry in enumerate(entries)
        ]
        try:
            answer = self.client.send_message_batch(QueueUrl=self.url, Entries=numbered)
        except (ClientError, ParamValidationError) as error:
            if isinstance(error, ParamValidationError) or code_of(error) in REFUSED:
                raise PublishError(f"{self.name}: {error}") from error
            raise
        failed = failures_in(answer, "send_message_batch", numbered)
        for failure in failed:
            if str(failure["Code"]).rpartition(".")[2] in REFUSED:
                raise PublishError(_described("send_message_batch", failure))
        if failed:
            raise NotAll(_places(failed), OSError(_described("send_message_batch", failed[0])))

    def _way(self, entry: NewMessage) -> dict[str, Any]:
        if self.fifo:
            return {"MessageGroupId": "default", "MessageDeduplicationId": entry.id}
        return {"DelaySeconds": entry.delay}

    def take(self, count: int, seconds: float) -> list[Received]:
        answer = self.client.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=count,
            WaitTimeSeconds=int(seconds),
            VisibilityTimeout=self.hidden,
            AttributeNames=["ApproximateReceiveCount"],
        )
        return [self.received(found) for found in answer.get("Messages") or ()]

    def received(self, found: dict[str, Any]) -> Received:
        """Return a message from SQS's form."""
        times = str(found.get("Attributes", {}).get("ApproximateReceiveCount", "1"))
        return Received(
            self,
            found["Body"],
            id=found["MessageId"],
            receipt=found["ReceiptHandle"],
            lease_seconds=self.hidden,
            redelivered=times != "1",
        )

    def extend(self, messages: Sequence[Received]) -> list[Received]:
        gone = self._do("change_message_visibility_batch", messages, VisibilityTimeout=self.visibility)
        for one in messages:
            one.lease_seconds = self.visibility
        return gone + expired_leases(one for one in messages if one not in gone)

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        """Leaves out the same messages as finish()."""
        self._do("change_message_visibility_batch", messages, by_lease(messages)[1], VisibilityTimeout=delay)

    def finish(self, messages: Sequence[Received]) -> list[Received]:
        """Messages that others may have by now are left out: SQS would delete them even with an old
        receipt."""
        _, gone = by_lease(messages)
        gone += self._do("delete_message_batch", messages, gone)
        return gone + expired_leases(one for one in messages if one not in gone)

    def _do(
        self, operation: str, messages: Sequence[Received], without: Sequence[Received] = (), **more: Any
    ) -> list[Received]:
        """Carry out *operation* on *messages* except those of *without*; return those that are gone."""
        left_out = {*map(id, without)}
        entries = [
            {"Id": str(number), "ReceiptHandle": one.receipt, **more}
            for number, one in enumerate(messages)
            if id(one) not in left_out
        ]
        if not entries:
            return []
        answer = getattr(self.client, operation)(QueueUrl=self.url, Entries=entries)
        failed = failures_in(answer, operation, entries)
        for failure in failed:
            if failure["Code"] not in GONE:
                late = [number for number, one in enumerate(messages) if id(one) in left_out]
                raise NotAll([*late, *_places(failed)], OSError(_described(operation, failure)))
        return [messages[int(failure["Id"])] for failure in failed]

    def count(self) -> Count:
        names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "Delayed", "NotVisible")]
        answer = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        if "Attributes" not in answer:
            raise OSError(f"get_queue_attributes: {NONSENSE}")
        found = answer["Attributes"]
        return Count(*(int(found.get(name, 0)) for name in names))

    def purge(self) -> int:
        """Also deletes running messages: they are lost if their worker dies."""
        count = self.count()
        self.client.purge_queue(QueueUrl=self.url)
        return count.ready + count.delayed


def _places(failed: Sequence[dict[str, Any]]) -> list[int]:
    return [int(failure["Id"]) for failure in failed]


def _described(operation: str, failure: dict[str, Any]) -> str:
    """Describe *failure* without SQS's flag for faults of the sender, which does not show whether it is
    temporary: a throttled KMS key sets it."""
    return f"{operation}: {failure['Code']}: {failure.get('Message', '')}"


def failures_in(
    answer: dict[str, Any], operation: str, entries: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return which of *entries* have failed, according to the *answer*. OSError when it does not mention all
    of them: a proxy may answer anything, and boto accepts a page of HTML as an empty answer."""
    failed = list(answer.get("Failed") or ())
    mentioned = {one["Id"] for one in (*failed, *(answer.get("Successful") or ()))}
    if not mentioned.issuperset(entry["Id"] for entry in entries):
        raise OSError(f"{operation}: {NONSENSE}")
    return failed


def code_of(error: BaseException | None) -> str:
    """Return SQS's code for *error*, without the prefix of the service; "" for any other."""
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition(".")[2]
