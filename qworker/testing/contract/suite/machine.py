"""A state machine of leases: for any sequence of operations, every message ends up in exactly one place.

Hypothesis acts as a publisher, and as two consumers, which crash, return and reclaim. The model consists of a
few dictionaries. Every lease must return what the model expects; at the end, all published messages must be
accounted for.

Comes from:  the suite.
Goes to:     the broker of a place.
Thread:      the test's.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qworker.testing.clock import FakeClock
from qworker.testing.contract.collecting import asks
from qworker.testing.contract.messages import message
from qworker.testing.contract.place import Assumption, Place, mark
from qworker.transports.capabilities import COUNTS, DEAD_LETTERS, DELIVERY_COUNT, ETA, PRIORITY
from qworker.transports.lease import Ack, Broker, DeadLetter, Release, Settlement

LEASE_SECONDS = 15.0
QUEUES = ("q", "r")
holders = st.integers(0, 1)


@dataclass
class Entry:
    """The model of a message. holder: the number of its consumer, None while it waits."""

    name: str
    number: int
    queue: str
    priority: int
    due: float | None
    holder: int | None = None
    tag: int = 0
    deliveries: int = 0
    redelivered: bool = False
    taken: bool = False  # whether it was leased before

    def urgency(self) -> tuple[int, int]:
        return (-self.priority, self.number)


class LeaseMachine(RuleBasedStateMachine):
    """kind: the kind of place."""

    kind: type[Place]

    @initialize()
    def open(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.place = self.kind(self.directory)
        self.clock = FakeClock()
        self.uptime = 1000.0
        self.numbers = itertools.count()
        self.entries: dict[str, Entry] = {}  # messages that have not ended
        self.acked: set[str] = set()
        self.dead_lettered: set[str] = set()
        self.stores: list[Broker] = []
        self.generations: list[int] = []
        self.last_renewal: list[float] = []
        for number in range(2):
            store = self.place.open(clock=self.clock, lease_seconds=LEASE_SECONDS, uptime=lambda: self.uptime)
            self.stores.append(store)
            self.generations.append(store.consumer.register(f"w{number}", QUEUES, 1))
            self.last_renewal.append(self.uptime)
        self.running: list[set[int]] = [set(), set()]
        self.crashed = [False, False]

    def held_by(self, holder: int) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.holder == holder]

    def waiting(self, *queues: str) -> list[Entry]:
        return sorted(
            (entry for entry in self.entries.values() if entry.holder is None and entry.queue in queues),
            key=Entry.urgency,
        )

    # -- operations --

    @rule(
        publisher=holders,
        calls=st.lists(
            st.tuples(
                st.sampled_from(QUEUES), st.integers(0, 9), st.sampled_from([None, None, None, 1, 7, 20])
            ),
            min_size=1,
            max_size=6,
        ),
    )
    def push(self, publisher: int, calls: list[tuple[str, int, int | None]]) -> None:
        new = []
        for queue, priority, delay in calls:
            number = next(self.numbers)
            due = None if delay is None else self.clock.now() + delay
            new.append(Entry(f"m{number}", number, queue, priority, due))
        self.stores[publisher].sender.push(
            [message(e.name, e.queue, priority=e.priority, due=e.due) for e in new]
        )
        self.entries |= {entry.name: entry for entry in new}

    @precondition(lambda self: self.waiting(*QUEUES))
    @rule(
        holder=holders,
        queues=st.permutations(QUEUES),
        count=st.integers(1, 2),
        limit=st.integers(1, 8),
        running=st.integers(0, 3),
    )
    def lease(self, holder: int, queues: list[str], count: int, limit: int, running: int) -> None:
        """Lease messages, and mark the first *running* of all messages of this consumer as running."""
        if self.crashed[holder]:
            return
        now = self.clock.now()
        ready = [e for e in self.waiting(*queues[:count]) if e.due is None or e.due <= now]
        leased = self.stores[holder].consumer.lease(queues[:count], limit).messages
        assert len(leased) == min(limit, len(ready))
        taken = [self.entries[each.headers] for each in leased]
        assert all(entry in ready for entry in taken), "leased what another holds, or too early"
        for queue in queues[:count]:
            mine = [entry for entry in taken if entry.queue == queue]
            self.check_order(mine, [entry for entry in ready if entry.queue == queue])
        for entry, each in zip(taken, leased, strict=True):
            assert (each.deliveries, each.redelivered) == (entry.deliveries, entry.redelivered)
            entry.holder, entry.tag = holder, each.tag
            entry.taken = True
        tags = {entry.tag for entry in self.held_by(holder)[:running]}
        self.running[holder] = tags if mark(self.stores[holder], *tags) else set()

    def check_order(self, mine: list[Entry], ready: list[Entry]) -> None:
        """Check that *mine*, the messages leased from one queue, were the first of *ready*."""
        if self.place.in_order:
            assert mine == ready[: len(mine)], "out of order"
            return
        # Released or delayed messages may have lost their position among those of the same priority step.
        steps = self.place.steps

        def step(entry: Entry) -> int:
            return max(lowest for lowest in steps if lowest <= entry.priority)

        assert [entry.priority for entry in mine] == sorted((e.priority for e in mine), reverse=True)
        left = [step(entry) for entry in ready if entry not in mine]
        assert not mine or not left or min(map(step, mine)) >= max(left), "less urgent first"
        for one in steps:
            plain = [e for e in ready if step(e) == one and e.due is None and not e.taken]
            got = sorted((e for e in mine if e in plain), key=lambda entry: entry.number)
            assert got == sorted(plain, key=lambda entry: entry.number)[: len(got)], "out of order"

    @precondition(lambda self: any(self.held_by(holder) for holder in (0, 1)))
    @rule(holder=holders, data=st.data())
    def settle(self, holder: int, data: st.DataObject) -> None:
        held = self.held_by(holder)
        if not held or self.crashed[holder]:
            return
        chosen = data.draw(
            st.lists(st.sampled_from(held), unique_by=lambda entry: entry.name), label="settled"
        )
        settlements: list[Settlement] = []
        for entry in chosen:
            how = data.draw(
                st.sampled_from(["ack", "release", "count", "delay", "dead-letter"]), label=entry.name
            )
            if how == "ack":
                settlements.append(Ack(entry.tag))
                self.acked.add(entry.name)
                del self.entries[entry.name]
            elif how == "dead-letter":
                settlements.append(DeadLetter(entry.tag, "why"))
                self.dead_lettered.add(entry.name)
                del self.entries[entry.name]
            else:
                due = self.clock.now() + 5 if how == "delay" else None
                settlements.append(Release(entry.tag, due, counted=how == "count"))
                entry.holder = None
                entry.due = due or entry.due
                if how == "count":
                    entry.deliveries += 1
                    entry.redelivered = True
        others = [e.tag for e in self.held_by(1 - holder)][:1]
        lost = self.stores[holder].consumer.settle(
            self.generations[holder], [*settlements, *(Ack(tag) for tag in others)]
        )
        assert lost == set(others), "settled what another holds"

    @precondition(lambda self: any(self.held_by(holder) for holder in (0, 1)))
    @rule(holder=holders, reclaimed=st.booleans())
    def crash(self, holder: int, reclaimed: bool) -> None:
        """Stop the consumer until its lease expires; the others renew theirs in time."""
        self.crashed[holder] = True
        self.uptime += LEASE_SECONDS + 1
        for each in (0, 1):
            if not self.crashed[each]:
                self.stores[each].consumer.extend()
        if reclaimed and not all(self.crashed):
            self.reclaim()

    @precondition(lambda self: not all(self.crashed))
    @rule()
    def reclaim(self) -> None:
        well = self.crashed.index(False)
        lost = self.held_by(1 - well) if self.crashed[1 - well] else []
        found = self.stores[well].consumer.reclaim()
        if not found:
            return
        assert self.crashed[1 - well], "reclaimed from a live consumer"
        (dead,) = found
        counted = [entry for entry in lost if entry.tag in self.running[1 - well]]
        assert (dead.returned, dead.counted) == (len(lost), len(counted))
        for entry in lost:
            entry.deliveries += entry in counted
            entry.holder, entry.redelivered = None, True

    @precondition(lambda self: any(self.crashed))
    @rule()
    def return_crashed(self) -> None:
        """Register crashed consumers again, which releases their messages."""
        for holder in (0, 1):
            if not self.crashed[holder]:
                continue
            held = self.held_by(holder)
            old = self.generations[holder]
            self.generations[holder] = self.stores[holder].consumer.register(f"w{holder}", QUEUES, 1)
            self.running[holder] = set()
            mark(self.stores[holder])
            self.crashed[holder] = False
            for entry in held:
                entry.holder = None
            assert self.stores[holder].consumer.settle(old, [Ack(entry.tag) for entry in held]) == {
                e.tag for e in held
            }

    @precondition(lambda self: any(entry.due for entry in self.entries.values()))
    @rule(seconds=st.integers(1, 10))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: len(self.entries) > 8)
    @rule(queue=st.sampled_from(QUEUES))
    def purge(self, queue: str) -> None:
        gone = self.waiting(queue)
        assert self.stores[0].admin.purge(queue) == len(gone)
        for entry in gone:
            del self.entries[entry.name]

    # -- invariants --

    @invariant()
    def no_message_is_lost_or_duplicated(self) -> None:
        assert self.place.count() == len(self.entries)
        assert {dead.headers for dead in self.stores[0].admin.dead(limit=1000)} == self.dead_lettered

    def teardown(self) -> None:
        if not hasattr(self, "stores"):
            return
        for store in self.stores:
            store.consumer.deregister()
        self.clock.advance(1000)
        judge = self.stores[0]
        judge.consumer.register("judge", QUEUES, 1)
        found = [leased.headers for leased in judge.consumer.lease(QUEUES, 10_000).messages]
        assert len(found) == len(set(found))
        assert set(found) == self.entries.keys()
        assert not self.acked & self.dead_lettered
        for store in self.stores:
            store.close()
        self.place.clear()
        shutil.rmtree(self.directory)


@asks(ETA, PRIORITY, DELIVERY_COUNT, DEAD_LETTERS, COUNTS)
@asks(Assumption.TEST_CLOCK, Assumption.UPTIME, Assumption.RECLAIMING, Assumption.UNMARKED)
def test_random_operations_lose_and_duplicate_no_messages(kind: str, request: pytest.FixtureRequest) -> None:
    place: type[Place] = request.module.PLACES[kind]
    machine: Any = type("LeaseMachine", (LeaseMachine,), {"kind": place})
    case = machine.TestCase
    case.settings = settings(
        max_examples=place.examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()
