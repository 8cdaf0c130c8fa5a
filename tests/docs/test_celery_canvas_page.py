"""The page of Celery's canvas says what the cases say, and names tests that are there."""

from __future__ import annotations

import pytest

from tests.compat.canvas_page import BEHAVIOURS, page
from tests.docs.pages import REPOSITORY
from tests.docs.test_celery_guide_page import names_in

PAGE = REPOSITORY / "docs" / "reference" / "celery-canvas.md"
ROWS = [row for _, rows in BEHAVIOURS for row in rows]


def test_the_page_is_what_the_cases_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.compat.canvas_page"


@pytest.mark.parametrize(("what", "verdict", "test"), ROWS)
def test_every_behaviour_has_a_verdict_and_a_test_that_is_there(what: str, verdict: str, test: str) -> None:
    assert verdict.startswith(("as Celery", "differs: ", "refused"))
    file, _, name = test.partition("::")
    assert name in names_in(file), what
