"""Several spoolers on one directory, with random operations: each job is held by one at a time,
none is lost, and no finished one runs again."""

from __future__ import annotations

import os
import shutil
import tempfile

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from qworker.spooler.files.claiming import ClaimedFile
from qworker.spooler.files.locks import Locked, best_lock
from qworker.spooler.files.packet import DEAD, PREFIX
from qworker.spooler.files.writing import Writer
from qworker.spooler.watching.directory import SpoolDirectory
from tests.support.spools import clock_of_files, files

SPOOLERS = 3
picks = st.integers(0, 10**6)


class Several(RuleBasedStateMachine):
    """The last of the spoolers gets no notifications and finds jobs only by scans."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = clock_of_files()
        self.writer = Writer(tempfile.mkdtemp())
        self.spoolers = [
            SpoolDirectory(self.writer.path, ordered=True, clock=self.clock) for _ in range(SPOOLERS)
        ]
        self.spoolers[-1]._watcher.close()
        self.written = 0
        self.held: dict[bytes, ClaimedFile] = {}
        self.finished: set[bytes] = set()
        self.aside: set[bytes] = set()
        self.foreign: list[int] = []
        self.directory = os.open(self.writer.path, os.O_RDONLY)

    @rule(delay=st.sampled_from([None, 5, 500]), priority=st.sampled_from(["", 1, 20]))
    def write(self, delay: int | None, priority: str | int) -> None:
        at = None if delay is None else self.clock.now() + delay
        self.writer.write({"n": self.written}, at=at, priority=priority)
        self.written += 1

    @rule(spooler=st.integers(0, SPOOLERS - 1))
    def claim(self, spooler: int) -> None:
        claim = self.spoolers[spooler].next()
        if claim is not None:
            number = claim.pairs[b"n"]
            assert number not in self.held
            assert number not in self.finished | self.aside
            claim.begin()
            self.held[number] = claim

    @rule(pick=picks, how=st.sampled_from(["finish", "give back", "later", "decline", "set aside"]))
    def end(self, pick: int, how: str) -> None:
        if not self.held:
            return
        number = sorted(self.held)[pick % len(self.held)]
        claim = self.held.pop(number)
        match how:
            case "finish":
                self.finished.add(number)
                claim.finish()
            case "give back":
                claim.give_back()
            case "later":
                claim.give_back(7.5)
            case "decline":
                claim.decline()
            case "set aside":
                self.aside.add(number)
                claim.set_aside("a test")

    def waiting(self) -> list[str]:
        return [path for path in files(self.writer.path) if PREFIX in path and not path.startswith(DEAD)]

    @rule(pick=picks)
    def other_process_locks(self, pick: int) -> None:
        if paths := self.waiting():
            try:
                self.foreign.append(best_lock().acquire(paths[pick % len(paths)], self.directory))
            except Locked:
                pass

    @rule()
    def other_process_unlocks(self) -> None:
        if self.foreign:
            os.close(self.foreign.pop())

    @rule(pick=picks)
    def file_is_moved(self, pick: int) -> None:
        held = {claim.path for claim in self.held.values()}
        if paths := [path for path in self.waiting() if path not in held]:
            path = paths[pick % len(paths)]
            os.rename(f"{self.writer.path}/{path}", f"{self.writer.path}/{os.path.basename(path)}")

    @rule(pick=picks, delay=st.sampled_from([-5, 50]))
    def file_time_is_changed(self, pick: int, delay: int) -> None:
        if paths := self.waiting():
            at = self.clock.now() + delay
            os.utime(f"{self.writer.path}/{paths[pick % len(paths)]}", (at, at))

    @rule(seconds=st.sampled_from([0.1, 3.0, 40.0, 600.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def teardown(self) -> None:
        while self.foreign:
            os.close(self.foreign.pop())
        for claim in self.held.values():
            claim.give_back()
        self.held.clear()
        self.clock.advance(2000)
        one = SpoolDirectory(self.writer.path, ordered=True, clock=self.clock)  # it has declined no jobs
        for spooler in (*self.spoolers, one):
            while (claim := spooler.next()) is not None:
                assert claim.pairs[b"n"] not in self.finished
                self.finished.add(claim.pairs[b"n"])
                claim.finish()
            spooler.close()
        os.close(self.directory)
        assert self.waiting() == []
        assert self.finished | self.aside == {b"%d" % number for number in range(self.written)}
        assert len(files(f"{self.writer.path}/{DEAD}")) == 2 * len(self.aside)
        shutil.rmtree(self.writer.path)


TestSeveral = Several.TestCase
