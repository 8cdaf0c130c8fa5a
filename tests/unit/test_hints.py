"""hints_of(): annotations of functions and dataclasses, some of which cannot be evaluated."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from qworker.tasks.codecs import hints_of

if TYPE_CHECKING:
    from nowhere import Unknown

UNLOADED_MODULE = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Made:
    number: int
    other: Unknown
"""


def test_unresolvable_annotation_does_not_affect_the_others() -> None:
    def function(one: Unknown, other: timedelta) -> Unknown: ...

    assert hints_of(function) == {"other": timedelta}


def test_dataclass_of_an_unloaded_module_keeps_resolvable_annotations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("loaded_for_a_moment")
    with monkeypatch.context() as moment:
        moment.setitem(sys.modules, module.__name__, module)
        exec(UNLOADED_MODULE, vars(module))
    assert hints_of(module.Made) == {"number": int}
