"""repeats: which faults explain that a message ran more than once.

Comes from:  ``checks`` and ``django_checks``, with what ran of an order, and the faults that were met.
Goes to:     their lists of problems.
Thread:      any; pure.

Written from ``docs/explanation/delivery-guarantees.md``: a call runs again if its worker died, or could not
report its end, or if it was sent again, by a repeated run of its sender, or because an answer was lost. The
body of a join is sent once: it only runs again if a fault affects its own run.
"""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from qworker.message.kombu_json import loads
from tests.simulation.case import Fault
from tests.simulation.world import LEASE_SECONDS

RECOVERED = 4.0
"""Seconds after a fault in which workers connect again (within two), or are restarted (after one)."""
EVERYWHERE = frozenset({"away", "full", "crash"})
"""Timed faults that concern all processes."""
OPERATORS = frozenset({"retry failed", "retry dead"})
"""Those that send again what was settled."""
HARMLESS = frozenset({"drift", "jump", "move", "poison", "stranger", "retry dead"})
"""Faults that must not make anything run twice."""
NEW_TAGS = frozenset({"crash", "late", "lost", "move", *OPERATORS})
"""Faults after which a message may have another tag: the store forgets which ones it has had, or somebody
moves them or sends them again."""
OF_ROW = "row"
"""The method of faults at a call that stores results: they must not make anything run twice, either."""
OF_LEASES = frozenset({"lease", "extend", "register", "reclaim", "deregister"})
"""Calls on which all messages of a worker depend."""


class Met(NamedTuple):
    """A triggered fault. at: when, in seconds of the world. place: the next line of the log. about: the ids
    of tasks and joins, and the tags of messages, that the call was about, and the task that made it."""

    fault: Fault
    at: float = 0.0
    place: int = 0
    about: frozenset[Any] = frozenset()
    node: str = ""
    """Which "worker" it was."""


@dataclass(eq=False, slots=True)
class Execution:
    """A delivery of a message that a worker of *node* ran at *at*. attempt: how many were retried before.
    place: the next line of the log. sent: the ids of the calls that it sent. failed: the stores that its
    child could not use. ended: whether it ran to its end. settled: when the broker took note of it."""

    id: str
    attempt: int
    tag: Any
    parent: str | None
    node: str
    at: float
    place: int
    sent: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    ended: bool = False
    settled: float = math.inf


Body = tuple[str, int]
"""The id of a call that is sent when a join is finished, and its number. The id is also that of the calls
that it replaces, and that replace it."""


def subjects(value: Any) -> Iterator[Any]:
    """Yield the ids and tags in *value*, the arguments of a call."""
    if isinstance(headers := getattr(value, "headers", None), str):
        try:
            yield str(json.loads(headers)["id"])
        except (ValueError, LookupError, TypeError):
            return
    elif isinstance(value, str | int):
        yield value
    elif isinstance(value, Mapping):
        yield from value
    elif isinstance(value, Collection) and not isinstance(value, bytes):
        for each in value:
            yield from subjects(each)


def call_in(body: bytes) -> Any:
    """Return the call in the *body* of a join, JSON or pickled in JSON. Raises ValueError and others if there
    is none."""
    text = body[body.index(b"{") :].decode()
    _, end = json.JSONDecoder().raw_decode(text)
    fields = loads(text[:end])
    if "data" in fields:
        fields = pickle.loads(fields["data"])
    return fields.get("call", fields)


def first_of(body: bytes) -> Iterator[Body]:
    """Yield the calls that are sent when a join with *body* is finished; nothing if it cannot be read."""
    try:
        yield from _first(call_in(body))
    except (ValueError, LookupError, TypeError, AttributeError):
        return


def _first(call: Any) -> Iterator[Body]:
    kind, given = call.get("subtask_type"), call["kwargs"]
    if kind in ("group", "chain"):
        for each in given["tasks"] if kind == "group" else given["tasks"][:1]:
            yield from _first(each)
    elif kind == "chord":
        yield from _first(given["header"])
    elif id := call["options"].get("task_id"):
        if "number" in given:
            yield id, given["number"]
        for _, number, *_ in given.get("it", ())[:1]:  # a mapping
            yield id, number


def weight(fault: Fault) -> int:
    """Return how many more runs of a message *fault* explains: of a task that cannot send a call, it is
    delivered again at once, and then after 1, 2, 4… and at most 30 seconds."""
    if fault.kind not in ("away", "cut", "full"):
        return 1
    longer = max(0.0, fault.seconds - 31.0)
    return 2 + int(math.log2(1.0 + fault.seconds - longer) + longer / 30.0)


def affects(met: Met, run: Execution, last: Execution, once: bool, refused: bool = False) -> bool:
    """Return whether *met* explains that the message of *run* ran again, at the latest as *last*. once: it is
    the body of a join, which only runs again where it was run, or if a driver sends its message twice.
    refused: a store has refused its result."""
    fault = met.fault
    if met.place > last.place or fault.method == OF_ROW:
        return False
    if fault.kind not in OPERATORS and run.settled < met.at - (
        fault.seconds if fault.kind == "crash" else 0.0
    ):
        return False
    if fault.kind in ("away", "cut", "full") and "results" in (fault.node, fault.method):
        return bool(run.failed)  # results wait, and are stored later
    if fault.kind in EVERYWHERE | OPERATORS:
        return met.at + fault.seconds + RECOVERED >= run.at
    if run.id in met.about and (not once or (fault.method, fault.kind) == ("push", "twice")):
        return True
    if (met.node or fault.node) != run.node:
        return False
    if fault.kind.startswith("kill") or (fault.kind == "die" and not met.about):  # not only a child
        return met.place >= run.place
    if fault.kind == "restart" and run.ended and not refused:
        return False  # else its lease may end while it stores the result: here, no other thread renews that
    if fault.method in OF_LEASES or fault.kind in ("cut", "freeze", "locked", "restart", "stall"):
        return met.at + fault.seconds + LEASE_SECONDS >= run.at
    return met.place >= run.place and not met.about.isdisjoint((run.id, run.tag))


Key = tuple[str, int, int]
"""A message: the id of its task, the call's number, and the attempt."""


class Repeats:
    """The repeated runs of an order. runs: ``(number, execution)`` of each run in a worker, and then of each
    call of an errback, which may be in the execution of the call that has failed. every: all
    executions of the world. bodies: those of all joins. calls: how often the order was called. delivered:
    how often the message of a call is delivered, by number, if not once. callers: by the
    numbers of errbacks, the calls that may fail: each of their runs may call it with other ids. tagged:
    whether messages keep their tags, unless a fault in NEW_TAGS is met."""

    def __init__(
        self,
        runs: Sequence[tuple[int, Execution]],
        every: Sequence[Execution],
        mets: Sequence[Met],
        bodies: AbstractSet[Body],
        calls: int = 1,
        delivered: Mapping[int, int] = MappingProxyType({}),
        callers: Mapping[int, AbstractSet[int]] = MappingProxyType({}),
        tagged: bool = False,
    ) -> None:
        self.every = every
        self.mets = mets
        self.bodies = bodies
        self.calls = calls
        self.delivered = delivered
        self.callers = callers
        self.tagged = tagged and not any(met.fault.kind in NEW_TAGS for met in mets)
        self.numbers: dict[Execution, int] = {}
        self.numbers_of: dict[str, set[int]] = defaultdict(set)
        """Those of each id, which a call shares with the one that replaces it."""
        found: dict[Key, dict[Execution, None]] = defaultdict(dict)
        for number, run in runs:
            found[run.id, number, run.attempt][run] = None
            self.numbers_of[run.id].add(self.numbers.setdefault(run, number))
        self.keys = {key: sorted(each, key=lambda run: run.place) for key, each in found.items()}

    def _right(self, key: Key) -> int:
        return self.delivered.get(key[1], 1)

    def more(self, number: int) -> int:
        """Return how many runs of the call *number* are repeats of others."""
        return sum(
            max(0, len(runs) - self._right(key)) for key, runs in self.keys.items() if key[1] == number
        )

    def beyond(
        self, ran: Counter[int], right: Mapping[int, int], items: Mapping[int, int] | None = None
    ) -> Iterator[str]:
        """Yield the calls that *ran* more often than is *right*, and than their messages were repeated.
        items: how often a message runs its call, if not once."""
        often = {number for number in right if ran[number] > right[number]}
        for number in sorted(often):  # who is repeated may call the same with other ids
            count = self.more(number) * (items or {}).get(number, 1) + self._failed_again(number)
            if ran[number] > right[number] + count and often.isdisjoint(self.senders(number)):
                yield f"call {number} ran {ran[number]} times; expected {right[number]} and {count} repeats"

    def _failed_again(self, number: int) -> int:
        """Return how many calls of the errback *number* were made, with other ids, because a call that fails
        without a run was repeated, as far as faults explain it."""
        if number not in self.callers:
            return 0
        repeated: dict[tuple[str, int], list[Execution]] = defaultdict(list)
        for run in self._sent(number):
            if run.id not in self.numbers_of:
                repeated[run.id, run.attempt].append(run)
        return sum(
            min(len(runs) - self.calls, self._weight(runs, max(runs, key=lambda run: run.place), False))
            for runs in repeated.values()
            if len(runs) > self.calls
        )

    def senders(self, number: int) -> set[int]:
        """Return the numbers of the calls that sent the call *number*, also through tasks without one."""
        senders = set(self.callers.get(number, ()))
        for run in self._sent(number):
            senders |= {self.numbers[run]} if run in self.numbers else self.numbers_of.get(run.id, set())
        return senders - {number}

    def _sent(self, number: int) -> set[Execution]:
        """Return the executions that sent the call *number*, also through tasks without a number."""
        runs = {run for key, each in self.keys.items() if key[1] == number for run in each}
        found: set[Execution] = set()
        while runs:
            ids = {run.id for run in runs}
            sent = {run for run in self.every if not ids.isdisjoint(run.sent)}
            parents = {run.parent for run in runs} - {run.id for run in sent}
            sent |= {run for run in self.every if run.id in parents}
            runs = {run for run in sent - found if run.id not in self.numbers_of}
            found |= sent
        return found

    def problems(self) -> Iterator[str]:
        """Yield the messages that ran too often."""
        for key, runs in self.keys.items():
            right = self._right(key) * self.calls
            if len(runs) <= right:
                continue
            sent, once = len({run.tag for run in runs}), right * (1 + self._sent_twice(key[0]))
            if self.tagged and sent > once and not key[2] and key[:2] in self.bodies:
                yield f"call {key[1]}, the body of a join, was sent {sent} times, not {once}, as {key[0]}"
            explained = self._explained(key)
            twice = min(explained, self._sent_twice(key[0]))  # other faults may repeat each of these messages
            if len(runs) > (most := right * (1 + twice) * (1 + explained - twice)):
                yield (
                    f"call {key[1]} ran {len(runs)} times with the id {key[0]}; "
                    f"the call itself, faults and repeats of its sender explain only {most} of them"
                )

    def _sent_twice(self, id: str) -> int:
        return sum(
            (met.fault.method, met.fault.kind) == ("push", "twice") and id in met.about for met in self.mets
        )

    def _explained(self, key: Key) -> int:
        """Return how many faults, and repeats of who sent it, explain repeats of *key*."""
        runs = self.keys[key]
        last = runs[-1]
        if not key[2] and key[:2] in self.bodies:
            return self._weight(runs, last, True)
        senders: dict[tuple[str, int], list[Execution]] = defaultdict(list)
        for each in self.every:
            if each.place < last.place and (key[0] in each.sent or each.id == last.parent):
                senders[each.id, each.attempt].append(each)
        return self._weight(runs, last, False) + sum(
            max(0, len(sender) - self.calls) + self._weight(sender, last, False)
            for sender in senders.values()
        )

    def _weight(self, runs: Sequence[Execution], last: Execution, once: bool) -> int:
        forgets = any(met.fault.kind == "lost" for met in self.mets)  # also which messages it has had
        refused = {each for met in self.mets if met.fault.method == OF_ROW for each in met.about}
        return sum(
            weight(met.fault)
            for met in self.mets
            if any(
                affects(
                    met, run, last, once and not (forgets and met.fault.kind == "late"), run.id in refused
                )
                for run in runs
            )
        )
