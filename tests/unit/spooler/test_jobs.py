"""Jobs: what happens to a spool file after its function has returned or raised."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.errors import Ignore, Reject, SoftTimeLimitExceeded, Terminated, UnrunnableJob
from qworker.message.context import Context, current_context, pop, push
from qworker.spooler import uwsgi_api
from qworker.spooler.files.attempts import Attempts, returns_of
from qworker.spooler.files.locks import _WHOLE_FILE, DescriptionLock
from qworker.spooler.files.writing import Writer
from qworker.spooler.options import SpoolerOptions
from qworker.spooler.running.jobs import Env, JobRunner
from qworker.spooler.spool_functions import manage_spool_request
from qworker.testing import FakeClock
from tests.support.spools import files

Set = Callable[[Callable[[Env], object]], None]
Make = Callable[..., JobRunner]


@pytest.fixture
def function() -> Iterator[Set]:
    """A function that sets the function that runs jobs."""
    before = uwsgi_api.spooler

    def set_(chosen: Callable[[Env], object]) -> None:
        uwsgi_api.spooler = chosen

    yield set_
    uwsgi_api.spooler = before


@pytest.fixture
def runner(clock: FakeClock) -> Make:
    def make(*, results: bool = False, seconds: float = 10.0, **options: Any) -> JobRunner:
        app = QWorker("spooling", clock=clock, set_as_current=False)
        options = {"max_attempts": 3, "backoff": 10.0, "backoff_max": 15.0, **options}
        return JobRunner(app, SpoolerOptions(**options), results=results, seconds=seconds)

    return make


def name_of(path: str) -> str:
    return os.path.basename(path)


def counts(path: str) -> tuple[int, int]:
    """How often a job was started and given back."""
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        return Attempts(directory).read(path, name_of(path)), returns_of(directory).read(path, name_of(path))
    finally:
        os.close(directory)


def reasons(writer: Writer) -> list[str]:
    return [json.loads(path.read_text())["reason"] for path in Path(writer.path).glob(".qw-dead/*.json")]


def run(runner: JobRunner, directory: str, paths: list[str]) -> bool:
    """Run these jobs; return whether the runner reports that no file is left."""
    try:
        runner.run(directory, paths)
    except Reject:
        return False
    return True


def raising(error: BaseException) -> Callable[[Env], object]:
    def function(env: Env) -> object:
        raise error

    return function


def test_function_gets_pairs_name_and_body(function: Set, runner: Make, writer: Writer) -> None:
    found: list[Env] = []
    function(lambda env: found.append(env) or uwsgi_api.SPOOL_OK)  # type: ignore[func-returns-value]
    with_body = name_of(writer.write({"a": "b", "at": "0"}, b"x" * 200_000))
    without = name_of(writer.write({}))
    assert runner().run(writer.path, [with_body, without]) is None
    assert found == [
        {b"a": b"b", b"at": b"0", "spooler_task_name": with_body, "body": b"x" * 200_000},
        {"spooler_task_name": without},
    ]
    assert files(writer.path) == []


@pytest.mark.parametrize("value", [uwsgi_api.SPOOL_RETRY, None, True, 1, 7, -3, "text", -2.0, False])
def test_other_return_values_retry_the_job(
    function: Set, runner: Make, writer: Writer, clock: FakeClock, value: object
) -> None:
    function(lambda env: value)
    path = writer.write({"a": "b"}, at=1)
    run(runner(), writer.path, [name_of(path)])
    assert os.stat(path).st_mtime == pytest.approx(clock.now() + 10.0, abs=0.01)
    assert counts(path) == (1, 1)


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_exceptions_retry_the_job(
    function: Set, runner: Make, writer: Writer, clock: FakeClock, error: BaseException
) -> None:
    function(raising(error))
    path = writer.write({"a": "b"}, at=1)
    running = runner()
    run(running, writer.path, [name_of(path)])
    assert counts(path) == (1, 1)
    run(running, writer.path, [name_of(path)])
    assert counts(path) == (1, 1), "it is not due"
    clock.advance(10.1)
    run(running, writer.path, [name_of(path)])
    assert os.stat(path).st_mtime == pytest.approx(clock.now() + 15.0, abs=0.01), (
        "the doubled delay, limited to the maximum"
    )
    clock.advance(15.1)
    run(running, writer.path, [name_of(path)])
    assert not os.path.exists(path)
    assert reasons(writer) == [f"attempt 3, the last: {type(error).__name__}: {error}"]


def test_attempts_can_be_unlimited(function: Set, runner: Make, writer: Writer, clock: FakeClock) -> None:
    function(lambda env: None)
    path = writer.write({}, at=1)
    running = runner(max_attempts=None)
    for number in range(1, 31):
        run(running, writer.path, [name_of(path)])
        assert counts(path) == (number, number)
        clock.advance(16)


def test_spoolforever_job_is_never_set_aside(
    function: Set, runner: Make, writer: Writer, clock: FakeClock
) -> None:
    function(lambda env: uwsgi_api.SPOOL_RETRY)
    path = writer.write({"ud_spool_func": "f", "ud_spool_ret": "-1"}, at=1)
    running = runner(max_attempts=2)
    for _ in range(5):
        run(running, writer.path, [name_of(path)])
        assert counts(path) == (0, 0)
        assert os.stat(path).st_mtime == pytest.approx(clock.now() + 10.0, abs=0.01), "always the same delay"
        clock.advance(10.1)


def test_ignored_job_is_kept_uncounted_until_it_changes(
    function: Set, runner: Make, writer: Writer, clock: FakeClock
) -> None:
    called: list[str] = []
    function(lambda env: called.append(env["spooler_task_name"]) or 0)  # type: ignore[func-returns-value]
    path = writer.write({}, at=1)
    running = runner()
    for _ in range(3):
        run(running, writer.path, [name_of(path)])
    assert (len(called), counts(path)) == (1, (0, 0))
    os.utime(path, (2, 2))
    run(running, writer.path, [name_of(path)])
    assert len(called) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (uwsgi_api.SetAside("nobody knows it"), "nobody knows it"),
        (Reject("refused"), "reject requeue=False: refused"),
        (Ignore("never mind"), "never mind"),
        (Terminated("revoked"), "its run was ended by a revocation"),
    ],
)
def test_permanent_failure_is_set_aside_at_once(
    function: Set, runner: Make, writer: Writer, error: BaseException, reason: str
) -> None:
    function(raising(error))
    path = writer.write({})
    raised = (
        pytest.raises(Terminated) if isinstance(error, Terminated) else nullcontext()
    )  # it also reaches the worker
    with raised:
        runner().run(writer.path, [name_of(path)])
    assert reasons(writer) == [reason]


def test_end_of_the_worker_counts_no_attempt_and_releases_the_job(
    function: Set, runner: Make, writer: Writer
) -> None:
    function(raising(SoftTimeLimitExceeded()))
    path = writer.write({}, at=1)
    with pytest.raises(SoftTimeLimitExceeded):
        runner().run(writer.path, [name_of(path)])
    assert counts(path) == (0, 0)
    assert os.stat(path).st_mtime == 1
    directory = os.open(writer.path, os.O_RDONLY)
    assert not DescriptionLock().is_held(name_of(path), directory)
    os.close(directory)


def mark_as_died(path: str, attempts: int, returns: int = 0) -> None:
    """Write the counters as a process leaves them that dies during a job."""
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    file = os.open(path, os.O_RDWR)
    Attempts(directory).write(file, name_of(path), attempts)
    returns_of(directory).write(file, name_of(path), returns)
    os.close(file)
    os.close(directory)


def test_job_of_a_dead_process_waits_like_one_given_back(
    function: Set, runner: Make, writer: Writer, clock: FakeClock
) -> None:
    done: list[int] = []
    function(lambda env: done.append(1) or uwsgi_api.SPOOL_OK)  # type: ignore[func-returns-value]
    path = writer.write({}, at=1)
    mark_as_died(path, 1)
    running = runner()
    run(running, writer.path, [name_of(path)])
    assert not done
    assert clock.now() < os.stat(path).st_mtime <= clock.now() + 10.01
    clock.advance(10.1)
    run(running, writer.path, [name_of(path)])
    assert done


def test_job_whose_process_died_too_often_is_set_aside(function: Set, runner: Make, writer: Writer) -> None:
    function(raising(AssertionError("it must not run")))
    path = writer.write({}, at=1)
    mark_as_died(path, 3, 2)
    run(runner(), writer.path, [name_of(path)])
    assert reasons(writer) == ["it was started 3 times, and its process died before it ended"]


def test_working_directory_is_set_and_restored(
    function: Set, runner: Make, writer: Writer, tmp_path: Path
) -> None:
    found: list[str] = []
    function(lambda env: found.append(os.getcwd()) or uwsgi_api.SPOOL_OK)  # type: ignore[func-returns-value]
    before = os.getcwd()
    path = os.path.relpath(writer.write({}, priority=5), writer.path)
    run(runner(), writer.path, [path])
    path = os.path.relpath(writer.write({}), writer.path)
    run(runner(chdir=str(tmp_path)), writer.path, [path])
    assert found == [f"{writer.path}/5", os.path.realpath(tmp_path)]
    assert os.getcwd() == before


def test_each_job_of_a_message_starts_in_its_directory(function: Set, runner: Make, writer: Writer) -> None:
    found: list[str] = []

    def moving(env: Env) -> object:
        found.append(os.getcwd())
        os.chdir("/")
        return uwsgi_api.SPOOL_OK

    function(moving)
    before = os.getcwd()
    run(runner(), writer.path, [name_of(writer.write({})) for _ in range(2)])
    assert found == [writer.path] * 2
    assert os.getcwd() == before


def test_recreated_directory_is_used(function: Set, runner: Make, writer: Writer) -> None:
    found: list[bytes] = []
    function(lambda env: found.append(env[b"n"]) or uwsgi_api.SPOOL_OK)  # type: ignore[func-returns-value]
    running = runner()
    run(running, writer.path, [name_of(writer.write({"n": 1}))])
    os.rename(writer.path, f"{writer.path}-old")
    os.mkdir(writer.path, 0o750)
    run(running, writer.path, [name_of(writer.write({"n": 2}))])
    assert found == [b"1", b"2"]


def test_held_and_missing_files_are_skipped(function: Set, runner: Make, writer: Writer) -> None:
    function(lambda env: uwsgi_api.SPOOL_OK)
    held, there = name_of(writer.write({})), name_of(writer.write({}))
    directory = os.open(writer.path, os.O_RDONLY)
    lock = DescriptionLock()
    file = lock.acquire(held, directory)
    run(runner(), writer.path, ["uwsgi_spoolfile_on_gone", held, there])
    assert [name_of(path) for path in files(writer.path)] == [held]
    lock.release(file)
    os.close(directory)


def test_job_is_kept_without_a_function(runner: Make, writer: Writer, function: Set) -> None:
    function(None)  # type: ignore[arg-type]
    path = writer.write({}, at=1)
    run(runner(), writer.path, [name_of(path)])
    assert counts(path) == (0, 0)


def test_job_waits_while_a_module_cannot_be_imported(
    runner: Make,
    writer: Writer,
    clock: FakeClock,
    function: Set,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failed deployment costs neither jobs nor attempts."""
    function(manage_spool_request)
    monkeypatch.setattr(uwsgi_api, "not_imported", ["shop.jobs"])
    path = writer.write({"ud_spool_func": "of_the_shop"}, at=1)
    running = runner(max_attempts=2, frequency=7.0)
    for _ in range(5):
        run(running, writer.path, [name_of(path)])
        assert os.stat(path).st_mtime == pytest.approx(clock.now() + 7.0, abs=0.01)
        assert counts(path) == (0, 0)
        clock.advance(7.1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "shop.jobs could not be imported" in caplog.text
    monkeypatch.setattr(uwsgi_api, "not_imported", [])
    run(running, writer.path, [name_of(path)])
    assert "is decorated here" in reasons(writer)[0]


@pytest.mark.parametrize("number", [1, 3])
def test_each_job_has_its_own_context(function: Set, runner: Make, writer: Writer, number: int) -> None:
    """Also if several jobs come in one message, whose id is that of the first."""
    found: list[tuple[str, str | None]] = []

    def note(env: Env) -> object:
        context = current_context()
        assert context is not None
        found.append((context.id, context.root_id))
        if len(found) == 2:
            raise ValueError("the next has its own all the same")
        return uwsgi_api.SPOOL_OK

    function(note)
    names = [name_of(writer.write({}, at=1)) for _ in range(number)]
    context = Context(id=names[0], root_id=names[0], task="run")
    token = push(context, None)  # type: ignore[arg-type]
    try:
        run(runner(), writer.path, names)
    finally:
        pop(token)
    assert found == [(name, name) for name in names]
    assert (context.id, context.root_id) == (names[0], names[0])


def test_results(function: Set, runner: Make, writer: Writer, clock: FakeClock) -> None:
    values: list[object] = [uwsgi_api.SPOOL_OK]
    function(lambda env: values[0])
    running = runner(results=True, max_attempts=2)
    assert running.run(writer.path, [name_of(writer.write({}, at=1))]) == uwsgi_api.SPOOL_OK
    values[0] = None
    path = writer.write({}, at=1)
    with pytest.raises(Reject) as raised:
        running.run(writer.path, [name_of(path)])
    assert raised.value.requeue
    clock.advance(16)
    with pytest.raises(Exception, match="returned None"):
        running.run(writer.path, [name_of(path)])
    assert len(reasons(writer)) == 1


class Call:
    """A signature returned by a bridge."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def apply_async(self, *, task_id: str) -> None:
        self.sent.append(task_id)


CALL = Call()


def rule(env: Env) -> Call | None:
    """For ``spooler_bridge``."""
    return CALL if b"task" in env else None


def test_bridge_sends_tasks_instead_of_jobs(function: Set, runner: Make, writer: Writer) -> None:
    seen: list[Env] = []
    function(lambda env: seen.append(env) or uwsgi_api.SPOOL_OK)  # type: ignore[func-returns-value]
    sent, kept = name_of(writer.write({"task": "t"})), name_of(writer.write({"a": "b"}))
    run(runner(bridge=f"{__name__}:rule"), writer.path, [sent, kept])
    assert CALL.sent == [sent], "the job name is the task id, so that repetitions are recognized"
    assert [env["spooler_task_name"] for env in seen] == [kept]
    assert files(writer.path) == []


def test_job_removed_while_it_runs_is_done(
    function: Set, runner: Make, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    path = writer.write({})

    def remove(env: Env) -> int:
        os.unlink(path)
        return uwsgi_api.SPOOL_OK

    function(remove)
    run(runner(), writer.path, [name_of(path)])
    assert "removed while its job ran" in caplog.text


def test_files_after_a_long_job_are_left_for_others(function: Set, runner: Make, writer: Writer) -> None:
    function(lambda env: uwsgi_api.SPOOL_OK)
    names = [name_of(writer.write({})) for _ in range(3)]
    run(runner(seconds=-1.0), writer.path, names)
    assert [name_of(path) for path in files(writer.path)] == names[1:]


@pytest.mark.parametrize("value", [uwsgi_api.SPOOL_OK, uwsgi_api.SPOOL_RETRY, uwsgi_api.SPOOL_IGNORE])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_run_reports_whether_a_file_is_left(
    function: Set, runner: Make, writer: Writer, value: int, at: int
) -> None:
    names = [name_of(writer.write({"n": number})) for number in range(3)]
    function(lambda env: value if env[b"n"] == b"%d" % at else uwsgi_api.SPOOL_OK)
    assert run(runner(), writer.path, names) is (value == uwsgi_api.SPOOL_OK)
    assert files(writer.path) == ([] if value == uwsgi_api.SPOOL_OK else [names[at]])


def test_held_file_is_left_and_missing_or_dead_ones_are_not(
    function: Set, runner: Make, writer: Writer
) -> None:
    function(raising(UnrunnableJob("never")))
    assert run(runner(), writer.path, ["uwsgi_spoolfile_on_gone", name_of(writer.write({}))])
    held = name_of(writer.write({}))
    with open(os.path.join(writer.path, held), "r+b") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        assert not run(runner(), writer.path, [held])
