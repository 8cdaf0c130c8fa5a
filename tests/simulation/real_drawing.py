"""Cases for real servers at random: those of ``drawing``, with times that somebody can wait for.

Comes from:  a seed.
Goes to:     ``real``.
Thread:      any; pure.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.simulation import drawing
from tests.simulation.case import Case, Fault, Order
from tests.simulation.nodes import IN_TRANSACTIONS
from tests.simulation.real_servers import AWAY, STORES
from tests.simulation.real_worker import TIME_LIMIT, RealWorld
from tests.simulation.run import OF_OPERATORS
from tests.support.flows import is_line, parts_of

CHOICES: dict[str, tuple[Any, ...]] = {
    "workers": (1, 2),
    "pool": ("prefork", "prefork", "threads"),
    **{
        name: drawing.CHOICES[name]
        for name in (
            "concurrency", "acks_late", "prefetch", "keep_failed", "base", "flush",
            "async_concurrency", "track_started", "serializer", "middleware",
        )
    },
    "key": ("", "", "signed"),  # which is never set late: one fleet runs several cases
}  # fmt: skip
PACE = 0.25
"""Times are so much shorter than those of the simulated cases."""
LONGEST = 1.0
"""Seconds that a call may be due later."""


def kinds() -> tuple[str, ...]:
    return tuple(dict.fromkeys(broker for broker, _ in STORES.values()))


def world_of(kind: str, seed: int) -> RealWorld:
    """The world of *seed*, in which *kind* is the broker."""
    random = Random(f"real {kind} {seed}")
    made = {name: random.choice(values) for name, values in CHOICES.items()}
    stores = random.choice([stores for stores, (broker, _) in STORES.items() if broker == kind])
    written = random.choice(("auto", "shared")) if kind == "redis" else "auto"
    return RealWorld(stores=stores, canvas_format=written, **made)


def cases_of(world: RealWorld, seed: int, count: int) -> list[Case]:
    """The cases of *seed*, which one fleet runs one after another."""
    random = Random(f"cases {seed}")
    return [case(random, world) for _ in range(count)]


def case(random: Random, world: RealWorld) -> Case:
    faults = (
        () if random.random() < 0.35 else tuple(fault(random, world) for _ in range(random.choice((1, 1, 2))))
    )
    return Case(world, tuple(order(random, world) for _ in range(random.choice((2, 4, 8)))), faults)


def order(random: Random, world: RealWorld) -> Order:
    by_messages = world.stores.endswith("rpc")
    while True:
        made = drawing.order(random)
        if not by_messages or is_line(made.flow):
            break
    how, ask = "call" if made.how in IN_TRANSACTIONS else made.how, made.ask
    if written_as_celery(world) and how == "twice":
        how = "call"  # two runs of one chord at a time count their members in the same key
    for part in parts_of(made.flow):
        if written_as_celery(world) and getattr(part, "does", "") == "ignore":
            part.does = "none"  # a chord in that layout waits for all members, also when one has failed
        if getattr(part, "options", None):
            part.options = sooner(part.options)
        if getattr(part, "does", "") == "hard":
            if world.pool != "prefork" or part.coroutine:
                part.does = "soft"
            else:
                part.options = {**part.options, "time_limit": TIME_LIMIT}
        if getattr(part, "does", "") == "requeue" and how == "twice":
            how = "call"  # the two messages have one id
    return replace(
        made,
        at=round(made.at * PACE, 2),
        how=how,
        ask="get" if ask == "other" and by_messages else ask,
        options=sooner(made.options),
    )


def sooner(options: dict[str, Any]) -> dict[str, Any]:
    """*options* with a countdown that somebody can wait for; an int stays one."""
    countdown = options.get("countdown")
    return (
        options if countdown is None else {**options, "countdown": min(countdown, type(countdown)(LONGEST))}
    )


def written_as_celery(world: RealWorld) -> bool:
    """Whether chords are in Celery's layout."""
    of_celery = world.stores.startswith(("redis", "rabbitmq+redis"))
    return of_celery and world.canvas_format == "auto" and not world.key


def fault(random: Random, world: RealWorld) -> Fault:
    worker = f"worker{random.randrange(world.workers)}"
    at = round(random.random() * 1.5, 2)
    kinds = ["kill"] * 2 + ["kill tree"] + ["freeze"] * 2 + ["restart", *OF_OPERATORS]
    if world.pool == "prefork":
        kinds += ["child"] * 2
    if not world.stores.endswith("rpc"):  # what is sent while the server is away is lost, as is documented
        kinds += ["away"] * 4 + ["cut"] * 2 + ["slow"]
    kind = random.choice(kinds)
    if kind == "freeze":
        return Fault(kind, worker, at=at, seconds=random.choice((0.5, 4.0, 7.0)))
    if kind in ("away", "cut", "slow"):
        node = random.choice(("broker", "results"))
        if kind == "cut":
            return Fault(kind, node, nth=random.choice((1, 3)), at=at)
        seconds = random.choice((0.5, 2.0, 4.0))
        if kind == "slow":
            return Fault(kind, node, at=at, seconds=seconds)
        # After kill -9 NATS may keep for ever what was acknowledged just before.
        ways = AWAY[1:] if world.stores.startswith("nats") else AWAY
        return Fault(kind, node, random.choice(ways), at=at, seconds=seconds)
    return Fault(kind, worker if kind in ("kill", "kill tree", "restart", "child") else "", at=at)
