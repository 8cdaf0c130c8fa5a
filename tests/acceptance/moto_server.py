"""moto's SQS server as a program, without its slow counting and optionally with a store that survives kill
-9.

Comes from:  sqs_server.py: ``python moto_server.py [--keep FILE] -H HOST -p PORT``.
Goes to:     moto's server; the file.
Thread:      those of the server.
"""

from __future__ import annotations

import argparse
import functools
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moto.server import main
from moto.sqs import models

ACCOUNT, REGION = "123456789012", "us-east-1"
CHANGES = (
    "create_queue", "delete_queue", "purge_queue", "send_message", "send_message_batch", "receive_message",
    "delete_message", "delete_message_batch", "change_message_visibility", "change_message_visibility_batch",
)  # fmt: skip

_writing = threading.Lock()
"""Held while the queues are read and the file is written, so that the last writer writes the newest state."""


def count_no_ages() -> None:
    """For each message moto checks its age and counts the whole queue for that: with some hundred messages
    a call takes half a second."""
    models.unix_time_millis = lambda: time.time() * 1000
    models.SQSBackend.is_message_valid_based_on_retention_period = lambda *given: True


def keep_in(file: Path) -> None:
    """Load the queues from *file*; from now on every change is saved before it is answered."""
    models.Queue.__getstate__ = _without_lock
    models.Queue.__setstate__ = _with_lock
    backend = models.sqs_backends[ACCOUNT][REGION]
    if file.exists():
        backend.queues.update(pickle.loads(file.read_bytes()))
    for name in CHANGES:
        setattr(models.SQSBackend, name, _written_after(getattr(models.SQSBackend, name), file))


def _without_lock(queue: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(queue).items() if name != "_messages_lock"}


def _with_lock(queue: Any, state: dict[str, Any]) -> None:
    vars(queue).update(state, _messages_lock=threading.Condition())


def _written_after(change: Callable[..., Any], file: Path) -> Callable[..., Any]:
    @functools.wraps(change)
    def changed(backend: Any, *given: Any, **more: Any) -> Any:
        answer = change(backend, *given, **more)
        new = file.with_suffix(".new")
        with _writing:
            new.write_bytes(pickle.dumps(dict(backend.queues)))
            os.replace(new, file)
        return answer

    return changed


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", type=Path)
    options, rest = parser.parse_known_args()
    count_no_ages()
    if options.keep:
        keep_in(options.keep)
    main(rest)
