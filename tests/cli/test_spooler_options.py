"""Command-line options for spoolers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from qworker.cli.spool.spooler_options import SpoolerGiven, spooler_options
from qworker.conf import Settings
from qworker.spooler.options import SETTING_OF, SpoolerOptions

EXIT_USAGE = 2


def given(*arguments: str) -> SpoolerGiven:
    found: list[SpoolerGiven] = []

    @click.command()
    @spooler_options
    @click.option("--other")
    def command(spooler: SpoolerGiven, other: str | None) -> None:
        assert other == "o"
        found.append(spooler)

    done = CliRunner().invoke(command, [*arguments, "--other", "o"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return found[0]


def refused(*arguments: str) -> str:
    @click.command()
    @spooler_options
    def command(spooler: SpoolerGiven) -> None:
        raise AssertionError

    done = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert done.exit_code == EXIT_USAGE
    return done.output


def test_no_options() -> None:
    assert given() == SpoolerGiven({}, None)
    assert given().options(Settings(environ={})) == SpoolerOptions()


def test_all_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values: dict[str, Any] = dict(
        given(
            *("--spooler", "a,b", "--spooler", "/c", "--spooler-external", "/e", "--spooler-ordered"),
            *("--spooler-chdir", ".", "--spooler-processes", "2", "--spooler-quiet"),
            *("--spooler-max-tasks", "9", "--spooler-signal-as-task", "--spooler-harakiri", "1m"),
            *("--spooler-frequency", "3", "--spooler-python-import", "m", "--spooler-python-import", "x.py"),
            *(
                "--spooler-socket",
                "[::1]:3031",
                "--spooler-socket",
                "run/s",
                "--spooler-socket-allow",
                "10.0.0.0/8",
            ),
            *("--spooler-max-attempts", "0", "--spooler-backoff", "1", "--spooler-backoff-max", "2"),
            *("--no-spooler-allow-pickle", "--spooler-bridge", "m:f", "--spooler-results"),
        ).values
    )
    assert values == {
        "directories": (f"{tmp_path}/a,b", "/c"),
        "default": f"{tmp_path}/a,b",
        "external": ("/e",),
        "ordered": True,
        "chdir": str(tmp_path),
        "processes": 2,
        "quiet": True,
        "max_tasks": 9,
        "signal_as_task": True,
        "harakiri": 60.0,
        "frequency": 3.0,
        "imports": ("m", f"{tmp_path}/x.py"),
        "sockets": ("[::1]:3031", f"{tmp_path}/run/s"),
        "socket_allow": ("10.0.0.0/8",),
        "max_attempts": 0,
        "backoff": 1.0,
        "backoff_max": 2.0,
        "allow_pickle": False,
        "results": True,
        "bridge": "m:f",
    }
    missing = set(SETTING_OF) - set(values)
    assert missing == {"socket_key", "socket_timeout", "buffer_size", "body_max"}


def test_first_directory_is_the_default() -> None:
    assert given("--spooler-external", "/e", "--spooler", "/d").values["default"] == "/e"
    assert given("--spooler", "/d", "--spooler-external", "/e").values["default"] == "/d"


def test_ini_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "site.ini").write_text("[uwsgi]\nspooler = /d\nspooler-quiet\n[x]\nspooler-harakiri = 5\n")
    found = given("--ini", f"{tmp_path}/site.ini", "--ini", f"{tmp_path}/site.ini:x", "--no-spooler-quiet")
    assert found.names_directories
    options = found.options(Settings(environ={}))
    assert (options.directories, options.harakiri, options.quiet) == (("/d",), 5.0, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--spooler-processes", "x"), "must be a whole number"),
        (("--spooler-harakiri", "x"), "must be a duration"),
        (("--spooler-socket", "h:x"), "must be host:port"),
        (("--spooler", ""), "must be a path"),
        (("--spooler-socket-key", "secret"), "No such option"),
    ],
)
def test_invalid_values_are_usage_errors(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(*arguments)


def test_spooler_options_have_their_own_help_page(run):
    worker, spooler = run("start", "--help").stdout, run("start", "--help-spooler").stdout
    assert "--concurrency" in worker
    assert "--help-spooler" in worker
    assert not re.findall(r"--spooler|--ini", worker)
    assert "--spooler-harakiri" in spooler
    assert "--ini" in spooler
    assert "--concurrency" not in spooler
    assert "--spooler-harakiri" in run("spool", "run", "--help").stdout
