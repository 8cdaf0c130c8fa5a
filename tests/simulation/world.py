"""world: virtual time, and the scheduler that decides which actor steps next.

Comes from:  ``run``, which adds actors and pumps.
Goes to:     the actors: parts of workers, callers, timed events.
Thread:      one. An actor that waits, in ``get()`` or sleep(), pumps the others meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import uuid
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from heapq import heapify, heappop, heappush
from itertools import count
from operator import attrgetter
from typing import Any
from unittest import mock

from kombu.utils.uuid import uuid as ids_of_kombu

from qworker import interrupts
from qworker.django import humanhash
from qworker.process.randomness import RANDOM
from tests.simulation.tracing import Trace

START = 1_700_000_000.0
LEASE_SECONDS = 4.0
MOST_TURNS = 2_000_000
MOST_NESTED = 40
MOST_CALLING = 8
"""How deeply waits may be nested for another caller to begin a call."""
MADE = count()
MADE_AT = attrgetter("made")


class Killed(BaseException):
    """Raised in a process of the world that was killed."""


class Stuck(Exception):
    """An actor waits for something that will never happen."""


class Clock:
    """The clock of a machine. skew: seconds by which its wall clock is ahead."""

    def __init__(self, time: Time, skew: float = 0.0) -> None:
        self._time = time
        self.skew = skew
        self.gained = 0.0
        """Seconds by which its other clock is ahead, too: it went too fast."""

    def now(self) -> float:
        return START + self._time.now + self.skew + self.gained

    def monotonic(self) -> float:
        return 1000.0 + self._time.now + self.gained

    uptime = monotonic

    def sleep(self, seconds: float) -> None:
        self._time.pump(self._time.now + max(0.0, seconds))


class Actor:
    """Something that steps. step() returns the seconds until it is due again, or None to sleep until it is
    woken. waits: its steps may wait for other actors."""

    __slots__ = ("busy", "context", "due", "made", "name", "node", "step", "waits")

    def __init__(
        self, node: str, name: str, step: Callable[[], float | None], due: float = 0.0, waits: bool = False
    ) -> None:
        self.node = node
        self.name = name
        self.step = step
        self.waits = waits
        self.due: float = due
        self.busy = False
        self.made = next(MADE)
        self.context = Context()
        """Separate, so that actors that step while a task waits do not run in its context."""


class Time:
    """The virtual time of a world, and its actors."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.actors: list[Actor] = []
        """In the order in which they were made."""
        self.events: list[tuple[float, int, Actor]] = []
        """A heap of actors that step once; those that are due are moved to actors."""
        self.log: list[str] = []
        self.trace: Trace | None = None
        """Set if the log includes tasks."""
        self.turns = 0
        self.nested = 0
        self.at_work = 0
        """How many actors are in a step that does not wait. Until it ends, no other actor may begin to wait:
        the step could not continue before the end of that wait, which may be for its own result."""
        self.pauses = 0.0
        """The probability that a process pauses before a store call, so that others go first."""
        self.long = 0.0
        """The probability that a run takes long."""
        self.took = 0.0
        """Total seconds of long runs, and of slow tasks."""
        self.frozen: dict[str, float] = {}
        """By node, until when it does not step."""
        self.limit = float("inf")
        """When waiting actors become Stuck."""
        self.node = ""
        """Whose actor steps."""

    def note(self, *words: Any) -> None:
        self.log.append(f"{self.now:.4f} {' '.join(map(str, words))}")

    def wake(self, name: str) -> None:
        """Make the actors with this name due at once."""
        now = self.now
        for actor in self.actors:
            if actor.name == name and actor.due > now:
                actor.due = now

    def once(self, at: float, node: str, name: str, act: Callable[[], None], waits: bool = False) -> None:
        """Add an actor that calls act() once, at the time *at*."""

        def step() -> None:
            self.actors.remove(actor)
            act()

        actor = Actor(node, name, step, at, waits)
        heappush(self.events, (at, actor.made, actor))

    def expects_events(self) -> bool:
        """Return whether an actor of once() has not stepped yet."""
        return bool(self.events) or any(actor.name in ("event", "late") for actor in self.actors)

    @contextmanager
    def stepping(self, node: str) -> Iterator[None]:
        """Let *node* be the one that steps within the block."""
        before, self.node = self.node, node
        try:
            yield
        finally:
            self.node = before

    def remove(self, node: str) -> None:
        """Remove the actors of *node*."""
        self.actors[:] = [actor for actor in self.actors if actor.node != node]
        self.events[:] = [event for event in self.events if event[2].node != node]
        heapify(self.events)

    def turn(self, until: float) -> bool:
        """Let one actor step, or let time pass up to *until*; return False once that time is reached."""
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise Stuck(f"the world does not come to rest within {MOST_TURNS:,} turns")
        now, frozen = self.now, self.frozen
        if now > self.limit:
            raise Stuck("somebody waits for ever")
        actors, events = self.actors, self.events
        while events and events[0][0] <= now:
            insort(actors, heappop(events)[2], key=MADE_AT)
        coming = [event[2] for event in events[:1]]
        if self.at_work or self.nested > MOST_CALLING:
            actors = [actor for actor in actors if not actor.waits]
            coming = [event[2] for event in events if not event[2].waits]
        elif frozen:
            coming = [event[2] for event in events]
        ready = [
            actor
            for actor in actors
            if actor.due <= now and not actor.busy and not (frozen and frozen.get(actor.node, 0.0) > now)
        ]
        if ready:
            self._step(ready[int(self.random.random() * len(ready))] if len(ready) > 1 else ready[0])
            return True
        later = min(
            (max(actor.due, frozen.get(actor.node, 0.0)) for actor in (*actors, *coming) if not actor.busy)
            if frozen
            else (actor.due for actor in (*actors, *coming) if not actor.busy),
            default=until,
        )
        self.now = max(now, min(later, until))  # a nested pump may have passed *until* already
        return self.now < until

    def _step(self, actor: Actor) -> None:
        actor.busy = True
        self.at_work += not actor.waits
        before, self.node = self.node, actor.node
        actor.due = float("inf")
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            rest = actor.context.run(actor.step)
        except Killed:
            self.note(actor.node, actor.name, "is cut short")
            return
        finally:
            asyncio._set_running_loop(loop)
            actor.busy, self.node = False, before
            self.at_work -= not actor.waits
        if rest is not None:
            actor.due = min(actor.due, self.now + rest)

    def pump(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Let the other actors step until done() or the time *until*; return the last done()."""
        self.nested += 1
        try:
            if self.nested > MOST_NESTED:  # too deeply nested: only let time pass
                self.now = max(self.now, until)
                return done()
            while not done():
                if not self.turn(until) and self.now >= until:
                    return done()
            return True
        finally:
            self.nested -= 1


def _no_thread(work: Any) -> None:
    """Replaces the function that hands *work* to another thread: the waiting caller does it instead."""


@contextmanager
def determined(seed: int) -> Iterator[None]:
    """Take all random values from *seed* within the block."""
    source = random.Random(seed ^ 0x5EED)
    before = random.getstate(), RANDOM.getstate()
    random.seed(seed)
    RANDOM.seed(seed)

    def make_id() -> uuid.UUID:
        return uuid.UUID(bytes=source.randbytes(16), version=4)

    def urandom(size: int) -> bytes:
        return source.randbytes(size)

    with (
        # Signals do not interrupt a world, so no work has to be moved off the main thread.
        mock.patch.object(interrupts, "_main", None),
        mock.patch.object(interrupts, "_ordered", new=_no_thread),
        mock.patch.object(os, "urandom", urandom),
        mock.patch.object(secrets, "token_hex", lambda size=16: source.randbytes(size or 16).hex()),
        mock.patch.object(secrets, "randbits", source.getrandbits),
        mock.patch.object(uuid, "uuid4", make_id),
        mock.patch.object(humanhash, "uuid4", make_id),
        mock.patch.object(ids_of_kombu, "__defaults__", (make_id,)),
    ):
        try:
            yield
        finally:
            random.setstate(before[0])
            RANDOM.setstate(before[1])
