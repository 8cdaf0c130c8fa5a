"""ResultWatcher: one thread leads for all who wait in a process."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from qworker.backends.base import Found
from qworker.backends.keyvalue.keys import TASK_PREFIX
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.backends.result_watcher import ResultWatcher
from qworker.backends.waiters import POLL_SECONDS
from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import BackendError, DamagedResult
from qworker.results.awaiting import ended
from qworker.testing.clock import FakeClock
from tests.support.waiting import PATIENCE, until


class FakeSource:
    """A Source with two ends."""

    tells_of_all = False

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self.closed = False
        self.subscribed: set[str] = set()
        self.subscriptions = 0
        self.interrupt: BaseException | None = None

    def fileno(self) -> int:
        return self._here.fileno()

    def subscribe(self, ids: Collection[str]) -> None:
        self.subscribed = set(ids)
        self.subscriptions += 1

    def told(self) -> Collection[str] | None:
        try:
            data = self._here.recv(65536)
        except BlockingIOError:
            return ()
        if self.interrupt is not None:
            error, self.interrupt = self.interrupt, None
            raise error
        if not data:
            raise ConnectionError("cut")
        words = data.decode().split("\0")[:-1]
        return None if "any" in words else words

    def tell(self, text: str) -> None:
        self._there.send(f"{text}\0".encode())

    def cut(self) -> None:
        self._there.close()

    def close(self) -> None:
        self.closed = True
        self._here.close()

    def abandon(self) -> None:
        self.closed = True


class FakeStore(MemoryBackend):
    """Results that are told as a test likes. tells: whether it has a source."""

    def __init__(self, listens: bool) -> None:
        super().__init__("cache+memory://", Settings({}, environ={}), SYSTEM_CLOCK)
        self.listens = listens
        self.tells = True
        self.away = False
        self.looks: list[set[str]] = []
        self.looked_at: list[float] = []
        self.takes = 0.0
        self.sources: list[FakeSource] = []
        self.stuck: threading.Event | None = None

    def open_source(self) -> FakeSource:  # type: ignore[override]
        if not self.tells:
            raise BackendError("nobody may listen")
        self.sources.append(FakeSource())
        return self.sources[-1]

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        self.looks.append(set(ids))
        self.looked_at.append(time.monotonic())
        if self.takes:
            threading.Event().wait(self.takes)
        if self.away:
            raise BackendError("the store is away")
        if self.stuck is not None:
            stuck, self.stuck = self.stuck, None
            stuck.wait(PATIENCE)
        return super().read_many(ids)

    def end(self, *ids: str) -> None:
        """They end, and nobody is told."""
        for task_id in ids:
            self.store(task_id, self.meta(task_id, "SUCCESS", task_id))

    def tell(self, *ids: str) -> None:
        """They end, and it is told."""
        self.end(*ids)
        for source in self.sources:
            if not source.closed:
                for task_id in ids:
                    source.tell(task_id)

    def hears(self) -> bool:
        return self.watcher._source is not None and bool(self.looks)


class Thread:
    """A thread that waits for *ids*."""

    def __init__(self, watcher: ResultWatcher, *ids: str, timeout: float = PATIENCE, **options: Any) -> None:
        self.found: list[str] | Exception | None = None
        self.took = 0.0

        def run() -> None:
            began = time.monotonic()
            try:
                self.found = sorted(watcher.wait(ids, timeout, **options))
            except Exception as error:  # noqa: BLE001 - for who asks
                self.found = error
            self.took = time.monotonic() - began

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.found


@pytest.fixture(params=[False, True], ids=["threads-lead", "waiter-thread-leads"])
def store(request: pytest.FixtureRequest) -> Iterator[FakeStore]:
    made = FakeStore(request.param)
    yield made
    made.close()


def waiting(store: FakeStore, *ids: str) -> bool:
    """Whether *ids* are waited for, and were looked for."""
    return store.watcher.waited_for() >= set(ids) and set().union(*store.looks) >= set(ids)


def test_what_is_told_is_looked_for_and_nothing_else(store: FakeStore) -> None:
    threads = [Thread(store.watcher, task_id) for task_id in ("a", "b")]
    until(lambda: store.hears() and waiting(store, "a", "b"))
    del store.looks[:]
    store.tell("a", "b", "others")
    assert [thread.result() for thread in threads] == [["a"], ["b"]]
    assert len(store.looks) <= 4  # one for each, and at most two of those that come twice a second


# -- a source that tells of all --


@pytest.fixture
def telling() -> Iterator[FakeStore]:
    """A store with a source that tells of all and is heard, and that looks at nothing by itself."""
    made = FakeStore(False)
    made.end("first")
    assert list(made.watcher.wait(["first"], PATIENCE)) == ["first"]
    assert made.watcher.mark() is None
    made.sources[-1].tells_of_all = True
    made.watcher._look_at = math.inf
    made.looks.clear()
    yield made
    made.close()


def test_what_somebody_has_looked_for_is_not_looked_for_again(telling: FakeStore) -> None:
    thread = Thread(telling.watcher, "a", looked=telling.watcher.mark())
    until(lambda: telling.watcher._turn.locked())
    telling.end("a")
    telling.sources[-1].tell("any")
    assert thread.result() == ["a"]
    assert telling.looks == [{"a"}]


def test_what_was_told_since_somebody_looked_is_heard(telling: FakeStore) -> None:
    looked = telling.watcher.mark()
    telling.end("a")
    telling.sources[-1].tell("any")
    assert Thread(telling.watcher, "a", looked=looked).result() == ["a"]
    assert telling.looks == [{"a"}]


def test_what_another_has_heard_since_somebody_looked_is_looked_for(telling: FakeStore) -> None:
    looked = telling.watcher.mark()
    telling.end("a", "b")
    telling.sources[-1].tell("any")
    assert Thread(telling.watcher, "b").result() == ["b"]
    telling.watcher._look_at = math.inf
    assert Thread(telling.watcher, "a", timeout=5, looked=looked).result() == ["a"]


def test_what_was_looked_for_before_the_source_was_made_anew_is_looked_for(telling: FakeStore) -> None:
    looked = telling.watcher.mark()
    telling.end("a")  # and that was told to the old one
    telling.watcher.close()
    telling.watcher._look_at = math.inf
    assert Thread(telling.watcher, "a", timeout=5, looked=looked).result() == ["a"]


def test_what_ended_before_it_subscribed_is_found_by_the_look_that_follows(store: FakeStore) -> None:
    open_source = store.open_source

    def end_first() -> FakeSource:
        store.end("a")
        return open_source()

    store.open_source = end_first  # type: ignore[method-assign]
    took = []
    for _ in range(4):
        store.forget("a")
        store.watcher.close()
        thread = Thread(store.watcher, "a")
        assert thread.result() == ["a"]
        took.append(thread.took)
    assert min(took) < POLL_SECONDS * 0.9  # the best of some, for a machine may be busy


@pytest.mark.parametrize("tells", [True, False])
def test_one_look_serves_all(store: FakeStore, tells: bool) -> None:
    store.tells = tells
    ids = [str(number) for number in range(20)]
    threads = [Thread(store.watcher, task_id) for task_id in ids]
    until(lambda: waiting(store, *ids))
    store.end(*ids[1:])
    if tells:
        until(store.hears)
        store.sources[-1].tell("any")
    assert [thread.result() for thread in threads[1:]] == [[task_id] for task_id in ids[1:]]
    assert max(map(len, store.looks)) == 20
    store.tell(ids[0])
    assert threads[0].result() == [ids[0]]


def test_pauses_grow_and_begin_anew_with_whoever_comes(store: FakeStore) -> None:
    store.tells = False
    first = Thread(store.watcher, "a")
    until(lambda: store.watcher._pause > 0.1)
    assert len(store.looks) < 30
    second = Thread(store.watcher, "b")
    until(lambda: store.watcher._pause < 0.1)
    store.end("a", "b")
    assert (first.result(), second.result()) == (["a"], ["b"])


def test_the_interval_is_the_longest_pause(store: FakeStore) -> None:
    store.tells = False
    thread = Thread(store.watcher, "a", interval=0.01)
    until(lambda: len(store.looks) > 25)
    assert store.watcher._pause <= 0.01
    store.end("a")
    assert thread.result() == ["a"]


def test_who_waits_long_looks_seldom(store: FakeStore) -> None:
    assert Thread(store.watcher, "a", timeout=3 * POLL_SECONDS).result() == []
    assert len(store.looks) <= 6


def test_a_cut_source_is_made_anew_and_misses_nothing(store: FakeStore) -> None:
    first, second = Thread(store.watcher, "a"), Thread(store.watcher, "b")
    until(lambda: store.hears() and waiting(store, "a", "b"))
    store.end("a")  # told to nobody: it is the cut that makes it look
    store.sources[0].cut()
    assert first.result() == ["a"]
    until(lambda: len(store.sources) == 2 and store.hears())
    assert store.sources[0].closed
    store.tell("b")
    assert second.result() == ["b"]


def test_while_nothing_tells_it_looks(store: FakeStore) -> None:
    store.tells = False
    first, second = Thread(store.watcher, "a"), Thread(store.watcher, "b")
    until(lambda: len(store.looks) > 3)
    store.end("a")
    assert first.result() == ["a"]
    store.tells = True
    until(lambda: store.sources)
    store.tell("b")
    assert second.result() == ["b"]


def test_when_the_store_is_away_whoever_waits_is_told(store: FakeStore) -> None:
    threads = [Thread(store.watcher, task_id) for task_id in ("a", "b", "c")]
    until(lambda: waiting(store, "a", "b", "c"))
    store.away = True
    store.watcher._outage = 0.6
    assert [str(thread.result()) for thread in threads] == ["the store is away"] * 3
    store.away = False
    thread = Thread(store.watcher, "a")
    store.end("a")
    assert thread.result() == ["a"]


def test_the_lead_is_handed_over_at_once(store: FakeStore) -> None:
    took = []
    for number in range(5):
        first, last = f"first{number}", f"last{number}"
        leading = Thread(store.watcher, first)
        until(lambda: store.hears() and waiting(store, first))  # noqa: B023
        following = Thread(store.watcher, last)
        until(lambda: waiting(store, first, last))  # noqa: B023
        store.tell(first)
        assert leading.result() == [first]
        began = time.monotonic()
        store.tell(last)
        assert following.result() == [last]
        took.append(time.monotonic() - began)
    assert min(took) < POLL_SECONDS / 2


def test_what_an_interrupted_thread_was_told_the_others_get() -> None:
    store = FakeStore(False)
    took = []
    for number in range(5):
        task_id = f"a{number}"

        def tell(task_id: str = task_id) -> None:
            until(lambda: waiting(store, "never", task_id))
            store.sources[-1].interrupt = KeyboardInterrupt()
            store.tell(task_id)

        others: list[Thread] = []

        def begin(task_id: str = task_id, others: list[Thread] = others) -> None:
            until(lambda: waiting(store, "never"))
            others.append(Thread(store.watcher, task_id))
            tell(task_id)

        teller = threading.Thread(target=begin)
        teller.start()
        with pytest.raises(KeyboardInterrupt):
            store.watcher.wait(["never"], PATIENCE)
        began = time.monotonic()
        teller.join()
        assert others[0].result() == [task_id]
        took.append(time.monotonic() - began)
    assert min(took) < POLL_SECONDS / 2
    store.close()


def test_who_was_interrupted_before_it_could_leave_is_forgotten(store: FakeStore) -> None:
    class Interrupt(BaseException):
        pass

    leave = store.watcher.leave

    def cut_short(waiter: Any) -> None:
        raise Interrupt

    store.watcher.leave = cut_short  # type: ignore[method-assign]
    with pytest.raises(Interrupt):
        store.watcher.wait(["a"], 0.01)
    store.watcher.leave = leave  # type: ignore[method-assign]
    assert store.watcher.waited_for() == set()


def test_a_thread_that_leads_and_is_stuck_holds_up_nobody() -> None:
    store = FakeStore(False)
    first = Thread(store.watcher, "a")
    until(lambda: waiting(store, "a"))
    stuck = store.stuck = threading.Event()
    until(lambda: store.stuck is None)
    second = Thread(store.watcher, "b")
    store.end("b")
    assert second.result() == ["b"]
    stuck.set()
    store.tell("a")
    assert first.result() == ["a"]
    store.close()


def test_who_leads_may_wait_for_another_while_it_is_called(store: FakeStore) -> None:
    inner: list[list[str]] = []

    def wait_too() -> None:
        if not inner:
            store.end("inner")
            inner.append(list(store.watcher.wait(["inner"], PATIENCE)))

    thread = Thread(store.watcher, "a", on_interval=wait_too)
    until(lambda: inner)
    store.tell("a")
    assert (thread.result(), inner) == (["a"], [["inner"]])


def test_nothing_is_subscribed_to_that_nobody_waits_for() -> None:
    store = FakeStore(False)
    store.watcher.wait(["a"], 0.01)
    (source,) = store.sources
    assert source.subscribed == set()
    store.watcher.wait(["b"], 0.01)
    assert store.sources == [source]
    store.close()
    assert source.closed


def test_the_thread_and_its_connection_go_when_nobody_waits() -> None:
    store = FakeStore(True)
    watcher = ResultWatcher(store, linger=0.0)
    for number in range(2):
        assert watcher.wait(["a"], 0.05) == {}
        until(lambda: watcher.loops._thread is None and watcher._source is None)
        assert all(source.closed for source in store.sources)
        assert len(store.sources) == number + 1


def test_who_waits_when_it_is_closed_goes_on_with_another(store: FakeStore) -> None:
    thread = Thread(store.watcher, "a")
    until(lambda: store.hears() and waiting(store, "a"))
    store.watcher.close()
    assert store.sources[0].closed
    until(lambda: len(store.sources) > 1 and store.hears())
    store.tell("a")
    assert thread.result() == ["a"]
    store.watcher.close()
    store.watcher.close()
    assert all(source.closed for source in store.sources)
    until(lambda: store.watcher.loops._thread is None)


def test_threads_that_come_and_go_lose_nothing(store: FakeStore) -> None:
    lost: list[str] = []

    def wait(name: str) -> None:
        for number in range(30):
            task_id = f"{name}.{number}"
            told = threading.Timer(0.001, store.tell, (task_id,))
            told.start()
            if list(store.watcher.wait([task_id], PATIENCE)) != [task_id]:
                lost.append(task_id)
            told.join()

    began = time.monotonic()
    threads = [threading.Thread(target=wait, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert len(store.sources) == 1
    assert time.monotonic() - began < 30 * POLL_SECONDS / 2, "the looks that come twice a second found them"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_thread_and_a_source_of_its_own(store: FakeStore) -> None:
    thread = Thread(store.watcher, "a")
    until(lambda: store.hears() and waiting(store, "a"))
    store.watcher.promises.call("promised", print)
    pid = os.fork()
    if pid == 0:
        try:
            assert store.sources[0].closed  # abandoned
            assert not store.watcher.waited_for()
            own = Thread(store.watcher, "b")
            until(lambda: store.hears() and waiting(store, "b"))
            store.tell("b")
            os._exit(0 if own.result() == ["b"] and len(store.sources) == 2 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store.tell("a")
    assert thread.result() == ["a"]
    store.end("promised")


# -- those who must not stand still --


def test_a_callback_that_takes_long_holds_up_nobody_else() -> None:
    store = FakeStore(False)
    begun, go_on = threading.Event(), threading.Event()
    store.end("slow", "next")
    kept: list[str] = []
    store.watcher.promises.call("slow", lambda found: (begun.set(), go_on.wait(PATIENCE)))
    assert begun.wait(PATIENCE)
    store.watcher.promises.call("next", lambda found: kept.append("next"))
    threads = [Thread(store.watcher, str(number)) for number in range(4)]
    until(lambda: waiting(store, "next", "0", "1", "2", "3"))
    del store.looks[:]
    began = time.monotonic()
    for number, thread in enumerate(threads):
        time.sleep(0.2)  # the lead changes twice a second
        store.tell(str(number))
        assert thread.result() == [str(number)]
    assert time.monotonic() - began < 0.8 + 1.5 * POLL_SECONDS
    assert len(store.looks) < 20
    go_on.set()
    until(lambda: kept)
    store.close()


def test_event_loops_and_threads_share_a_source(store: FakeStore) -> None:
    ids = [str(number) for number in range(10)]
    threads = [Thread(store.watcher, task_id) for task_id in ids[:5]]

    async def main() -> list[Any]:
        awaiting = asyncio.gather(*[ended(store.watcher, task_id) for task_id in [*ids, *ids]])
        await asyncio.to_thread(until, lambda: store.hears() and waiting(store, *ids))
        store.tell(*ids)
        return [meta["result"] for meta in await awaiting]

    assert asyncio.run(main()) == [*ids, *ids]
    assert [thread.result() for thread in threads] == [[task_id] for task_id in ids[:5]]
    assert len(store.sources) == 1


def test_a_loop_that_gives_up_leaves_the_others_what_they_await(store: FakeStore) -> None:
    async def main() -> str:
        patient = asyncio.ensure_future(ended(store.watcher, "a"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ended(store.watcher, "a"), 0.05)
        store.tell("a")
        return str((await patient)["result"])

    assert asyncio.run(main()) == "a"
    until(lambda: not store.watcher.waited_for())


def test_a_loop_that_has_ended_hurts_nobody(store: FakeStore) -> None:
    loop = asyncio.new_event_loop()
    left = loop.create_task(ended(store.watcher, "a"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    thread = Thread(store.watcher, "b")
    store.tell("a", "b")
    assert thread.result() == ["b"]
    until(lambda: "a" not in store.watcher.waited_for())
    left._log_destroy_pending = False  # type: ignore[attr-defined]


def test_who_awaits_is_told_that_the_store_is_away(store: FakeStore) -> None:
    store.away = True
    with pytest.raises(BackendError, match="away"):
        asyncio.run(ended(store.watcher, "a"))
    store.away = False
    store.end("a")
    assert asyncio.run(ended(store.watcher, "a"))["result"] == "a"


def test_who_waits_outlives_a_store_that_goes_away_for_a_while(store: FakeStore) -> None:
    threads = [Thread(store.watcher, task_id) for task_id in ("a", "b")]
    until(lambda: store.hears() and waiting(store, "a", "b"))
    store.away = True
    store.sources[-1].cut()
    del store.looks[:]
    until(lambda: len(store.looks) > 3)
    late = threading.Event()
    loop = threading.Thread(target=lambda: asyncio.run(ended(store.watcher, "a")) and late.set())
    loop.start()
    store.away = False
    store.end("a")
    store.end("b")
    assert [thread.result() for thread in threads] == [["a"], ["b"]]
    loop.join(PATIENCE)
    assert late.is_set()


def test_while_the_store_is_away_it_is_asked_now_and_then(store: FakeStore) -> None:
    thread = Thread(store.watcher, "a")
    until(lambda: waiting(store, "a"))
    store.away = True
    store.sources[-1].cut()
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 1.0)
    looks = sum(moment > began for moment in store.looked_at)
    assert 2 <= looks < 12
    store.away = False
    store.end("a")
    assert thread.result() == ["a"]


def test_who_waits_is_told_of_a_store_that_stays_away(store: FakeStore) -> None:
    watcher = ResultWatcher(store, outage=0.6)
    threads = [Thread(watcher, task_id) for task_id in ("a", "b")]
    until(lambda: watcher.waited_for() == {"a", "b"} and waiting_in(store, "a", "b"))
    store.away = True
    store.sources[-1].cut()
    assert [type(thread.result()) for thread in threads] == [BackendError, BackendError]
    watcher.close()


def waiting_in(store: FakeStore, *ids: str) -> bool:
    return set().union(*store.looks) >= set(ids)


def test_promises_outlive_a_store_that_is_away(store: FakeStore, caplog: pytest.LogCaptureFixture) -> None:
    kept: list[Any] = []
    store.away = True
    store.watcher.promises.call("a", kept.append)
    until(lambda: "promises are waiting for the result store: the store is away" in caplog.text)
    store.away = False
    store.end("a")
    until(lambda: kept)
    assert kept[0]["result"] == "a"


def test_a_result_that_cannot_be_read_is_an_error_of_those_who_wait_for_it(store: FakeStore) -> None:
    store.store_rows([("torn", "SUCCESS", b"[1", None)])
    kept: list[Any] = []
    store.watcher.promises.call("torn", kept.append)
    assert isinstance(Thread(store.watcher, "torn").result(), DamagedResult)
    with pytest.raises(DamagedResult):
        asyncio.run(ended(store.watcher, "torn"))
    until(lambda: kept)
    assert isinstance(kept[0], DamagedResult)
    store.end("fine")
    assert Thread(store.watcher, "torn", "fine").result() == ["fine"]


def test_an_attendant_that_has_nothing_to_do_lets_threads_lead() -> None:
    store = FakeStore(False)
    store.end("a")
    asyncio.run(ended(store.watcher, "a"))
    until(lambda: not store.watcher._waiters)
    assert store.watcher.loops._thread is not None
    store.end("b")
    assert list(store.watcher.wait(["b"], PATIENCE)) == ["b"]
    store.tell("c")
    assert asyncio.run(ended(store.watcher, "c"))["result"] == "c"  # by the same thread
    store.close()
    until(lambda: store.watcher.loops._thread is None)


# -- many at once --

GROUP = [f"member-{number}" for number in range(1000)]


class Group:
    """A thread that waits for all of GROUP. ended: how many it was given at each wake-up."""

    def __init__(self, watcher: ResultWatcher, ids: Collection[str] = GROUP, **options: Any) -> None:
        self.ended: list[set[str]] = []

        def run() -> None:
            for found in watcher.wait_each(ids, PATIENCE, **options):
                self.ended.append(set(found))

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self) -> list[set[str]]:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.ended


def test_of_a_group_each_is_looked_for_when_it_is_told_and_given_once(store: FakeStore) -> None:
    group = Group(store.watcher)
    until(lambda: store.hears() and waiting(store, *GROUP))
    began = time.monotonic()
    del store.looks[:]
    for task_id in GROUP:
        store.tell(task_id)
    ended = group.result()
    assert sorted(task_id for some in ended for task_id in some) == sorted(GROUP)
    polls = 1 + (time.monotonic() - began) / POLL_SECONDS
    assert sum(map(len, store.looks)) <= len(GROUP) * (1 + polls)  # and not so many for each that was told


def test_what_has_ended_is_waited_for_no_longer(store: FakeStore) -> None:
    group = Group(store.watcher)
    until(lambda: store.hears() and waiting(store, *GROUP))
    for end in range(20, len(GROUP), 20):
        store.tell(*GROUP[end - 20 : end])
        left = set(GROUP[end:])
        until(lambda left=left: store.watcher.waited_for() == left)  # type: ignore[misc]
    store.tell(*GROUP[-20:-1])
    until(lambda: store.watcher.waited_for() == {GROUP[-1]})
    until(lambda: len(store.sources[-1].subscribed) <= 3)  # it subscribes anew for less than half as many
    assert GROUP[-1] in store.sources[-1].subscribed
    store.tell(GROUP[-1])
    group.result()
    assert store.sources[-1].subscriptions < 25  # a group that halves subscribes anew, not one that shrinks


def test_who_is_told_that_something_ended_looks_for_the_few_first(store: FakeStore) -> None:
    """A look for many takes long, so the next one has to wait; and those who wait for one do not."""
    group = Group(store.watcher)
    until(lambda: store.hears() and waiting(store, *GROUP))
    single = Thread(store.watcher, "single")
    until(lambda: waiting(store, "single"))
    store.watcher._rested_at = store.watcher._look_at_many = time.monotonic() + 3600
    del store.looks[:]
    store.end("single", *GROUP)
    store.sources[-1].tell("any")
    assert single.result() == ["single"]
    assert store.looks == [{"single"}] * len(store.looks)
    store.watcher._rested_at = 0.0
    store.sources[-1].tell("any")
    assert group.result()[-1] == set(GROUP)


def test_where_nothing_is_told_looks_for_many_are_apart(store: FakeStore) -> None:
    store.tells = False
    store.takes = 0.03
    group = Group(store.watcher)
    until(lambda: len(store.looks) > 5)
    store.end(*GROUP)
    group.result()
    apart = [after - before for before, after in zip(store.looked_at, store.looked_at[1:], strict=False)]
    assert min(apart[1:]) > 3 * 0.03


def test_who_goes_on_later_is_given_all_that_ended_meanwhile(store: FakeStore) -> None:
    walk = store.watcher.wait_each(["a", "b", "c"], PATIENCE)
    store.end("a")
    assert set(next(walk)) == {"a"}
    other = Thread(store.watcher, "x")
    until(lambda: store.hears() and waiting(store, "x"))
    store.tell("b")
    until(lambda: store.watcher.waited_for() == {"c", "x"})  # it is not given again and again
    store.tell("x")
    assert other.result() == ["x"]
    store.tell("c")
    assert set().union(*walk) == {"b", "c"}
    assert store.watcher.waited_for() == set()


def test_who_goes_away_in_between_is_forgotten(store: FakeStore) -> None:
    walk = store.watcher.wait_each(["a", "b"], PATIENCE)
    store.end("a")
    next(walk)
    walk.close()  # type: ignore[attr-defined]
    assert store.watcher.waited_for() == set()


def test_a_group_is_told_that_the_store_is_away(store: FakeStore) -> None:
    store.away = True
    with pytest.raises(BackendError, match="the store is away"):
        list(store.watcher.wait_each(["a", "b"], PATIENCE))


def test_one_that_cannot_be_read_is_given_as_such(store: FakeStore) -> None:
    store.end("a")
    store._values[f"{TASK_PREFIX}b"] = (b"{", None)
    found = {
        task_id: each
        for some in store.watcher.wait_each(["a", "b"], PATIENCE)
        for task_id, each in some.items()
    }
    assert found["a"]["status"] == "SUCCESS"  # type: ignore[index]
    assert isinstance(found["b"], DamagedResult)


class EndingLate(FakeStore):
    """A look takes until time is over; "a" ends when nobody listens for it any more."""

    def __init__(self) -> None:
        super().__init__(False)
        self.clock = FakeClock()
        self.tells = False

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        self.clock.advance(PATIENCE)
        if not self.watcher.waited_for():
            self.end("a")
        return super().read_many(ids)


def test_what_ends_at_the_last_moment_is_given() -> None:
    store = EndingLate()
    assert [set(found) for found in store.watcher.wait_each(["a", "b"], PATIENCE)] == [{"a"}]
    assert store.looks[-1] == {"a", "b"}
    store.close()
