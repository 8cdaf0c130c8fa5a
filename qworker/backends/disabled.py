"""No result store: nothing is kept, and asking for a result says so.

Comes from:  ``result_backend = "disabled://"``, or a broker that is not embedded and no result_backend.
Thread:      any.
"""

from __future__ import annotations

from qworker.backends.base import Backend, Meta
from qworker.errors import NotSupported
from qworker.transports.lease import ResultRow


class DisabledBackend(Backend):
    """Takes every state and keeps none."""

    persistent = False
    supports_locks = False

    def store(self, task_id: str, meta: Meta) -> bool:
        return True

    def row(self, task_id: str, meta: Meta) -> ResultRow | None:
        return None

    def get(self, task_id: str) -> Meta | None:
        raise NotSupported(
            "results are not kept (result_backend is disabled:// or not set): set result_backend, "
            "for instance to sqlite:///results.db, to ask for the result of a task"
        )

    def forget(self, task_id: str) -> None:
        pass
