"""Faults that the simulator found: the smallest case of each."""

from __future__ import annotations

from tests.simulation.case import Call, Case, Chain, Chord, Group, Order, Pipe
from tests.simulation.checks import problems
from tests.simulation.run import run
from tests.support.flows import numbered


def case_of(*flows: object, **options: object) -> Case:
    """A case of one world in which each of *flows* is called once. options: of the Case."""
    return Case(orders=tuple(Order(numbered(each)) for each in flows), **options)  # type: ignore[arg-type]


def test_a_group_of_one_chain_follows_a_chord() -> None:
    """``chord | group([chain(a, b)])`` raised "too many values to unpack"."""
    header = Chord([Call()], Call())
    assert problems(run(case_of(Pipe([header, Group([Chain([Call(), Call()])])])))) == []
    assert problems(run(case_of(Pipe([header, Group([Chain([Call(), Group([Call(), Call()])])])])))) == []
