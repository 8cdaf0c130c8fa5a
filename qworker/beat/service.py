"""The service: makes the calls that are due.

Comes from:  ``qworker beat``, or a worker started with ``--beat``.
Goes to:     the schedule store and the broker.
Thread:      beat. Edits arrive through the store; any thread may call stop().

Several processes may run a service: one leads, and another takes over when it dies. Each due time is called
once, because its slot can only be taken once.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

from qworker import signals
from qworker.beat.agenda import Agenda, DueEntry
from qworker.beat.calls import id_of, messages
from qworker.beat.catalog import Listed, about, base_of, catalog, error_text, is_leftover, listed
from qworker.beat.caution import Caution, N
from qworker.beat.entry import ALLOW, REPLACE, Entry
from qworker.beat.leadership import AWAY, Scheduling
from qworker.beat.overlap import Before, Overlaps, hindrance, without_result
from qworker.beat.store import NO_RESULT, EntryRow, EntryState, Firing, Lease, ScheduleStore, Slot
from qworker.beat.stores import open_store
from qworker.errors import LeaseLost, NotSupported, QWorkerError
from qworker.transports.lease import Envelope
from qworker.transports.portions import portions

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)


MOST_AT_ONCE = 1000
"""Calls made in one operation of the store; the last entry may add as many again to catch up."""
PORTION = 250
"""Entries loaded at once, before those that are due are called."""
MOST_ASKED = 20
"""Maximum entries read one by one; with more, all are read."""
RETRY_SECONDS = 0.25


class _PlannedCall(NamedTuple):
    """What to do for a due entry. state: its new state. replaces: the id of the previous call, which is to be
    revoked; None if there is none."""

    due: DueEntry
    firings: Sequence[Firing]
    state: EntryState
    replaces: str | None

    @property
    def name(self) -> str:
        return self.due.name


class EntryProblems:
    """What is wrong with entries of *app*, by name, except problems known to the agenda. Beat thread only."""

    def __init__(self, app: QWorker) -> None:
        self._app = app
        self._errors: dict[str, str] = {}
        """Why entries are not called."""
        self._notes: dict[str, str] = {}
        """Other problems: an entry waits, or cannot be called as configured."""

    def sentences(self, agendas: Mapping[str, str]) -> Iterator[str]:
        """Yield a sentence for each entry with a problem. agendas: why others are not called."""
        errors = {**self._errors, **agendas}
        for name, text in errors.items():
            yield f"the entry {name} is not called: {text:.500}"
        for name, text in self._notes.items():
            if name not in errors:
                yield f"the entry {name}: {text:.500}"

    def clear(self) -> None:
        self._errors.clear()
        self._notes.clear()

    def forget(self, name: str) -> None:
        """Forget an entry that was deleted."""
        self._errors.pop(name, None)
        self._notes.pop(name, None)

    def read(self, every: Iterable[Listed]) -> None:
        """Report the problems of entries that were read anew."""
        for each in every:
            self.error(each.name, each.error or (each.state and each.state.error))
            self._notes.pop(each.name, None)
            self.hindrance(each.name, each.entry)
            if each.error is not None:
                logger.error(
                    "the entry %s is not called: %s", each.name, each.error, extra={"event": "entry-wrong"}
                )

    def error(self, name: str, error: str | None) -> None:
        """Record why an entry is not called; None: it is."""
        if error is None:
            self._errors.pop(name, None)
        else:
            self._errors[name] = error

    def note(self, name: str, text: str) -> None:
        """Report a problem of an entry that is called nevertheless, now or later."""
        if name not in self._notes:
            logger.error("the entry %s: %s", name, text, extra={"event": "entry-noted"})
        self._notes[name] = text

    def hindrance(self, name: str, entry: Entry | None) -> None:
        """Report why the ``overlap`` of an entry cannot be followed; if it can, forget its notes."""
        why = None if entry is None or entry.overlap == ALLOW else hindrance(self._app, entry)
        if why is None:
            self._notes.pop(name, None)
        else:
            self.note(name, f"it is called as with overlap={ALLOW!r}, because {why}")


class Beat(Scheduling):
    """Runs the entries of *app*.

    on_crash: as in ThreadComponent. store: None for the one in the settings. embedded: runs in a worker.
    """

    name = "beat"
    log = logger

    def __init__(
        self,
        app: QWorker,
        on_crash: Callable[[str, BaseException], None],
        store: ScheduleStore | None = None,
        embedded: bool = False,
    ) -> None:
        self._embedded = embedded
        self._scope = app.conf.beat_scope or app.main or "default"
        self._base = base_of(app)
        with _much_is_kept():
            self._plain = catalog(self._base, ())
            ours = about(self._plain)
        super().__init__(app, on_crash, store or open_store(app), ours)
        self._agenda: Agenda | None = None  # this and all below: only while leading
        self._version = -1
        self._listed: dict[str, Listed] = {}
        self._wrong = EntryProblems(app)
        for each in self._plain.values():
            self._wrong.error(each.name, each.error)
        self._note_problems()
        self._overlaps = Overlaps(app, self._wrong.note)
        self._caution = Caution(MOST_AT_ONCE)
        self._revocations: dict[str, str] = {}
        """Ids of replaced calls to be revoked, by entry."""
        self._tombstones: dict[str, int] = {}
        """Versions of obsolete rows, by entry."""
        self._wall = self.clock.now()
        """The clock time at the last turn."""
        self._doubtful: dict[str, _PlannedCall] = {}
        """Calls that may or may not have been made, by entry."""
        self.fired = 0
        """Calls made by this process."""

    def opened(self) -> None:
        signals.beat_init.send(self)
        if self._embedded:
            signals.beat_embedded_init.send(self)

    def follow(self) -> None:
        self._agenda = None

    def lead(self, lease: Lease, now: float) -> float:
        wall = self.clock.now()
        if abs(wall - self._wall) > self.app.conf.beat_history_expires:
            self._agenda = None  # the clock was set: plans based on it are void
        self._wall = wall
        agenda = self._agenda
        if agenda is None:
            with _much_is_kept():
                agenda = self._agenda = self._load(lease)
            if len(self._listed) > PORTION:
                _trim()
        elif lease.version > self._version:
            self._reload(lease, agenda)
        if self._unsure:
            self._send_pending(self.store.pending())
        self._call(agenda)
        if now >= self._sweep_at:
            self._send_pending(self.store.pending())
            self._sweep(now)
        if self._revocations:
            self._revoke()
        if self._tombstones:
            self._prune(lease)
        due = agenda.next()
        self._held_up = self._caution.waiting
        return math.inf if due is None else due - self.clock.now()

    @property
    def declared(self) -> int:
        """The number of entries in settings and code."""
        return len(self._base)

    def wrong(self) -> Iterator[str]:
        return self._wrong.sentences({} if self._agenda is None else self._agenda.wrong)

    # -- entries --

    def _load(self, lease: Lease) -> Agenda:
        """Load all entries, as a new leader."""
        rows = self.store.rows()
        self._listed = catalog(self._base, rows, self._plain)
        self._wrong.clear()
        self._tombstones = {
            row.name: row.version for row in rows if row.name not in self._base and is_leftover(row)
        }
        timezone = self.app.conf.timezone
        zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
        agenda = Agenda(zone, self.app.conf.beat_history_expires)
        for some in portions(self._listed.values(), PORTION):
            self._go_on_leading()
            self.store.note(lease, agenda.update(some, self.clock.now()))
            self._call(agenda)  # due entries need not wait for the others
        self.store.prepare(self.app.broker.sender)
        self._wrong.read(self._listed.values())
        self._version = max([lease.version, *(row.version for row in rows)])
        return agenda

    def _reload(self, lease: Lease, agenda: Agenda) -> None:
        """Load edited entries."""
        rows = self.store.rows(self._version)
        for some in portions(rows, PORTION):
            self._go_on_leading()
            self._take_in(some, lease, agenda)
        self._version = max([lease.version, *(row.version for row in rows)])  # some are newer than the lease

    def _take_in(self, rows: Sequence[EntryRow], lease: Lease, agenda: Agenda) -> None:
        changed, forgotten = [], {}
        for row in rows:
            given = self._base.get(row.name)
            if given is None and row.edit is None:
                self._listed.pop(row.name, None)
                agenda.drop([row.name])
                self._wrong.forget(row.name)
                forgotten[row.name] = EntryState()  # an entry added later with this name starts afresh
                self._tombstones[row.name] = row.version
            else:
                self._listed[row.name] = found = listed(row.name, given, row)
                changed.append(found)
            self._caution.forget(row.name)
        self.store.note(lease, {**agenda.update(changed, self.clock.now()), **forgotten})
        self._wrong.read(changed)

    def _prune(self, lease: Lease) -> None:
        """Delete some of the obsolete rows, which this leader has seen."""
        some = dict(islice(self._tombstones.items(), PORTION))
        self.store.prune(lease, some)
        for name in some:
            del self._tombstones[name]

    # -- calls --

    def _call(self, agenda: Agenda) -> None:
        """Make due calls."""
        if self._doubtful:
            self._look_again(agenda)
        found = agenda.due(self.clock.now(), MOST_AT_ONCE)
        left = {each.name: each for each in found}
        pauses: dict[str, float] = {}
        plain = [each for each in found if each.entry.overlap == ALLOW]
        asking = [each for each in found if each.entry.overlap != ALLOW]
        try:
            for some in (plain, asking):  # entries that query the result store come last
                if some:
                    self._call_some(some, agenda, left, pauses)
        finally:
            # Plan them as if not tried. A slot that was taken is not taken again.
            for name, each in left.items():
                pause = max(pauses.get(name, 0.0), self._caution.pause(name, self.clock.monotonic()))
                agenda.plan(name, each.entry, each.state, self.clock.now() + pause if pause else 0.0)

    def _look_again(self, agenda: Agenda) -> None:
        """Find out which doubtful calls were made."""
        calls = self._doubtful
        rows = map(self.store.row, calls) if len(calls) <= MOST_ASKED else self.store.rows()
        made = [row for row in rows if row is not None and row.name in calls]
        for name, _, _, state, _ in made:
            call = calls[name]
            if state is not None and state.runs >= call.state.runs and agenda.learn(name, state):
                self._wrong.hindrance(name, call.due.entry)
                if call.replaces is not None:
                    self._revocations[name] = call.replaces
                if self.store.is_with(self.app.broker.sender):  # otherwise its message may not be sent yet
                    self._caution.succeeded(frozenset([name]))
        calls.clear()

    def _call_some(
        self, found: Sequence[DueEntry], agenda: Agenda, left: dict[str, DueEntry], pauses: dict[str, float]
    ) -> None:
        """Call *found*. Plan those that are done again, and remove them from *left*; put the seconds that
        others must wait into *pauses*."""
        lease = self._go_on_leading()
        before = self._overlaps.before(found)
        uncalled: dict[str, EntryState] = {}

        def done(name: str, state: EntryState) -> None:
            due = left.pop(name)
            agenda.plan(name, due.entry, state)
            self._wrong.error(name, state.error)
            self._wrong.hindrance(name, due.entry)

        def call(some: Sequence[DueEntry]) -> frozenset[str]:
            calls = [made for each in some if (made := self._made(each, before.get(each.name))) is not None]
            self._fire(lease, [each for each in calls if each.firings])
            for each in calls:
                if each.firings:
                    done(each.name, each.state)
                else:
                    uncalled[each.name] = each.state
            return frozenset(each.name for each in calls)

        def refuse(due: DueEntry, error: Exception) -> None:
            uncalled[due.name] = self._failed(due, error)

        unknown = {name for name, known in before.items() if known is Before.UNKNOWN}
        pauses.update(dict.fromkeys(unknown, RETRY_SECONDS))
        ready = [each for each in found if each.name not in unknown]
        for part in self._caution.parts(ready, self.clock.monotonic()):
            self._try(part, call, refuse)
        self.store.note(lease, uncalled)
        for name, state in uncalled.items():
            done(name, state)

    def _try(
        self,
        part: Sequence[N],
        do: Callable[[Sequence[N]], frozenset[str]],
        refused: Callable[[N, Exception], None],
    ) -> None:
        """Call *do* for *part*, whose members belong to entries. Raises errors of an unavailable store or
        broker, unless only some of these entries cause them: these wait, and the others continue.

        do: returns the names that it handled. refused: called for a member that can never be handled.
        """
        self._go_on_leading()
        names = frozenset(each.name for each in part)
        try:
            done = do(part)
        except LeaseLost:
            raise
        except AWAY as error:
            if not self._caution.failed(names, self.clock.monotonic()):
                raise
            if len(names) > 1:
                middle = len(part) // 2
                for some in (part[:middle], part[middle:]):
                    self._try(some, do, refused)
                return
            for name in names:
                self._wrong.note(name, f"it waits: {error}")
        except Exception as error:  # noqa: BLE001 - one entry's error must not stop the others
            if len(part) == 1:
                refused(part[0], error)
                return
            for each in part:
                self._try([each], do, refused)
        else:
            if done:
                self._caution.succeeded(done)
                self._go_on()

    def _made(self, due: DueEntry, known: Before | None) -> _PlannedCall | None:
        """Return the calls for *due*; None if it must wait. known: the state of the previous call; None if
        not needed."""
        try:
            return self._prepared(due, known is Before.RUNNING)
        except AWAY as error:  # raised by this task's call, and not by the broker
            self._caution.failed(frozenset([due.name]), self.clock.monotonic())
            self._wrong.note(due.name, f"it waits: {error}")
            return None

    def _fire(self, lease: Lease, calls: Sequence[_PlannedCall]) -> None:
        if not calls:
            return
        firings = [firing for each in calls for firing in each.firings]
        unsure, self._unsure = self._unsure, True
        try:
            free = self.store.fire(lease, firings, self.app.broker.sender)
        except AWAY:
            self._doubtful.update((each.name, each) for each in calls)
            raise
        self._unsure = unsure or len(free) < len(firings)  # this process may have taken the other slots
        self.fired += len(free)
        self._log_calls(free)
        # Not earlier: the replacements must have been called.
        self._revocations.update((each.name, each.replaces) for each in calls if each.replaces is not None)

    def _prepared(self, due: DueEntry, is_running: bool) -> _PlannedCall:
        """Return the calls for *due*, and the new state of the entry. is_running: the previous call has not
        ended. Raises errors in AWAY."""
        name, entry, before, dues, upto = due
        numbered = not self.store.is_with(self.app.broker.sender)
        state = before._replace(last_due=upto)
        # Without this mark, a call without a result would seem to run until results expire.
        mark = "" if without_result(self.app, entry) is None else NO_RESULT
        if is_running and entry.overlap != REPLACE:
            return _PlannedCall(due, (), state, None)
        made: list[Firing] = []
        for each in dues:
            task_id = id_of(self._scope, name, each)
            try:
                envelopes = messages(self.app, entry, each, task_id, numbered)
            except AWAY:
                raise
            except Exception as error:  # noqa: BLE001 - one entry's error must not stop the others
                return _PlannedCall(due, (), self._failed(due, error), None)
            state = state._replace(
                last_run=self.clock.now(),
                task_id=task_id + mark,
                runs=state.runs + 1,
                error=None,
            )
            made.append(Firing(name, each, task_id, envelopes, state))
        return _PlannedCall(due, made, state, before.called_id if is_running else None)

    def _failed(self, due: DueEntry, error: Exception) -> EntryState:
        """Return the state of an entry whose call for *due* cannot be made; the error is reported once."""
        text = error_text(error)[:1000]
        if due.state.error != text:
            self._log_failure(due.name, error)
        return due.state._replace(last_due=due.upto, error=text)

    def _revoke(self) -> None:
        """Revoke replaced calls."""
        every = list(self._revocations.items())
        try:
            if self.app.signer is not None:  # the ids come from the store: do not sign revocations of others
                every = [each for each in every if self._has_called(*each)]
            if every:
                self.app.control.revoke([task_id for _, task_id in every], terminate=True)
        except AWAY as error:
            for name in self._revocations:
                self._wrong.note(name, f"the replaced call is not revoked yet: {error}")
            return
        except (QWorkerError, NotSupported) as error:
            for name in self._revocations:
                self._wrong.note(name, f"the replaced call cannot be revoked: {error}")
        self._revocations.clear()

    def _has_called(self, name: str, task_id: str) -> bool:
        """Return whether *task_id* is the id of a call of the entry *name*."""
        return any(
            slot.task_id == task_id == id_of(self._scope, name, slot.due) for slot in self.store.slots(name)
        )

    def _send_pending(self, slots: Sequence[Slot]) -> None:
        """Send calls of an earlier leader that may not have been sent. Workers recognise duplicates."""
        lease = self._go_on_leading()
        left = {(slot.name, slot.due) for slot in slots}

        def sent(some: Sequence[Slot]) -> frozenset[str]:
            done = [(slot.name, slot.due) for slot in some]
            self.store.sent(lease, done)
            left.difference_update(done)
            return frozenset(slot.name for slot in some)

        def send(some: Sequence[Slot]) -> frozenset[str]:
            envelopes = [envelope for slot in some for envelope in self._left_behind(slot)]
            if envelopes:
                self.app.broker.sender.push(envelopes)
            return sent(some)

        def refuse(slot: Slot, error: Exception) -> None:
            self._log_failure(slot.name, error)
            sent([slot])

        for part in self._caution.parts(slots, self.clock.monotonic()):
            self._try(part, send, refuse)
        self._unsure = bool(left)  # entries that are pausing

    def _left_behind(self, slot: Slot) -> list[Envelope]:
        """Return the messages of *slot*; [] if its entry is gone or cannot be called. Raises errors in
        AWAY."""
        found = self._listed.get(slot.name)
        if found is None or found.entry is None:
            return []
        try:
            return messages(self.app, found.entry, slot.due, slot.task_id, True)
        except AWAY:
            raise
        except Exception as error:  # noqa: BLE001 - one entry's error must not stop the others
            self._log_failure(slot.name, error)
            return []

    def _log_failure(self, name: str, error: Exception) -> None:
        logger.error(
            "the entry %s cannot be called: %s", name, error_text(error), extra={"event": "entry-failed"}
        )

    def _log_calls(self, made: list[Firing]) -> None:
        for each in made:
            logger.info("sending due task %s (%s)", each.name, each.task_id, extra={"event": "entry-called"})


def _trim() -> None:
    """Return memory that glibc keeps after reading rows to the system: two megabytes with 10,000 entries."""
    import ctypes  # slow to import, and rarely needed

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _much_is_kept() -> Iterator[None]:
    """Disable the garbage collector: when many objects are created and none is freed, it takes a sixth of the
    time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
