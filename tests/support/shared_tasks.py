"""Undoing the effects of apps. Comes from: tests of apps. Goes to: the shared tasks and the default
app."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qworker.context import set_default_app
from qworker.tasks import registry


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Restore the shared tasks after the block, and unset the default app."""
    before = list(registry.shared)
    try:
        yield
    finally:
        registry.shared[:] = before
        set_default_app(None)
