"""checks: a stand-in until the real one is merged.

Comes from:  nothing.
Goes to:     ``apps.py``.
Thread:      any.
"""

from __future__ import annotations


def register() -> None:
    """Register nothing yet."""
