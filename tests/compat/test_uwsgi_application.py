"""Code written for uWSGI's module and decorators behaves the same with real uWSGI, with qworker, and with
both."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from qworker.spooler.files.packet import decode
from qworker.spooler.files.writing import Writer
from qworker.spooler.watching.directory import SpoolDirectory
from tests.support.spools import files
from tests.support.waiting import until

pytest.importorskip("pyuwsgi", reason="a real uWSGI: `pip install pyuwsgi`")

pytestmark = [pytest.mark.compat, pytest.mark.timeout(120)]

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "uwsgi_app"
SPOOL_RUN = ("-m", "qworker", "spool", "run", "--ini", "app.ini")
SHIM = """
    from qworker.spooler import uwsgi_api
    from qworker.spooler.options import SpoolerOptions
    uwsgi_api.configure(SpoolerOptions({directories!r}))
    uwsgi_api.install()
"""
WORK_OFF = """
    import os, time
    import uwsgi
    from qworker.spooler.watching.directory import SpoolDirectory
    from qworker.spooler.uwsgi.job_context import RunningJob
    directory = SpoolDirectory("jobs", ordered=True)
    deadline = time.monotonic() + 30
    while uwsgi.spooler_jobs() and time.monotonic() < deadline:
        claim = directory.next()
        if claim is None:
            time.sleep(0.02)
            continue
        env = {**claim.pairs, "spooler_task_name": claim.name, **({"body": claim.body} if claim.body else {})}
        with RunningJob(directory.path, claim.path, env):
            print(uwsgi.spooler(env), flush=True)
        claim.finish()
"""


@contextmanager
def started(directory: Path, *options: str) -> Iterator[Path]:
    """Start a real uWSGI; yields its log."""
    code = "import sys, pyuwsgi; pyuwsgi.run(sys.argv[1:])"
    with running(directory, "uwsgi.log", "-c", code, *options) as log:
        yield log


@contextmanager
def running(directory: Path, name: str, *arguments: str) -> Iterator[Path]:
    """Run Python with these arguments; yields the log with this name."""
    log = directory / name
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def python(directory: Path, *codes: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "".join(map(textwrap.dedent, codes))],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def eventually(condition: Callable[[], object], log: Path) -> None:
    until(condition, say=lambda: log.read_text(errors="replace"))


def subjects(outbox: Path) -> list[str]:
    """The subjects of the mails in the outbox, in the order sent."""
    return [
        line.removeprefix("Subject: ")
        for mail in sorted(outbox.glob("*.eml"))
        for line in mail.read_text().splitlines()
        if line.startswith("Subject: ")
    ]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__")))


class Site:
    """The example's web page, on a free port."""

    def __init__(self, example: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        ini = example / "app.ini"
        ini.write_text(ini.read_text().replace("127.0.0.1:8080", self._address))

    def page(self, **fields: str) -> str:
        with urlopen(f"http://{self._address}/", urlencode(fields).encode() or None, timeout=20) as answer:
            return str(answer.read().decode())

    def is_up(self) -> bool:
        with suppress(URLError, OSError):
            return "sent" in self.page()
        return False

    def send_all(self) -> None:
        """A mail of each kind, and one that cannot be delivered."""
        for how in ("now", "soon", "first", "letter"):
            assert "uwsgi_spoolfile_on_" in self.page(to="a@example.com", subject=how, how=how)
        self.page(to="nobody", how="letter")


def all_is_done(example: Path, times: int, log: Path) -> None:
    outbox = example / "outbox"
    eventually(lambda: len(subjects(outbox)) == 4 * times, log)
    assert sorted(subjects(outbox)) == sorted(["A letter", "first", "now", "soon"] * times)
    eventually(lambda: not jobs_in(example), log)
    eventually(lambda: (outbox / "waiting").exists() and (outbox / "minute").exists(), log)


def jobs_in(example: Path) -> list[str]:
    return [name for name in files(example / "jobs") if "uwsgi_spoolfile_on_" in name]


def test_example_runs_under_uwsgi(example: Path) -> None:
    site = Site(example)
    with started(example, "--ini", "app.ini") as log:
        eventually(site.is_up, log)
        site.send_all()
        all_is_done(example, 1, log)
        assert "nobody can be reached" in log.read_text()


def test_example_spooler_runs_in_qworker(example: Path) -> None:
    """Including its timer and its cron. The page is served elsewhere."""
    enqueue = """
        from app import enqueue
        for how in ("now", "soon", "first", "letter"):
            assert "uwsgi_spoolfile_on_" in enqueue(how, "a@example.com", how)
        enqueue("letter", "nobody", "")
    """
    python(example, SHIM.format(directories=(str(example / "jobs"),)), enqueue)
    with running(example, "qworker.log", *SPOOL_RUN) as log:
        all_is_done(example, 1, log)
        assert "nobody can be reached" in log.read_text()


def test_uwsgi_and_qworker_run_each_job_of_the_example_once(example: Path) -> None:
    site = Site(example)
    with (
        running(example, "qworker.log", *SPOOL_RUN),
        started(example, "--ini", "app.ini") as log,
    ):
        eventually(site.is_up, log)
        for _ in range(5):
            site.send_all()
        all_is_done(example, 5, log)


def test_example_runs_without_uwsgi(example: Path) -> None:
    """The page and the functions unchanged, with our module instead of uWSGI's."""
    serve = """
        import io
        from wsgiref.util import setup_testing_defaults
        from app import application

        def page(data=b""):
            environ = {"CONTENT_LENGTH": str(len(data)), "wsgi.input": io.BytesIO(data)}
            setup_testing_defaults(environ)
            environ["REQUEST_METHOD"] = "POST" if data else "GET"
            return b"".join(application(environ, lambda status, headers: None)).decode()

        for how in (b"now", b"soon", b"first", b"letter"):
            said = page(b"to=a%%40example.com&subject=%b&how=%b" % (how, how))
            assert "uwsgi_spoolfile_on_" in said
        page(b"to=nobody&how=letter")
        assert "5 waiting, 0 sent" in page()
    """
    shim = SHIM.format(directories=(str(example / "jobs"),))
    assert python(example, shim, serve) == ""
    assert python(example, shim, "import mails\n", WORK_OFF).split().count("-2") == 5
    assert subjects(example / "outbox")[0] == "first"
    assert sorted(subjects(example / "outbox")) == ["A letter", "first", "now", "soon"]
    signals = """
        import mails
        from qworker.spooler.uwsgi.timers import SignalTimers
        timers = SignalTimers(uwsgi_api.signal_table)
        timers.due(0)
        for signum, target in timers.due(1):
            assert target == "spooler" and uwsgi_api.run_signal(signum)
    """
    python(example, shim, signals)
    assert (example / "outbox" / "waiting").read_text() == "0"


FUNCTIONS = """
    import os, sys
    import uwsgi
    {decorators}

    def note(*what):
        with open({log!r}, "a") as log:
            log.write(repr(what) + "\\n")

    @decorators.spool(pass_arguments=True)
    def call(*args, **kwargs):
        note("call", args, kwargs)

    @decorators.spool
    def plain(env):
        note("plain", env["to"], env.get("body"))

    @decorators.spoolraw
    def raw(env):
        note("raw", env["to"])
        return uwsgi.SPOOL_OK

    @decorators.postfork
    def forked():
        if uwsgi.i_am_the_spooler():
            note("forked")
"""
CALLS = """
    call(1, "two", [3.5, None], when=(4,), body=b"x")
    plain({"to": "me", "body": "text"})
    plain.spool(to="you", priority="1")
    raw(to="them", at="1")
"""
OURS = "import qworker.spooler.decorators as decorators"
THEIRS = "import uwsgidecorators as decorators"
NOTED = sorted(
    [
        "('call', (1, 'two', [3.5, None]), {'when': (4,)})",
        "('plain', 'me', 'text')",
        "('plain', 'you', None)",
        "('raw', 'them')",
    ]
)


def functions(path: Path, decorators: str) -> str:
    return textwrap.dedent(FUNCTIONS.format(decorators=decorators, log=str(path / "noted")))


def noted(path: Path) -> list[str]:
    file = path / "noted"
    return sorted(file.read_text().splitlines()) if file.exists() else []


@pytest.mark.parametrize("decorators", [OURS, THEIRS], ids=["ours", "theirs"])
def test_uwsgi_runs_our_jobs(tmp_path: Path, decorators: str) -> None:
    """With its own decorators, and with ours in its process."""
    shim = SHIM.format(directories=(str(tmp_path / "jobs"),))
    python(tmp_path, shim, functions(tmp_path, THEIRS), CALLS)
    assert len(files(tmp_path / "jobs")) == 4
    (tmp_path / "functions.py").write_text(functions(tmp_path, decorators))
    with started(
        tmp_path, "--master", "--need-app=0", "--spooler=jobs", "--spooler-ordered", "--spooler-frequency=1",
        "--shared-import=functions.py",
    ) as log:  # fmt: skip
        eventually(lambda: set(noted(tmp_path)) == {*NOTED, "('forked',)"}, log)
        eventually(lambda: not files(tmp_path / "jobs"), log)


@pytest.mark.parametrize("decorators", [OURS, THEIRS], ids=["ours", "theirs"])
def test_jobs_enqueued_in_uwsgi_run_in_qworker(tmp_path: Path, decorators: str) -> None:
    """Our decorators work with an external spooler alone; uWSGI's also need one that uWSGI runs itself."""
    calls = textwrap.dedent(CALLS)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "functions.py").write_text(
        functions(tmp_path, decorators) + calls + "print('calls are made', flush=True)\n"
    )
    options = ["--spooler-external=jobs", *([] if decorators is OURS else ["--spooler=other"])]
    (tmp_path / "other").mkdir()
    with started(tmp_path, "--master", "--need-app=0", *options, "--shared-import=functions.py") as log:
        eventually(lambda: "calls are made" in log.read_text(), log)
    assert len(files(tmp_path / "jobs")) == 4
    shim = SHIM.format(directories=(str(tmp_path / "jobs"),))
    python(tmp_path, shim, functions(tmp_path, THEIRS), WORK_OFF)
    assert [line for line in noted(tmp_path) if "forked" not in line] == NOTED


def test_both_write_the_same_packets(tmp_path: Path) -> None:
    """The same calls, in uWSGI with its decorators and outside with ours."""
    for place in ("uwsgi", "ours"):
        (tmp_path / place).mkdir()
    code = functions(tmp_path, THEIRS) + textwrap.dedent(CALLS)
    (tmp_path / "functions.py").write_text(code + "print('calls are made', flush=True)\n")
    with started(tmp_path, "--master", "--need-app=0", "--spooler-external=uwsgi", "--spooler=none",
                 "--shared-import=functions.py") as log:  # fmt: skip
        eventually(lambda: "calls are made" in log.read_text(), log)
    python(tmp_path, SHIM.format(directories=(str(tmp_path / "ours"),)), code)

    def written(place: str) -> list[object]:
        found: list[object] = []
        for path in files(tmp_path / place):
            if "uwsgi_spoolfile_on_" not in path:
                continue
            file = tmp_path / place / path
            pairs, body = decode(file.read_bytes())
            args = [pickle.loads(pairs.pop(key)) for key in (b"args", b"kwargs") if key in pairs]
            due = file.stat().st_mtime if b"at" in pairs else None
            found.append((os.path.dirname(path), sorted(pairs.items()), args, body, due))
        return sorted(found, key=repr)

    assert len(written("uwsgi")) == 4
    assert written("ours") == written("uwsgi")


def test_module_answers_like_uwsgis(tmp_path: Path) -> None:
    """Asks both the same questions and compares the printed answers."""
    questions = f"""
        import os, uwsgi
        def ask(call):
            try:
                return call()
            except Exception as error:
                return [isinstance(error, kind) for kind in (ValueError, AttributeError)]
        jobs = {str(tmp_path / "place")!r}
        name = uwsgi.spool({{b"a": b"1", b"body": b"xx", b"at": b"1900000000"}})
        empty = uwsgi.spool({{b"a": b"2"}})
        def told(path):
            task = uwsgi.spooler_get_task(path)
            if task is not None:
                return sorted((repr(key), task[key]) for key in task if key != "spooler_task_name")
        answers = [
            os.path.dirname(name), len(uwsgi.spooler_jobs()), type(uwsgi.spooler_jobs()[0]),
            told(name.decode()), told(empty.decode()), told("/nowhere"), uwsgi.spoolers[0],
            type(uwsgi.spoolers), uwsgi.worker_id(), uwsgi.mule_id(), uwsgi.i_am_the_spooler(),
            "spooler-external" in uwsgi.opt, uwsgi.signal_registered(3),
            ask(lambda: uwsgi.register_signal(3, "spooler", print)), uwsgi.signal_registered(3),
            ask(lambda: uwsgi.register_signal(3, "spooler", repr)),
            ask(lambda: uwsgi.register_signal(4, "nonsense", print)), ask(lambda: uwsgi.add_timer(3, 1000)),
            ask(lambda: uwsgi.add_rb_timer(3, 1000)), ask(lambda: uwsgi.add_cron(3, 0, 0, 1, 1, -1)),
            ask(lambda: uwsgi.spool()), ask(lambda: uwsgi.spool(1)), ask(lambda: uwsgi.set_user_harakiri(0)),
            ask(lambda: uwsgi.spool({{b"spooler": b"/nowhere"}})), ask(lambda: uwsgi.nothing),
            ask(lambda: uwsgi.spool({{b"k": None}})), uwsgi.set_spooler_frequency(20), uwsgi.spooler_pid(),
            uwsgi.SPOOL_OK, uwsgi.SPOOL_RETRY, uwsgi.SPOOL_IGNORE, type(uwsgi.version), uwsgi.masterpid() > 0,
            ask(lambda: uwsgi.lock()), ask(lambda: uwsgi.unlock()), type(uwsgi.spooler_pids()),
        ]
        for answer in answers:
            print("answer", answer, flush=True)
        print("answered", flush=True)
    """
    (tmp_path / "place").mkdir()
    (tmp_path / "ask.py").write_text(textwrap.dedent(questions))
    with started(
        tmp_path, "--master", "--need-app=0", "--spooler-external=place", "--shared-import=ask.py"
    ) as log:
        eventually(lambda: "answered" in log.read_text(), log)
        theirs = [line for line in log.read_text().splitlines() if line.startswith("answer ")]
    for path in files(tmp_path / "place"):
        (tmp_path / "place" / path).unlink()
    shim = """
        from qworker.spooler import uwsgi_api
        from qworker.spooler.options import SpoolerOptions
        uwsgi_api.configure(SpoolerOptions(external=("place",)))
        uwsgi_api.install()
    """
    ours = python(tmp_path, shim, "import ask").splitlines()[:-1]
    assert len(theirs) == 36
    assert ours == theirs


def test_spooler_get_task_keeps_the_lock_of_the_running_job(tmp_path: Path) -> None:
    """In uWSGI, spooler_get_task() on the job's own file drops its lock, and the job runs twice."""
    Writer(tmp_path / "jobs").write({"ud_spool_func": "plain", "ud_spool_ret": -2, "to": "me"})
    code = """
        import uwsgi
        from qworker.spooler.watching.directory import SpoolDirectory
        from qworker.spooler.uwsgi.job_context import RunningJob
        ours, other = (SpoolDirectory("jobs") for _ in range(2))
        claim = ours.next()
        with RunningJob(ours.path, claim.path, claim.pairs):
            task = uwsgi.spooler_get_task(f"{ours.path}/{claim.path}")
            print(task[b"to"], other.next(), uwsgi.spooler_get_task(f"{ours.path}/x"))
    """
    shim = SHIM.format(directories=(str(tmp_path / "jobs"),))
    assert python(tmp_path, shim, code) == "b'me' None None\n"
    directory = SpoolDirectory(tmp_path / "jobs")
    assert directory.next() is not None
    directory.close()


def test_perl_command_of_the_guide_enqueues_a_job(tmp_path: Path) -> None:
    """The exact command of the guide, for a decorated function."""
    perl = shutil.which("perl")
    if perl is None:
        pytest.skip("a producer in Perl: install perl")
    guide = (REPOSITORY / "docs" / "how-to" / "move-from-uwsgi.md").read_text()
    (command,) = [
        block.partition("```")[0] for block in guide.split("```sh\n")[1:] if block.startswith("perl")
    ]
    (tmp_path / "jobs").mkdir(0o750)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, timeout=60)
    functions = """
        import uwsgidecorators
        @uwsgidecorators.spool(pass_arguments=True)
        def send(*args):
            print(args)
    """
    shim = SHIM.format(directories=(str(tmp_path / "jobs"),))
    assert python(tmp_path, shim, functions, WORK_OFF) == "('you',)\n-2\n"
