"""A server that speaks as IronMQ v3 does, made from the rules of its public reference.

Comes from:  tests, by ``IronMQ``; other processes, by ``python -m tests.support.ironmq_server --port N``.
Goes to:     HTTP or HTTPS on the loopback; a file, if given, with a line for each change: a server that
             starts on it has the same contents, also after kill -9.
Thread:      one for each connection.

Any project is there; the token of each is TOKEN. It refuses what IronMQ refuses. ``POST /stand-in`` tells it
what to get wrong: ``{"fault": kind, "count": n}`` for the next n requests of a method that is not GET, of
FAULTS; ``{"expire": true}``, to end all reservations now; ``{"forget": true}``, to be as new.
"""

from __future__ import annotations

import argparse
import json
import ssl
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "t0ken-of-tests"
FAULTS = ("503", "429", "half", "drop", "slow", "nonsense")
LONGEST = 604_800
BODY_BYTES = 256 * 1024


class Refused(Exception):
    """An HTTP status and its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Message:
    """until: when its delay or its reservation ends."""

    def __init__(self, id: str, body: str, expires: float) -> None:
        self.id = id
        self.body = body
        self.expires = expires
        self.reserved_count = 0
        self.reservation: str | None = None
        self.until = 0.0

    def told(self) -> dict[str, Any]:
        return {"id": self.id, "body": self.body, "reserved_count": self.reserved_count}

    def put_back(self, expires: float, reserved_count: int, reservation: str | None, until: float) -> Message:
        """Restore the recorded reservation."""
        self.expires, self.until = expires, until
        self.reserved_count, self.reservation = reserved_count, reservation
        return self


class Queue:
    """options: as in PUT."""

    def __init__(self, project: str, name: str) -> None:
        self.project = project
        self.name = name
        self.options: dict[str, Any] = {
            "message_timeout": 60, "message_expiration": LONGEST, "type": "pull",
        }  # fmt: skip
        self.messages: dict[str, Message] = {}
        self.ready: deque[Message] = deque()
        self.later: list[tuple[float, int, Message]] = []
        self.total = 0

    def told(self, sizes: bool = True) -> dict[str, Any]:
        found = {"project_id": self.project, "name": self.name, **self.options}
        if sizes:
            found |= {"size": len(self.messages), "total_messages": self.total}
        return {"queue": found}


class Answer(NamedTuple):
    status: int
    body: Any


class IronMQ:
    """Serves at once. clock: seconds, which continue from one process to the next. file: keeps the contents;
    None: they are not kept. tls: for HTTPS."""

    def __init__(
        self,
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
        file: Path | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.clock = clock
        self.projects: dict[str, dict[str, Queue]] = {}
        self.calls: Counter[str] = Counter()
        self._faults: list[tuple[str, str]] = []
        self._news = threading.Condition()
        self._numbers = count(6_000_000_000_000_000_000 + time.monotonic_ns())
        self._order = count()
        if file is not None and file.exists():
            self._read(file)
        self._file = file.open("a") if file is not None else None
        self._server = _Server(("127.0.0.1", port), _handler(self))
        if tls is not None:
            listening = self._server.socket
            # The TLS handshake is done by the thread of the connection.
            self._server.socket = tls.wrap_socket(listening, server_side=True, do_handshake_on_connect=False)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def url(self, project: str = "project", token: str = TOKEN) -> str:
        return f"ironmq+http://{project}:{token}@127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._file is not None:
            self._file.close()

    # -- the file --

    def _read(self, file: Path) -> None:
        text = file.read_text()
        whole = text[: text.rfind("\n") + 1]  # an incomplete last line: the server died before it answered
        file.write_text(whole)
        for line in whole.splitlines():
            self._replay(*json.loads(line))
        for queues in self.projects.values():
            for queue in queues.values():
                self._put_in_order(queue)

    def _note(self, queue: Queue, what: str, *values: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps([queue.project, queue.name, what, *values]) + "\n")

    def _note_message(self, queue: Queue, one: Message) -> None:
        values = (one.expires, one.reserved_count, one.reservation, one.until)
        self._note(queue, "message", one.id, one.body, *values)

    def _replay(self, project: str, name: str, what: str, *values: Any) -> None:
        """Apply a change recorded by _note()."""
        queues = self.projects.setdefault(project, {})
        queue = queues.setdefault(name, Queue(project, name))
        match what, values:
            case "options", [options]:
                queue.options = options
            case "message", [id, body, *state]:
                queue.messages[id] = Message(id, body, 0.0).put_back(*state)
            case "gone", [id]:
                queue.messages.pop(id, None)
            case "cleared", []:
                queue.messages.clear()
            case "deleted", []:
                del queues[name]

    def _put_in_order(self, queue: Queue) -> None:
        for message in queue.messages.values():
            if message.until > 0.0:
                heappush(queue.later, (message.until, next(self._order), message))
            else:
                queue.ready.append(message)

    # -- for tests --

    def fail(self, kind: str, times: int = 1, method: str = "", after: int = 0) -> None:
        """Get the next *times* requests wrong that change something, or of those of *method*, after so many
        that are got right."""
        assert kind in FAULTS, kind
        with self._news:
            self._faults += [(method, "")] * after + [(method, kind)] * times

    def next_fault(self, method: str) -> str:
        with self._news:
            for place, (wanted, kind) in enumerate(self._faults):
                if wanted in ("", method):
                    del self._faults[place]
                    return kind
            return ""

    def heal(self) -> None:
        """Remove all faults."""
        with self._news:
            self._faults.clear()

    def expire(self) -> None:
        """End all reservations now."""
        with self._news:
            for queues in self.projects.values():
                for queue in queues.values():
                    ended = [message for message in queue.messages.values() if message.reservation]
                    for message in ended:
                        message.until = 0.0
                        heappush(queue.later, (0.0, next(self._order), message))
            self._news.notify_all()

    def forget(self) -> None:
        """Delete all queues and faults."""
        with self._news:
            for queues in self.projects.values():
                for queue in list(queues.values()):
                    self._drop(queue)
            self._faults.clear()
            self.calls.clear()
            self._news.notify_all()

    def size(self, project: str, name: str) -> int:
        with self._news:
            queue = self.projects.get(project, {}).get(name)
            return len(queue.messages) if queue else 0

    # -- the calls --

    def answer(self, method: str, path: str, token: str, given: Any) -> Answer:
        """The answer to one request. Raises Refused."""
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        query = {name: values[-1] for name, values in parse_qs(urlsplit(path).query).items()}
        if token != f"OAuth {TOKEN}":
            raise Refused(401, "Unauthorized")
        if len(parts) < 4 or parts[0] != "3" or parts[1] != "projects" or parts[3] != "queues":
            raise Refused(404, "Not found")
        with self._news:
            try:
                return self._route(method, parts[2], parts[4:], query, given)
            finally:
                if self._file is not None:
                    self._file.flush()

    def _queue(self, project: str, name: str) -> Queue:
        """The queue, which is created if it does not exist."""
        queues = self.projects.setdefault(project, {})
        if name not in queues:
            queues[name] = Queue(project, name)
            self._note(queues[name], "options", queues[name].options)
        return queues[name]

    def _route(self, method: str, project: str, parts: list[str], query: Any, given: Any) -> Answer:
        queues = self.projects.setdefault(project, {})
        if not parts:
            first = query.get("previous", "")
            names = [
                name for name in sorted(queues) if name > first and name.startswith(query.get("prefix", ""))
            ]
            return Answer(
                200, {"queues": [{"name": name} for name in names[: int(query.get("per_page", 30))]]}
            )
        name, *rest = parts
        self.calls[f"{method} {rest[0] if rest else 'queue'}{' one' if len(rest) > 1 else ''}"] += 1
        if method == "POST" and rest == ["messages"]:
            return self._post(self._queue(project, name), given)
        if method == "PUT" and not rest:
            queue = self._queue(project, name)
            self._set(queue, given)
            return Answer(200, queue.told(sizes=False))
        found = queues.get(name)
        if found is None:
            raise Refused(404, "Queue not found")
        self._pass_time(found)
        match method, rest:
            case "GET", []:
                return Answer(200, found.told())
            case "PATCH", []:
                self._set(found, given)
                return Answer(200, found.told())
            case "DELETE", []:
                self._drop(found)
                return Answer(200, {"msg": "Deleted"})
            case "GET", ["messages"]:
                some = list(found.ready)[: _whole(query.get("n", 1), 1, 100, "n")]
                return Answer(200, {"messages": [message.told() for message in some]})
            case "DELETE", ["messages"]:
                return self._delete_many(found, given)
            case "POST", ["reservations"]:
                return self._reserve(found, given)
            case "GET", ["messages", id]:
                return Answer(200, {"message": _message(found, id).told()})
            case "DELETE", ["messages", id]:
                self._delete(found, [_owned(found, id, given.get("reservation_id"))])
                return Answer(200, {"msg": "Deleted"})
            case "POST", ["messages", id, "touch"]:
                message = _reserved(found, id, given.get("reservation_id"))
                seconds = _whole(
                    given.get("timeout", found.options["message_timeout"]), 30, 86_400, "timeout"
                )
                self._hide(found, message, seconds)
                return Answer(200, {"reservation_id": message.reservation, "msg": "Touched"})
            case "POST", ["messages", id, "release"]:
                message = _reserved(found, id, given.get("reservation_id"))
                delay = _whole(given.get("delay", 0), 0, LONGEST, "delay")
                message.reservation = None
                self._later(found, message, delay)
                return Answer(200, {"msg": "Released"})
        raise Refused(405, "Method not allowed")

    def _drop(self, queue: Queue) -> None:
        del self.projects[queue.project][queue.name]
        self._note(queue, "deleted")

    def _set(self, queue: Queue, given: Any) -> None:
        queue.options |= given.get("queue", {})
        self._note(queue, "options", queue.options)

    def _post(self, queue: Queue, given: Any) -> Answer:
        messages = given.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Refused(400, "messages are missing")
        if any(len(str(message.get("body", "")).encode()) > BODY_BYTES for message in messages):
            raise Refused(413, "Message body is too large")
        delays = [_whole(message.get("delay", 0), 0, LONGEST, "delay") for message in messages]
        ids = []
        for given_message, delay in zip(messages, delays, strict=True):
            expires = self.clock() + queue.options["message_expiration"]
            message = Message(str(next(self._numbers)), str(given_message.get("body", "")), expires)
            queue.messages[message.id] = message
            queue.total += 1
            ids.append(message.id)
            if delay:
                self._later(queue, message, delay)
            else:
                queue.ready.append(message)
                self._note_message(queue, message)
        self._news.notify_all()
        return Answer(201, {"ids": ids, "msg": "Messages put on queue."})

    def _reserve(self, queue: Queue, given: Any) -> Answer:
        most = _whole(given.get("n", 1), 1, 100, "n")
        seconds = _whole(given.get("timeout", queue.options["message_timeout"]), 30, 86_400, "timeout")
        wait = _whole(given.get("wait", 0), 0, 30, "wait")
        end = time.monotonic() + wait
        while True:
            self._pass_time(queue)
            taken: list[dict[str, Any]] = []
            while queue.ready and len(taken) < most:
                message = queue.ready.popleft()
                if message.id not in queue.messages or message.reservation:
                    continue
                if self._is_dead(queue, message):
                    continue
                self._hide(queue, message, seconds)
                taken.append({**message.told(), "reservation_id": message.reservation})
                if given.get("delete"):
                    self._delete(queue, [message])
            left = end - time.monotonic()
            if taken or left <= 0:
                return Answer(200, {"messages": taken})
            soon = min((entry[0] for entry in queue.later[:1]), default=self.clock() + 1.0) - self.clock()
            self._news.wait(min(left, max(0.01, min(soon, 1.0))))
            if self.projects.get(queue.project, {}).get(queue.name) is not queue:
                raise Refused(404, "Queue not found")

    def _is_dead(self, queue: Queue, message: Message) -> bool:
        """Whether it was reserved too often; then it is moved to the dead-letter queue."""
        dead = queue.options.get("dead_letter")
        if not dead or message.reserved_count < dead.get("max_reservations", 10):
            return False
        other = self._queue(queue.project, dead["queue_name"])
        self._delete(queue, [message])
        message.expires = self.clock() + other.options["message_expiration"]
        other.messages[message.id] = message
        other.ready.append(message)
        self._note_message(other, message)
        return True

    def _hide(self, queue: Queue, message: Message, seconds: int) -> None:
        message.reserved_count += 1
        message.reservation = f"r{next(self._numbers)}"
        self._later(queue, message, seconds)

    def _later(self, queue: Queue, message: Message, seconds: int) -> None:
        message.until = self.clock() + seconds
        heappush(queue.later, (message.until, next(self._order), message))
        self._note_message(queue, message)
        self._news.notify_all()

    def _pass_time(self, queue: Queue) -> None:
        """Messages that are no longer hidden go to the front."""
        now = self.clock()
        while queue.later and queue.later[0][0] <= now:
            until, _, message = heappop(queue.later)
            if queue.messages.get(message.id) is message and message.until == until:
                message.reservation = None
                message.until = -1.0
                queue.ready.appendleft(message)

    def _delete_many(self, queue: Queue, given: Any) -> Answer:
        ids = given.get("ids")
        if ids is None:
            queue.messages.clear()
            queue.ready.clear()
            queue.later.clear()
            self._note(queue, "cleared")
            return Answer(200, {"msg": "Cleared"})
        if len(ids) > 100:
            raise Refused(400, "at most 100 messages")
        self._delete(queue, [_owned(queue, str(one["id"]), one.get("reservation_id")) for one in ids])
        return Answer(200, {"msg": "Deleted"})

    def _delete(self, queue: Queue, messages: list[Message]) -> None:
        for message in messages:
            queue.messages.pop(message.id, None)
            self._note(queue, "gone", message.id)


def _whole(value: Any, least: int, most: int, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = least - 1
    if not least <= number <= most:
        raise Refused(400, f"{name} must be from {least} to {most}")
    return number


def _message(queue: Queue, id: str) -> Message:
    if id not in queue.messages:
        raise Refused(404, "Message not found")
    return queue.messages[id]


def _owned(queue: Queue, id: str, reservation: Any) -> Message:
    """The message, whose reservation id must be given while it is reserved."""
    message = _message(queue, id)
    if message.reservation != reservation:
        raise Refused(403, "Reservation timed out" if reservation else "Message is reserved")
    return message


def _reserved(queue: Queue, id: str, reservation: Any) -> Message:
    if not reservation:
        raise Refused(400, "reservation_id is missing")
    return _owned(queue, id, reservation)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(
            sys.exc_info()[1], OSError
        ):  # the client has disconnected, or does not trust our certificate
            super().handle_error(request, client_address)


def _handler(server: IronMQ) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, format: str, *given: Any) -> None:
            """Log nothing."""

        def handle_one(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = ""
            try:
                given = json.loads(text or b"{}")
                if self.path == "/stand-in":
                    if given.get("expire"):
                        server.expire()
                    if given.get("forget"):
                        server.forget()
                    if given.get("fault"):
                        server.fail(given["fault"], given.get("count", 1))
                    self.say(200, {"calls": dict(server.calls)})
                    return
                fault = server.next_fault(self.command) if self.command != "GET" else ""
                if fault == "drop":
                    self.close_connection = True
                    self.connection.close()
                    return
                if fault in ("503", "429"):
                    raise Refused(int(fault), "try again")
                if fault == "slow":
                    time.sleep(0.3)
                token = self.headers.get("Authorization", "")
                status, body = server.answer(self.command, self.path, token, given)
            except Refused as error:
                status, body = error.status, {"msg": str(error)}
            except (ValueError, AttributeError, TypeError, KeyError):
                status, body = 400, {"msg": "JSON is malformed"}
            self.say(status, body, fault)

        def say(self, status: int, body: Any, fault: str = "") -> None:
            text = b"<html>" if fault == "nonsense" else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if status == 429:
                self.send_header("Retry-After", "1")
            self.end_headers()
            if fault == "half":
                text = text[: len(text) // 2]
                self.close_connection = True
            self.wfile.write(text)
            self.wfile.flush()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--file", type=Path)
    given = parser.parse_args()
    server = IronMQ(given.port, file=given.file)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.close()


if __name__ == "__main__":
    main()
