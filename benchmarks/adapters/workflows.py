"""Workflows of the tasks of `benchmarks.bodies`, the same for qworker and Celery, whose names are the same.

An adapter that has them offers `workflow(kind, base, count)`, by what `workflows` makes here.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

Workflow = tuple[Any, Any]
"""What is to be called, and the value it is to have."""


def workflows(tasks: Mapping[str, Any], canvas: ModuleType) -> Callable[[str, int, int], Workflow]:
    """What makes a workflow of a kind, of `count` tasks numbered from `base` on; the body of a chord has the
    number after them.

    canvas: has chain, chord and group. It is asked for them when one is made, so that a worker without
    workflows loads what such a worker does.
    """

    def make(kind: str, base: int, count: int) -> Workflow:
        numbers = range(base, base + count)
        if kind == "chain":
            first, *others = numbers
            return canvas.chain(
                tasks["step"].s(0, first), *(tasks["step"].s(number) for number in others)
            ), count
        calls = [tasks["stored"].s(number) for number in numbers]
        if kind == "group":
            return canvas.group(calls), sum(numbers)
        return canvas.chord(calls, tasks["total"].s(base + count)), sum(numbers)

    return make
