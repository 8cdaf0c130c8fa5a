"""The stand-in for Disque replies as in transcripts of Disque, except for ids and times."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.disque_commands import execute
from tests.support.disque_node import Cluster, Node, Session, encoded

DATA = Path(__file__).resolve().parents[1] / "data" / "disque"
PORTS = {"06-cluster.json": (17721, 17722, 17723), "07-auth-and-restart.json": (17731,)}
PAUSES = {"after ttl": 1.3, "more than half of the ttl elapsed": 1.2}
"""Seconds that passed before the request with that note."""
VOLATILE = frozenset({"ttl", "ctime", "next-requeue-within", "next-awake-within", "age", "idle"})


class Replay:
    """A transcript, replayed on nodes whose clock only moves where the transcript waited."""

    def __init__(self, name: str, directory: Path) -> None:
        self.now = 1_795_233_097.705
        self.cluster = Cluster(lambda: self.now)
        self.restarting = name.startswith("07")
        self.aof = directory / "appendonly.aof" if self.restarting else None
        password = "sesame" if self.restarting else None
        for port in PORTS.get(name, (17711,)):
            Node(self.cluster, port, password, self.aof)
        self.sessions = {node.port: node.session() for node in self.cluster.nodes}
        self.ids: dict[str, str] = {}

    def restart(self) -> None:
        (old,) = self.cluster.nodes
        self.cluster.nodes.clear()
        node = Node(self.cluster, old.port, old.password, self.aof)
        self.sessions = {node.port: node.session()}

    def ask(self, step: dict[str, Any]) -> bytes:
        node = self.cluster.nodes[1 if step.get("connection") == "node 2" else 0]
        words = [self.ids.get(word, word).encode("latin-1") for word in step["request"]]
        session = node.session() if step.get("connection") == "second" else self.sessions[node.port]
        session.allowed |= step.get("connection") == "second"
        self.now += 0.001
        self.cluster.step()
        reply = execute(node, session, words)
        if session.blocked is not None:
            reply = self.wait(node, session)
        return encoded(reply)

    def wait(self, node: Node, session: Session) -> Any:
        for _ in range(600):
            for served, reply in node.served():
                if served is session:
                    return reply
            self.now += 0.01
            self.cluster.step()
        raise AssertionError("waited in vain")

    def learn(self, recorded: str, ours: str) -> None:
        """Map the ids in the transcript to ours."""
        pattern = r"D-[0-9a-f]{8}-[A-Za-z0-9+/]{24}-[0-9a-f]{4}|\b[0-9a-f]{40}\b"
        self.ids.update(zip(re.findall(pattern, recorded), re.findall(pattern, ours), strict=False))


def plain(text: str) -> list[str]:
    """Return the lines of a reply without ids and times."""
    text = re.sub(r"D-[0-9a-f]{8}-[A-Za-z0-9+/]{24}-", "D-ID-", text)
    text = re.sub(r"\b[0-9a-f]{40}\b", "NODE", text)
    lines = text.split("\r\n")
    for index, line in enumerate(lines):
        if line in VOLATILE and index + 1 < len(lines) and lines[index + 1] != "$-1":
            lines[index + 1] = ":T"
    return lines


BY_FORM = frozenset({"TIME", "INFO", "CLUSTER", "CLIENT", "JSCAN", "CONFIG"})
"""Commands whose replies are about the process, or unordered."""


def cases() -> list[str]:
    return sorted(path.name for path in DATA.glob("*.json"))


@pytest.mark.parametrize("name", cases())
def test_replies_equal_the_recorded_ones(name: str, tmp_path: Path) -> None:
    replay = Replay(name, tmp_path)
    steps = json.loads((DATA / name).read_text())["steps"]
    for number, step in enumerate(steps):
        note = step.get("note", "")
        if "request" not in step:
            if "SIGTERM" in note:
                replay.now += 1.0
                replay.restart()
            continue
        replay.now += PAUSES.get(note, 0.0)
        request = step["request"]
        if request[:2] == ["QSTAT", "blk"]:
            continue  # needs a waiting connection: test_blocked_getjob_is_served
        ours = replay.ask(step).decode("latin-1")
        recorded = step["raw"]
        replay.learn(recorded, ours)
        where = f"{name} step {number}: {request}"
        if request == ["QSCAN", "0", "COUNT", "1"]:
            assert plain(ours)[3:] == plain(recorded)[3:], where
        elif request[0] in BY_FORM and not recorded.startswith(("-", "+", ":")):
            assert ours[0] == recorded[0], where
            if request[0] in ("JSCAN", "CONFIG"):
                assert sorted(plain(ours)) == sorted(plain(recorded)), where
        else:
            assert plain(ours) == plain(recorded), where


def test_blocked_getjob_is_served() -> None:
    now = [1000.0]
    cluster = Cluster(lambda: now[0])
    node = Node(cluster, 1)
    waiting, other = node.session(), node.session()
    execute(node, waiting, [b"GETJOB", b"TIMEOUT", b"5000", b"FROM", b"blk"])
    now[0] += 1
    stat = execute(node, other, [b"QSTAT", b"blk"])
    assert dict(zip(stat[::2], stat[1::2], strict=True))[b"blocked"] == 1
    execute(node, other, [b"ADDJOB", b"blk", b"wake", b"0"])
    ((session, reply),) = node.served()
    assert session is waiting
    assert reply[0][2] == b"wake"


def test_retry_time_continues_while_a_job_is_queued() -> None:
    """The retry time goes on while the job is queued; whoever gets the job has only the rest."""
    now = [1000.0]
    cluster = Cluster(lambda: now[0])
    node = Node(cluster, 1)
    session = node.session()

    def after(seconds: float, *words: bytes) -> Any:
        for _ in range(round(seconds * 10)):
            now[0] += 0.1
            cluster.step()
        return execute(node, session, list(words))

    execute(node, session, [b"ADDJOB", b"q", b"job", b"0", b"RETRY", b"4"])
    ((_, job_id, _),) = after(10.0, b"GETJOB", b"NOHANG", b"FROM", b"q")
    assert after(1.5, b"QLEN", b"q") == 0
    assert after(1.0, b"QLEN", b"q") == 1, "12 s are three retries"
    execute(node, session, [b"GETJOB", b"NOHANG", b"FROM", b"q"])
    execute(node, session, [b"WORKING", job_id])
    assert after(3.5, b"QLEN", b"q") == 0
    assert after(1.0, b"QLEN", b"q") == 1
