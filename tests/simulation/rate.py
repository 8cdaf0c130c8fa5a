"""rate: how many tasks the simulator runs in a CPU second: ``python -m tests.simulation.rate``.

Comes from:  the command line.
Goes to:     a table on the terminal.
Thread:      one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.simulation.case import Call, Case, Group, Order, World
from tests.simulation.checks import problems
from tests.simulation.run import run
from tests.support.flows import numbered

TASKS = 200
ROUNDS = 5
LOADS: dict[str, Callable[[], list[tuple[Any, float]]]] = {
    "calls, one each 10 ms": lambda: [(Call(), 0.01 * number) for number in range(TASKS)],
    "calls at the same time": lambda: [(Call(), 0.0) for _ in range(TASKS)],
    "groups of ten, one each 10 ms": lambda: [
        (Group([Call() for _ in range(10)]), 0.01 * number) for number in range(TASKS // 10)
    ],
}
"""Flows, and the seconds at which they are called."""


def main() -> None:
    for stores in ("memory", "sqlite"):
        for name, load in LOADS.items():
            best = float("inf")
            for _ in range(ROUNDS):
                orders = tuple(Order(numbered(flow), at) for flow, at in load())
                began = time.process_time()
                seen = run(Case(World(stores, workers=1), orders))
                assert problems(seen) == []
                assert seen.tasks == TASKS
                best = min(best, time.process_time() - began)
            print(f"{stores:7} {name:30} {TASKS} in {best:.3f} s, {TASKS / best:5,.0f} a second")


if __name__ == "__main__":
    main()
