"""Periodic tasks that code declares: what is to be called when.

Comes from:  ``app.add_periodic_task()``, most often in a receiver of ``on_after_configure``.
Goes to:     ``app.periodic_tasks``, of which the scheduler makes its entries.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qworker.canvas.signatures import Signature

if TYPE_CHECKING:
    from qworker.app import QWorker


def add_periodic_task(
    app: QWorker,
    schedule: Any,
    sig: Any,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> str:
    """Have *sig* called when *schedule* says; return the name of the entry.

    - schedule: a crontab or other schedule of ``qworker.beat``, seconds, a timedelta, or text.
    - sig: a signature, a task, or the name of one. args, kwargs: put after and over those of a signature.
    - name (text): of the entry; by default what *sig* looks like, as with Celery.
    - options: fields of an entry, as ``jitter=5``; what is none is an option of the call.

    An entry that is wrong is told of by ``qworker beat list`` and in the log, and stops no other.
    """
    call = sig if isinstance(sig, Signature) else Signature(getattr(sig, "name", sig), app=app)
    fields = {key: options.pop(key) for key in FIELDS & options.keys()}
    entry = name or repr(call)[:255].strip()
    app.periodic_tasks[entry] = {
        "task": call.task,
        "schedule": schedule,
        "args": (*call.args, *args),
        "kwargs": {**call.kwargs, **(kwargs or {})},
        "options": {**call.options, **options},
        **fields,
    }
    return entry


FIELDS = frozenset(["enabled", "start", "end", "max_runs", "jitter", "catch_up", "overlap"])
"""What an entry has that a call has not; ``expires`` is one of the call's."""
