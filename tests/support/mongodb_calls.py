"""Calls: what is asked of a MongoDB server.

Comes from:  PyMongo, as ``options={"event_listeners": [calls]}`` of a broker.
Goes to:     tests that count.
Thread:      any.
"""

from __future__ import annotations

from typing import Any

from pymongo import monitoring


class Calls(monitoring.CommandListener):
    """names: of the commands, in order. in_transaction: of those that belong to one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.in_transaction: list[str] = []

    def started(self, event: Any) -> None:
        self.names.append(event.command_name)
        if event.command.get("autocommit") is False:
            self.in_transaction.append(event.command_name)

    def succeeded(self, event: Any) -> None:
        pass

    failed = succeeded
