"""tasks: a stand-in until the real one is merged.

Comes from:  callers.
Goes to:     a list, which tests read.
Thread:      any.
"""

from __future__ import annotations

from typing import Any

SENT: list[dict[str, Any]] = []
"""What was sent."""


def async_task(func: str, *args: Any, **kwargs: Any) -> str:
    """Note a call."""
    SENT.append({"func": func, "args": args, **kwargs})
    return "0" * 32
