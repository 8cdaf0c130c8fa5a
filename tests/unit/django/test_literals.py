"""Parsing of arguments given as text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.django.models.literals import keywords, positional
from qworker.errors import InvalidSchedule


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ()),
        ("", ()),
        ("  ", ()),
        ("2,-2", (2, -2)),
        ("1", (1,)),
        ("'John'", ("John",)),
        ("[1, 2]", ([1, 2],)),
        ("(1, 2)", (1, 2)),
        ("  'a', None, True", ("a", None, True)),
        ("()", ()),
    ],
)
def test_positional_arguments_are_parsed(text: str | None, expected: tuple[Any, ...]) -> None:
    assert positional(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        (" ", {}),
        ("word='django', n=2", {"word": "django", "n": 2}),
        ("{'word': 'django', 'n': 2}", {"word": "django", "n": 2}),
        ("q_options={'timeout': 30}", {"q_options": {"timeout": 30}}),
        ("x=-1,", {"x": -1}),
    ],
)
def test_keyword_arguments_are_parsed(text: str | None, expected: dict[str, Any]) -> None:
    assert keywords(text) == expected


@pytest.mark.parametrize("text", ["open('x')", "1 +", "x", "1; 2", "lambda: 0", "(" * 500, "f'{1}'", "\x00"])
def test_invalid_positional_arguments_are_rejected(text: str) -> None:
    with pytest.raises(InvalidSchedule):
        positional(text)


@pytest.mark.parametrize(
    "text",
    [
        "2",
        "x",
        "x=open('y')",
        "**{'a': 1}",
        "*[1]",
        "x=1)(y=2",
        "x=1) + f(",
        "{1: 2}",
        "{1}",
        "{'a'",
        "x=1, x=2",
    ],
)
def test_invalid_keyword_arguments_are_rejected(text: str) -> None:
    with pytest.raises(InvalidSchedule):
        keywords(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.tuples(inner)
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}9", fullmatch=True), VALUES))
def test_both_notations_of_keyword_arguments_are_equal(values: dict[str, Any]) -> None:
    assert keywords(repr(values)) == values
    assert keywords(", ".join(f"{name}={value!r}" for name, value in values.items())) == values
