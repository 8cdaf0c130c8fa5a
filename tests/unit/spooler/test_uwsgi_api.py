"""The uwsgi module outside uWSGI: its attributes, and their return values."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qworker.errors import NoSpooler, NotSpooled, SpoolError
from qworker.spooler import uwsgi_api as uwsgi
from qworker.spooler.files.locks import DescriptionLock
from qworker.spooler.files.packet import decode
from qworker.spooler.files.writing import Writer
from qworker.spooler.options import SpoolerOptions
from qworker.spooler.uwsgi import runtime
from qworker.spooler.uwsgi.job_context import RunningJob
from qworker.spooler.uwsgi.signal_socket import SignalSocket
from tests.support.spools import files

REPOSITORY = Path(__file__).resolve().parents[3]
WITH_SPOOLER = (
    "send_to_spooler",
    "set_spooler_frequency",
    "spool",
    "spooler_get_task",
    "spooler_jobs",
    "spooler_pid",
    "spooler_pids",
    "spoolers",
)


def in_a_new_process(code: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", WITH_SPOOLER)
def test_spooler_attributes_are_missing_without_a_spooler(name: str) -> None:
    """As in uWSGI without a spooler; the error says what to set."""
    assert not hasattr(uwsgi, name)
    assert name not in dir(uwsgi)
    with pytest.raises(NoSpooler, match="set spooler or spooler_external"):
        getattr(uwsgi, name)
    assert uwsgi.opt == {}


@pytest.mark.parametrize("name", WITH_SPOOLER)
def test_spooler_attributes_exist_with_a_spooler(configured: Path, name: str) -> None:
    assert hasattr(uwsgi, name)
    assert name in dir(uwsgi)


def test_other_uwsgi_attributes_are_missing(configured: Path) -> None:
    assert not hasattr(uwsgi, "cache_get")
    with pytest.raises(AttributeError, match="'cache_get'"):
        _ = uwsgi.cache_get


def test_options_provider_is_called_until_it_returns_directories(place: Path) -> None:
    answers: list[SpoolerOptions | None] = [None, SpoolerOptions(), SpoolerOptions((str(place),))]
    uwsgi.configure(lambda: answers.pop(0))
    assert len(answers) == 3
    assert not hasattr(uwsgi, "spool")
    assert not hasattr(uwsgi, "spool")
    assert uwsgi.spool({}).startswith(os.fsencode(place))
    assert uwsgi.spool({}), "the provider is not called again"
    uwsgi.configure(lambda: None)


@pytest.mark.parametrize(
    ("arguments", "keywords", "pairs", "body"),
    [
        (({b"a": b"1"},), {}, {b"a": b"1"}, b""),
        (({"a": "1", "body": "x"},), {}, {b"a": b"1"}, b"x"),
        ((), {"a": "1", "body": b"x"}, {b"a": b"1"}, b"x"),
        (({"a": 1},), {"a": 2, "b": 3}, {b"a": b"1"}, b""),
        (({},), {}, {}, b""),
        (({},), {"a": 1}, {}, b""),
    ],
)
def test_spool_accepts_all_call_forms(
    configured: Path, arguments: Any, keywords: Any, pairs: dict[bytes, bytes], body: bytes
) -> None:
    for spool in (uwsgi.spool, uwsgi.send_to_spooler):
        path = spool(*arguments, **keywords)
        assert isinstance(path, bytes)
        assert decode(Path(os.fsdecode(path)).read_bytes()) == (pairs, body)


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((), {}),
        ((1,), {}),
        ((None,), {"a": "b"}),
        (({}, {}), {}),
        (([("a", "b")],), {}),
        (({"a": None},), {}),
    ],
)
def test_invalid_jobs_raise_value_error(configured: Path, arguments: Any, keywords: Any) -> None:
    assert issubclass(NotSpooled, ValueError)
    with pytest.raises(NotSpooled):
        uwsgi.spool(*arguments, **keywords)
    assert uwsgi.spooler_jobs() == []


def test_lone_surrogates_raise_value_error(configured: Path) -> None:
    for message in ({"\ud800": "x"}, {"x": "\ud800"}, {"body": "\ud800"}, {"spooler": "/\ud800"}):
        with pytest.raises(NotSpooled):
            uwsgi.spool(message)


def test_spoolers_and_opt_have_the_format_of_uwsgi(tmp_path: Path) -> None:
    one, two, far = (str(tmp_path / name) for name in ("one", "two", "far"))
    uwsgi.configure(SpoolerOptions((one, two), (far,), processes=2))
    assert uwsgi.spoolers == tuple(map(os.fsencode, (one, two, far)))
    assert uwsgi.opt == {
        "spooler": os.fsencode(two),
        "spooler-external": os.fsencode(far),
        "spooler-processes": b"2",
    }
    uwsgi.configure(lambda: None)


def test_spooler_jobs_lists_all_jobs(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    uwsgi.configure(SpoolerOptions((str(one), str(two)), (str(tmp_path / "none"),)))
    paths = [
        Writer(one).write({}),
        Writer(one).write({}, priority=5),
        Writer(two).write({}, at=4_000_000_000),
    ]
    (one / "other").touch()
    assert sorted(uwsgi.spooler_jobs()) == sorted(map(os.fsencode, paths))
    uwsgi.configure(lambda: None)


def test_spooler_get_task_reads_a_waiting_job(configured: Path) -> None:
    path = os.fsdecode(uwsgi.spool({"a": b"\xff", "priority": 3, "body": b"x"}))
    expected = {"spooler_task_name": os.fsencode(path), b"a": b"\xff", b"priority": b"3", "body": b"x"}
    assert uwsgi.spooler_get_task(path) == expected
    assert uwsgi.spooler_get_task(os.fsencode(path)) == expected
    bare = os.fsdecode(uwsgi.spool({}))
    assert uwsgi.spooler_get_task(bare) == {"spooler_task_name": os.fsencode(bare)}


def test_spooler_get_task_returns_none_for_running_or_invalid_jobs(configured: Path, tmp_path: Path) -> None:
    path = Path(os.fsdecode(uwsgi.spool({"a": "b"})))
    place = os.open(configured, os.O_RDONLY)
    file = DescriptionLock().acquire(path.name, place)
    assert uwsgi.spooler_get_task(str(path)) is None
    DescriptionLock().release(file)
    os.close(place)
    assert uwsgi.spooler_get_task(str(path)) is not None
    path.write_bytes(b"\x11\xff\0\0")
    assert uwsgi.spooler_get_task(str(path)) is None, "it is not a packet"
    foreign = Writer(tmp_path / "foreign").write({"a": "b"})
    link = configured / path.name.replace("_on_", "_on_link_")
    link.symlink_to(foreign)
    for name in (
        foreign,
        str(link),
        str(configured),
        f"{configured}/x",
        f"{path}\0",
        "",
        f"{path}x",
        "/etc/passwd",
    ):
        assert uwsgi.spooler_get_task(name) is None, name


def test_spooler_get_task_inside_its_own_job_keeps_the_lock(configured: Path) -> None:
    path = Path(os.fsdecode(uwsgi.spool({"a": "b"})))
    place = os.open(configured, os.O_RDONLY)
    file = DescriptionLock().acquire(path.name, place)
    with RunningJob(str(configured), path.name, {b"a": b"b", "spooler_task_name": path.name}):
        assert uwsgi.spooler_get_task(str(path)) == {b"a": b"b", "spooler_task_name": os.fsencode(path)}
        assert uwsgi.spooler_get_task(f"{path}x") is None
    assert uwsgi.spooler_get_task(str(path)) is None
    DescriptionLock().release(file)
    os.close(place)


def test_spooler_pids(configured: Path) -> None:
    configured.mkdir()
    assert (uwsgi.spooler_pid(), uwsgi.spooler_pids()) == (0, [])
    runtime.announce(configured)
    assert (uwsgi.spooler_pid(), uwsgi.spooler_pids()) == (os.getpid(), [os.getpid()])
    runtime.withdraw(configured)


def test_set_spooler_frequency(configured: Path) -> None:
    assert uwsgi.set_spooler_frequency(3) is True
    assert runtime.frequency_of(configured, 30.0) == 3
    with pytest.raises(ValueError, match="seconds above 0"):
        uwsgi.set_spooler_frequency(0)


def test_i_am_the_spooler_while_a_job_runs() -> None:
    assert (uwsgi.i_am_the_spooler(), uwsgi.spooler_dir()) == (None, None)
    with RunningJob("/jobs", "x", {}):
        assert (uwsgi.i_am_the_spooler(), uwsgi.spooler_dir()) == (True, b"/jobs")
    assert (uwsgi.i_am_the_spooler(), uwsgi.spooler_dir()) == (None, None)
    assert (uwsgi.worker_id(), uwsgi.mule_id(), uwsgi.masterpid() > 0) == (0, 0, True)
    assert (uwsgi.SPOOL_OK, uwsgi.SPOOL_RETRY, uwsgi.SPOOL_IGNORE) == (-2, -1, 0)


def test_running_job_is_thread_local() -> None:
    with RunningJob("/jobs", "x", {}), ThreadPoolExecutor(1) as pool:
        assert pool.submit(uwsgi.i_am_the_spooler).result(30) is None
        assert pool.submit(uwsgi.set_user_harakiri, 0.01).result(30) is None, "it would end all threads"


def test_lock_is_shared_by_processes_except_spoolers(configured: Path) -> None:
    uwsgi.lock()
    code = f"""
        import fcntl
        file = open({str(configured)!r} + "/.qw-spoolers/lock-0")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            print("free")
        except BlockingIOError:
            print("held")
    """
    assert in_a_new_process(code, configured) == "held\n"
    uwsgi.unlock()
    uwsgi.unlock()
    assert in_a_new_process(code, configured) == "free\n"
    with RunningJob("/jobs"):
        for call in (uwsgi.lock, uwsgi.unlock):
            with pytest.raises(ValueError, match="cannot lock"):
                call()


def test_signal_reaches_its_target_spooler(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    uwsgi.configure(SpoolerOptions((str(one), str(two))))
    uwsgi.register_signal(5, "spooler", print)
    uwsgi.register_signal(6, f"{two}/", print)
    uwsgi.register_signal(7, "worker", print)
    assert uwsgi.signal_registered(5) is True
    assert uwsgi.signal_registered(8) is None
    for signum, why in ((5, "no spooler"), (6, "no spooler"), (7, "is for worker, which")):
        with pytest.raises(SpoolError, match=why):
            uwsgi.signal(signum)
    receivers = [SignalSocket(one), SignalSocket(two)]
    for signum in (5, 6, 8):
        uwsgi.signal(signum)
    assert [receiver.read() for receiver in receivers] == [[5, 8], [6]]
    receivers[0].close()
    uwsgi.signal(5)
    assert receivers[1].read() == [5], "the first running spooler"
    receivers[1].close()
    with pytest.raises(ValueError, match="0 to 255"):
        uwsgi.signal(256)
    uwsgi.signal_table.handlers.clear()
    uwsgi.configure(lambda: None)


def test_timers_crons_and_monitors_are_recorded(configured: Path) -> None:
    uwsgi.add_timer(1, 5)
    uwsgi.add_rb_timer(2, 5, 3)
    uwsgi.add_ms_timer(3, 250)
    assert uwsgi.add_cron(4, 0, -1, -1, -1, -1) is True
    uwsgi.add_file_monitor(5, b"/tmp")
    assert uwsgi.signal_table.sources == [
        (1, 5, 0),
        (2, 5, 3),
        (3, 0.25, 0),
        (4, (0, -1, -1, -1, -1)),
        (5, "/tmp"),
    ]


def test_run_signal_calls_the_handler(configured: Path) -> None:
    called: list[object] = []

    def handler(signum: int) -> None:
        called.append((signum, uwsgi.i_am_the_spooler(), uwsgi.spooler_dir()))

    uwsgi.register_signal(9, "spooler", handler)
    uwsgi.register_signal(8, str(configured), handler)
    assert uwsgi.run_signal(9)
    assert uwsgi.run_signal(8)
    assert not uwsgi.run_signal(10)
    assert called == [(9, True, None), (8, True, os.fsencode(configured))]
    uwsgi.register_signal(7, "spooler", lambda signum: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        uwsgi.run_signal(7)
    assert uwsgi.i_am_the_spooler() is None


def test_harakiri_kills_a_job_that_holds_the_gil(tmp_path: Path) -> None:
    """A regular expression can run for ever in C, where neither signal handlers nor other threads run."""
    code = """
        import re
        from qworker.spooler import uwsgi_api as uwsgi
        from qworker.spooler.uwsgi.job_context import RunningJob

        uwsgi.set_user_harakiri(0.01)  # no spooler: nothing is done
        with RunningJob("/jobs"):
            uwsgi.set_user_harakiri(0.3)
            re.match("(a+)+$", "a" * 60 + "b")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "not the main thread of a spooler's own process" in done.stderr


def test_harakiri_ends_with_its_job(tmp_path: Path) -> None:
    code = """
        import time
        from qworker.spooler import uwsgi_api as uwsgi
        from qworker.spooler.uwsgi.job_context import RunningJob

        with RunningJob("/jobs"):
            uwsgi.set_user_harakiri(0.2)
        with RunningJob("/jobs"):
            uwsgi.set_user_harakiri(0.2)
            uwsgi.set_user_harakiri(0)
            time.sleep(0.4)
        print("alive")
    """
    assert in_a_new_process(code, tmp_path) == "alive\n"


@pytest.mark.parametrize("seconds", ["5", None, float("nan"), True])
def test_harakiri_must_be_a_number(seconds: Any) -> None:
    with pytest.raises(TypeError, match="number of seconds"):
        uwsgi.set_user_harakiri(seconds)


def test_install_replaces_uwsgi_and_uwsgidecorators(tmp_path: Path) -> None:
    """The decorators, too, although files of the same names exist; they are imported on demand."""
    (tmp_path / "uwsgidecorators.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "uwsgi.py").write_text("raise SystemExit('the wrong one')")
    code = """
        from qworker.spooler import uwsgi_api
        from qworker.spooler.options import SpoolerOptions

        uwsgi_api.configure(SpoolerOptions(("jobs",)))
        assert uwsgi_api.install() and uwsgi_api.install()
        import uwsgi
        assert uwsgi is uwsgi_api and uwsgi_api.spooler is None
        import importlib, uwsgidecorators, qworker.spooler.decorators as ours
        assert uwsgidecorators is ours and ours.__spec__.name == ours.__name__
        assert uwsgi.spooler is ours.manage_spool_request
        assert uwsgi.post_fork_hook is ours.postfork_chain_hook
        def mine(env): return uwsgi.SPOOL_OK
        uwsgi.spooler = mine
        assert uwsgi_api.spooler is mine
        from uwsgi import spool
        spool(a="b")
        print(len(uwsgi.spooler_jobs()))
    """
    assert in_a_new_process(code, tmp_path) == "1\n"


def test_real_uwsgi_is_not_replaced(tmp_path: Path) -> None:
    code = """
        import sys, types
        real = sys.modules["uwsgi"] = types.ModuleType("uwsgi")
        real.masterpid = lambda: 5
        real.opt = {}
        from qworker.spooler import uwsgi_api
        assert not uwsgi_api.install()
        assert sys.modules["uwsgi"] is real
        import qworker.spooler.decorators as ours
        assert real.spooler is ours.manage_spool_request and uwsgi_api.spooler is None
        try:
            ours.spool(lambda env: None)
        except AttributeError as error:
            print(error)
        real.opt["spooler-external"] = b"/jobs"
        sent = []
        real.spool = sent.append
        @ours.spool
        def f(env): pass
        f(a=1, at=1.5, body="x")
        print(sent)
        for much in ({"v": "v" * 70_000}, {"k" * 70_000: "v"}, {str(n): "v" * 9_999 for n in range(7)}):
            try:
                f(much)
            except ValueError as error:
                print(error)
        f(body="x" * 70_000)
        print(len(sent))
    """
    lines = in_a_new_process(code, tmp_path).splitlines()
    assert "set spooler, or spooler-external" in lines[0]
    assert lines[1] == str(
        [{b"ud_spool_func": b"f", b"ud_spool_ret": b"-2", b"a": b"1", b"at": b"2", b"body": b"x"}]
    )
    assert ["pass large data as the body" in line for line in lines[2:]] == [True, True, True, False]
    assert lines[5:] == ["2"]


def test_imported_file_named_uwsgi_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "uwsgi.py").touch()
    code = """
        import logging, sys
        logging.basicConfig(stream=sys.stdout)
        import uwsgi
        from qworker.spooler import uwsgi_api
        assert not uwsgi_api.install()
    """
    assert "rename it" in in_a_new_process(code, tmp_path)


def test_reading_functions_write_nothing(configured: Path) -> None:
    uwsgi.spooler_jobs()
    uwsgi.spooler_pids()
    uwsgi.spooler_get_task(f"{configured}/x")
    assert files(configured) == []
