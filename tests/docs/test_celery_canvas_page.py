"""The page about Celery's canvas is generated from the cases, and names existing tests."""

from __future__ import annotations

import pytest

from tests.compat.canvas_page import BEHAVIOURS, page
from tests.docs.pages import REPOSITORY
from tests.docs.test_celery_guide_page import names_in

PAGE = REPOSITORY / "docs" / "reference" / "celery-canvas.md"
ROWS = [row for _, rows in BEHAVIOURS for row in rows]


def test_page_is_up_to_date_with_the_cases() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.compat.canvas_page"


@pytest.mark.parametrize(("what", "verdict", "test"), ROWS)
def test_every_behaviour_has_a_verdict_and_an_existing_test(what: str, verdict: str, test: str) -> None:
    assert verdict.startswith(("as Celery", "differs: ", "refused"))
    file, _, name = test.partition("::")
    assert name in names_in(file), what
