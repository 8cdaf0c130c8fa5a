"""Messages for tests of brokers, and their ids. Comes from: tests. Goes to: any broker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from qworker.testing.contract.messages import message, names
from qworker.transports.lease import Envelope, Leased

__all__ = ["call", "envelope", "ids", "message", "names"]


def envelope(id: str, queue: str = "q", **fields: Any) -> Envelope:
    """An Envelope whose headers are JSON with *id* and those in *fields*: for brokers that read headers."""
    return message(json.dumps({"id": id, **fields.pop("headers", {})}), queue, **fields)


def call(id: str, queue: str = "celery", task: str = "tasks.add", **fields: Any) -> Envelope:
    """An Envelope that calls *task* with 1 and 2; *fields* as those of envelope()."""
    headers = {"task": task, **fields.pop("headers", {})}
    return envelope(id, queue, headers=headers, body=b"[[1,2],{},{}]", **fields)


def ids(messages: Iterable[Leased]) -> list[str]:
    """The ids of such messages."""
    return [json.loads(leased.headers)["id"] for leased in messages]
