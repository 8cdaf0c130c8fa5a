"""GroupResult and ResultSet: reading, waiting, saving and restoring."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from qworker import GroupResult, QWorker, ResultSet
from qworker.backends.base import Found
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.clock import SYSTEM_CLOCK
from qworker.context import set_default_app
from qworker.errors import BackendError, ChordError, ResultTimeout
from qworker.message.context import Context, pop, push
from qworker.message.exceptions import exception_to_dict
from qworker.results.gathering import PendingResults
from qworker.results.result import AsyncResult, result_from_tuple
from qworker.results.waiting import allow_join_result
from qworker.tasks.eager import EagerResult
from qworker.transports.presence import Presence
from tests.support.stores import KeepingStore, make_app
from tests.support.waiting import until


@pytest.fixture(params=["cache+memory://", "sqlite:///results.db"])
def app(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QWorker]:
    """An app on the system clock, because threads wait; with results in memory and in a file."""
    monkeypatch.chdir(tmp_path)
    app = QWorker("proj", broker=KeepingStore(), backend=request.param, set_as_current=False)
    yield app
    app.close()


def end(app: QWorker, **ended: Any) -> None:
    """Store the result of each id: a value or an exception."""
    for task_id, value in ended.items():
        failed = isinstance(value, BaseException)
        meta = app.backend.meta(
            task_id, "FAILURE" if failed else "SUCCESS", exception_to_dict(value) if failed else value
        )
        app.backend.store(task_id, meta)


def end_later(app: QWorker, **ended: Any) -> None:
    """Store results from another thread, one after the other."""

    def run() -> None:
        for task_id, value in ended.items():
            end(app, **{task_id: value})

    threading.Timer(0.02, run).start()


def group(app: QWorker, *ids: str, **options: Any) -> GroupResult[Any]:
    return GroupResult("g", [app.AsyncResult(each) for each in ids], app=app, **options)


# -- waiting --


def test_get_returns_the_values_in_order(app: QWorker) -> None:
    end(app, b=2)
    end_later(app, c=3, a=1)
    assert group(app, "a", "b", "c").get(timeout=10) == [1, 2, 3]


def test_get_raises_the_first_failure_at_once(app: QWorker) -> None:
    end_later(app, b=KeyError("no"))
    with pytest.raises(KeyError, match="no"):
        group(app, "a", "b", "c").get(timeout=10)


def test_get_without_propagate_returns_exceptions(app: QWorker) -> None:
    end(app, a=1, b=KeyError("no"))
    assert repr(group(app, "a", "b").get(propagate=False)) == "[1, KeyError('no')]"


def test_get_raises_the_failure_of_a_parent(app: QWorker) -> None:
    before = AsyncResult("before", app=app, parent=app.AsyncResult("first"))
    end_later(app, first=KeyError("early"))
    with pytest.raises(KeyError, match="early"):
        group(app, "a", "b", parent=before).get(timeout=10)
    with pytest.raises(KeyError, match="early"):
        group(app, "a", "b", parent=before).get(timeout=10)
    with pytest.raises(ResultTimeout):
        group(app, "a", "b", parent=before).get(timeout=0, propagate=False)


@pytest.mark.parametrize("timeout", [0, -1, 0.02, timedelta(milliseconds=20)])
def test_get_times_out(app: QWorker, timeout: Any) -> None:
    end(app, b=2)
    with pytest.raises(ResultTimeout, match=r"2 of 3 tasks .*the first is task a \(state: PENDING\).*doctor"):
        group(app, "a", "b", "c").get(timeout=timeout)


def test_empty_group_is_ready(app: QWorker) -> None:
    empty = group(app)
    assert empty.get(timeout=0) == []
    assert (empty.ready(), empty.waiting(), empty.failed(), empty.completed_count()) == (
        True,
        False,
        False,
        0,
    )
    assert ResultSet([], app).get() == []
    assert list(empty.as_completed()) == list(empty.iterate()) == list(empty.iter_native()) == []
    assert asyncio.run(_await(empty)) == []


def test_duplicate_member_is_returned_twice(app: QWorker) -> None:
    end_later(app, a=1, b=2)
    assert group(app, "a", "b", "a").get(timeout=10) == [1, 2, 1]


def test_pending_results_return_ended_ones_in_order(app: QWorker) -> None:
    results = [app.AsyncResult(each) for each in ("a", "b", "c", "a")]
    pending = PendingResults(results, [before := app.AsyncResult("before")])
    metas: dict[str, Any] = {each: app.backend.meta(each, "SUCCESS", each) for each in ("before", *"cab")}
    ended = pending.take(metas)
    assert [(result, meta["result"]) for result, meta in ended] == list(zip(results, "abca", strict=True))
    assert all(results[place] is result for place, (result, _) in enumerate(ended))
    assert all(each._meta is not None for each in (*results, before))  # they are not read again


def test_nested_group_gives_a_nested_list(app: QWorker) -> None:
    end_later(app, c=3, a=1, b=KeyError("no"))
    inner = GroupResult("inner", [app.AsyncResult("b"), app.AsyncResult("c")], app=app)
    outer: GroupResult[Any] = GroupResult("outer", [app.AsyncResult("a"), inner], app=app)  # type: ignore[list-item]
    assert repr(outer.get(timeout=10, propagate=False)) == "[1, [KeyError('no'), 3]]"
    assert (len(outer), outer.completed_count(), outer.failed(), outer.successful()) == (2, 1, True, False)
    with pytest.raises(KeyError):
        outer.get(timeout=10)


def test_ignored_result_is_not_waited_for(app: QWorker) -> None:
    ignored = app.send_task("work", ignore_result=True)
    end(app, a=1)
    both: ResultSet[Any] = ResultSet([app.AsyncResult("a"), ignored])
    assert (both.get(), both.ready(), both.failed(), both.completed_count()) == ([1, None], True, False, 1)
    assert asyncio.run(_await(both)) == [1, None]
    assert {each.id for each in both.as_completed()} == {"a", ignored.id}
    assert [task_id for task_id, _ in both.iter_native()] == ["a"]


def test_eager_results_are_ready(app: QWorker) -> None:
    eager: ResultSet[Any] = ResultSet([EagerResult("e", 5, "SUCCESS", app=app)], app)
    assert (eager.get(), eager.ready(), eager.completed_count()) == ([5], True, 1)


def test_get_passes_results_to_callbacks(app: QWorker) -> None:
    end(app, a=1, b=2)
    seen: list[Any] = []
    assert group(app, "a", "b").get(callback=lambda *given: seen.append(given)) == []
    assert sorted(seen) == [("a", 1), ("b", 2)]
    metas: list[Any] = []
    group(app, "a", "b").get(on_message=metas.append)
    assert sorted((meta["task_id"], meta["status"]) for meta in metas) == [("a", "SUCCESS"), ("b", "SUCCESS")]


def test_waiting_inside_a_task_is_refused(app: QWorker) -> None:
    end(app, a=1)
    waits = group(app, "a")
    token = push(Context.from_message({"id": "me", "task": "t"}, ((), {}, {})))  # type: ignore[arg-type]
    try:
        for way in (waits.get, lambda: list(waits.iterate()), lambda: asyncio.run(_await(waits))):
            with pytest.raises(RuntimeError, match="must not wait for the result of another"):
                way()
        assert waits.get(disable_sync_subtasks=False) == [1]
        with allow_join_result():
            assert waits.get() == [1]
    finally:
        pop(token)


# -- in order of completion --


def test_as_completed_yields_results_as_they_end(app: QWorker) -> None:
    end(app, c=3)
    waits = group(app, "a", "b", "c")
    walk = waits.as_completed(timeout=10)
    steps = iter([{"a": 1}, {"b": 2}, {}])
    seen = []
    for result in walk:
        seen.append((result.id, result.get(timeout=0)))
        end(app, **next(steps))
    assert seen == [("c", 3), ("a", 1), ("b", 2)]
    with pytest.raises(ResultTimeout):
        list(group(app, "a", "unknown").as_completed(timeout=0))


def test_iterate_and_iter_native_yield_as_results_end(app: QWorker) -> None:
    end(app, a=1, b=KeyError("no"))
    assert dict(group(app, "a", "b").iter_native())["b"]["status"] == "FAILURE"
    with pytest.raises(KeyError):
        list(group(app, "a", "b").iterate())
    assert sorted(map(repr, group(app, "a", "b").iterate(propagate=False))) == ["1", "KeyError('no')"]


# -- asyncio --


async def _await(results: ResultSet[Any]) -> Any:
    return await results


def test_await(app: QWorker) -> None:
    end_later(app, b=2, a=1)
    assert asyncio.run(_await(group(app, "a", "b"))) == [1, 2]
    end_later(app, c=KeyError("no"))
    with pytest.raises(KeyError):
        asyncio.run(_await(group(app, "c", "d")))


def test_async_for(app: QWorker) -> None:
    async def main() -> list[Any]:
        steps = iter([{"a": 1}, {"b": 2}, {}])
        seen = []
        async for result in group(app, "a", "b", "c").as_completed(timeout=10):
            seen.append((result.id, await result))
            end(app, **next(steps))
        with pytest.raises(ResultTimeout):
            async for _ in group(app, "unknown").as_completed(timeout=0.01):
                pass
        return seen

    end(app, c=3)
    assert asyncio.run(main()) == [("c", 3), ("a", 1), ("b", 2)]


def test_cancelled_await_stops_waiting(app: QWorker) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(group(app, "a", "b")), 0.05)

    asyncio.run(main())
    until(lambda: not app.backend.watcher.waited_for())


def test_long_wait_warns_once_that_no_worker_is_running(caplog: pytest.LogCaptureFixture) -> None:
    app, store, clock = make_app()
    for alive in ([Presence("w@h", 1, ("celery",), 1, 0.0)], []):
        store.alive = alive
        caplog.clear()
        with pytest.raises(ResultTimeout):
            group(app, "a", "b").get(timeout=20, interval=0.001, on_interval=lambda: clock.advance(1.0))
        assert caplog.text.count("No worker is running on this broker: task a waits") == (not alive)


# -- promises --


def test_then_calls_back_when_all_succeeded(app: QWorker) -> None:
    seen: list[Any] = []
    end(app, a=1)
    later, there = group(app, "a", "b", "a", "c"), group(app, "a", "a")
    later.then(seen.append)
    there.then(seen.append)
    assert seen == [there]
    end_later(app, c=3, b=2)
    until(lambda: len(seen) == 2)
    assert seen[1] is later
    assert [each._meta["result"] for each in later] == [1, 2, 1, 3]
    ResultSet([], app).then(seen.append)
    assert len(seen) == 3


def test_then_reports_the_first_failure_once(app: QWorker, caplog: pytest.LogCaptureFixture) -> None:
    failures: list[Any] = []
    values: list[Any] = []
    group(app, "a", "b", "c").then(values.append, failures.append)
    end_later(app, b=KeyError("no"), c=3, a=1)
    until(lambda: failures and app.AsyncResult("a").ready())
    group(app, "a", "b").then(values.append, failures.append)
    assert list(map(repr, failures)) == ["KeyError('no')"] * 2
    until(lambda: not app.backend.watcher.waited_for())
    assert values == []

    def raises(_: Any) -> None:
        raise ValueError("of the callback")

    group(app, "a").then(raises)
    with pytest.raises(TypeError, match=r"callback of then\(\) must be"):
        group(app, "a").then(5)  # type: ignore[arg-type]


# -- reading states --


def test_state_methods_read_pending_members_in_one_call() -> None:
    app, looks = counting()
    end(app, a=1, b=KeyError("no"))
    some = group(app, "a", "b", "c")
    assert (some.ready(), looks.pop()) == (False, {"a", "b", "c"})
    assert (some.failed(), looks.pop()) == (True, {"c"})
    end(app, c=3)
    assert (some.completed_count(), looks.pop()) == (2, {"c"})
    assert (some.ready(), some.waiting(), some.successful(), looks) == (True, False, False, [])
    with pytest.raises(KeyError):
        some.maybe_throw()
    seen: list[Any] = []
    some.maybe_throw(lambda *given: seen.append(given), propagate=False)
    assert repr(seen) == "[('a', 1), ('b', KeyError('no')), ('c', 3)]"


def counting() -> tuple[QWorker, list[set[str]]]:
    """Return an app, and the list of ids of each read of its result store."""
    looks: list[set[str]] = []

    class CountingBackend(MemoryBackend):
        def read_many(self, ids: Any) -> Any:
            looks.append(set(ids))
            return super().read_many(ids)

    app, store, clock = make_app()
    backend = CountingBackend("cache+memory://", app.conf, clock)
    return QWorker("proj", broker=store, backend=backend, clock=clock, set_as_current=False), looks


# -- members --


def test_members_can_be_added_and_removed() -> None:
    app, _, _ = make_app()
    some: ResultSet[Any] = ResultSet([app.AsyncResult("a")])
    some.add(app.AsyncResult("b"))
    some.add(app.AsyncResult("b"))
    some.update([app.AsyncResult("a"), app.AsyncResult("c"), app.AsyncResult("c")])
    assert [each.id for each in some] == ["a", "b", "c"]
    some.remove("a")
    some.remove(app.AsyncResult("b"))
    some.discard("b")
    some.discard("c")
    with pytest.raises(KeyError):
        some.remove("c")
    assert (len(some), bool(some)) == (0, False)
    some.add(app.AsyncResult("d"))
    some.clear()
    assert some.results == some.children == []


def test_str_repr_and_equality() -> None:
    app, _, _ = make_app()
    one = group(app, "a", "b")
    assert (str(one), repr(one), hash(one), bool(group(app))) == (
        "g", "<GroupResult: g [a, b]>", hash("g"), True,
    )  # fmt: skip
    assert one == group(app, "a", "b") == "g"
    assert one != group(app, "a")
    assert one != group(app, "a", "b", parent=app.AsyncResult("p"))
    assert repr(app.ResultSet(one.results)) == "<ResultSet: [a, b]>"
    assert app.ResultSet(one.results) == app.ResultSet([app.AsyncResult("a"), app.AsyncResult("b")])
    with pytest.raises(TypeError):
        hash(app.ResultSet([]))


# -- revoking and forgetting --


def test_revoke_sends_one_command() -> None:
    app, store, _ = make_app()
    group(app, "a", "b").revoke(terminate=True, signal="KILL")
    group(app).revoke()
    assert store.revoked == [(["a", "b"], True, "SIGKILL")]


def test_forget_includes_parents(app: QWorker) -> None:
    end(app, a=1, b=2, before=0, after=3)
    last = AsyncResult("after", app=app, parent=group(app, "a", "b", parent=app.AsyncResult("before")))
    assert last.as_list() == ["after", "g", "before"]
    last.forget()
    assert app.backend.get_many(["a", "b", "before", "after"]) == {}


def test_forget_includes_a_shared_parent_once() -> None:
    forgotten: list[list[str]] = []

    class CountingBackend(MemoryBackend):
        def forget_many(self, ids: Any) -> None:
            forgotten.append(sorted(ids))

    app, store, clock = make_app()
    backend = CountingBackend("cache+memory://", app.conf, clock)
    app = QWorker("proj", broker=store, backend=backend, clock=clock, set_as_current=False)
    first = app.AsyncResult("first")
    members = [AsyncResult(each, app=app, parent=first) for each in "ab"]
    AsyncResult("last", app=app, parent=GroupResult("g", members, first, app)).forget()
    assert forgotten == [["a", "b", "first", "last"]]


def chain(app: QWorker, length: int) -> AsyncResult[Any]:
    result = app.AsyncResult("0")
    for number in range(1, length):
        result = AsyncResult(str(number), app=app, parent=result)
    return result


def test_serialised_parents_of_a_long_chain_are_limited(app: QWorker) -> None:
    last = chain(app, 5000)
    app.backend.store("caller", app.backend.meta("caller", "SUCCESS", children=[last.as_tuple()]))
    (child,) = app.AsyncResult("caller").children
    assert child.as_list() == last.as_list()[:32]
    assert len(last.as_list()) == 5000
    end(app, **{"0": 1, "7": KeyError("early"), "4999": 5})
    with pytest.raises(KeyError, match="early"):
        last.get(timeout=5)
    last.forget()
    assert app.backend.get_many(["0", "7", "4999"]) == {}


# -- saving, restoring, pickling --


def test_save_restore_and_delete(app: QWorker) -> None:
    saved = group(app, "a", "b", parent=AsyncResult("p", app=app, parent=app.AsyncResult("q")))
    saved.save()
    restored = app.GroupResult.restore("g")
    assert (restored, restored.parent.parent.id, restored.app) == (saved, "q", app)
    assert restored.results[0].app is app
    restored.delete()
    assert app.GroupResult.restore("g") is None
    assert app.GroupResult("g", []).app is app


def test_as_tuple_round_trip() -> None:
    app, _, _ = make_app()
    inner = group(app, "a", "b")
    outer: GroupResult[Any] = GroupResult("o", [inner, app.AsyncResult("c")], app.AsyncResult("p"), app)  # type: ignore[list-item]
    after = AsyncResult("after", app=app, parent=outer)
    for result in (inner, outer, after):
        again = result_from_tuple(json.loads(json.dumps(result.as_tuple())), app)
        assert (again, again.parent) == (result, result.parent)
    for nonsense in ((("a", None), 5), ((5, None), []), (("a", None), [5]), 7):
        with pytest.raises(ValueError, match="does not describe a result"):
            result_from_tuple(nonsense, app)


def test_unpickled_result_uses_the_current_app() -> None:
    app = QWorker("proj", broker=KeepingStore(), backend="cache+memory://")
    try:
        parted = group(app, "a", parent=app.AsyncResult("p"))
        copy = pickle.loads(pickle.dumps(parted))
        assert (copy, copy.parent, copy.app) == (parted, parted.parent, app)
        assert pickle.loads(pickle.dumps(app.ResultSet(parted.results))).results == parted.results
    finally:
        set_default_app(None)


# -- trees --


def test_children_include_groups() -> None:
    app, _, _ = make_app()
    members = group(app, "a", "b")
    meta = app.backend.meta("root", "SUCCESS", 0, children=[members.as_tuple()])
    app.backend.store("root", meta)
    end(app, a=1, b=2)
    root = app.AsyncResult("root")
    assert root.children == [members]
    assert [(parent and parent.id, node.id) for parent, node in root.iterdeps()] == [
        (None, "root"), ("root", "g"), ("g", "a"), ("g", "b"),
    ]  # fmt: skip
    assert [value for _, value in root.collect()] == [0, [1, 2], 1, 2]
    assert root.get_leaf() == 2


def test_tree_reads_each_level_once() -> None:
    app, looks = counting()
    before = group(app, "a", "b")
    waits: GroupResult[Any] = GroupResult("w", [app.AsyncResult("x")], app=app)
    meta = app.backend.meta(
        "root", "SUCCESS", 0, children=[before.as_tuple(), waits.as_tuple(), [["c", None], None]]
    )
    app.backend.store("root", {**meta, "name": "make"})
    app.backend.store(
        "a", app.backend.meta("a", "SUCCESS", 1, children=[[["root", None], None], [["d", None], None]])
    )
    end(app, b=KeyError("no"))
    app.backend.store("c", app.backend.meta("c", "STARTED"))
    root = app.AsyncResult("root").tree()
    assert root == (
        "root", "make", "SUCCESS", (
            ("g", None, "FAILURE", (
                ("a", None, "SUCCESS", (("d", None, "PENDING", ()),)),
                ("b", None, "FAILURE", ()),
            )),
            ("w", None, "PENDING", (("x", None, "PENDING", ()),)),
            ("c", None, "STARTED", ()),
        ),
    )  # fmt: skip
    assert looks == [{"root"}, {"c"}, {"a", "b", "x"}, {"d"}]
    assert [group(app, *ids).tree().state for ids in ("ab", "ax", "x", "c", "")] == [
        "FAILURE", "STARTED", "PENDING", "STARTED", "SUCCESS",
    ]  # fmt: skip


class LateBackend(MemoryBackend):
    """Reads no results at first; waiting callers get those in *last* before the others."""

    def __init__(self, app: QWorker, last: set[str]) -> None:
        super().__init__("late://", app.conf, SYSTEM_CLOCK)
        self.last = last
        self.ending: Callable[[], None] = lambda: None

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        found = super().read_many(ids)
        if self.last.isdisjoint(ids):
            self.ending()
        return found

    def wait_each(self, ids: Collection[str], *rest: Any) -> Iterator[dict[str, Found]]:
        self.ending()
        yield super().read_many([each for each in ids if each in self.last])
        yield super().read_many([each for each in ids if each not in self.last])


@pytest.mark.parametrize("how", ["get", "await"])
@pytest.mark.parametrize("what", ["one", "group"])
@pytest.mark.parametrize("damaged", [False, True], ids=["", "with an unreadable member"])
def test_error_of_a_failed_chord_does_not_depend_on_the_order_of_results(
    how: str, what: str, damaged: bool
) -> None:
    plain = QWorker("proj", broker=KeepingStore(), set_as_current=False)
    backend = LateBackend(plain, {"body"})
    app = QWorker("proj", broker=KeepingStore(), backend=backend, set_as_current=False)
    header = group(app, "torn", "member") if damaged else group(app, "member")

    def ending() -> None:
        end(app, member=ValueError("the member's"), body=ChordError("Dependency member raised"))
        if damaged:
            backend.store_rows([("torn", "SUCCESS", b"[1, 2", backend.expiry())])

    backend.ending = ending
    result: Any = app.AsyncResult("body")
    result.parent = header
    if what == "group":
        result = GroupResult("bodies", [app.AsyncResult("body")], header, app)

    async def awaited() -> Any:
        ending()
        return await result

    with pytest.raises(ValueError, match="the member's"):
        asyncio.run(awaited()) if how == "await" else result.get(timeout=20)
    app.close()


@pytest.mark.parametrize("how", ["get", "await"])
@pytest.mark.parametrize("what", ["one", "group"])
@pytest.mark.parametrize("known", [(), ("a",), ("a", "second")], ids=["", "own", "own and parent"])
def test_earliest_failure_among_parents_is_raised(
    app: QWorker, how: str, what: str, known: tuple[str, ...]
) -> None:
    """Not the failure of the nearest parent, nor its own."""
    end(app, first=ValueError("early"), second=ChordError("late"), a=ChordError("latest"))
    second = AsyncResult("second", app=app, parent=app.AsyncResult("first"))
    result: Any = AsyncResult("a", app=app, parent=second)
    if what == "group":
        result = group(app, "a", parent=second)
    assert [each.state for each in (*result._singles(), second) if each.id in known] == ["FAILURE"] * len(
        known
    )
    with pytest.raises(ValueError, match="early"):
        asyncio.run(_await(result)) if how == "await" else result.get(timeout=20)


def test_failed_group_leaves_no_tasks_in_the_event_loop(app: QWorker) -> None:
    """asyncio logs an error for pending tasks when the loop is closed."""
    end(app, a=ValueError("no"))
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(ValueError, match="no"):
            loop.run_until_complete(_await(group(app, "a", "b")))
        assert not asyncio.all_tasks(loop)
        assert not app.backend.watcher.waited_for()
    finally:
        loop.close()


@pytest.mark.parametrize("how", ["get", "await"])
@pytest.mark.parametrize("what", ["one", "group"])
def test_unavailable_store_is_waited_for_to_find_the_first_failure(how: str, what: str) -> None:
    """An outage must not be taken for the absence of an earlier failure."""
    outages = [BackendError("away"), BackendError("away")]

    class UnavailableBackend(MemoryBackend):
        def read_many(self, ids: Collection[str]) -> dict[str, Found]:
            if list(ids) == ["before"] and outages and self.get("a"):
                end(app, before=KeyError("early"))
                raise outages.pop()
            return super().read_many(ids)

    plain = QWorker("proj", broker=KeepingStore(), set_as_current=False)
    backend = UnavailableBackend("away://", plain.conf, SYSTEM_CLOCK)
    app = QWorker("proj", broker=KeepingStore(), backend=backend, set_as_current=False)
    before = app.AsyncResult("before")
    result: Any = AsyncResult("a", app=app, parent=before)
    if what == "group":
        result = group(app, "a", parent=before)

    def end_when_waited_for() -> None:
        until(lambda: "a" in backend.watcher.waited_for())
        end(app, a=ChordError("late"))

    threading.Thread(target=end_when_waited_for).start()
    with pytest.raises(KeyError, match="early"):
        asyncio.run(_await(result)) if how == "await" else result.get(timeout=20)
    assert not outages
    app.close()
