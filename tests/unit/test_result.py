"""Results: waiting, reading, failing, and the warning if no worker consumes the queue."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.backends.base import Backend, Meta
from qworker.clock import SYSTEM_CLOCK
from qworker.context import set_default_app
from qworker.errors import BackendError, NotSupported, ResultTimeout, SoftTimeLimitExceeded, TaskRevoked
from qworker.message.context import Context, pop, push
from qworker.message.exceptions import exception_to_dict
from qworker.results.result import AsyncResult, RemoteTraceback, result_from_tuple
from qworker.results.several import ResultSet
from qworker.results.waiting import allow_join_result
from qworker.tasks.eager import EagerResult
from qworker.transports.presence import Presence
from tests.support.stores import KeepingStore, make_app
from tests.support.waiting import until


@pytest.fixture(params=["cache+memory://", "sqlite:///results.db"])
def app(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QWorker]:
    """An app on the system clock, because threads wait here; with results in memory, and in a file."""
    monkeypatch.chdir(tmp_path)
    app = QWorker("proj", broker=KeepingStore(), backend=request.param, set_as_current=False)
    yield app
    app.close()


def end(app: QWorker, task_id: str, status: str = "SUCCESS", value: Any = None, **extra: Any) -> None:
    result = exception_to_dict(value) if isinstance(value, BaseException) else value
    app.backend.store(task_id, app.backend.meta(task_id, status, result, **extra))


def end_later(app: QWorker, task_id: str, *args: Any, delay: float = 0.05, **extra: Any) -> None:
    threading.Timer(delay, end, (app, task_id, *args), extra).start()


# -- waiting --


def test_get_returns_the_value(app: QWorker) -> None:
    result = app.send_task("work")
    assert (result.state, result.ready(), result.result) == ("PENDING", False, None)
    end(app, result.id, value={"a": 1})
    assert result.get() == {"a": 1}
    assert (result.state, result.status, result.ready(), result.successful(), result.failed()) == (
        "SUCCESS", "SUCCESS", True, True, False,
    )  # fmt: skip


def test_get_waits_for_the_result(app: QWorker) -> None:
    result = app.send_task("work")
    end_later(app, result.id, "SUCCESS", 5)
    assert result.get(timeout=10) == 5


def test_get_raises_the_exception_of_the_task_with_its_traceback(app: QWorker) -> None:
    result = app.send_task("work")
    end(app, result.id, "FAILURE", KeyError("no"), traceback="Traceback: in the worker")
    with pytest.raises(KeyError) as caught:
        result.get()
    assert caught.value.args == ("no",)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in the worker" in str(caught.value.__cause__)
    assert repr(result.get(propagate=False)) == "KeyError('no')"
    assert (result.failed(), result.traceback) == (True, "Traceback: in the worker")
    with pytest.raises(KeyError):
        result.maybe_throw()


def test_unknown_exception_class_is_recreated_by_name(app: QWorker) -> None:
    result = app.send_task("work")
    end(app, result.id, "FAILURE", {"exc_type": "Odd", "exc_message": ["x"], "exc_module": "nowhere"})
    with pytest.raises(Exception, match="x") as caught:
        result.get()
    assert type(caught.value).__name__ == "Odd"


def test_get_raises_for_a_revoked_task(app: QWorker) -> None:
    result = app.send_task("work")
    end(app, result.id, "REVOKED", TaskRevoked("revoked"))
    with pytest.raises(TaskRevoked):
        result.get()
    other = app.send_task("work")
    end(app, other.id, "REVOKED", None)
    assert isinstance(other.result, TaskRevoked)


def test_get_raises_after_the_timeout(app: QWorker) -> None:
    result = app.send_task("work")
    ticks: list[int] = []
    with pytest.raises(ResultTimeout, match=r"not ended within 0.1 s \(state: PENDING\).*doctor") as caught:
        result.get(timeout=0.1, interval=0.02, on_interval=lambda: ticks.append(1))
    assert isinstance(caught.value, TimeoutError)
    assert ticks


def test_timeout_zero_reads_once(app: QWorker) -> None:
    result = app.send_task("work")
    with pytest.raises(ResultTimeout):
        result.get(timeout=0)
    end(app, result.id, value=1)
    assert result.get(timeout=0) == 1


@pytest.mark.parametrize("timeout", [timedelta(milliseconds=20), timedelta(days=-1), -3, 0, 0.01])
def test_timeout_is_a_number_or_a_timedelta(app: QWorker, timeout: Any) -> None:
    with pytest.raises(ResultTimeout):
        app.send_task("work").get(timeout=timeout)


@pytest.mark.parametrize("timeout", ["5", True, float("nan"), [1], datetime(2030, 1, 1)])
def test_invalid_timeouts_are_rejected(app: QWorker, timeout: Any) -> None:
    ended, ignored = app.send_task("work"), app.send_task("work", ignore_result=True)
    end(app, ended.id, value=1)
    for result in (app.send_task("work"), ended, ignored):
        with pytest.raises(TypeError, match="timeout must be a number of seconds, a timedelta, or None"):
            result.get(timeout=timeout)


def test_result_stored_at_the_last_moment_is_returned() -> None:
    class EndingLate(Never):
        reads = 0

        def get(self, task_id: str) -> Meta | None:
            self.reads += 1
            return {"status": "SUCCESS", "result": 5} if self.reads > 1 else None

    app, store, clock = make_app()
    backend = EndingLate("just://", app.conf, clock)
    app = QWorker("proj", broker=store, backend=backend, clock=clock, set_as_current=False)
    assert app.send_task("work").get(timeout=0) == 5


def test_state_reads_the_store_once() -> None:
    class Counting(Never):
        reads = 0

        def get(self, task_id: str) -> Meta | None:
            self.reads += 1
            return None

    app, store, clock = make_app()
    backend = Counting("count://", app.conf, clock)
    app = QWorker("proj", broker=store, backend=backend, clock=clock, set_as_current=False)
    assert app.AsyncResult("a").state == "PENDING"
    assert backend.reads == 1


def test_get_passes_the_value_to_the_callback(app: QWorker) -> None:
    result = app.send_task("work")
    end(app, result.id, value=3)
    seen: list[Any] = []
    result.get(callback=lambda task_id, value: seen.append((task_id, value)))
    assert seen == [(result.id, 3)]


def test_ignored_result_is_none_at_once(app: QWorker) -> None:
    result = app.send_task("work", ignore_result=True)
    assert result.get() is None
    assert asyncio.run(_await(result)) is None


def test_get_without_a_result_store_is_an_error() -> None:
    app = QWorker("proj", broker=KeepingStore(), backend="disabled://", set_as_current=False)
    with pytest.raises(NotSupported, match="set result_backend"):
        app.send_task("work").get(timeout=1)


# -- inside a task --


def test_waiting_for_a_result_inside_a_task_is_an_error(app: QWorker) -> None:
    result = app.send_task("work")
    end(app, result.id, value=1)
    token = push(Context.from_message({"id": "me", "task": "t"}, ((), {}, {})))  # type: ignore[arg-type]
    try:
        with pytest.raises(RuntimeError, match="must not wait for the result of another"):
            result.get()
        with pytest.raises(RuntimeError, match="must not wait"):
            asyncio.run(_await(app.AsyncResult("other")))
        assert result.get(disable_sync_subtasks=False) == 1
        with allow_join_result():
            assert result.get() == 1
    finally:
        pop(token)


def test_waiting_in_a_directly_called_task_is_allowed(app: QWorker) -> None:
    result = app.send_task("work")
    end(app, result.id, value=1)
    token = push(Context(task="t"))
    assert result.get() == 1
    pop(token)


# -- without workers --


class Never(Backend):
    """A store in which no task ever ends; it waits on the app's own clock."""

    def store(self, task_id: str, meta: Meta) -> bool:
        return True

    def get(self, task_id: str) -> Meta | None:
        return None

    def forget(self, task_id: str) -> None: ...

    def wait(self, ids: Any, timeout: float | None, on_interval: Any = None, interval: float = 0) -> Any:
        assert timeout is not None
        self.clock.sleep(timeout)
        return {}


@pytest.mark.parametrize(
    ("alive", "expected"),
    [
        ([], "No worker is consuming queue far"),
        ([Presence("w@h", 1, ("celery",), 1, 0.0)], "No worker is consuming queue far"),
        ([Presence("w@h", 1, ("celery", "far"), 1, 0.0)], ""),
    ],
)
def test_missing_worker_is_warned_of_once_while_waiting(
    alive: list[Presence], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, store, clock = make_app()
    app = QWorker(
        "proj", broker=store, backend=Never("never://", app.conf, clock), clock=clock, set_as_current=False
    )
    store.alive = alive
    result = app.send_task("work", queue="far")
    with pytest.raises(ResultTimeout):
        result.get(timeout=30)
    assert caplog.text.count("No worker") == (1 if expected else 0)
    assert expected in caplog.text
    caplog.clear()
    with pytest.raises(ResultTimeout):
        app.AsyncResult("unknown").get(timeout=1)
    assert caplog.text == ""
    with pytest.raises(ResultTimeout):
        app.AsyncResult("unknown").get(timeout=3)
    assert ("No worker is running on this broker" in caplog.text) is (not alive)


def test_no_warning_if_the_broker_has_no_presence(caplog: pytest.LogCaptureFixture) -> None:
    app, store, clock = make_app()
    app = QWorker(
        "proj", broker=store, backend=Never("never://", app.conf, clock), clock=clock, set_as_current=False
    )
    store.presence = None
    with pytest.raises(ResultTimeout):
        app.send_task("work").get(timeout=30)
    assert "No worker" not in caplog.text


# -- reading --


def test_result_attributes_come_from_the_store(app: QWorker) -> None:
    result = app.send_task("work", queue="q")
    end(app, result.id, value=1, children=[[["c1", None], None]])
    assert (datetime.now(UTC) - (result.date_done or datetime.min.replace(tzinfo=UTC))).total_seconds() < 60
    assert result.children == [AsyncResult("c1")]
    assert result.children[0].app is app
    assert (result.queue, result.name, result.args, result.kwargs, result.worker, result.retries) == (
        "q", None, None, None, None, None,
    )  # fmt: skip


def test_custom_states(app: QWorker) -> None:
    result = app.send_task("work")
    end(app, result.id, "PROGRESS", {"done": 1})
    assert (result.state, result.info, result.ready(), result.date_done) == (
        "PROGRESS",
        {"done": 1},
        False,
        None,
    )
    end(app, result.id, "RETRY", ValueError("again"))
    assert (result.state, repr(result.info)) == ("RETRY", "ValueError('again')")


def test_forget(app: QWorker) -> None:
    result = app.send_task("work")
    end(app, result.id, value=1)
    assert result.get() == 1
    result.forget()
    assert result.state == "PENDING"


def test_revoke() -> None:
    app, store, _ = make_app()
    app.AsyncResult("a").revoke()
    app.AsyncResult("b").revoke(terminate=True, signal="SIGKILL")
    app.control.revoke(["c", "d"])
    app.control.terminate("e")
    assert store.revoked == [
        (["a"], False, "SIGTERM"), (["b"], True, "SIGKILL"), (["c", "d"], False, "SIGTERM"), (["e"], True,
        "SIGTERM"),
    ]  # fmt: skip


@pytest.mark.parametrize("given", [9, signal.SIGKILL, "KILL", "kill", "SIGKILL"])
def test_revoke_accepts_signal_names_and_numbers(given: Any) -> None:
    app, store, _ = make_app()
    app.AsyncResult("a").revoke(terminate=True, signal=given)
    app.control.revoke([app.AsyncResult("b"), "c"], terminate=True, signal=given)
    assert store.revoked == [(["a"], True, "SIGKILL"), (["b", "c"], True, "SIGKILL")]


@pytest.mark.parametrize("given", ["alarm", "SIGFOO", 0, "SIG_IGN"])
def test_revoke_rejects_invalid_signals(given: Any) -> None:
    app, store, _ = make_app()
    with pytest.raises(ValueError, match="is not a signal"):
        app.AsyncResult("a").revoke(terminate=True, signal=given)
    assert store.revoked == []


def test_result_is_identified_by_its_id(app: QWorker) -> None:
    result = app.AsyncResult("a")
    assert result == AsyncResult("a")
    assert result != AsyncResult("b")
    assert (str(result), repr(result), hash(result), result.task_id) == (
        "a",
        "<AsyncResult: a>",
        hash("a"),
        "a",
    )
    assert result.as_tuple() == (("a", None), None)
    described = json.loads(json.dumps(AsyncResult("c", parent=result).as_tuple()))
    again = result_from_tuple(described, app)
    assert (again.id, again.parent) == ("c", result)
    with pytest.raises(ValueError, match="does not describe a result"):
        result_from_tuple("nonsense")


def test_unpickled_result_uses_the_current_app() -> None:
    app = QWorker("proj", broker=KeepingStore(), backend="cache+memory://")
    try:
        result = app.send_task("work", queue="q")
        copy = pickle.loads(pickle.dumps(result))
        assert (copy, copy.queue, copy.app) == (result, "q", app)
    finally:
        set_default_app(None)


# -- asyncio --


async def _await(result: AsyncResult[Any]) -> Any:
    return await result


def test_await(app: QWorker) -> None:
    there, later, failing = (app.send_task("work") for _ in range(3))
    end(app, there.id, value=1)
    end_later(app, later.id, "SUCCESS", 2)
    end_later(app, failing.id, "FAILURE", KeyError("no"))

    async def main() -> None:
        assert await there == 1
        assert await asyncio.gather(later, later) == [2, 2]
        with pytest.raises(KeyError):
            await failing

    asyncio.run(main())


def test_awaiting_results_does_not_block_the_event_loop(app: QWorker) -> None:
    results = [app.send_task("work") for _ in range(30)]
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def main() -> list[Any]:
        ticking = asyncio.create_task(tick())
        awaited = asyncio.gather(*results)
        while ticks < 20:  # would not end if awaiting blocked the loop
            await asyncio.sleep(0.001)
        for number, result in enumerate(results):
            end(app, result.id, value=number)
        found = await awaited
        ticking.cancel()
        return list(found)

    assert asyncio.run(main()) == list(range(30))


def test_timed_out_await_does_not_affect_other_waiters(app: QWorker) -> None:
    result = app.send_task("work")

    async def main() -> None:
        patient = asyncio.ensure_future(_await(result))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_await(result), 0.02)
        end(app, result.id, value=7)
        assert await patient == 7

    asyncio.run(main())


def test_results_are_awaited_in_several_loops(app: QWorker) -> None:
    for number in range(3):
        result = app.send_task("work")
        end_later(app, result.id, "SUCCESS", number, delay=0.02)
        assert asyncio.run(_await(result)) == number


def test_await_raises_errors_of_the_result_store() -> None:
    class Failing(Never):
        def get(self, task_id: str) -> Meta | None:
            raise BackendError("the store is away")

    app, store, _ = make_app()
    app = QWorker("proj", broker=store, backend=Failing("f://", app.conf, SYSTEM_CLOCK), set_as_current=False)
    with pytest.raises(BackendError, match="the store is away"):
        asyncio.run(_await(app.send_task("work")))


# -- promises --


def test_then_calls_the_callback(app: QWorker) -> None:
    there, later, failing = (app.send_task("work") for _ in range(3))
    seen: list[Any] = []
    end(app, there.id, value=1)
    there.then(lambda result: seen.append(result.get()))
    assert seen == [1]
    there.then(lambda result: seen.append(result.get() + 1))
    assert seen == [1, 2]
    later.then(lambda result: seen.append(result.get()))
    failing.then(seen.append, on_error=lambda error: seen.append(repr(error)))
    end(app, later.id, value=3)
    end(app, failing.id, "FAILURE", KeyError("no"))
    until(lambda: len(seen) == 4)
    assert sorted(map(str, seen)) == ["1", "2", "3", "KeyError('no')"]


def test_then_callback_runs_once_when_get_returns(app: QWorker) -> None:
    result = app.send_task("work")
    seen: list[Any] = []
    result.then(lambda result: seen.append(result.id))
    end(app, result.id, value=1)
    assert result.get() == 1
    assert seen == [result.id]
    time.sleep(0.15)  # the watcher sees the result, too
    assert seen == [result.id]


@pytest.mark.parametrize("many", [False, True])
def test_soft_time_limit_within_a_callback_reaches_the_task(app: QWorker, many: bool) -> None:
    """Its own thread calls the callback if the result is there already."""
    there = app.send_task("work")
    end(app, there.id, value=1)

    def expire(number: int, frame: Any) -> None:
        raise SoftTimeLimitExceeded

    before = signal.signal(signal.SIGUSR1, expire)
    try:
        with pytest.raises(SoftTimeLimitExceeded):
            (ResultSet([there], app) if many else there).then(lambda _: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_failing_callback_does_not_stop_others(app: QWorker, caplog: pytest.LogCaptureFixture) -> None:
    first, second = (app.send_task("work") for _ in range(2))
    seen: list[Any] = []
    first.then(lambda result: 1 / 0)
    second.then(lambda result: seen.append(result.get()))
    end(app, first.id, value=1)
    until(lambda: "a callback of result" in caplog.text)
    end(app, second.id, value=2)
    until(lambda: seen == [2])


def test_failing_callback_does_not_affect_get(app: QWorker, caplog: pytest.LogCaptureFixture) -> None:
    result = app.send_task("work")
    seen: list[Any] = []
    result.then(lambda result: 1 / 0)
    result.then(lambda result: seen.append(result.id))
    end(app, result.id, value=5)
    assert result.get() == 5
    until(lambda: seen == [result.id])
    result.then(lambda result: 1 / 0)
    until(lambda: caplog.text.count("ZeroDivisionError: division by zero") == 2)  # two threads log


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((5,), "callback of then() must be a function of the result, not 5"),
        ((None,), "callback of then()"),
        ((print, 5), "on_error of then() must be a function"),
    ],
)
def test_then_rejects_arguments_that_are_not_callable(app: QWorker, given: Any, named: str) -> None:
    with pytest.raises(TypeError, match=re.escape(named)):
        app.send_task("work").then(*given)


# -- eager --


def test_eager_result() -> None:
    result: EagerResult[Any] = EagerResult("a", 5, "SUCCESS", name="t")
    seen: list[Any] = []
    assert (result.get(), result.ready(), result.state, result.name) == (5, True, "SUCCESS", "t")
    assert asyncio.run(_await(result)) == 5
    result.then(lambda result: seen.append(result.get()))
    assert seen == [5]
    result.revoke()
    result.forget()
    assert pickle.loads(pickle.dumps(result)).get() == 5
    failed: EagerResult[Any] = EagerResult("b", KeyError("no"), "FAILURE", "Traceback…")
    with pytest.raises(KeyError):
        failed.get()
    with pytest.raises(KeyError):
        asyncio.run(_await(failed))
