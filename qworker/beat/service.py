"""The service: looks after the schedules, and calls what is due.

Comes from:  ``qworker beat``, or a worker that was started with ``--beat``.
Goes to:     the schedule store and the broker.
Thread:      beat. edits come by the store; stop() by any thread.

Any number of processes may run one; one of them leads, and another takes over when it dies. Each due time is
called once, since its slot can be taken once.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from itertools import islice
from typing import TYPE_CHECKING, TypeVar
from zoneinfo import ZoneInfo

from qworker import signals, states
from qworker.beat.agenda import Agenda, Due
from qworker.beat.calls import id_of, messages
from qworker.beat.catalog import Listed, about, base_of, catalog, listed
from qworker.beat.entry import ALLOW, REPLACE
from qworker.beat.leadership import Leadership
from qworker.beat.store import LOOK_SECONDS, Firing, Lease, Row, ScheduleStore, Slot, State
from qworker.beat.stores import open_store
from qworker.components.component import ThreadComponent
from qworker.errors import BackendError, BrokerUnavailable, LeaseLost, QWorkerError
from qworker.interrupts import let_pass

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_AT_ONCE = 1000
"""Calls that are made in one step of the store, where the last entry may have as many more to catch up
with."""
PORTION = 250
"""Entries that are taken in before those of them are called that are due."""
MOST_TOLD = 20
"""Entries of which health tells what is wrong."""
RETRY_SECONDS = 0.25
SWEEP_SECONDS = 60.0
LONGEST_REST = 0.5
"""Seconds after which the clock is looked at again: it may have been set."""


class Beat(ThreadComponent):
    """Looks after the entries of *app*.

    on_crash: as a ThreadComponent's. store: None opens what the settings name. embedded: in a worker.
    """

    name = "beat"

    def __init__(
        self,
        app: QWorker,
        on_crash: Callable[[str, BaseException], None],
        store: ScheduleStore | None = None,
        embedded: bool = False,
    ) -> None:
        super().__init__(app.clock, on_crash)
        self.app = app
        self.store = store or open_store(app)
        self._embedded = embedded
        self._scope = app.conf.beat_scope or app.main or "default"
        self._base = base_of(app)
        with _much_is_kept():
            self._plain = catalog(self._base, ())
            ours = about(self._plain)
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.leadership = Leadership(self.store, holder[-255:], ours)
        timezone = app.conf.timezone
        self._zone = UTC if timezone == "UTC" else ZoneInfo(timezone)
        self._agenda: Agenda | None = None  # while we lead, as all below
        self._version = -1
        self._sweep_at = 0.0
        self._listed: dict[str, Listed] = {}
        self._errors: dict[str, str] = {}
        """Why entries are not called, by their names, for all that is known but by the agenda."""
        for each in self._plain.values():
            self._note_error(each.name, each.error)
        self._problems = tuple(self._wrong())  # replaced as a whole: others read it
        self._away = False
        self._unsure = False
        """Slots were taken of which it is not known whether the broker has the messages."""
        self.fired = 0
        """Calls that this process has made."""

    def opened(self) -> None:
        signals.beat_init.send(self)
        if self._embedded:
            signals.beat_embedded_init.send(self)

    def step(self, now: float) -> float:
        try:
            rest = self._turn(now)
        except LeaseLost as error:
            logger.debug("%s", error)
            if self.leadership.lease is not None:
                self.leadership.lost()
            self._agenda = None
            return LOOK_SECONDS
        except (BackendError, BrokerUnavailable) as error:
            let_pass(error)
            self._sweep_at = 0.0  # there may be slots whose messages were not sent
            if not self._away:
                self._away = True
                logger.error("the schedules wait: %s", error, extra={"event": "beat-waits"})
            return RETRY_SECONDS
        self._problems = tuple(self._wrong())
        if self._away:
            self._away = False
            logger.info("the schedules go on", extra={"event": "beat-goes-on"})
        return rest

    def _turn(self, now: float) -> float:
        lease = self.leadership.step(now)
        if lease is None:
            self._agenda = None
            return LOOK_SECONDS
        agenda = self._agenda
        if agenda is None:
            with _much_is_kept():
                agenda = self._agenda = self._load()
            if len(self._listed) > PORTION:
                _trim()
        elif lease.version > self._version:
            self._reload()
        if self._unsure:
            self._send_pending(self.store.pending())
        self._call(agenda)
        if now >= self._sweep_at:
            self._send_pending(self.store.pending())
            swept = self.store.sweep(self.clock.now() - self.app.conf.beat_history_expires)
            self._sweep_at = now + (1.0 if swept else SWEEP_SECONDS)
        due = agenda.next()
        rest = math.inf if due is None else due - self.clock.now()
        return max(0.0, min(rest, self.leadership.rest(self.clock.monotonic()), LONGEST_REST))

    @property
    def declared(self) -> int:
        """How many entries settings and code have."""
        return len(self._base)

    def problems(self) -> Sequence[str]:
        """Which entries are not called, and why, for all that this process knows of them."""
        return self._problems

    def _wrong(self) -> Iterator[str]:
        """The first MOST_TOLD of them."""
        told = {**self._errors, **(self._agenda.wrong if self._agenda is not None else {})}
        for name in islice(told, MOST_TOLD):
            yield f"the entry {name} is not called: {told[name]:.500}"

    # -- entries --

    def _load(self) -> Agenda:
        """Take in all entries, as who leads anew."""
        lease = self.leadership.lease
        assert lease is not None
        rows = self.store.rows()
        self._listed = catalog(self._base, rows, self._plain)
        self._errors.clear()
        agenda = Agenda(self._zone)
        for some in _portions(self._listed.values()):
            self._go_on_leading()
            self.store.note(lease, agenda.update(some, self.clock.now()))
            self._call(agenda)  # what is due need not wait until all others are known
        self.store.prepare(self.app.broker.sender)
        self._tell_of_errors(self._listed.values())
        self._version = max([lease.version, *(row.version for row in rows)])
        self._unsure = True
        return agenda

    def _go_on_leading(self) -> None:
        """Renew the lease, where much is to be done. Raises LeaseLost."""
        if self.leadership.step(self.clock.monotonic()) is None:
            raise LeaseLost("somebody else leads the schedules")

    def _reload(self) -> None:
        """Take in what was edited."""
        lease, agenda = self.leadership.lease, self._agenda
        assert lease is not None
        assert agenda is not None
        rows = self.store.rows(self._version)
        for some in _portions(rows):
            self._go_on_leading()
            self._take_in(some, lease, agenda)
        self._version = max([lease.version, *(row.version for row in rows)])  # some are newer than the lease

    def _take_in(self, rows: Sequence[Row], lease: Lease, agenda: Agenda) -> None:
        changed, forgotten = [], {}
        for row in rows:
            given = self._base.get(row.name)
            if given is None and row.edit is None:
                self._listed.pop(row.name, None)
                agenda.drop([row.name])
                self._note_error(row.name, None)
                forgotten[row.name] = State()  # whoever adds one of that name again begins anew
            else:
                self._listed[row.name] = found = listed(row.name, given, row)
                changed.append(found)
        self.store.note(lease, {**agenda.update(changed, self.clock.now()), **forgotten})
        self._tell_of_errors(changed)

    def _tell_of_errors(self, every: Iterable[Listed]) -> None:
        for each in every:
            self._note_error(each.name, each.error or (each.state and each.state.error))
            if each.error is not None:
                logger.error(
                    "the entry %s is not called: %s", each.name, each.error, extra={"event": "entry-wrong"}
                )

    def _note_error(self, name: str, error: str | None) -> None:
        if error is None:
            self._errors.pop(name, None)
        else:
            self._errors[name] = error

    # -- calls --

    def _call(self, agenda: Agenda) -> None:
        """Call what is due."""
        lease = self.leadership.lease
        assert lease is not None
        now = self.clock.now()
        found = agenda.due(now, MOST_AT_ONCE)
        if not found:
            return
        try:
            living = self._living(found)
            numbered = not self.store.is_with(self.app.broker.sender)
            firings: list[Firing] = []
            states_of: dict[str, State] = {}
            replaced: dict[str, str] = {}
            for each in found:
                if each.name in living and each.entry.overlap == REPLACE and each.state.task_id is not None:
                    replaced[each.name] = each.state.task_id
                made, state = self._firings(each, now, each.name in living, numbered)
                firings += made
                states_of[each.name] = state
            if firings:
                self._unsure = True
                free = self.store.fire(lease, firings, self.app.broker.sender)
                self._unsure = len(free) < len(firings)  # it may have been us who took the others
                self.fired += len(free)
                self._tell(free)
                done = {each.name for each in firings}
                self._revoke({name: task_id for name, task_id in replaced.items() if name in done})
            else:
                done = set()
            self.store.note(lease, {name: state for name, state in states_of.items() if name not in done})
        except BaseException:
            for each in found:  # as if nothing had been tried: a slot that was taken is not free again
                agenda.plan(each.name, each.entry, each.state)
            raise
        for each in found:
            agenda.plan(each.name, each.entry, states_of[each.name])
            self._note_error(each.name, states_of[each.name].error)

    def _firings(self, due: Due, now: float, lives: bool, numbered: bool) -> tuple[list[Firing], State]:
        """The calls that are made for *due*, and what becomes of the entry's state. lives: the call before
        has not ended. numbered: see ``messages()``."""
        name, entry, before, dues, upto = due
        seen, since, _, last_run, last_id, runs, error = before
        state = State(seen, since, upto, last_run, last_id, runs, error)
        if lives and entry.overlap != REPLACE:
            return [], state
        made: list[Firing] = []
        for each in dues:
            task_id = id_of(self._scope, name, each)
            try:
                envelopes = messages(self.app, entry, each, task_id, numbered)
            except (BackendError, BrokerUnavailable):
                raise
            except Exception as raised:  # noqa: BLE001 - one entry that cannot be called stops no other
                text = (
                    f"{type(raised).__name__}: {raised}"
                    if not isinstance(raised, QWorkerError)
                    else str(raised)
                )
                if state.error != text:
                    logger.error(
                        "the entry %s cannot be called: %s", name, text, extra={"event": "entry-failed"}
                    )
                return made, state._replace(error=text[:1000])
            state = State(seen, since, upto, now, task_id, state.runs + 1, None)
            made.append(Firing(name, each, task_id, envelopes, state))
        return made, state

    def _revoke(self, replaced: Mapping[str, str]) -> None:
        """Revoke the calls that were *replaced*, ids by the names of entries. Not before it is sure that what
        replaces them is called."""
        ids = list(replaced.values())
        if self.app.signer is not None:  # who can write to the store must not choose what we sign an order of
            ids = [task_id for name, task_id in replaced.items() if self._has_called(name, task_id)]
        if ids:
            self.app.control.revoke(ids, terminate=True)

    def _has_called(self, name: str, task_id: str) -> bool:
        """Whether *task_id* is the id of a call of the entry *name*."""
        return any(
            slot.task_id == task_id == id_of(self._scope, name, slot.due) for slot in self.store.slots(name)
        )

    def _living(self, found: list[Due]) -> set[str]:
        """Those entries whose call before has not ended, of those that ask for it."""
        asking = {
            each.state.task_id: each.name
            for each in found
            if each.entry.overlap != ALLOW and each.state.task_id is not None
        }
        if not asking:
            return set()
        backend, now = self.app.backend, self.clock.now()
        metas = backend.get_many(list(asking))
        living = set()
        for each in found:
            task_id = each.state.task_id
            if task_id not in asking:
                continue
            meta = metas.get(task_id)
            if meta is None:
                ran = each.state.last_run or 0.0
                if backend.expires is None or now - ran < backend.expires:
                    living.add(each.name)
            elif meta["status"] not in states.READY_STATES:
                living.add(each.name)
        return living

    def _send_pending(self, slots: list[Slot]) -> None:
        """Send what a leader has left behind of which nobody knows whether it was sent. Who runs it knows
        that it is the same."""
        lease = self.leadership.lease
        assert lease is not None
        envelopes, done = [], []
        for slot in slots:
            found = self._listed.get(slot.name)
            done.append((slot.name, slot.due))
            if found is None or found.entry is None:
                continue
            try:
                envelopes += messages(self.app, found.entry, slot.due, slot.task_id, True)
            except (BackendError, BrokerUnavailable):
                raise
            except Exception as error:  # noqa: BLE001 - as above
                logger.error(
                    "the entry %s cannot be called: %s", slot.name, error, extra={"event": "entry-failed"}
                )
        if envelopes:
            self.app.broker.sender.push(envelopes)
        self.store.sent(lease, done)
        self._unsure = False

    def _tell(self, made: list[Firing]) -> None:
        for each in made:
            logger.info("sending due task %s (%s)", each.name, each.task_id, extra={"event": "entry-called"})

    def quiet(self) -> None:
        """Call nothing any more, and leave the schedules to others."""
        self.stop()

    def closed(self) -> None:
        try:
            self.leadership.resign()
        except QWorkerError as error:
            logger.debug("the lease of the schedules runs out by itself: %s", error)
        self.store.close()


def _portions(every: Iterable[T]) -> Iterator[Sequence[T]]:
    """*every*, so many at a time as are taken in before anything else is done."""
    rest = iter(every)
    while some := list(islice(rest, PORTION)):
        yield some


def _trim() -> None:
    """Give the system back what the C library keeps of the rows that were read: with 10,000 entries two
    megabytes. Other C libraries than glibc do that by themselves, or not at all."""
    import ctypes  # costs start-up time, and few have so many entries

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _much_is_kept() -> Iterator[None]:
    """Have no garbage looked for meanwhile: when many objects are made and none of them goes, that takes a
    sixth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
