"""timetables: random cases with schedules.

Comes from:  a seed.
Goes to:     ``run``.
Thread:      any; pure.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.simulation.case import Case, Edit, Entry, Fault, Order, Timetable, replace
from tests.simulation.drawing import CALL_FAULTS, callable_in, death, early_key, fault, order, world
from tests.simulation.schedules import SCHEDULES, WRONG
from tests.simulation.world import START

STORES = ("memory", "sqlite", "sqlite+other", "sqlite+memory", "sqlite+files", "memory+sqlite")
"""Stores with results and chords."""
MOVES = (
    ("UTC", 1_700_006_400.0),
    ("Europe/Berlin", 1_711_846_800.0),
    ("Europe/Berlin", 1_698_541_200.0),
    ("America/New_York", 1_710_054_000.0),
    ("America/New_York", 1_699_164_000.0),
    ("Australia/Lord_Howe", 1_696_087_800.0),
    ("Australia/Lord_Howe", 1_712_415_600.0),
)
"""Time zones, with times at which their clocks change; for UTC a midnight."""
CRONTABS = (
    "* * * * *", "*/2 * * * *", "0 * * * *", "*/15 * * * *", "1 2 * * *", "0 2 * * *", "30 1,2 * * *",
    "0 3 * * *", "0 0 * * *", "1 0 * * 3", "59 0-3 * * *", "30 2 * * 0", "1-58/3 1 * * *", "*/30 2 * * *",
    "5 * 15 * *",
)  # fmt: skip
TASKS = ("tick",) * 8 + ("slow", "slow", "quiet", "bad", "chorded", "grouped", "nobody")


def when(random: Random, zone: str) -> tuple[Any, ...]:
    kind = random.random()
    if kind < 0.5:
        return ("every", random.choice((1.0, 2.5, 4.0, 7.0, 15.0)))
    if kind < 0.75:
        return ("cron", random.choice(CRONTABS), random.choice(("", "", zone, "UTC")))
    if kind < 0.85:
        return ("at", random.choice((0.0, 3.0, 12.5, 30.0)))
    return ("rule", random.choice(((0,), (0, 20, 40), (7, 8))))


def entry_fields(random: Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, chance, values in (
        ("enabled", 0.08, (False,)),
        ("start", 0.1, (2.0, 9.5)),
        ("end", 0.1, (11.0, 25.0)),
        ("max_runs", 0.15, (1, 2, 5)),
        ("expires", 0.15, (2.0, 30.0)),
        ("jitter", 0.15, (0.4, 3.0)),
        ("catch_up", 0.4, ("latest", "skip", 1, 3)),
        ("overlap", 0.3, ("skip", "skip", "replace")),
        ("args", 0.2, ([1], ["a", None])),
    ):
        if random.random() < chance:
            found[name] = random.choice(values)
    return found


def entry(random: Random, name: str, zone: str, source: str) -> Entry:
    if source == "settings" and random.random() < 0.15:
        return Entry(name, wrong=random.choice(tuple(WRONG)))
    return Entry(name, when(random, zone), random.choice(TASKS), source, entry_fields(random))


EDITS = (
    *("add",) * 3, *("set",) * 2, "pause", "resume", *("remove",) * 2, "reset", "run", "stranger", "sign",
    "damage",
)  # fmt: skip


def edits(random: Random, names: list[str], zone: str, seconds: float) -> list[Edit]:
    found: list[Edit] = []
    at = random.uniform(0.5, 5.0)
    while at < seconds - 2 and len(found) < 12:
        name = random.choice(names)
        what = random.choice(EDITS)
        added, changed = None, {}
        if what == "add" or (what == "stranger" and random.random() < 0.7):
            added = Entry(name, when(random, zone), random.choice(TASKS), "hand", entry_fields(random))
        if what == "set":
            changed = entry_fields(random)
            changed.pop("enabled", None)
            if random.random() < 0.5:
                changed["schedule"] = when(random, zone)
        found.append(Edit(what, name, round(at, 2), added, changed))
        at += random.choice((0.0, 0.1, 0.5, 2.0, 8.0))
    return found


def timetable(random: Random) -> Timetable:
    zone, move = random.choice(MOVES)
    seconds = random.choice((20.0, 20.0, 40.0, 90.0))
    start = round(move - START - random.choice((2.0, 20.0, 61.0, 3000.0)), 3)
    names = [f"e{number}" for number in range(random.choice((1, 2, 4, 6)))]
    entries = [
        entry(random, name, zone, random.choice(("settings", "settings", "code", "hand"))) for name in names
    ]
    return Timetable(
        random.choice((1, 2, 3)),
        random.choice(("", "other")),
        random.choice((zone, "UTC")),
        start,
        seconds,
        tuple(each for each in entries if each.source != "hand"),
        tuple(edits(random, names, zone, seconds) if random.random() < 0.7 else ()),
    )


METHODS = (*("beat.fire",) * 8, *("push",) * 4, *(f"beat.{each}" for each in SCHEDULES))
"""Methods that faults affect, mainly those that make calls."""


def beat_fault(random: Random, table: Timetable, stores: str) -> Fault:
    node = f"beat{random.randrange(table.beats)}"
    at = round(random.random() * table.seconds, 2)
    if random.random() < 0.15 and not (stores.startswith("memory") and not table.store):
        return death(random, stores, node)
    kind = random.random()
    if kind < 0.5:
        what = random.choice(("before", "after", "kill before", "kill after"))
        method = random.choice(METHODS)
        return Fault(what, node, method, random.choice((1, 1, 2, 3, 5, 8, 13)))
    if kind < 0.6:
        return Fault(
            random.choice(("before", "after")),
            f"caller{random.randrange(2)}",
            "beat.edit",
            random.choice((1, 2, 3)),
        )
    if kind < 0.7:
        return Fault("kill", node, at=at)
    if kind < 0.8:
        seconds = random.choice((1.0, 3.0, 6.0))
        if random.random() < 0.5:
            method = random.choice(METHODS)
            return Fault("stall", node, method, random.choice((1, 2, 3, 5, 8, 13)), seconds=seconds)
        return Fault("freeze", node, at=at, seconds=seconds)
    if kind < 0.9:
        return Fault(
            "away",
            random.choice(("broker", "results", "schedules")),
            at=at,
            seconds=random.choice((0.5, 3.0, 10.0)),
        )
    if kind < 0.95:
        return Fault("jump", node, at=at, seconds=random.choice((-5.0, 5.0, 70.0)))
    return Fault("restart", node, at=at)


def worker_fault(random: Random, workers: int) -> Fault:
    while True:
        found = fault(random, workers)
        if found.kind in (*CALL_FAULTS, "kill", "freeze", "restart") and not found.node.startswith("caller"):
            return found


def besides(random: Random) -> Order:
    """Return an order whose caller does not wait: that would delay a "slow" task during which it steps."""
    made = order(random)
    return made if made.how in ("eager", "rollback") else replace(made, ask=random.choice(("later", "then")))


def scheduled(random: Random, **dimensions: Any) -> Case:
    """Return a case with schedules, and sometimes orders, in a world with these *dimensions*."""
    table = timetable(random)
    made = replace(world(random), stores=random.choice(STORES), workers=random.choice((1, 1, 2)), skew=0.0)
    made = early_key(replace(made, **dimensions))
    faults: list[Fault] = []
    if random.random() < 0.6:
        faults = [
            beat_fault(random, table, made.stores)
            if random.random() < 0.85
            else worker_fault(random, made.workers)
            for _ in range(random.choice((1, 1, 2, 4)))
        ]
    if made.stores == "memory" and table.store == "":
        table = replace(table, beats=1)
    count = 0 if table.calls_nobody else random.choice((0, 0, 1, 2, 4))  # callers cannot wait for delays
    orders = tuple(callable_in(made, besides(random)) for _ in range(count))
    if made.forgets and "slow" in {
        each.task for each in (*table.entries, *(edit.entry for edit in table.edits)) if each
    }:
        made = replace(made, result_expires=3600.0)  # orders may wait behind slow tasks for minutes
    return Case(made, orders, tuple(faults), random.getrandbits(32), schedules=table)


def scheduled_of(seed: int, **dimensions: Any) -> Case:
    """Return the case with schedules of *seed*, in a world with these *dimensions*."""
    return scheduled(Random(seed), **dimensions)
