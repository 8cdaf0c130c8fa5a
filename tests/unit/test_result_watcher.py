"""ResultWatcher: one thread watches for all waiting threads of a process."""

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
from qworker.backends.result_watcher import SLOWEST, ResultWatcher
from qworker.backends.waiters import POLL_SECONDS
from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import BackendError, DamagedResult
from qworker.results.awaiting import ended
from qworker.testing.clock import FakeClock
from tests.support.waiting import PATIENCE, until


class FakeSource:
    """A Source made of a socket pair."""

    announces_all = False

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

    def announced(self) -> Collection[str] | None:
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
    """A store whose notifications a test sends itself. notifies: whether it has a source. options: of its
    ResultWatcher."""

    def __init__(self, listens: bool, **options: float) -> None:
        super().__init__("cache+memory://", Settings({}, environ={}), SYSTEM_CLOCK)
        self.listens = listens
        self.notifies = True
        self._watcher = ResultWatcher(self, **options)
        self.away = False
        self.reads: list[set[str]] = []
        self.read_at: list[float] = []
        self.takes = 0.0
        self.sources: list[FakeSource] = []
        self.stuck: threading.Event | None = None

    def open_source(self) -> FakeSource:  # type: ignore[override]
        if not self.notifies:
            raise BackendError("nobody may listen")
        self.sources.append(FakeSource())
        return self.sources[-1]

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        self.reads.append(set(ids))
        self.read_at.append(time.monotonic())
        if self.takes:
            threading.Event().wait(self.takes)
        if self.away:
            raise BackendError("the store is away")
        if self.stuck is not None:
            stuck, self.stuck = self.stuck, None
            stuck.wait(PATIENCE)
        return super().read_many(ids)

    def end(self, *ids: str) -> None:
        """Store results without a notification."""
        for task_id in ids:
            self.store(task_id, self.meta(task_id, "SUCCESS", task_id))

    def tell(self, *ids: str) -> None:
        """Store results and notify the sources."""
        self.end(*ids)
        for source in self.sources:
            if not source.closed:
                for task_id in ids:
                    source.tell(task_id)

    def is_subscribed(self) -> bool:
        return self.watcher._notifications.opened and bool(self.reads)


class Thread:
    """A thread that waits for *ids*."""

    def __init__(self, watcher: ResultWatcher, *ids: str, timeout: float = PATIENCE, **options: Any) -> None:
        self.found: list[str] | Exception | None = None
        self.took = 0.0

        def run() -> None:
            began = time.monotonic()
            try:
                self.found = sorted(watcher.wait(ids, timeout, **options))
            except Exception as error:  # noqa: BLE001 - for the caller of result()
                self.found = error
            self.took = time.monotonic() - began

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.found


QUICK = 0.05
"""Seconds between the polls of a store whose tests wait for several of them."""


@pytest.fixture(params=[False, True], ids=["threads-lead", "waiter-thread-leads"])
def store(request: pytest.FixtureRequest) -> Iterator[FakeStore]:
    made = FakeStore(request.param)
    yield made
    made.close()


@pytest.fixture(params=[False, True], ids=["threads-lead", "waiter-thread-leads"])
def quick(request: pytest.FixtureRequest) -> Iterator[FakeStore]:
    made = FakeStore(request.param, poll=QUICK)
    yield made
    made.close()


def waiting(store: FakeStore, *ids: str) -> bool:
    """Whether *ids* are waited for and have been read once."""
    return store.watcher.waited_for() >= set(ids) and set().union(*store.reads) >= set(ids)


def test_only_notified_results_are_read(store: FakeStore) -> None:
    threads = [Thread(store.watcher, task_id) for task_id in ("a", "b")]
    until(lambda: store.is_subscribed() and waiting(store, "a", "b"))
    del store.reads[:]
    store.tell("a", "b", "others")
    assert [thread.result() for thread in threads] == [["a"], ["b"]]
    assert len(store.reads) <= 4  # one for each, and at most two of the polls that come twice a second


# -- a source that notifies of all results --


@pytest.fixture
def notifying() -> Iterator[FakeStore]:
    """A store whose subscribed source notifies of all results, and that does not poll."""
    made = FakeStore(False)
    made.end("first")
    assert list(made.watcher.wait(["first"], PATIENCE)) == ["first"]
    assert made.watcher.mark() is None
    made.sources[-1].announces_all = True
    made.watcher._times._at = math.inf
    made.reads.clear()
    yield made
    made.close()


def test_results_read_by_the_caller_are_not_read_again(notifying: FakeStore) -> None:
    thread = Thread(notifying.watcher, "a", looked=notifying.watcher.mark())
    until(lambda: notifying.watcher._turn.locked())
    notifying.end("a")
    notifying.sources[-1].tell("any")
    assert thread.result() == ["a"]
    assert notifying.reads == [{"a"}]


def test_notification_since_the_mark_is_received(notifying: FakeStore) -> None:
    looked = notifying.watcher.mark()
    notifying.end("a")
    notifying.sources[-1].tell("any")
    assert Thread(notifying.watcher, "a", looked=looked).result() == ["a"]
    assert notifying.reads == [{"a"}]


def test_notification_consumed_by_another_waiter_since_the_mark_counts(notifying: FakeStore) -> None:
    looked = notifying.watcher.mark()
    notifying.end("a", "b")
    notifying.sources[-1].tell("any")
    assert Thread(notifying.watcher, "b").result() == ["b"]
    notifying.watcher._times._at = math.inf
    assert Thread(notifying.watcher, "a", timeout=5, looked=looked).result() == ["a"]


def test_mark_of_an_old_source_is_not_trusted(notifying: FakeStore) -> None:
    looked = notifying.watcher.mark()
    notifying.end("a")  # notified through the old source
    notifying.watcher.close()
    notifying.watcher._times._at = math.inf
    assert Thread(notifying.watcher, "a", timeout=5, looked=looked).result() == ["a"]


def test_result_stored_before_subscribing_is_found_at_once(store: FakeStore) -> None:
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
    assert min(took) < POLL_SECONDS * 0.9  # the best of several, as the machine may be busy


@pytest.mark.parametrize("notifies", [True, False])
def test_one_read_serves_all_waiters(store: FakeStore, notifies: bool) -> None:
    store.notifies = notifies
    ids = [str(number) for number in range(20)]
    threads = [Thread(store.watcher, task_id) for task_id in ids]
    until(lambda: waiting(store, *ids))
    store.end(*ids[1:])
    if notifies:
        until(store.is_subscribed)
        store.sources[-1].tell("any")
    assert [thread.result() for thread in threads[1:]] == [[task_id] for task_id in ids[1:]]
    assert max(map(len, store.reads)) == 20
    store.tell(ids[0])
    assert threads[0].result() == [ids[0]]


def test_polling_interval_grows_and_is_reset_by_a_new_waiter(store: FakeStore) -> None:
    store.notifies = False
    first = Thread(store.watcher, "a")
    until(lambda: store.watcher._times._pause > 0.1)
    assert len(store.reads) < 30
    second = Thread(store.watcher, "b")
    until(lambda: store.watcher._times._pause < 0.1)
    store.end("a", "b")
    assert (first.result(), second.result()) == (["a"], ["b"])


def test_interval_limits_the_polling_interval(store: FakeStore) -> None:
    store.notifies = False
    thread = Thread(store.watcher, "a", interval=0.01)
    until(lambda: len(store.reads) > 12)  # without a limit, the pause would be 0.08 by now
    assert store.watcher._times._pause <= 0.01
    store.end("a")
    assert thread.result() == ["a"]


def test_long_waits_poll_rarely(quick: FakeStore) -> None:
    began = time.monotonic()
    assert Thread(quick.watcher, "a", timeout=3 * QUICK).result() == []
    assert len(quick.reads) <= 3 + (time.monotonic() - began) / QUICK


def test_lost_source_is_reopened_without_missing_results(store: FakeStore) -> None:
    first, second = Thread(store.watcher, "a"), Thread(store.watcher, "b")
    until(lambda: store.is_subscribed() and waiting(store, "a", "b"))
    store.end("a")  # without a notification: the lost connection causes the read
    store.sources[0].cut()
    assert first.result() == ["a"]
    until(lambda: len(store.sources) == 2 and store.is_subscribed())
    assert store.sources[0].closed
    store.tell("b")
    assert second.result() == ["b"]


def test_results_are_polled_while_there_is_no_source(store: FakeStore) -> None:
    store.notifies = False
    first, second = Thread(store.watcher, "a"), Thread(store.watcher, "b")
    until(lambda: len(store.reads) > 3)
    store.end("a")
    assert first.result() == ["a"]
    store.notifies = True
    until(lambda: store.sources)
    store.tell("b")
    assert second.result() == ["b"]


def test_outage_of_the_store_is_raised_to_all_waiters(quick: FakeStore) -> None:
    store = quick
    threads = [Thread(store.watcher, task_id) for task_id in ("a", "b", "c")]
    until(lambda: waiting(store, "a", "b", "c"))
    store.away = True
    store.watcher._outage = 0.1
    assert [str(thread.result()) for thread in threads] == ["the store is away"] * 3
    store.away = False
    thread = Thread(store.watcher, "a")
    store.end("a")
    assert thread.result() == ["a"]


def test_leading_thread_hands_over_at_once(store: FakeStore) -> None:
    took = []
    for number in range(5):
        first, last = f"first{number}", f"last{number}"
        leading = Thread(store.watcher, first)
        until(lambda: store.is_subscribed() and waiting(store, first))  # noqa: B023
        following = Thread(store.watcher, last)
        until(lambda: waiting(store, first, last))  # noqa: B023
        store.tell(first)
        assert leading.result() == [first]
        began = time.monotonic()
        store.tell(last)
        assert following.result() == [last]
        took.append(time.monotonic() - began)
    assert min(took) < POLL_SECONDS / 2


def test_notification_received_by_an_interrupted_thread_is_not_lost() -> None:
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

        notifier = threading.Thread(target=begin)
        notifier.start()
        with pytest.raises(KeyboardInterrupt):
            store.watcher.wait(["never"], PATIENCE)
        began = time.monotonic()
        notifier.join()
        assert others[0].result() == [task_id]
        took.append(time.monotonic() - began)
    assert min(took) < POLL_SECONDS / 2
    store.close()


def test_waiter_interrupted_while_leaving_is_forgotten(store: FakeStore) -> None:
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


def test_stuck_leading_thread_does_not_block_others() -> None:
    store = FakeStore(False, poll=QUICK, stalled=3 * QUICK)
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


def test_on_interval_may_wait_for_another_result(store: FakeStore) -> None:
    inner: list[list[str]] = []

    def wait_too() -> None:
        if not inner:
            store.end("inner")
            inner.append(list(store.watcher.wait(["inner"], PATIENCE)))

    thread = Thread(store.watcher, "a", on_interval=wait_too)
    until(lambda: inner)
    store.tell("a")
    assert (thread.result(), inner) == (["a"], [["inner"]])


def test_source_is_unsubscribed_when_nobody_waits() -> None:
    store = FakeStore(False)
    store.watcher.wait(["a"], 0.01)
    (source,) = store.sources
    assert source.subscribed == set()
    store.watcher.wait(["b"], 0.01)
    assert store.sources == [source]
    store.close()
    assert source.closed


def test_thread_and_source_are_closed_when_nobody_waits() -> None:
    store = FakeStore(True)
    watcher = ResultWatcher(store, linger=0.0, poll=QUICK)
    for number in range(2):
        assert watcher.wait(["a"], 0.05) == {}
        until(lambda: watcher.loops._thread is None and not watcher._notifications.opened)
        assert all(source.closed for source in store.sources)
        assert len(store.sources) == number + 1


def test_waiter_continues_with_a_new_source_after_close(store: FakeStore) -> None:
    thread = Thread(store.watcher, "a")
    until(lambda: store.is_subscribed() and waiting(store, "a"))
    store.watcher.close()
    assert store.sources[0].closed
    until(lambda: len(store.sources) > 1 and store.is_subscribed())
    store.tell("a")
    assert thread.result() == ["a"]
    store.watcher.close()
    store.watcher.close()
    assert all(source.closed for source in store.sources)
    until(lambda: store.watcher.loops._thread is None)


def test_short_lived_waiters_miss_no_results(store: FakeStore) -> None:
    lost: list[str] = []

    def wait(name: str) -> None:
        for number in range(30):
            task_id = f"{name}.{number}"
            notifying_timer = threading.Timer(0.001, store.tell, (task_id,))
            notifying_timer.start()
            if list(store.watcher.wait([task_id], PATIENCE)) != [task_id]:
                lost.append(task_id)
            notifying_timer.join()

    began = time.monotonic()
    threads = [threading.Thread(target=wait, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert len(store.sources) == 1
    assert time.monotonic() - began < 30 * POLL_SECONDS / 2, "they were only found by polling twice a second"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_has_its_own_thread_and_source(store: FakeStore) -> None:
    thread = Thread(store.watcher, "a")
    until(lambda: store.is_subscribed() and waiting(store, "a"))
    store.watcher.promises.call("promised", print)
    pid = os.fork()
    if pid == 0:
        try:
            assert store.sources[0].closed  # abandoned
            assert not store.watcher.waited_for()
            own = Thread(store.watcher, "b")
            until(lambda: store.is_subscribed() and waiting(store, "b"))
            store.tell("b")
            os._exit(0 if own.result() == ["b"] and len(store.sources) == 2 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store.tell("a")
    assert thread.result() == ["a"]
    store.end("promised")


# -- callbacks and event loops --


def test_slow_callback_does_not_block_waiters() -> None:
    store = FakeStore(False)
    begun, go_on = threading.Event(), threading.Event()
    store.end("slow", "next")
    received: list[str] = []
    store.watcher.promises.call("slow", lambda found: (begun.set(), go_on.wait(PATIENCE)))
    assert begun.wait(PATIENCE)
    store.watcher.promises.call("next", lambda found: received.append("next"))
    threads = [Thread(store.watcher, str(number)) for number in range(4)]
    until(lambda: waiting(store, "next", "0", "1", "2", "3"))
    del store.reads[:]
    began = time.monotonic()
    for number, thread in enumerate(threads):
        time.sleep(0.2)  # the lead changes twice a second
        store.tell(str(number))
        assert thread.result() == [str(number)]
    assert time.monotonic() - began < 0.8 + 1.5 * POLL_SECONDS
    assert len(store.reads) < 20
    go_on.set()
    until(lambda: received)
    store.close()


def test_event_loops_and_threads_share_a_source(store: FakeStore) -> None:
    ids = [str(number) for number in range(10)]
    threads = [Thread(store.watcher, task_id) for task_id in ids[:5]]

    async def main() -> list[Any]:
        awaiting = asyncio.gather(*[ended(store.watcher, task_id) for task_id in [*ids, *ids]])
        await asyncio.to_thread(until, lambda: store.is_subscribed() and waiting(store, *ids))
        store.tell(*ids)
        return [meta["result"] for meta in await awaiting]

    assert asyncio.run(main()) == [*ids, *ids]
    assert [thread.result() for thread in threads] == [[task_id] for task_id in ids[:5]]
    assert len(store.sources) == 1


def test_timed_out_await_does_not_affect_others_in_its_loop(store: FakeStore) -> None:
    async def main() -> str:
        patient = asyncio.ensure_future(ended(store.watcher, "a"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ended(store.watcher, "a"), 0.05)
        store.tell("a")
        return str((await patient)["result"])

    assert asyncio.run(main()) == "a"
    until(lambda: not store.watcher.waited_for())


def test_closed_event_loop_does_not_affect_other_waiters(store: FakeStore) -> None:
    loop = asyncio.new_event_loop()
    left = loop.create_task(ended(store.watcher, "a"))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    thread = Thread(store.watcher, "b")
    store.tell("a", "b")
    assert thread.result() == ["b"]
    until(lambda: "a" not in store.watcher.waited_for())
    left._log_destroy_pending = False  # type: ignore[attr-defined]


def test_await_raises_if_the_store_is_unavailable(store: FakeStore) -> None:
    store.away = True
    with pytest.raises(BackendError, match="away"):
        asyncio.run(ended(store.watcher, "a"))
    store.away = False
    store.end("a")
    assert asyncio.run(ended(store.watcher, "a"))["result"] == "a"


def test_waiters_survive_a_short_outage_of_the_store(store: FakeStore) -> None:
    threads = [Thread(store.watcher, task_id) for task_id in ("a", "b")]
    until(lambda: store.is_subscribed() and waiting(store, "a", "b"))
    store.away = True
    store.sources[-1].cut()
    del store.reads[:]
    until(lambda: len(store.reads) > 1)
    late = threading.Event()
    loop = threading.Thread(target=lambda: asyncio.run(ended(store.watcher, "a")) and late.set())
    loop.start()
    store.away = False
    store.end("a")
    store.end("b")
    assert [thread.result() for thread in threads] == [["a"], ["b"]]
    loop.join(PATIENCE)
    assert late.is_set()


def test_unavailable_store_is_polled_rarely(store: FakeStore) -> None:
    thread = Thread(store.watcher, "a")
    until(lambda: waiting(store, "a"))
    store.away = True
    store.sources[-1].cut()
    del store.read_at[:]
    until(lambda: len(store.read_at) > 2)
    assert store.read_at[2] - store.read_at[0] > SLOWEST
    store.away = False
    store.end("a")
    assert thread.result() == ["a"]


def test_waiters_get_an_error_after_a_long_outage(store: FakeStore) -> None:
    watcher = ResultWatcher(store, outage=0.1, poll=QUICK)
    threads = [Thread(watcher, task_id) for task_id in ("a", "b")]
    until(lambda: watcher.waited_for() == {"a", "b"} and waiting_in(store, "a", "b"))
    store.away = True
    store.sources[-1].cut()
    assert [type(thread.result()) for thread in threads] == [BackendError, BackendError]
    watcher.close()


def waiting_in(store: FakeStore, *ids: str) -> bool:
    return set().union(*store.reads) >= set(ids)


def test_promises_survive_an_outage_of_the_store(store: FakeStore, caplog: pytest.LogCaptureFixture) -> None:
    received: list[Any] = []
    store.clock = FakeClock()
    store.away = True
    store.watcher.promises.call("a", received.append)
    until(lambda: len(store.clock.slept) > 3)
    (warning,) = caplog.messages
    assert warning == "promises are waiting for the result store: the store is away"
    store.clock.advance(60.0)
    until(lambda: caplog.messages == [warning] * 2)
    store.away = False
    store.end("a")
    until(lambda: received)
    assert received[0]["result"] == "a"


def test_damaged_result_fails_only_its_own_waiters(store: FakeStore) -> None:
    store.store_rows([("torn", "SUCCESS", b"[1", None)])
    received: list[Any] = []
    store.watcher.promises.call("torn", received.append)
    assert isinstance(Thread(store.watcher, "torn").result(), DamagedResult)
    with pytest.raises(DamagedResult):
        asyncio.run(ended(store.watcher, "torn"))
    until(lambda: received)
    assert isinstance(received[0], DamagedResult)
    store.end("fine")
    assert Thread(store.watcher, "torn", "fine").result() == ["fine"]


def test_idle_waiter_thread_lets_other_threads_lead() -> None:
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


# -- groups --

GROUP = [f"member-{number}" for number in range(1000)]


class Group:
    """A thread that waits for all of GROUP. ended: which ids it got at each wake-up."""

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


def test_members_of_a_group_are_read_when_notified_and_yielded_once(store: FakeStore) -> None:
    group = Group(store.watcher)
    until(lambda: store.is_subscribed() and waiting(store, *GROUP))
    began = time.monotonic()
    del store.reads[:]
    for task_id in GROUP:
        store.tell(task_id)
    ended = group.result()
    assert sorted(task_id for some in ended for task_id in some) == sorted(GROUP)
    polls = 1 + (time.monotonic() - began) / POLL_SECONDS
    assert sum(map(len, store.reads)) <= len(GROUP) * (
        1 + polls
    )  # and not the whole group for each notification


def test_ended_members_are_no_longer_waited_for(store: FakeStore) -> None:
    group = Group(store.watcher)
    until(lambda: store.is_subscribed() and waiting(store, *GROUP))
    for end in range(20, len(GROUP), 20):
        store.tell(*GROUP[end - 20 : end])
        left = set(GROUP[end:])
        until(lambda left=left: store.watcher.waited_for() == left)  # type: ignore[misc]
    store.tell(*GROUP[-20:-1])
    until(lambda: store.watcher.waited_for() == {GROUP[-1]})
    until(lambda: len(store.sources[-1].subscribed) <= 3)  # it resubscribes only when less than half is left
    assert GROUP[-1] in store.sources[-1].subscribed
    store.tell(GROUP[-1])
    group.result()
    assert (
        store.sources[-1].subscriptions < 25
    )  # it resubscribes when the group has halved, not whenever it shrinks


def test_notification_for_all_reads_small_waits_first(store: FakeStore) -> None:
    """Reading many results is slow and is therefore throttled; reading a single one is not."""
    group = Group(store.watcher)
    until(lambda: store.is_subscribed() and waiting(store, *GROUP))
    single = Thread(store.watcher, "single")
    until(lambda: waiting(store, "single"))
    store.watcher._times._many_rested_at = store.watcher._times._many_at = time.monotonic() + 3600
    del store.reads[:]
    store.end("single", *GROUP)
    store.sources[-1].tell("any")
    assert single.result() == ["single"]
    assert store.reads == [{"single"}] * len(store.reads)
    store.watcher._times._many_rested_at = 0.0
    store.sources[-1].tell("any")
    assert group.result()[-1] == set(GROUP)


def test_polls_for_many_results_are_spaced(store: FakeStore) -> None:
    store.notifies = False
    store.takes = 0.01
    group = Group(store.watcher)
    until(lambda: len(store.reads) > 5)
    store.end(*GROUP)
    group.result()
    intervals = [after - before for before, after in zip(store.read_at, store.read_at[1:], strict=False)]
    assert min(intervals[1:]) > 3 * 0.01


def test_paused_iteration_gets_all_results_that_ended_meanwhile(store: FakeStore) -> None:
    walk = store.watcher.wait_each(["a", "b", "c"], PATIENCE)
    store.end("a")
    assert set(next(walk)) == {"a"}
    other = Thread(store.watcher, "x")
    until(lambda: store.is_subscribed() and waiting(store, "x"))
    store.tell("b")
    until(lambda: store.watcher.waited_for() == {"c", "x"})  # it is not read again and again
    store.tell("x")
    assert other.result() == ["x"]
    store.tell("c")
    assert set().union(*walk) == {"b", "c"}
    assert store.watcher.waited_for() == set()


def test_closed_iteration_is_forgotten(store: FakeStore) -> None:
    walk = store.watcher.wait_each(["a", "b"], PATIENCE)
    store.end("a")
    next(walk)
    walk.close()  # type: ignore[attr-defined]
    assert store.watcher.waited_for() == set()


def test_wait_each_raises_if_the_store_is_unavailable(store: FakeStore) -> None:
    store.away = True
    with pytest.raises(BackendError, match="the store is away"):
        list(store.watcher.wait_each(["a", "b"], PATIENCE))


def test_wait_each_yields_damaged_results(store: FakeStore) -> None:
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
    """Each read takes until the timeout; "a" ends when it is no longer waited for."""

    def __init__(self) -> None:
        super().__init__(False, poll=QUICK)
        self.clock = FakeClock()
        self.notifies = False

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        self.clock.advance(PATIENCE)
        if not self.watcher.waited_for():
            self.end("a")
        return super().read_many(ids)


def test_result_that_ends_at_the_last_moment_is_yielded() -> None:
    store = EndingLate()
    assert [set(found) for found in store.watcher.wait_each(["a", "b"], PATIENCE)] == [{"a"}]
    assert store.reads[-1] == {"a", "b"}
    store.close()
