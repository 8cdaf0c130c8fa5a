"""Sealed schedules: signed edits in a schedule store, for an app with a security_key.

Comes from:  ``stores.py``, which wraps the store of an app with a key.
Goes to:     that store.
Thread:      any, like the store.

A manual change of an entry decides which call is signed and sent. So it is signed together with the scope and
the name of the entry. Unsigned changes are refused: the entry is listed as invalid, and all others continue.
The signature is the last field of the JSON, ``"seal"``, which earlier versions of qworker ignore.

States and slots are not signed. They record when an entry was called, and do not decide what is called: a
slot is only sent again if its task id is that of the entry and the due time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from qworker.beat.calls import id_of
from qworker.beat.store import EntryRow, EntryState, Firing, Lease, ScheduleStore, Slot
from qworker.errors import SecurityError
from qworker.transports.lease import Sender

if TYPE_CHECKING:
    from qworker.message.signing import Signer

logger = logging.getLogger(__name__)

_SEAL = b',"seal":"'
_END = b'"}'


class SealedScheduleStore(ScheduleStore):
    """*inner*, with edits signed by *signer* for *scope*."""

    def __init__(self, inner: ScheduleStore, signer: Signer, scope: str) -> None:
        self.inner = inner
        self.shared = inner.shared
        self._signer = signer
        self._scope = scope

    # -- signed --

    def rows(self, after: int = -1) -> list[EntryRow]:
        return [self._opened(row) for row in self.inner.rows(after)]

    def row(self, name: str) -> EntryRow | None:
        found = self.inner.row(name)
        return None if found is None else self._opened(found)

    def edit(self, name: str, edit: bytes | None, known: int) -> bool:
        if edit is not None:
            seal = self._signer.signature(edit, "schedule", self._scope, name)
            edit = b"%b%b%b%b" % (edit[:-1], _SEAL, seal.encode(), _END)
        return self.inner.edit(name, edit, known)

    def _opened(self, row: EntryRow) -> EntryRow:
        if row.edit is None:
            return row
        text, separator, seal = row.edit.rpartition(_SEAL)
        edit = text + b"}" if separator else row.edit
        try:
            self._signer.check(edit, seal.removesuffix(_END), "schedule", self._scope, row.name)
        except SecurityError as error:
            return row._replace(edit=edit, refused=str(error))
        return row._replace(edit=edit)

    # -- slots: not signed, recognised by their task ids --

    def pending(self) -> list[Slot]:
        found = self.inner.pending()
        ours = [slot for slot in found if self._is_ours(slot)]
        if len(ours) < len(found):
            logger.error(
                "%d slots of the schedule store are not sent again: the ids of their tasks do not belong to "
                "the entries, so another program may have written them",
                len(found) - len(ours),
                extra={"event": "slots-refused"},
            )
        return ours

    def slots(self, name: str, most: int = 100) -> list[Slot]:
        return [slot for slot in self.inner.slots(name, most) if self._is_ours(slot)]

    def _is_ours(self, slot: Slot) -> bool:
        return slot.task_id == id_of(self._scope, slot.name, slot.due)

    # -- passed on --

    def is_with(self, sender: Sender) -> bool:
        return self.inner.is_with(sender)

    def look(self) -> Lease:
        return self.inner.look()

    def take(self, holder: str, known: Lease, about: str = "") -> Lease:
        return self.inner.take(holder, known, about)

    def renew(self, lease: Lease) -> Lease:
        return self.inner.renew(lease)

    def resign(self, lease: Lease) -> None:
        self.inner.resign(lease)

    def note(self, lease: Lease, states: Mapping[str, EntryState]) -> None:
        self.inner.note(lease, states)

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        return self.inner.fire(lease, firings, sender)

    def prune(self, lease: Lease, versions: Mapping[str, int]) -> None:
        self.inner.prune(lease, versions)

    def prepare(self, sender: Sender) -> None:
        self.inner.prepare(sender)

    def sent(self, lease: Lease, slots: Sequence[tuple[str, float]]) -> None:
        self.inner.sent(lease, slots)

    def sweep(self, before: float) -> int:
        return self.inner.sweep(before)

    def close(self) -> None:
        self.inner.close()
