"""real_drawing: random cases for real servers: those of ``drawing`` with shorter times.

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
from tests.support.flows import Call, is_line, parts_of

CHOICES: dict[str, tuple[Any, ...]] = {
    "workers": (1, 2),
    "pool": ("prefork", "prefork", "threads"),
    **{
        name: drawing.CHOICES[name]
        for name in (
            "concurrency", "acks_late", "prefetch", "keep_failed", "base", "flush",
            "async_concurrency", "track_started", "serializer", "middleware", "extended",
        )
    },
    "key": ("", "", "signed"),  # never set late: a fleet runs several cases
}  # fmt: skip
PACE = 0.25
"""Factor for the times of simulated cases."""
OTHERS = {"saved": "other", "native": "get", "forget": "get"}
"""Ways to wait that need a simulated process, and others instead."""
LONGEST = 1.0
"""Maximum countdown of a call, in seconds."""


def kinds() -> tuple[str, ...]:
    return tuple(dict.fromkeys(broker for broker, _ in STORES.values()))


def world_of(kind: str, seed: int) -> RealWorld:
    """Return the world of *seed* with the broker *kind*."""
    random = Random(f"real {kind} {seed}")
    made = {name: random.choice(values) for name, values in CHOICES.items()}
    stores = random.choice([stores for stores, (broker, _) in STORES.items() if broker == kind])
    written = random.choice(("auto", "shared")) if kind == "redis" else "auto"
    return RealWorld(stores=stores, canvas_format=written, **made)


def cases_of(world: RealWorld, seed: int, count: int) -> list[Case]:
    """Return the cases of *seed*, which a fleet runs one after another."""
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
        how = "call"  # two concurrent runs of a chord would count their members in the same key
    for part in parts_of(made.flow):
        if written_as_celery(world) and getattr(part, "does", "") == "ignore":
            part.does = "none"  # in that layout, a chord waits for all members, even if one has failed
        if getattr(part, "options", None):
            part.options = sooner(part.options)
        if isinstance(part, Call):
            part.delay = min(part.delay, LONGEST)
        if getattr(part, "does", "") in ("dies", "lost"):
            part.does = "soft"  # a process is not killed at a run
        if getattr(part, "does", "") == "hard":
            # Coroutines that run in its process are ended with it, and those acknowledged before are lost.
            if world.pool != "prefork" or part.coroutine or not world.acks_late:
                part.does = "soft"
            else:
                part.options = {**part.options, "time_limit": TIME_LIMIT}
        if getattr(part, "does", "") == "requeue" and how == "twice":
            how = "call"  # the two messages have the same id
    return replace(
        made,
        at=round(made.at * PACE, 2),
        how=how,
        ask="get" if ask in ("other", "saved") and by_messages else OTHERS.get(ask, ask),
        options={name: value for name, value in sooner(made.options).items() if name != "expires"},
    )


def sooner(options: dict[str, Any]) -> dict[str, Any]:
    """Return *options* with a countdown of at most LONGEST; an int stays an int."""
    countdown = options.get("countdown")
    return (
        options if countdown is None else {**options, "countdown": min(countdown, type(countdown)(LONGEST))}
    )


def written_as_celery(world: RealWorld) -> bool:
    """Return whether chords are stored in Celery's layout."""
    of_celery = world.stores.startswith(("redis", "rabbitmq+redis"))
    return of_celery and world.canvas_format == "auto" and not world.key


def fault(random: Random, world: RealWorld) -> Fault:
    worker = f"worker{random.randrange(world.workers)}"
    at = round(random.random() * 1.5, 2)
    kinds = ["kill"] * 2 + ["kill tree"] + ["freeze"] * 2 + ["restart", *OF_OPERATORS]
    if world.pool == "prefork":
        kinds += ["child"] * 2
    if not world.stores.endswith("rpc"):  # messages sent while the server is away are lost, as documented
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
        # After kill -9, NATS may keep recently acknowledged messages for ever.
        ways = AWAY[1:] if world.stores.startswith("nats") else AWAY
        return Fault(kind, node, random.choice(ways), at=at, seconds=seconds)
    return Fault(kind, worker if kind in ("kill", "kill tree", "restart", "child") else "", at=at)
