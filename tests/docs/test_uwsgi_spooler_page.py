"""The page that compares uWSGI's spooler with ours: every item is listed, with an existing test."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import REPOSITORY
from tests.docs.test_celery_guide_page import TEST, names_in

PAGE = REPOSITORY / "docs" / "reference" / "uwsgi-spooler.md"
VERDICTS = ("works", "differs", "refused")
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| US-")
]


def test_every_item_is_listed_once_and_in_order() -> None:
    assert [row[0] for row in ROWS] == [f"US-{number:03}" for number in range(1, 107)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_item_has_a_verdict_and_an_existing_test(row: list[str]) -> None:
    _, what, here, test = row
    assert what
    assert re.match(rf"({'|'.join(VERDICTS)})\b", here), here
    assert here.startswith("works") or re.match(r"(differs|refused): ", here), (
        "say how, or what there is instead"
    )
    found = TEST.match(test)
    assert found is not None, test
    assert found["name"].startswith("test_")
    assert found["name"] in names_in(found["file"]), f"tests/{found['file']} has no {found['name']}"
