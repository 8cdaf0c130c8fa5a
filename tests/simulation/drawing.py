"""drawing: random cases.

Comes from:  a seed or hypothesis, through a ``random.Random``.
Goes to:     ``run``.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import combinations, product
from random import Random
from typing import Any, NamedTuple

from qworker.canvas.plan import SEGMENT
from tests.simulation.case import Case, Django, Fault, Job, Order, World, replace
from tests.simulation.crashing import points
from tests.simulation.django_checks import ALWAYS
from tests.simulation.nodes import ASK, EXPIRING, HOW, IN_TRANSACTIONS
from tests.simulation.program import EXPIRES
from tests.simulation.repeats import OF_ROW
from tests.simulation.run import HAPPENINGS, OF_OPERATORS, STALLED, UNHEARD
from tests.simulation.stores import STORES
from tests.support.flows import (
    ENDS,
    VALUES,
    Beside,
    Call,
    Chain,
    Chord,
    Chunks,
    Errback,
    Graph,
    Group,
    Mapping,
    Node,
    Pipe,
    built,
    expected,
    is_chain_of_a_group,
    is_group_of_a_group,
    is_one_message,
    is_plain,
    needs_joins,
    numbered,
    parts_of,
    waits_for_several,
)  # fmt: skip

CHOICES: dict[str, tuple[Any, ...]] = {
    "stores": tuple(each for each in STORES if each != "django"),
    "workers": (1, 2, 3),
    "concurrency": (1, 2, 4),
    "acks_late": (True, True, False),
    "prefetch": (1, 4),
    "keep_failed": (True, False),
    "key": ("", "", "signed", "late"),
    "base": ("plain", "overriding", "merging", "hooked"),
    "middleware": (False, False, True),
    "flush": (0.01, 0.0),
    "skew": (0.0, 0.0, 2.0),
    "async_concurrency": (1, 10),
    "track_started": (False, True),
    "result_expires": (86400.0, 3600.0, 86400.0, 3600.0, 60.0),
    "serializer": ("json", "json", "pickle"),
    "segment": (SEGMENT, SEGMENT, 1, 2),
    "pauses": (0.0, 0.05),
    "long": (0.0, 0.0, 0.1),
    "rate": (0.0, 0.0, 0.0, 0.0, 20.0),
    "route_expires": (0.0, 0.0, EXPIRES),
    "route_priority": (0, 0, 5),
    "extended": (False, True),
}


BLOCK = 100
"""This many seeds, from a multiple of it, cover all pairs of values of two dimensions of worlds, and of such
a value with one of OPTIONS."""


class Plan(NamedTuple):
    """What the case of a seed has. options: of some of its calls."""

    world: World
    options: list[dict[str, Any]]


def world(random: Random) -> World:
    return World(**{name: random.choice(values) for name, values in CHOICES.items()})


def maybe_slow(random: Random, made: World) -> World:
    """Return *made*, or sometimes one in which a task may outlast its lease. It may come back if other
    workers are busy; results must outlast it."""
    slow = made.acks_late and not made.forgets and random.random() < 0.25
    return replace(made, concurrency=1, long=1.0) if slow else made


def plan_of(seed: int) -> Plan:
    """Return the plan of *seed*."""
    block, place = divmod(seed, BLOCK)
    return plans(block)[place]


@lru_cache(4)
def plans(block: int) -> tuple[Plan, ...]:
    """Return BLOCK plans, of which those that are not of Django projects have all pairs."""
    random = Random(f"worlds {block}")
    seeds = range(block * BLOCK, (block + 1) * BLOCK)
    wanted = set(pairs(CHOICES))
    rows: list[dict[str, Any]] = []
    while wanted:
        row = _row(random, wanted)
        wanted -= set(combinations(row.items(), 2))
        rows.append(row)
    spare = BLOCK - sum(map(is_django, seeds)) - len(rows)
    assert spare >= 0, f"{BLOCK} worlds do not cover all pairs of dimensions"
    made = [World(**row) for row in rows] + [maybe_slow(random, world(random)) for _ in range(spare)]
    random.shuffle(made)
    planned = [Plan(each, []) for each in made]
    for option in OPTIONS:
        left = {(name, value) for name, values in CHOICES.items() for value in values}
        for plan in random.sample(planned, len(planned)):
            if new := left & vars(plan.world).items():
                plan.options.append(option)
                left -= new
    rest = iter(planned)
    return tuple(Plan(world(random), []) if is_django(seed) else next(rest) for seed in seeds)


def pairs(choices: dict[str, tuple[Any, ...]]) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Yield all pairs of values of two of *choices*, with their names."""
    for (one, first), (other, second) in combinations(choices.items(), 2):
        for values in product(dict.fromkeys(first), dict.fromkeys(second)):
            yield (one, values[0]), (other, values[1])


def _row(random: Random, wanted: set[tuple[tuple[str, Any], tuple[str, Any]]]) -> dict[str, Any]:
    """Return a value of each dimension, chosen in turn to cover most of *wanted*."""
    row = dict(min(wanted, key=repr))
    names = [name for name in CHOICES if name not in row]
    random.shuffle(names)
    places = {name: place for place, name in enumerate(CHOICES)}
    for name in names:

        def met(value: Any, name: str = name) -> tuple[int, float]:
            new = [
                tuple(sorted(((name, value), each), key=lambda each: places[each[0]])) for each in row.items()
            ]
            return sum(pair in wanted for pair in new), random.random()

        row[name] = max(CHOICES[name], key=met)
    return {name: row[name] for name in CHOICES}


def errbacks(random: Random, chance: float = 0.4) -> list[Errback]:
    if random.random() >= chance:
        return []
    return [Errback(now=random.random() < 0.5, by_set=random.random() < 0.3)]


def call(random: Random, depth: int = 0) -> Any:
    """Return a call. depth: how many calls it is nested in, as what they call or are replaced by."""
    kind = random.random()
    if kind < 0.12:
        return Mapping(random.randint(0, 3), random.random() < 0.5, random.random() < 0.1)
    if kind < 0.2:
        return Chunks(random.randint(1, 4), random.randint(1, 3))
    later = (0.5, 3, 20.0, 90, 200.0) if depth == 0 else (0.5, 3)  # who opens a join knows what is due then
    made = Call(
        options={"countdown": random.choice(later)} if random.random() < 0.05 else {},
        wrong=depth == 0 and random.random() < 0.01,
        fails=random.random() < 0.07,
        retries=random.choice((0,) * 12 + (1, 2)),
        immutable=random.random() < 0.2,
        ignored=depth == 0 and random.random() < 0.03,
        coroutine=random.random() < 0.1,
        links=[Call(fails=random.random() < 0.1)] if random.random() < 0.3 else [],
        errbacks=errbacks(random, 0.3),
    )
    if made.retries:
        made.delay = random.choice((0.0, 0.0, 0.5, 3.0))
        made.anew = random.choice(("", "", "args", "kwargs"))
    if random.random() < 0.1:
        made.options = dict(random.choice(OPTIONS))
    if depth < 2:
        special(random, made, depth)
    return made


OPTIONS: tuple[dict[str, Any], ...] = (
    {"headers": {"own": 2}}, {"priority": 7}, {"countdown": 0.3}, {"expires": EXPIRES},
    {"queue": "far"}, {"compression": "gzip"}, {"shadow": "other"}, {"argsrepr": "some"},
    {"kwargsrepr": "some"}, {"soft_time_limit": 30.0, "time_limit": 60.0}, {"retry": False},
)  # fmt: skip


def special(random: Random, made: Call, depth: int) -> None:
    """Make some calls do something unusual."""
    kind = random.random()
    if kind < 0.12:
        made.does, made.retries = random.choice(DOES), 0
    elif kind < 0.2 and not made.ignored:
        made.instead = flow(random, random.choice((1, 2, 3)), depth + 1)
    if random.random() < (0.7 if made.does == "untrailed" else 0.06):
        made.calls = flow(random, random.choice((1, 2, 3)), depth + 1)
        made.hands_on = random.random() < 0.5
    if random.random() < 0.06:
        made.links.append(flow(random, 2, depth + 1))


NOT_EAGER = {*ENDS, "requeue", "result", "progress"}
"""Behaviors that fail or concern messages: eager calls raise errors, and have no messages."""
DOES = (
    *VALUES, "ignore", "reject", "requeue", "expected", "several", "again", "soft", "hard", "dies",
    "expired", "outdated", "lost", "stays", "progress", "progress", "unacked", "untrailed", "untrailed",
)  # fmt: skip


def flow(random: Random, leaves: int, depth: int = 0) -> Any:
    """Return a flow of about *leaves* calls."""
    if leaves <= 1 or random.random() < 0.2:
        return call(random, depth)
    count = random.randint(1, min(4, leaves))
    inner = [flow(random, leaves // count, depth) for _ in range(count)]
    kind = random.random()
    if kind < 0.25:
        return Chain(inner, errbacks(random))
    if kind < 0.45:
        return Pipe([Group([each]) if random.random() < 0.15 else each for each in inner])
    if kind < 0.7:
        return Group(inner, errbacks(random))
    return Chord(inner, flow(random, 2, depth), errbacks(random))


def plain_errbacks(flow: Any) -> None:
    """Do not use set() for errbacks of chords within *flow*: as in Celery, such an errback is also called for
    what follows the chord, which becomes part of the body; with ``link_error()``, only for the body."""
    for part in parts_of(flow):
        is_chord = isinstance(part, Chord) or (
            isinstance(part, Chain) and isinstance(next(iter(built(part).stages), None), Beside)
        )
        if is_chord and part is not flow:
            part.errbacks = [replace(each, by_set=False) for each in part.errbacks]


def graph(random: Random) -> Graph:
    """Return a graph of a few calls."""
    nodes = []
    for place in range(random.randint(2, 6)):
        call = Call(
            fails=random.random() < 0.1,
            retries=random.choice((0, 0, 0, 1)),
            immutable=random.random() < 0.15,
            ignored=random.random() < 0.03,
            coroutine=random.random() < 0.1,
            links=[Call()] if random.random() < 0.2 else [],
            errbacks=errbacks(random, 0.3),
        )
        if random.random() < 0.08:
            call.does, call.retries = random.choice(DOES), 0
        after = sorted(random.sample(range(1, place + 1), random.randint(0, min(place, 3))))
        nodes.append(Node(call, after, random.random() < 0.15))
    return Graph(nodes)


def adding(random: Random, flow: Any) -> None:
    """Let a call in *flow* add another to its chord. Nothing else fails: a failed chord takes no more."""
    parts = [part for part in parts_of(flow) if isinstance(part, Call)]
    if any(part.fails or part.ignored or part.does in ENDS for part in parts):
        return
    for part in random.sample(parts, min(4, len(parts))):
        part.adds = Call(fails=random.random() < 0.1, coroutine=random.random() < 0.2)
        part.lazy = random.random() < 0.3
        if expected(numbered(flow), ()).runs[part.adds.number] or random.random() < 0.05:
            return
        part.adds, part.lazy = None, False
    numbered(flow)


def order(random: Random) -> Order:
    while True:
        made = graph(random) if random.random() < 0.1 else flow(random, random.choice((1, 2, 4, 8, 12)))
        plain_errbacks(made)
        if random.random() < 0.3:
            adding(random, made)
        if (plain := is_plain(made)) is not None:
            want = expected(numbered(plain), ())
            break
    options: dict[str, Any] = {}
    if random.random() < 0.15:
        options["headers"] = {"h": 1}
    if random.random() < 0.1:
        options["countdown"] = random.choice((0.5, 3, 20.0))
    if random.random() < 0.1 and not want.refused:  # it may be refused for its priority
        options["priority"] = random.randint(0, 9)
    how = random.choice(HOW)
    ask = random.choice(ASK)
    if how in EXPIRING and is_single(plain) and random.random() < 0.3:
        options["expires"] = random.choice((0.2, 1.0, 4.0))
    does = {getattr(part, "does", "") for part in parts_of(plain)}
    if "outdated" in does:  # it takes the countdown of the order instead of its own
        options.pop("countdown", None)
    if how == "eager":
        other = any(
            any(getattr(part, name, None) for name in ("ignored", "fails", "adds"))
            for part in parts_of(plain)
        )
        how, ask = ("call", ask) if other or want.refused or does & NOT_EAGER else (how, "get")
    if want.pending:
        ask = "later"
    revoke_at = random.choice((0.0, 0.5)) if random.random() < 0.05 else None
    ignored = any(getattr(part, "ignored", False) for part in parts_of(plain))
    if ask == "forget" and (how == "twice" or ignored):  # what has not ended would miss what is forgotten
        ask = "get"
    given = () if how in ("many", "apply many") or random.random() < 0.5 else ("x",)
    if how == "rollback":
        ask, revoke_at = "later", None
    return Order(
        plain,
        round(random.random() * 5.0, 2),
        how,
        ask,
        given,
        {} if how in ("many", "eager") else options,
        random.random() < 0.1,
        revoke_at,
        revoke_at is not None and random.random() < 0.5,
    )


def is_single(flow: Any) -> bool:
    """Return whether *flow* is a call that is made once, so that it may expire."""
    return isinstance(flow, Call) and flow == Call(
        fails=flow.fails, immutable=flow.immutable, ignored=flow.ignored, coroutine=flow.coroutine,
        options=flow.options, links=flow.links, errbacks=flow.errbacks, number=flow.number,
    )  # fmt: skip


CALL_FAULTS = ("before", "after", "twice", "kill before", "kill after", "child before", "child after")
METHODS = (
    "push", "lease", "settle", "confirm", "extend", "register", "reclaim", "store_rows", "get", "read_many",
    "join.open", "join.add", "join.claim", "join.finish", "join.hold", "look", "revoked_since", "sweep",
    "deregister", "settled_before",
)  # fmt: skip
"""Methods that faults affect."""
CLAIMED = ("join.claim", "join.finish")
"""Methods that keep a join from other workers."""
CALLER_METHODS = (
    "push", "push", "join.open", "join.open", "revoke", "forget", "get", "save_group", "get_group",
    "join.drop",
)  # fmt: skip
"""Those that callers call."""
LETTERS = {
    "retry dead": ("dead.retry",),
    "retry failed": ("failed.page", "failed.retry", "failed.send_again"),
}
"""Those that operators call."""
CHILD_METHODS = ("push", "push", "store_rows", "join.hold", "join.open", "join.set_size", "get", "save_group")
"""Those that children call."""


AT_ONCE = frozenset({"kill", "restart", "lost", "move", "poison", *OF_OPERATORS})
"""Timed faults without a duration."""


OUTAGES = (0.5, 3.0, 10.0) * 5 + (60.0, 60.0, 600.0)
"""Seconds for which stores are away. Ten minutes take a second to simulate."""


def child_fault(random: Random, node: str, kinds: Sequence[str], methods: Sequence[str]) -> Fault:
    """Return a fault in a child of *node*, or often of whichever worker."""
    node = random.choice((node, "worker", "worker"))
    return Fault(random.choice(kinds), node, random.choice(methods), random.choice((1, 1, 1, 2, 3)))


def unheard(random: Random, node: str) -> Fault:
    """Return a fault after which *node* does not know whether an early acknowledged task may start."""
    what, method = random.choice(sorted(UNHEARD))
    return Fault(what, node, method, random.choice((1, 2, 3)))


def fault(random: Random, workers: int) -> Fault:
    node = f"worker{random.randrange(workers)}"
    at = round(random.random() * 6.0, 2)
    kind = random.random()
    if kind < 0.06:
        return unheard(random, node)
    if kind < 0.1:  # the time limit expires, perhaps after the end of the task
        return child_fault(random, node, ("limit before", "limit after"), CHILD_METHODS)
    if kind < 0.5:
        what, method = random.choice(CALL_FAULTS), random.choice(METHODS)
        if what.startswith("child"):
            return child_fault(random, node, (what,), CHILD_METHODS)
        if method == "lease" and what == "after":  # a consumer without an answer finds what it has taken
            what = "before"
        if what in ("before", "after", "twice") and random.random() < 0.15:
            node, method = random.choice(("caller0", "caller1")), random.choice(CALLER_METHODS)
        return Fault(what, node, method, random.choice((1, 1, 2, 3, 5, 8, 13)))
    if kind < 0.53:
        method = random.choice(METHODS)
        # Another worker may finish the join meanwhile.
        seconds = random.choice((3.0, 12.0, 35.0) if method in CLAIMED else (0.1, 1.0, 3.0, 6.0))
        return Fault("stall", node, method, random.choice((1, 1, 2, 3, 5, 8, 13)), seconds=seconds)
    if kind < 0.55:
        seconds = random.choice((0.5, 3.0, 10.0))
        method = random.choice(("settle", "settle", "extend"))
        return Fault("locked", node, method, random.choice((1, 2, 3, 5)), seconds=seconds)
    if kind < 0.59:
        return Fault(
            random.choice(("refused", "refused twice")), node, OF_ROW, random.choice((1, 1, 2, 3, 5, 8))
        )
    if kind < 0.62:
        return Fault(
            "late",
            random.choice((node, "caller0")),
            "push",
            random.choice((1, 2, 5)),
            seconds=random.choice((0.1, 3.0, 30.0)),
        )
    happening = random.choice(tuple(HAPPENINGS))
    if happening in ("away", "full"):
        return Fault(happening, random.choice(("broker", "results")), at=at, seconds=random.choice(OUTAGES))
    if happening == "cut":
        node = random.choice((node, node, "caller0", "caller1"))
        return Fault(
            happening,
            node,
            random.choice(("broker", "results")),
            at=at,
            seconds=random.choice(OUTAGES),
        )
    if happening == "drift":
        return Fault(happening, node, at=at, seconds=random.choice((-3.0, -0.1, 0.1, 3.0, 30.0)))
    if happening == "kill" and random.random() < 0.3:
        node = random.choice(("caller0", "caller1"))
    if happening == "jump":
        return Fault("jump", node, at=at, seconds=random.choice((-5.0, 5.0, 60.0)))
    if happening == "freeze":
        return Fault("freeze", node, at=at, seconds=random.choice((1.0, 3.0, 6.0, 15.0)))
    if happening == "crash":
        return Fault("crash", at=at, seconds=random.choice((0.2, 1.0, 4.0)))
    if happening not in AT_ONCE:
        raise ValueError(f"fault() does not know the node and the seconds of {happening!r}: add them")
    return Fault(happening, node if happening in ("kill", "restart") else "", at=at)


DEATHS = 0.2
"""The share of faults that are deaths at crash points."""


def death(random: Random, stores: str, node: str) -> Fault:
    """Return the death of *node* at a crash point that it may reach. A point that is added to or removed from
    qworker changes no deaths at others."""
    known, drawn = points(stores, node.rstrip("0123456789")), random.random()
    point = max(known, key=lambda name: Random(f"{drawn} {name}").random())
    return Fault("die", node, point, random.choice((1, 1, 1, 2, 3, 5)))


def dying(random: Random, made: World, fault: Fault) -> Fault:
    """Return *fault*, or instead the death of a worker or caller."""
    if random.random() >= DEATHS:
        return fault
    nodes = ["worker", *(f"worker{number}" for number in range(made.workers))]
    if made.stores != "django" and random.random() < 0.2:
        nodes = ["caller0", "caller1"]
    return death(random, made.stores, random.choice(nodes))


RETRIED = ("store_rows", "store_rows", "settle", "join.add", "join.finish", "extend")
"""Calls that a worker repeats until they succeed."""
FOLLOWED = 0.25
"""The share of faults after which the process ends soon."""


def followed(random: Random, made: World, faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Return *faults*, and the ends soon after some of them."""
    ends = [end for fault in faults if random.random() < FOLLOWED for end in soon_after(random, made, fault)]
    return (*faults, *ends)


def soon_after(random: Random, made: World, fault: Fault) -> tuple[Fault, ...]:
    """Return the end of a process that *fault* concerns, perhaps before it has made up for it: at its next
    such call, or within a second. Return () if it is dead by then."""
    node = fault.node if fault.node.startswith("worker") else f"worker{random.randrange(made.workers)}"
    if fault.kind in ("away", "cut", "drift", "freeze", "full", "jump"):
        kind, at = random.choice(("kill", "kill", "freeze")), round(fault.at + random.random(), 2)
        return (
            Fault(kind, node, at=at, seconds=random.choice((1.0, 3.0, 6.0)) if kind == "freeze" else 0.0),
        )
    if fault.kind in LETTERS:
        return (Fault(random.choice(("before", "after")), "observer", random.choice(LETTERS[fault.kind])),)
    if fault.kind not in (*CALL_FAULTS, "stall") or fault.kind.startswith("kill") or node != fault.node:
        return ()
    who, when = "child" if fault.kind.startswith("child") else "kill", random.choice(("before", "after"))
    return (Fault(f"{who} {when}", node, fault.method, fault.nth + random.choice((1, 1, 2))),)


def still_unheard(random: Random, faults: Sequence[Fault]) -> Iterator[Fault]:
    """Yield faults at the next calls of listeners that do not know whether the broker has settled messages,
    as *faults* have it."""
    for fault in faults:
        if (fault.kind, fault.method) in UNHEARD and random.random() < 0.5:
            for nth in range(1, random.choice((2, 2, 3, 4))):
                kind = random.choice(("before", "before", "after", "locked", "stall"))
                seconds = random.choice((0.5, 3.0, 6.0)) if kind in ("locked", "stall") else 0.0
                method = random.choice(("settle", "settle", "extend"))
                yield Fault(
                    kind, fault.node, method, nth + (fault.nth if method == "settle" else 0), seconds=seconds
                )


def retried(random: Random, made: World, orders: Sequence[Order]) -> Fault:
    """Return a fault because of which a worker has to try something again during one of *orders*."""
    if random.random() < 0.3:
        node, nth = f"worker{random.randrange(made.workers)}", random.choice((1, 2, 3))
        return Fault("before", node, random.choice(RETRIED), nth)
    store, at = random.choice(("broker", "results", "results")), random.choice(orders).at
    at = round(at + random.choice((0.0, 0.001, 0.002, 0.003, 0.01)), 3)
    return Fault(random.choice(("away", "full")), store, at=at, seconds=random.choice((1.0, 3.0)))


def of_stranger(random: Random) -> Fault:
    """Return a fault by someone without the key; failed tasks are then resent by an operator."""
    kind = random.choice(("forge", "stranger", "retry failed"))
    if kind == "forge":
        return Fault(kind, random.choice(("caller0", "caller1", "worker0")), "join.open")
    return Fault(kind, at=round(random.random() * 6.0, 2))


DJANGO = 0.08
"""The probability that a case is one of a Django project."""
DJANGO_FAULTS = tuple(kind for kind in CALL_FAULTS if kind != "twice")
DJANGO_METHODS = (
    "push", "lease", "settle", "extend", "register", "reclaim", "store_rows", "orm.read", "orm.read",
    "orm.write", "orm.write", "orm.write", "orm.commit", "orm.commit", "cache.add", "cache.set",
    "schedules.fire", "schedules.renew", "schedules.pending",
)  # fmt: skip
DJANGO_CHILD_METHODS = ("orm.read", "orm.write", "orm.commit", "cache.get", "cache.set", "push")
DJANGO_HAPPENINGS = ("kill", "freeze", "away", "full", "jump", "restart", "crash")


def django_fault(random: Random, workers: int) -> Fault:
    if random.random() < 0.6:
        what, method = random.choice(DJANGO_FAULTS), random.choice(DJANGO_METHODS)
        if method == "lease" and what == "after":
            what = "before"
        node = f"worker{random.randrange(workers)}"
        if what.startswith("child"):
            return child_fault(random, node, (what,), DJANGO_CHILD_METHODS)
        if what in ("before", "after") and random.random() < 0.2:
            node = random.choice(("caller0", "caller1"))
        return Fault(what, node, method, random.choice((1, 1, 2, 3, 5, 8, 13, 21)))
    while (made := fault(random, workers)).kind not in DJANGO_HAPPENINGS:
        pass
    return made


PERIODS = {"H": 1 / 24, "D": 1, "W": 7, "BW": 14, "M": 31, "BM": 62, "Q": 92, "Y": 366}
"""Days between runs, for schedules that are too long to wait for."""


def job(random: Random, django: Django) -> Job:
    kind = random.choice(("task", "task", "iter", "iter", "chain", "group", "schedule"))
    made = Job(kind, round(random.random() * 5.0, 2), hook=random.random() < 0.4)
    endless = not django.ack_failures and not django.max_attempts
    if kind == "schedule":
        made = replace(
            made,
            size=random.randint(1, 3),
            due=random.choice((0.0, 0.0, 1.5, -30.0, -130.0)),
            once=random.random() < 0.2,
            intended=random.random() < 0.7,
            change=random.choice(("",) * 4 + ("delete", "now")),
            change_at=random.choice((0.0, 2.0, 61.0)),
        )
        every = random.choice(("I",) * 6 + ("* * * * *", "*/2 * * * *", *PERIODS))
        if every not in PERIODS:
            return replace(made, every=every)
        size = made.size if django.catch_up else 1  # all runs are due when it is created
        due = -86400.0 * (PERIODS[every] * size + random.randrange(48 * 250) / 48)
        return replace(
            made, every=every, size=size, due=due, change="" if made.change == "now" else made.change
        )
    made = replace(
        made,
        size=1 if kind == "task" else random.randint(int(kind == "chain"), 5),
        cached=random.random() < 0.25,
        sync=random.random() < 0.1,
        atomic=random.choice(("",) * 6 + ("commit", "rollback")),
    )
    if made.atomic and (made.cached or made.sync):  # these are not rolled back
        made = replace(made, atomic="")
    if kind == "task":
        ack = random.choice((None, None, True, False))
        acked = django.ack_failures if ack is None else ack
        fails = random.choice(
            (-1, -1, ALWAYS) if acked else (-1, 1, 2, *([ALWAYS] if django.max_attempts else []))
        )
        made = replace(made, ack_failure=ack, fails=fails)
    elif made.size and not endless and random.random() < 0.3:
        made = replace(made, fails=random.randrange(made.size))
    if kind != "iter":
        made = replace(made, save=random.choice((None, None, None, True, False)))
    made = replace(made, by_class=random.random() < 0.3)
    kept = django.save_limit == 0 or django.save_limit >= 250 or made.cached
    if kept and made.save is not False and made.size and random.random() < 0.5:
        made = replace(made, ask="wait")
    return made


def django_case(random: Random, made: World, jobs: int | None = None) -> Case:
    """Return a case of a Django project."""
    made = early_key(made)
    django = Django(
        save_limit=random.choice((250, 250, 1, 2, 0, -1)),
        save_limit_per=random.choice((None, None, "group", "func", "name")),
        ack_failures=random.random() < 0.8,
        catch_up=random.random() < 0.7,
        max_attempts=random.choice((0, 1, 2)),
        time_zone=random.choice(("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")),
    )
    count = jobs or random.choice((1, 1, 2, 4))
    faults = 0 if random.random() < 0.3 else random.choice((1, 1, 2, 3))
    return Case(
        made,
        (),
        followed(
            random, made, [dying(random, made, django_fault(random, made.workers)) for _ in range(faults)]
        ),
        random.getrandbits(32),
        random.random() < 0.1,
        django=replace(django, jobs=tuple(job(random, django) for _ in range(count))),
    )


def lossless(random: Random, workers: int, orders: Sequence[Order]) -> Fault:
    """Return a fault that may cost a worker its lease during one of *orders*, without losing tasks that are
    acknowledged early."""
    kind, node = random.choice(("restart", "freeze", "stall", "stall")), f"worker{random.randrange(workers)}"
    if kind == "stall":
        method = random.choice((*STALLED, "settle", "settle"))  # its answer says what was lost meanwhile
        return Fault(kind, node, method, random.choice((1, 2, 3, 5, 8, 13)), seconds=6.0)
    seconds = random.choice((3.0, 6.0, 15.0)) if kind == "freeze" else 0.0
    at = round(random.choice(orders).at + random.choice((0.001, 0.002, 0.004, 0.01)), 3)
    return Fault(kind, node, at=at, seconds=seconds)


def killed(random: Random, workers: int, orders: Sequence[Order]) -> Fault:
    """Return a fault that makes a worker lose early acknowledged tasks of one of *orders*."""
    at = random.choice(orders).at + random.choice((0.001, 0.002, 0.004, 0.01))
    return Fault("kill", f"worker{random.randrange(workers)}", at=round(at, 3))


def amid(random: Random, fault: Fault, orders: Sequence[Order]) -> Fault:
    """Return *fault*; if it is timed, perhaps moved into one of *orders*, which run for a short time."""
    if not fault.at or random.random() < 0.5:
        return fault
    return replace(fault, at=round(random.choice(orders).at + random.choice((0.001, 0.003, 0.01, 0.03)), 3))


def outlast(random: Random, orders: Sequence[Order]) -> None:
    """Delay a call in *orders*, not made by a task, until the results of others have expired."""
    later = {id(part) for order in orders for each in parts_of(order.flow) for part in _called_by(each)}
    calls = [part for order in orders for part in parts_of(order.flow) if isinstance(part, Call)]
    made = [each for each in calls if id(each) not in later and not each.options]
    if made:
        random.choice(made).options = {"countdown": 90}


def _called_by(call: Any) -> Iterator[Any]:
    for name in ("instead", "calls", "adds"):
        if getattr(call, name, None) is not None:
            yield from parts_of(getattr(call, name))
    for link in getattr(call, "links", ()):
        yield from parts_of(link)


def early_key(world: World) -> World:
    """Return *world* with its key from the start, for cases that make calls all the time."""
    return replace(world, key="signed") if world.key == "late" else world


def order_in(random: Random, world: World) -> Order:
    """Return an order; if *world* has no joins, rarely one that needs them."""
    while True:
        made = order(random)
        if world.joins or not needs_joins(made.flow) or random.random() < 0.05:
            break
    if world.stores == "kombu+memory" and not world.key and random.random() < 0.5:
        is_old = is_one_message(made.flow) and not made.stamped and random.random() < 0.5
        how = "celery 1" if is_old else "celery"
        return replace(made, how=how) if is_for_celery(made) else made
    return made


def is_for_celery(order: Order) -> bool:
    """Return whether Celery can call *order* without a result store."""
    parts = list(parts_of(order.flow))
    ours = any(getattr(part, "ignored", False) or getattr(part, "wrong", False) for part in parts)
    set_around = any(
        each.by_set for part in parts if not isinstance(part, Call) for each in getattr(part, "errbacks", ())
    )  # which Celery does not pass on to members
    # Celery does not pass the arguments on to members of a group that is alone in a chain.
    ours |= any(map(is_chain_of_a_group, parts)) or is_group_of_a_group(order.flow)
    return order.how == "call" and not (ours or set_around) and not waits_for_several(order.flow)


def callable_in(world: World, order: Order) -> Order:
    """Return *order*, without a transaction if the broker of *world* is not a database."""
    in_database = STORES[world.stores][0] == "sqlite"
    return order if in_database or order.how not in IN_TRANSACTIONS else replace(order, how="call")


def orders_in(
    random: Random, made: World, count: int, options: Sequence[dict[str, Any]]
) -> tuple[Order, ...]:
    """Return *count* orders; some of their calls have *options*."""
    while True:
        orders = tuple(callable_in(made, order_in(random, made)) for _ in range(count))
        parts = (part for order in orders for part in parts_of(order.flow))
        calls = [part for part in parts if isinstance(part, Call) and not part.options]
        if calls or not options:
            break
    for each in options:
        random.choice(calls).options.update(each)
    return orders


def case(
    random: Random,
    orders: int | None = None,
    made: World | None = None,
    options: Sequence[dict[str, Any]] = (),
) -> Case:
    """Return a random case. made: its world. options: of some of its calls."""
    made = made or maybe_slow(random, world(random))
    if made.stores == "django":
        return django_case(random, made, orders)
    count = orders or random.choice((1, 2, 4, 8))
    faults = (
        ()
        if random.random() < (0.8 if made.forgets else 0.3)  # with both, little can be checked
        else tuple(
            dying(random, made, fault(random, made.workers)) for _ in range(random.choice((1, 1, 2, 4)))
        )
    )
    if made.key and random.random() < 0.3:
        faults = (of_stranger(random), *faults)
    orders = orders_in(random, made, count, options)
    kind, linger = random.random(), random.random() < 0.1
    is_slow = made.long == 1.0 and made.concurrency == 1
    keeps = made.acks_late and not made.forgets
    if not made.acks_late and kind > 0.85:  # flows that wait for lost members fail when overdue
        faults, linger = tuple(killed(random, made.workers, orders) for _ in range(made.workers)), True
    elif is_slow if keeps else kind < (0.15 if made.acks_late else 0.3):
        faults = tuple(lossless(random, made.workers, orders) for _ in range(random.choice((1, 2, 3))))
    elif not made.acks_late and kind < 0.45:
        first = unheard(random, f"worker{random.randrange(made.workers)}")
        faults = (first, *still_unheard(random, [first, first]))
    else:
        faults = followed(random, made, [amid(random, fault, orders) for fault in faults])
        faults = (*faults, *still_unheard(random, faults))
        if faults and random.random() < 0.15:
            first = retried(random, made, orders)
            faults = (*faults, first, *soon_after(random, made, first))
    if faults and any(getattr(part, "adds", None) for order in orders for part in parts_of(order.flow)):
        faults = (child_fault(random, "worker", CALL_FAULTS, ("join.grow",)), *faults[1:])
    if made.forgets and random.random() < 0.5:
        outlast(random, orders)
    return Case(
        made,
        orders,
        faults,
        random.getrandbits(32),
        linger,
    )


def is_django(seed: int) -> bool:
    """Return whether the case of *seed* is one of a Django project."""
    return Random(f"django {seed}").random() < DJANGO


def case_of(seed: int, orders: int | None = None, **dimensions: Any) -> Case:
    """Return the case of *seed*, with these *dimensions* of its world."""
    plan = plan_of(seed)
    made = replace(plan.world, **dimensions)
    if "stores" not in dimensions and is_django(seed):
        made = replace(made, stores="django")
    return case(Random(seed), orders, made, plan.options)


assert {each.name for each in fields(World)} >= set(CHOICES)
