"""The pages about dependencies and support agree with pyproject.toml and with what is imported."""

from __future__ import annotations

import re

import pytest

from tests.architecture.test_distribution import PROJECT
from tests.docs.pages import REPOSITORY
from tests.support.loaded import loaded_by

REFERENCE = REPOSITORY / "docs" / "reference"
CALLING = """
from qworker import QWorker

app = QWorker("proj", broker={url!r}, backend="disabled://")
app.conf.result_backend
app.task(lambda: None, name="nothing").signature()
import qworker.components.assembly, qworker.cli.start, qworker.transports.{server}
"""


def first_cells(page: str, heading: str) -> set[str]:
    """The names in backquotes in the first column of the table below this heading."""
    text = (
        (REFERENCE / page).read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    )
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w.-]+)`", row.split("|")[1])}


def test_every_dependency_is_explained() -> None:
    named = {re.match(r"[\w-]+", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert first_cells("dependencies.md", "Always") == named


def test_every_extra_is_explained() -> None:
    assert first_cells("dependencies.md", "Extras") == set(PROJECT["optional-dependencies"])


def test_python_versions_are_those_of_the_package() -> None:
    text = (REFERENCE / "support.md").read_text(encoding="utf-8").partition("## Python\n")[2]
    declared = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    stated = re.match(r"\s*CPython ([\d., and]+)\. ", text)[1]
    assert re.findall(r"3\.\d+", stated) == declared
    assert PROJECT["requires-python"] == f">={declared[0]}"


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("sqlite:///q.db", "sql.embedded"),
        ("postgresql://127.0.0.1/none", "sql"),
        ("redis://127.0.0.1/0", "redis"),
        ("amqp://127.0.0.1", "amqp"),
    ],
)
def test_sqlalchemy_is_not_loaded_without_sql_results(url: str, server: str) -> None:
    loaded = loaded_by(CALLING.format(url=url, server=server))
    assert f"qworker.transports.{server}" in loaded
    assert "sqlalchemy" not in loaded


def test_sqlalchemy_is_loaded_for_sql_results() -> None:
    assert "sqlalchemy" in loaded_by(
        "from qworker import QWorker; QWorker('proj', backend='db+sqlite:///r.db').backend"
    )
