"""The end of the zygote, which forks the pool's children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import logging, os, select, socket
from qworker.components.pool.zygote import Zygote

logging.basicConfig(format="%(levelname)s %(message)s")
zygote = Zygote(None)
zygote.fork()
if {broken}:
    jobs = socket.socketpair()
    zygote.spawn(jobs[0], *os.pipe(), {{}})  # settings that lack everything
    select.select([zygote], [], [], 30)
    print("the worker hears:", zygote.receive())
    os.kill(zygote.pid, 9)
    select.select([zygote], [], [], 30)
    try:
        zygote.receive()
    except EOFError as error:
        print("the worker hears:", error)
zygote.close()
zygote.close()
"""


@pytest.mark.parametrize("broken", [True, False])
def test_zygote_logs_failures_and_ends_silently_when_closed(broken: bool) -> None:
    said = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(broken=broken)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    if not broken:
        assert (said.stdout, said.stderr) == ("", "")
        return
    assert "the worker hears: [('gone', 0, 256)]" in said.stdout
    assert "the worker hears: the process that forks the pool's children has died" in said.stdout
    assert said.stderr.startswith("CRITICAL the process that forks the pool's children has failed")
    assert "KeyError: 'index'" in said.stderr
