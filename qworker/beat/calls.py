"""Make the messages that call an entry.

Comes from:  the service, with an entry and a due time.
Goes to:     the publisher; its messages are collected, and the store sends them.
Thread:      beat.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from qworker.beat.entry import Entry
from qworker.clock import isoformat
from qworker.contracts import App
from qworker.message.marks import PUBLICATION, RUN, names_ids
from qworker.publishing.transactions import holding_back
from qworker.transports.lease import Envelope

NAME_HEADER = "periodic_task_name"
DUE_HEADER = "periodic_task_due"
NAMESPACE = bytes.fromhex("6f1fc3d35b1e5d0c9d1a0c6c1f9f5a51")


def id_of(scope: str, name: str, due: float) -> str:
    """Return the id of the call of entry *name* for the epoch second *due*. It is always the same."""
    text = f"{scope}\0{name}\0{round(due * 1_000_000)}"
    # uuid.uuid5() takes three times as long, and a thousand ids may be needed at once.
    found = hashlib.sha1(NAMESPACE + text.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(found[16], 16) & 3]
    return f"{found[:8]}-{found[8:12]}-5{found[13:16]}-{variant}{found[17:20]}-{found[20:32]}"


def messages(app: App, entry: Entry, due: float, task_id: str, numbered: bool) -> list[Envelope]:
    """Return the messages that call *entry* for the due time *due*.

    numbered: the call may be published twice, but must run once. Raises any error of making the call.
    """
    # In microseconds, like the slot.
    marks = {NAME_HEADER: entry.name, DUE_HEADER: datetime.fromtimestamp(due, UTC).isoformat()}
    if not entry.options and entry.expires is None and not numbered:
        plain = app.publisher.plain_envelope(entry.task, task_id, entry.args, dict(entry.kwargs), marks)
        if plain is not None:
            return [plain]
    options: dict[str, Any] = dict(entry.options)
    headers: Mapping[str, Any] = options.pop("headers", None) or {}
    options["headers"] = {**headers, **marks}
    if numbered:
        options[PUBLICATION] = secrets.randbits(62)
    if entry.expires is not None:
        options["expires"] = isoformat(due + entry.expires)
    # The run depends on the due time alone, however often the call is published.
    options[RUN] = (
        hashlib.sha1(task_id.encode(), usedforsecurity=False).hexdigest()[:12] if names_ids(options) else ""
    )
    options["task_id"] = task_id
    args, kwargs = entry.args, dict(entry.kwargs)
    task = app.tasks.get(entry.task)
    with holding_back(app) as held:
        if task is None:
            app.send_task(entry.task, args, kwargs, **options)
        else:
            task.apply_async(args, kwargs, **options)
    return held
