"""What a process has got by ``rpc://``: only the newest of it, so that it fills no memory if nobody asks.

Comes from:  ``rpc.py``.
Thread:      one at a time.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

KEPT_BYTES = 64 * 1024**2
"""Of results: beyond it the oldest go."""
ENTRY_BYTES = 256
"""What keeping one takes besides its own bytes, about."""

Value = tuple[bytes, float | None]


class Newest(dict[str, Value]):
    """A dict that forgets its oldest values while they have more than *most* bytes together."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        super().__init__()
        self._most = most
        self.size = 0
        self._told = False

    def __setitem__(self, key: str, value: Value) -> None:
        self.pop(key, None)  # what is newer stands behind
        super().__setitem__(key, value)
        self.size += _size(value)
        while self.size > self._most and len(self) > 1:
            del self[next(iter(self))]
            if not self._told:
                self._told = True
                logger.warning(
                    "this process has %d MB of results that came by rpc://, and forgets the oldest: set "
                    "task_ignore_result or ignore_result where nobody asks for them, or result_backend",
                    self._most // 1024**2,
                )

    def __delitem__(self, key: str) -> None:
        self.size -= _size(self[key])
        super().__delitem__(key)

    def pop(self, key: str, default: Value | None = None) -> Value | None:  # type: ignore[override]
        """As of a dict, with a default."""
        value = self.get(key)
        if value is None:
            return default
        del self[key]
        return value


def _size(value: Value) -> int:
    return len(value[0]) + ENTRY_BYTES
