"""ThreadComponent: the thread of a component."""

from __future__ import annotations

import itertools
import threading

import pytest

from qworker.components.component import ThreadComponent
from qworker.testing import FakeClock

LONG = 30.0


class Component(ThreadComponent):
    """Records its steps; each returns *rest*."""

    name = "counted"

    def __init__(self, rest: float | None = None) -> None:
        self.crashes: list[tuple[str, BaseException]] = []
        self.crashed = threading.Event()
        super().__init__(FakeClock(monotonic=5.0), self._note)
        self.rest = rest
        self.steps: list[float] = []
        self.stepped = threading.Semaphore(0)
        self.events: list[str] = []
        self.error: BaseException | None = None

    def _note(self, name: str, error: BaseException) -> None:
        self.crashes.append((name, error))
        self.crashed.set()

    def opened(self) -> None:
        self.events.append("opened")

    def step(self, now: float) -> float | None:
        self.steps.append(now)
        self.stepped.release()
        if self.error is not None:
            raise self.error
        return self.rest

    def closed(self) -> None:
        self.events.append("closed")


def test_life_of_a_component() -> None:
    component = Component()
    assert not component.alive
    component.start()
    assert component.stepped.acquire(timeout=LONG)
    assert component.alive
    component.stop()
    assert component.join(LONG)
    assert not component.alive
    assert component.events == ["opened", "closed"]
    assert component.steps[0] == 5.0  # the time of its clock


@pytest.mark.parametrize(
    "order", sorted(set(itertools.permutations(["start", "quiet", "stop", "start", "stop"])))
)
def test_methods_may_be_called_in_any_order_and_twice(order: tuple[str, ...]) -> None:
    component = Component()
    for name in order:
        getattr(component, name)()
    component.stop()
    assert component.join(LONG)
    assert not component.alive
    assert component.crashes == []
    assert component.events in ([], ["opened", "closed"])
    if order.index("start") < order.index("stop"):
        assert component.events == ["opened", "closed"]


def test_stopped_component_does_not_start() -> None:
    component = Component()
    component.stop()
    component.start()
    assert not component.alive


def test_second_start_makes_no_second_thread() -> None:
    component = Component()
    component.start()
    first = component._thread
    component.start()
    assert component._thread is first
    component.stop()
    assert component.join(LONG)


def test_wake_ends_a_wait() -> None:
    component = Component(rest=None)  # until woken
    component.start()
    assert component.stepped.acquire(timeout=LONG)
    component.wake()
    assert component.stepped.acquire(timeout=LONG)
    component.stop()
    assert component.join(LONG)


def test_component_with_more_work_does_not_wait() -> None:
    component = Component(rest=0)
    component.start()
    for _ in range(10):
        assert component.stepped.acquire(timeout=LONG)
    component.stop()
    assert component.join(LONG)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_crash_is_reported_and_closes_the_component(error: BaseException) -> None:
    component = Component()
    component.error = error
    component.start()
    assert component.crashed.wait(LONG)
    component.stop()
    assert component.join(LONG)
    assert component.crashes == [("counted", error)]
    assert component.events == ["opened", "closed"]


def test_component_can_stop_itself() -> None:
    class SelfStopping(Component):
        def step(self, now: float) -> float | None:
            self.stop()
            assert not self.join(LONG), "a thread cannot join itself"
            return super().step(now)

    component = SelfStopping(rest=0)
    component.start()
    assert component.stepped.acquire(timeout=LONG)
    component.stop()
    assert component.join(LONG)
    assert component.events == ["opened", "closed"]
    assert len(component.steps) == 1
