"""The timers of signals, with the time given by the test, and the signal table."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.spooler.uwsgi.signal_table import CronFields, SignalTable
from qworker.spooler.uwsgi.timers import DueSignal, SignalTimers, stamp_of

MIDNIGHT = 1_704_067_200.0  # 2024-01-01 00:00 UTC, a Monday


@pytest.fixture
def table() -> SignalTable:
    table = SignalTable()
    table.register(1, "spooler", print)
    return table


def timers(table: SignalTable) -> SignalTimers:
    return SignalTimers(table, local=time.gmtime)


def times(work: SignalTimers, begin: float, end: float) -> list[float]:
    """When it fires, counted from *begin*, if it is polled at its next_time(), as by the runner."""
    found = []
    now = begin
    while now <= end:
        found += [now - begin] * len(work.due(now))
        following = work.next_time(now)
        assert following > now, "it would be polled for ever"
        now = following
    return found


def test_timer_fires_repeatedly(table: SignalTable) -> None:
    table.add_timer(1, 10)
    assert times(timers(table), 1000.5, 1041) == [10, 20, 30, 40]


def test_timer_with_a_limited_number_of_runs(table: SignalTable) -> None:
    table.add_timer(1, 0.25, 3)
    work = timers(table)
    assert times(work, 0, 100) == [0.25, 0.5, 0.75]
    assert work.next_time(100) == math.inf


def test_missed_runs_fire_once(table: SignalTable) -> None:
    table.add_timer(1, 10)
    work = timers(table)
    assert work.due(0) == []
    assert work.due(95) == [DueSignal(1, "spooler")]
    assert work.due(104) == []
    assert work.due(105) == [DueSignal(1, "spooler")]


def test_clock_set_back_does_not_stop_timers(table: SignalTable) -> None:
    table.add_timer(1, 10)
    table.add_cron(1, CronFields())
    work = timers(table)
    work.due(100_000)
    work.due(100_010)
    assert times(work, 50_000, 50_061) == [0, 10, 20, 30, 40, 50, 60, 60]


@pytest.mark.parametrize(
    ("fields", "fired"),
    [
        (CronFields(), [0, 60, 120, 180, 240, 300]),
        (CronFields(-2), [0, 120, 240]),
        (CronFields(4), [240]),
        (CronFields(4, 1), []),
    ],
)
def test_cron_fires_once_in_its_minutes(table: SignalTable, fields: CronFields, fired: list[float]) -> None:
    table.add_cron(1, fields)
    assert times(timers(table), MIDNIGHT, MIDNIGHT + 300) == fired


def test_cron_fires_at_the_start_within_its_minute(table: SignalTable) -> None:
    """As in uWSGI, where it then pauses for 60 seconds."""
    table.add_cron(1, CronFields())
    assert times(timers(table), MIDNIGHT + 30, MIDNIGHT + 200) == [0, 60, 120]


@given(st.integers(-5, 59), st.integers(-3, 23), st.integers(0, 86_400))
def test_cron_polled_at_next_time_misses_nothing(minute: int, hour: int, begin: int) -> None:
    """Polled only at next_time(), it fires as if it were polled every second."""
    found = []
    for rare in (True, False):
        table = SignalTable()
        table.register(1, "spooler", print)
        table.add_cron(1, CronFields(minute or -1, hour or -1))
        work = timers(table)
        now, end = MIDNIGHT + begin, MIDNIGHT + begin + 4000
        fired = []
        while now <= end:
            if work.due(now):
                fired.append(now)
            now = work.next_time(now) if rare else now + 1
        found.append(fired)
    assert found[0] == found[1]


def test_cron_uses_local_time(table: SignalTable) -> None:
    table.add_cron(1, CronFields(0, 5))
    work = SignalTimers(table, local=lambda now: time.gmtime(now + 5 * 3600))
    assert work.due(MIDNIGHT) == [DueSignal(1, "spooler")]


def test_file_monitor_fires_on_changes(table: SignalTable, tmp_path: Path) -> None:
    file = tmp_path / "file"
    table.add_monitor(1, str(file))
    work = timers(table)
    assert [work.due(0), work.due(1)] == [[], []]
    file.write_text("1")
    assert work.due(1.5) == [], "the file is checked every second"
    assert work.next_time(1.5) == 2
    assert work.due(2) == [DueSignal(1, "spooler")]
    file.write_text("12")
    assert work.due(3) == [DueSignal(1, "spooler")]
    file.unlink()
    assert [work.due(4), work.due(5)] == [[DueSignal(1, "spooler")], []]
    assert stamp_of("a\0b") == ()


def test_only_signals_for_spoolers_are_due(table: SignalTable, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        table.register(2, "", print)
        table.register(3, "mule1", print)
    assert [record.args for record in caplog.records] == [(2, "a worker of uWSGI"), (3, "mule1")]
    table.register(4, "/var/jobs", print)
    for signum in (1, 2, 3, 4, 5):
        table.add_timer(signum, 1)
    work = timers(table)
    work.due(0)
    assert work.due(1) == [DueSignal(1, "spooler"), DueSignal(4, "/var/jobs")]


def test_timer_added_later_fires(table: SignalTable) -> None:
    work = timers(table)
    assert work.next_time(7) == math.inf
    table.add_timer(1, 10)
    assert work.next_time(7) == 7
    assert work.due(7) == []
    assert work.next_time(7) == 17


def test_handler_is_called_with_its_signal(table: SignalTable) -> None:
    called: list[int] = []
    table.register(255, "spooler", called.append)
    assert table.is_registered(255)
    assert table.run(255)
    assert called == [255]
    assert not table.run(9), "it is not registered"
    table.register(8, "worker", called.append)
    assert not table.run(8), "it is for another process"
    assert called == [255]


@pytest.mark.parametrize("signum", [-1, 256, True, "1", None, 1.0])
def test_invalid_signal_numbers_are_rejected(table: SignalTable, signum: Any) -> None:
    for call in (
        lambda: table.register(signum, "spooler", print),
        lambda: table.add_timer(signum, 1),
        lambda: table.add_cron(signum, CronFields()),
        lambda: table.add_monitor(signum, "/"),
    ):
        with pytest.raises(ValueError, match="0 to 255"):
            call()


@pytest.mark.parametrize("target", [None, b"spooler", 5])
def test_target_must_be_text(table: SignalTable, target: Any) -> None:
    with pytest.raises(TypeError, match="must be text"):
        table.register(2, target, print)


def test_second_handler_of_a_signal_is_rejected(table: SignalTable) -> None:
    table.register(1, "spooler", print)  # as when a module is reloaded
    for target, function in (("spooler", repr), ("/jobs", print)):
        with pytest.raises(ValueError, match="print: use another signal"):
            table.register(1, target, function)
    assert table.handlers[1] == ("spooler", print)


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan, "1", None, True])
def test_invalid_timer_intervals_are_rejected(table: SignalTable, seconds: Any) -> None:
    with pytest.raises(ValueError, match="seconds above 0"):
        table.add_timer(1, seconds)


def test_invalid_handlers_and_cron_fields_are_rejected(table: SignalTable) -> None:
    with pytest.raises(ValueError, match="must be a function"):
        table.register(1, "spooler", "print")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="whole numbers"):
        table.add_cron(1, CronFields("*"))  # type: ignore[arg-type]


def test_cron_that_never_fires_is_warned_of(table: SignalTable, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        table.add_cron(1, CronFields(99))
    assert "never fires" in caplog.text
