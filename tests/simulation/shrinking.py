"""shrinking: makes a failing case smaller.

Comes from:  ``search``, with a case that fails.
Goes to:     the caller: the smallest case found that fails in the same way.
Thread:      the caller's.

The fields of a case are not known here: any dataclass, tuple, list or dictionary is made smaller, so new
kinds of flows and faults need no changes.
"""

from __future__ import annotations

import copy
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from typing import Any

from tests.simulation import case as cases
from tests.simulation.case import Call, Case, Node
from tests.simulation.checks import problems
from tests.simulation.run import Seen, run
from tests.support.flows import is_plain, numbered, parts_of

SECONDS = 60.0
OTHER_SEEDS = 4
"""Other seeds tried for a smaller case that does not fail with its own."""
FLOWS = tuple(
    kind
    for name in cases.__all__
    if (kind := getattr(cases, name)).__module__ == Call.__module__ and name != "Errback"
)
ORDER = re.compile(r"(?<![\w-])f(\d+)(?=:)")
"""The number of an order in a problem."""
DETAILS = re.compile(r"'[^']*'|\"[^\"]*\"|[0-9a-f]{8}-[0-9a-f-]{27}|\w*\d\w*|[^A-Za-z' ]")
ERROR = re.compile(r"Failed\(error=['\"](\w+)|\[(?!Failed\()([A-Z]\w*)\(")
"""The error in a value, or the one after a message of the log."""
COUNTS = re.compile(r"(\{[^{}]*\}|\d+) ?(?:times)?, not (?:at most )?(\{[^{}]*\}|\d+)")
COUNT = re.compile(r"(?:(\d+): )?(\d+)")


def kind_of(problem: str) -> str:
    """Return the kind of *problem*: its words, without values, names and numbers, the errors in it that are
    not as expected, and how counts differ."""
    lines = problem.strip().splitlines()
    text = " ".join((lines[0], lines[-1]) if len(lines) > 1 else lines)
    details = [*_unequal_errors(text), *_unequal_counts(text)]
    while (inner := re.sub(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}", " ", text)) != text:
        text = inner
    return " ".join([*DETAILS.sub(" ", text).split(), *details])


def _unequal_errors(text: str) -> Iterator[str]:
    got, wanted = (
        Counter(one or other for one, other in ERROR.findall(part)) for part in text.partition(", not ")[::2]
    )
    yield from sorted(got - wanted)
    yield from (f"not {each}" for each in sorted(wanted - got))


def _unequal_counts(text: str) -> list[str]:
    """Return how counts differ from what was expected: "none" (0), "less", "more", or several of these."""
    if (found := COUNTS.search(text)) is None:
        return []
    got, wanted = ({key: int(count) for key, count in COUNT.findall(part)} for part in found.groups())
    pairs = ((got.get(key, 0), wanted.get(key, 0)) for key in got | wanted)
    return sorted({"more" if ran > due else "less" if ran else "none" for ran, due in pairs if ran != due})


@dataclass(frozen=True)
class Shrunk:
    """problems: those of *case*. runs: how many cases were run. finished: False if the time was over before
    all smaller cases were tried."""

    case: Case
    problems: tuple[str, ...]
    runs: int = 0
    finished: bool = True


def shrunk(
    case: Case, seconds: float = SECONDS, run: Callable[[Case], Seen] = run, kinds: Sequence[str] = ()
) -> Shrunk:
    """Return the smallest case found within CPU *seconds* that fails like *case*: with a problem of the same
    kind, or of one of *kinds*."""
    until = time.process_time() + seconds
    seen = run(case)
    found = problems(seen)
    wanted = set(kinds or map(kind_of, found))
    best, ran = Shrunk(case, tuple(found)), 1

    def fails(candidate: Case) -> bool:
        nonlocal best, ran
        found = problems(run(candidate))
        ran += 1
        if wanted.isdisjoint(map(kind_of, found)):
            return False
        best = Shrunk(candidate, tuple(found))
        return True

    if not wanted:
        return best
    fails(replace(case, faults=tuple(fault for fault in case.faults if fault in seen.fired)))
    named = {int(number) for each in found for number in ORDER.findall(each)}
    if some := tuple(order for number, order in enumerate(case.orders) if number in named):
        fails(replace(best.case, orders=some))
    for other_seeds in (0, OTHER_SEEDS):
        smaller = True
        while smaller:
            smaller = False
            for candidate in _candidates(best.case):
                if time.process_time() > until:
                    return replace(best, runs=ran, finished=False)
                seeds = (candidate.seed, *range(other_seeds))
                if any(fails(replace(candidate, seed=seed)) for seed in seeds):
                    smaller = True
                    break
    return replace(best, runs=ran)


def _candidates(case: Case) -> Iterator[Case]:
    """Yield cases that are smaller than *case*, usually the smallest first."""
    shown = repr(case)
    size, tried = (len(shown), shown), set()
    for candidate in _smaller(case):
        plain = _plain(candidate)
        if plain is None or (len(shown := repr(plain)), shown) >= size or shown in tried:
            continue
        tried.add(shown)
        yield plain


def _plain(case: Case) -> Case | None:
    """Return *case* as it would be drawn; None if one of its flows would never be drawn."""
    orders = []
    for order in case.orders:
        try:
            flow = is_plain(copy.deepcopy(order.flow))
        except (LookupError, ValueError):  # an empty pipe
            flow = None
        if flow is None:
            return None
        orders.append(replace(order, flow=numbered(flow)))
    return replace(case, orders=tuple(orders))


def _smaller(value: Any) -> Iterator[Any]:
    """Yield smaller replacements of *value*."""
    if is_dataclass(value) and not isinstance(value, type):
        yield from _smaller_fields(value)
    elif isinstance(value, tuple | list):
        yield from _shorter(value)
        for place, each in enumerate(value):
            for less in _smaller(each):
                yield type(value)([*value[:place], less, *value[place + 1 :]])
    elif isinstance(value, dict):
        for key in value:
            yield {name: each for name, each in value.items() if name != key}
        for key, each in value.items():
            for less in _smaller(each):
                yield {**value, key: less}
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from dict.fromkeys(less for less in (1, value // 2, value - 1) if 0 < less < value)
    elif isinstance(value, float):
        yield from dict.fromkeys(
            less for less in (0.0, float(round(value)), round(value, 1)) if less != value
        )


def _smaller_fields(value: Any) -> Iterator[Any]:
    yield from _parts(value)
    shown = [each for each in fields(value) if each.name != "number"]
    for each in sorted(shown, key=lambda each: each.name == "seed"):
        now = getattr(value, each.name)
        default = usual(each)
        if default is not MISSING and now != default:
            yield replace(value, **{each.name: default})
    for each in shown:
        if each.name != "seed":
            for less in _smaller(getattr(value, each.name)):
                yield replace(value, **{each.name: less})


def _parts(value: Any) -> Iterator[Any]:
    """Yield replacements of a flow: its callable parts, or a plain call."""
    if isinstance(value, Node):
        return
    if isinstance(value, FLOWS):
        yield Call()
    for part in parts_of(value):
        if part is not value and type(part).__name__ != "Errback":
            yield part


def usual(field: Field[Any]) -> Any:
    """Return the default of *field*; MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _shorter(members: tuple[Any, ...] | list[Any]) -> Iterator[Any]:
    """Yield *members* without some of them: first without large portions, then without each one."""
    size = len(members)
    while size:
        for start in range(0, len(members), size):
            yield type(members)([*members[:start], *members[start + size :]])
        size //= 2


def written(value: Any, indent: int = 0, width: int = 104) -> str:
    """Return *value* as Python code, on several lines if it is long."""
    whole = repr(value)
    pad = " " * (indent + 4)
    if len(whole) + indent <= width:
        return whole
    if is_dataclass(value) and not isinstance(value, type):
        rows = [
            f"{each.name}={written(getattr(value, each.name), indent + 4, width)}"
            for each in fields(value)
            if (default := usual(each)) is MISSING or getattr(value, each.name) != default
        ]
        start, end = f"{type(value).__name__}(", ")"
    elif isinstance(value, tuple | list) and value:
        rows = [written(each, indent + 4, width) for each in value]
        start, end = "()" if isinstance(value, tuple) else "[]"
    else:
        return whole
    return "\n".join([start, *(f"{pad}{row}," for row in rows), f"{' ' * indent}{end}"])


def as_test(case: Case, name: str, doc: str = "") -> str:
    """Return a complete test module for *case*."""
    body = written(case, 4)
    head = f'"""{doc}"""\n\n' if doc else ""
    return f"""\
{head}from tests.simulation.case import *  # noqa: F403
from tests.simulation.checks import problems
from tests.simulation.run import run


def test_{name}() -> None:
    case = {body}
    assert problems(run(case)) == []
"""
