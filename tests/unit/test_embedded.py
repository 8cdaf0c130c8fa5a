"""The SQLite file of the embedded broker: its location, faults, result upserts, and notification pipes."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import states
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.transports.sql.embedded import (
    NEXT_TAG,
    SCHEMA_VERSION,
    UPSERT_RESULT,
    Database,
    Handle,
    NotificationPipe,
    Notifier,
    database_path,
    file_system,
    transaction,
)
from qworker.transports.sql.embedded.database import busy
from qworker.transports.sql.embedded.notify import unread
from tests.support.waiting import readable

# -- location --


@pytest.mark.parametrize("url", [None, "", "sqlite:", "sqlite://", "sqlite:///"])
def test_default_path_is_in_the_working_directory(url: str | None) -> None:
    assert database_path(url) == Path.cwd() / ".qworker" / "qworker.db"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///queue.db", Path.cwd() / "queue.db"),
        ("sqlite:///a/b.db", Path.cwd() / "a/b.db"),
        ("sqlite:////var/lib/q.db", Path("/var/lib/q.db")),
        ("sqlite:////var/with%20space.db", Path("/var/with space.db")),
    ],
)
def test_database_path_of_a_url(url: str, path: Path) -> None:
    assert database_path(url) == path
    assert database_path(url).is_absolute()


@pytest.mark.parametrize("url", ["redis://localhost", "sqlite://host/q.db", "sqlite:q.db", "/var/q.db"])
def test_invalid_url_is_refused_with_examples(url: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"sqlite:///relative/path\.db or sqlite:////absolute/path\.db"
    ) as caught:
        database_path(url)
    assert caught.value.setting == "broker_url"
    assert repr(url) in str(caught.value)


MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:26 / /srv/shared rw,relatime - nfs4 server:/export rw,vers=4.2
31 30 0:27 / /srv/shared/fast rw - xfs /dev/vdb rw
32 22 0:28 / /mnt/with\\040space rw shared:2 master:1 - cifs //server/share rw
33 22 0:29 / /data rw - ext4 /dev/vdc rw
34 22 0:30 / /data rw - fuse.sshfs user@host:/ rw
35 22 0:31 / /back\\134slash rw - tmpfs none rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/q.db", "ext4"),
        ("/srv/shared/q.db", "nfs4"),
        ("/srv/shared", "nfs4"),
        ("/srv/sharedness/q.db", "ext4"),
        ("/srv/shared/fast/q.db", "xfs"),
        ("/mnt/with space/q.db", "cifs"),
        ("/data/q.db", "fuse.sshfs"),  # the later mount hides the earlier one
        ("/back\\slash/q.db", "tmpfs"),
    ],
)
def test_file_system_is_that_of_the_nearest_mount(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind


def test_unknown_file_system_is_empty() -> None:
    assert file_system(Path("/anything"), "") == ""
    assert file_system(Path("/anything"), "garbage\n\n1 2 3") == ""


def test_file_system_reads_the_mounts_of_the_system(tmp_path: Path) -> None:
    assert file_system(tmp_path) in {"ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "f2fs", ""}


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "glusterfs", "fuse.sshfs"])
def test_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    database = Database(tmp_path / "sub" / "q.db")
    with pytest.raises(
        ConfigurationError, match=rf"q\.db is on a network file system \({kind}\).*use a local path"
    ):
        database.prepare(f"30 22 0:26 / {tmp_path} rw - {kind} server:/export rw\n")
    assert not (tmp_path / "sub").exists()


def test_symlink_to_a_network_file_system_is_refused(tmp_path: Path) -> None:
    far = tmp_path / "far"
    far.mkdir()
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "q.db").symlink_to(far / "q.db")
    with pytest.raises(ConfigurationError, match="network file system"):
        Database(tmp_path / "near" / "q.db").prepare(f"30 22 0:26 / {far} rw - nfs4 server:/export rw\n")


# -- creation, migration, faults --


def test_new_file_is_created_with_its_directories(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "q.db"
    with closing(Database(path).connect()) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    with closing(Database(path).connect()) as connection:  # and opened again
        assert connection.execute("SELECT count(*) FROM message").fetchone() == (0,)


@pytest.mark.parametrize(("asked", "level"), [(None, 2), ("NORMAL", 1), ("FULL", 2)])
def test_synchronous_level_is_as_requested(tmp_path: Path, asked: str | None, level: int) -> None:
    with closing(Database(tmp_path / "q.db", "FULL").connect(asked)) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)


def test_migration_adds_missing_tables(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with closing(Database(path).connect()) as connection:
        connection.execute("INSERT INTO key_value VALUES ('kept', 'x', NULL)")
        connection.execute("DROP TABLE dead")
        connection.execute("PRAGMA user_version = 1")
    with closing(Database(path).connect()) as connection:
        assert connection.execute("SELECT count(*) FROM dead").fetchone() == (0,)
        assert connection.execute("SELECT key FROM key_value").fetchall() == [("kept",)]
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_migration_adds_joins(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with closing(Database(path).connect()) as connection:
        connection.execute("DROP TABLE joins")
        connection.execute("DROP TABLE part")
        connection.execute("PRAGMA user_version = 3")
    with closing(Database(path).connect()) as connection:
        counts = "SELECT (SELECT count(*) FROM joins), (SELECT count(*) FROM part)"
        assert connection.execute(counts).fetchone() == (0, 0)


def test_migration_adds_the_presence_column(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with closing(Database(path).connect()) as connection:
        connection.execute("ALTER TABLE owner DROP COLUMN presence")
        connection.execute(
            "INSERT INTO owner (name, pid, boot, queues, concurrency, lease_until, started, marks) "
            "VALUES ('w@h', 1, '', 'q', 1, 0, 0, '')"
        )
        connection.execute("PRAGMA user_version = 4")
    with closing(Database(path).connect()) as connection:
        assert connection.execute("SELECT name, presence FROM owner").fetchall() == [("w@h", "")]
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_migration_continues_the_sequence_of_tags(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with closing(Database(path).connect()) as connection:
        for thing in ("TRIGGER message_highest", "TABLE highest"):
            connection.execute(f"DROP {thing}")
        connection.execute("INSERT INTO sqlite_sequence VALUES ('message', 41)")  # its message 41 was acked
        connection.execute("PRAGMA user_version = 2")
    with closing(Database(path).connect()) as connection:
        assert connection.execute(f"SELECT {NEXT_TAG}").fetchone() == (42,)


def test_file_of_a_newer_qworker_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(ConfigurationError, match=r"q\.db was written by a newer qworker .*: upgrade qworker"):
        Database(path).connect()


@pytest.mark.parametrize(
    "content", [b"this is no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 4000]
)
def test_file_that_is_not_a_database_is_refused_unchanged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "q.db"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"q\.db is not a sound SQLite database .*: move it aside"):
        Database(path).connect()
    assert path.read_bytes() == content


def test_corruption_found_later_is_reported(tmp_path: Path) -> None:
    handle = Handle(Database(tmp_path / "q.db"))
    with handle as connection, transaction(connection):
        connection.execute("CREATE TABLE filler AS SELECT randomblob(100000)")
    handle.close()
    content = bytearray((tmp_path / "q.db").read_bytes())
    content[4096:] = b"\xee" * (len(content) - 4096)
    (tmp_path / "q.db").write_bytes(content)
    with pytest.raises(ConfigurationError, match="is not a sound SQLite database"), handle as connection:
        connection.execute("SELECT * FROM message").fetchall()


def test_directory_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot write to .*: Is a directory"):
        Database(tmp_path).connect()


def test_file_in_place_of_the_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigurationError, match=r"cannot write to .*/file/q\.db: .* Set broker_url to sqlite:////"
    ):
        Database(tmp_path / "file" / "q.db").connect()


@pytest.mark.parametrize("place", ["/proc/qworker", "/sys/qworker"])
def test_unwritable_directory_is_reported(place: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot write to {place}/q.db: .* Set broker_url"):
        Database(Path(place) / "q.db").connect()


def test_full_disk_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    handle = Handle(Database(tmp_path / "q.db"))
    with handle as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        connection.execute("INSERT INTO key_value VALUES ('before', 'kept', NULL)")
    full = pytest.raises(
        BrokerUnavailable, match=r"the disk of .*q\.db is full: free some space; nothing was written"
    )
    with full, handle as connection, transaction(connection):
        connection.execute("INSERT INTO key_value VALUES ('big', ?, NULL)", ("x" * 100_000,))
    with handle as connection:
        assert connection.execute("SELECT key FROM key_value").fetchall() == [("before",)]
        connection.execute("INSERT INTO key_value VALUES ('after', 'x', NULL)")
    handle.close()


def test_locked_file_is_reported_after_the_timeout(tmp_path: Path) -> None:
    handle = Handle(Database(tmp_path / "q.db"))
    with closing(Database(tmp_path / "q.db").connect()) as other:
        other.execute("BEGIN IMMEDIATE")
        locked = pytest.raises(BrokerUnavailable, match="was locked by another process")
        with locked, handle as connection, transaction(connection, timeout=0.01):
            pytest.fail("two writers at once")
        other.execute("ROLLBACK")
    with handle as connection, transaction(connection):
        connection.execute("INSERT INTO key_value VALUES ('a', 'b', NULL)")
    handle.close()


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY, sqlite3.SQLITE_BUSY_SNAPSHOT]
)
def test_all_busy_codes_are_recognised(code: int) -> None:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    assert busy(error)
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    assert not busy(error)


# -- transactions and handles --


def _insert_and_fail(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO key_value VALUES ('a', 'b', NULL)")
    raise ZeroDivisionError


def test_failed_transaction_is_rolled_back(tmp_path: Path) -> None:
    handle = Handle(Database(tmp_path / "q.db"))
    with pytest.raises(ZeroDivisionError), handle as connection, transaction(connection):
        _insert_and_fail(connection)
    with handle as connection:
        assert connection.in_transaction is False
        assert connection.execute("SELECT count(*) FROM key_value").fetchone() == (0,)
    handle.close()


def test_handle_is_used_by_one_thread_at_a_time(tmp_path: Path) -> None:
    handle = Handle(Database(tmp_path / "q.db"))
    inside: list[int] = []

    def use() -> None:
        for _ in range(50):
            with handle as connection:
                inside.append(1)
                connection.execute("SELECT 1").fetchone()
                assert len(inside) == 1
                inside.pop()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handle.close()


def test_closed_handle_reopens(tmp_path: Path) -> None:
    handle = Handle(Database(tmp_path / "q.db"))
    with handle as first:
        pass
    with handle as second:
        assert second is first
    handle.close()
    handle.close()
    with handle as third:
        assert third is not first
        assert third.execute("SELECT 1").fetchone() == (1,)
    handle.close()


def test_handle_releases_its_lock_when_opening_fails(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    path.write_bytes(b"no database" * 100)
    handle = Handle(Database(path))
    for _ in range(2):
        with pytest.raises(ConfigurationError), handle:
            pytest.fail("opened what is no database")
    path.unlink()
    with handle as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    handle.close()


@pytest.mark.parametrize("replaced", [True, False])
def test_handle_switches_to_a_new_file_at_its_path(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "q.db"
    handle = Handle(Database(path))
    with handle as connection:
        connection.execute("INSERT INTO key_value VALUES ('old', 'x', NULL)")
    for name in ("q.db", "q.db-wal", "q.db-shm"):
        (tmp_path / name).rename(tmp_path / f"aside-{name}")
    if replaced:
        with closing(Database(path).connect()) as other:
            other.execute("INSERT INTO key_value VALUES ('new', 'x', NULL)")
    with handle as connection:
        connection.execute("INSERT INTO key_value VALUES ('here', 'x', NULL)")
    with closing(sqlite3.connect(path)) as other:
        found = {key for (key,) in other.execute("SELECT key FROM key_value")}
    assert found == ({"new", "here"} if replaced else {"here"})
    handle.close()


def test_pinned_handle_refuses_another_file(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    handle = Handle(Database(path))
    with handle:
        handle.pinned = handle.file
    with handle:
        pass
    for name in ("q.db", "q.db-wal", "q.db-shm"):
        (tmp_path / name).rename(tmp_path / f"aside-{name}")
    for _ in range(2):
        with pytest.raises(LeaseLost, match=r"q\.db was replaced by another file"), handle:
            pytest.fail("took another file")
    handle.pinned = None
    with handle as connection:
        assert connection.execute("SELECT count(*) FROM message").fetchone() == (0,)
    handle.close()


def test_no_file_is_created_next_to_a_leftover_wal(tmp_path: Path) -> None:
    """A new file next to the old WAL would reset it, and lose what was committed."""
    path = tmp_path / "q.db"
    handle = Handle(Database(path))
    with handle as connection:
        connection.execute("INSERT INTO key_value VALUES ('kept', 'x', NULL)")
    path.rename(tmp_path / "aside.db")
    for refused in (handle, Handle(Database(path))):
        with (
            pytest.raises(BrokerUnavailable, match=r"q\.db is gone, and its log q\.db-wal still exists"),
            refused,
        ):
            pytest.fail("made a new file")
    (tmp_path / "aside.db").rename(path)
    with handle as connection:
        assert connection.execute("SELECT key FROM key_value").fetchall() == [("kept",)]
    handle.close()


def test_file_is_created_next_to_an_empty_wal(tmp_path: Path) -> None:
    (tmp_path / "q.db-wal").touch()
    with closing(Database(tmp_path / "q.db").connect()) as connection:
        assert connection.execute("SELECT count(*) FROM message").fetchone() == (0,)


def test_new_file_is_private_and_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    path, before = tmp_path / "q.db", os.umask(0o022)
    try:
        with closing(Database(path).connect()) as connection:
            connection.execute("INSERT INTO key_value VALUES ('x', 'x', NULL)")
            modes = {
                entry.name: stat.S_IMODE(entry.stat().st_mode)
                for entry in tmp_path.iterdir()
                if entry.is_file()
            }
        assert modes == {"q.db": 0o600, "q.db-wal": 0o600, "q.db-shm": 0o600}
        path.chmod(0o660)
        with closing(Database(path).connect()) as connection:
            connection.execute("INSERT INTO key_value VALUES ('y', 'x', NULL)")
            assert {
                stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.glob("q.db*") if entry.is_file()
            } == {0o660}
    finally:
        os.umask(before)


# -- results --

STATUS = st.sampled_from([*sorted(states.ALL_STATES), "PROGRESS", "x"])


@given(old=STATUS, new=STATUS)
def test_result_upsert_follows_state_precedence(old: str, new: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE TABLE result (task_id TEXT PRIMARY KEY, status, payload, expires) WITHOUT ROWID"
        )
        assert connection.execute(UPSERT_RESULT, ("id", old, b"old", None)).rowcount == 1
        replaced = connection.execute(UPSERT_RESULT, ("id", new, b"new", 5.0)).rowcount == 1
        assert replaced == states.may_replace(old, new)
        kept = connection.execute("SELECT status, payload, expires FROM result").fetchall()
        assert kept == [(new, b"new", 5.0) if replaced else (old, b"old", None)]


# -- notification pipes --


@pytest.fixture
def pipes(tmp_path: Path) -> Path:
    path = tmp_path / "pipes"
    path.mkdir()
    return path


def test_all_pipes_of_a_kind_are_notified(pipes: Path) -> None:
    notifier = Notifier(pipes, "message")
    first, second, other = [NotificationPipe(pipes, kind) for kind in ("message", "message", "result")]
    notifier.notify()
    assert (first.wait(10), second.wait(10), other.wait(0)) == (True, True, False)
    assert (first.wait(0), first.clear()) == (False, b"")


def test_pipe_created_later_is_notified(pipes: Path) -> None:
    notifier = Notifier(pipes, "message")
    for _ in range(20):  # within one timestamp of the file system
        pipe = NotificationPipe(pipes, "message")
        notifier.notify()
        assert pipe.clear()
        pipe.close()


def test_pipe_can_be_polled_by_file_descriptor(pipes: Path) -> None:
    pipe = NotificationPipe(pipes, "message")
    assert readable(pipe.fileno(), seconds=0) == []
    Notifier(pipes, "message").notify()
    assert readable(pipe.fileno()) == [pipe.fileno()]
    pipe.close()


def test_closed_pipe_is_removed(pipes: Path) -> None:
    notifier = Notifier(pipes, "message")
    pipe = NotificationPipe(pipes, "message")
    notifier.notify()
    pipe.close()
    pipe.close()
    assert list(pipes.iterdir()) == []
    notifier.notify()
    assert pipe.fileno() == -1
    assert pipe.clear() == b""


@pytest.mark.parametrize("known", [True, False])
def test_pipe_of_a_dead_process_is_removed(pipes: Path, known: bool) -> None:
    notifier = Notifier(pipes, "message")
    pipe, dead = NotificationPipe(pipes, "message"), NotificationPipe(pipes, "message")
    if known:
        notifier.notify()
    os.close(dead.fileno())  # as when its process is killed
    notifier.notify()
    notifier.notify()
    assert [path.name for path in pipes.iterdir()] == [pipe._path.name]
    assert pipe.clear()
    pipe.close()


def test_embedded_broker_can_be_imported_without_named_pipes() -> None:
    """As on Windows."""
    code = (
        "import sys; sys.modules |= {'fcntl': None, 'termios': None}; import qworker.transports.sql.embedded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- notifying one --

ODD = ("q", "a/b", "..", "nul\0", "\ud800", "x" * 5000, "")


def chosen(pipes: list[NotificationPipe]) -> list[int]:
    """Return the numbers of *pipes* that were notified, and read them."""
    return [number for number, pipe in enumerate(pipes) if pipe.clear()]


@pytest.mark.parametrize("queue", ODD, ids=ascii)
def test_one_idle_consumer_of_the_queue_is_notified(pipes: Path, queue: str) -> None:
    notifier = Notifier(pipes, "message")
    notifier.notify_one([queue])  # nobody waits
    consumers = [NotificationPipe(pipes, "message", ["z", queue]) for _ in range(3)]
    consumers.append(NotificationPipe(pipes, "message", ["z"]))
    found = []
    for _ in range(6):
        notifier.notify_one([queue])
        found += chosen(consumers)
    assert sorted(found) == [0, 0, 1, 1, 2, 2], "in turn"


def test_consumers_that_do_not_read_are_passed_over(pipes: Path) -> None:
    """As when their processes are stopped: each gets one notification at most."""
    notifier = Notifier(pipes, "message")
    stopped = [NotificationPipe(pipes, "message", ["q"]) for _ in range(3)]
    free = [NotificationPipe(pipes, "message", ["q"])]
    found = 0
    for _ in range(20):
        notifier.notify_one(["q"])
        found += len(chosen(free))
    assert found == 17
    assert [unread(pipe.fileno()) for pipe in stopped] == [1] * 3


def test_busy_consumers_are_passed_over(pipes: Path) -> None:
    notifier = Notifier(pipes, "message")
    consumers = [NotificationPipe(pipes, "message", ["q"]) for _ in range(4)]
    assert [pipe.become_busy() for pipe in consumers[:3]] == [False] * 3
    for _ in range(5):
        notifier.notify_one(["q"])
        assert chosen(consumers[3:]) == [0]
    assert [pipe.become_idle() for pipe in consumers] == [False] * 4
    notifier.notify_one(["q"])
    assert len(chosen(consumers)) == 1


def test_what_a_consumer_was_told_before_it_became_busy_is_passed_on(pipes: Path) -> None:
    notifier = Notifier(pipes, "message")
    busy = NotificationPipe(pipes, "message", ["q"])
    notifier.notify_one(["q"])
    assert busy.become_busy() is True
    assert busy.become_busy() is False
    other = NotificationPipe(pipes, "message", ["q"])
    notifier.notify_one(["q"], but=busy.name)
    assert other.clear()
    assert busy.become_idle() is True, "it may have to look all the same"
    assert busy.become_idle() is False


def test_a_notification_that_nobody_has_room_for_is_kept(pipes: Path) -> None:
    notifier = Notifier(pipes, "message")
    consumers = [NotificationPipe(pipes, "message", ["q"]) for _ in range(3)]
    assert not any(pipe.become_busy() for pipe in consumers)
    notifier.notify_one(["q"])
    assert sum(pipe.become_idle() for pipe in consumers) == 1


def test_consumer_of_more_queues_than_a_name_can_tell_is_always_notified(pipes: Path) -> None:
    notifier = Notifier(pipes, "message")
    many = NotificationPipe(pipes, "message", [f"q{number}" for number in range(1000)])
    other = NotificationPipe(pipes, "message", ["q7"])
    for _ in range(3):
        notifier.notify_one(["q7"])
        assert chosen([many, other]) == [0, 1]


def test_consumer_that_changes_its_queues_is_notified_of_them(pipes: Path) -> None:
    notifier = Notifier(pipes, "message")
    consumer = NotificationPipe(pipes, "message", ["a"])
    for queue in ("a", "b", "a", "c"):
        consumer.name_queues([queue])
        notifier.notify_one(["a", "b", "c"])
        assert consumer.clear() == b"!", "for one of them"
    consumer.close()
    assert list(pipes.iterdir()) == []


def test_consumers_of_several_queues_are_chosen_in_turn(pipes: Path) -> None:
    notifier = Notifier(pipes, "message")
    several = [NotificationPipe(pipes, "message", ["x"]) for _ in range(4)]
    alone = NotificationPipe(pipes, "message", ["y"])
    found = []
    for _ in range(8):
        for queue in ("x", "y"):
            notifier.notify_one([queue])
        found += chosen(several)
        assert alone.clear()
    assert sorted(found) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_an_interrupt_while_pipes_are_looked_for_silences_nobody(pipes: Path) -> None:
    class Interrupted(dict[str, int]):
        def values(self) -> Never:
            raise KeyboardInterrupt

    notifier = Notifier(pipes, "message")
    consumer = NotificationPipe(pipes, "message", ["q"])
    notifier._pipes = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        notifier.notify_one(["q"])
    notifier._pipes = dict(notifier._pipes)
    notifier.notify_one(["q"])
    assert consumer.clear()


def test_pipe_that_was_deleted_can_be_renamed(pipes: Path) -> None:
    consumer = NotificationPipe(pipes, "message", ["q"])
    for path in pipes.iterdir():
        path.unlink()
    consumer.name_queues(["q", "r"])
    assert not consumer.wait(0)
    consumer.close()


def test_dead_consumers_are_not_chosen(pipes: Path) -> None:
    notifier = Notifier(pipes, "message")
    dead, alive = [[NotificationPipe(pipes, "message", ["q"]) for _ in range(2)] for _ in range(2)]
    notifier.notify()
    assert chosen(alive) == [0, 1]
    for pipe in dead:
        os.close(pipe.fileno())  # as when its process is killed
    for _ in range(4):
        notifier.notify_one(["q"])
        assert len(chosen(alive)) == 1
    alive.append(NotificationPipe(pipes, "message", ["q"]))
    notifier.notify_one(["q"])
    assert len(list(pipes.iterdir())) == 3, "also those with something unread are removed"


def test_full_pipe_does_not_block_the_notifier(pipes: Path) -> None:
    pipe = NotificationPipe(pipes, "message")
    notifier = Notifier(pipes, "message")
    for _ in range(70_000):
        notifier.notify()
    assert pipe.wait(0)
    pipe.close()


def test_closed_notifier_reopens(pipes: Path) -> None:
    pipe, notifier = NotificationPipe(pipes, "message"), Notifier(pipes, "message")
    notifier.notify()
    notifier.close()
    notifier.close()
    pipe.clear()
    notifier.notify()
    assert pipe.wait(10)
    pipe.close()


def test_notifier_tolerates_a_missing_directory(tmp_path: Path) -> None:
    Notifier(tmp_path / "not there", "message").notify()


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_wait_polls_where_pipes_are_not_supported(
    pipes: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "mkfifo", refuse)  # like a file system without pipes
    pipe = NotificationPipe(pipes, "message")
    assert pipe.fileno() == -1
    assert pipe.wait(0) is True
    assert pipe.clear() == b""
    pipe.close()
