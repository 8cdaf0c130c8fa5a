"""The ini files of uWSGI: options that are read, and errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qworker.errors import ConfigurationError
from qworker.spooler.ini import LONGEST_FILE, MOST_FILES, IniFile, read_ini

FILE = """\
; how the site is served
[uwsgi]
# the spooler
base = %d
spooler = %(base)jobs
spooler=%(base)more
spooler-external = /var/spool/others
  spooler-processes   =  3
spooler-ordered
spooler-quiet = true
spooler-harakiri = 30
spooler-freq = 5
spooler-max-tasks = 100
spooler-chdir = %d
spooler-import = tasks
spooler-py-import = jobs.py
spooler-socket = 127.0.0.1:3031
spooler-max-attempts = 7
http = :8080
processes = 4
log-format = %(addr) %(method)
http = :8081
virtualenv = /srv/env

[other]
spooler = /elsewhere
[uwsgi]
spooler-signal-as-task = 1
"""

WITHOUT_VALUE = (
    "python-path",
    "env",
    "module",
    "wsgi-file",
    "import",
    "shared-import",
    "spooler-python-import",
    "spooler-processes",
    "spooler-harakiri",
    "spooler-frequency",
    "spooler-max-tasks",
    "spooler-chdir",
)


def write(folder: Path, content: str | bytes, name: str = "site.ini") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read(folder: Path, content: str, **environ: str) -> IniFile:
    return read_ini(write(folder, content), environ=environ)


def error_of(folder: Path, content: str | bytes, **environ: str) -> str:
    with pytest.raises(ConfigurationError) as failure:
        read_ini(write(folder, content), environ=environ)
    return str(failure.value)


def test_spooler_options_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = read(tmp_path, FILE)
    assert found.files == (f"{tmp_path}/site.ini",)
    assert found.values == {
        "directories": (f"{tmp_path}/jobs", f"{tmp_path}/more"),
        "default": f"{tmp_path}/jobs",
        "external": ("/var/spool/others",),
        "processes": 3,
        "ordered": True,
        "quiet": True,
        "harakiri": 30.0,
        "frequency": 5.0,
        "max_tasks": 100,
        "chdir": str(tmp_path),
        "imports": ("tasks", f"{tmp_path}/jobs.py"),
        "sockets": ("127.0.0.1:3031",),
        "max_attempts": 7,
        "signal_as_task": True,
    }


def test_other_options_are_listed_once(tmp_path: Path) -> None:
    found = read(tmp_path, FILE)
    assert found.others == ("base", "http", "processes", "log-format")
    assert found.without_effect == (
        "virtualenv has no effect: start qworker with the Python of that environment",
    )


def test_section_can_be_named(tmp_path: Path) -> None:
    assert read_ini(write(tmp_path, FILE) + ":other").values["directories"] == ("/elsewhere",)


def test_several_files_are_merged(tmp_path: Path) -> None:
    first = write(tmp_path, "[uwsgi]\nspooler = /a\nspooler-quiet\n", "a.ini")
    second = write(tmp_path, "[uwsgi]\nspooler = /b\nspooler-quiet = no\n", "b.ini")
    values = read_ini(first, second).values
    assert (values["directories"], values["quiet"]) == (("/a", "/b"), False)


def test_application_options_are_read(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    found = read(
        tmp_path,
        f"""[uwsgi]
        chdir = {tmp_path}/site
        pythonpath = lib
        pp = /opt/lib
        env = DJANGO_SETTINGS_MODULE=site.settings
        env = URL=$(WHERE)?a=b
        module = site.wsgi:application
        wsgi-file = wsgi.py
        import = more
        shared-import = first.py
        """,
        WHERE="redis://h",
    )
    assert found.chdir == f"{tmp_path}/site"
    assert found.pythonpath == (f"{tmp_path}/site/lib", "/opt/lib")
    assert found.env == {"DJANGO_SETTINGS_MODULE": "site.settings", "URL": "redis://h?a=b"}
    assert (found.module, found.wsgi_file) == ("site.wsgi", f"{tmp_path}/site/wsgi.py")
    assert (found.imports, found.shared_imports) == (("more",), (f"{tmp_path}/site/first.py",))


def test_only_spool_directories_ignore_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path)
    values = read(
        tmp_path, "[uwsgi]\nspooler=jobs\nspooler-socket=run/s\nspooler-import=x.py\nchdir=site\n"
    ).values
    assert values["directories"] == (f"{tmp_path}/jobs",)
    assert values["sockets"] == (f"{tmp_path}/site/run/s",)
    assert values["imports"] == (f"{tmp_path}/site/x.py",)


@pytest.mark.parametrize(
    ("lines", "default"),
    [
        ("spooler = /a\nspooler-external = /b", "/a"),
        ("spooler-external = /b\nspooler = /a", "/b"),
        ("spooler-external = /b\nspooler = /a\nspooler-default = /a", "/a"),
    ],
)
def test_first_directory_of_either_kind_is_the_default(tmp_path: Path, lines: str, default: str) -> None:
    assert read(tmp_path, f"[uwsgi]\n{lines}\n").values["default"] == default


@pytest.mark.parametrize(
    ("text", "on"),
    [("", True), ("=", True), ("= 1", True), ("= true", True), ("= maybe", True)]
    + [(f"= {word}", False) for word in ("false", "OFF", "no", "0")],
)
def test_flag_is_true_unless_its_value_is_false(tmp_path: Path, text: str, on: bool) -> None:
    assert read(tmp_path, f"[uwsgi]\nspooler-quiet {text}\n").values["quiet"] is on


def test_placeholder_is_the_first_value_of_its_key(tmp_path: Path) -> None:
    content = "[uwsgi]\nspooler = %(root)/%(name)\nroot = /srv/%(x)\nroot = /no\nset-ph = name=jobs\nx = y\n"
    assert read(tmp_path, content).values["directories"] == ("/srv/y/jobs",)


def test_included_files_are_read(tmp_path: Path) -> None:
    inner = write(tmp_path, "[uwsgi]\nspooler = %(root)/%n\n[more]\nspooler-quiet\n", "inner.ini")
    found = read(
        tmp_path,
        f"[uwsgi]\nroot = /srv\nini = {inner}\ninclude = {inner}:more\nini = :own\n"
        "[own]\nspooler-harakiri = 3\n",
    )
    assert found.values["directories"] == ("/srv/inner",)
    assert (found.values["quiet"], found.values["harakiri"]) == (True, 3.0)
    assert found.files == (f"{tmp_path}/site.ini", f"{tmp_path}/inner.ini")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("spooler-processes = many", "line 2: spooler-processes must be a whole number, but is 'many'"),
        ("spooler-processes = -1", "must be at least 0"),
        ("spooler =", "line 2: spooler needs a value"),
        ("spooler", "spooler needs a value"),
        ("spooler-frequency = soon", "must be a duration"),
        ("spooler = %(nothing)/x", "%(nothing) has no value"),
        ("spooler = $(NOWHERE)/x", "there is no environment variable 'NOWHERE'"),
        ("spooler = @(file)", "@('file') is not supported here"),
        ("spooler = /x/%q", "'%q' is not supported here; use one of %%, %o"),
        ("spooler = %(spooler)", "in a circle"),
        ("spooler-socket = :99999", "must be host:port"),
        ("spooler-bridge = no", "must be a function"),
        ("env = NOTHING", "env must be NAME=VALUE, not 'NOTHING'"),
        ("set-ph = nothing", "set-ph needs NAME=VALUE"),
        ("chdir = /nowhere/at/all", "'/nowhere/at/all' is not a directory"),
        ("chdir =", "chdir needs a value"),
        ("if-env = HOME", "if-env is not supported here: put the spooler's options into a section"),
        ("for = a b", "for is not supported here"),
        ("endif", "endif is not supported here"),
        ("ini = http://example.org/x.ini", "'http://example.org/x.ini' is not a file"),
        ("ini = /nowhere.ini", "line 2: '/nowhere.ini' cannot be read: No such file"),
        ("ini = :missing", "':missing' has no section [missing]"),
        ("ini = :uwsgi", "':uwsgi' includes itself"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, line: str, expected: str) -> None:
    message = error_of(tmp_path, f"[uwsgi]\n{line}\n")
    assert expected in message
    assert f"{tmp_path}/site.ini" in message


def test_socket_key_is_not_shown(tmp_path: Path) -> None:
    assert "hunter2" not in error_of(tmp_path, '[uwsgi]\nspooler-socket-key = hunter2;"\n')


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "it has no section [uwsgi]"),
        (b"spooler = /x\n", "it has no section [uwsgi]"),
        (b"[uwsgi]\nspooler = /x\0y\n", "line 2: this is not text"),
        (b"\x7fELF\x02\x01\x01\0\0", "line 1: this is not text"),
        (b"[uwsgi]\nspooler = " + b"x" * 10_000_000, f"it has more than {LONGEST_FILE:,} bytes"),
        (b"[uwsgi]\nspooler = " + b"x" * 70_000, "line 2: the value has more than 65,536 characters"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in error_of(tmp_path, content)


def test_unreadable_files_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, expected in (
        (f"{tmp_path}/missing.ini", "it cannot be read: No such file"),
        (str(tmp_path), "it is not a plain file"),
        (f"{tmp_path}/pipe", "it is not a plain file"),
        ("/dev/zero", "it is not a plain file"),
        ("-", "it is not a file"),
        ("", "it is not a file"),
        ("a\0b", "it is not a file name: it contains a NUL"),
    ):
        with pytest.raises(ConfigurationError) as failure:
            read_ini(name)
        assert expected in str(failure.value)


def test_invalid_utf8_is_kept(tmp_path: Path) -> None:
    found = read_ini(write(tmp_path, b"[uwsgi]\nspooler = /srv/\xff\n"))
    assert os.fsencode(found.values["directories"][0]) == b"/srv/\xff"


def test_circular_includes_are_rejected(tmp_path: Path) -> None:
    write(tmp_path, f"[uwsgi]\nini = {tmp_path}/site.ini\n", "b.ini")
    assert "includes itself" in error_of(tmp_path, f"[uwsgi]\nini = {tmp_path}/b.ini\n")


def test_number_of_included_files_is_limited(tmp_path: Path) -> None:
    """Each file includes the next one ten times, ten to the power of ten in total."""
    for number in range(10):
        write(tmp_path, "[uwsgi]\n" + f"ini = {tmp_path}/{number + 1}.ini\n" * 10, f"{number}.ini")
    write(tmp_path, "[uwsgi]\n", "10.ini")
    with pytest.raises(ConfigurationError, match=f"exceeds the maximum of {MOST_FILES}"):
        read_ini(f"{tmp_path}/0.ini")


def test_length_of_expanded_values_is_limited(tmp_path: Path) -> None:
    """Each placeholder is the next one a hundred times, ten levels deep; the innermost is empty or not."""
    for innermost, expected in (("", None), ("x", "the value has more than 65,536 characters")):
        lines = [f"a{number} = " + f"%(a{number + 1})" * 100 for number in range(10)]
        content = "\n".join(["[uwsgi]", "spooler = /x%(a0)", *lines, f"a10 = {innermost}", ""])
        if expected is None:
            assert read(tmp_path, content).values["directories"] == ("/x",)
        else:
            assert expected in error_of(tmp_path, content)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.text(max_size=30).map(str.encode),
            st.binary(max_size=30),
            st.sampled_from(
                [
                    b"[uwsgi]",
                    b"spooler = %(a)",
                    b"a = %(b)",
                    b"b=%(a)",
                    b"%",
                    b"spooler=%",
                    b"a=$(",
                    b"ini=:x",
                ]
            ),
        ),
        max_size=12,
    )
)
def test_arbitrary_files_raise_only_configuration_error(tmp_path: Path, lines: list[bytes]) -> None:
    path = write(tmp_path, b"\n".join(lines))
    try:
        files, message = read_ini(path, environ={}).files, ""
    except ConfigurationError as error:
        files, message = (), str(error)
    assert files == (path,) or "site.ini" in message


def test_empty_options_are_ignored(tmp_path: Path) -> None:
    """uWSGI starts with each of these, see test_uwsgi_ini.py."""
    empty = "".join(f"{name} =\n" for name in WITHOUT_VALUE)
    found = read(tmp_path, f"[uwsgi]\nspooler = /a\nspooler-harakiri = 5\nspooler-import = jobs\n{empty}")
    assert found.values == {"directories": ("/a",), "default": "/a", "imports": ("jobs",)}
    assert found == IniFile((f"{tmp_path}/site.ini",), found.values)
