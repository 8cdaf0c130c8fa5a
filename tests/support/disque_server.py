"""A stand-in for Disque: nodes with sockets, in this process or by `python -m tests.support.disque_server`.

Comes from:  tests and benchmarks.
Goes to:     ``disque_commands.py``.
Thread:      one for all nodes; what its owner calls is done there.

Besides the commands of Disque it takes STANDIN, with which tests inject faults: ``STANDIN drop 3`` closes the
connection in place of each of the next three replies, ``half 3`` sends half of each and closes, ``slow 0.5``
waits so many seconds before every reply from now on, ``refuse 3 TEXT`` answers an error, ``stop SECONDS``
ends the node as kill -9 does, and starts it again after that time.
"""

from __future__ import annotations

import argparse
import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import hiredis

from tests.support.disque_commands import execute, meet
from tests.support.disque_node import Blocked, Cluster, Node, Refusal, Session, Simple, encoded

TICK_SECONDS = 0.02
FREE = frozenset({"ping", "hello", "auth", "client", "standin", "command"})
"""Commands that are not affected by faults."""


class Client:
    """A connection to *node*."""

    def __init__(self, node: Node, connected: socket.socket) -> None:
        self.node = node
        self.socket = connected
        self.session = node.session()
        self.reader = hiredis.Reader()
        self.requests: list[list[bytes]] = []


class DisqueServer:
    """nodes: the number of nodes of the cluster. directory: of their append-only files; None for none.
    ports: of the nodes; free ports by default."""

    def __init__(
        self,
        nodes: int = 1,
        *,
        password: str | None = None,
        directory: Path | None = None,
        ports: Sequence[int] = (),
    ) -> None:
        self.cluster = Cluster()
        self.password = password
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[Node, socket.socket] = {}
        self._clients: dict[Session, Client] = {}
        self._faults: dict[str, Any] = {"drop": 0, "half": 0, "slow": 0.0, "refuse": 0, "text": ""}
        self._restarts: list[tuple[float, Node]] = []
        self._orders: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._ended = False
        self._woken, self._waker = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        for number in range(nodes):
            port = ports[number] if number < len(ports) else 0
            listener = self._listen(port)
            aof = directory / f"{number}.aof" if directory else None
            node = Node(self.cluster, listener.getsockname()[1], password, aof)
            self._serve(node, listener)
        meet(self.cluster.nodes)
        self._thread = threading.Thread(target=self._run, name="disque", daemon=True)
        self._thread.start()

    # -- for its owner --

    @property
    def nodes(self) -> list[Node]:
        return self.cluster.nodes

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"disque://{login}{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def calls(self, *names: str) -> int:
        """How many commands with these *names* were executed."""
        return int(self.do(lambda: sum(node.commands[name] for node in self.nodes for name in names)))

    def trips(self) -> int:
        """How often data was received; pipelined commands count once."""
        return int(self.do(lambda: sum(node.calls["trips"] for node in self.nodes)))

    def do(self, order: Callable[[], Any]) -> Any:
        """Call the function on the server's thread; return its value."""
        if threading.current_thread() is self._thread:
            return order()
        answer: Future[Any] = Future()
        self._orders.append((order, answer))
        self._waker.send(b"x")
        return answer.result(10)

    def ask(self, *words: str, node: int = 0) -> Any:
        """The reply to a command, from a node without a password."""
        session = Session(allowed=True)
        return self.do(lambda: execute(self.nodes[node], session, [word.encode() for word in words]))

    def fault(self, **faults: Any) -> None:
        """Inject faults, like STANDIN."""
        self.do(lambda: self._faults.update(faults))

    def kill(self, node: int) -> None:
        """Stop a node like kill -9; its jobs remain in its file, if it has one."""
        self.do(lambda: self._kill(self.nodes[node]))

    def start(self, node: int) -> None:
        self.do(lambda: self._start(self.nodes[node]))

    def reset(self) -> None:
        """Delete all jobs and faults."""

        def forget() -> None:
            self._faults.update({"drop": 0, "half": 0, "slow": 0.0, "refuse": 0})
            for node in self.nodes:
                for job_id in list(node.jobs):
                    node.drop(job_id)
                node.queues.clear()
                node.leaving = False
                for waiting in list(node.blocked):
                    node.unblock(waiting.session)

        self.do(forget)

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._waker.send(b"x")
            self._thread.join(10)

    # -- the thread --

    @staticmethod
    def _listen(port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        return listener

    def _serve(self, node: Node, listener: socket.socket) -> None:
        self._listeners[node] = listener
        self._selector.register(listener, selectors.EVENT_READ, node)

    def _kill(self, node: Node) -> None:
        node.up = False
        listener = self._listeners.pop(node)
        self._selector.unregister(listener)
        listener.close()
        for client in [one for one in self._clients.values() if one.node is node]:
            self._drop(client)
        node.forget()

    def _start(self, node: Node) -> None:
        if not node.up:
            node.up = True
            if node.aof is not None:
                node._load(node.aof)
            self._serve(node, self._listen(node.port))

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(TICK_SECONDS):
                if key.data is None:
                    self._woken.recv(64)
                elif isinstance(key.data, Node):
                    self._accept(key.data, key.fileobj)
                elif key.data.socket.fileno() >= 0:
                    self._read(key.data)
            while self._orders:
                order, answer = self._orders.pop(0)
                try:
                    answer.set_result(order())
                except Exception as error:  # noqa: BLE001 - its owner sees it
                    answer.set_exception(error)
            for moment, node in list(self._restarts):
                if time.monotonic() >= moment:
                    self._restarts.remove((moment, node))
                    self._start(node)
            self.cluster.step()
            for node in self.nodes:
                if node.up:
                    for session, reply in node.served():
                        self._answer(self._clients[session], encoded(reply))
        for client in list(self._clients.values()):
            self._drop(client)
        for listener in self._listeners.values():
            listener.close()

    def _accept(self, node: Node, listener: Any) -> None:
        connected, _ = listener.accept()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Client(node, connected)
        self._clients[client.session] = client
        self._selector.register(connected, selectors.EVENT_READ, client)

    def _drop(self, client: Client) -> None:
        client.node.unblock(client.session)
        if self._clients.pop(client.session, None) is not None:
            self._selector.unregister(client.socket)
            client.socket.close()

    def _read(self, client: Client) -> None:
        try:
            received = client.socket.recv(2**20)
        except OSError:
            received = b""
        if not received:
            self._drop(client)
            return
        client.node.calls["trips"] += 1
        client.reader.feed(received)
        while (request := client.reader.gets()) is not False:
            client.requests.append(request)
        self._go_on(client)

    def _go_on(self, client: Client) -> None:
        """Answer the received commands, up to a GETJOB that waits."""
        replies: list[bytes] = []
        while client.requests and client.session.blocked is None:
            request = client.requests.pop(0)
            name = request[0].decode("latin-1").lower()
            if name == "standin":
                reply: Any = self._standin(client.node, [word.decode() for word in request[1:]])
            elif name not in FREE and self._faults["refuse"] > 0:
                self._faults["refuse"] -= 1
                reply = Refusal(self._faults["text"])
            else:
                reply = execute(client.node, client.session, request)
            if client.session not in self._clients:
                return
            if name not in FREE and self._faults["slow"]:
                time.sleep(self._faults["slow"])
            if isinstance(reply, Blocked):
                break
            data = encoded(reply)
            for kind in ("drop", "half"):
                if name not in FREE and self._faults[kind] > 0:
                    self._faults[kind] -= 1
                    self._send(
                        client, b"".join(replies) + (data[: len(data) // 2] if kind == "half" else b"")
                    )
                    self._drop(client)
                    return
            replies.append(data)
        if replies:
            self._send(client, b"".join(replies))

    def _answer(self, client: Client, data: bytes) -> None:
        self._send(client, data)
        if client.session in self._clients:
            self._go_on(client)

    def _send(self, client: Client, data: bytes) -> None:
        try:
            client.socket.sendall(data)
        except OSError:
            self._drop(client)

    def _standin(self, node: Node, words: list[str]) -> Any:
        kind, *values = words
        if kind == "stop":
            self._kill(node)
            self._restarts.append((time.monotonic() + float(values[0]), node))
        elif kind in ("drop", "half", "refuse"):
            self._faults[kind] = int(values[0])
            self._faults["text"] = " ".join(values[1:])
        elif kind == "slow":
            self._faults["slow"] = float(values[0])
        else:
            return Refusal("ERR syntax error")
        return Simple("OK")


def main() -> None:
    parser = argparse.ArgumentParser(description="A stand-in for Disque. It prints its URL and runs.")
    parser.add_argument("--port", type=int, action="append", default=[], help="of each node")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--password")
    parser.add_argument("--directory", type=Path, help="of append-only files")
    given = parser.parse_args()
    server = DisqueServer(given.nodes, password=given.password, directory=given.directory, ports=given.port)
    print(server.url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    server.close()


if __name__ == "__main__":
    main()
