"""IronMQ as a broker.

Comes from:  ``broker_url = "ironmq://…"``.
Goes to:     ``transports/held/``, with the server and its queues; ``client.py``.
Thread:      any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from qworker.errors import BrokerUnavailable, ConfigurationError, PublishError
from qworker.interrupts import reraise_interrupt
from qworker.transports.capabilities import (
    DEAD_LETTERS,
    ETA,
    IN_A_HEADER,
    NO_FANOUT,
    PROCESSES_ONLY,
    SENT_AGAIN,
    Capabilities,
    Capability,
)
from qworker.transports.connect_errors import IRONMQ as SPELLING
from qworker.transports.connect_errors import explained
from qworker.transports.held.broker import HeldBroker, held_broker, visibility_of
from qworker.transports.held.port import (
    DEAD,
    Count,
    NewMessage,
    NotAll,
    QueueGone,
    Received,
    Server,
    ServerQueue,
)
from qworker.transports.ironmq.address import address_of, tls_to
from qworker.transports.ironmq.client import Client, HTTPError, IronError

if TYPE_CHECKING:
    from qworker.conf import Settings

LONGEST_DELAY = 604_800
"""Maximum seconds for which IronMQ delays a message, and the default lifetime of any message."""
GONE = frozenset({403, 404})
"""Status codes for a message that has since been delivered to another consumer, or deleted."""
REFUSED = frozenset({400, 406, 413, 422})
"""Status codes for messages that it will never accept."""


class IronQueue(ServerQueue):
    """The queue *name*, created if missing, in batches where it has them. hidden: seconds for which received
    or extended messages are hidden from others, 30 to 86400.

    A reserved message is identified by its id and that of its reservation, which a touch replaces.
    """

    batch = 100
    longest_delay = LONGEST_DELAY
    longest_return = LONGEST_DELAY

    def __init__(self, client: Client, name: str, hidden: int) -> None:
        self.name = name
        self.hidden = hidden
        self._client = client
        self._path = f"/{quote(name, safe='')}"
        self._make()

    def _make(self) -> None:
        """Create the queue if it is missing; an existing one keeps its settings."""
        try:
            self._client.call("GET", self._path)
        except IronError as error:
            if error.status != 404:
                raise
            self._client.call("PUT", self._path, {"queue": {}})

    def send(self, entries: Sequence[NewMessage]) -> None:
        messages = [{"body": text, "delay": delay} for text, delay, _ in entries]
        try:
            answer = self._client.call("POST", f"{self._path}/messages", {"messages": messages})
        except IronError as error:
            if error.status in REFUSED:
                raise PublishError(f"IronMQ refuses it: {error}") from error
            raise
        ids = answer.get("ids")
        if not isinstance(ids, list) or len(ids) != len(messages):
            raise IronError(0, f"it does not confirm {len(messages)} messages")

    def take(self, count: int, seconds: float) -> list[Received]:
        wait = int(seconds)
        asked = {"n": count, "timeout": self.hidden, "wait": wait}
        answer = self._client.call("POST", f"{self._path}/reservations", asked, wait=wait)
        return [self.received(found) for found in answer.get("messages") or ()]

    def received(self, found: dict[str, Any]) -> Received:
        """Return a message from IronMQ's form."""
        return Received(
            self,
            str(found.get("body", "")),
            id=str(found["id"]),
            receipt=found.get("reservation_id"),
            lease_seconds=self.hidden,
            redelivered=found.get("reserved_count") not in (None, 1),
        )

    def extend(self, messages: Sequence[Received]) -> list[Received]:
        gone = []
        for message, answer in self._each(messages, "touch", {"timeout": self.hidden}):
            if answer is None:
                gone.append(message)
            else:
                message.receipt = answer.get("reservation_id") or message.receipt
        return gone

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        for _ in self._each(messages, "release", {"delay": delay}):
            pass

    def _each(
        self, messages: Sequence[Received], verb: str, more: dict[str, Any]
    ) -> Iterator[tuple[Received, dict[str, Any] | None]]:
        """Yield each message with IronMQ's answer to *verb*; None for those that are no longer ours."""
        for message in messages:
            path = f"{self._message(message)}/{verb}"
            try:
                yield message, self._client.call("POST", path, {"reservation_id": message.receipt, **more})
            except IronError as error:
                if error.status not in GONE:
                    raise
                yield message, None

    def _message(self, message: Received) -> str:
        return f"{self._path}/messages/{quote(message.delivery_tag, safe='')}"

    def finish(self, messages: Sequence[Received]) -> list[Received]:
        ids = [{"id": one.delivery_tag, "reservation_id": one.receipt} for one in messages]
        try:
            self._client.call("DELETE", f"{self._path}/messages", {"ids": ids})
        except IronError as error:  # one of them is no longer ours; it does not say which
            if error.status not in GONE:
                raise
            return self._delete_each(messages)
        return []

    def _delete_each(self, messages: Sequence[Received]) -> list[Received]:
        gone: list[int] = []
        for place, message in enumerate(messages):
            try:
                if not self._delete_one(message):
                    gone.append(place)
            except (HTTPError, OSError) as error:
                reraise_interrupt(error)
                raise NotAll([*gone, *range(place, len(messages))], error) from None
        return [messages[place] for place in gone]

    def _delete_one(self, message: Received) -> bool:
        try:
            self._client.call("DELETE", self._message(message), {"reservation_id": message.receipt})
        except IronError as error:
            if error.status not in GONE:
                raise
            return False
        return True

    def count(self) -> Count:
        """Return all as ready: IronMQ does not distinguish waiting, delayed and reserved ones."""
        queue = self._client.call("GET", self._path).get("queue") or {}
        return Count(int(queue.get("size") or 0))

    def purge(self) -> int:
        """Also deletes running messages: they are lost if their worker dies."""
        size = self.count().ready
        self._client.call("DELETE", f"{self._path}/messages", {})
        return size


LEASE_SECONDS = 30
"""How long messages are hidden by default; IronMQ's minimum."""
LONGEST_LEASE = 86_400
SHELF_SECONDS = 120
"""How long a dead letter is hidden while it is being read."""
WAIT_SECONDS = 20
LONGEST_WAIT = 30


class IronServer(Server):
    """visibility: seconds after which a dead worker's messages come back. options: ``wait_time_seconds``, of
    one long poll. use_ssl: as the setting broker_use_ssl."""

    def __init__(
        self, url: str, options: dict[str, Any], visibility: int, timeout: float, use_ssl: Any = None
    ) -> None:
        super().__init__(url, timeout)
        self._address = address_of(url, os.environ)
        self._tls = tls_to(url, use_ssl)
        self._hidden = min(LONGEST_LEASE, max(LEASE_SECONDS, visibility))
        self.wait_seconds = min(LONGEST_WAIT, max(0, int(options.get("wait_time_seconds", WAIT_SECONDS))))
        self._answered = False

    def connect(self) -> Client:
        with self.errors(None):
            client = Client(self._address, self.timeout, self._tls and self._tls.context())
            client.call("GET", "?per_page=1")
        self._answered = True
        return client

    @contextmanager
    def errors(self, connection: Any) -> Iterator[None]:
        try:
            yield
        except IronError as error:
            if error.status in (401, 403) and not self._answered:
                raise ConfigurationError(
                    f"{self.shown} refuses the login: {error}; check the project and the token",
                    setting="broker_url",
                ) from error
            if error.status == 404 and not self._answered:
                raise ConfigurationError(
                    f"{self.shown} has no such project: {error}; check the project, the host and the path",
                    setting="broker_url",
                ) from error
            kind = QueueGone if error.status == 404 else BrokerUnavailable
            raise kind(f"{self.shown}: {error}") from error
        except (HTTPError, OSError) as error:
            why = explained(f"{type(error).__name__}: {error}", SPELLING)
            raise BrokerUnavailable(f"{self.shown}: {why}") from error

    def declare(self, connection: Any, queue: str) -> IronQueue:
        shelf = SHELF_SECONDS if queue == DEAD else 0
        return IronQueue(connection, queue, max(self._hidden, shelf))


CAPABILITIES = Capabilities(
    "IronMQ",
    ("ironmq", "ironmq+http", "ironmq+https"),
    accepted="IronMQ has answered that it has the message; of many sent together, some may be accepted "
    "although an error was raised",
    redelivered="when its reservation ends (`visibility_timeout`, 30 s if not set); a live worker renews "
    "that, so tasks may take longer",
    eta="in IronMQ, which delays a message by 7 days at most, so it is given back until it is due (30 "
    "s early in a worker)",
    priority="none: first come, first served; returned messages come first",
    fanout=NO_FANOUT,
    dead_letters=SENT_AGAIN,
    delivery_count=IN_A_HEADER,
    note="At least once. IronMQ deletes a message after 7 days, or after the queue's "
    "`message_expiration`; a purge also deletes running messages: they are lost if their worker dies. "
    "Counts are partial: all messages of a queue count as ready.",
    lacks=frozenset(Capability) - {ETA, DEAD_LETTERS},
    in_part=PROCESSES_ONLY,
)


def open_broker(url: str | None, conf: Settings) -> HeldBroker:
    """Return the broker at *url* with the settings *conf*; it connects on first use."""
    url = url or "ironmq://"
    options, visibility = dict(conf.broker_transport_options), visibility_of(conf, LEASE_SECONDS)
    server = IronServer(url, options, visibility, conf.broker_connection_timeout, conf.broker_use_ssl)
    return held_broker(url, server, conf)
