"""Names in the pages about the code exist, and the glossary defines the words that the project uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.source import FACES, LAYER_OF_ROOM, PACKAGE, REPOSITORY, RULES, table
from tests.architecture.test_docstrings import unknown

DOCS = REPOSITORY / "docs"
GLOSSARY = DOCS / "reference" / "glossary.md"
PAGES = [
    GLOSSARY,
    RULES,
    DOCS / "explanation" / "life-of-a-task.md",
    DOCS / "explanation" / "delivery-guarantees.md",
    DOCS / "explanation" / "performance.md",
    DOCS / "explanation" / "django-q-engine.md",
    REPOSITORY / "CONTRIBUTING.md",
]
WORDS = """
app, broker, claim, command, component, consumer, dead letter, duration, entry, event, generation,
instant, job, lease, mailbox, message, node name, notification pipe, outcome, owner files, request,
result, result watcher, schedule, settlement, settlement order, signal, signature, task, transport,
wakeup pipe, zygote
""".replace(",\n", ", ").strip()
"""Words that the glossary must define, among others."""


def name_of(page: Path) -> str:
    return page.stem


def entries() -> list[tuple[str, str]]:
    """Words with the page that is linked, or the module that is named, for each."""
    rows = [line.split(" | ") for line in text_of(GLOSSARY).splitlines() if line.startswith("| ")]
    found = []
    for words, _, link in rows:
        if link != "where |":
            page = re.fullmatch(r"\[[^]]+\]\(([^)]+)\) \|", link)
            target = page[1] if page else f"{PACKAGE}/{link.removesuffix(' |').strip('`')}"
            assert page is None or Path(target.partition("#")[0]).suffix == ".md", "only pages are built"
            found.append((words.removeprefix("| "), target))
    return found


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_glossary_defines_every_word_once() -> None:
    words = [word.lower() for row, _ in entries() for word in row.split(", ")]
    assert set(words) >= set(WORDS.split(", "))
    assert len(words) == len(set(words))


@pytest.mark.parametrize(("words", "target"), entries())
def test_word_occurs_where_its_link_leads(words: str, target: str) -> None:
    path = (GLOSSARY.parent / target.partition("#")[0]).resolve()
    assert path.exists(), target
    texts = [path.name, *(text_of(file) for file in ([path] if path.is_file() else path.glob("*.py")))]
    word = words.lower().partition(", ")[0]
    spellings = (word, word.replace(" ", "_"), word.replace(" ", "-"), word.replace(" ", ""))
    assert any(spelling in text.lower() for spelling in spellings for text in texts)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_named_in_pages_exist(page: Path) -> None:
    named = re.findall(r"`([\w./]+\.py)`", text_of(page))
    roots = (PACKAGE, REPOSITORY)
    assert [name for name in named if not any((root / name).is_file() for root in roots)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == DOCS / "explanation"], ids=name_of)
def test_code_names_in_pages_exist(page: Path) -> None:
    assert list(unknown(text_of(page), "qworker", {"quoted", "called", "shaped"})) == []


def test_packages_are_listed_in_reading_order() -> None:
    """Each top-level package once."""
    listed = [cell for row in table("package") for cell in re.findall(r"`(\w+)/`", row[0])]
    assert sorted(listed) == sorted(face.split(".")[1] for face in FACES if face.count(".") == 1)
    assert LAYER_OF_ROOM.keys() >= set(listed)


def test_places_of_changes_are_there() -> None:
    """Each name that stands before a file in the table of CONTRIBUTING.md occurs in it."""
    rows = [line for line in text_of(REPOSITORY / "CONTRIBUTING.md").splitlines() if "`qworker/" in line]
    one = r"`\w+(?:\(\))?`"
    found = re.findall(rf"({one}(?:(?:, | and ){one})*) in `(qworker/[\w/]+\.py)`", "\n".join(rows))
    named = [(name, file) for names, file in found for name in re.findall(r"`(\w+)", names)]
    assert len(named) > 20
    assert [each for each in named if not re.search(rf"\b{each[0]}\b", text_of(REPOSITORY / each[1]))] == []
