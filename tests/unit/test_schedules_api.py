"""app.schedules: reading and changing entries from Python, with a store in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from qworker import QWorker
from qworker.beat import Schedule, crontab, schedule
from qworker.beat.api import TRIES, Schedules
from qworker.beat.catalog import HAND, SETTINGS
from qworker.beat.store import EntryRow, EntryState, Firing, Lease, Slot
from qworker.beat.stores import MemoryScheduleStore
from qworker.errors import BackendError, InvalidSchedule, NoSuchEntry, NotSupported
from qworker.testing.clock import START, FakeClock
from tests.support.stores import KeepingStore, make_app

SETTING = {"task": "proj.report", "schedule": "0 * * * *", "args": [1], "options": {"headers": {"h": 1}}}


class Busy(MemoryScheduleStore):
    """A store where each read of a row is followed by a function of *meanwhile*. tries: edits so far."""

    def __init__(self) -> None:
        super().__init__(FakeClock(), shared=True)
        self.meanwhile: list[Callable[[], object]] = []
        self.tries = 0

    def row(self, name: str) -> EntryRow | None:
        found = super().row(name)
        if self.meanwhile:
            self.meanwhile.pop()()
        return found

    def edit(self, name: str, edit: bytes | None, known: int) -> bool:
        self.tries += 1
        return super().edit(name, edit, known)


@pytest.fixture
def made() -> tuple[QWorker, KeepingStore, FakeClock]:
    return make_app(beat_schedule={"a": SETTING})


@pytest.fixture
def app(made: tuple[QWorker, KeepingStore, FakeClock]) -> QWorker:
    return made[0]


@pytest.fixture
def store() -> Busy:
    return Busy()


@pytest.fixture
def schedules(app: QWorker, store: Busy) -> Schedules:
    return Schedules(app, store)


# -- reading --


def test_entries_are_ordered_by_name(schedules: Schedules) -> None:
    schedules.add("c", "t", 5)
    schedules.add("B", "t", 5)
    assert [each.name for each in schedules] == ["B", "a", "c"]
    assert [each.source for each in schedules.entries()] == [HAND, SETTINGS, HAND]
    assert schedules["a"] == schedules.get("a")
    assert schedules.entry("a").args == (1,)


@pytest.mark.parametrize("name", ["A", "nobody", "", "a ", "a\0", "\ud800", "x" * 1000])
def test_unknown_entry_is_an_error(schedules: Schedules, name: str) -> None:
    for ask in (
        *(schedules.get, schedules.entry, schedules.preview, schedules.run, schedules.pause),
        *(schedules.resume, schedules.remove, schedules.reset, schedules.set),
    ):
        with pytest.raises(NoSuchEntry, match="there is no entry"):
            ask(name)
    assert schedules.runs(name) == []


def test_misspelled_name_gets_a_suggestion(schedules: Schedules) -> None:
    schedules.add("nightly report", "t", 5)
    with pytest.raises(NoSuchEntry, match="did you mean 'nightly report'"):
        schedules.get("nightly reprot")
    with pytest.raises(NoSuchEntry, match="did you mean 'nightly report'"):
        schedules.remove("nightly reprot")


def test_preview_returns_the_next_due_times(schedules: Schedules) -> None:
    first = datetime(2023, 11, 14, 23, tzinfo=UTC)
    assert schedules.preview("a", 2) == [first, first.replace(day=15, hour=0)]
    assert schedules.preview("a", 1, datetime(2030, 1, 1, 5, 30, tzinfo=UTC)) == [
        datetime(2030, 1, 1, 6, tzinfo=UTC)
    ]
    schedules.add("once", "t", {"at": "2023-11-15T00:00:00+00:00"})
    assert len(schedules.preview("once", 5)) == 1
    assert schedules.preview("a", 0) == []


def test_preview_uses_the_timezone_of_the_app(store: Busy) -> None:
    app, _, _ = make_app(beat_schedule={"a": SETTING}, timezone="Asia/Tokyo")
    (instant,) = Schedules(app, store).preview("a", 1)
    assert instant.isoformat() == "2023-11-15T08:00:00+09:00"


def test_runs_state_and_leader(schedules: Schedules, store: Busy) -> None:
    assert schedules.leader() == Lease()
    lease = store.take("us", Lease(), "about")
    state = EntryState("s", 1.0, 2.0, 3.0, "id", 1)
    store.fire(lease, [Firing("a", START, "id", [], state)], KeepingStore().sender)
    assert schedules.runs("a") == [Slot("a", START, START, "id")]
    assert schedules.runs("a", 0) == []
    assert schedules["a"].state == state
    assert schedules.leader().holder == "us"


# -- changing --


def test_add(schedules: Schedules, store: Busy) -> None:
    found = schedules.add("b", "t", crontab(0, 4, tz="Europe/Berlin"), args=(1, 2), jitter=5)
    assert found == schedules["b"]
    assert (found.source, found.changed) == (HAND, frozenset())
    entry = schedules.entry("b")
    assert (entry.schedule, entry.args, entry.jitter) == (crontab(0, 4, tz="Europe/Berlin"), (1, 2), 5.0)
    row = store.row("b")
    assert row is not None
    assert row.version == 1


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("a", {}, "the entry 'a' already exists"),
        (" b", {}, "without spaces"),
        ("b", {"jitter": -1}, "not a number of seconds"),
        ("b", {"arg": 1}, "did you mean args"),
        ("b", {"args": [object()]}, "must be valid as JSON"),
        ("b", {"kwargs": {"x": float("nan")}}, "must be valid as JSON"),
        ("b", {"args": ["x" * 2**20]}, "too large"),
    ],
)
def test_add_rejects_invalid_entries(
    schedules: Schedules, store: Busy, name: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSchedule, match=message):
        schedules.add(name, "t", 5, **fields)
    assert store.rows() == []


def test_add_rejects_custom_schedules(schedules: Schedules) -> None:
    with pytest.raises(InvalidSchedule, match="is a custom schedule"):
        schedules.add("b", "t", Schedule())


def test_set_changes_single_fields_until_reset(schedules: Schedules) -> None:
    schedules.set("a", args=[2])
    found = schedules.set("a", schedule=30)
    assert found.changed == {"args", "schedule"}
    assert found.entry is not None
    assert (found.entry.args, found.entry.schedule, found.entry.task) == ((2,), schedule(30), "proj.report")
    assert schedules.reset("a") == schedules["a"]
    assert schedules["a"].changed == frozenset()
    assert schedules.entry("a").args == (1,)


@pytest.mark.parametrize("fields", [{"args": 5}, {"nmae": 1}, {"schedule": "never"}])
def test_set_rejects_invalid_fields(schedules: Schedules, store: Busy, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule):
        schedules.set("a", **fields)
    assert store.rows() == []


def test_pause_and_resume(schedules: Schedules) -> None:
    assert schedules.pause("a").entry.enabled is False  # type: ignore[union-attr]
    assert schedules.entry("a").enabled is False
    assert schedules.resume("a").entry.enabled is True  # type: ignore[union-attr]


def test_entry_of_the_settings_is_removed_until_reset(schedules: Schedules) -> None:
    schedules.set("a", args=[2])
    schedules.remove("a")
    assert schedules["a"].removed
    for ask in (schedules.entry, schedules.run, schedules.preview, schedules.pause):
        with pytest.raises(InvalidSchedule, match="has been removed; reset"):
            ask("a")
    schedules.reset("a")
    assert schedules.entry("a").args == (1,)


def test_removed_entry_can_be_added_again(schedules: Schedules) -> None:
    schedules.remove("a")
    assert schedules.add("a", "other", 5).source == HAND
    assert schedules.entry("a").task == "other"
    assert schedules.set("a", args=[1]).source == HAND
    schedules.reset("a")
    assert schedules.entry("a").task == "proj.report"


def test_added_entry_is_removed_for_good(schedules: Schedules) -> None:
    schedules.add("b", "t", 5)
    with pytest.raises(InvalidSchedule, match="was added by hand"):
        schedules.reset("b")
    schedules.set("b", args=[1])
    schedules.remove("b")
    with pytest.raises(NoSuchEntry):
        schedules["b"]
    assert schedules.add("b", "t", 6).entry.args == ()  # type: ignore[union-attr]


@pytest.mark.parametrize("edit", [b"{", b'{"fields":{"args":5}}'])
def test_damaged_edit_can_be_reset(schedules: Schedules, store: Busy, edit: bytes) -> None:
    store.edit("a", edit, 0)
    assert schedules["a"].error is not None
    with pytest.raises(InvalidSchedule):
        schedules.entry("a")
    assert schedules.reset("a").error is None


@pytest.mark.parametrize("edit", [b"{", b'{"fields":{"args":5},"added":true}'])
def test_damaged_entry_can_be_removed(schedules: Schedules, store: Busy, edit: bytes) -> None:
    store.edit("b", edit, 0)
    assert schedules["b"].error is not None
    schedules.remove("b")
    with pytest.raises(NoSuchEntry):
        schedules["b"]


# -- concurrent changes --


def test_concurrent_changes_are_merged(schedules: Schedules, app: QWorker, store: Busy) -> None:
    other = Schedules(app, store)
    store.meanwhile = [lambda: other.set("a", args=[7])]
    found = schedules.set("a", jitter=5)
    assert found.changed == {"args", "jitter"}
    assert (schedules.entry("a").args, schedules.entry("a").jitter) == ((7,), 5.0)


def test_add_fails_if_the_entry_was_added_meanwhile(schedules: Schedules, app: QWorker, store: Busy) -> None:
    other = Schedules(app, store)
    store.meanwhile = [lambda: other.add("b", "theirs", 5)]
    with pytest.raises(InvalidSchedule, match="already"):
        schedules.add("b", "ours", 5)
    assert schedules.entry("b").task == "theirs"


def test_set_fails_if_the_entry_was_removed_meanwhile(
    schedules: Schedules, app: QWorker, store: Busy
) -> None:
    schedules.add("b", "t", 5)
    other = Schedules(app, store)
    store.meanwhile = [lambda: other.remove("b")]
    with pytest.raises(NoSuchEntry):
        schedules.set("b", jitter=5)


def test_set_gives_up_after_repeated_conflicts(schedules: Schedules, app: QWorker, store: Busy) -> None:
    other = Schedules(app, store)

    def again() -> None:
        row = MemoryScheduleStore.row(store, "a")
        MemoryScheduleStore.edit(store, "a", b'{"fields":{}}', row.version if row else 0)

    store.meanwhile = [again] * (TRIES + 5)
    with pytest.raises(BackendError, match="other processes keep changing"):
        schedules.set("a", jitter=5)
    assert store.tries == TRIES
    store.meanwhile = []
    assert other["a"].changed == frozenset()


def test_changes_need_a_shared_store(app: QWorker) -> None:
    schedules = Schedules(app, MemoryScheduleStore(FakeClock()))
    for change in (
        lambda: schedules.add("b", "t", 5),
        lambda: schedules.set("a", jitter=1),
        lambda: schedules.remove("a"),
        lambda: schedules.reset("a"),
    ):
        with pytest.raises(NotSupported, match="set beat_store"):
            change()
    assert schedules.entry("a").args == (1,)


# -- running now --


def test_run_calls_the_task_now(
    made: tuple[QWorker, KeepingStore, FakeClock], schedules: Schedules, store: Busy
) -> None:
    _, broker, _ = made
    result = schedules.run("a")
    (sent,) = broker.sent
    assert (sent.headers["id"], sent.headers["task"], sent.body.args) == (result.id, "proj.report", (1,))
    assert (sent.headers["periodic_task_name"], sent.headers["h"]) == ("a", 1)
    assert sent.headers["periodic_task_due"].startswith("2023-11-14T22:13:20")
    assert store.rows() == [], "a manual run is not recorded as a due time"


def test_run_uses_the_options_of_a_registered_task(schedules: Schedules, app: QWorker) -> None:
    @app.task(name="proj.known", queue="special")
    def known() -> None: ...

    schedules.add("b", known, 5, kwargs={})
    schedules.run("b")
    assert app.broker.sent[0].envelope.queue == "special"  # type: ignore[attr-defined]


def test_store_of_the_app_is_opened_and_closed(app: QWorker) -> None:
    schedules = app.schedules
    assert schedules is app.schedules
    assert schedules.store is schedules.store
    schedules.close()
    schedules.close()
    assert schedules.leader() == Lease()
