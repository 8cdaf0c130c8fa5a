"""Signals and the frequency between web processes and the spooler."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from qworker.spooler.uwsgi import runtime
from qworker.spooler.uwsgi.signal_socket import SignalSocket
from tests.support.waiting import readable

pytestmark = pytest.mark.timeout(60)

REPOSITORY = Path(__file__).resolve().parents[2]
WEB = """
    from qworker.spooler import uwsgi_api
    from qworker.spooler.options import SpoolerOptions
    uwsgi_api.configure(SpoolerOptions(external=({place!r},)))
    uwsgi_api.install()
    import uwsgi
    {body}
"""


def web(place: Path, body: str) -> str:
    """Run *body* in a web process; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WEB.format(place=str(place), body=body))],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "spool"
    place.mkdir(0o750)
    return place


def test_signal_from_a_web_process_wakes_the_spooler(place: Path) -> None:
    receiver = SignalSocket(place)
    web(place, "uwsgi.signal(17); uwsgi.signal(3)")
    assert readable(receiver), "it should be readable"
    assert receiver.read() == [17, 3]
    receiver.close()


def test_web_process_finds_the_spooler_and_sets_its_frequency(place: Path) -> None:
    assert web(place, "print(uwsgi.spooler_pid())") == "0\n"
    runtime.announce(place)
    said = web(place, "print(uwsgi.spooler_pids(), uwsgi.set_spooler_frequency(7))")
    assert said == f"[{os.getpid()}] True\n"
    assert runtime.frequency_of(place, 30.0) == 7
    runtime.withdraw(place)
    assert web(place, "print(uwsgi.spooler_pids())") == "[]\n"


def test_killed_spooler_is_not_listed(place: Path) -> None:
    code = f"""
        import os, signal
        from qworker.spooler.uwsgi import runtime
        from qworker.spooler.uwsgi.signal_socket import SignalSocket
        socket = SignalSocket({str(place)!r})
        runtime.announce({str(place)!r})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == -9, done.stderr
    assert runtime.pids(place) == []
    assert "no spooler" in web(
        place, "\n    try: uwsgi.signal(5)\n    except Exception as error: print(error)"
    )
    receiver = SignalSocket(place)
    runtime.announce(place)
    assert len(os.listdir(place / runtime.STATE)) == 2, "its files are deleted"
    receiver.close()
