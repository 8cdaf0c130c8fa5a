"""Who works off a directory, how often it is scanned, and signals from other processes."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qworker.errors import SpoolError
from qworker.spooler.uwsgi import runtime, signal_socket
from qworker.spooler.uwsgi.runtime import STATE
from qworker.spooler.uwsgi.signal_socket import SignalSocket


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "spool"
    place.mkdir(0o750)
    return place


def dead() -> int:
    """The id of a process that was there."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_who_is_announced_is_told_of_until_it_goes(place: Path) -> None:
    assert runtime.pids(place) == []
    runtime.announce(place)
    runtime.announce(place)
    runtime.announce(place, os.getppid())
    assert runtime.pids(place) == sorted([os.getpid(), os.getppid()])
    runtime.withdraw(place)
    runtime.withdraw(place)
    assert runtime.pids(place) == [os.getppid()]
    assert stat.S_IMODE((place / STATE).stat().st_mode) == 0o750, "who may write jobs, and nobody else"


def test_who_died_is_told_of_no_more(place: Path) -> None:
    runtime.announce(place, dead())
    assert runtime.pids(place) == []


def test_who_died_leaves_nothing_when_another_comes(place: Path) -> None:
    runtime.announce(place, os.getppid())
    runtime.announce(place, dead())
    runtime.announce(place)
    names = {f"{pid}.process" for pid in (os.getpid(), os.getppid())}
    assert set(os.listdir(place / STATE)) == names


def test_another_process_of_the_same_id_is_another_one(place: Path) -> None:
    runtime.announce(place)
    file = place / STATE / f"{os.getpid()}.process"
    assert file.read_text()
    file.write_text("1")
    assert runtime.pids(place) == []


def test_a_frequency_is_forgotten_with_the_last_spooler(place: Path) -> None:
    assert runtime.frequency_of(place, 30.0) == 30.0
    runtime.announce(place, os.getppid())
    runtime.set_frequency(place, 2)
    runtime.announce(place)
    assert runtime.frequency_of(place, 30.0) == 2.0, "another one ran"
    runtime.withdraw(place)
    runtime.withdraw(place, os.getppid())
    runtime.announce(place)
    assert runtime.frequency_of(place, 30.0) == 30.0


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), None, "5", True])
def test_a_frequency_is_more_than_nothing(place: Path, seconds: Any) -> None:
    with pytest.raises(SpoolError, match="more than 0"):
        runtime.set_frequency(place, seconds)


@pytest.mark.parametrize("text", [b"", b"often", b"nan", b"-5", b"0", b"\xff", b"1" * 100_000, b"inf"])
def test_a_damaged_file_says_nothing(place: Path, text: bytes) -> None:
    runtime.set_frequency(place, 2)
    (place / STATE / "frequency").write_bytes(text)
    assert runtime.frequency_of(place, 30.0) in (30.0, float("1" * 64))


@pytest.mark.parametrize("name", ["x.process", "-1.process", f"{10**20}.process", "0x1.process", ".process"])
def test_damaged_names_are_nobody(place: Path, name: str) -> None:
    runtime.state_place(place)
    (place / STATE / name).touch()
    assert runtime.pids(place) == []


def test_what_is_in_the_way_is_said(place: Path) -> None:
    (place / STATE).symlink_to("/tmp")
    with pytest.raises(SpoolError, match="not a directory"):
        runtime.announce(place)
    with pytest.raises(SpoolError, match="cannot be made"):
        runtime.announce(place / "missing")


def test_signals_arrive_in_order(place: Path) -> None:
    assert not signal_socket.send(place, 1), "nobody is there"
    receiver = SignalSocket(place)
    try:
        assert receiver.read() == []
        assert all(signal_socket.send(place, signum) for signum in (0, 17, 255))
        assert receiver.read() == [0, 17, 255]
    finally:
        receiver.close()
    receiver.close()
    assert not signal_socket.send(place, 1)
    assert os.listdir(place / STATE) == []


def test_only_one_of_several_gets_a_signal(place: Path) -> None:
    receivers = [SignalSocket(place, pid) for pid in (1, 2)]
    signal_socket.send(place, 5)
    assert sorted(receiver.read() for receiver in receivers) == [[], [5]]
    for receiver in receivers:
        receiver.close()


def test_the_socket_of_a_dead_spooler_is_in_nobodys_way(place: Path) -> None:
    address = f"{runtime.state_place(place)}/1.signals"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
        left.bind(address)
    assert not signal_socket.send(place, 5)
    receiver = SignalSocket(place)
    assert not os.path.exists(address)
    assert signal_socket.send(place, 5)
    again = SignalSocket(place)
    assert signal_socket.send(place, 6)
    assert again.read() == [6], "it has the name now"
    receiver.close()
    again.close()


def test_garbage_is_no_signal(place: Path) -> None:
    receiver = SignalSocket(place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for data in (b"", b"\1\2", b"x" * 10_000, b"\7"):
            sender.sendto(data, f"{place}/{STATE}/{os.getpid()}.signals")
    assert receiver.read() == [7]
    receiver.close()


def test_a_long_path_does_no_harm(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 100) / ("y" * 100)
    place.mkdir(parents=True)
    receiver = SignalSocket(place)
    assert signal_socket.send(place, 9)
    assert receiver.read() == [9]
    receiver.close()


def test_a_socket_that_is_full_is_none(place: Path) -> None:
    receiver = SignalSocket(place)
    sent = 0
    while sent < 10_000 and signal_socket.send(place, 1):
        sent += 1
    assert 0 < sent < 10_000
    assert len(receiver.read()) == min(sent, 256)
    receiver.close()
