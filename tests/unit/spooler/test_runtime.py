"""The spoolers of a directory, its scan frequency, and signals from other processes."""

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


def pid_of_a_dead_process() -> int:
    """The id of a process that has exited."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_announced_processes_are_listed_until_withdrawn(place: Path) -> None:
    assert runtime.pids(place) == []
    runtime.announce(place)
    runtime.announce(place)
    runtime.announce(place, os.getppid())
    assert runtime.pids(place) == sorted([os.getpid(), os.getppid()])
    runtime.withdraw(place)
    runtime.withdraw(place)
    assert runtime.pids(place) == [os.getppid()]
    assert stat.S_IMODE((place / STATE).stat().st_mode) == 0o750, "the same mode as the spool directory"


def test_dead_process_is_not_listed(place: Path) -> None:
    runtime.announce(place, pid_of_a_dead_process())
    assert runtime.pids(place) == []


def test_announcing_removes_files_of_dead_processes(place: Path) -> None:
    runtime.announce(place, os.getppid())
    runtime.announce(place, pid_of_a_dead_process())
    runtime.announce(place)
    names = {f"{pid}.process" for pid in (os.getpid(), os.getppid())}
    assert set(os.listdir(place / STATE)) == names


def test_reused_pid_is_not_listed(place: Path) -> None:
    runtime.announce(place)
    file = place / STATE / f"{os.getpid()}.process"
    assert file.read_text()
    file.write_text("1")
    assert runtime.pids(place) == []


def test_frequency_is_forgotten_with_the_last_spooler(place: Path) -> None:
    assert runtime.frequency_of(place, 30.0) == 30.0
    runtime.announce(place, os.getppid())
    runtime.set_frequency(place, 2)
    runtime.announce(place)
    assert runtime.frequency_of(place, 30.0) == 2.0, "another spooler is running"
    runtime.withdraw(place)
    runtime.withdraw(place, os.getppid())
    runtime.announce(place)
    assert runtime.frequency_of(place, 30.0) == 30.0


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), None, "5", True])
def test_invalid_frequencies_are_rejected(place: Path, seconds: Any) -> None:
    with pytest.raises(SpoolError, match="seconds above 0"):
        runtime.set_frequency(place, seconds)


@pytest.mark.parametrize("text", [b"", b"often", b"nan", b"-5", b"0", b"\xff", b"1" * 100_000, b"inf"])
def test_damaged_frequency_file_is_ignored(place: Path, text: bytes) -> None:
    runtime.set_frequency(place, 2)
    (place / STATE / "frequency").write_bytes(text)
    assert runtime.frequency_of(place, 30.0) in (30.0, float("1" * 64))


@pytest.mark.parametrize("name", ["x.process", "-1.process", f"{10**20}.process", "0x1.process", ".process"])
def test_malformed_file_names_are_ignored(place: Path, name: str) -> None:
    runtime.state_place(place)
    (place / STATE / name).touch()
    assert runtime.pids(place) == []


def test_unusable_state_directory_is_an_error(place: Path) -> None:
    (place / STATE).symlink_to("/tmp")
    with pytest.raises(SpoolError, match="not a directory"):
        runtime.announce(place)
    with pytest.raises(SpoolError, match="cannot be created"):
        runtime.announce(place / "missing")


def test_signals_arrive_in_order(place: Path) -> None:
    assert not signal_socket.send(place, 1), "there is no spooler"
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


def test_signal_reaches_only_one_receiver(place: Path) -> None:
    receivers = [SignalSocket(place, pid) for pid in (1, 2)]
    signal_socket.send(place, 5)
    assert sorted(receiver.read() for receiver in receivers) == [[], [5]]
    for receiver in receivers:
        receiver.close()


def test_socket_of_a_dead_spooler_is_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runtime.state_place(place))  # the address of a socket has at most 108 bytes
    address = "1.signals"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
        left.bind(address)
    assert not signal_socket.send(place, 5)
    receiver = SignalSocket(place)
    assert not os.path.exists(address)
    assert signal_socket.send(place, 5)
    again = SignalSocket(place)
    assert signal_socket.send(place, 6)
    assert again.read() == [6], "the newer socket has the name"
    receiver.close()
    again.close()


def test_invalid_datagrams_are_ignored(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)  # for a short address
    receiver = SignalSocket(place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for data in (b"", b"\1\2", b"x" * 10_000, b"\7"):
            sender.sendto(data, f"{STATE}/{os.getpid()}.signals")
    assert receiver.read() == [7]
    receiver.close()


def test_long_paths_are_supported(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 100) / ("y" * 100)
    place.mkdir(parents=True)
    receiver = SignalSocket(place)
    assert signal_socket.send(place, 9)
    assert receiver.read() == [9]
    receiver.close()


def test_sending_to_a_full_socket_fails(place: Path) -> None:
    receiver = SignalSocket(place)
    sent = 0
    while sent < 10_000 and signal_socket.send(place, 1):
        sent += 1
    assert 0 < sent < 10_000
    assert len(receiver.read()) == min(sent, 256)
    receiver.close()
