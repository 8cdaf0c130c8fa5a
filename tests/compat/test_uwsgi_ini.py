"""Real uWSGI reads the same ini file and gets the same values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qworker.errors import ConfigurationError
from qworker.spooler.ini import read_ini

pytest.importorskip("pyuwsgi", reason="a real uWSGI: `pip install pyuwsgi`")

pytestmark = [pytest.mark.compat, pytest.mark.timeout(120)]

VALUES = (
    *(f"/x/%{letter}" for letter in "opsdencvhkuU012345678"),
    "/x/%x",
    "/100%%",
    "/%(later)/%(later)",
    "/%(twice)",
    "/%(ph)",
    "/%(nested)",
    "/$(WHERE)/y",
    "/a ; b # c",
    '/"q"',
    "/a=b",
)
FILE = """\
; a comment
[uwsgi]
ph-before = 1
set-ph = ph=placed
{spoolers}
twice = first
twice = second
later = la=ter
nested = %(later)!
[other]
spooler-python-import = never
[uwsgi]
  spooler-python-import   =   back again
ini = {inner}
"""


WITHOUT_VALUE = (
    *("python-path", "env", "module", "wsgi-file", "import", "shared-import", "spooler-python-import"),
    *("spooler-processes", "spooler-harakiri", "spooler-frequency", "spooler-max-tasks", "spooler-chdir"),
)


@pytest.mark.parametrize(("name", "starts"), [*((name, True) for name in WITHOUT_VALUE), ("chdir", False)])
def test_options_without_a_value_are_accepted_like_in_uwsgi(name: str, starts: bool, tmp_path: Path) -> None:
    """Except chdir, for which uWSGI needs an existing directory."""
    (tmp_path / "jobs").mkdir()
    file = tmp_path / "site.ini"
    file.write_text(f"[uwsgi]\nspooler = {tmp_path}/jobs\n{name} =\n")
    code = "import sys, pyuwsgi; pyuwsgi.run(sys.argv[1:])"
    shown = subprocess.run(
        [sys.executable, "-c", code, "--no-server", "--ini", str(file)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ("Operational MODE" in shown.stderr) == starts, shown.stderr
    if starts:
        assert read_ini(str(file)).values["directories"] == (f"{tmp_path}/jobs",)
    else:
        with pytest.raises(ConfigurationError, match="needs a value"):
            read_ini(str(file))


def test_values_equal_uwsgis(tmp_path: Path) -> None:
    inner = tmp_path / "in.ner.ini"
    inner.write_text("[uwsgi]\nspooler-python-import = /%n/%s/%(later)\n")
    file = tmp_path / "my.site.ini"
    lines = "\n".join(f"spooler-python-import = {value}" for value in VALUES)
    file.write_text(FILE.format(spoolers=lines, inner=inner))
    code = "import sys, pyuwsgi; pyuwsgi.run(sys.argv[1:])"
    environ = {**os.environ, "WHERE": "there"}
    shown = subprocess.run(
        [sys.executable, "-c", code, "--show-config", "--no-server", "--ini", str(file)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    begin = "spooler-python-import = "
    output = (shown.stdout + shown.stderr).splitlines()
    theirs = [line.removeprefix(begin) for line in output if line.startswith(begin)]
    assert len(theirs) == len(VALUES) + 2, shown.stderr
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        ours = read_ini(str(file), environ=environ).values["imports"]
    finally:
        os.chdir(here)
    assert list(ours) == [os.path.realpath(name) if "/" in name else name for name in theirs]
