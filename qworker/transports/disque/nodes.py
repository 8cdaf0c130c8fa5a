"""The nodes of Disque used by one client: the chosen one, and others when it is unavailable.

Comes from:  ``broker.py``, one for each connection.
Goes to:     ``link.py``.
Thread:      any, in turn.

The first node is chosen at random. Each job's id begins with that of the node that made it, so a consumer
sees where most of its jobs come from, and switches to that node: then jobs need not be sent between nodes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.process.randomness import RANDOM
from qworker.transports.disque.link import BROKEN, Command, Link, Refusal
from qworker.transports.disque.url import Address, Nodes

COUNTED = 500
"""Number of jobs after which the node that made most of them is chosen."""
LEAVING = "100"
"""The priority in HELLO of a node that is leaving the cluster."""


class Answer(NamedTuple):
    """The replies of a node to each command, and the node."""

    replies: list[Any]
    node: Address


class Cluster:
    """The nodes named by *nodes*, and those that they know. shown: the URL, for errors."""

    def __init__(self, nodes: Nodes, shown: str, timeout: float) -> None:
        self._nodes = nodes
        self._shown = shown
        self._timeout = timeout
        self._turn = threading.Lock()
        self._links: dict[Address, Link] = {}  # under the turn, as all below
        self._known: dict[str, Address] = {}
        """By the first eight digits of their ids."""
        self._leaving: set[Address] = set()
        self._chosen: Address | None = None
        self._made: Counter[str] = Counter()
        self._asked: Link | None = None
        self._interrupted = False
        """Set by any thread, permanently."""

    def connect(self) -> Address:
        """Return the chosen node, which is available."""
        return self.ask([("PING",)]).node

    def addresses(self) -> list[Address]:
        """Return all known nodes."""
        return list(dict.fromkeys([*self._known.values(), *self._nodes.addresses]))

    def ask(
        self,
        commands: Sequence[Command],
        *,
        node: Address | None = None,
        only: bool = False,
        wait: float = 0.0,
        again: bool = True,
    ) -> Answer:
        """Query *node*, or else the chosen one; another if it is unavailable, unless *only* that may answer.
        again: whether the commands may be repeated after a lost answer. Raises BrokerUnavailable when none
        answers."""
        with self._turn:
            failures: dict[Address, BaseException] = {}
            for address in self._order(node, only):
                link = None
                try:
                    link = self._asked = self._link(address)
                    if self._interrupted:
                        link.say_no_more()
                    replies = link.ask(commands, wait)
                except BROKEN as error:
                    self._links.pop(address, None)
                    if self._interrupted:
                        return Answer([None] * len(commands), address)
                    failures[address] = error
                    if link is None:
                        self._refused(address, error)
                    elif not again:
                        break
                    continue
                if node is None:
                    self._chosen = address
                return Answer(replies, address)
        reasons = "; ".join(f"{address}: {_text_of(error)}" for address, error in failures.items())
        raise BrokerUnavailable(f"{self._shown}: no node of Disque answers ({reasons}). Is it running?")

    def _order(self, node: Address | None, only: bool) -> list[Address]:
        first = node or self._chosen
        if only and first is not None:
            return [first]
        others = [one for one in self.addresses() if one != first]
        RANDOM.shuffle(others)
        others.sort(key=lambda one: one in self._leaving)
        return others if first is None else [first, *others]

    def _link(self, address: Address) -> Link:
        link = self._links.get(address)
        if link is not None and link.alive:
            return link
        if link is not None:
            del self._links[address]
            link.close()
        link = self._links[address] = Link(address, self._nodes.password, self._timeout)
        self._learn(link)
        return link

    def _learn(self, link: Link) -> None:
        _, own, *found = link.hello
        for name, host, port, priority in found:
            host = host.decode() if name != own and host else link.address.host
            address = link.address if name == own else Address(host, int(port))
            self._known[name[:8].decode()] = address
            (self._leaving.add if priority.decode() == LEAVING else self._leaving.discard)(address)

    def _refused(self, address: Address, error: BaseException) -> None:
        """Raise ConfigurationError if *error* is about the password."""
        text = str(error)
        if any(
            word in text for word in ("NOAUTH", "invalid password", "no password is set", "Authentication")
        ):
            hint = (
                "it requires a password: add it to the URL, as in disque://:PASSWORD@node1,node2"
                if self._nodes.password is None
                else "the password in the URL is not the node's requirepass"
                if "no password is set" not in text
                else "it has no password: remove it from the URL"
            )
            raise ConfigurationError(
                f"{self._shown}: {address}: {text}: {hint}", setting="broker_url"
            ) from error

    # -- the choice --

    def leave(self, address: Address) -> None:
        """Choose another node than *address*, which leaves the cluster or has no room."""
        with self._turn:
            self._leaving.add(address)
            others = [one for one in self.addresses() if one not in self._leaving]
            self._chosen = RANDOM.choice(others) if others else None

    def got(self, ids: Sequence[str]) -> None:
        """Record that jobs with *ids* were delivered to us, and choose the node that made most of the last
        ones."""
        with self._turn:
            self._made.update(job_id[2:10] for job_id in ids)
            if self._made.total() < COUNTED:
                return
            ((name, count),) = self._made.most_common(1)
            total, self._made = self._made.total(), Counter()
            address = self._known.get(name)
            if address is not None and count * 2 > total and address not in self._leaving:
                self._chosen = address

    def interrupt(self) -> None:
        """End the current query, and send no more: all are answered with nil. Any thread."""
        self._interrupted = True
        link = self._asked
        if link is not None:
            link.say_no_more()

    def release(self) -> None:
        """Close all connections."""
        with self._turn:
            for link in self._links.values():
                link.close()
            self._links = {}


def _text_of(error: BaseException) -> str:
    return str(error) or type(error).__name__


def refused(reply: Any, word: str) -> bool:
    """Whether *reply* is an error that begins with *word*."""
    return isinstance(reply, Refusal) and str(reply).partition(" ")[0] == word
