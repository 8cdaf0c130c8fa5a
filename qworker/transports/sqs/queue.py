"""One queue of Amazon SQS: what the plain path asks of kombu's Queue, in batches, and without waiting.

Comes from:  ``broker.py``.
Goes to:     the boto client of kombu's channel.
Thread:      its user's; a LongPoll has a thread besides, which waits for messages and does nothing else.

kombu's transport sends and gets one message at a time, and does nothing else while it waits for one.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from queue import SimpleQueue
from typing import Any, NamedTuple

from qworker.errors import PublishError
from qworker.message.kombu_json import dumps
from qworker.naming import task_id
from qworker.transports.kombu.messages import Outgoing
from qworker.transports.own_headers import PACKED

FIFO = ".fifo"
"""How the names of queues end that keep an order; they delay no single message."""
PORTION_BYTES = 250_000
BATCH = 10
"""The most messages that SQS takes or gives at a time."""
GONE = frozenset({"ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight"})
"""What SQS says of a message that was given to somebody else meanwhile, or deleted."""
UNFIT = frozenset({"BatchRequestTooLong", "InvalidParameterValue", "InvalidMessageContents"})
"""What it says of messages that it will never take."""


class Count(NamedTuple):
    """How a queue stands, about. message_count: what can be received now."""

    message_count: int
    delayed: int
    leased: int


class Received:
    """A message, with what ``kombu/consumer.py`` and ``kombu/messages.py`` ask of kombu's.

    renew_at: the monotonic time at which it is to be hidden from others for longer.
    """

    def __init__(self, queue: SqsQueue, found: dict[str, Any], renew_at: float) -> None:
        content = _content(queue.channel, found)
        times = str(found.get("Attributes", {}).get("ApproximateReceiveCount", "1"))
        self.queue = queue
        self.receipt: str = found["ReceiptHandle"]
        self.renew_at = renew_at
        self.acknowledged = False
        self.headers = content.headers
        self.properties = content.properties
        self.content_type = content.content_type
        self.content_encoding = content.content_encoding
        self.body = content.body
        self.delivery_tag: str = found["MessageId"]
        self.delivery_info = {**(content.delivery_info or {}), "redelivered": times != "1"}

    def ack(self) -> None:
        self.acknowledged = True
        self.queue.finished.append(self)
        if not self.queue.together:
            self.queue.delete_finished()

    def requeue(self) -> None:
        self.queue.hide([self], 0)


class SqsQueue:
    """The queue *name*, which is made if there is none. hidden: seconds for which others do not get what was
    received."""

    def __init__(self, channel: Any, name: str, hidden: int) -> None:
        self.channel = channel
        self.name = name
        self.hidden = hidden
        self.finished: list[Received] = []
        """What was acknowledged and is still to be deleted."""
        self.together = False
        """Whether acknowledged messages are deleted together, by delete_finished()."""
        self.url: str = channel._new_queue(name)
        self._spare: deque[Received] = deque()

    @property
    def client(self) -> Any:
        """Of boto; the channel renews it when its credentials end."""
        return self.channel.sqs(queue=self.channel.canonical_queue_name(self.name))

    def entry(self, message: Outgoing, delay: int) -> dict[str, Any]:
        """*message* as kombu's transport would send it, for send(). delay: seconds until it can be
        received."""
        options = {"delivery_mode": 2, **message.options}
        given = {
            name: options.pop(name) for name in ("priority", "content_type", "content_encoding", "headers")
        }
        content = self.channel.prepare_message(message.body, properties=options, **given)
        if PACKED in given["headers"]:  # it is text, and as small as can be
            content["body"], encoding = message.body.decode("ascii"), None
        else:
            content["body"], encoding = self.channel.encode_body(content["body"], "base64")
        content["properties"] |= {
            "body_encoding": encoding,
            "delivery_tag": options["message_id"],
            "delivery_info": {"exchange": "", "routing_key": self.name},
        }
        body = base64.b64encode(dumps(content).encode()).decode()
        if self.name.endswith(FIFO):
            return {"MessageBody": body, "MessageGroupId": "default", "MessageDeduplicationId": task_id()}
        return {"MessageBody": body, "DelaySeconds": delay}

    def send(self, entries: Sequence[dict[str, Any]]) -> None:
        """As many as portions() gives. When some were not taken it raises PublishError, if that is for ever,
        OSError if not, and what boto raises."""
        numbered = [{"Id": str(number), **entry} for number, entry in enumerate(entries)]
        for failure in (
            self.client.send_message_batch(QueueUrl=self.url, Entries=numbered).get("Failed") or ()
        ):
            unfit = str(failure["Code"]).rpartition(".")[2] in UNFIT
            raise (PublishError if unfit else OSError)(
                f"send_message_batch: {failure['Code']}: {failure.get('Message', '')}"
            )

    def receive(self, count: int, seconds: int) -> list[Received]:
        """Up to *count* messages; waits for the first of them for so many *seconds*."""
        asked = time.monotonic()
        answer = self.client.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=max(1, min(count, BATCH)),
            WaitTimeSeconds=seconds,
            VisibilityTimeout=self.hidden,
            AttributeNames=["ApproximateReceiveCount"],
        )
        # They were hidden at an unknown moment of the wait: when nobody waited for long, at its beginning.
        renew_at = max(asked, time.monotonic() - 1.0) + self.hidden / 3
        return [Received(self, found, renew_at) for found in answer.get("Messages") or ()]

    def get(self, no_ack: bool = False) -> Received | None:
        """One message; None when there is none. It asks all of SQS's servers, and so takes a second to say
        no."""
        if not self._spare:
            self._spare.extend(self.receive(BATCH, 1))
        return self._spare.popleft() if self._spare else None

    def hide(self, messages: Iterable[Received], seconds: int) -> list[Received]:
        """Hide *messages* of this queue from now on for so many *seconds*; return those that are not ours any
        more."""
        entries = [(one, {"VisibilityTimeout": seconds}) for one in messages]
        gone = []
        for batch in _batches(entries):
            gone += self._do("change_message_visibility_batch", batch)
        now = time.monotonic()
        for one, _ in entries:
            one.renew_at = now + seconds / 3
        return gone

    def delete_finished(self) -> list[Received]:
        """Delete what was acknowledged; return what was not ours any more, and may run again."""
        gone = []
        while self.finished:
            batch = self.finished[:BATCH]
            gone += self._do("delete_message_batch", [(one, {}) for one in batch])
            del self.finished[: len(batch)]
        return gone

    def _do(self, operation: str, batch: list[tuple[Received, dict[str, Any]]]) -> list[Received]:
        entries = [
            {"Id": str(number), "ReceiptHandle": one.receipt, **more}
            for number, (one, more) in enumerate(batch)
        ]
        failed = getattr(self.client, operation)(QueueUrl=self.url, Entries=entries).get("Failed") or ()
        for failure in failed:
            if failure["Code"] not in GONE:
                raise OSError(f"{operation}: {failure['Code']}: {failure.get('Message', '')}")
        return [batch[int(failure["Id"])][0] for failure in failed]

    def queue_declare(self, passive: bool = False) -> Count:
        names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "Delayed", "NotVisible")]
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return Count(*(int(found.get(name, 0)) for name in names))

    def purge(self) -> int:
        """Delete all that waits or is due later; what is being run, too, should its worker die."""
        count = self.queue_declare()
        self.client.purge_queue(QueueUrl=self.url)
        return count.message_count + count.delayed


class LongPoll:
    """The messages of *queue*, waited for by a thread, for *seconds* at a time. ring: called when there is
    news.

    Only what was asked for is received, so that nothing is hidden here from workers that have room for it.
    """

    def __init__(self, queue: SqsQueue, seconds: int, ring: Callable[[], None]) -> None:
        self.queue = queue
        queue.together = True
        self.arrived: deque[Received] = deque()
        self._seconds = seconds
        self._ring = ring
        self._under_way = self._abandoned = False
        self._orders: SimpleQueue[int] = SimpleQueue()
        self._answers: SimpleQueue[list[Received] | Exception] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"sqs {queue.name}", daemon=True)
        self._thread.start()

    def ask(self, room: int) -> None:
        """Wait for up to *room* messages, unless that is under way."""
        if not self._under_way and not self.arrived:
            self._under_way = True
            self._orders.put(room)

    def collect(self) -> None:
        """Take in what has come. Raises what went wrong instead."""
        while not self._answers.empty():
            self._under_way = False
            answer = self._answers.get()
            if isinstance(answer, Exception):
                raise answer
            self.arrived.extend(answer)

    def get(self, no_ack: bool = False) -> Received | None:
        return self.arrived.popleft() if self.arrived else None

    def close(self) -> None:
        """Ask no more; join() waits for what is under way."""
        self._orders.put(0)

    def join(self, seconds: float) -> None:
        """Take in what is on its way, but do not wait for longer than that. What comes later is shown to
        others again, or, when this process has ended by then, hidden for as long as the queue hides what it
        gives."""
        self._thread.join(max(0.0, seconds))
        self._abandoned = self._thread.is_alive()
        try:
            self.collect()
        except Exception:  # noqa: BLE001 - whatever it was: nothing has come
            pass

    def _run(self) -> None:
        while room := self._orders.get():
            answer: list[Received] | Exception
            try:
                answer = self.queue.receive(room, self._seconds)
                if self._abandoned:
                    self.queue.hide(answer, 0)
                    return
            except Exception as error:  # noqa: BLE001 - collect() raises it where it is understood
                answer = error
            self._answers.put(answer)
            self._ring()


def _content(channel: Any, found: dict[str, Any]) -> Any:
    """What kombu put into a message, or else all of it as the body: it is for others to say what is wrong
    with it."""
    text: str = found["Body"]
    for decode in (lambda: base64.b64decode(text, validate=True), lambda: text):
        try:
            payload = json.loads(decode())
            payload["properties"]["delivery_tag"] = found["MessageId"]
            payload["headers"] = dict(payload.get("headers") or {})
            return channel.Message(payload, channel=channel)
        except Exception:  # noqa: BLE001 - anybody may send anything
            continue
    raw = {"body": text, "headers": {}, "properties": {"delivery_tag": found["MessageId"]}}
    return channel.Message(raw, channel=channel)


def portions(entries: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """*entries*, as many at a time as SQS takes."""
    found: list[dict[str, Any]] = []
    size = 0
    for entry in entries:
        length = len(entry["MessageBody"])
        if found and (len(found) == BATCH or size + length > PORTION_BYTES):
            yield found
            found, size = [], 0
        found.append(entry)
        size += length
    if found:
        yield found


def _batches(entries: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(entries)
    while batch := list(islice(left, BATCH)):
        yield batch
