"""Counts of a spool directory: jobs by state, and arrivals and departures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qworker.spooler.administration import counts as counts_module
from qworker.spooler.administration.counts import JobCounter
from qworker.spooler.files.writing import Writer
from qworker.spooler.watching.directory import SpoolDirectory
from tests.support.spools import clock_of_files


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.mkdir()
    return path


@pytest.fixture
def counter(place: Path) -> Iterator[JobCounter]:
    with closing(JobCounter(str(place), clock=clock_of_files(60))) as found:
        yield found


def test_counts_of_an_empty_directory(counter: JobCounter) -> None:
    counts, flow = counter.look()
    assert counts == (0, 0, 0, 0, None, None, True)
    assert flow is None


def test_jobs_are_counted_by_state(place: Path, counter: JobCounter) -> None:
    clock = clock_of_files(60)
    writer = Writer(place, clock=clock)
    writer.write({"n": "1"})
    writer.write({"n": "2"}, priority=5, at=clock.now() - 90)
    writer.write({"n": "3"}, at=clock.now() + 100)
    writer.write({"n": "4"}, at=clock.now() + 50)
    (place / "other").touch()
    (place / "words").mkdir()
    (place / "words" / Path(writer.write({"n": "5"})).name).touch()
    with closing(SpoolDirectory(place, clock=clock)) as directory:
        first, second = directory.next(), directory.next()
        assert first is not None
        assert second is not None
        first.begin()
        second.set_aside("too often")
        counts, _ = counter.look()
    assert (counts.due, counts.running, counts.delayed, counts.dead) == (1, 1, 2, 1)
    assert counts.oldest == int(clock.now() - 90)
    assert counts.next_due == int(clock.now() + 50)


def test_flow_counts_changes_between_two_looks(place: Path, counter: JobCounter) -> None:
    counter.look()
    writer = Writer(place)
    for number in range(5):
        writer.write({"n": number})
    with closing(SpoolDirectory(place, clock=clock_of_files(60))) as directory:
        for _ in range(3):
            claim = directory.next()
            assert claim is not None
            claim.finish()
    counts, flow = counter.look()
    assert flow is not None
    assert (flow.came, flow.went, flow.complete) == (5, 3, True)
    assert counts.due == 2
    _, flow = counter.look()
    assert flow is not None
    assert (flow.came, flow.went) == (0, 0)


def test_flow_is_incomplete_after_a_new_priority(place: Path, counter: JobCounter) -> None:
    counter.look()
    writer = Writer(place)
    writer.write({"n": 1}, priority=1)
    _, flow = counter.look()
    assert flow is not None
    assert not flow.complete
    writer.write({"n": 2}, priority=1)
    _, flow = counter.look()
    assert flow is not None
    assert (flow.came, flow.complete) == (1, True)


def test_flow_is_incomplete_after_an_inotify_overflow(place: Path, counter: JobCounter) -> None:
    counter.look()
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    link = place / "uwsgi_spoolfile_on_x"
    for _ in range(most // 2 + 1):
        link.symlink_to("nowhere")
        link.unlink()
    _, flow = counter.look()
    assert flow is not None
    assert not flow.complete
    assert 0 < flow.came <= most


def test_directory_removed_and_recreated(place: Path, counter: JobCounter) -> None:
    counter.look()
    shutil.rmtree(place)
    with pytest.raises(FileNotFoundError):
        counter.look()
    place.mkdir()
    Writer(place).write({"n": 1})
    assert counter.look()[1] is None
    Writer(place).write({"n": 2})
    counts, flow = counter.look()
    assert flow is not None
    assert (counts.due, flow.came, flow.complete) == (2, 1, True)


def test_directory_replaced_by_another(place: Path, counter: JobCounter) -> None:
    counter.look()
    place.rename(place.with_name("old"))
    place.mkdir()
    counter.look()
    Writer(place.with_name("old")).write({"n": 1})
    Writer(place).write({"n": 2})
    _, flow = counter.look()
    assert flow is not None
    assert flow.came == 1


def test_directory_replaced_by_a_file(place: Path, counter: JobCounter) -> None:
    place.rmdir()
    place.touch()
    with pytest.raises(NotADirectoryError):
        counter.look()


def test_number_of_lock_checks_is_limited(place: Path, counter: JobCounter) -> None:
    content = Path(Writer(place).write({"n": 1})).read_bytes()
    for number in range(counts_module.LOCKS):
        (place / f"uwsgi_spoolfile_on_x_{number}").write_bytes(content)
        os.utime(
            place / f"uwsgi_spoolfile_on_x_{number}", (1, 1)
        )  # the fake clock stands still while this takes a while
    counts, _ = counter.look()
    assert (counts.due, counts.complete) == (counts_module.LOCKS + 1, False)


def test_counting_changes_nothing(place: Path, counter: JobCounter) -> None:
    path = Writer(place).write({"n": 1})
    before = os.stat(path)
    counter.look()
    after = os.stat(path)
    assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)


def test_closing_twice(place: Path) -> None:
    counter = JobCounter(str(place))
    counter.close()
    counter.close()
    assert counter.fileno() == -1
