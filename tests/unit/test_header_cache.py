"""Header tables written and read by what they have in common: never anything else than the parser makes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.message.kombu_json import dumps
from qworker.message.protocol import HeaderTemplate, TaskMessage
from qworker.transports.amqp.header_cache import CREDIT, LESSON, Shapes
from qworker.transports.amqp.table import read_table, table

NAMES = st.sampled_from(["id", "task", "n", "ü", 'q"', "%s", ""])
TEXTS = st.text(max_size=8) | st.sampled_from(["%b", 'say "hi"', "a\\b", "\x00", "\ud800", "SSSS", "ü" * 70])
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3)
    ),
    max_leaves=6,
)
HEADERS = st.dictionaries(NAMES, VALUES, max_size=6)


def shapes() -> Shapes:
    return Shapes(lambda name: name.startswith("x-"))


def learned(headers: dict[str, Any]) -> Shapes:
    made = shapes()
    made.learn_to_write(dumps(headers), table(headers), headers)
    made.learn_to_read(table(headers), dumps(headers), headers)
    return made


def with_other_texts(headers: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    left = iter(texts)
    return {name: next(left, value) if isinstance(value, str) else value for name, value in headers.items()}


@given(HEADERS, HEADERS, st.lists(TEXTS, max_size=6))
def test_a_shape_makes_what_the_parser_makes_or_nothing(
    headers: dict[str, Any], others: dict[str, Any], texts: list[str]
) -> None:
    known = learned(headers)
    for each in (headers, others, with_other_texts(headers, texts)):
        data, text = table(each), dumps(each)
        assert known.write(text) in (None, (data, each.get("id")))
        read = read_table(data, 0)[0]
        assert known.read(data, 0, len(data)) in (None, (dumps(read), read.get("id")))
        behind = b"\x00\x00\x00\x07" + data + b"behind"
        assert known.read(behind, 4, 4 + len(data)) == known.read(data, 0, len(data))


@given(st.text(max_size=60))
def test_text_that_is_no_headers_fits_no_shape(text: str) -> None:
    assert learned({"id": "1", "task": "t"}).write(text) is None
    spoiled = dumps({"id": "1", "task": "t"}).replace("t", text, 1)
    try:
        expected = json.loads(spoiled)
    except ValueError:
        expected = None
    made = learned({"id": "1", "task": "t"}).write(spoiled)
    assert made is None or made == (table(expected), expected["id"])


@given(st.binary(max_size=40), st.integers(4, 60))
def test_bytes_that_are_no_table_fit_no_shape(noise: bytes, at: int) -> None:
    whole = table({"id": "1", "task": "t", "n": None})
    broken = whole[:at] + noise + whole[at + 1 :]
    made = learned({"id": "1", "task": "t", "n": None}).read(broken, 0, len(broken))
    if made is not None:
        assert json.loads(made[0]) == read_table(broken, 0)[0]


def test_the_calls_of_one_task_fit_the_first_ones_shape() -> None:
    template = HeaderTemplate(TaskMessage(task="t", id="", args=(), kwargs={}))
    first, second = (template.encode(id, (id, 7), {"key": None}).headers for id in ("one", "a-longer-id"))
    known = learned(json.loads(first))
    data, identity = known.write(second) or (b"", None)
    assert (data, identity) == (table(json.loads(second)), "a-longer-id")
    assert known.read(data, 0, len(data)) == (second, "a-longer-id")


@pytest.mark.parametrize("headers", [{"id": "1", "x-death": 1}, {"id": 1, "task": "t"}])
def test_headers_that_are_apart_or_odd_make_no_shape(headers: dict[str, Any]) -> None:
    known = learned(headers)
    assert known.write(dumps(headers)) is None
    assert known.read(table(headers), 0, len(table(headers))) is None


def test_headers_of_ever_new_shapes_soon_cost_no_more_lessons() -> None:
    """Each would be compiled, and push out one that is of use."""
    known = shapes()
    headers = [{"id": "1", "n": number} for number in range(CREDIT // LESSON + 5)]
    for each in headers:
        known.learn_to_write(dumps(each), table(each), each)
    assert known.write(dumps(headers[-1])) is None
    for _ in range(LESSON):
        assert known.write(dumps(headers[CREDIT // LESSON - 1])) is not None
    known.learn_to_write(dumps(headers[-1]), table(headers[-1]), headers[-1])
    assert known.write(dumps(headers[-1])) is not None
