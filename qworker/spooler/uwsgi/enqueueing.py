"""Enqueuer: writes a spool file for the arguments of ``uwsgi.spool()``.

Comes from:  ``uwsgi_api``, with a dictionary of text, bytes and whole numbers.
Goes to:     ``writing``, in one of the configured directories.
Thread:      any.

Four keys are special: ``spooler`` (the directory), ``at`` (when it is due), ``priority`` and ``body``. As
with uWSGI, the job keeps the first three as pairs, but not the body.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from qworker.clock import to_epoch
from qworker.errors import SpoolError
from qworker.safe_repr import safe_repr
from qworker.spooler.files.writing import Writer
from qworker.spooler.options import SpoolerOptions

_DECIMAL = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]*)?")


class Enqueuer:
    """The spool directories of *options*, at least one, for writing.

    directories: all of them, absolute and without links, in the order of processing.
    default: for jobs that name none.
    """

    def __init__(self, options: SpoolerOptions) -> None:
        places = (*options.directories, *options.external)
        self.directories = tuple(dict.fromkeys(map(os.path.realpath, places)))
        named: str | None = options.default
        self.default = self.directories[0] if named is None else os.path.realpath(named)
        self._writers: dict[str, Writer] = {}

    def enqueue(self, message: Mapping[Any, Any]) -> str:
        """Write one job and return the path of its file. *message* is not changed.

        SpoolError when it cannot be written; then no file is left.
        """
        pairs = {key.encode() if isinstance(key, str) else key: value for key, value in message.items()}
        body = as_body(pairs.pop(b"body", b""))
        at = pairs.get(b"at")
        due = epoch(at)
        if isinstance(at, float | datetime):
            pairs[b"at"] = math.ceil(due)
        priority = pairs.get(b"priority", "")
        if priority.__class__ not in (str, bytes, int):
            raise SpoolError(f"a priority must be a number, such as 1 or 10, not {safe_repr(priority)}")
        return self._writer(pairs.get(b"spooler")).write(pairs, body, at=due, priority=priority)

    def _writer(self, named: object) -> Writer:
        place = self.default if named is None else self._place(named)
        writer = self._writers.get(place)
        if writer is None:
            writer = self._writers[place] = Writer(place)
        return writer

    def _place(self, named: object) -> str:
        """Return the configured directory that a job names. Links and trailing slashes are resolved."""
        if isinstance(named, str | bytes):
            path = os.fsdecode(named)
            if os.path.isabs(path) and "\0" not in path and os.path.realpath(path) in self.directories:
                return os.path.realpath(path)
        raise SpoolError(
            f"a job names the spool directory {safe_repr(named)}, which is not the absolute path of one of "
            f"those that are configured ({', '.join(self.directories)}): correct it, or add the directory to "
            "spooler_external"
        )


def epoch(at: object) -> float:
    """Return when a job is due, in epoch seconds; 0: at once. at: a number, a decimal number as text or
    bytes, or a datetime. SpoolError for anything else."""
    if at is None:
        return 0
    if isinstance(at, bytes | bytearray | memoryview):
        at = bytes(at).decode("ascii", "replace")
    try:
        if isinstance(at, str):
            return float(at) if _DECIMAL.fullmatch(at) else _nothing(at)
        if isinstance(at, int | float | datetime) and not isinstance(at, bool):
            due = to_epoch(at)
            if math.isfinite(due):
                return due
    except (ValueError, OverflowError):
        pass
    raise SpoolError(f"the due time of a job must be epoch seconds or a datetime, not {safe_repr(at)}")


def _nothing(at: str) -> float:
    if at:
        raise ValueError(at)
    return 0


def as_body(body: object) -> bytes:
    """Return the body as bytes; text is encoded as UTF-8."""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise SpoolError(f"the body of a job must be bytes or text, not of type {type(body).__name__}")
