"""tracing: the log lines about the tasks of an order.

Comes from:  ``seams``, with store calls of a traced run; ``search``, for an order.
Goes to:     the log, as words.
Thread:      the world's.

The log shows the first eight characters of a task's id. A message's order, job of Django or entry of a
schedule is found by its body or headers, or by the root of its workflow.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qworker import states

ORDER = re.compile(rb"(?<![0-9A-Za-z_])[fj]\d+(?![0-9A-Za-z_])")
"""The name of an order, or of a job, in the body of a message."""
OF_DJANGO = "qworker.django.run"
WORDS = re.compile(r"[\w:]+")
EVENTS = frozenset({"happens:", "back:", "killed", "fault", "short", "late"})
"""Words in lines that concern all orders."""
SHOWN = 8


class Trace:
    """Maps tasks to orders. tags: the task ids of messages."""

    def __init__(self) -> None:
        self.tags: dict[Any, str] = {}
        self.roots: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.orders: dict[str, str] = {}

    def words(self, *values: Any) -> list[str]:
        """Return the words for the log about the tasks in *values*."""
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
        """Return the task id of *message*, and remember its other fields."""
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
        body = _pickled(message.body) if headers.get("task") == OF_DJANGO else message.body
        if entry := headers.get("periodic_task_name"):
            self.orders.setdefault(root, entry)
        elif told := ORDER.search(body):
            self.orders.setdefault(root, told[0].decode())
        return id

    def lines(self, log: list[str], *orders: str) -> list[str]:
        """Return the lines of *log* about *orders*, or about all. Of consecutive lines that differ only in
        time, only the first is returned. What the observer gets at the end is left out."""
        ids = {id[:SHOWN] for id, root in self.roots.items() if self.orders.get(root) in orders}
        wanted = EVENTS.union(orders, ids)
        told = [
            line
            for line in log
            if " observer get " not in line and not wanted.isdisjoint(WORDS.findall(line))
        ]
        texts = [line.partition(" ")[2] for line in told]
        return [line for line, text, before in zip(told, texts, ["", *texts], strict=False) if text != before]


def _pickled(body: bytes) -> bytes:
    """Return the pickled task in the *body* of a message of a Django project."""
    text = json.loads(body)[0][0].partition(":")[0]
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
