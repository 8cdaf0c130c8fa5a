"""Plain calls: calls without options, of a task of which nothing asks for more.

Comes from:  the publisher, at the first call of a task after a change of the settings.
Goes to:     the envelope of each such call, by a template of its headers.
Thread:      any; nothing is changed once it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qworker.message.protocol import HeaderTemplate
from qworker.middleware import overrides
from qworker.publishing.call import Call, Invocation, make_call
from qworker.publishing.routing import Router
from qworker.transports.lease import Envelope

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.tasks.task import Task


class PlainCalls:
    """Writes the plain calls of one task. ignored: their results are not stored."""

    __slots__ = ("_check", "_encode", "_priority", "ignored", "queue")

    def __init__(self, prototype: Call, task: Task[..., Any], limit: int) -> None:
        """prototype: a call without arguments. limit: bytes of a body, decompressed."""
        self.queue = prototype.destination.queue
        self.ignored = prototype.message.ignore_result
        self._priority = prototype.destination.priority
        self._encode = HeaderTemplate(prototype.message, limit).encode
        self._check = task.check_arguments if task.typing else None

    def envelope(
        self,
        id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        root_id: str | None = None,
        parent_id: str | None = None,
    ) -> Envelope:
        """The envelope of the call *id*. Raises TypeError for arguments that the task does not take, and
        EncodeError and PublishError as ``encode()`` does."""
        if self._check is not None:
            self._check(*args, **kwargs)
        headers, properties, body = self._encode(id, args, kwargs, root_id, parent_id)
        return Envelope(self.queue, headers, properties, body, self._priority)


def plain_calls(app: QWorker, router: Router, task: Task[..., Any]) -> PlainCalls | None:
    """What writes the plain calls of *task*; None when each of them has to be made like one with options."""
    alike = (
        router.constant
        and not app.conf.task_always_eager
        and not app.conf.task_inherit_parent_priority
        and app.signer is None
        and app.conf.result_backend != "rpc://"
        and task.expires is None
        and not task.renames
        and task.dump_arguments is None
        and not any(overrides(middleware, "publish") for middleware in app.middleware)
    )
    if not alike:
        return None
    prototype = make_call(app, router, Invocation(task, task.name, (), {}, {}))
    return PlainCalls(prototype, task, app.conf.message_max_bytes)
