"""Reading headers that any program may have written."""

from __future__ import annotations

import pytest

from qworker.transports.own_headers import headers_in, id_in, outline

DEEP = "[" * 100_000
"""Deeper than Python's parser goes: RecursionError."""


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", DEEP])
def test_headers_that_are_no_object_are_empty(text: str) -> None:
    assert (headers_in(text), id_in(text), outline(text)) == ({}, None, "{}")


def test_id_is_text() -> None:
    assert (id_in('{"id": "a"}'), id_in('{"id": 7}'), id_in("{}")) == ("a", None, None)
