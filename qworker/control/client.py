"""Control: commands to all workers.

Comes from:  ``app.control``.
Goes to:     the broker, where every worker reads them.
Thread:      any.

This version has one command, to revoke. For Celery's other commands, errors name a replacement.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from qworker.conf import mask_urls
from qworker.contracts import App
from qworker.errors import ControlError, NotAvailable, NotSupported
from qworker.naming import signal_name
from qworker.publishing.connections import refuse_other_brokers
from qworker.results.result import AsyncResult
from qworker.transports.lease import Revocation

if TYPE_CHECKING:
    from qworker.message.signing import Signer

_LOOK = "`qworker workers` and app.workers() show workers, `qworker tasks` and app.peek() their tasks"
_EVENTS = (
    "there are no events yet; signals, such as qworker.signals.task_success, report what happens in a worker"
)
_CONCURRENCY = "use `qworker start --concurrency` and restart the worker"
_QUEUES = "use `qworker start --queues` and restart the worker"

INSTEAD: dict[str, str] = {
    "inspect": _LOOK,
    "ping": _LOOK,
    "heartbeat": _LOOK,
    "broadcast": f"use revoke() or terminate(); {_LOOK}",
    "purge": "`qworker purge` empties queues",
    "discard_all": "`qworker purge` empties queues",
    "shutdown": "send the worker the signal TERM: it finishes its tasks first",
    "rate_limit": "use @app.task(rate_limit=…), or set task_annotations, and restart the worker",
    "time_limit": "use @app.task(time_limit=…), or set task_annotations, and restart the worker",
    "add_consumer": _QUEUES,
    "cancel_consumer": _QUEUES,
    "pool_grow": _CONCURRENCY,
    "pool_shrink": _CONCURRENCY,
    "autoscale": _CONCURRENCY,
    "pool_restart": "restart the worker: after the signal TERM it finishes its tasks first",
    "enable_events": _EVENTS,
    "disable_events": _EVENTS,
    "revoke_by_stamped_headers": "calls cannot be selected by stamps: revoke() takes ids",
    "terminate_by_stamped_headers": "calls cannot be selected by stamps: terminate() takes ids",
    "election": "workers don't hold elections",
}
"""Celery's other control commands, with their replacements."""


def verified(signer: Signer | None, revocation: Revocation) -> Revocation | None:
    """Return *revocation* without its signature; None if the *signer* does not accept it."""
    if signer is None:
        return revocation
    name, _, signature = revocation.signal.partition(" ")
    if not signer.is_order(signature, "revoke", revocation.task_id, revocation.terminate, name):
        return None
    return revocation._replace(signal=name)


class Control:
    """Commands to all workers."""

    def __init__(self, app: App) -> None:
        self._app = app

    def revoke(
        self,
        task_id: str | AsyncResult[Any] | Iterable[str | AsyncResult[Any]],
        destination: None = None,
        terminate: bool = False,
        signal: str | int = "SIGTERM",
        *,
        connection: Any = None,
        reply: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Cancel tasks: workers will not run them.

        - task_id: an id, a result, or several of them.
        - terminate (bool): also end running ones.
        - signal: the name or number of the signal that ends them.
        - destination, reply, timeout: not supported, because all workers get the command, and do not reply.

        Raises ValueError for an unknown signal, and ControlError if *destination*, *reply* or *timeout* is
        given.
        """
        if destination is not None:
            raise ControlError(
                f"revoke(destination={destination!r:.100}): any worker may get the task, so the request "
                "goes to all; leave destination out"
            )
        if reply or timeout is not None:
            waiting = "reply=True or wait=True" if reply else f"timeout={timeout!r}"
            raise ControlError(
                f"revoke({waiting}): workers do not answer; ask the result for its state instead"
            )
        refuse_other_brokers(self._app, "revoke()", "connection", connection)
        listed = [task_id] if isinstance(task_id, str | AsyncResult) else task_id
        name, ids = signal_name(signal), [str(id) for id in listed]
        signer, revocations = self._app.signer, self._app.broker.revocations
        if revocations is None:
            raise NotSupported(
                f"{mask_urls(self._app.broker.url)} cannot notify all workers, so tasks cannot be revoked "
                "with this broker"
            )
        if signer is None:
            revocations.sender.revoke(ids, terminate=terminate, signal=name)
            return
        for id in ids:
            signature = signer.sign_order("revoke", id, terminate, name)
            revocations.sender.revoke([id], terminate=terminate, signal=f"{name} {signature}")

    def terminate(
        self,
        task_id: str | AsyncResult[Any] | Iterable[str | AsyncResult[Any]],
        destination: None = None,
        signal: str | int = "SIGTERM",
        **options: Any,
    ) -> None:
        """Revoke tasks, and end running ones. See revoke()."""
        self.revoke(task_id, destination, terminate=True, signal=signal, **options)

    def __getattr__(self, name: str) -> Any:
        if name in INSTEAD:
            raise NotAvailable(
                f"app.control.{name}: remote control other than revoke() and terminate() comes in a later "
                f"version; until then: {INSTEAD[name]}"
            )
        raise AttributeError(f"app.control has no {name!r}; it has revoke() and terminate()")
