"""What became of the tasks of one order: the lines of the log that are about them.

Comes from:  ``seams``, with the calls of stores, in a run that is traced; ``search``, for an order.
Goes to:     the log, as words; whoever reads it.
Thread:      the world's.

A task has the first eight characters of its id in the log. A message says which order it is of by its
body, or by the root of its workflow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qworker import states

ORDER = re.compile(rb"(?<![0-9A-Za-z_])f\d+(?![0-9A-Za-z_])")
"""The name of an order in the body of a message."""
WORDS = re.compile(r"[\w:]+")
EVENTS = frozenset({"happens:", "back:", "killed", "meets", "short", "late"})
"""Words of lines that are about all orders."""
SHOWN = 8


class Trace:
    """Which task is of which order. tags: the ids of messages."""

    def __init__(self) -> None:
        self.tags: dict[Any, str] = {}
        self.roots: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.orders: dict[str, str] = {}

    def words(self, *values: Any) -> list[str]:
        """What the log says of the tasks in *values*."""
        return list(dict.fromkeys(word for value in values for word in self._words(value)))

    def _words(self, value: Any) -> Iterator[str]:
        if isinstance(value, str):
            if value in self.roots:
                yield self._shown(value)
            elif value in states.ALL_STATES:
                yield value
        elif isinstance(getattr(value, "headers", None), str):
            if id := self._learn(value):
                yield self._shown(id)
        elif isinstance(value, tuple) and hasattr(value, "tag"):
            if value.tag in self.tags:
                yield f"{type(value).__name__}({self._shown(self.tags[value.tag])})"
            for each in value[1:]:
                yield from self._words(each)
        elif isinstance(value, Mapping):
            for key, each in value.items():
                yield from self._words(key)
                yield from self._words(each)
        elif isinstance(value, Collection) and not isinstance(value, bytes):
            for each in value:
                yield from self._words(each)

    def _shown(self, id: str) -> str:
        name = self.names.get(id, "")
        return f"{id[:SHOWN]}({name})" if name else id[:SHOWN]

    def _learn(self, message: Any) -> str:
        """The id of *message*; what it says of itself is kept."""
        try:
            headers = json.loads(message.headers)
            id = str(headers["id"])
        except (ValueError, LookupError, TypeError):
            return ""
        root = headers.get("root_id") or id
        self.roots[id] = root
        self.names[id] = str(headers.get("task", "")).rpartition(".")[2]
        if group := headers.get("group"):
            self.roots[group] = root
        if tag := getattr(message, "tag", None):
            self.tags[tag] = id
        if told := ORDER.search(message.body):
            self.orders.setdefault(root, told[0].decode())
        return id

    def lines(self, log: list[str], *orders: str) -> list[str]:
        """Those of *log* that are about one of *orders*, or about all; of one after another that differ in
        nothing but the time the first."""
        ids = {id[:SHOWN] for id, root in self.roots.items() if self.orders.get(root) in orders}
        wanted = EVENTS.union(orders, ids)
        told = [line for line in log if not wanted.isdisjoint(WORDS.findall(line))]
        texts = [line.partition(" ")[2] for line in told]
        return [line for line, text, before in zip(told, texts, ["", *texts], strict=False) if text != before]
