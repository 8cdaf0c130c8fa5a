"""The status of a worker: written as text and parsed again, whatever the text contains."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.transports.presence import (
    MAX_RUNNING,
    MAX_TEXT,
    MAX_WORD,
    Presence,
    RunningTask,
    from_text,
    held_seconds,
    to_text,
)

RECORD = Presence("w@host", 17, ("q", "r"), 4, 1000.5)
STATUS = RECORD._replace(
    host="host",
    status="working",
    pool=(18, 19),
    restarts=1,
    waiting=2,
    scheduled=3,
    unsettled=4,
    busy=1,
    running=(RunningTask("id\udc80", "proj.tâche\0", 1001.25, 18, "q"),),
    totals={"finished": 5, "dead_lettered": 1},
    seen=1002.0,
    version="0.1",
    python="3.11.2",
    memory=2**40,
    pool_memory=(5, 0),
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "name", "started", "pid", "queue"]), inner)
    ),
    max_leaves=5,
)
NAMES = [name for name in STATUS.plain() if name not in ("name", "pid", "queues", "concurrency", "started")]


def test_presence_round_trips_through_text() -> None:
    text = to_text(STATUS)
    assert text.isascii()
    assert "\0" not in text
    assert from_text(text, RECORD) == STATUS


def test_worker_without_status_was_last_seen_at_registration() -> None:
    assert from_text("", RECORD) == RECORD._replace(seen=RECORD.started)


def test_record_takes_precedence_over_the_text() -> None:
    text = json.dumps(
        {"name": "liar", "pid": 1, "queues": [], "concurrency": 0, "started": 0, "host": "liar"}
    )
    assert from_text(text, RECORD._replace(host="host")) == RECORD._replace(host="host", seen=1000.5)


@pytest.mark.parametrize("text", ["{", "[]", "null", "7", '"x"', "[" * 10_000, "\udc80", "9" * 5000])
def test_text_that_is_not_a_json_object_is_ignored(text: str) -> None:
    assert from_text(text, RECORD) == from_text("", RECORD)


def test_invalid_and_unknown_fields_are_ignored() -> None:
    fields_sent = json.loads(to_text(STATUS)) | {
        "pool": [1, "x"],
        "waiting": True,
        "seen": float("nan"),
        "more": 1,
    }
    assert from_text(json.dumps(fields_sent), RECORD) == STATUS._replace(
        pool=(), waiting=0, seen=RECORD.started
    )


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_fields_are_parsed_to_the_right_types(fields: dict[str, object]) -> None:
    found = from_text(json.dumps(fields), RECORD)
    assert json.loads(json.dumps(found.plain())) == found.plain()
    assert {name: type(value) for name, value in found.plain().items()} == {
        name: type(value) for name, value in STATUS.plain().items()
    }


def test_long_ids_and_names_are_truncated() -> None:
    text = to_text(STATUS._replace(running=(RunningTask("i" * 9999, "n" * 9999, 1.0),)))
    assert len(text) < 1500


@pytest.mark.parametrize(
    ("concurrency", "started", "seconds"),
    [
        (2, [100.0, 130.0], 70.0),
        (2, [100.0, 130.0, 195.0], 70.0),  # an async task takes no slot
        (2, [100.0], 0.0),
        (2, [], 0.0),
        (1, [205.0], 0.0),  # the worker's clock is ahead of ours
        (150, [100.0] * 150, 100.0),  # more tasks than the status lists
    ],
)
def test_all_slots_are_busy_since_the_last_one_was_taken(
    concurrency: int, started: list[float], seconds: float
) -> None:
    running = tuple(RunningTask(str(number), "t", since) for number, since in enumerate(started))
    worker = RECORD._replace(concurrency=concurrency, busy=len(running), running=running[:100])
    assert held_seconds(worker, 200.0) == seconds


def test_overlong_text_is_not_parsed() -> None:
    text = json.dumps({"status": "working", "host": "x" * MAX_TEXT})
    assert from_text(text, RECORD) == RECORD._replace(seen=RECORD.started)


def test_largest_status_of_a_worker_is_parsed() -> None:
    word = "\U0001f600" * (2 * MAX_WORD)
    tasks = tuple(RunningTask(word, word, 1.0, 2**22, word) for _ in range(2 * MAX_RUNNING))
    pids = tuple(range(2**22, 2**22 + 1000))
    text = to_text(RECORD._replace(running=tasks, pool=pids, pool_memory=tuple(2**40 for _ in pids)))
    assert len(text) < MAX_TEXT / 3
    assert len(from_text(text, RECORD).running) == MAX_RUNNING


@pytest.mark.parametrize("name", ["seen", "running"])
def test_huge_numbers_are_ignored(name: str) -> None:
    huge = "9" * 400
    value = huge if name == "seen" else f'[{{"id": "a", "name": "b", "started": {huge}}}]'
    assert from_text(f'{{"{name}": {value}}}', RECORD) == RECORD._replace(seen=RECORD.started)
