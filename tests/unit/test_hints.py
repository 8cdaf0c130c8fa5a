"""Hints: annotations of functions and dataclasses, of which some cannot be evaluated."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from qworker.tasks.hints import hints_of

if TYPE_CHECKING:
    from nowhere import Unknown


def test_names_that_cannot_be_evaluated_leave_the_others() -> None:
    def function(one: Unknown, other: timedelta) -> Unknown: ...

    assert hints_of(function) == {"other": timedelta}
