"""Fields of results in MongoDB, signed and unsigned."""

from __future__ import annotations

from typing import Any

import pytest

from qworker import QWorker
from qworker.backends.mongodb import Fields
from qworker.errors import DamagedResult


def fields(**settings: Any) -> tuple[Any, Fields]:
    app = QWorker("proj", broker="memory://", backend="cache+memory://", set_as_current=False, **settings)
    return app.backend, Fields(app.backend)


@pytest.mark.parametrize("children", [[[["evil", None], None]], {"a": 1}])
def test_unsigned_children_are_refused_with_a_security_key(children: Any) -> None:
    backend, signed = fields(security_key=["k" * 32])
    meta = backend.meta("id-1", "SUCCESS", 5, children=[[["child", None], None]])
    stored = {"_id": "id-1", **signed.of("id-1", meta)}
    found = signed.found(stored)
    assert isinstance(found, dict)
    assert (found["result"], found["children"]) == (5, [[["child", None], None]])
    altered = signed.found({**stored, "children": children})
    assert isinstance(altered, DamagedResult)
    assert "its children are not signed" in str(altered)


def test_unsigned_fields_are_read_without_a_security_key() -> None:
    backend, plain = fields()
    meta = backend.meta("id-1", "SUCCESS", 5, children=[[["child", None], None]])
    found = plain.found({"_id": "id-1", **plain.of("id-1", meta)})
    assert isinstance(found, dict)
    assert found["children"] == [[["child", None], None]]
