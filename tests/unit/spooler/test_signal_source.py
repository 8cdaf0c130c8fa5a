"""The signals of a runner: from timers, and from other processes."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.spooler.uwsgi import runtime, signal_socket
from qworker.spooler.uwsgi.signal_table import SignalTable
from qworker.spooler.uwsgi.timers import SignalSource
from tests.support.waiting import readable


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    places = [str(tmp_path / name) for name in ("one", "two")]
    for place in places:
        os.mkdir(place, 0o750)
    return places


@pytest.fixture
def table(places: list[str]) -> SignalTable:
    table = SignalTable()
    table.register(1, "spooler", print)
    table.register(2, f"{places[1]}/", print)
    table.register(3, "/elsewhere", print)
    return table


@pytest.fixture
def source(places: list[str], table: SignalTable) -> Iterator[SignalSource]:
    source = SignalSource(places, table)
    source.start()
    yield source
    source.stop()


def test_timers_fire_only_for_our_directories(
    source: SignalSource, table: SignalTable, places: list[str]
) -> None:
    assert source.next_time(0) == math.inf
    for signum in (1, 2, 3):
        table.add_timer(signum, 5)
    assert source.due(0) == []
    assert source.next_time(0) == 5
    assert source.due(5) == [(1, places[0]), (2, places[1])], "the third is for another runner"


def test_signals_of_other_processes_are_received(
    source: SignalSource, places: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert not readable(*source.filenos(), seconds=0)
    signal_socket.send(places[1], 1)
    signal_socket.send(places[0], 9)
    assert len(readable(*source.filenos(), seconds=0)) == 2
    with caplog.at_level(logging.WARNING):
        assert source.due(0) == [(1, places[1])]
    assert "signal 9" in caplog.text


def test_source_is_announced_while_it_runs(source: SignalSource, places: list[str]) -> None:
    source.start()
    assert [runtime.pids(place) for place in places] == [[os.getpid()]] * 2
    source.stop()
    source.stop()
    assert [runtime.pids(place) for place in places] == [[], []]
    assert source.filenos() == []
    assert not signal_socket.send(places[0], 1)
    source.start()
    assert signal_socket.send(places[0], 1)


def test_unusable_directory_does_not_prevent_starting(
    places: list[str], table: SignalTable, caplog: pytest.LogCaptureFixture
) -> None:
    (Path(places[0]) / runtime.STATE).touch()
    source = SignalSource(places, table)
    with caplog.at_level(logging.WARNING):
        source.start()
    assert "no signals from other processes" in caplog.text
    assert len(source.filenos()) == 1
    assert source.due(0) == []
    source.stop()
