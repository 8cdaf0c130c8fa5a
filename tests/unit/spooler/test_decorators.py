"""The decorators: files written by calls, functions called by jobs, and compatibility with uWSGI's module."""

from __future__ import annotations

import datetime
import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker.errors import NoSpooler, NotAvailable, NotSpooled, SpoolError, UnknownFunction, UnrunnableJob
from qworker.spooler import decorators, uwsgi_api
from qworker.spooler.files.packet import MODIFIER1, decode
from qworker.spooler.options import SpoolerOptions
from qworker.spooler.spool_functions import manage_spool_request, spooler_functions
from qworker.spooler.uwsgi.job_context import RunningJob
from tests.support.uwsgi_files import samples


@pytest.fixture(autouse=True)
def _forget_functions() -> Iterator[None]:
    """Forget the functions that a test has decorated."""
    yield
    spooler_functions.clear()
    decorators.postfork_chain.clear()


def written(path: bytes) -> tuple[dict[bytes, bytes], bytes]:
    return decode(Path(os.fsdecode(path)).read_bytes())


def run(image: bytes, name: str = "uwsgi_spoolfile_on_x") -> int:
    """Run a spool file's bytes as a spooler does."""
    pairs, body = decode(image)
    env: dict[Any, Any] = {"spooler_task_name": name, **pairs}
    return manage_spool_request({**env, "body": body} if body else env)


def run_file(path: bytes) -> int:
    return run(Path(os.fsdecode(path)).read_bytes())


def packet(*pairs: tuple[bytes, bytes]) -> bytes:
    """A packet as sent by Net::uwsgi and Ruby's UWSGI.spool, with pairs in any order."""
    data = b"".join(len(part).to_bytes(2, "little") + part for pair in pairs for part in pair)
    return bytes((MODIFIER1,)) + len(data).to_bytes(2, "little") + b"\0" + data


@pytest.mark.parametrize(
    ("decorate", "answer"),
    [(decorators.spool, b"-2"), (decorators.spoolforever, b"-1"), (decorators.spoolraw, None)],
)
def test_call_writes_the_pairs_of_uwsgi(
    configured: Path, decorate: Callable[..., Any], answer: bytes
) -> None:
    called: list[object] = []

    def send(env: object) -> None:
        called.append(env)

    decorated = decorate(send)
    expected = {b"ud_spool_func": b"send", b"to": b"you"} | ({b"ud_spool_ret": answer} if answer else {})
    for path in (decorated({"to": "you"}), decorated({b"to": b"me"}, to="you"), decorated.spool(to="you")):
        assert written(path) == (expected, b"")
    assert written(send.spool(to="you")) == (expected, b"")  # type: ignore[attr-defined]
    assert called == [], "a call does not run the function"
    assert decorated.f is send
    assert decorated.__name__ == "send"


def test_arguments_are_pickled_as_by_uwsgi(configured: Path) -> None:
    @decorators.spool(pass_arguments=True)
    def send(*args: Any, **kwargs: Any) -> None:
        pass

    pairs, body = written(send(1, "two", a=(3,), at=1_900_000_000, priority=5, body=b"\xff"))
    assert pickle.loads(pairs.pop(b"args")) == (1, "two")
    assert pickle.loads(pairs.pop(b"kwargs")) == {"a": (3,)}
    assert pairs == {
        b"ud_spool_func": b"send",
        b"ud_spool_ret": b"-2",
        b"at": b"1900000000",
        b"priority": b"5",
    }
    assert body == b"\xff"


@pytest.mark.parametrize("at", [5, 5.0, "5", b"5", datetime.datetime.fromtimestamp(5, datetime.UTC)])
@pytest.mark.parametrize("arguments", [False, True])
def test_at_accepts_all_kinds_of_times(configured: Path, at: Any, arguments: bool) -> None:
    path = decorators.spool(lambda *_: None, pass_arguments=arguments)(at=at)
    assert os.stat(path).st_mtime == 5
    assert written(path)[0][b"at"] == b"5"


def test_job_calls_the_function_with_text(configured: Path) -> None:
    called: list[Any] = []
    decorated = decorators.spool(called.append)
    assert run_file(decorated(to="ä", number=5, body="text")) == uwsgi_api.SPOOL_OK
    assert called == [
        {
            "spooler_task_name": "uwsgi_spoolfile_on_x",
            "ud_spool_func": "append",
            "ud_spool_ret": "-2",
            "to": "ä",
            "number": "5",
            "body": "text",
        }
    ]


def test_values_that_are_not_utf8_are_bytes(configured: Path) -> None:
    """The module of uWSGI would fail with it for ever."""
    called: list[Any] = []
    run_file(decorators.spool(called.append)({"image": b"\xff\xd8", "body": b"\xfe"}))
    assert (called[0]["image"], called[0]["body"]) == (b"\xff\xd8", b"\xfe")


def test_appended_body_overrides_a_body_pair(configured: Path) -> None:
    called: list[Any] = []

    @decorators.spoolraw
    def f(env: Any) -> int:
        called.append(env["body"])
        return -2

    assert run(packet((b"ud_spool_func", b"f"), (b"body", b"pair")) + b"appended") == -2
    assert called == ["appended"]
    assert f.pass_arguments is False


def test_arguments_round_trip(configured: Path) -> None:
    called: list[Any] = []

    @decorators.spool(pass_arguments=True)
    def f(*args: Any, **kwargs: Any) -> None:
        called.append((args, kwargs))

    when = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)
    assert run_file(f(1, [when], a={"b": {2}}, priority="7")) == uwsgi_api.SPOOL_OK
    assert called == [((1, [when]), {"a": {"b": {2}}})]


@pytest.mark.parametrize(
    ("decorate", "returned", "answer"),
    [
        (decorators.spool, "anything", -2),
        (decorators.spoolforever, -2, -1),
        (decorators.spoolraw, -2, -2),
        (decorators.spoolraw, -1, -1),
        (decorators.spoolraw, 0, 0),
        (decorators.spoolraw, True, 1),
        (decorators.spoolraw, None, -1),
        (decorators.spoolraw, "-2", -1),
    ],
)
def test_return_value_of_the_job(
    configured: Path, decorate: Any, returned: object, answer: int, caplog: pytest.LogCaptureFixture
) -> None:
    decorated = decorate(lambda env: returned)
    with caplog.at_level(logging.WARNING):
        assert run_file(decorated()) == answer
    assert ("the job runs again" in caplog.text) is (
        not isinstance(returned, int) and decorate is decorators.spoolraw
    )


def test_exception_of_the_function_propagates(configured: Path) -> None:
    @decorators.spool
    def f(env: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_file(f())


@pytest.mark.parametrize("name", ["deco-plain", "deco-args", "deco-raw"])
def test_files_written_by_uwsgi_are_run(name: str) -> None:
    called: list[Any] = []

    def record_call(*args: Any, **kwargs: Any) -> int:
        called.append((args, kwargs))
        return -2

    (sample,) = (sample for sample in samples("valid") if sample.id == name)
    pairs = decode(sample.image).pairs
    record_call.__name__ = pairs[b"ud_spool_func"].decode()
    decorators.spoolraw(record_call)
    assert run(sample.image) == -2
    ((args, kwargs),) = called
    if name == "deco-args":
        assert (args, kwargs) == ((1, "two", [3, None]), {"id": "deco-1", "x": {"y": 1.5}})
    else:
        assert args[0]["foo"] == "bar"
        assert kwargs == {}


@pytest.mark.parametrize("is_reversed", [False, True])
def test_packets_of_other_languages_are_run(is_reversed: bool) -> None:
    """Their pairs are unordered, and their values are strings that need not be UTF-8."""
    called: list[Any] = []

    @decorators.spool
    def mail(env: Any) -> None:
        called.append(env)

    given = [
        (b"ud_spool_func", b"mail"),
        (b"ud_spool_ret", b"-2"),
        (b"to", "jörg".encode()),
        (b"latin", b"\xfc"),
    ]
    assert run(packet(*(given[::-1] if is_reversed else given)) + b"the body") == uwsgi_api.SPOOL_OK
    assert (called[0]["to"], called[0]["latin"], called[0]["body"]) == ("jörg", b"\xfc", "the body")
    assert packet((b"hello", b"world")) == b"\x11\x0e\x00\x00\x05\x00hello\x05\x00world"


def test_json_arguments_are_passed() -> None:
    called: list[Any] = []

    @decorators.spool(pass_arguments=True)
    def mail(*args: Any, **kwargs: Any) -> None:
        called.append((args, kwargs))

    run(packet((b"ud_spool_func", b"mail"), (b"qw_args", b'["you", 1]'), (b"qw_kwargs", b'{"cc": null}')))
    assert called == [(("you", 1), {"cc": None})]


@pytest.mark.parametrize(
    "pairs", [(), ((b"ud_spool_func", b"nobody"),), ((b"ud_spool_func", b"\xff"),), ((b"foo", b"bar"),)]
)
def test_unknown_function_is_an_error(pairs: Any) -> None:
    with pytest.raises(UnknownFunction, match="is decorated here"):
        run(packet(*pairs))


@pytest.mark.parametrize(
    "pair",
    [
        (b"ud_spool_ret", b"done"),
        (b"ud_spool_ret", b"\xff"),
        (b"ud_spool_ret", b"9" * 5000),
        (b"args", b"cos\nsystem\n(S'ls'\ntR."),
        (b"qw_args", b"[" * 60_000),
    ],
    ids=range(5),
)
def test_malformed_job_is_unrunnable(pair: tuple[bytes, bytes]) -> None:
    called: list[Any] = []
    decorators.spool(called.append)
    with pytest.raises(UnrunnableJob):
        run(packet((b"ud_spool_func", b"append"), (b"kwargs", pickle.dumps({})), pair))
    assert called == []


class Thing:
    """Not plain data."""


def test_other_objects_need_allow_pickle(place: Path) -> None:
    called: list[Any] = []
    f = decorators.spool(called.append, pass_arguments=True)
    uwsgi_api.configure(SpoolerOptions((str(place),), allow_pickle=True))
    path = f(Thing())
    assert run_file(path) == uwsgi_api.SPOOL_OK
    assert isinstance(called[0], Thing)
    uwsgi_api.configure(SpoolerOptions((str(place),)))
    with pytest.raises(UnrunnableJob, match="spooler_allow_pickle"):
        run_file(path)
    with pytest.raises(SpoolError, match="spooler_allow_pickle"):
        f(Thing())
    uwsgi_api.configure(lambda: None)


@pytest.mark.parametrize("args", [(5,), ({}, {}), (None,), ("text",)])
def test_call_without_pass_arguments_takes_one_dictionary(configured: Path, args: Any) -> None:
    with pytest.raises(NotSpooled, match="pass_arguments=True"):
        decorators.spool(lambda env: None)(*args)


def test_oversized_arguments_are_rejected(configured: Path) -> None:
    f = decorators.spool(lambda *_: None, pass_arguments=True)
    with pytest.raises(NotSpooled, match="65,535"):
        f(text="x" * 10_000_000)
    with pytest.raises(NotSpooled, match="message_dict"):
        f(message_dict={})
    nested: list[Any] = []
    nested.append(nested)
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(SpoolError, match="cannot be pickled"):
        f(nested)


def test_decorator_works_without_a_spooler_until_called() -> None:
    f = decorators.spool(lambda env: None)
    with pytest.raises(NoSpooler, match="set spooler or spooler_external"):
        f()


def test_duplicate_function_name_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def one() -> Callable[..., None]:
        def send(env: object) -> None:
            pass

        return send

    def send(env: object) -> None:
        pass

    with caplog.at_level(logging.WARNING):
        decorators.spool(one())
        decorators.spool(one())
        assert caplog.text == "", "reloading a module is not warned of"
        decorators.spool(send)
    assert "jobs for send now run" in caplog.text
    assert spooler_functions["send"] is send


def test_timers_crons_and_signals_are_registered_with_free_signals(configured: Path) -> None:
    called: list[int] = []

    @decorators.timer(5, target="spooler")
    @decorators.rbtimer(6, target="spooler", signum=17)
    @decorators.cron(0, -2, -1, -1, 7, target="spooler")
    @decorators.mstimer(500, target="spooler")
    @decorators.filemon("/tmp", target="spooler")
    @decorators.signal(99, target="/jobs")
    def f(signum: int) -> None:
        called.append(signum)

    table = uwsgi_api.signal_table
    assert table.sources == [(0, "/tmp"), (1, 0.5, 0), (2, (0, -2, -1, -1, 7)), (17, 6, 0), (3, 5, 0)], (
        "each has its own signal"
    )
    assert {signum: handler.target for signum, handler in table.handlers.items()} == {
        99: "/jobs", 0: "spooler", 1: "spooler", 2: "spooler", 17: "spooler", 3: "spooler",
    }  # fmt: skip
    for signum in (99, 3):
        uwsgi_api.run_signal(signum)
    f(7)
    assert called == [99, 3, 7], "the function itself is unchanged"
    with pytest.raises(TypeError, match="no tarjet"):
        decorators.timer(5, tarjet="spooler")


def test_no_free_signal_is_an_error(configured: Path) -> None:
    assert decorators.get_free_signal() == 0
    for signum in range(256):
        uwsgi_api.register_signal(signum, "spooler", print)
    with pytest.raises(SpoolError, match="256"):
        decorators.get_free_signal()


def test_postfork_functions_are_called_after_a_fork() -> None:
    called: list[str] = []

    @decorators.postfork
    def every() -> None:
        called.append("every")

    @decorators.postfork(1)
    def only_worker_one() -> None:
        called.append("one")

    uwsgi_api.run_post_fork()
    assert called == ["every"]
    every()
    assert called == ["every", "every"]


def test_lock_decorator_skips_spoolers(configured: Path) -> None:
    configured.mkdir()
    locked = decorators.lock(lambda value: value)
    assert locked(5) == 5
    assert locked(6) == 6, "the lock was released"
    with RunningJob(str(configured)):
        assert locked(7) is None


def test_thread_decorator_runs_in_a_thread() -> None:
    ready = threading.Event()

    @decorators.thread
    def f(event: threading.Event) -> None:
        event.set()

    assert f(ready) is f.__wrapped__  # type: ignore[attr-defined]
    assert ready.wait(30)


def test_harakiri_is_cancelled_also_after_an_exception(configured: Path) -> None:
    @decorators.harakiri(3600)
    def f(value: int) -> float:
        return 1 / value

    with RunningJob("/jobs"):
        assert f(1) == 1
        with pytest.raises(ZeroDivisionError):
            f(0)


@pytest.mark.parametrize("name", ["mule", "mulefunc", "muleloop", "mulemsg", "farm", "rpc", "erlang"])
def test_unavailable_decorators_explain_themselves(name: str) -> None:
    with pytest.raises(NotAvailable, match=f"@{name} belongs to uWSGI itself"):
        getattr(decorators, name)(1)
    assert name in decorators.__all__
