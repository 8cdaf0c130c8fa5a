"""Lookout: one looks, or listens, for all who wait in a process."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from typing import Any

import pytest

from qworker.backends.base import POLL_SECONDS
from qworker.backends.result_watcher import Lookout
from qworker.errors import BackendError

PATIENCE = 10.0


class Server:
    """Results that have ended, and those who listen. tells: whether it lets anybody listen."""

    def __init__(self, tells: bool = True) -> None:
        self.tells = tells
        self.ended: set[str] = set()
        self.looks: list[set[str]] = []
        self.ears: list[FakeEar] = []
        self.away = False

    def look(self, ids: Collection[str]) -> list[str]:
        self.looks.append(set(ids))
        if self.away:
            raise BackendError("the store is away")
        return [task_id for task_id in ids if task_id in self.ended]

    def listen(self) -> FakeEar:
        if not self.tells:
            raise BackendError("nobody may listen")
        self.ears.append(FakeEar())
        return self.ears[-1]

    def tell(self, text: str) -> None:
        for ear in self.ears:
            if not ear.closed:
                ear.tell(text)


class FakeEar:
    """An Ear with two ends."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self.closed = False

    def fileno(self) -> int:
        return self._here.fileno()

    def heard(self) -> list[str]:
        try:
            data = self._here.recv(65536)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("cut")
        return data.decode().split("\0")[:-1]

    def tell(self, text: str) -> None:
        self._there.send(f"{text}\0".encode())

    def cut(self) -> None:
        self._there.close()

    def close(self) -> None:
        self.closed = True
        self._here.close()

    def abandon(self) -> None:
        self.closed = True


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def make(server: Server) -> Iterator[Callable[..., Lookout]]:
    made: list[Lookout] = []

    def make_one(listens: bool = True, **options: Any) -> Lookout:
        made.append(Lookout(server.look, server.listen if listens else None, **options))
        return made[-1]

    yield make_one
    for lookout in made:
        lookout.close()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)


def hears(lookout: Lookout) -> bool:
    watch = lookout._watch
    return watch is not None and watch.hears


def test_who_is_told_rings_without_a_look(server: Server, make: Callable[..., Lookout]) -> None:
    lookout = make()
    with closing(lookout.bell()) as bell, closing(lookout.bell()) as other:
        assert sorted(bell.follow(["a", "b"])) == ["a", "b"]
        other.follow(["c"])
        until(lambda: server.looks)  # the one that follows on listening
        before = len(server.looks)
        server.tell("x\nb\na")
        rung = set(bell.wait(PATIENCE))
        while len(rung) < 2:
            rung |= set(bell.wait(PATIENCE))
        assert rung == {"a", "b"}
        assert other.rung() == []
        assert len(server.looks) - before <= 1  # twice a second, whatever is told


def test_what_was_stored_before_it_listened_is_found_by_the_look_that_follows(
    server: Server, make: Callable[..., Lookout]
) -> None:
    # The best of some, for a machine may be busy: it is not to wait for the next of its looks.
    assert min(_seconds_until_found(server, make()) for _ in range(4)) < POLL_SECONDS * 0.9


def _seconds_until_found(server: Server, lookout: Lookout) -> float:
    listen = lookout.listen
    assert listen is not None
    server.ended.discard("a")

    def store_first() -> Any:
        server.ended.add("a")  # nobody listens yet, so nobody is told
        return listen()

    lookout.listen = store_first
    with closing(lookout.bell()) as bell:
        began = time.monotonic()
        bell.follow(["a"])
        assert bell.wait(PATIENCE) == ["a"]
        return time.monotonic() - began


def test_too_many_ids_to_tell_are_looked_for_at_once_and_together(
    server: Server, make: Callable[..., Lookout]
) -> None:
    lookout = make()
    bells = [lookout.bell() for _ in range(20)]
    for number, bell in enumerate(bells):
        bell.follow([str(number)])
    until(lambda: hears(lookout) and server.looks)
    server.ended = {str(number) for number in range(19)}
    server.tell("look")
    assert [bell.wait(PATIENCE) for bell in bells[:19]] == [[str(number)] for number in range(19)]
    assert server.looks[-1] == {str(number) for number in range(20)}
    assert bells[19].rung() == []
    for bell in bells:
        bell.close()


def test_where_nothing_is_told_one_look_serves_all(server: Server, make: Callable[..., Lookout]) -> None:
    lookout = make(listens=False)
    bells = [lookout.bell() for _ in range(20)]
    for number, bell in enumerate(bells):
        bell.follow([str(number)])
    everything = {str(number) for number in range(20)}
    until(lambda: server.looks and server.looks[-1] == everything)
    server.ended = everything
    assert [bell.wait(PATIENCE) for bell in bells] == [[str(number)] for number in range(20)]
    for bell in bells:
        bell.close()


def test_pauses_grow_and_begin_anew_with_whoever_comes(server: Server, make: Callable[..., Lookout]) -> None:
    lookout = make(listens=False)
    with closing(lookout.bell()) as bell, closing(lookout.bell()) as other:
        bell.follow(["a"])
        watch = lookout._watch
        assert watch is not None
        until(lambda: watch._pause > 0.1)
        assert len(server.looks) < 20
        other.follow(["b"])
        until(lambda: watch._pause < 0.1)


def test_a_cut_connection_is_made_anew_and_misses_nothing(
    server: Server, make: Callable[..., Lookout]
) -> None:
    lookout = make()
    with closing(lookout.bell()) as bell:
        bell.follow(["a", "b"])
        until(lambda: hears(lookout))
        server.ended.add("a")  # told to nobody: it is the cut that makes it look
        server.ears[0].cut()
        assert bell.wait(PATIENCE) == ["a"]
        until(lambda: len(server.ears) == 2 and hears(lookout))
        assert server.ears[0].closed
        server.tell("b")
        until(lambda: "b" in bell.wait(PATIENCE))


def test_while_nobody_may_listen_it_looks(server: Server, make: Callable[..., Lookout]) -> None:
    server.tells = False
    lookout = make()
    with closing(lookout.bell()) as bell:
        bell.follow(["a"])
        until(lambda: len(server.looks) > 3)
        server.ended.add("a")
        assert bell.wait(PATIENCE) == ["a"]
        server.tells = True
        until(lambda: server.ears)


def test_when_the_store_is_away_whoever_waits_finds_out(server: Server, make: Callable[..., Lookout]) -> None:
    lookout = make()
    with closing(lookout.bell()) as bell:
        bell.follow(["a"])
        until(lambda: hears(lookout))
        bell.rung()
        server.away = True
        assert bell.wait(PATIENCE) == ["a"]


def test_nobody_is_rung_for_what_he_follows_no_more(server: Server, make: Callable[..., Lookout]) -> None:
    lookout = make()
    with closing(lookout.bell()) as bell, closing(lookout.bell()) as other:
        bell.follow(["a"])
        assert bell.follow(["a", "b"]) == ["b"]
        other.follow(["a", "b"])
        bell.follow(["b"])
        until(lambda: hears(lookout))
        server.tell("a\nb")
        until(lambda: "b" in other.wait(PATIENCE))
        assert bell.wait(PATIENCE) == ["b"]


def test_a_bell_that_was_closed_rings_again_when_it_follows_something(
    server: Server, make: Callable[..., Lookout]
) -> None:
    lookout = make()
    with closing(lookout.bell()) as bell:
        bell.follow(["a"])
        bell.close()
        bell.close()
        assert (lookout.waited_for(), bell.fileno()) == ([], -1)
        assert bell.follow(["a"]) == ["a"]
        until(lambda: hears(lookout))
        server.tell("a")
        assert bell.wait(PATIENCE) == ["a"]


def test_the_thread_and_its_connection_go_when_nobody_waits(
    server: Server, make: Callable[..., Lookout]
) -> None:
    lookout = make(linger=0.0)
    for _ in range(2):
        with closing(lookout.bell()) as bell:
            bell.follow(["a"])
            until(lambda: hears(lookout))
        until(lambda: lookout._watch is None and all(ear.closed for ear in server.ears))
    assert len(server.ears) == 2


def test_who_waits_when_it_is_closed_goes_on_with_another(
    server: Server, make: Callable[..., Lookout]
) -> None:
    lookout = make()
    with closing(lookout.bell()) as bell:
        bell.follow(["a"])
        until(lambda: hears(lookout))
        lookout.close()
        assert server.ears[0].closed
        lookout.close()
        bell.wait(0.0)
        until(lambda: hears(lookout))
        server.tell("a")
        assert bell.wait(PATIENCE) == ["a"]


def test_threads_that_come_and_go_lose_nothing(server: Server, make: Callable[..., Lookout]) -> None:
    lookout = make()
    lost: list[str] = []

    def wait(name: str) -> None:
        for number in range(30):
            task_id = f"{name}.{number}"
            with closing(lookout.bell()) as bell:
                bell.follow([task_id])
                server.tell(task_id)
                if task_id not in bell.wait(PATIENCE):
                    lost.append(task_id)

    with closing(lookout.bell()) as first:
        first.follow(["first"])
        until(lambda: hears(lookout))
        threads = [threading.Thread(target=wait, args=(str(number),)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert lost == []
    assert len(server.ears) == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_thread_and_a_connection_of_its_own(
    server: Server, make: Callable[..., Lookout]
) -> None:
    lookout = make()
    with closing(lookout.bell()) as bell:
        bell.follow(["a"])
        until(lambda: hears(lookout))
        pid = os.fork()
        if pid == 0:
            try:
                assert server.ears[0].closed  # abandoned
                with closing(lookout.bell()) as own:
                    own.follow(["b"])
                    until(lambda: hears(lookout))
                    server.tell("b")
                    os._exit(0 if own.wait(PATIENCE) == ["b"] and len(server.ears) == 2 else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        server.tell("a")
        assert bell.wait(PATIENCE) == ["a"]
