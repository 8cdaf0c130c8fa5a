"""A proxy between clients and the SQS of the tests, which answers some requests with faults as at Amazon.

Comes from:  tests; clients, whose queue URLs also point to the proxy.
Goes to:     moto.
Thread:      one for each connection.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS: dict[str, tuple[int, bytes]] = {
    "throttled": (400, b'{"__type":"com.amazonaws.sqs#ThrottlingException","message":"Rate exceeded"}'),
    "request-throttled": (
        400,
        b'{"__type":"com.amazon.coral.service#RequestThrottled","message":"Slow down"}',
    ),
    "503": (503, b"<html><body><h1>503 Service Unavailable</h1></body></html>"),
    "nonsense": (200, b"<html>Welcome to our hotel</html>"),
    "unscoped": (
        403,
        b'{"__type":"com.amazon.coral.service#InvalidSignatureException","message":'
        b'"Credential should be scoped to a valid region."}',
    ),
}


class SqsFaults:
    """target: the address of moto. fail(): faults from now on; calls: how often each operation was called."""

    def __init__(self, target: str) -> None:
        self.calls: Counter[str] = Counter()
        self.entries: list[int] = []
        """The size of each batch of which some entries failed."""
        self.delay = 0.0
        """Seconds before each answer."""
        self._faults: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, target))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"sqs://key:s3cr3t@127.0.0.1:{self.port}/"

    def fail(
        self, operation: str, fault: str, times: int = 1, after: int = 0, then: Sequence[str] = ()
    ) -> None:
        """Let *times* calls of *operation* ("*": any) fail with *fault*, after *after* successful ones, and
        the next ones with *then*."""
        with self._lock:
            self._faults[operation] = [""] * after + [fault] * times + list(then)

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()
            self.entries.clear()
        self.delay = 0.0

    def next_fault(self, operation: str) -> str:
        with self._lock:
            self.calls[operation] += 1
            faults = self._faults.get(operation) or self._faults.get("*")
            return faults.pop(0) if faults else ""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(faults: SqsFaults, target: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
            fault = faults.next_fault(operation)
            time.sleep(faults.delay)
            if fault == "drop":
                self.close_connection = True
                return
            if fault == "partly":
                status, body = self._forward_some(given)
            else:
                status, body = ANSWERS[fault] if fault in ANSWERS else self._forward(given)
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if fault == "half" else body)
            if fault == "half":
                self.close_connection = True

        def _forward_some(self, given: bytes) -> tuple[int, bytes]:
            """Every second entry of a batch is throttled."""
            asked = json.loads(given)
            entries = asked["Entries"]
            faults.entries.append(len(entries))
            throttled = [
                {"Id": one["Id"], "Code": "RequestThrottled", "Message": "Slow down", "SenderFault": False}
                for one in entries[::2]
            ]
            found: dict[str, Any] = {}
            if entries[1::2]:
                status, body = self._forward(json.dumps({**asked, "Entries": entries[1::2]}).encode())
                if status != 200:
                    return status, body
                found = json.loads(body)
            return 200, json.dumps({**found, "Failed": [*found.get("Failed", ()), *throttled]}).encode()

        def _forward(self, given: bytes) -> tuple[int, bytes]:
            request = urllib.request.Request(f"{target}{self.path}", given, dict(self.headers))
            request.remove_header("Content-length")  # it may be shorter than the received body
            try:
                with urllib.request.urlopen(request, timeout=60.0) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        def log_message(self, *words: Any) -> None:
            pass

    return Handler
