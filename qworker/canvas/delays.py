"""Delays: how long the countdown or eta of a step's calls may delay it.

Comes from:  the plan, for the members of a join.
Goes to:     the plan, which keeps a join that much longer.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from qworker.canvas.chains import chain
from qworker.canvas.chords import chord
from qworker.canvas.graphs import graph
from qworker.canvas.groups import group
from qworker.clock import to_epoch_in

HELD_BACK = frozenset(["countdown", "eta"])


def latest(step: Any, begins: float, zone: str) -> float:
    """Return the epoch second when the last call of a frozen *step* is due, if the step *begins* at that
    second and tasks take no time. zone: for an eta without one."""
    if isinstance(step, chain):
        for each in step.tasks:
            begins = latest(each, begins, zone)
        return begins
    if isinstance(step, chord):
        return latest(step.body, latest(step.header, begins, zone), zone)
    if isinstance(step, group):
        return max((latest(each, begins, zone) for each in step.tasks), default=begins)
    if isinstance(step, graph):
        ends = latest_of_nodes(step, begins, zone)
        last = max(ends.values(), default=begins)
        return last if step.gathered is None else latest(step.gathered, last, zone)
    options = step["options"]
    return begins if HELD_BACK.isdisjoint(options) else _due(options, begins, zone)


def latest_of_nodes(step: graph, begins: float, zone: str) -> dict[str, float]:
    """latest() for each node of a graph, by name."""
    ends: dict[str, float] = {}
    for name in step.levels():
        wanted = step.after.get(name) or {}
        ready = max((ends[each] for each in wanted.values()), default=begins)
        ends[name] = latest(step.nodes[name], ready, zone)
    return ends


def _due(options: Mapping[str, Any], begins: float, zone: str) -> float:
    """Return when a call with these *options* is due. Invalid values are ignored: sending the call refuses
    them."""
    eta, countdown = options.get("eta"), options.get("countdown")
    with suppress(TypeError, ValueError, OverflowError):
        if eta is not None:
            return max(begins, to_epoch_in(eta, zone))
        if countdown is not None:
            length = countdown.total_seconds() if isinstance(countdown, timedelta) else float(countdown)
            return begins + max(0.0, length)
    return begins
