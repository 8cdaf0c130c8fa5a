"""A Redis database as a broker: the state shared by its sender, its consumer and its administration.

Comes from:  ``broker.py``.
Goes to:     ``sender.py``, ``consumer.py``, ``letters.py``; the administration in ``broker.py``.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qworker.clock import Clock
from qworker.transports.redis.connection import Links, Script, checked, pack
from qworker.transports.redis.envelope import Layout
from qworker.transports.redis.url import Endpoint


@dataclass(frozen=True)
class Database:
    """where: the server. layout: our keys. clock: for due times. links: connections for any thread."""

    where: Endpoint
    layout: Layout
    clock: Clock
    links: Links

    def run(self, script: Script, *arguments: Any) -> Any:
        """Return the result of *script*. Raises BrokerUnavailable."""
        with self.links.lent() as link:
            return self.layout.run(link, script, self.clock.now(), *arguments)

    def ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the replies to *commands*. Raises BrokerUnavailable."""
        with self.links.lent() as link:
            replies = link.ask(b"".join(map(pack, commands)), len(commands))
            return [checked(link, reply) for reply in replies]
