"""A connection to NATS that publishes and waits for the answers in the thread that asks for it.

Comes from:  ``server.py`` (connect_to_send), for ``broker.py``.
Goes to:     a socket.
Thread:      one at a time.

By ``direct.py`` a call goes to another thread and back, through some tasks of an event loop there. Here it is
one write, and the reading of what answers it. NATS speaks in lines: ``HPUB`` and the like from us, ``MSG``
and ``HMSG`` with an answer, ``PING`` now and then. Who does not answer that for some minutes is cut off, and
connects again when it has something to say.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from qworker.interrupts import let_pass
from qworker.naming import task_id
from qworker.process.forked import forgetful
from qworker.transports.nats.url import Place

# -- A thread in which nats-py runs, and connections in it that are asked from any other thread --
# Thread: any asks, and waits for the answer no longer than it says; what is in the loop belongs to its
# thread, which is the process's own: a forked child starts another.
# One journey to the thread and back takes 0.1 ms and more, so what goes in it is a batch, and senders
# have a connection of another kind (``direct.py``). An exchange sends many messages at once, and counts
# the answers on one subscription that each connection has.

Answer = TypeVar("Answer")
AT_ONCE_SECONDS = 1.0
"""How long the server may take to give out what it has. It does not always say that it has nothing: it may
count what was purged a moment ago."""
OLD_BOXES = 4
"""In so many something may still come that was asked for in vain; what comes later is given to others when
its lease is over."""
GRACE_SECONDS = 2.0
"""How much longer than its own timeout a call is waited for."""
THREAD = "nats"


class Refused(Exception):
    """JetStream's answer was an error. code: its error code, or a status of NATS; 0 when it gave none."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Post(NamedTuple):
    """What is published. answered: whether an answer is wanted."""

    subject: str
    data: bytes = b""
    headers: Mapping[str, str] | None = None
    answered: bool = True


class Loop:
    """The thread. It is there as long as somebody has said begin_use(), and not yet end_use()."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # under the lock, as what follows
        self._users = 0
        self._inherited: list[asyncio.AbstractEventLoop] = []
        """Of the parents of this process; never closed here, which would disturb them."""
        _loops.add(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        if self._loop is not None:
            self._inherited.append(self._loop)
        self._loop = None
        self._users = 0

    def begin_use(self) -> asyncio.AbstractEventLoop:
        """To be said before anything is asked; returns what end_use() takes."""
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(self._loop,), name=THREAD, daemon=True).start()
            return self._loop

    def end_use(self, begun: asyncio.AbstractEventLoop) -> None:
        """Nothing is asked any more by who said begin_use(). A process may open and close many brokers, each
        of which has a thread."""
        with self._lock:
            if begun is not self._loop:
                return  # it is that of a parent of this process
            self._users -= 1
            if not self._users:
                begun.call_soon_threadsafe(begun.stop)
                self._loop = None

    def run(self, work: Coroutine[Any, Any, Answer], seconds: float) -> Answer:
        """What *work* returns or raises. TimeoutError when that takes longer than so many *seconds*."""
        try:
            loop = self._running()
        except ConnectionError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), loop)
        try:
            return future.result(seconds + GRACE_SECONDS)
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], None]) -> None:
        """Have *function* called in the thread, if there is one."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it ends at this moment
                loop.call_soon_threadsafe(function)

    def _running(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            raise ConnectionError("the connection is closed, or belongs to another process")
        return loop


def _worth_telling(record: logging.LogRecord) -> bool:
    """asyncio warns at the end of each connection that was encrypted after it was made, as NATS's are: it
    means nothing, and nobody can do anything about it."""
    return record.threadName != THREAD or not str(record.msg).startswith("returning true from eof_received()")


logging.getLogger("asyncio").addFilter(_worth_telling)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run *loop* until it is stopped, and leave nothing of it behind."""
    loop.run_forever()
    loop.run_until_complete(_cancel_all())
    loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_loops = forgetful()


class Asked(ABC):
    """What is asked of a server, and published to it. timeout: seconds for an answer. api: what the subjects
    of JetStream's own interface begin with."""

    max_payload: int
    """Bytes of a message, at most."""

    def __init__(self, timeout: float, api: str = "$JS.API") -> None:
        self.timeout = timeout
        self.api = api
        self.declared: dict[str, str] = {}
        """Streams that are known to be there, and when they were made."""
        self.exchanges = 0
        """How often the server was asked for something, and answered, or did not."""

    @abstractmethod
    def exchange(self, posts: Sequence[Post], timeout: float | None = None) -> list[Any]:
        """Publish *posts*; return the answers to those that want one, as nats-py's messages. TimeoutError
        when not all have come in time."""

    def ask(self, operation: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What JetStream's interface answers to *operation*. Raises Refused when that is an error."""
        data = b"" if request is None else json.dumps(request).encode()
        (answer,) = self.exchange([Post(f"{self.api}.{operation}", data)])
        return read_answer(answer)


class Connection(Asked):
    """client: of nats-py, connected in *loop*, whose use has *begun* and ends with it."""

    def __init__(
        self, loop: Loop, begun: asyncio.AbstractEventLoop, client: Any, timeout: float, api: str = "$JS.API"
    ) -> None:
        super().__init__(timeout, api)
        self.loop = loop
        self._begun = begun
        self.client = client
        self.max_payload = client.max_payload
        self._inbox: str = client.new_inbox()
        self._subscribed = False
        self._released = False
        self._expected: dict[str, tuple[dict[int, Any], int, asyncio.Future[None]]] = {}
        self._count = 0

    @property
    def reconnects(self) -> int:
        """How often the connection was lost and found again."""
        return int(self.client.stats["reconnects"])

    def exchange(self, posts: Sequence[Post], timeout: float | None = None) -> list[Any]:
        seconds = self.timeout if timeout is None else timeout
        self.exchanges += 1
        return self.loop.run(self._exchange(posts, seconds), seconds + 1.0)

    async def _exchange(self, posts: Sequence[Post], seconds: float) -> list[Any]:
        deadline = asyncio.get_running_loop().time() + seconds
        await self.connected(seconds)
        if not self._subscribed:
            self._subscribed = True
            await self.client.subscribe(f"{self._inbox}.*.*", cb=self._answered)
        self._count += 1
        name = str(self._count)
        wanted = sum(post.answered for post in posts)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers: dict[int, Any] = {}
        self._expected[name] = (answers, wanted, done)
        publish, inbox = self.client.publish, f"{self._inbox}.{name}."
        try:
            number = 0
            for subject, data, headers, answered in posts:
                reply = ""
                if answered:
                    reply, number = f"{inbox}{number}", number + 1
                await publish(subject, data, reply=reply, headers=headers)
            if wanted:
                left = deadline - asyncio.get_running_loop().time()
                await asyncio.wait_for(done, max(0.001, left))
            return [answers[number] for number in range(wanted)]
        finally:
            del self._expected[name]

    async def _answered(self, message: Any) -> None:
        _, _, rest = message.subject.partition(self._inbox + ".")
        name, _, number = rest.partition(".")
        expected = self._expected.get(name)
        if expected is None:
            return  # nobody waits for it any more
        answers, wanted, done = expected
        answers[int(number)] = message
        if len(answers) == wanted and not done.done():
            done.set_result(None)

    async def connected(self, seconds: float) -> None:
        """While there is no connection nothing is published: it would go out when nobody waits for it any
        more."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self.client.is_connected:
            if self.client.is_closed or asyncio.get_running_loop().time() >= deadline:
                raise ConnectionError("the connection is lost")
            await asyncio.sleep(0.02)

    def release(self) -> None:
        """Close the connection. Safe to call twice."""
        if self._released:
            return
        self._released = True
        try:
            if not self.client.is_closed:
                self.loop.run(self.client.close(), 2.0)
        except Exception:  # noqa: BLE001 - whatever it was: it is given up
            pass
        finally:
            self.loop.end_use(self._begun)


class Pulled(NamedTuple):
    """since: the monotonic time at which it was given to us at the earliest, where that may be long ago: to a
    request that nobody waited for any more. None: just now."""

    message: Any
    since: float | None


class Box:
    """A subject of ours on which answers come. since: when the request was made that nobody waits for any
    more; None while there is no such request. A message does not say to which request it was given."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.subscription: Any = None
        self.since: float | None = None


class Inbox:
    """Where messages are delivered that were asked for. Asked from one thread; interrupt() from any."""

    def __init__(self, connection: Asked) -> None:
        self._asked = connection
        self._box: Box | None = None  # of the loop's thread, as all below
        self._old: deque[Box] = deque()
        """Those in which something may still come that was asked for."""
        self._requests = 0
        self.silent = False
        """Whether the last request was answered by nothing, not even that there is no message. JetStream says
        nothing to who asks a consumer that was deleted."""
        self._arrived: deque[tuple[Any, Box]] = deque()
        self._news = asyncio.Event()
        self._interrupted = False

    @property
    def _connection(self) -> Connection:
        assert isinstance(self._asked, Connection), "who only publishes has no thread in which messages come"
        return self._asked

    def pull(self, subject: str, count: int, seconds: float) -> list[Pulled]:
        """Up to *count* messages from JetStream's *subject* for the next message of a consumer; waits for the
        first of them for so many *seconds*."""
        connection = self._connection
        connection.exchanges += 1
        return connection.loop.run(self._pull(subject, count, seconds), seconds + 2 * connection.timeout)

    def interrupt(self) -> None:
        """Let a pull() that waits come back with what is there, and the next one not wait."""
        self._connection.loop.call_soon(self._interrupt)

    def _interrupt(self) -> None:
        self._interrupted = True
        self._news.set()

    async def _pull(self, subject: str, count: int, seconds: float) -> list[Pulled]:
        connection = self._connection
        await connection.connected(connection.timeout)
        at_once = {"batch": count, "no_wait": True}
        found = await self._request(subject, at_once, AT_ONCE_SECONDS)
        if found or self.silent or seconds <= 0 or self._interrupted:
            return found
        # When one has come, the others that have are asked for: who waits for many would wait for all.
        found = await self._request(subject, {"batch": 1, "expires": int(seconds * 1e9)}, seconds + 1.0)
        if found and count > 1 and not self._interrupted:
            found += await self._request(subject, {**at_once, "batch": count - 1}, AT_ONCE_SECONDS)
        return found

    async def _open(self) -> Box:
        client = self._connection.client
        box = Box(client.new_inbox())
        box.subscription = await client.subscribe(f"{box.subject}.*", cb=partial(self._take, box))
        self._box = box
        return box

    async def _retire(self, box: Box, asked: float) -> None:
        """Of what comes in *box* from now on, nobody knows when it was given to us: not before *asked*."""
        box.since = asked
        self._box = None
        self._old.append(box)
        if len(self._old) > OLD_BOXES:
            await self._old.popleft().subscription.unsubscribe()

    async def _request(self, subject: str, request: dict[str, Any], seconds: float) -> list[Pulled]:
        box = self._box or await self._open()
        asked = time.monotonic()
        self._requests += 1
        reply = f"{box.subject}.{self._requests}"
        await self._connection.client.publish(subject, json.dumps(request).encode(), reply=reply)
        found: list[Pulled] = []
        own = 0
        deadline = asyncio.get_running_loop().time() + seconds
        self.silent = False
        while True:
            while self._arrived:
                message, at = self._arrived.popleft()
                status = (message.headers or {}).get("Status")
                if not status:
                    found.append(Pulled(message, at.since))
                    own += at is box
                elif message.subject == reply and status != "100":
                    if status not in ("404", "408") and not found:
                        raise Refused(int(status), str((message.headers or {}).get("Description", "")))
                    return found
            if len(found) >= request["batch"]:
                if own < request["batch"]:
                    await self._retire(box, asked)
                return found
            left = deadline - asyncio.get_running_loop().time()
            if self._interrupted and "no_wait" not in request:
                return found + await self._farewell()
            if left <= 0:
                self.silent = not found
                await self._retire(box, asked)
                return found  # what is still on its way comes with the next, or is given to others
            self._news.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)

    async def _take(self, box: Box, message: Any) -> None:
        self._arrived.append((message, box))
        self._news.set()

    async def _farewell(self) -> list[Pulled]:
        """What came before the server knew that nothing more is wanted."""
        box, self._box = self._box, None
        if box is not None:
            await box.subscription.drain()  # what the server had sent is here now
        found = [
            Pulled(message, at.since)
            for message, at in self._arrived
            if not (message.headers or {}).get("Status")
        ]
        self._arrived.clear()
        return found


def read_answer(message: Any) -> dict[str, Any]:
    """JetStream's answer. Raises Refused when it is an error, or nobody was there to answer."""
    status = (message.headers or {}).get("Status")
    if status:
        raise Refused(int(status), "JetStream does not answer here" if status == "503" else "no answer")
    found: dict[str, Any] = json.loads(message.data)
    error = found.get("error")
    if error:
        raise Refused(int(error.get("err_code") or error.get("code") or 0), str(error.get("description")))
    return found


CHUNK = 65536
MAX_PAYLOAD = 1024**2
"""Bytes, where a server does not say how large a message may be."""
MOST_PAYLOAD = 64 * 1024**2
"""Bytes; no server of NATS takes more, whatever it says."""
LONGEST_LINE = 65536
"""Bytes; INFO, the longest that a server writes, has some thousands."""
PAUSE_SECONDS = 0.05
"""Between two tries to connect again."""


class Told(NamedTuple):
    """What came on *subject*, with the names that nats-py has for it."""

    subject: str
    headers: dict[str, str] | None
    data: bytes


class DirectConnection(Asked):
    """To one of the servers of *place*. timeout: seconds for an answer, and for connecting. Raises OSError,
    TimeoutError among them, when there is none; then it is connected again by the next exchange()."""

    def __init__(self, place: Place, timeout: float) -> None:
        super().__init__(timeout)
        self._place = place
        self._inbox = f"_INBOX.{task_id()}"
        self._count = 0
        self._read = bytearray()
        self._socket: socket.socket | None = None
        self._whole = True
        """Nobody was interrupted in the midst of an exchange."""
        self._connect(time.monotonic() + timeout)

    def exchange(self, posts: Sequence[Post], timeout: float | None = None) -> list[Any]:
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        self.exchanges += 1
        whole, self._whole = self._whole, False
        try:
            if not whole or self._socket is None or not self._is_there(self._socket):
                self._connect_again(end)
            self._count += 1
            subject = f"{self._inbox}.{self._count}."
            wanted = self._publish(posts, subject, end)
            answers: dict[int, Told] = {}
            while len(answers) < wanted:
                told = self._next(end)
                if isinstance(told, Told) and told.subject.startswith(subject):
                    answers[int(told.subject[len(subject) :])] = told
            self._whole = True
            return [answers[number] for number in range(wanted)]
        except BaseException:
            self._close()  # whatever is on its way answers nobody any more
            raise

    def _publish(self, posts: Sequence[Post], subject: str, end: float) -> int:
        """Send *posts*, whose answers are to come on *subject*; return how many those are."""
        parts: list[bytes] = []
        number = 0
        for post in posts:
            reply = ""
            if post.answered:
                reply, number = f"{subject}{number} ", number + 1
            head = _head(post.headers)
            size = f"{len(head)} " if head else ""
            line = f"{'HPUB' if head else 'PUB'} {post.subject} {reply}{size}{len(head) + len(post.data)}\r\n"
            parts += (line.encode(), head, post.data, b"\r\n")
        self._send(b"".join(parts), end)
        return number

    def release(self) -> None:
        """Close it. Safe to call twice."""
        self._close()

    # -- the socket --

    def _connect_again(self, end: float) -> None:
        """Connect to one of the servers, which may be about to start, by the monotonic time *end*."""
        while True:
            try:
                return self._connect(end)
            except OSError as error:
                let_pass(error)
                if time.monotonic() + PAUSE_SECONDS >= end:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _connect(self, end: float) -> None:
        """Connect to one of the servers."""
        self._close()
        errors: list[OSError] = []
        for server in random.sample(self._place.servers, len(self._place.servers)):
            try:
                return self._greet(server, end)
            except OSError as error:
                let_pass(error)
                self._close()
                errors.append(error)
        raise errors[-1]

    def _greet(self, server: str, end: float) -> None:
        parts = urlsplit(server)
        self._socket = socket.create_connection((parts.hostname, parts.port), _left(end))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        info: dict[str, Any] = {}
        while not info:
            info = self._next(end) or info
        if self._place.tls is not None or info.get("tls_required"):
            if self._read:  # it would be read as if it had come under TLS
                raise ConnectionError("the server says more than who it is before there is TLS")
            context = self._place.tls.context() if self._place.tls else ssl.create_default_context()
            self._socket = context.wrap_socket(self._socket, server_hostname=parts.hostname)
        self.max_payload = max(1, min(int(info["max_payload"]), MOST_PAYLOAD))
        login = {"auth_token" if name == "token" else "pass" if name == "password" else name: value
                 for name, value in self._place.login.items()}  # fmt: skip
        hello = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "lang": "python",
            "version": "1",
            "name": "qworker",
            "protocol": 1,
            **login,
        }
        self._send(f"CONNECT {json.dumps(hello)}\r\nSUB {self._inbox}.*.* 1\r\nPING\r\n".encode(), end)
        while self._next(end) != "PONG":
            pass

    def _close(self) -> None:
        connection, self._socket = self._socket, None
        self._read.clear()
        if connection is not None:
            connection.close()

    def _is_there(self, connection: socket.socket) -> bool:
        """Whether the server has not gone since the last exchange; what it said since is answered."""
        connection.settimeout(0.0)
        try:
            while data := connection.recv(CHUNK):
                self._read += data
            return False
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            let_pass(error)
            return False
        end = time.monotonic() + self.timeout
        while self._read:
            self._next(end)
        return True

    def _send(self, data: bytes, end: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(_left(end))
        self._socket.sendall(data)

    def _next(self, end: float) -> Any:
        """What the server says next: a Told; what it says of itself, as a dict; "PONG"; or None."""
        line = self._line(end)
        word, _, rest = line.partition(" ")
        try:
            match word.upper():
                case "MSG":
                    return self._told(rest, False, end)
                case "HMSG":
                    return self._told(rest, True, end)
                case "INFO":
                    return {"max_payload": MAX_PAYLOAD, **json.loads(rest)}
                case "PONG":
                    return "PONG"
        except (ValueError, IndexError, TypeError) as error:
            let_pass(error)
            raise ConnectionError(f"what answers is not a NATS server: {line[:80]!r}") from error
        if word.upper() == "PING":
            self._send(b"PONG\r\n", end)
        elif word.upper() == "-ERR":
            raise ConnectionError("nats: " + rest.strip().strip("'"))
        return None

    def _told(self, line: str, headed: bool, end: float) -> Told:
        words = line.split()
        size, split = int(words[-1]), int(words[-2]) if headed else 0
        if not 0 <= split <= size <= self.max_payload:
            raise ValueError(f"a message of {size} bytes, {split} of them headers")
        payload = self._bytes(size + 2, end)[:size]
        return Told(words[0], _headers(payload[:split]) if headed else None, payload[split:])

    def _line(self, end: float) -> str:
        while (found := self._read.find(b"\r\n")) < 0:
            if len(self._read) > LONGEST_LINE:
                raise ConnectionError(f"what answers is not a NATS server: {bytes(self._read[:80])!r}")
            self._fill(end)
        line = self._read[:found].decode("utf-8", "replace")
        del self._read[: found + 2]
        return line

    def _bytes(self, size: int, end: float) -> bytes:
        while len(self._read) < size:
            self._fill(end)
        data = bytes(self._read[:size])
        del self._read[:size]
        return data

    def _fill(self, end: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(_left(end))
        data = self._socket.recv(CHUNK)
        if not data:
            raise ConnectionError("the server has closed the connection")
        self._read += data


def _left(end: float) -> float:
    """Seconds until the monotonic time *end*. TimeoutError when it has come."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left


def _head(headers: Mapping[str, str] | None) -> bytes:
    """*headers* as they go before what is published."""
    if not headers:
        return b""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _headers(text: bytes) -> dict[str, str]:
    """Headers that came, with the status in the first line as nats-py has it."""
    first, *lines = text.decode("utf-8", "replace").rstrip("\r\n").split("\r\n")
    status = first.split(" ", 2)[1:]
    found = dict(zip(("Status", "Description"), status, strict=False))
    for line in lines:
        name, _, value = line.partition(":")
        found[name] = value.strip()
    return found
