"""Packing commands for Redis, and values that hiredis must not get."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("hiredis", reason='pip install "qworker-queue[redis]"')

from qworker.transports.redis.connection import pack


def test_text_bytes_and_numbers_are_packed() -> None:
    assert pack(("SET", b"k\xff", 12, 1.5, "é")) == (
        b"*5\r\n$3\r\nSET\r\n$2\r\nk\xff\r\n$2\r\n12\r\n$3\r\n1.5\r\n$2\r\n\xc3\xa9\r\n"
    )


@pytest.mark.parametrize("value", [None, True, object(), ["a"]])
def test_other_types_are_rejected(value: object) -> None:
    with pytest.raises(TypeError, match="str, int, float or bytes"):
        pack(("SET", value))


INTERRUPTED = """
import signal
from qworker.transports.redis.connection import pack

class Stray(Exception):
    pass

def alarm(*given):
    raise Stray

signal.signal(signal.SIGALRM, alarm)
command = tuple(range(300_000))
signal.setitimer(signal.ITIMER_REAL, 0.003)
try:
    pack(command)
except Stray:
    print("interrupted")
"""


def test_signal_handler_raising_during_pack_does_not_crash_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
