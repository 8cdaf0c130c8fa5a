"""`qworker spool run` and `qworker start --spooler` with uWSGI's options, as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from qworker.errors import SpoolError
from qworker.spooler.files.writing import Writer
from qworker.spooler.network import send
from tests.acceptance.private_servers import free_port
from tests.support.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

MODULE = """
import json, os, time
from qworker.spooler import uwsgi_api as uwsgi

def note(**what):
    with open("{ledger}", "a") as ledger:
        ledger.write(json.dumps(what | {{"pid": os.getpid()}}) + "\\n")

def spooler(env):
    note(n=env.get(b"n", b"").decode(), cwd=os.getcwd(), nice=os.nice(0), body=len(env.get("body", b"")))
    return uwsgi.SPOOL_OK

uwsgi.spooler = spooler
"""


class Spooler:
    """Spooler processes in *folder*, and the notes of their jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.log = folder / "log"
        self.writer = Writer(folder / "jobs")
        (folder / "jobs_module.py").write_text(MODULE.format(ledger=self.ledger))

    @contextmanager
    def running(self, *arguments: str, command: tuple[str, ...] = ("spool", "run", "jobs")) -> Iterator[None]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "qworker",
                    *command,
                    "--spooler-python-import",
                    "jobs_module",
                    *arguments,
                ],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(self.folder)},
                stdout=log,
                stderr=log,
            )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, self.log_text()

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def noted(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.ledger.read_text().splitlines()]

    def await_notes(self, number: int) -> list[dict[str, object]]:
        until(lambda: len(self.noted()) >= number, say=self.log_text)
        return self.noted()


@pytest.fixture
def spooler(tmp_path: Path) -> Spooler:
    return Spooler(tmp_path)


def write(spooler: Spooler, *numbers: int, **more: object) -> None:
    for number in numbers:
        spooler.writer.write({"n": str(number)}, **more)  # type: ignore[arg-type]


def test_jobs_run_in_the_spool_directory_and_are_logged(spooler: Spooler) -> None:
    with spooler.running():
        write(spooler, 1)
        (note,) = spooler.await_notes(1)
        until(lambda: " done in " in spooler.log_text(), say=spooler.log_text)
    assert (note["cwd"], note["nice"]) == (spooler.writer.path, os.nice(0))


def test_quiet_chdir_and_order(spooler: Spooler) -> None:
    write(spooler, 3, 4)
    write(spooler, 2, priority=20)
    write(spooler, 1, priority=3)
    options = ("--spooler-quiet", "--spooler-chdir", "/", "--spooler-ordered", "--spooler-processes", "1")
    with spooler.running(*options):
        notes = spooler.await_notes(4)
    assert [note["n"] for note in notes] == ["1", "2", "3", "4"]
    assert {note["cwd"] for note in notes} == {"/"}
    assert " done in " not in spooler.log_text()


def test_processes_are_replaced_after_max_tasks(spooler: Spooler) -> None:
    write(spooler, *range(9))
    with spooler.running("--spooler-max-tasks", "3", "--spooler-processes", "1"):
        notes = spooler.await_notes(9)
    assert len({note["pid"] for note in notes}) == 3


def test_missing_module_is_logged_and_jobs_still_run(spooler: Spooler) -> None:
    with spooler.running("--spooler-python-import", "no_such_module"):
        write(spooler, 1)
        spooler.await_notes(1)
    expected = "the spooler continues without no_such_module: there is no module 'no_such_module' in "
    assert expected in spooler.log_text()


def test_jobs_in_priority_directories_are_reported_without_ordered(spooler: Spooler) -> None:
    (Path(spooler.writer.path) / "5").mkdir()
    write(spooler, 1, priority=20)
    write(spooler, 2, priority=3)
    write(spooler, 3)
    with spooler.running():
        (note,) = spooler.await_notes(1)
    assert note["n"] == "3"
    assert (
        f"the jobs in the priority directories of {spooler.writer.path} (3, 20) are not run: priorities need "
        "--spooler-ordered\n"
    ) in spooler.log_text()


def test_jobs_in_priority_directories_run_with_ordered(spooler: Spooler) -> None:
    write(spooler, 1, priority=20)
    with spooler.running("--spooler-ordered"):
        spooler.await_notes(1)
    assert "priority directories" not in spooler.log_text()


@pytest.mark.parametrize("address", ["spool.sock", "127.0.0.1:0"])
def test_jobs_are_received_over_the_network(spooler: Spooler, address: str) -> None:
    address = address.replace(":0", f":{free_port()}")
    target = address if ":" in address else str(spooler.folder / address)
    with spooler.running("--spooler-socket", address):
        until(lambda: sent(target), say=spooler.log_text)
        (note,) = spooler.await_notes(1)
    assert note["n"] == "7"


def sent(target: str) -> bool:
    with suppress(SpoolError):  # it does not listen yet
        send(target, {"n": "7"})
        return True
    return False


def test_spooler_setting_runs_a_spooler_in_a_worker(spooler: Spooler) -> None:
    (spooler.folder / "proj.py").write_text(
        "import jobs_module\nfrom qworker import QWorker\n"
        "app = QWorker('proj', changes={'spooler': 'jobs'})\n"
        "@app.task\ndef note(n): jobs_module.note(n=n)\n"
    )
    with spooler.running(command=("start", "-A", "proj")):
        write(spooler, 1)
        call = [sys.executable, "-m", "qworker", "call", "-A", "proj", "proj.note", "two"]
        subprocess.run(call, cwd=spooler.folder, check=True, capture_output=True)
        notes = spooler.await_notes(2)
    assert sorted(str(note["n"]) for note in notes) == ["1", "two"]


def test_spool_directory_is_required(spooler: Spooler) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qworker", "spool", "run"], cwd=spooler.folder, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "no spool directory is configured: name one" in done.stderr
    assert "Traceback" not in done.stderr


DEPLOYED = """
import json, uwsgi
from uwsgidecorators import spool
{more}
@spool
def send(args):
    with open("{ledger}", "a") as ledger:
        ledger.write(json.dumps(args["n"]) + "\\n")
"""


def test_jobs_survive_a_broken_deploy(spooler: Spooler) -> None:
    """While the module cannot be imported, no attempt is counted."""
    module = spooler.folder / "jobs_module.py"
    module.write_text(DEPLOYED.format(more="import a_module_of_the_new_version", ledger=spooler.ledger))
    paths = [
        spooler.writer.write({"ud_spool_func": "send", "ud_spool_ret": -2, "n": str(n)}) for n in range(5)
    ]
    before = time.time()
    with spooler.running("--spooler-max-attempts", "1", "--spooler-frequency", "1"):
        # Each job has been tried and postponed.
        until(lambda: min(os.stat(path).st_mtime for path in paths) > before + 1, say=spooler.log_text)
        until(lambda: min(os.stat(path).st_mtime for path in paths) > before + 3, say=spooler.log_text)
    assert "jobs_module could not be imported" in spooler.log_text()
    assert spooler.noted() == []
    module.write_text(DEPLOYED.format(more="", ledger=spooler.ledger))
    with spooler.running("--spooler-max-attempts", "1"):
        assert sorted(map(str, spooler.await_notes(5))) == ["0", "1", "2", "3", "4"]


SLOW = """
import os, time, uwsgi
from uwsgidecorators import filemon, spool

def note(what):
    with open("{ledger}", "a") as ledger:
        ledger.write('{{"what": "%s"}}\\n' % what)

@filemon("{watched}", target="spooler")
def changed(number):
    note("changed")

@spool
def slow(args):
    note("begun")
    while not os.path.exists("{go}"):
        time.sleep(0.01)
"""


def test_signal_during_running_jobs_is_handled_after_them(spooler: Spooler) -> None:
    watched, go = spooler.folder / "watched", spooler.folder / "go"
    watched.touch()
    (spooler.folder / "jobs_module.py").write_text(SLOW.format(ledger=spooler.ledger, watched=watched, go=go))
    with spooler.running("--spooler-processes", "2"):
        until(lambda: "ready" in spooler.log_text(), say=spooler.log_text)
        for _ in range(2):
            spooler.writer.write({"ud_spool_func": "slow", "ud_spool_ret": -2})
        spooler.await_notes(2)
        watched.write_text("changed")
        # The monitor checks once a second; the worker would have the signal after the next check.
        seen = time.monotonic() + 2.5
        until(lambda: time.monotonic() > seen)
        assert {"what": "changed"} not in spooler.noted()
        go.touch()
        until(lambda: {"what": "changed"} in spooler.noted(), say=spooler.log_text)


def test_ordered_spooler_uses_one_process_by_default(spooler: Spooler) -> None:
    """As uWSGI does."""
    write(spooler, *range(30))
    with spooler.running("--spooler-ordered"):
        notes = spooler.await_notes(30)
    assert [note["n"] for note in notes] == [str(n) for n in range(30)]
    assert len({note["pid"] for note in notes}) == 1
