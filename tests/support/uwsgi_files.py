"""The spool files of a real uWSGI in tests/data/uwsgi, with their contents."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data" / "uwsgi"
MANIFEST: dict[str, Any] = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Sample:
    """One file. expect: its pairs, None when uWSGI did not run it."""

    id: str
    path: Path
    entry: dict[str, Any]

    @property
    def image(self) -> bytes:
        return self.path.read_bytes()

    def holds(self, pairs: dict[bytes, bytes]) -> bool:
        """Whether *pairs* are those of the file."""
        expected = self.entry["expect"]
        return len(expected) == len(pairs) and all(
            _is(key, found) and _is(value, pairs[found])
            for (key, value), found in zip(expected, sorted(pairs), strict=True)
        )


def _is(expected: Any, found: bytes) -> bool:
    if isinstance(expected, str):
        return base64.b64decode(expected) == found
    return (len(found), hashlib.sha256(found).hexdigest()) == (expected["length"], expected["sha256"])


def samples(kind: str) -> list[Sample]:
    """The files of "valid" or "malformed"."""
    return [Sample(entry["id"], DATA / entry["file"], entry) for entry in MANIFEST[kind]]
