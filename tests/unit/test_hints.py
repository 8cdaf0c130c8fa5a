"""Hints: annotations of functions and dataclasses, of which some cannot be evaluated."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from qworker.tasks.codecs import hints_of

if TYPE_CHECKING:
    from nowhere import Unknown

GONE = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Made:
    number: int
    other: Unknown
"""


def test_names_that_cannot_be_evaluated_leave_the_others() -> None:
    def function(one: Unknown, other: timedelta) -> Unknown: ...

    assert hints_of(function) == {"other": timedelta}


def test_a_dataclass_of_a_module_that_is_gone_keeps_what_can_be_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("loaded_for_a_moment")
    with monkeypatch.context() as moment:
        moment.setitem(sys.modules, module.__name__, module)
        exec(GONE, vars(module))
    assert hints_of(module.Made) == {"number": int}
