"""The page that compares Celery's guide with qworker names existing tests; a few of its rows are tested
here."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from unittest.mock import patch

import pytest

from qworker import QWorker
from qworker.errors import Retry
from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "celery-guide.md"
VERDICTS = ("works", "differs", "refused", "later")
TEST = re.compile(r"^`(?P<file>[\w/]+\.py)::(?P<name>\w+)`$")
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| in the guide")
]


@cache
def names_in(file: str) -> set[str]:
    path = REPOSITORY / "tests" / file
    assert path.is_file(), f"there is no tests/{file}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_every_row_has_a_verdict_and_an_existing_test(row: list[str]) -> None:
    snippet, here, test = row
    assert snippet
    assert re.match(rf"({'|'.join(VERDICTS)})\b", here), here
    assert here.startswith("works") or ":" in here or not here.startswith("differs"), "say how it differs"
    found = TEST.match(test)
    assert found is not None, test
    assert found["name"].startswith("test_")
    assert found["name"] in names_in(found["file"]), f"tests/{found['file']} has no {found['name']}"


def test_page_covers_the_guide() -> None:
    chapters = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(chapters) == 13
    assert len(ROWS) > 100


@pytest.mark.parametrize(
    "name",
    ["contrib.rdb", "contrib.abortable", "contrib.pytest", "contrib.migrate", "schedules", "bootsteps",
    "app.trace",
     "worker.control", "events.snapshot", "security", "utils.log", "bin.base"],
)  # fmt: skip
def test_modules_of_celery_that_do_not_exist_here(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="qworker"):
        import_module(f"qworker.{name}")


def test_signature_function_equals_the_method_of_the_app() -> None:
    from qworker import signature

    assert QWorker("proj", set_as_current=False).signature("proj.add", (1,)) == signature("proj.add", (1,))


def test_task_can_be_mocked() -> None:
    app = QWorker("proj", set_as_current=False)

    @app.task(bind=True, name="send")
    def send(self: object, fails: bool) -> str:
        if fails:
            raise self.retry(exc=KeyError("no"))  # type: ignore[attr-defined]
        return "sent"

    with patch.object(send, "retry") as retry:
        retry.side_effect = Retry()
        with pytest.raises(Retry):
            send(True)
        assert send(False) == "sent"
    retry.assert_called_once()
