"""The plain data in which entries are stored and displayed.

Comes from:  ``catalog.py`` and the command line.
Goes to:     the schedule store, as JSON.
Thread:      any.

Arguments may have all types that messages support in JSON: UUID, Decimal, datetime and so on, in kombu's
format. Stored data is untrusted: nothing in it is called or imported, and invalid data raises
InvalidSchedule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from qworker.beat.entry import FIELDS, Entry
from qworker.beat.kinds import read_schedule, write_schedule
from qworker.errors import InvalidSchedule
from qworker.interrupts import reraise_interrupt
from qworker.message.kombu_json import as_plain, loads, refuse_tagged

LARGEST = 1024**2
"""Maximum bytes of an entry."""


_TO_TEXT: dict[str, Callable[[Any], Any]] = {
    "schedule": write_schedule,
    "args": list,
    "kwargs": dict,
    "options": dict,
    "start": lambda instant: instant and instant.isoformat(),
    "end": lambda instant: instant and instant.isoformat(),
}


def write_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of an entry as plain data."""
    return {name: _TO_TEXT.get(name, _same)(value) for name, value in values.items()}


def read_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry written as *given*. Raises InvalidSchedule."""
    return {name: read_schedule(value) if name == "schedule" else value for name, value in given.items()}


def as_data(entry: Entry) -> dict[str, Any]:
    """Return all fields of *entry* as plain data."""
    return write_fields({name: getattr(entry, name) for name in sorted(FIELDS)})


def to_json(values: Mapping[str, Any]) -> bytes:
    """Return plain data as JSON. Raises InvalidSchedule for data that JSON cannot represent, or that is too
    large."""
    try:
        text = json.dumps(
            values, separators=(",", ":"), sort_keys=True, allow_nan=False, default=as_plain
        ).encode()
        refuse_tagged(values)
    except Exception as error:  # raised by user classes with their own JSON
        reraise_interrupt(error)
        raise InvalidSchedule(
            f"the arguments of an entry in a schedule store must be valid as JSON: {error}"
        ) from error
    if len(text) > LARGEST:
        raise InvalidSchedule(
            f"an entry of {len(text):,} bytes is too large: {LARGEST:,} at most; store the data somewhere "
            "and pass its key"
        )
    return text


def from_json(text: bytes) -> dict[str, Any]:
    """Undo to_json(). Raises InvalidSchedule for anything else."""
    if len(text) > LARGEST:
        raise InvalidSchedule(f"an entry of {len(text):,} bytes is too large: {LARGEST:,} at most")
    try:
        found = loads(text.decode())
    except Exception as error:  # decoders of registered types are user code
        reraise_interrupt(error)
        raise InvalidSchedule(f"{text[:80]!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidSchedule(f"{text[:80]!r} does not describe an entry")
    return found


def _same(value: Any) -> Any:
    return value
