"""Overlap: whether the previous call of an entry has ended.

Comes from:  the service, with due entries; ``api.py`` and the command line, which refuse impossible entries.
Goes to:     the result store, queried in a thread, so that a slow answer delays no other call.
Thread:      beat, except for the thread that queries the store.

A call with an unreadable result counts as ended. While the store is unavailable, ``skip`` waits for it, and
``replace`` revokes. An entry whose overlap can never work is called as with ``allow``, and reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeAlias

from qworker import states
from qworker.beat.agenda import DueEntry
from qworker.beat.entry import ALLOW, REPLACE, SKIP, Entry
from qworker.beat.store import NO_RESULT
from qworker.contracts import App
from qworker.errors import BackendError, DamagedResult, NotSupported
from qworker.process.randomness import RANDOM
from qworker.transports.capabilities import FANOUT

if TYPE_CHECKING:
    from qworker.backends.base import Backend, Meta

Answer: TypeAlias = "Meta | Exception | None"
"""The stored metadata of a task, or the error of reading it; None if there is none."""

PATIENCE_SECONDS = 0.2
"""How long a turn waits for the result store: the leader must renew its lease, and call other entries."""
TRIES = 3
"""If this many reads fail before one succeeds, the store counts as unavailable."""


class Before(Enum):
    """The state of the previous call."""

    ENDED = auto()
    RUNNING = auto()
    UNKNOWN = auto()


def hindrance(app: App, entry: Entry) -> str | None:
    """Return why the ``overlap`` of *entry* cannot work with *app*, and what to do; None if it can. Opens no
    connection."""
    if entry.overlap == SKIP and (why := without_result(app, entry)):
        return f"overlap={SKIP!r} needs {why}"
    if entry.overlap == REPLACE and FANOUT in app.broker.lacks:
        return (
            f"overlap={REPLACE!r} revokes the previous call, which this broker does not support: use "
            f"overlap={SKIP!r} or {ALLOW!r}"
        )
    return None


def without_result(app: App, entry: Entry) -> str | None:
    """Return why the results of *entry*'s calls are not available, and what to do; None if they are."""
    if why := app.stores.why_none:
        return f"results, but they are not stored: {why}"
    if app.stores.sends_results:
        return (
            "results that every scheduler can read, but rpc:// sends them to one process: set result_backend "
            "to a store, such as redis://… or db+postgresql://…"
        )
    task = app.tasks.get(entry.task)
    ignores = entry.options.get("ignore_result")
    if ignores is None:
        ignores = app.conf.task_ignore_result if task is None else task.ignore_result
    if ignores:
        return (
            f"the results of {entry.task!r:.200}, which are not stored (ignore_result): store them, or use "
            f"overlap={REPLACE!r} or {ALLOW!r}"
        )
    return None


class Overlaps:
    """note: reports a problem of an entry and its consequence, with the entry's name. begin: starts a query,
    in its thread or directly. Used by the beat thread only."""

    def __init__(
        self,
        app: App,
        note: Callable[[str, str], None],
        begin: Callable[[Question], None] = threading.Thread.start,
    ) -> None:
        self._app = app
        self._note = note
        self._begin = begin
        self._question: Question | None = None

    def before(self, found: Iterable[DueEntry]) -> dict[str, Before]:
        """Return the state of the previous call of each entry in *found*, by name; entries that do not need
        it are left out."""
        known: dict[str, Before] = {}
        asking: list[tuple[str, DueEntry]] = []
        for each in found:
            task_id = each.state.task_id
            if each.entry.overlap == ALLOW or task_id is None or hindrance(self._app, each.entry):
                continue
            if task_id.endswith(NO_RESULT):  # revoking an ended call does no harm
                known[each.name] = Before.RUNNING if each.entry.overlap == REPLACE else Before.ENDED
            else:
                asking.append((task_id, each))
        if asking:
            answer = self._answer({task_id for task_id, _ in asking})
            known.update((each.name, self._state_of(each, answer.get(task_id))) for task_id, each in asking)
        return known

    def _answer(self, ids: Collection[str]) -> Mapping[str, Answer]:
        """Return the stored results of *ids*; missing ones are left out."""
        backend = self._app.backend
        question = self._question
        if question is None or (question.answered.is_set() and not question.covers(backend, ids)):
            question = self._question = Question(backend, ids)
            self._begin(question)
        if not question.covers(backend, ids) or not question.answered.wait(PATIENCE_SECONDS):
            late = BackendError(f"the result store {backend.safe_url} has not answered yet")
            return dict.fromkeys(ids, late)
        self._question = None
        return question.found

    def _state_of(self, due: DueEntry, answer: Answer) -> Before:
        name, entry = due.name, due.entry
        if isinstance(answer, DamagedResult):
            self._note(name, f"the previous call is assumed to have ended: {answer}")
            return Before.ENDED
        if isinstance(answer, NotSupported):  # by a custom store
            self._note(name, f"it is called as with overlap={ALLOW!r}, because {answer}")
            return Before.ENDED
        if isinstance(answer, Exception):
            if entry.overlap == REPLACE:
                return Before.RUNNING  # revoking an ended call does no harm
            self._note(name, f"it waits until the result of the previous call is known: {answer}")
            return Before.UNKNOWN
        if answer is not None:
            return Before.ENDED if answer["status"] in states.READY_STATES else Before.RUNNING
        expires, ran = self._app.backend.expires, due.state.last_run or 0.0
        return Before.RUNNING if expires is None or self._app.clock.now() - ran < expires else Before.ENDED


class Question(threading.Thread):
    """Queries the result store once. found is set before answered."""

    def __init__(self, backend: Backend, ids: Collection[str]) -> None:
        super().__init__(name="beat-results", daemon=True)
        self._backend = backend
        self._ids = frozenset(ids)
        self.answered = threading.Event()
        self.found: dict[str, Answer] = {}

    def covers(self, backend: Backend, ids: Collection[str]) -> bool:
        """Return whether it queries *backend* for all of *ids*."""
        return self._backend is backend and self._ids.issuperset(ids)

    def run(self) -> None:
        try:
            self.found = {**self._backend.read_many(self._ids)}
        except Exception:  # noqa: BLE001 - the store may be user code, and the error may concern one result
            self._ask_of_each()
        finally:
            self.answered.set()

    def _ask_of_each(self) -> None:
        """Read one result after the other. Stop if the first TRIES show that the store is unavailable."""
        waiting = list(self._ids)
        RANDOM.shuffle(waiting)  # so that the same ids are not always the last
        for count, task_id in enumerate(waiting, 1):
            try:
                self.found[task_id] = self._backend.get(task_id)
            except (BackendError, NotSupported) as error:
                self.found[task_id] = error
            except Exception as error:  # noqa: BLE001 - the store may be user code
                self.found[task_id] = DamagedResult(f"{type(error).__name__}: {error}", task_id)
            if count == TRIES and all(map(_is_away, self.found.values())):
                self.found.update(dict.fromkeys(waiting[count:], self.found[task_id]))
                return


def _is_away(answer: Answer) -> bool:
    return isinstance(answer, BackendError) and not isinstance(answer, DamagedResult)
