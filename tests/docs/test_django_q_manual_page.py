"""The page that compares Django-Q's manual with qworker: every item is listed, with an existing test."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import REPOSITORY
from tests.docs.test_celery_guide_page import TEST, names_in

PAGE = REPOSITORY / "docs" / "reference" / "django-q-manual.md"
VERDICTS = ("works", "differs", "refused")
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| (DQ|QQ|D)-\d+ ", line)
]
RUNS = [
    (1, 8), (10, 40), (45, 60), (65, 81), (85, 89), (92, 92), (96, 103), (108, 125), (130, 139), (145, 151),
    (155, 159), (163, 166),
]  # fmt: skip
"""Ranges of the manual's item numbers, first and last; the numbers in between do not exist."""
ITEMS = [
    *(f"DQ-{number:03}" for first, last in RUNS for number in range(first, last + 1)),
    *(f"QQ-{number:02}" for number in range(1, 20)),
    *(f"D-{number:02}" for number in range(1, 11)),
]


def test_every_item_is_listed_once_and_in_order() -> None:
    assert [row[0] for row in ROWS] == ITEMS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_item_has_a_verdict_and_an_existing_test(row: list[str]) -> None:
    _, what, here, test = row
    assert what
    assert re.match(rf"({'|'.join(VERDICTS)})\b", here), here
    assert not here.startswith("differs") or here.startswith("differs: "), "say how it differs"
    found = TEST.match(test)
    assert found is not None, test
    assert found["name"].startswith("test_")
    assert found["name"] in names_in(found["file"]), f"tests/{found['file']} has no {found['name']}"
