"""covering: which features cases had, and which pairs were never in one case.

Comes from:  ``search``, with the features of each run.
Goes to:     the search's table.
Thread:      any; pure.

A label is ``(group, dimension, value)``. The groups are "world", "fault" and "program". Two values of one
dimension of a world exclude each other; all other pairs are possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from itertools import combinations
from typing import Any

from tests.simulation import case as cases
from tests.simulation.case import Case, Fault, World
from tests.simulation.drawing import CHOICES, DOES, OPTIONS
from tests.simulation.nodes import ASK, BY_CELERY, HOW
from tests.simulation.run import HAPPENINGS
from tests.simulation.seams import KINDS
from tests.simulation.shrinking import usual
from tests.support.flows import Short

Label = tuple[str, str, str]
DETAILS = frozenset({"at", "faults", "given", "name", "number", "seed", "seconds", "start", "world"})
"""Fields that are not features, or have their own labels."""


def labels(case: Case, fired: Iterable[Fault]) -> frozenset[Label]:
    """Return the labels of *case*, with the faults that *fired*."""
    found = {("world", name, repr(getattr(case.world, name))) for name in CHOICES}
    return frozenset(found | {("fault", fault.kind, "") for fault in fired} | set(_features(case)))


def _features(value: Any) -> Iterator[Label]:
    """Yield the kinds of objects in *value*, and their fields that differ from the default: text with its
    value, dictionaries with their keys."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from _features(each)
    elif isinstance(value, Short):
        kind = type(value).__name__
        yield "program", kind, ""
        for field in _told(type(value)):
            now = getattr(value, field.name)
            yield from _features(now)
            if now == usual(field):
                continue
            if isinstance(now, str):
                yield "program", f"{kind}.{field.name}", now
            elif isinstance(now, dict):
                yield from (("program", f"{kind}.{field.name}", str(key)) for key in now)
            else:
                yield "program", f"{kind}.{field.name}", ""


def all_labels() -> frozenset[Label]:
    """Return all labels that are known without drawing cases. The value "" stands for any value of a
    field."""
    found = {("world", name, repr(value)) for name, values in CHOICES.items() for value in values}
    found |= {("fault", kind, "") for kind in (*KINDS, *HAPPENINGS)}
    found |= {("program", "Order.how", how) for how in {*HOW, *BY_CELERY} - {"call"}}
    found |= {("program", "Order.ask", ask) for ask in ASK[1:]}
    found |= {("program", "Call.does", does) for does in DOES}
    found |= {("program", "Call.options", name) for options in OPTIONS for name in options}
    for kind in (getattr(cases, name) for name in cases.__all__):
        if isinstance(kind, type) and kind not in (World, Fault):
            found.add(("program", kind.__name__, ""))
            for field in _told(kind):
                if usual(field) is not MISSING:
                    found.add(("program", f"{kind.__name__}.{field.name}", ""))
    return frozenset(found)


def _told(kind: Any) -> Iterator[Field[Any]]:
    return (field for field in fields(kind) if field.name not in DETAILS)


def meeting(found: Iterable[Label]) -> Iterator[tuple[Label, Label]]:
    """Yield the pairs of *found* that are possible in one case."""
    for one, other in combinations(sorted(found), 2):
        if one[0] != "world" or one[:2] != other[:2]:
            yield one, other


class Covered:
    """The labels and pairs of many cases."""

    def __init__(self) -> None:
        self.labels: Counter[Label] = Counter()
        self.pairs: Counter[tuple[Label, Label]] = Counter()

    def add(self, found: Iterable[Label]) -> None:
        found = sorted(found)
        self.labels.update(found)
        self.pairs.update(meeting(found))

    def table(self, most: int = 0) -> str:
        """Return a table of covered pairs, with at most *most* of those that are missing, spread over all; if
        it is 0, without what is missing."""
        known = {dimension for _, dimension, _ in self.labels}
        wanted = {each for each in all_labels() if each[2] or each[1] not in known} | self.labels.keys()
        never = sorted(wanted - self.labels.keys())
        total: Counter[tuple[str, str]] = Counter()
        met: Counter[tuple[str, str]] = Counter()
        missing = []
        for pair in meeting(wanted):
            groups = pair[0][0], pair[1][0]
            total[groups] += 1
            if pair in self.pairs:
                met[groups] += 1
            elif not {*pair} & {*never}:
                missing.append(pair)
        rows = [f"{'pairs':<20}{'covered':>9}{'of':>9}{'%':>8}"]
        for groups, count in sorted(total.items()):
            rows.append(
                f"{' x '.join(groups):<20}{met[groups]:>9}{count:>9}{100 * met[groups] / count:>8.1f}"
            )
        rows.append(
            f"{'all':<20}{met.total():>9}{total.total():>9}{100 * met.total() / max(1, total.total()):>8.1f}"
        )
        if most and never:
            rows.append(f"never drawn, or never fired: {', '.join(map(shown, never))}")
        if most and missing:
            some = missing[:: -(-len(missing) // most)]
            rows.append(f"pairs that never met: {len(missing)}")
            rows += [f"  {shown(one)} with {shown(other)}" for one, other in some]
            if len(missing) > len(some):
                rows.append(f"  and {len(missing) - len(some)} more")
        return "\n".join(rows)


def shown(label: Label) -> str:
    group, dimension, value = label
    if group == "world":
        return f"{dimension}={value}"
    return f"{dimension}.{value}" if value else dimension
