"""A connection to NATS: publishing and requests, and subscriptions.

Comes from:  ``broker.py``.
Goes to:     ``wire.py``; ``inbox.py`` and ``broker.py``, with received messages.
Thread:      one at a time, which reads its answers itself; after share() several, and one more thread reads
             for all.

A sender has its own connection: a call is one write, followed by reading the answers. It notices a lost or
restarted server when it has something to send, and reconnects then. A consumer's connection is shared by its
polls and the listener; its thread reconnects at once, and pending requests fail.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from qworker.interrupts import reraise_interrupt
from qworker.naming import task_id
from qworker.process.randomness import RANDOM
from qworker.transports.nats.url import Address, Host
from qworker.transports.nats.wire import Wire, WireMessage, left_until

PAUSE_SECONDS = 0.05
"""Seconds between two attempts to reconnect, while a caller waits."""
RECONNECT_SECONDS = 0.5
"""The same for the reading thread, times a random factor of 0.2 to 1.5."""
PING_SECONDS = 10.0
"""A server that is silent for so long is pinged; after the same time again it is considered gone."""
FROZEN_SECONDS = 0.5
"""A wait that ends so much later than it should was interrupted, for example by SIGSTOP. Then the answer may
be there, and the reading thread gets as long to read it."""
ANSWERS = "1"
"""The subscription for answers."""
Item = TypeVar("Item")


class Refused(Exception):
    """JetStream's answer was an error. code: its error code, or a status of NATS; 0 when it gave none."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Unanswered(TimeoutError):
    """The connection was lost after something was sent, which may have arrived."""


class Post(NamedTuple):
    """A message to publish. answered: whether an answer is wanted. reply: the subject for it, if not our
    own."""

    subject: str
    data: bytes = b""
    headers: Mapping[str, str] | None = None
    answered: bool = True
    reply: str = ""

    @property
    def size(self) -> int:
        """Bytes, as servers count them for max_payload."""
        return len(_head(self.headers)) + len(self.data)


class _Exchange:
    """The answers to messages published together. done: notified when all have arrived; None if the caller
    reads them itself."""

    def __init__(self, wanted: int, done: SimpleQueue[bool | Exception] | None) -> None:
        self.answers: dict[int, WireMessage] = {}
        self.wanted = wanted
        self.done = done

    def add(self, number: int, answer: WireMessage) -> None:
        self.answers[number] = answer
        if self.done is not None and len(self.answers) == self.wanted:
            self.done.put(True)


class Client:
    """A client for one of the servers of *address*. timeout: seconds for an answer, and for connecting. api:
    prefix of JetStream's subjects. ping_seconds: see PING_SECONDS. Raises OSError, including TimeoutError,
    when there is no connection."""

    def __init__(
        self, address: Address, timeout: float, api: str = "$JS.API", ping_seconds: float = PING_SECONDS
    ) -> None:
        self.timeout = timeout
        self.api = api
        self.declared: dict[str, str] = {}
        """Known streams, each with its time of creation."""
        self.exchanges = 0
        """How many requests were made, answered or not."""
        self.reconnects = 0
        """How often the connection was lost and restored."""
        self._address = address
        self._ping_seconds = ping_seconds
        self._others: list[Host] = []
        """Servers of the cluster announced by one of them."""
        self._subject = self.new_subject()
        self._names = itertools.count(1)
        self._exchanges: dict[str, _Exchange] = {}
        self._whole = True
        """Whether the last exchange was completed; for an unshared connection."""
        self._order = threading.Lock()
        self._wire: Wire | None = None  # under _order once it is shared, as all below
        self._subscribers: dict[str, tuple[str, Callable[[WireMessage], None]]] = {}
        """By subscription: the subject, and the function called for its messages."""
        self._pongs: deque[SimpleQueue[bool | Exception]] = deque()
        self._waiting: set[SimpleQueue[Any]] = set()
        self._reader: threading.Thread | None = None
        self._up = threading.Event()
        self._released = threading.Event()
        self._connect(time.monotonic() + timeout)

    @property
    def max_payload(self) -> int:
        """Maximum bytes of a message."""
        return self._most

    @property
    def is_connected(self) -> bool:
        return self._wire is not None

    # -- asking --

    def exchange(self, posts: Sequence[Post], timeout: float | None = None) -> list[WireMessage]:
        """Publish *posts*; return the requested answers. TimeoutError when not all have arrived in time,
        ConnectionError when there is no connection; a shared connection has sent nothing then."""
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        self.exchanges += 1
        if self._reader is not None:
            return self._exchange(self._connected(end), posts, end)
        whole, self._whole = self._whole, False
        try:
            wire = self._wire
            if not whole or wire is None or not self._is_there(wire):
                wire = self._connect_again(end)
            answers = self._exchange(wire, posts, end)
            self._whole = True
            return answers
        except BaseException:
            self._drop()  # answers in transit have no reader any more
            raise

    def _exchange(self, wire: Wire, posts: Sequence[Post], end: float) -> list[WireMessage]:
        name = str(next(self._names))
        done: SimpleQueue[bool | Exception] | None = None if self._reader is None else SimpleQueue()
        exchange = _Exchange(sum(post.answered for post in posts), done)
        self._exchanges[name] = exchange
        if done is not None:
            self._waiting.add(done)  # it may be refused at once
        try:
            self._send(wire, _framed(posts, f"{self._subject}.{name}."), end)
            if done is None:
                while len(exchange.answers) < exchange.wanted:
                    self._handle(wire, wire.next(end))
            elif exchange.wanted:
                self.wait(done, wire, end)
            return [exchange.answers[number] for number in range(exchange.wanted)]
        finally:
            del self._exchanges[name]
            if done is not None:
                self._waiting.discard(done)

    def ask(self, operation: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return JetStream's answer to *operation*. Raises Refused when that is an error."""
        data = b"" if request is None else json.dumps(request).encode()
        (answer,) = self.exchange([Post(f"{self.api}.{operation}", data)])
        return read_answer(answer)

    # -- listening --

    def subscribe(self, subject: str, callback: Callable[[WireMessage], None]) -> str:
        """Call *callback* for each message on *subject*, in the reading thread; return the name of the
        subscription."""
        with self._order:
            name = str(next(self._names) + 1)  # not that of the answers
            self._subscribers[name] = (subject, callback)
            if self._wire is not None:
                self._wire.send(_listening(name, subject), time.monotonic() + self.timeout)
            return name

    def unsubscribe(self, name: str) -> None:
        """End subscription *name*. Messages already sent by the server are still delivered."""
        done: SimpleQueue[bool | Exception] = SimpleQueue()
        with self._order:
            wire = self._wire
            if wire is not None:
                end = time.monotonic() + self.timeout
                self._pongs.append(done)
                wire.send(f"UNSUB {name}\r\nPING\r\n".encode(), end)
        try:
            if wire is not None:
                self.wait(done, wire, end)
        finally:
            with self._order:
                self._subscribers.pop(name, None)

    def forget(self, name: str) -> None:
        """End subscription *name*, and drop messages already sent."""
        with self._order:
            self._subscribers.pop(name, None)
            if self._wire is not None:
                self._wire.send(f"UNSUB {name}\r\n".encode(), time.monotonic() + self.timeout)

    def new_subject(self) -> str:
        """Return a subject that nobody else publishes on, unless we pass it on."""
        return f"_INBOX.{task_id()}"

    def publish(self, post: Post, end: float) -> Wire:
        """Publish *post*, whose answer goes to its own *reply*, by the monotonic time *end*; pass the return
        value to wait()."""
        wire = self._wire or (self._connect_again if self._reader is None else self._connected)(end)
        self._send(wire, _framed([post], ""), end)
        return wire

    def wait(self, queue: SimpleQueue[Any], wire: Wire, end: float) -> Any:
        """Return the next item in *queue*, filled from *wire*. TimeoutError when there is none by the
        monotonic time *end*, Unanswered when the connection is lost."""
        if self._reader is None:
            while queue.empty():
                self._handle(wire, wire.next(end))
            return queue.get()
        self._waiting.add(queue)
        try:
            if self._wire is not wire and queue.empty():
                raise Unanswered("the connection was lost")
            try:
                found = queue.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                if time.monotonic() < end + FROZEN_SECONDS:
                    raise
                found = queue.get(timeout=FROZEN_SECONDS)
        except Empty:
            raise TimeoutError("no answer in time") from None
        finally:
            self._waiting.discard(queue)
        if isinstance(found, Exception):
            raise found
        return found

    def _send(self, wire: Wire, data: bytes, end: float) -> None:
        try:
            wire.send(data, end)
        except OSError as error:
            reraise_interrupt(error)
            if self._reader is None:
                raise
            raise Unanswered(f"the connection was lost: {error}") from error  # some of it may have arrived

    def _handle(self, wire: Wire, found: Any) -> None:
        """Handle messages from the server."""
        if type(found) is WireMessage:
            if found.subscription == ANSWERS:
                name, _, number = found.subject[len(self._subject) + 1 :].partition(".")
                exchange = self._exchanges.get(name)
                if exchange is not None and number.isdecimal():  # a caller still waits for it
                    exchange.add(int(number), found)
            elif subscriber := self._subscribers.get(found.subscription):
                subscriber[1](found)
        elif isinstance(found, dict):
            self._others = wire.others(found)
        elif found == "PONG":
            if self._pongs:
                self._pongs.popleft().put(True)
        elif found is not None:
            if self._reader is None or "permissions violation" not in str(found).lower():
                raise found
            self._report(found)  # the connection stays

    # -- one thread at a time --

    def _connect_again(self, end: float) -> Wire:
        """Connect to one of the servers, which may be about to start, by the monotonic time *end*."""
        while True:
            try:
                return self._connect(end)
            except OSError as error:
                reraise_interrupt(error)
                if time.monotonic() + PAUSE_SECONDS >= end:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _connect(self, end: float) -> Wire:
        """Connect to one of the servers, and restore the subscriptions."""
        self._drop()
        errors: list[OSError] = []
        hosts = [*self._address.servers, *self._others]
        for left, host in zip(range(len(hosts), 0, -1), RANDOM.sample(hosts, len(hosts)), strict=True):
            try:
                # One that says nothing leaves time for the others
                wire = Wire(host, self._address, end - left_until(end) * (left - 1) / left)
                with self._order:
                    subjects = [(ANSWERS, f"{self._subject}.*.*")]
                    subjects += [(name, subject) for name, (subject, _) in self._subscribers.items()]
                    wire.send(b"".join(_listening(*one) for one in subjects), end)
                    self._most, self._others = wire.max_payload, wire.others(wire.info)
                    self._wire = wire
                return wire
            except OSError as error:
                reraise_interrupt(error)
                errors.append(error)
        raise errors[-1]

    def _is_there(self, wire: Wire) -> bool:
        """Whether the server has not gone since the last exchange; its messages since are answered."""
        try:
            if not wire.is_silent(0.0):
                for found in wire.whatever_came(self.timeout):
                    self._handle(wire, found)
        except OSError as error:
            reraise_interrupt(error)
            return False
        return True

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def release(self) -> None:
        """Close the connection. Safe to call twice."""
        self._released.set()
        reader, wire = self._reader, self._wire
        if reader is None:
            self._drop()
        elif wire is not None:
            wire.shut()

    # -- several threads --

    def share(self) -> None:
        """From now on several threads use it, and one more reads for them. Safe to call twice."""
        if self._reader is None:
            if self._wire is None:
                self._connect_again(time.monotonic() + self.timeout)
            self._up.set()
            self._reader = threading.Thread(target=self._read_on, name="nats", daemon=True)
            self._reader.start()

    def _connected(self, end: float) -> Wire:
        """Return the connection. Without one nothing is published: after a reconnect it would be sent too
        late."""
        while True:
            wire = self._wire
            if wire is not None:
                return wire
            if self._released.is_set() or not self._up.wait(max(0.0, end - time.monotonic())):
                raise ConnectionError("the connection is lost")

    def _read_on(self) -> None:
        while not self._released.is_set():
            wire = self._wire
            try:
                if wire is None:
                    self._connect(time.monotonic() + self.timeout)
                    self.reconnects += 1
                    self._up.set()
                else:
                    self._read(wire)
            except Exception as error:  # noqa: BLE001 - after any error, there is no connection
                self._lose(error)
                self._released.wait(RECONNECT_SECONDS * RANDOM.uniform(0.2, 1.5))
        self._lose(ConnectionError("the connection is closed"))

    def _read(self, wire: Wire) -> None:
        """Read from *wire* until it is lost. Raises the reason."""
        silent = False
        while True:
            if not wire.is_silent(self._ping_seconds):
                silent = False
                self._handle(wire, wire.next(time.monotonic() + self.timeout))
            elif silent:
                raise TimeoutError("the server does not answer any more")
            else:
                silent = True
                with self._order:
                    self._pongs.append(SimpleQueue())
                    wire.send(b"PING\r\n", time.monotonic() + self.timeout)

    def _lose(self, error: Exception) -> None:
        with self._order:
            self._up.clear()
            self._pongs.clear()
            self._drop()
        self._report(Unanswered(f"the connection was lost: {error}"))

    def _report(self, error: Exception) -> None:
        """Report the failure to all waiting callers."""
        for queue in list(self._waiting):
            queue.put(error)


def _framed(posts: Sequence[Post], inbox: str) -> bytes:
    """Return the bytes that publish *posts*. Answers go to *inbox* followed by their number."""
    parts: list[bytes] = []
    number = 0
    for subject, data, headers, answered, reply in posts:
        to = f"{reply} " if reply else ""
        if answered and not reply:
            to, number = f"{inbox}{number} ", number + 1
        head = _head(headers)
        size = f"{len(head)} " if head else ""
        line = f"{'HPUB' if head else 'PUB'} {subject} {to}{size}{len(head) + len(data)}\r\n"
        parts += (line.encode(), head, data, b"\r\n")
    return b"".join(parts)


def _head(headers: Mapping[str, str] | None) -> bytes:
    """Return *headers* in the form that precedes a message."""
    if not headers:
        return b""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _listening(name: str, subject: str) -> bytes:
    return f"SUB {subject} {name}\r\n".encode()


def read_answer(message: WireMessage) -> dict[str, Any]:
    """Return JetStream's answer. Raises Refused when it is an error, or nobody answered."""
    status = (message.headers or {}).get("Status")
    if status:
        raise Refused(int(status), "JetStream does not answer here" if status == "503" else "no answer")
    found: dict[str, Any] = json.loads(message.data)
    error = found.get("error")
    if error:
        raise Refused(int(error.get("err_code") or error.get("code") or 0), str(error.get("description")))
    return found
