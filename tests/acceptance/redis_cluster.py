"""A Redis Cluster of this machine for tests: nodes can be killed and restarted, slots moved between them.

Comes from:  ``servers.require("redis-cluster")``, and tests that do harm to a cluster of their own.
Goes to:     redis-server, through ``private_servers``.
Thread:      the test's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.acceptance.private_servers import PATIENCE, Redis, free_port
from tests.support.waiting import until

SLOTS = 16384


class Node(Redis):
    """One server of a cluster. Its second port, for the other nodes, is not ephemeral either."""

    def __init__(self, **options: object) -> None:
        self.bus = free_port()
        super().__init__(
            **{
                "cluster-enabled": "yes",
                "cluster-port": self.bus,
                "cluster-node-timeout": 60_000,  # on a busy machine nodes hear late from each other
                "cluster-replica-validity-factor": 0,
                "appendfsync": "everysec",
                **options,
            }
        )

    @property
    def id(self) -> str:
        return str(self.do("CLUSTER", "MYID").decode())

    def meet(self, other: Node) -> None:
        self.do("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus)


class Cluster:
    """masters: as many nodes, which share the slots. replicas: whether each has one. options: lines of the
    configuration of every node."""

    def __init__(self, masters: int = 3, replicas: bool = False, **options: object) -> None:
        self.nodes: list[Node] = []
        try:
            for _ in range(masters * 2 if replicas else masters):
                self.nodes.append(Node(**options))
            self._join(masters)
        except BaseException:
            self.close()
            raise

    def _join(self, masters: int) -> None:
        first, *others = self.nodes
        for number, node in enumerate(self.nodes):
            node.do("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < masters:
                start, end = SLOTS * number // masters, SLOTS * (number + 1) // masters - 1
                node.do("CLUSTER", "ADDSLOTSRANGE", start, end)
        for node in others:
            node.meet(first)
        until(self._all_know_all, PATIENCE, lambda: "for the nodes to know each other")
        for master, replica in zip(self.nodes, self.nodes[masters:], strict=False):
            replica.do("CLUSTER", "REPLICATE", master.id)
        self.wait()

    def _all_know_all(self) -> bool:
        return all(self._fact(node, "cluster_known_nodes") == str(len(self.nodes)) for node in self.nodes)

    def _fact(self, node: Node, name: str) -> str:
        lines = node.do("CLUSTER", "INFO")
        facts = lines if isinstance(lines, dict) else dict(
            line.split(":", 1) for line in lines.decode().splitlines() if ":" in line
        )  # fmt: skip
        return str(facts[name])

    def wait(self) -> None:
        """Wait until all nodes that run serve all slots, and replicas have their data."""

        def serves() -> bool:
            running = [node for node in self.nodes if node.process is not None]
            linked = all(b"master_link_status:down" not in _info(node) for node in running)
            return linked and all(self._fact(node, "cluster_state") == "ok" for node in running)

        until(serves, PATIENCE, lambda: "for the cluster to be ok")

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def owner(self, key: str) -> Node:
        """The running master that has the slot of *key*."""
        wanted = slot_of(key)
        asked = next(node for node in self.nodes if node.process is not None)
        for line in asked.do("CLUSTER", "SLOTS"):
            if line[0] <= wanted <= line[1]:
                return next(node for node in self.nodes if node.port == line[2][1])
        raise AssertionError(f"nobody has slot {wanted}")

    def move(self, key: str, between: Callable[[], object] = lambda: None) -> None:
        """Move the slot of *key* with all its keys to another node, as ``redis-cli --cluster reshard`` does.
        between: called before each key, and when all have been moved, but not the slot."""
        slot, source = slot_of(key), self.owner(key)
        target = next(each for each in self.nodes if each is not source and each.process is not None)
        target.do("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        between()
        while keys := source.do("CLUSTER", "GETKEYSINSLOT", slot, 1):
            source.do("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            between()
        for node in (target, source):
            node.do("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def slot_of(key: str) -> int:
    from redis.crc import key_slot

    return int(key_slot(key.encode()))


def _info(node: Node) -> bytes:
    text: Any = node.do("INFO", "replication")
    return text if isinstance(text, bytes) else repr(text).encode()
