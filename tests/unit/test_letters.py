"""chosen(): letters are read page by page, no further than needed."""

from __future__ import annotations

import json

import pytest

from qworker.control.letters import chosen
from qworker.testing import FakeClock, MemoryStore
from qworker.testing.store import MemoryLetters
from qworker.transports.lease import Dead

KEPT, PORTION = 100, 10


class PageCountingLetters(MemoryLetters):
    portion = PORTION
    pages = 0

    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        self.pages += 1
        return super().page(queue, limit, after)


@pytest.fixture
def letters() -> PageCountingLetters:
    """A hundred letters, with tags from 1 on, the newest last."""
    kept = PageCountingLetters("dead", MemoryStore(FakeClock()))
    headers = [json.dumps({"id": f"id-{number}"}) for number in range(KEPT)]
    kept.push([Dead(0, "q", "why", 1.0, 0, text, None, b"") for text in headers])
    return kept


def tags(found: object) -> list[int]:
    return [letter.tag for letter in found]  # type: ignore[attr-defined]


def test_search_by_tags_stops_when_all_are_found(letters: PageCountingLetters) -> None:
    assert tags(chosen(letters, [KEPT - 1, KEPT - 15])) == [KEPT - 1, KEPT - 15]
    assert letters.pages == 2


def test_search_for_a_missing_tag_reads_all_pages(letters: PageCountingLetters) -> None:
    assert tags(chosen(letters, [KEPT, 999])) == [KEPT]
    assert letters.pages == KEPT // PORTION + 1
    assert tags(chosen(letters, [])) == []
    assert tags(chosen(None, [1])) == []


def test_limit_of_letters(letters: PageCountingLetters) -> None:
    assert len(tags(chosen(letters, None, "q", 5))) == 5
    assert letters.pages == 1
    assert tags(chosen(letters, limit=3, is_meant=lambda letter: letter.tag % 2 == 0)) == [100, 98, 96]
    assert letters.pages == 2
