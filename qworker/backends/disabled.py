"""No result store: nothing is stored, and reading a result raises NotSupported.

Comes from:  ``result_backend = "disabled://"``, or a broker without results and no result_backend.
Goes to:     nowhere.
Thread:      any.
"""

from __future__ import annotations

from typing import Any

from qworker.backends.base import Backend, Meta
from qworker.backends.place import DISABLED, result_place
from qworker.clock import Clock
from qworker.errors import NotSupported
from qworker.transports.lease import ResultRow


class DisabledBackend(Backend):
    """Accepts every state and stores none."""

    persistent = False
    supports_locks = False

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        self.why_none = result_place(conf).why_none or DISABLED

    def store(self, task_id: str, meta: Meta) -> bool:
        return True

    def row(self, task_id: str, meta: Meta, kept: float = 0.0) -> ResultRow | None:
        return None

    def get(self, task_id: str) -> Meta | None:
        raise NotSupported(self.why_none)

    def forget(self, task_id: str) -> None:
        pass
