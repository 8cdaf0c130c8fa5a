"""Inbox: requests messages from a JetStream consumer; and StreamReader, which reads a complete stream.

Comes from:  ``queue.py``, with the durable consumers of queues; ``broker.py``, which reads streams and
             takes nothing out of them.
Goes to:     ``client.py``.
Thread:      the requesting one, except interrupt().
"""

from __future__ import annotations

import json
import time
from collections import deque
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from qworker.transports.nats.client import Client, Post, Refused, Unanswered
from qworker.transports.nats.wire import WireMessage

AT_ONCE_SECONDS = 1.0
"""How long the server may take to deliver available messages. It does not always report that there are none:
it may count messages purged a moment ago."""
OLD_SUBJECTS = 4
"""How many old subjects may still receive messages of abandoned requests; later messages are delivered to
others when their lease expires."""
FORGOTTEN_AFTER_SECONDS = 60


class PulledMessage(NamedTuple):
    """since: the earliest monotonic time of its delivery, if that may be long ago: for an abandoned request.
    None: just now."""

    message: WireMessage
    since: float | None


class ReplySubject:
    """The subject for answers to our requests. since: the time of an abandoned request; None if there is
    none. A message does not name its request."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.subscription = ""
        self.since: float | None = None


class Inbox:
    """Receives requested messages. Used by one thread; interrupt() by any."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._replies: ReplySubject | None = None  # used by the requesting thread, as all below
        self._old: deque[ReplySubject] = deque()
        """Subjects that may still receive requested messages."""
        self._requests = 0
        self.silent = False
        """Whether the last request had no answer at all. JetStream does not answer requests to a deleted
        consumer."""
        self._arrived: SimpleQueue[tuple[WireMessage, ReplySubject] | Exception | None] = SimpleQueue()
        """None: there was an interrupt()."""
        self._interrupted = False

    def pull(self, subject: str, count: int, seconds: float) -> list[PulledMessage]:
        """Return up to *count* messages from JetStream's *subject* for the next message of a consumer; waits
        at most *seconds* for the first of them."""
        self._client.exchanges += 1
        at_once = {"batch": count, "no_wait": True}
        found = self._request(subject, at_once, AT_ONCE_SECONDS)
        if found or self.silent or seconds <= 0 or self._interrupted:
            return found
        # After the first one the others are requested: a request for many would wait for all.
        found = self._request(subject, {"batch": 1, "expires": int(seconds * 1e9)}, seconds + 1.0)
        if found and count > 1 and not self._interrupted:
            found += self._request(subject, {**at_once, "batch": count - 1}, AT_ONCE_SECONDS)
        return found

    def interrupt(self) -> None:
        """Make the current pull() return the messages received so far, and the next one return at once."""
        self._interrupted = True
        self._arrived.put(None)

    def _request(self, subject: str, request: dict[str, Any], seconds: float) -> list[PulledMessage]:
        replies = self._replies or self._open()
        asked = time.monotonic()
        self._requests += 1
        reply = f"{replies.subject}.{self._requests}"
        post = Post(subject, json.dumps(request).encode(), reply=reply)
        found: list[PulledMessage] = []
        own = 0
        self.silent = False
        try:
            wire = self._client.publish(post, asked + self._client.timeout)
            end = time.monotonic() + seconds
            while len(found) < request["batch"]:
                item = self._client.wait(self._arrived, wire, end)
                if item is None:
                    if "no_wait" not in request:
                        return found + self._drained(replies)
                    continue
                message, at = item
                status = (message.headers or {}).get("Status")
                if not status:
                    found.append(PulledMessage(message, at.since))
                    own += at is replies
                elif message.subject == reply and status != "100":
                    if status not in ("404", "408") and not found:
                        raise Refused(int(status), str((message.headers or {}).get("Description", "")))
                    return found
        except (TimeoutError, ConnectionError) as error:
            self._retire(replies, asked)
            self.silent = not found
            if not found and (isinstance(error, Unanswered) or not isinstance(error, TimeoutError)):
                raise
            return found  # messages in transit come with the next, or are delivered to others
        if own < request["batch"]:
            self._retire(replies, asked)
        return found

    def _open(self) -> ReplySubject:
        replies = ReplySubject(self._client.new_subject())
        replies.subscription = self._client.subscribe(f"{replies.subject}.*", partial(self._take, replies))
        self._replies = replies
        return replies

    def _take(self, replies: ReplySubject, message: WireMessage) -> None:
        self._arrived.put((message, replies))

    def _retire(self, replies: ReplySubject, asked: float) -> None:
        """The delivery time of later messages in *replies* is unknown: not before *asked*."""
        replies.since = asked
        self._replies = None
        self._old.append(replies)
        if len(self._old) > OLD_SUBJECTS:
            self._client.forget(self._old.popleft().subscription)

    def _drained(self, replies: ReplySubject) -> list[PulledMessage]:
        """Return messages sent before the server knew that no more are wanted."""
        self._replies = None
        self._client.unsubscribe(replies.subscription)  # messages already sent by the server have arrived
        found: list[PulledMessage] = []
        while not self._arrived.empty():
            item = self._arrived.get()
            if isinstance(item, tuple) and not (item[0].headers or {}).get("Status"):
                found.append(PulledMessage(item[0], item[1].since))
        return found


class StreamEntry(NamedTuple):
    """A message in a stream. number: its place there. stored: nanoseconds of the server's wall clock at which
    it was stored."""

    number: int
    stored: int
    subject: str
    data: bytes


class StreamReader:
    """Reads *stream*, from its beginning, or from messages stored at *start* or later (nanoseconds); with a
    temporary consumer."""

    def __init__(self, client: Client, stream: str, start: int | None = None) -> None:
        self._client = client
        self._stream = stream
        self._inbox = Inbox(client)
        config: dict[str, Any] = {
            "deliver_policy": "all",
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": FORGOTTEN_AFTER_SECONDS * 10**9,
        }
        if start is not None:
            moment = datetime.fromtimestamp(start // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            config |= {
                "deliver_policy": "by_start_time",
                "opt_start_time": f"{moment}.{start % 10**9:09d}Z",
            }
        request = {"stream_name": stream, "config": config}
        self._consumer = str(client.ask(f"CONSUMER.CREATE.{stream}", request)["name"])
        self._count = 0

    def read(self, count: int) -> list[StreamEntry]:
        """Return up to *count* more; [] at the end. TimeoutError when none arrive although there are more."""
        next_message = f"{self._client.api}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        end = time.monotonic() + self._client.timeout
        while not (found := self._inbox.pull(next_message, count, 0)) and self._inbox.silent:
            if not self._has_more():
                break
            if time.monotonic() >= end:
                raise TimeoutError(f"stream {self._stream} does not deliver its messages")
        self._count += len(found)
        return [
            StreamEntry(int(words[-4]), int(words[-2]), one.subject, one.data)
            for one, _ in found
            if (words := one.reply.split("."))
        ]

    def _has_more(self) -> bool:
        """Whether the server has more messages, or some are in transit."""
        found = self._client.ask(f"CONSUMER.INFO.{self._stream}.{self._consumer}")
        return int(found["delivered"]["consumer_seq"]) > self._count or int(found["num_pending"]) > 0

    def rest(self) -> list[StreamEntry]:
        """Return all remaining messages, and delete the consumer."""
        entries: list[StreamEntry] = []
        while found := self.read(500):
            entries += found
        self._client.ask(f"CONSUMER.DELETE.{self._stream}.{self._consumer}")
        return entries
