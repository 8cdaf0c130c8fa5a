"""One suite for every schedule store, with and without its own broker."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from qworker.beat.catalog import catalog
from qworker.beat.store import PENDING, SENT, EntryRow, EntryState, Lease, ScheduleStore, Slot
from qworker.errors import BackendError, BrokerUnavailable, LeaseLost
from qworker.testing.clock import FakeClock
from qworker.transports.lease import Broker, Envelope, Sender
from tests.contract.schedule_places import (
    SCHEDULE_PLACES,
    MySQLSchedulePlace,
    PostgreSQLSchedulePlace,
    RedisSchedulePlace,
    SchedulePlace,
    ServerPlace,
    SQLiteAlonePlace,
    start_process,
)
from tests.contract.schedule_steps import DUE, firing, leading, sent, state
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.contract

T = TypeVar("T")
NAMES = (
    *("report", "Report", "REPORT", "report.", "report/", "report report", "report  report", "réport"),
    *("re'port", 're"port', "re%port", "re%sport", "re_port", "re\\port", "re?port", "re:port", "re{port}"),
    *("отчёт", "報告", "📈", "📉", "straße", "strasse", "é", "e\u0301", "0", "-1 a", "1700000000250000 a"),
    *("x" * 255, "é" * 255, "lease", "slots.report"),
)
"""Names that a store may confuse with each other, or with its own names."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test on every place, except tests with other processes in memory. ``point`` takes the crash
    points that a place reaches."""
    if "kind" not in metafunc.fixturenames:
        return
    code = metafunc.function.__code__
    arguments = code.co_varnames[: code.co_argcount]
    other_processes = "kind" in arguments or "kept" in arguments
    kinds = {
        kind: each for kind, each in SCHEDULE_PLACES.items() if not (other_processes and each.one_process)
    }
    if "point" in metafunc.fixturenames:
        points = [(kind, point) for kind, each in kinds.items() for point in each.points]
        metafunc.parametrize(("kind", "point"), points)
    else:
        metafunc.parametrize("kind", kinds)


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Iterator[SchedulePlace]:
    place = SCHEDULE_PLACES[kind](tmp_path)
    yield place
    place.clear()


@pytest.fixture
def kept(place: SchedulePlace) -> SchedulePlace:
    """Return a place that is not in memory."""
    return place


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(place: SchedulePlace, clock: FakeClock) -> Iterator[ScheduleStore]:
    store = place.store(clock)
    yield store
    store.close()


@pytest.fixture
def broker(place: SchedulePlace) -> Iterator[Broker]:
    broker = place.broker()
    yield broker
    broker.close()


class UnavailableSender(Sender):
    """The sender of a broker that is unavailable."""

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        raise BrokerUnavailable("away")


def at_once(count: int, work: Callable[[int], T]) -> list[T]:
    """Run *work* in *count* threads, which start together; return the results."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> T:
        barrier.wait(PATIENCE)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Let the processes, once all are ready, continue together; return their outputs."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate(timeout=PATIENCE)[0].strip() for process in processes]


# -- the lease --


def test_new_store_has_no_lease(store: ScheduleStore) -> None:
    assert store.look() == Lease()
    assert (store.rows(), store.row("a"), store.slots("a"), store.pending()) == ([], None, [], [])


def test_reading_changes_nothing(kept: SchedulePlace, store: ScheduleStore) -> None:
    """No tables are created, either: `qworker doctor` reads, and every waiting scheduler."""
    leading(store)
    kept.lose()
    other = kept.store()
    assert (other.look(), other.rows(), other.row("a"), other.pending(), other.slots("a")) == (
        Lease(),
        [],
        None,
        [],
        [],
    )
    assert kept.is_lost()
    leading(other)
    assert not kept.is_lost()
    other.close()


def test_reading_is_not_blocked_by_a_writer(tmp_path: Path, clock: FakeClock) -> None:
    """Every waiting scheduler reads four times a second."""
    place = SQLiteAlonePlace(tmp_path)
    store = place.store(clock)
    lease = leading(store)
    with closing(sqlite3.connect(tmp_path / place.file, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert store.look() == lease
        assert store.rows() == []
    store.close()


def test_lease_is_taken_renewed_and_released(place: SchedulePlace, store: ScheduleStore) -> None:
    ours = store.take("us", Lease(), "who we are: ü")
    assert ours == Lease("us", 1, 1, 0, "who we are: ü")
    other = place.store()
    assert other.look() == ours
    renewed = store.renew(ours)
    assert renewed == ours._replace(beats=2)
    assert store.renew(ours).beats == 3
    assert other.look().beats == 3
    store.resign(ours)
    assert other.look().holder == ""
    theirs = other.take("they", other.look())
    assert (theirs.holder, theirs.generation) == ("they", 2)
    other.close()


@pytest.mark.parametrize(
    "stale", [Lease("us", 1, 0), Lease("us", 0, 1), Lease("who", 1, 1), Lease()], ids=repr
)
def test_lease_is_not_taken_if_it_has_changed(store: ScheduleStore, stale: Lease) -> None:
    ours = leading(store)
    assert store.take("they", stale) == ours
    assert store.look() == ours


def test_edit_does_not_prevent_taking_the_lease(store: ScheduleStore) -> None:
    seen = leading(store)
    assert store.edit("a", b"{}", 0)
    assert store.take("they", seen).holder == "they"


def test_old_holder_cannot_renew_or_release_a_taken_lease(store: ScheduleStore) -> None:
    old = leading(store)
    new = leading(store, "they")
    assert store.renew(old) == new
    store.resign(old)
    assert store.look() == new
    again = leading(store, "us")
    assert store.renew(old) == again, "an old generation of the same holder"
    store.resign(old)
    assert store.look() == again


def test_released_lease_cannot_be_renewed(store: ScheduleStore) -> None:
    lease = leading(store)
    store.resign(lease)
    assert store.renew(lease).holder == ""
    with pytest.raises(LeaseLost):
        store.note(lease, {"a": state()})


@pytest.mark.parametrize("successor", ["they", "us"])
def test_old_generation_cannot_write(
    place: SchedulePlace, store: ScheduleStore, broker: Broker, successor: str
) -> None:
    old = leading(store)
    with suppress(BrokerUnavailable):
        store.fire(old, [firing("pending")], UnavailableSender())
    before = store.rows(), store.pending()
    leading(store, successor)
    with pytest.raises(LeaseLost):
        store.note(old, {"a": state()})
    with pytest.raises(LeaseLost):
        store.fire(old, [firing("a")], broker.sender)
    if not place.one_process:  # in memory, nothing is pending
        with pytest.raises(LeaseLost):
            store.sent(old, [("pending", DUE)])
    assert (store.rows(), store.pending()) == before
    assert (store.slots("a"), sent(broker)) == ([], 0)


def test_one_of_many_threads_takes_the_lease(place: SchedulePlace) -> None:
    stores = [place.store() for _ in range(8)]
    for round_ in range(5):
        seen = stores[0].look()
        found = at_once(8, lambda number: stores[number].take(f"w{number}", seen))  # noqa: B023
        assert len(set(found)) == 1
        assert found[0].generation == round_ + 1
    for each in stores:
        each.close()


RACING = """
seen = Lease()
print("ready", flush=True)
sys.stdin.readline()
lease = store.take(arguments[0], seen)
print(lease.holder, lease.generation)
"""


def test_one_of_many_processes_takes_the_lease(kind: str, tmp_path: Path, place: SchedulePlace) -> None:
    """They create the tables, too."""
    processes = [start_process(kind, tmp_path, RACING, f"w{number}") for number in range(4)]
    found = outputs(processes)
    assert [process.returncode for process in processes] == [0] * 4
    assert len(set(found)) == 1
    assert found[0].endswith(" 1")


# -- rows --


def test_row_contains_edit_and_state(place: SchedulePlace, store: ScheduleStore) -> None:
    lease = leading(store)
    assert store.edit("a", b'{"fields":{}}', 0)
    store.note(lease, {"a": state(1, "wrong: ü\n"), "b": EntryState()})
    other = place.store()
    row = other.row("a")
    assert row == EntryRow("a", 1, b'{"fields":{}}', state(1, "wrong: ü\n"))
    assert other.row("b") == EntryRow("b", 0, None, EntryState())
    assert sorted(other.rows()) == [row, other.row("b")]
    assert other.row("c") is None
    other.close()


def test_stale_edit_is_refused(store: ScheduleStore) -> None:
    assert not store.edit("a", b"1", 1)
    assert store.edit("a", b"1", 0)
    assert not store.edit("a", b"2", 0)
    first = store.row("a")
    assert first is not None
    assert store.edit("a", b"2", first.version)
    assert not store.edit("a", b"3", first.version)
    second = store.row("a")
    assert second is not None
    assert (second.edit, second.version > first.version) == (b"2", True)


def test_prune_deletes_rows_without_an_edit(place: SchedulePlace, store: ScheduleStore) -> None:
    lease = leading(store)
    for name in ("gone", "left", "again", "kept"):
        assert store.edit(name, b"1", 0)
    store.note(lease, {name: state(1) for name in ("left", "kept", "noted")})
    versions = {row.name: row.version for row in store.rows()}
    for name in ("gone", "left", "again"):
        assert store.edit(name, None, versions[name])
    removed = {row.name: row.version for row in store.rows()}
    assert store.edit("again", b"2", removed["again"])
    store.prune(lease, {**removed, "who": 3})
    other = place.store()
    assert sorted(row.name for row in other.rows()) == ["again", "kept"], (
        "rows with an edit, or another version"
    )
    assert (other.row("gone"), other.row("left"), other.row("noted")) == (None, None, None)
    kept = other.row("kept")
    assert kept is not None
    assert kept.state == state(1)
    assert store.edit("gone", b"3", 0)
    again = other.row("gone")
    assert again is not None
    assert again.version > removed["gone"], "so that the scheduler notices it"
    store.prune(lease, {})
    leading(store, "they")
    with pytest.raises(LeaseLost):
        store.prune(lease, {"kept": kept.version})
    other.close()


def test_prune_distinguishes_similar_names(store: ScheduleStore) -> None:
    lease = leading(store)
    store.note(lease, {name: state(1) for name in NAMES})
    for count, name in enumerate(NAMES, 1):
        store.prune(lease, {name: 0})
        assert sorted(row.name for row in store.rows()) == sorted(NAMES[count:])


def test_edit_keeps_the_state_and_note_keeps_the_edit(store: ScheduleStore) -> None:
    lease = leading(store)
    store.note(lease, {"a": state(1)})
    assert store.edit("a", b"1", 0)
    store.note(lease, {"a": state(2)})
    row = store.row("a")
    assert row is not None
    assert (row.edit, row.state) == (b"1", state(2))
    assert store.edit("a", b"2", row.version)
    row = store.row("a")
    assert row is not None
    assert (row.edit, row.state) == (b"2", state(2))
    assert store.edit("a", None, row.version)
    row = store.row("a")
    assert row is not None
    assert (row.edit, row.state) == (None, state(2))


def test_edited_row_without_a_note_has_no_state(store: ScheduleStore) -> None:
    assert store.edit("a", b"1", 0)
    assert store.row("a") == EntryRow("a", 1, b"1", None)


def test_rows_after_a_version_are_later_edits(store: ScheduleStore) -> None:
    lease = leading(store)
    for name in ("a", "b", "c"):
        assert store.edit(name, b"1", 0)
    version = store.look().version
    assert store.rows(version) == []
    store.note(lease, {"a": state(), "d": state()})
    assert store.rows(version) == [], "a note is not an edit"
    row = store.row("b")
    assert row is not None
    assert store.edit("b", b"2", row.version)
    row = store.row("c")
    assert row is not None
    assert store.edit("c", None, row.version)
    assert {row.name: row.edit for row in store.rows(version)} == {"b": b"2", "c": None}
    assert store.look().version > version
    assert store.rows(store.look().version) == []
    assert {row.name for row in store.rows()} == {"a", "b", "c", "d"}


def test_one_of_concurrent_edits_of_a_version_is_accepted(place: SchedulePlace, store: ScheduleStore) -> None:
    stores = [place.store() for _ in range(6)]
    known = 0
    for _ in range(4):
        done = at_once(6, lambda number: stores[number].edit("a", b"%d" % number, known))  # noqa: B023
        assert sum(done) == 1
        row = store.row("a")
        assert row is not None
        assert row.edit == b"%d" % done.index(True)
        known = row.version
    for each in stores:
        each.close()


def test_concurrent_edits_get_different_versions(place: SchedulePlace, store: ScheduleStore) -> None:
    stores = [place.store() for _ in range(6)]
    assert all(at_once(6, lambda number: stores[number].edit(f"e{number}", b"1", 0)))
    assert sorted(row.version for row in store.rows()) == [1, 2, 3, 4, 5, 6]
    for each in stores:
        each.close()


def test_instants_are_exact_to_the_microsecond(store: ScheduleStore, broker: Broker) -> None:
    lease = leading(store)
    for due in (0.0, 0.000001, 1_700_000_000.123457, 4_102_444_800.999999):
        store.note(lease, {"a": EntryState("s", due, due, due)})
        row = store.row("a")
        assert row is not None
        assert row.state == EntryState("s", due, due, due)
        assert store.fire(lease, [firing("a", due)], broker.sender)
        assert store.slots("a")[0].due == due


def test_error_text_that_databases_refuse_is_sanitised(store: ScheduleStore) -> None:
    """An error of user code may contain any text."""
    lease = leading(store)
    store.note(lease, {"a": state(1, "a\0b \ud800 ü")})
    row = store.row("a")
    assert row is not None
    assert row.state is not None
    assert row.state.error is not None
    assert row.state.error.startswith("a")
    assert row.state.error.endswith("ü")


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 10_000], ids=["none", "nul", "lone", "long"])
def test_invalid_name_is_not_found(store: ScheduleStore, name: str) -> None:
    assert store.row(name) is None
    assert store.slots(name) == []


# -- slots --


def test_slot_is_taken_once(store: ScheduleStore, broker: Broker, clock: FakeClock) -> None:
    lease = leading(store)
    one, other = firing("a", DUE, 1, count=2), firing("b", DUE, 2)
    assert store.fire(lease, [one, other], broker.sender) == [one, other]
    assert sent(broker) == 3
    later = firing("a", DUE + 1, 3)
    assert store.fire(lease, [firing("a", DUE, 4), later], broker.sender) == [later]
    assert sent(broker) == 4
    assert store.slots("a") == [
        Slot("a", DUE + 1, clock.now(), "task-3", SENT),
        Slot("a", DUE, clock.now(), "task-1", SENT),
    ]
    assert store.fire(lease, [firing("a", DUE), firing("a", DUE + 1)], broker.sender) == []
    assert sent(broker) == 4
    assert store.pending() == []


def test_one_of_two_calls_for_a_due_time_is_made(store: ScheduleStore, broker: Broker) -> None:
    lease = leading(store)
    made = store.fire(lease, [firing("a", DUE, 1), firing("a", DUE, 2)], broker.sender)
    assert [each.task_id for each in made] == ["task-1"]
    assert sent(broker) == 1
    assert [slot.task_id for slot in store.slots("a")] == ["task-1"]


def test_fire_stores_the_states(store: ScheduleStore, broker: Broker) -> None:
    lease = leading(store)
    assert store.edit("a", b"1", 0)
    store.fire(lease, [firing("a", DUE, 1), firing("a", DUE + 1, 2)], broker.sender)
    row = store.row("a")
    assert row is not None
    assert (row.edit, row.state) == (b"1", state(2))
    store.fire(lease, [firing("a", DUE, 3)], broker.sender)
    row = store.row("a")
    assert row is not None
    assert row.state == state(3), "even if the slot was already taken"


def test_empty_arguments_are_accepted(store: ScheduleStore, broker: Broker) -> None:
    lease = leading(store)
    assert store.fire(lease, [], broker.sender) == []
    store.note(lease, {})
    store.sent(lease, [])
    assert store.sweep(DUE) == 0


def test_prepare_sends_no_calls(store: ScheduleStore, broker: Broker) -> None:
    lease = leading(store)
    store.prepare(broker.sender)
    store.prepare(broker.sender)
    assert store.pending() == store.rows() == []
    assert sent(broker) == 0
    assert len(store.fire(lease, [firing("a")], broker.sender)) == sent(broker) == 1


@pytest.mark.parametrize("server", [PostgreSQLSchedulePlace, MySQLSchedulePlace])
def test_prepare_creates_the_tables_of_the_broker(
    server: type[ServerPlace], tmp_path: Path, clock: FakeClock
) -> None:
    place = server(tmp_path)
    with closing(place.store(clock)) as store, closing(place.broker()) as broker:
        leading(store)
        assert not place.has("qworker_message")
        store.prepare(broker.sender)
        assert place.has("qworker_message")
    place.clear()


BEATING = """
from qworker import QWorker
from qworker.beat.service import Beat
url = place.place.url
scheme, _, rest = url.partition("://")
app = QWorker("p", broker=url if arguments[0] == "broker" else "memory://", result_backend=f"db+{url}",
              beat_store=None if arguments[0] == "broker" else f"db+{url}", timezone="UTC",
              beat_schedule={"a": {"task": "b", "schedule": 0.001}})
beat = Beat(app, print)
beat.step(0.0)
beat.clock.sleep(0.01)
beat.step(0.1)
assert beat.fired, "no call was made"
print(sorted({"sqlalchemy", "pymysql" if scheme.startswith("postgres") else "psycopg"} & set(sys.modules)))
"""


@pytest.mark.parametrize("server", ["postgresql", "mysql"])
@pytest.mark.parametrize("where", ["broker", "store"])
def test_beat_does_not_import_sqlalchemy(server: str, where: str, tmp_path: Path) -> None:
    place = SCHEDULE_PLACES[server](tmp_path)
    output, _ = start_process(server, tmp_path, BEATING, where).communicate(timeout=PATIENCE)
    assert output == "[]\n"
    place.clear()


def test_many_calls_at_once(store: ScheduleStore, broker: Broker) -> None:
    lease = leading(store)
    firings = [firing(f"entry {number % 700}", DUE + number) for number in range(2100)]
    assert store.fire(lease, firings, broker.sender) == firings
    assert sent(broker) == 2100
    assert store.fire(lease, firings, broker.sender) == []
    assert len(store.slots("entry 3")) == 3
    assert len(store.rows()) == 700


def test_one_of_many_threads_makes_each_call(place: SchedulePlace, store: ScheduleStore) -> None:
    lease = leading(store)
    stores, brokers = [place.store() for _ in range(6)], [place.broker() for _ in range(6)]
    made = at_once(
        6,
        lambda number: stores[number].fire(
            lease, [firing("a", DUE, number), firing("b", DUE, number)], brokers[number].sender
        ),
    )
    assert sorted(each.name for some in made for each in some) == ["a", "b"]
    assert sent(brokers[0]) == 2
    for each in (*stores, *brokers):
        each.close()


FIRING = """
lease = store.look()
print("ready", flush=True)
sys.stdin.readline()
made = [store.fire(lease, [firing("a", DUE + number)], broker.sender) for number in range(20)]
print(sum(map(len, made)))
"""


def test_one_of_many_processes_makes_each_call(
    kind: str, tmp_path: Path, store: ScheduleStore, broker: Broker
) -> None:
    leading(store)
    processes = [start_process(kind, tmp_path, FIRING) for _ in range(3)]
    assert sum(map(int, outputs(processes))) == 20
    assert sent(broker) == 20
    assert len(store.slots("a")) == 20


def test_is_with_tells_whether_the_store_is_the_broker(
    place: SchedulePlace, store: ScheduleStore, broker: Broker
) -> None:
    assert store.is_with(broker.sender) is place.together
    assert not store.is_with(UnavailableSender())


def test_unavailable_broker_leaves_pending_slots_or_none(
    place: SchedulePlace, store: ScheduleStore, broker: Broker, clock: FakeClock
) -> None:
    lease = leading(store)
    with pytest.raises(BrokerUnavailable):
        store.fire(lease, [firing("a"), firing("b", DUE + 1, 2)], UnavailableSender())
    if place.one_process:
        assert (store.pending(), store.slots("a")) == ([], [])
        assert len(store.fire(lease, [firing("a")], broker.sender)) == 1
        return
    pending = [
        Slot("a", DUE, clock.now(), "task-1", PENDING),
        Slot("b", DUE + 1, clock.now(), "task-2", PENDING),
    ]
    assert sorted(store.pending()) == pending
    assert store.slots("a") == pending[:1]
    assert store.fire(lease, [firing("a")], broker.sender) == []
    store.sent(lease, [("a", DUE), ("nobody", DUE)])
    assert store.pending() == pending[1:]
    assert [slot.outcome for slot in store.slots("a")] == [SENT]
    store.sent(lease, [("b", DUE + 1)])
    assert store.pending() == []


def test_slots_are_listed_newest_first(store: ScheduleStore, broker: Broker) -> None:
    lease = leading(store)
    dues = [DUE + number for number in (3, 1, 4, 0, 2, 10)]
    store.fire(lease, [firing("a", due) for due in dues], broker.sender)
    store.fire(lease, [firing("b", DUE + 20)], broker.sender)
    assert [slot.due for slot in store.slots("a")] == sorted(dues, reverse=True)
    assert [slot.due for slot in store.slots("a", 2)] == [DUE + 10, DUE + 4]
    assert store.slots("a", 0) == []


def test_old_slots_are_swept_in_portions(store: ScheduleStore, broker: Broker) -> None:
    lease = leading(store)
    store.fire(lease, [firing(f"e{number % 3}", DUE + number) for number in range(900)], broker.sender)
    assert store.sweep(DUE) == 0
    counts = []
    while count := store.sweep(DUE + 850):
        counts.append(count)
    assert sum(counts) == 850
    assert max(counts) <= 1000
    left = sorted(slot.due for name in ("e0", "e1", "e2") for slot in store.slots(name, 1000))
    assert left == [DUE + number for number in range(850, 900)]
    assert len(store.fire(lease, [firing("e0", DUE)], broker.sender)) == 1, "its slot was deleted"


def test_pending_slots_are_not_swept(kept: SchedulePlace, store: ScheduleStore, broker: Broker) -> None:
    lease = leading(store)
    with suppress(BrokerUnavailable):
        store.fire(lease, [firing("a", DUE + number) for number in range(1200)], UnavailableSender())
    store.fire(lease, [firing("a", DUE + 5000)], broker.sender)
    assert store.sweep(DUE + 10_000) == 1, "pending slots do not block others"
    assert store.sweep(DUE + 10_000) == 0
    assert len(store.pending()) == 1200
    store.sent(lease, [(slot.name, slot.due) for slot in store.pending()])
    while store.sweep(DUE + 10_000):
        pass
    assert store.slots("a") == []


# -- names and scopes --


def test_similar_names_are_distinguished(place: SchedulePlace, store: ScheduleStore, broker: Broker) -> None:
    lease = leading(store)
    for number, name in enumerate(NAMES):
        assert store.edit(name, b"%d" % number, 0), name
    store.note(lease, {name: state(number) for number, name in enumerate(NAMES)})
    made = store.fire(lease, [firing(name, DUE, number) for number, name in enumerate(NAMES)], broker.sender)
    assert [each.name for each in made] == list(NAMES)
    found = {row.name: (row.edit, row.state) for row in store.rows()}
    assert found == {name: (b"%d" % number, state(number)) for number, name in enumerate(NAMES)}
    for number, name in enumerate(NAMES):
        row = store.row(name)
        assert row is not None
        assert (row.name, row.edit) == (name, b"%d" % number)
        assert [(slot.name, slot.task_id) for slot in store.slots(name)] == [(name, f"task-{number}")]
    assert store.sweep(DUE + 1) == len(NAMES)
    assert [name for name in NAMES if store.slots(name)] == []


def test_pending_slots_of_similar_names_are_distinguished(kept: SchedulePlace, store: ScheduleStore) -> None:
    lease = leading(store)
    with suppress(BrokerUnavailable):
        store.fire(
            lease, [firing(name, DUE, number) for number, name in enumerate(NAMES)], UnavailableSender()
        )
    pending = store.pending()
    assert {(slot.name, slot.task_id) for slot in pending} == {
        (name, f"task-{number}") for number, name in enumerate(NAMES)
    }
    for name in NAMES:
        store.sent(lease, [(name, DUE)])
        assert name not in {slot.name for slot in store.pending()}
    assert store.pending() == []


@pytest.mark.parametrize(
    ("one", "two"),
    [("proj", "Proj"), ("a", "a.slots"), ("a.b", "a%2Eb"), ("ä", "a"), ("a%", "a%25")],
)
def test_scopes_are_independent(place: SchedulePlace, broker: Broker, one: str, two: str) -> None:
    ours, theirs = place.store(scope=one), place.store(scope=two)
    lease = leading(ours)
    assert theirs.look() == Lease()
    assert ours.edit("lease", b"1", 0)
    assert ours.edit("a", b"1", 0)
    ours.fire(lease, [firing(name) for name in ("a", "lease", "states", "dues")], broker.sender)
    with suppress(BrokerUnavailable):
        ours.fire(lease, [firing("a", DUE + 1)], UnavailableSender())
    assert (theirs.look(), theirs.rows(), theirs.pending()) == (Lease(), [], [])
    assert theirs.slots("a") == []
    assert theirs.sweep(DUE + 100) == 0
    mine = leading(theirs, "they")
    with pytest.raises(LeaseLost):
        theirs.note(lease, {"a": state()})
    assert [each.name for each in theirs.fire(mine, [firing("a")], broker.sender)] == ["a"]
    assert theirs.edit("a", b"2", 0)
    row = ours.row("a")
    assert row is not None
    assert row.edit == b"1"
    for each in (ours, theirs):
        each.close()


# -- damage --


@pytest.mark.parametrize("how", ["empty", "lose"])
def test_emptied_store_can_be_used(
    kept: SchedulePlace, store: ScheduleStore, broker: Broker, how: str
) -> None:
    lease = leading(store)
    assert store.edit("a", b"1", 0)
    store.fire(lease, [firing("a")], broker.sender)
    getattr(kept, how)()
    for _ in range(2):  # the first call may raise
        with suppress(BackendError):
            assert store.look() == Lease()
    assert store.renew(lease).holder == ""
    with pytest.raises(LeaseLost):
        store.note(lease, {"a": state()})
    assert store.rows() == []
    new = leading(store, "they")
    with pytest.raises(LeaseLost):
        store.fire(lease, [firing("a")], broker.sender)
    assert store.edit("a", b"2", 0)
    assert len(store.fire(new, [firing("a")], broker.sender)) == 1
    assert [row.edit for row in store.rows()] == [b"2"]


@pytest.mark.parametrize("how", ["empty", "lose"])
def test_emptied_store_accepts_edits(kept: SchedulePlace, store: ScheduleStore, how: str) -> None:
    assert store.edit("a", b"1", 0)
    getattr(kept, how)()
    if how == "lose":
        with suppress(BackendError):
            store.row("a")
    assert store.edit("a", b"2", 0)
    row = store.row("a")
    assert row is not None
    assert store.look().version == row.version > 0


@pytest.mark.parametrize("text", [b"{", b"\xff\x00", b"[]", b'{"fields": 1}', b'"' + b"x" * 1000 + b'"'])
def test_damaged_edit_does_not_affect_others(kept: SchedulePlace, store: ScheduleStore, text: bytes) -> None:
    good = b'{"fields":{"task":"t","schedule":{"every":5}},"added":true}'
    assert store.edit("a", good, 0)
    assert store.edit("b", good, 0)
    kept.spoil_edit("a", text)
    rows = store.rows()
    assert {row.name: row.edit for row in rows} == {"a": text, "b": good}
    found = catalog({}, rows)
    assert found["a"].entry is None
    assert found["a"].error is not None
    assert found["b"].entry is not None


@pytest.mark.parametrize("last_due", [2**62, -(2**62), 10**18])
def test_invalid_instant_is_read_as_no_state(
    kept: SchedulePlace, store: ScheduleStore, last_due: int
) -> None:
    store.note(leading(store), {"a": state(), "b": state()})
    kept.spoil_state("a", last_due)
    found = {row.name: row.state for row in store.rows()}
    assert found == {"a": None, "b": state()}


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"null", b"[]", b"{}", b"7", b"\xff", b"[" * 100_000, b'["s",0,null,null,null,0]'),
        *(b'["s",1e999,null,null,null,0,null]', b'["s",NaN,null,null,null,0,null]'),
        *(b'["s","x",null,null,null,0,null]', b'["s",0,"x",null,null,0,null]'),
        *(b'["s",0,null,[],null,0,null]', b'["s",0,null,null,null,1e999,null]'),
    ],
)
def test_invalid_state_on_redis_is_read_as_no_state(tmp_path: Path, text: bytes) -> None:
    place = RedisSchedulePlace(tmp_path)
    store = place.store()
    try:
        store.note(leading(store), {"a": state(), "b": state()})
        place.redis.client.hset(place.key("states"), "a", text)
        assert {row.name: row.state for row in store.rows()} == {"a": None, "b": state()}
        row = store.row("a")
        assert row is None or row.state is None
    finally:
        store.close()
        place.clear()


def test_invalid_values_on_redis_are_ignored(tmp_path: Path) -> None:
    place = RedisSchedulePlace(tmp_path)
    store, broker = place.store(), place.broker()
    client = place.redis.client
    try:
        lease = leading(store)
        store.fire(lease, [firing("a")], broker.sender)
        with suppress(BrokerUnavailable):
            store.fire(lease, [firing("a", DUE + 1)], UnavailableSender())
        invalid = {b"x": b"[1,2]", b"5": b"{", b"6": b"[1]", b"7": b'["x",""]', b"8": b"\xff"}
        client.hset(place.key("slots.a"), mapping=invalid)
        client.zadd(place.key("pending"), {b"nonsense": 1, b"5 a": 5, b"6 nobody": 6, b"9 \xff": 7})
        client.zadd(place.key("dues"), {b"nonsense": 1, b"5 a": 5})
        client.hset(place.key("states"), b"\xff\xfe", json.dumps(state()))
        client.zadd(place.key("versions"), {b"\xff\xfd": 5})
        assert [slot.due for slot in store.slots("a")] == [DUE + 1, DUE]
        assert [slot.due for slot in store.pending()] == [DUE + 1]
        assert [row.name for row in store.rows()] == ["a"]
        while store.sweep(DUE + 10):
            pass
        assert [slot.due for slot in store.pending()] == [DUE + 1]
        client.hset(place.key("lease"), mapping={"generation": "x", "beats": "", "version": "invalid"})
        assert store.look() == Lease("us", 0, 0, 0, "about us")
        assert leading(store, "they").generation == 1
    finally:
        store.close()
        broker.close()
        place.clear()


# -- crashes and forks --

CRASHING = """
lease = leading(store, "first")
store.fire(lease, [firing("a", DUE, 1, count=2), firing("b", DUE, 2)], broker.sender)
print("alive")
"""


def test_crash_while_firing(
    kind: str, tmp_path: Path, place: SchedulePlace, store: ScheduleStore, broker: Broker, point: str
) -> None:
    hit = tmp_path / "hit"
    other = start_process(kind, tmp_path, CRASHING, crash_at=f"{point}@{hit}")
    output, _ = other.communicate(timeout=PATIENCE)
    assert (other.returncode, output, hit.exists()) == (-signal.SIGKILL, "", True)
    slots = [slot for name in ("a", "b") for slot in store.slots(name)]
    assert len(slots) in (0, 2)
    assert [row.state is not None for row in store.rows()] == [True] * len(slots)
    lease = leading(store, "second")
    if place.together:
        assert sent(broker) == (3 if slots else 0)
        assert [slot.outcome for slot in slots] == [SENT] * len(slots)
        assert store.pending() == []
    else:
        assert sent(broker) == (3 if point == "entries-sent" else 0)
        has_pending_slots = point != "slots-taken"
        assert sorted(store.pending()) == slots
        assert bool(slots) is has_pending_slots
        store.sent(lease, [(slot.name, slot.due) for slot in slots])
        assert store.pending() == []
    made = store.fire(lease, [firing("a", DUE, 1, count=2), firing("b", DUE, 2)], broker.sender)
    assert len(made) == 2 - len(slots)


FORKING = """
import os
lease = leading(store, "parent")
store.fire(lease, [firing("a")], broker.sender)
child = os.fork()
if not child:
    try:
        for _ in range(100):
            assert store.look().holder == "parent"
            assert store.row("a").name == "a"
        assert store.edit("child", b"1", 0)
        assert len(store.fire(lease, [firing("b")], broker.sender)) == 1
        store.close()
    finally:
        os._exit(0 if store.row("child") else 1)
ended = 0
while not ended:
    assert store.renew(lease).holder == "parent"
    store.note(lease, {"p": state()})
    ended, status = os.waitpid(child, os.WNOHANG)
assert status == 0
assert store.renew(lease).holder == "parent"
assert len(store.fire(lease, [firing("c")], broker.sender)) == 1
assert sorted(row.name for row in store.rows()) == ["a", "b", "c", "child", "p"]
print("done")
"""


def test_forked_child_has_its_own_connections(
    kind: str, tmp_path: Path, place: SchedulePlace, broker: Broker
) -> None:
    other = start_process(kind, tmp_path, FORKING)
    output, _ = other.communicate(timeout=PATIENCE)
    assert (other.returncode, output) == (0, "done\n")
    assert sent(broker) == 3


def test_closed_store_reopens_on_use(store: ScheduleStore) -> None:
    leading(store)
    store.close()
    store.close()
    assert store.look().holder == "us"
