"""Choose the tests for each place: all whose requirements it meets.

Comes from:  the suite's tests, which declare their requirements; ``PLACES`` of the module that imports them.
Goes to:     pytest, as parameters named ``kind``.
Thread:      the collector's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest

from qworker.testing.contract.place import Assumption, Place
from qworker.transports.capabilities import Capability

F = TypeVar("F", bound=Callable[..., object])
Need = Capability | Assumption


def asks(*needs: Need) -> Callable[[F], F]:
    """Declare the requirements of a test, which does not run on places that lack one of them."""

    def decorate(test: F) -> F:
        test.needs = frozenset(needs) | getattr(test, "needs", frozenset())  # type: ignore[attr-defined]
        return test

    return decorate


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with the places in the module's ``PLACES`` that meet its requirements."""
    if "kind" not in metafunc.fixturenames:
        return
    places: Mapping[str, type[Place]] = metafunc.module.PLACES
    test = metafunc.function.__name__
    needs: frozenset[Need] = getattr(metafunc.function, "needs", frozenset())
    if "other" in metafunc.fixturenames:
        needs |= {Assumption.OTHER_PROCESSES}
    reasons = {kind: _why_not(place, test, needs) for kind, place in places.items()}
    able = [kind for kind, reason in reasons.items() if not reason]
    if not able:  # report it as skipped
        able = [pytest.param(kind, marks=pytest.mark.skip(reason=reason)) for kind, reason in reasons.items()]  # type: ignore[misc]
    metafunc.parametrize("kind", able)


def _why_not(place: type[Place], test: str, needs: frozenset[Need]) -> str:
    """Return why *test* does not run on *place*; "" if it does."""
    lacking = sorted(needs & place.lacks)
    return f"lacks {', '.join(lacking)}" if lacking else place.cannot.get(test, "")
