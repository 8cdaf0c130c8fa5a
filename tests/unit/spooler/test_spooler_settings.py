"""The options of the spooler: their sources, and which of them takes precedence."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from qworker.conf import SETTINGS, Settings
from qworker.errors import ConfigurationError
from qworker.spooler.ini import read_ini
from qworker.spooler.options import SETTING_OF, SpoolerOptions
from qworker.spooler.settings import merge, options_of


def conf(environ: dict[str, str] | None = None, **values: Any) -> Settings:
    return Settings(values, environ=environ or {}, directory=Path("/nowhere"))


def test_options_and_settings_correspond() -> None:
    assert set(SETTING_OF.values()) == {name for name in SETTINGS if name.startswith("spooler")}
    assert set(SETTING_OF) == {field.name for field in fields(SpoolerOptions)}


def test_defaults_of_settings_match_those_of_options() -> None:
    assert options_of(conf()) == SpoolerOptions()


def test_all_settings_become_options(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "spooler": ["/a", "/b"],
        "spooler_external": Path("/c"),
        "spooler_default": "/c",
        "spooler_ordered": True,
        "spooler_chdir": tmp_path,
        "spooler_processes": 2,
        "spooler_quiet": "yes",
        "spooler_max_tasks": 10,
        "spooler_signal_as_task": True,
        "spooler_harakiri": "1m",
        "spooler_frequency": 2,
        "spooler_python_import": ["tasks", "/x.py"],
        "spooler_max_attempts": 3,
        "spooler_backoff": 2,
        "spooler_backoff_max": 20,
        "spooler_allow_pickle": True,
        "spooler_results": True,
        "spooler_bridge": "site.jobs:bridge",
        "spooler_socket": ["[::1]:3031", "/run/s", "@abstract"],
        "spooler_socket_key": "k" * 32,
        "spooler_socket_allow": ["10.1.2.0/24", "::1"],
        "spooler_socket_timeout": 1,
        "spooler_buffer_size": 4096,
        "spooler_body_max": "1MB",
    }
    assert set(given) == set(SETTING_OF.values())
    options = options_of(conf(**given))
    assert options == SpoolerOptions(
        directories=("/a", "/b"),
        external=("/c",),
        default="/c",
        ordered=True,
        chdir=str(tmp_path),
        processes=2,
        quiet=True,
        max_tasks=10,
        signal_as_task=True,
        harakiri=60.0,
        frequency=2.0,
        imports=("tasks", "/x.py"),
        sockets=("[::1]:3031", "/run/s", "@abstract"),
        max_attempts=3,
        backoff=2.0,
        backoff_max=20.0,
        allow_pickle=True,
        results=True,
        bridge="site.jobs:bridge",
        socket_key=("k" * 32,),
        socket_allow=("10.1.2.0/24", "::1"),
        socket_timeout=1.0,
        buffer_size=4096,
        body_max=1048576,
    )


def test_options_from_the_environment() -> None:
    options = options_of(
        conf(
            {
                "QWORKER_SPOOLER": "/a, /b",
                "QWORKER_SPOOLER_SOCKET": "[::1]:3031",
                "QWORKER_SPOOLER_QUIET": "1",
            }
        )
    )
    assert (options.directories, options.sockets, options.quiet) == (("/a", "/b"), ("[::1]:3031",), True)


def test_precedence_of_command_line_file_and_settings(tmp_path: Path) -> None:
    file = tmp_path / "x.ini"
    file.write_text("[uwsgi]\nspooler = /file\nspooler-harakiri = 2\nspooler-max-tasks = 2\n")
    settings = conf(
        spooler="/settings", spooler_harakiri=1, spooler_max_tasks=1, spooler_processes=1, spooler_quiet=True
    )
    options = merge(settings, read_ini(str(file)), {"max_tasks": 3, "quiet": False})
    assert options.directories == ("/file",)
    assert (options.processes, options.harakiri, options.max_tasks, options.quiet) == (1, 2.0, 3, False)
    assert options.default == "/file"


def test_zero_means_unlimited_as_in_uwsgi() -> None:
    options = options_of(
        conf(
            spooler_processes=0,
            spooler_max_tasks=0,
            spooler_harakiri=0,
            spooler_max_attempts=0,
            spooler_frequency=0,
        )
    )
    assert (options.processes, options.max_tasks, options.harakiri, options.max_attempts) == (None,) * 4
    assert options.frequency == 30.0
    assert options_of(conf(spooler_max_attempts=None)).max_attempts is None


def test_relative_paths_and_links_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    options = options_of(
        conf(spooler=["link", "real", "new"], spooler_external=["real", "ext"], spooler_chdir="link")
    )
    assert options.directories == (f"{tmp_path}/real", f"{tmp_path}/new")
    assert options.external == (f"{tmp_path}/ext",)
    assert options.chdir == f"{tmp_path}/real"


@pytest.mark.parametrize(
    ("given", "default"),
    [
        ({}, None),
        ({"spooler_external": "/e"}, "/e"),
        ({"spooler_external": "/e", "spooler": "/d"}, "/d"),
        ({"spooler_external": "/e", "spooler": "/d", "spooler_default": "/e"}, "/e"),
    ],
)
def test_default_directory(given: dict[str, str], default: str | None) -> None:
    assert options_of(conf(**given)).default == default


def test_directories_on_the_command_line_replace_the_default() -> None:
    options = merge(conf(spooler="/d", spooler_default="/d"), None, {"directories": ("/new",)})
    assert (options.directories, options.default) == (("/new",), "/new")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"spooler": 3}, "spooler must be a list"),
        ({"spooler": ["/a\0b"]}, "without NUL"),
        ({"spooler": [""]}, "spooler must be a path"),
        ({"spooler": [b"/x"]}, "spooler must be a path"),
        ({"spooler_processes": 2.5}, "must be a whole number"),
        ({"spooler_harakiri": -1}, "must be a duration"),
        ({"spooler_socket": "host:port"}, "must be host:port"),
        ({"spooler_socket_allow": "10.0.0.0/33"}, "not an address or network"),
        ({"spooler_buffer_size": 65_536}, "must be at most 65535"),
        ({"spooler_bridge": "jobs"}, "must be a function"),
        ({"spooler_bridge": "jobs:a b"}, "must be a function"),
        ({"spooler_default": "/x"}, "'/x' is not one of the spool directories"),
        ({"spooler_backoff": 10, "spooler_backoff_max": 5}, "longer than spooler_backoff_max"),
        ({"spooler_chdir": "/nowhere/x"}, "which is not a directory"),
    ],
)
def test_invalid_settings_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        options_of(conf(**given))
    assert message in str(failure.value)


def test_inconsistent_options_from_two_sources_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="increase backoff_max"):
        merge(conf(spooler_backoff_max=5, spooler_backoff=5), None, {"backoff": 6.0})


def test_socket_key_is_masked() -> None:
    settings = conf(spooler_socket_key="k" * 32)
    assert "kkk" not in repr(settings) + settings.humanize()


@pytest.mark.parametrize(
    ("given", "processes"),
    [({"ordered": True}, 1), ({"ordered": True, "processes": 3}, 3), ({}, None), ({"ordered": False}, None)],
)
def test_ordered_spooler_defaults_to_one_process(given: dict[str, Any], processes: int | None) -> None:
    """uWSGI has one spooler process by default."""
    assert merge(conf(), given=given).processes == processes
