"""A thread in which nats-py runs, and connections in it that are asked from any other thread.

Comes from:  ``server.py`` (connect), ``queue.py`` and its likes (exchange, ask, wait_for).
Goes to:     nats-py, which is written for asyncio.
Thread:      any asks, and waits for the answer no longer than it says; what is in the loop belongs to its
             thread, which is the process's own: a forked child starts another.

One journey to the thread and back takes 0.1 ms and more, so what goes in it is a batch, and senders have a
connection of another kind (``direct.py``). An exchange sends many messages at once, and counts the answers on
one subscription that each connection has.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from qworker.transports.forked import forgetful

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
