"""What apps leave behind in the process. Comes from: tests of apps. Goes to: the shared tasks and the default
app."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qworker.context import set_default_app
from qworker.tasks import registry


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Afterwards the shared tasks are those of before, and no app is the default one."""
    before = list(registry.shared)
    try:
        yield
    finally:
        registry.shared[:] = before
        set_default_app(None)
