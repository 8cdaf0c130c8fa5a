"""What cases were about, and which pairs of that never met in one.

Comes from:  ``search``, with what each run showed.
Goes to:     its table.
Thread:      any; pure.

A label is ``(group, dimension, value)``. The groups are "world", "fault" and "program". Two values of one
dimension of a world do not meet; all others can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from itertools import combinations
from typing import Any

from tests.simulation import case as cases
from tests.simulation.case import Case, Fault
from tests.simulation.drawing import CHOICES
from tests.simulation.nodes import ASK, HOW
from tests.simulation.run import HAPPENINGS
from tests.simulation.seams import KINDS
from tests.support.flows import parts_of

Label = tuple[str, str, str]
NO_FLOWS = frozenset({"Case", "Fault", "Order", "World"})


def labels(case: Case, fired: Iterable[Fault]) -> frozenset[Label]:
    """What *case* is about; of its faults those that *fired*."""
    found = {("world", name, repr(getattr(case.world, name))) for name in CHOICES}
    found |= {("fault", fault.kind, "") for fault in fired}
    for order in case.orders:
        found |= {("program", "how", order.how), ("program", "ask", order.ask)}
        found |= {("program", "option", name) for name in order.options}
        if order.revoke_at is not None:
            found.add(("program", "revoked", ""))
        for part in parts_of(order.flow):
            name = type(part).__name__
            found.add(("program", name, ""))
            found |= {
                ("program", name, each.name)
                for each in _options(type(part))
                if getattr(part, each.name) != _usual(each)
            }
    return frozenset(found)


def all_labels() -> frozenset[Label]:
    """All that a case can be about, as far as the simulator tells without drawing one."""
    found = {("world", name, repr(value)) for name, values in CHOICES.items() for value in values}
    found |= {("fault", kind, "") for kind in (*KINDS, *HAPPENINGS)}
    found |= {("program", "how", how) for how in HOW} | {("program", "ask", ask) for ask in ASK}
    for name in cases.__all__:
        kind = getattr(cases, name)
        if is_dataclass(kind) and name not in NO_FLOWS:
            found.add(("program", name, ""))
            found |= {("program", name, each.name) for each in _options(kind)}
    return frozenset(found)


def _options(kind: Any) -> Iterator[Any]:
    """The fields of a flow that are left as usual mostly."""
    return (each for each in fields(kind) if each.name != "number" and _usual(each) is not MISSING)


def _usual(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def meeting(found: Iterable[Label]) -> Iterator[tuple[Label, Label]]:
    """The pairs of *found* that can meet in one case."""
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

    def table(self, most: int = 40) -> str:
        """How many of the pairs met, and which did not, at most so many of them."""
        wanted = all_labels() | self.labels.keys()
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
        if never:
            rows.append(f"never drawn, or never fired: {', '.join(map(shown, never))}")
        if missing:
            rows.append(f"pairs that never met: {len(missing)}")
            rows += [f"  {shown(one)} with {shown(other)}" for one, other in missing[:most]]
            if len(missing) > most:
                rows.append(f"  and {len(missing) - most} more")
        return "\n".join(rows)


def shown(label: Label) -> str:
    group, dimension, value = label
    if group == "world":
        return f"{dimension}={value}"
    return f"{dimension}.{value}" if value else dimension
