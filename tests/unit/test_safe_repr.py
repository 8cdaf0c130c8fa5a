"""safe_repr(): like repr() for plain values, and always bounded and on one line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.safe_repr import LIMIT, printable, repr_args, repr_kwargs, safe_repr

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
NESTED = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4) | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "value",
    [1, "a", None, 1.5, True, b"x", (), (1,), (1, 2), [], [1], {}, {"a": 1}, {1: {2: 3}}, set(), {1},
    frozenset(),
     frozenset({1}), "it's", 'say "no"', "é", (1, [2, {"x": (None,)}])],
)  # fmt: skip
def test_small_values_look_like_repr(value: object) -> None:
    assert safe_repr(value) == repr(value)
    assert repr_args((value, 1)) == repr((value, 1))
    assert repr_kwargs({"x": value}) == repr({"x": value})


def test_empty_arguments() -> None:
    assert repr_args(()) == "()"
    assert repr_kwargs({}) == "{}"
    assert repr_args([1, 2]) == "(1, 2)"  # type: ignore[arg-type]


@given(st.lists(NESTED, max_size=5), st.integers(0, 200))
def test_text_is_within_the_limit_and_printable(values: list[Any], limit: int) -> None:
    for text in (
        safe_repr(values, limit),
        repr_args(tuple(values), limit),
        repr_kwargs({"k": values}, limit),
    ):
        assert len(text) <= max(limit, 2)
        assert text.isprintable()


class Explodes:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Lies:
    def __repr__(self) -> str:
        return 7  # type: ignore[return-value]


class Forges:
    def __repr__(self) -> str:
        return "ok\n2030-01-01 ERROR root: forged\x1b[31m\u202e"


class Endless:
    def __repr__(self) -> str:
        return "x" * 10_000_000


class Deep:
    def __repr__(self) -> str:
        return repr(self)


class BadList(list):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        raise OSError("gone")


@pytest.mark.parametrize("value", [Explodes(), Lies(), Forges(), Endless(), Deep(), BadList([1])])
def test_hostile_objects_are_harmless(value: object) -> None:
    for text in (safe_repr(value), repr_args((value,)), repr_kwargs({"x": value})):
        assert len(text) <= LIMIT
        assert text.isprintable()


def test_object_with_failing_repr_is_named() -> None:
    assert safe_repr(Explodes()) == "<Explodes whose repr() raised RuntimeError>"


def test_cycles_are_cut() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    table: dict[str, Any] = {}
    table["self"] = table
    assert safe_repr(loop) == "[1, [...]]"
    assert safe_repr(table) == "{'self': {...}}"


def test_repeated_value_is_not_a_cycle() -> None:
    shared = [1]
    assert safe_repr([shared, shared]) == "[[1], [1]]"


def test_large_values_are_truncated_with_an_ellipsis() -> None:
    assert safe_repr("x" * 5000).endswith("...")
    assert len(safe_repr("x" * 5000)) == LIMIT
    assert safe_repr(list(range(100)), 10_000).endswith(", ... 36 more]")
    assert safe_repr([[[[[[[[1]]]]]]]]) == "[[[[[[[...]]]]]]]"
    assert repr_args(("x" * 600, "y" * 600)).endswith("...")


def test_huge_int_is_described() -> None:
    huge = 10**5000
    assert safe_repr(huge) == f"<int of {huge.bit_length()} bits>"
    assert repr_args((1, huge)) == f"(1, <int of {huge.bit_length()} bits>)"
    assert "bits" in repr_kwargs({"n": huge})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é", "plain é"),
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202e", "\\u202e"),
        ("\ud800", "\\ud800"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
