"""HttpStatus: answers probes and Prometheus on a separate port.

Comes from:  ``worker_http_address``; Worker starts it first and stops it last.
Goes to:     Health, which reads snapshots, so that probes never query the broker; ``metrics.py``, where
             QueueDepths queries it.
Thread:      http, and one for each connection; connections are few and short.

Clients cannot block the worker: slow ones are disconnected, and so is the oldest one if there are too many.
"""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

from qworker.components.component import Component
from qworker.components.status.health import Health
from qworker.components.status.metrics import CONTENT_TYPE, Metrics
from qworker.errors import ConfigurationError

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
SILENCE_SECONDS = 5.0
"""Seconds before a silent client is disconnected."""


class HttpStatus(Component):
    """address: ``host:port``. Port 0 takes any free one, which is ``port`` after the start."""

    name = "http"

    def __init__(self, address: str, health: Health, metrics: Metrics) -> None:
        self.port = 0
        self._address = address
        self._health, self._metrics = health, metrics
        self._server: _Server | None = None
        self._stopped = False

    def start(self) -> None:
        """Start. Raises ConfigurationError if the port is not available."""
        if self._server is not None or self._stopped:
            return
        host, _, port = self._address.rpartition(":")
        try:
            server = _Server((host.strip("[]"), int(port)), self._health, self._metrics)
        except OSError as error:
            raise ConfigurationError(
                f"worker_http_address: cannot listen on {self._address}: {error.strerror or error}; "
                "is another worker using it?",
                setting="worker_http_address",
            ) from None
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.5,), name="http", daemon=True).start()
        self._server = server
        logger.info("answering /healthz, /readyz and /metrics on port %d", self.port)

    def stop(self, deadline: float = 0.0) -> None:
        """Stop answering."""
        self._stopped = True
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.cut_off(0)
        self._metrics.depths.close()


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], health: Health, metrics: Metrics) -> None:
        self.health, self.metrics = health, metrics
        self._lock = threading.Lock()
        self._open: dict[Any, None] = {}  # under _lock; oldest first
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.cut_off(MAX_CONNECTIONS - 1)
        with self._lock:
            self._open[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self.shutdown_request(request)

    def cut_off(self, most: int) -> None:
        """Close the oldest connections until at most *most* are left."""
        with self._lock:
            oldest = list(self._open)[: max(0, len(self._open) - most)]
            for one in oldest:
                del self._open[one]
        for one in oldest:
            try:
                one.shutdown(socket.SHUT_RDWR)  # its thread notices that and closes it
            except OSError:
                pass

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a client of the status port failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SILENCE_SECONDS
    server_version = "qworker"
    sys_version = ""

    def do_GET(self) -> None:
        health = self.server.health
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, CONTENT_TYPE, self.server.metrics.render())
        elif path in ("/healthz", "/readyz"):
            reasons = health.not_alive() if path == "/healthz" else health.not_ready()
            text = json.dumps(health.info(reasons))
            self._answer(503 if reasons else 200, "application/json", text.encode() + b"\n")
        else:
            self._answer(404, "text/plain", b"there are /healthz, /readyz and /metrics\n")

    do_HEAD = do_GET

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s: " + format, self.client_address[0], *args)
