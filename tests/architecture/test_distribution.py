"""The name of the distribution is defined once, and no text tells users to install the unrelated package
``qworker``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from qworker import __version__
from qworker.naming import DISTRIBUTION, VERSION, install_command
from tests.conftest import REPOSITORY

_METADATA = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOLS = _METADATA["project"], _METADATA["tool"]
# "qworker" as something to install: after "install" or with extras, but not our distribution, a path or a
# module.
_STRANGER = re.compile(r"""(?:install\b[^\n]*[\s"'])qworker(?![-\w./])|["'\s/]qworker\[\w""")
TEXTS = ("benchmarks", "docs", "examples", "qworker", "tests")
SINGLE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", "tox.ini", ".ci/run")
SUFFIXES = {".py", ".md", ".toml", ".txt", ".yaml"}
THIS = Path(__file__).resolve()
_TELLING_SO = "pip uninstall qworker "


def test_constant_is_the_project_name():
    assert PROJECT["name"] == DISTRIBUTION


def test_version_is_the_same_everywhere():
    assert PROJECT["version"] == VERSION == __version__


def test_package_page_has_no_relative_links():
    """Package indexes do not show our files, so links to them are replaced by their text."""
    hook = TOOLS["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    [fragment], [rule] = hook["fragments"], hook["substitutions"]
    readme = (REPOSITORY / fragment["path"]).read_text(encoding="utf-8")
    shown = re.sub(rule["pattern"], rule["replacement"], readme)
    assert "](docs/" in readme
    assert [
        target for target in re.findall(r"\]\(([^)]+)\)", shown) if not target.startswith("https://")
    ] == []
    kept = "[a page](https://example.org/a)"
    assert re.sub(rule["pattern"], rule["replacement"], kept) == kept


def test_install_command_uses_our_distribution_name():
    assert install_command("redis") == f'pip install "{DISTRIBUTION}[redis]"'


def test_no_text_tells_users_to_install_the_unrelated_package():
    texts = [path for name in TEXTS for path in (REPOSITORY / name).rglob("*") if path.suffix in SUFFIXES]
    texts += [REPOSITORY / name for name in SINGLE]
    wrong = [
        f"{path.relative_to(REPOSITORY)}: {line.strip()}"
        for path in texts
        if path != THIS
        for line in path.read_text(encoding="utf-8").splitlines()
        if _STRANGER.search(line) and _TELLING_SO not in line
    ]
    assert len(texts) > 300
    assert wrong == []


def test_search_pattern_matches_only_the_unrelated_package():
    for line in (
        "pip install qworker",
        'pip install "qworker[redis]"',
        "$ python -m pip install -U qworker",
        "qworker[redis]>=1",
    ):
        assert _STRANGER.search(" " + line), line
    for line in (
        f"pip install {DISTRIBUTION}",
        f'pip install "{DISTRIBUTION}[sqs]"',
        "pip install ./qworker",
        "import qworker",
    ):
        assert not _STRANGER.search(" " + line), line
