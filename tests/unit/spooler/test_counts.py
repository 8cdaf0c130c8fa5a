"""Counts of a spool directory: what is there, and what came and went."""

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
def counting(place: Path) -> Iterator[JobCounter]:
    with closing(JobCounter(str(place), clock=clock_of_files(60))) as found:
        yield found


def test_nothing_is_there(counting: JobCounter) -> None:
    counts, flow = counting.look()
    assert counts == (0, 0, 0, 0, None, None, True)
    assert flow is None


def test_each_job_is_counted_as_what_it_is(place: Path, counting: JobCounter) -> None:
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
        counts, _ = counting.look()
    assert (counts.due, counts.running, counts.delayed, counts.dead) == (1, 1, 2, 1)
    assert counts.oldest == int(clock.now() - 90)
    assert counts.next_due == int(clock.now() + 50)


def test_what_came_and_went_between_two_looks(place: Path, counting: JobCounter) -> None:
    counting.look()
    writer = Writer(place)
    for number in range(5):
        writer.write({"n": number})
    with closing(SpoolDirectory(place, clock=clock_of_files(60))) as directory:
        for _ in range(3):
            claim = directory.next()
            assert claim is not None
            claim.finish()
    counts, flow = counting.look()
    assert flow is not None
    assert (flow.came, flow.went, flow.complete) == (5, 3, True)
    assert counts.due == 2
    _, flow = counting.look()
    assert flow is not None
    assert (flow.came, flow.went) == (0, 0)


def test_a_priority_that_is_new_may_have_had_more(place: Path, counting: JobCounter) -> None:
    counting.look()
    writer = Writer(place)
    writer.write({"n": 1}, priority=1)
    _, flow = counting.look()
    assert flow is not None
    assert not flow.complete
    writer.write({"n": 2}, priority=1)
    _, flow = counting.look()
    assert flow is not None
    assert (flow.came, flow.complete) == (1, True)


def test_more_than_the_system_keeps(place: Path, counting: JobCounter) -> None:
    counting.look()
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    link = place / "uwsgi_spoolfile_on_x"
    for _ in range(most // 2 + 1):
        link.symlink_to("nowhere")
        link.unlink()
    _, flow = counting.look()
    assert flow is not None
    assert not flow.complete
    assert 0 < flow.came <= most


def test_a_directory_that_vanishes_and_comes_back(place: Path, counting: JobCounter) -> None:
    counting.look()
    shutil.rmtree(place)
    with pytest.raises(FileNotFoundError):
        counting.look()
    place.mkdir()
    Writer(place).write({"n": 1})
    assert counting.look()[1] is None
    Writer(place).write({"n": 2})
    counts, flow = counting.look()
    assert flow is not None
    assert (counts.due, flow.came, flow.complete) == (2, 1, True)


def test_another_directory_in_its_place(place: Path, counting: JobCounter) -> None:
    counting.look()
    place.rename(place.with_name("old"))
    place.mkdir()
    counting.look()
    Writer(place.with_name("old")).write({"n": 1})
    Writer(place).write({"n": 2})
    _, flow = counting.look()
    assert flow is not None
    assert flow.came == 1


def test_a_file_in_its_place(place: Path, counting: JobCounter) -> None:
    place.rmdir()
    place.touch()
    with pytest.raises(NotADirectoryError):
        counting.look()


def test_not_all_locks_are_asked_for(place: Path, counting: JobCounter) -> None:
    content = Path(Writer(place).write({"n": 1})).read_bytes()
    for number in range(counts_module.LOCKS):
        (place / f"uwsgi_spoolfile_on_x_{number}").write_bytes(content)
        os.utime(place / f"uwsgi_spoolfile_on_x_{number}", (1, 1))  # the clock stands, and this takes a while
    counts, _ = counting.look()
    assert (counts.due, counts.complete) == (counts_module.LOCKS + 1, False)


def test_nothing_is_changed(place: Path, counting: JobCounter) -> None:
    path = Writer(place).write({"n": 1})
    before = os.stat(path)
    counting.look()
    after = os.stat(path)
    assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)


def test_closed_twice(place: Path) -> None:
    counting = JobCounter(str(place))
    counting.close()
    counting.close()
    assert counting.fileno() == -1
