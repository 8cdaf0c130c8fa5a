"""Watching: repeated printing and drawing of a picture, also while the broker is unavailable."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable

import pytest

from qworker.cli.watching import CLEAR, Picture, Watching, can_draw
from qworker.errors import BackendError, BrokerUnavailable

AWAY = BrokerUnavailable("redis://:secret@h/0 refuses connections")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(
    pictures: Iterable[Picture | Exception], *, as_json: bool = False, is_drawn: bool = False
) -> list[float]:
    """Watch *pictures*, then press Ctrl-C; return the sleeps."""
    slept: list[float] = []
    left = list(pictures)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if not left:
            raise KeyboardInterrupt

    def look() -> Picture:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    Watching(look, as_json, is_drawn, 2.5, sleep, clock()).run()
    return slept


def clock() -> Callable[[], str]:
    moments = iter(range(100))
    return lambda: f"12:00:{next(moments):02}"


def picture(text: str, is_last: bool = False) -> Picture:
    return Picture(["name", text], {"name": text}, is_last)


def test_changed_pictures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch([picture("a"), picture("a"), picture("b")]) == [2.5] * 3
    assert capsys.readouterr().out.splitlines() == ["12:00:00", "name", "a", "12:00:01", "name", "b"]


def test_json_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    watch([picture("a"), picture("a"), picture("b\udc80")], as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"name": "a"}, {"name": "b\udc80"},
    ]  # fmt: skip


def test_last_picture_ends_watching(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch([picture("a"), picture("b", is_last=True), picture("c")]) == [2.5]
    assert capsys.readouterr().out.splitlines()[-1] == "b"


@pytest.mark.parametrize("error", [AWAY, BackendError("the result store at redis://:secret@h/0 is away")])
def test_outage_is_reported_once_and_waited_for(capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    watch([picture("a"), error, error, picture("a"), picture("b")])
    out, err = capsys.readouterr()
    assert out.splitlines() == ["12:00:00", "name", "a", "12:00:02", "name", "b"]
    away, back = err.splitlines()
    assert away.startswith("No answer since 12:00:01; waiting: ")
    assert "secret" not in away
    assert back == "The server answers again, after silence since 12:00:01."


def test_unavailable_broker_at_the_start_is_an_error() -> None:
    with pytest.raises(BrokerUnavailable):
        watch([AWAY])


def test_terminal_is_redrawn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "8")
    rows = Picture([*(f"row {number}" for number in range(9)), "x" * 99], [])
    watch([picture("a"), AWAY, picture("x" * 99), rows], is_drawn=True)
    first, away, back, long = capsys.readouterr().out.split(CLEAR)[1:]
    assert first == "name\na\n\n12:00:00  every 2.5 s; Ctrl-C ends"
    assert away == "name\na\n\n12:00:02  No answer since 12:00:01: redis://:********@h/0 r"
    assert back == f"name\n{'x' * 59}\n\nThe server answers again, after silence since 12:00:01."
    assert long.splitlines() == [
        "row 0", "row 1", "row 2", "row 3", "… 6 more lines", "", "12:00:03  every 2.5 s; Ctrl-C ends",
    ]  # fmt: skip


def test_only_capable_terminals_are_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert can_draw(Terminal())
    assert not can_draw(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not can_draw(Terminal())
