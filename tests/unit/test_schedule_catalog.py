"""The catalog: all entries of an app, from all sources, with the edits made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qworker import QWorker
from qworker.beat import crontab, schedule
from qworker.beat.catalog import CODE, HAND, SETTINGS, TASK, Edit, Listed, base_of, catalog, listed, read_edit
from qworker.beat.entry import Entry
from qworker.beat.serialization import to_json
from qworker.beat.store import EntryRow, EntryState
from qworker.errors import InvalidSchedule

GIVEN = {"a": (SETTINGS, {"task": "t", "schedule": 60, "args": [1]})}
STATE = EntryState("seen", 1.0, runs=3)


def edited(name: str = "a", version: int = 1, state: EntryState | None = None, **edit: Any) -> EntryRow:
    return EntryRow(name, version, to_json(Edit(edit.pop("fields", {}), **edit).as_data()), state)


def app_of(**settings: Any) -> QWorker:
    return QWorker("proj", broker="memory://", set_as_current=False, **settings)


# -- the base --


def test_entries_come_from_settings_code_and_tasks() -> None:
    app = app_of(beat_schedule={"s": {"task": "proj.report", "schedule": "@daily"}})

    @app.task(name="proj.report", schedule=crontab(0, 4))
    def report() -> None: ...

    @app.task(name="proj.other")
    def other() -> None: ...

    app.add_periodic_task(30, other.s(1, b=2), name="c")
    app.finalize()
    found = catalog(base_of(app), [])
    assert {name: each.source for name, each in found.items()} == {
        "s": SETTINGS,
        "c": CODE,
        "proj.report": TASK,
    }
    assert all(each.error is None and each.changed == frozenset() for each in found.values())
    entries = {name: each.entry for name, each in found.items()}
    assert entries["proj.report"] == Entry(name="proj.report", task="proj.report", schedule=crontab(0, 4))
    code = entries["c"]
    assert code is not None
    assert (code.task, code.args, code.kwargs, code.schedule) == ("proj.other", (1,), {"b": 2}, schedule(30))


def test_entries_share_equal_values() -> None:
    """An app may have a hundred thousand entries."""
    base = {name: (SETTINGS, {"task": "t", "schedule": crontab(15, 3)}) for name in ("a", "b")}
    first, second = catalog(base, []).values()
    assert first.changed is second.changed
    assert first.entry is not None
    assert second.entry is not None
    fields = [each.schedule.__reduce__()[1][0] for each in (first.entry, second.entry)]
    assert [one is other for one, other in zip(*fields, strict=True)] == [True] * 5


def test_settings_override_code_and_code_overrides_tasks() -> None:
    app = app_of(beat_schedule={"proj.report": {"task": "proj.report", "schedule": 1}})

    @app.task(name="proj.report", schedule=3)
    def report() -> None: ...

    app.add_periodic_task(2, report.s(), name="proj.report")
    app.finalize()
    (found,) = catalog(base_of(app), []).values()
    assert found.source == SETTINGS
    assert found.entry is not None
    assert found.entry.schedule == schedule(1)


def test_no_settings_give_no_entries() -> None:
    assert catalog(base_of(app_of()), []) == {}
    assert catalog(base_of(app_of(beat_schedule=None)), []) == {}


def test_invalid_entries_are_listed_with_their_error() -> None:
    base = {
        "no-task": (SETTINGS, {"schedule": 5}),
        "no-dict": (SETTINGS, "report"),
        "typo": (CODE, {"task": "t", "schedule": 5, "arg": 1}),
        "never": (SETTINGS, {"task": "t", "schedule": "0 0 31 2 *"}),
        " odd ": (SETTINGS, {"task": "t", "schedule": 5}),
        "end": (SETTINGS, {"task": "t", "schedule": 5, "end": "9999-12-31T23:59:59-23:00"}),
        "good": (SETTINGS, {"task": "t", "schedule": 5}),
    }
    found = catalog(base, [])
    assert [name for name, each in found.items() if each.error is None] == ["good"]
    assert all((each.entry is None) == (each.error is not None) for each in found.values())
    assert "has no task" in (found["no-task"].error or "")
    assert "did you mean args" in (found["typo"].error or "")
    assert "never matches" in (found["never"].error or "")


# -- edits --


def test_edit_overrides_single_fields() -> None:
    row = edited(fields={"enabled": False, "schedule": {"crontab": "0 4 * * *"}}, state=STATE)
    found = listed("a", GIVEN["a"], row)
    assert found == Listed(
        "a",
        Entry(name="a", task="t", schedule=crontab(0, 4), args=(1,), enabled=False),
        SETTINGS,
        frozenset({"enabled", "schedule"}),
        state=STATE,
    )
    changed = SETTINGS, {"task": "t2", "schedule": 60, "args": [2]}
    entry = listed("a", changed, row).entry
    assert entry is not None
    assert (entry.task, entry.args, entry.schedule) == ("t2", (2,), crontab(0, 4))


def test_empty_edit_changes_nothing() -> None:
    assert listed("a", GIVEN["a"], EntryRow("a", 3, None, STATE)).changed == frozenset()
    assert listed("a", GIVEN["a"], edited()).entry == listed("a", GIVEN["a"], None).entry


def test_removed_entry_is_listed_as_removed() -> None:
    found = listed("a", GIVEN["a"], edited(removed=True, state=STATE))
    assert found == Listed("a", None, SETTINGS, removed=True, state=STATE)
    assert listed("a", ("settings", "nonsense"), edited(removed=True)).error is None


def test_entry_added_by_hand_is_listed() -> None:
    fields = {"task": "t", "schedule": {"every": 5}, "args": [1]}
    found = catalog(GIVEN, [edited("b", fields=fields, added=True, state=STATE)])
    assert list(found) == ["a", "b"]
    assert found["b"] == Listed(
        "b", Entry(name="b", task="t", schedule=schedule(5), args=(1,)), HAND, state=STATE
    )


def test_entry_added_by_hand_replaces_one_of_the_settings() -> None:
    found = listed("a", GIVEN["a"], edited(fields={"task": "u", "schedule": {"every": 5}}, added=True))
    assert found.source == HAND
    assert found.entry == Entry(name="a", task="u", schedule=schedule(5))


def test_rows_without_an_edit_are_not_listed() -> None:
    """They remain from entries that were removed, also from settings."""
    assert list(catalog(GIVEN, [EntryRow("gone", 0, None, STATE), EntryRow("removed", 5, None, STATE)])) == [
        "a"
    ]


def test_edit_of_a_missing_entry_is_an_error_of_its_own() -> None:
    found = catalog(GIVEN, [edited("b", fields={"enabled": False}), edited("a", fields={"enabled": False})])
    assert found["b"].entry is None
    assert "has no task" in (found["b"].error or "")
    assert found["a"].entry is not None


@pytest.mark.parametrize(
    "edit",
    [
        *(
            b"{",
            b"[]",
            b"{}",
            b'{"fields":[]}',
            b'{"fields":{"arg":1}}',
            b'{"fields":{"schedule":5}}',
            b"\xff",
        ),
        *(b'{"fields":{"enabled":1}}', b'{"fields":{"end":"9999-12-31T23:59:59-23:00"}}'),
    ],
)
def test_damaged_edit_is_listed_with_an_error(edit: bytes) -> None:
    found = catalog({**GIVEN, "b": GIVEN["a"]}, [EntryRow("a", 1, edit, STATE)])
    assert (found["a"].entry, found["a"].source, found["a"].state) == (None, SETTINGS, STATE)
    assert found["a"].error
    assert found["b"].error is None


def test_edit_round_trips() -> None:
    for edit in (Edit({}), Edit({"enabled": False}), Edit({}, removed=True), Edit({"task": "t"}, added=True)):
        assert read_edit(to_json(edit.as_data())) == edit
    assert json.loads(to_json(Edit({}).as_data())) == {"fields": {}}
    with pytest.raises(InvalidSchedule, match="not an edit"):
        read_edit(b'{"added":true}')
