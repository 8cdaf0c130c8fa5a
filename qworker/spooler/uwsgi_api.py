"""The ``uwsgi`` API, outside uWSGI: what applications call, in the web process and in the spooler.

Comes from:  application code, as ``uwsgi`` once install() was called.
Goes to:     ``writing``, and the jobs, which ask for ``spooler``.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SPOOL_OK = -2
SPOOL_RETRY = -1
SPOOL_IGNORE = 0

spooler: Callable[[dict[Any, Any]], object] | None = None
"""The function that runs jobs; the application sets it. Looked up for each job."""


class SetAside(Exception):
    """Raised by a job that can never succeed: its file is set aside at once, with the text as the reason."""


def run_signal(number: int) -> None:
    """Call the handlers of signal *number*."""


def install() -> None:
    """Be the module ``uwsgi``."""
    import sys

    sys.modules.setdefault("uwsgi", sys.modules[__name__])


def configure(options: object) -> None:
    """Where things go in this process."""
