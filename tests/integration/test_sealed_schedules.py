"""Schedules of an app with a security_key: what write access to their store without the key allows, and that
nothing valid is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.beat.calls import id_of
from qworker.beat.catalog import Edit
from qworker.beat.sealed import SealedScheduleStore
from qworker.beat.serialization import to_json
from qworker.beat.service import Beat
from qworker.beat.store import PENDING, ScheduleStore, Slot
from qworker.beat.stores import open_store
from qworker.errors import InvalidSchedule, NotSupported
from qworker.testing import FakeClock
from tests.support.stores import KeepingStore

pytestmark = pytest.mark.integration

OLD = "the old key, which is long enough"
NEW = "the new key, which is long enough"
SETTINGS = {"nightly": {"task": "t", "schedule": 3600, "args": [1]}}


def make(directory: Path, keys: list[str] | None, clock: FakeClock, **settings: Any) -> QWorker:
    app = QWorker(
        "proj",
        broker=KeepingStore(),
        backend="cache+memory://",
        clock=clock,
        beat_store=f"sqlite:///{directory}/beat.db",
        beat_schedule=SETTINGS,
        set_as_current=False,
        **({"security_key": keys} if keys else {}),
        **settings,
    )

    @app.task(name="t")
    def t(*args: object) -> None: ...

    return app


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app(tmp_path: Path, clock: FakeClock) -> Iterator[QWorker]:
    with make(tmp_path, [NEW, OLD], clock) as made:
        yield made
        made.schedules.close()


@pytest.fixture
def raw(app: QWorker) -> ScheduleStore:
    """Return the store as used by an attacker without the key."""
    store = app.schedules.store
    assert isinstance(store, SealedScheduleStore)
    return store.inner


def write(raw: ScheduleStore, name: str, edit: bytes | None) -> None:
    row = raw.row(name)
    assert raw.edit(name, edit, row.version if row else 0)


def called(app: QWorker, clock: FakeClock, seconds: float = 10.0) -> list[tuple[str, list[Any]]]:
    """Run beat for *seconds*; return the entries and arguments of the calls, all of which must be signed."""
    broker = app.broker
    assert isinstance(broker, KeepingStore)
    before = len(broker.pushes)
    beat = Beat(app, lambda *_: None)
    for _ in range(int(seconds * 2)):
        beat.step(clock.monotonic())
        clock.advance(0.5)
    beat.leadership.resign()
    beat.store.close()
    envelopes = [envelope for push in broker.pushes[before:] for envelope in push]
    assert all("signature" in json.loads(envelope.headers) for envelope in envelopes)
    return [
        (json.loads(envelope.headers)["periodic_task_name"], json.loads(envelope.body)[0])
        for envelope in envelopes
    ]


def edit_of(*args: object, task: str = "t", **fields: Any) -> bytes:
    return to_json(
        Edit({"task": task, "schedule": {"every": 1.0}, "args": args, **fields}, added=True).as_data()
    )


# -- attacks --


def test_unsigned_entries_are_not_called(
    app: QWorker, raw: ScheduleStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    app.schedules.add("mine", "t", 1, args=["mine"])
    write(raw, "evil", edit_of("evil"))
    write(raw, "nightly", to_json(Edit({"schedule": {"every": 1.0}, "args": ["evil"]}).as_data()))
    found = called(app, clock)
    assert len(found) >= 8
    assert {(name, *args) for name, args in found} == {("mine", "mine")}
    for name in ("evil", "nightly"):
        assert (
            f"the entry {name} is not called: entry {name!r}: its change in the schedule store" in caplog.text
        )
        with pytest.raises(InvalidSchedule, match="it is not signed with a key of security_key"):
            app.schedules.entry(name)
        with pytest.raises(InvalidSchedule, match="qworker beat sign"):
            app.schedules.set(name, enabled=True)
    app.schedules.reset("nightly")
    app.schedules.remove("evil")
    assert app.schedules.entry("nightly").args == (1,)
    assert [each.name for each in app.schedules] == ["mine", "nightly"]


def test_sealed_entry_cannot_be_altered_or_copied(
    app: QWorker, raw: ScheduleStore, clock: FakeClock, tmp_path: Path
) -> None:
    app.schedules.add("mine", "t", 1, args=["mine"])
    row = raw.row("mine")
    assert row is not None
    assert row.edit is not None
    head, _, tail = row.edit.rpartition(b'"seal":"')
    other_digit = b"1" if tail[-3:] == b'0"}' else b"0"
    other = open_store(app, "another scope")
    assert other.edit("mine", edit_of("of another scope"), 0)
    foreign = other.inner.row("mine")  # type: ignore[attr-defined]
    tried = [
        row.edit.replace(b'"mine"', b'"evil"'),
        row.edit.replace(b'"added":true', b'"added":false'),
        head + b'"seal":"' + tail[:-3] + other_digit + b'"}',
        edit_of("evil")[:-1] + b',"seal":"' + tail,
        row.edit[:-1] + b',"fields":{"task":"t","args":["evil"],"schedule":{"every":1.0}}}',
        b'{"fields":{"task":"t","args":["evil"],"schedule":{"every":1.0}},' + row.edit[1:],
        row.edit + row.edit,
        foreign.edit,
        b"",
        b'"seal":"',
        b',"seal":"\xff\xff"}',
    ]
    for edit in tried:
        write(raw, "mine", edit)
        write(raw, "copied", row.edit)
        assert called(app, clock, 5) == []
        for each in app.schedules:
            assert each.name == "nightly" or each.error is not None, edit
    write(raw, "mine", row.edit)
    assert {(name, *args) for name, args in called(app, clock)} == {("mine", "mine")}


def test_older_edit_can_be_restored_until_its_key_is_removed(
    app: QWorker, raw: ScheduleStore, clock: FakeClock, tmp_path: Path
) -> None:
    """As documented on the page about security."""
    app.schedules.add("mine", "t", 1, args=["mine"])
    before = raw.row("mine")
    assert before is not None
    app.schedules.pause("mine")
    assert called(app, clock, 5) == []
    write(raw, "mine", before.edit)
    assert called(app, clock, 5) != []
    with make(tmp_path, ["a third key, which is long enough", NEW], clock) as rotating:
        assert rotating.schedules.sign() == ["mine"]
        rotating.schedules.close()
    with make(tmp_path, ["a third key, which is long enough"], clock) as later:
        assert later.schedules.entry("mine").args == ("mine",)
        write(raw, "mine", before.edit)
        assert called(later, clock, 5) == []
        later.schedules.close()


def test_slots_with_forged_task_ids_are_ignored(
    app: QWorker, raw: ScheduleStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    app.schedules.add("mine", "t", 86400, args=["mine"])
    due = clock.now() - 5
    ours = id_of("proj", "mine", due)
    store = app.schedules.store
    assert isinstance(store, SealedScheduleStore)
    found = [Slot("mine", due, due, "a victim's id", PENDING), Slot("mine", due, due, ours, PENDING)]
    store.inner = _Pending(store.inner, found)
    assert [slot.task_id for slot in store.pending()] == [ours]
    assert [slot.task_id for slot in store.slots("mine")] == [ours]
    assert "1 slots of the schedule store are not sent again" in caplog.text


class _Pending:
    """A store with forged slots."""

    def __init__(self, inner: ScheduleStore, found: list[Slot]) -> None:
        self._inner, self._found = inner, found

    def pending(self) -> list[Slot]:
        return self._found

    def slots(self, name: str, most: int) -> list[Slot]:
        return self._found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_forged_task_id_is_not_revoked(app: QWorker, raw: ScheduleStore, clock: FakeClock) -> None:
    """The leader signs revocations of calls that a new one replaces."""
    app.schedules.add("mine", "t", 1, overlap="replace")
    assert called(app, clock, 3)
    broker = app.broker
    assert isinstance(broker, KeepingStore)
    assert broker.revoked, "the replaced call"
    assert all(len(signal.split()) == 2 for _, _, signal in broker.revoked)
    broker.revoked.clear()
    row = raw.row("mine")
    assert row is not None
    assert row.state is not None
    lease = raw.take("evil", raw.look())
    raw.note(lease, {"mine": row.state._replace(task_id="a victim's id")})
    raw.resign(lease)
    assert len(called(app, clock, 3)) > 1
    assert broker.revoked
    assert not any("a victim's id" in ids for ids, _, _ in broker.revoked)


# -- valid entries --


def test_unsigned_edits_can_be_signed_after_review(
    tmp_path: Path, clock: FakeClock, app: QWorker, raw: ScheduleStore
) -> None:
    with make(tmp_path, None, clock) as before:
        before.schedules.add("old", "t", 1, args=["old"])
        before.schedules.add("later evil", "t", 1, args=["old"])
        before.schedules.set("nightly", schedule=1)
        with pytest.raises(NotSupported, match="security_key"):
            before.schedules.sign()
        before.schedules.close()
    assert called(app, clock) == []
    refused = app.schedules.refused()
    assert [each.name for each in refused] == ["later evil", "nightly", "old"]
    assert [each.entry and each.entry.args for each in refused] == [("old",), (1,), ("old",)]
    assert app.schedules.sign() == [], "edits that were not reviewed"
    with pytest.raises(InvalidSchedule, match="not signed"):
        app.schedules.sign(["old"])
    write(raw, "later evil", edit_of("evil"))
    assert app.schedules.sign(None, refused) == ["nightly", "old"]
    assert {(name, *args) for name, args in called(app, clock)} == {("nightly", 1), ("old", "old")}
    assert [each.name for each in app.schedules.refused()] == ["later evil"]


def test_keys_can_be_rotated(tmp_path: Path, clock: FakeClock) -> None:
    with make(tmp_path, [OLD], clock) as old:
        old.schedules.add("mine", "t", 1)
        old.schedules.close()
    with make(tmp_path, [NEW, OLD], clock) as both:
        assert len(called(both, clock)) > 1
        assert both.schedules.sign(["mine"]) == ["mine"]
        both.schedules.close()
    with make(tmp_path, [NEW], clock) as new:
        assert len(called(new, clock)) > 1
        assert new.schedules.refused() == []
        new.schedules.close()
    with make(tmp_path, [OLD], clock) as old:
        assert called(old, clock) == []
        old.schedules.close()


def test_process_without_a_key_ignores_the_seal(tmp_path: Path, app: QWorker, clock: FakeClock) -> None:
    """Like older versions, which run during a rolling upgrade."""
    app.schedules.add("mine", "t", 1, args=["mine"])
    with make(tmp_path, None, clock) as other:
        assert other.schedules.entry("mine").args == ("mine",)
        other.schedules.close()
