"""Signatures from untrusted messages: valid, or refused with one clear error."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import signature
from qworker.canvas.checking import MAX_NESTING
from qworker.canvas.plan import plan
from qworker.errors import PublishError


def nested(depth: int, kind: str = "group") -> dict[str, Any]:
    fields: dict[str, Any] = {"task": "a", "args": [], "kwargs": {}, "options": {}}
    for _ in range(depth):
        kwargs = {"header": [fields], "body": {"task": "b"}} if kind == "chord" else {"tasks": [fields]}
        fields = {"task": f"celery.{kind}", "kwargs": kwargs, "options": {}, "subtask_type": kind}
    return fields


@pytest.mark.parametrize("kind", ["chain", "group", "chord"])
def test_too_deep_nesting_is_refused(kind: str) -> None:
    plan(nested(MAX_NESTING, kind), shared=True)
    for depth in (MAX_NESTING + 1, 10_000):
        with pytest.raises(PublishError, match=f"more than {MAX_NESTING} deep"):
            signature(nested(depth, kind))


@pytest.mark.parametrize("place", ["tasks", "header", "body"])
@pytest.mark.parametrize(
    "value", [1, "text", [1], [None], {"a": 1}, [{"task": 5}], [{"task": ""}], {"task": []}]
)
def test_member_that_is_not_a_signature_is_refused(place: str, value: Any) -> None:
    kwargs: dict[str, Any] = {"tasks": [], "header": [], "body": {"task": "b"}, place: value}
    for kind in ("chain", "group") if place == "tasks" else ("chord",):
        with pytest.raises(PublishError, match="not a signature"):
            plan({"task": f"celery.{kind}", "kwargs": kwargs, "subtask_type": kind}, shared=True)


@pytest.mark.parametrize(
    "fields",
    [{"args": 5}, {"kwargs": [1]}, {"options": "x"}, {"subtask_type": {}}, {"args": "text"}]
    + [{"options": {name: True}} for name in ("chain", "headers", "task_id", "group_id")],
)
def test_field_of_the_wrong_type_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PublishError, match=r"in the signature of a is"):
        signature({"task": "a", **fields})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["task", "tasks", "x"]), inner)
    ),
    max_leaves=5,
)
HOSTILE = st.recursive(
    JSON,
    lambda inner: st.fixed_dictionaries(
        {
            "task": st.just("a") | JSON,
            "subtask_type": st.sampled_from(["chain", "group", "chord", None, "xmap"]),
        },
        optional={
            "args": st.lists(JSON, max_size=2) | JSON,
            "options": st.dictionaries(
                st.sampled_from(["task_id", "chain", "link", "chord", "headers"]), JSON | inner
            ),
            "kwargs": st.fixed_dictionaries(
                {},
                optional={
                    "tasks": st.lists(inner, max_size=3) | inner,
                    "header": st.lists(inner, max_size=3) | inner,
                    "body": inner,
                    "kwargs": JSON,
                },
            ),
            "immutable": JSON,
        },
    ),
    max_leaves=8,
)


@given(HOSTILE)
def test_arbitrary_dict_is_planned_or_refused(fields: Any) -> None:
    with suppress(PublishError):
        plan(fields, ([1],), shared=True)
