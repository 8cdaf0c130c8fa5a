"""All texts of the admin are translated into all languages that we ship."""

from __future__ import annotations

import ast
import gettext
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.one_python

PACKAGE = REPOSITORY / "qworker" / "django"
CATALOGS = sorted(PACKAGE.glob("locale/*/LC_MESSAGES/django.mo"))


@cache
def texts() -> set[str]:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("_", "ngettext"):
                found.add(ast.literal_eval(node.args[0]))
    return found


@pytest.mark.parametrize("catalog", CATALOGS, ids=lambda path: path.parts[-3])
def test_all_texts_are_translated(catalog: Path) -> None:
    with catalog.open("rb") as file:
        read = gettext.GNUTranslations(file)
    missing = [text for text in texts() if read.ngettext(text, text, 1) == text and not known(read, text)]
    assert not missing
    assert len(texts()) > 70


def known(read: gettext.GNUTranslations, text: str) -> bool:
    """Whether the catalog has *text*, even if the translation is the same."""
    return text in read._catalog  # type: ignore[attr-defined]


def test_languages_of_django_q2_are_included() -> None:
    assert {path.parts[-3] for path in CATALOGS} >= {"de", "fr", "ru", "tr", "zh_Hans"}


@pytest.mark.parametrize("catalog", CATALOGS, ids=lambda path: path.parts[-3])
def test_compiled_catalogs_match_their_sources(catalog: Path) -> None:
    with catalog.open("rb") as file:
        read = gettext.GNUTranslations(file)
    written = catalog.with_suffix(".po").read_text(encoding="utf-8")
    for text in read._catalog.values():  # type: ignore[attr-defined]
        assert not text or text.startswith("Language:") or f'"{text}"' in written
