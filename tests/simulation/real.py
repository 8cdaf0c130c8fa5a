"""real: runs the programs on real servers, with real workers, in real time, with real faults.

Comes from:  ``python -m tests.simulation --real``, ``test_real``.
Goes to:     ``checks``, with what was seen; a report.
Thread:      the caller's, and one for each call, which may wait.

A fleet of ``qworker start`` runs the cases of a round one after another; a failing case ends the round. The
same seed makes the same world, calls and faults, but the timing differs.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from qworker.errors import QWorkerError
from tests.acceptance.harness import READY, REPOSITORY, WorkerProcess
from tests.acceptance.private_servers import missing
from tests.acceptance.processes import kill
from tests.simulation.case import Case, Fault
from tests.simulation.checks import problems
from tests.simulation.nodes import QUEUES, Asked, Caller, delays_of, is_ready
from tests.simulation.real_drawing import LONGEST, cases_of, kinds, world_of
from tests.simulation.real_record import KeptRecord
from tests.simulation.real_servers import STORES, Faults, Servers
from tests.simulation.real_worker import LEASE_SECONDS, Place, Process, RealWorld, make_app, told
from tests.simulation.repeats import Met
from tests.simulation.run import CALLERS, Seen, all_ids, heard, meddle
from tests.support.flows import Expected, expected

CASES = 6
"""Cases in a round."""
PATIENCE = 45.0
"""Seconds after the last fault and call for which a case goes on."""
SLOWER = 12.0
"""Seconds by which real processes, servers and threads may be slower than the checks require."""
STABLE = 0.6
"""Seconds for which it must stay quiet."""
RECOVERY = 4.0
"""Seconds after a fault within which workers reconnect."""
LOOK = 0.15
OF_SERVERS = frozenset({"away", "cut", "slow"})
OF_WORKERS = frozenset({"kill", "kill tree", "child", "freeze", "restart"})
APP = "tests.simulation.real_worker:app"


class RealCaller(Caller):
    """A caller that waits in real time."""

    def __init__(self, name: str, fleet: Fleet) -> None:
        self.name = name
        self.record: KeptRecord = fleet.record
        self.world: Any = fleet.world
        self.time: Any = Process(name, fleet.record, fleet.note)
        self.app = make_app(name, fleet.world, fleet.place, fleet.record)
        self._lock = threading.Lock()

    def call(self, asked: Asked) -> None:
        with self._lock:  # an eager call changes a setting of the app
            super().call(asked)

    def awaited(self, coroutine: Any) -> Any:
        return asyncio.run(coroutine)


class Fleet:
    """Workers, callers and an observer of a world on the servers of *place*. faults: breaks the servers."""

    def __init__(self, world: RealWorld, place: Place, faults: Faults | None = None) -> None:
        self.world = world
        self.place = place
        self.faults = faults
        self.path = Path(place.directory)
        self.record = KeptRecord(self.path)
        self.log: list[str] = []
        self.began = time.monotonic()
        self.workers: list[WorkerProcess] = []
        self.running: dict[str, WorkerProcess] = {}
        self.callers = [RealCaller(name, self) for name in CALLERS]
        self.observer = RealCaller("observer", self)
        self.numbers = count()
        for number in range(world.workers):
            self.start(f"worker{number}")
        for worker in self.workers:
            worker.wait_ready()

    def note(self, *words: Any) -> None:
        self.log.append(f"{time.monotonic() - self.began:.3f} {' '.join(map(str, words))}")

    def environment(self, **_: object) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONIOENCODING": "utf-8",
            **told(self.world, self.place),
        }

    def start(self, name: str) -> None:
        site: Any = self
        queues = [self.place.queue] if self.place.shared else QUEUES
        options = ["-c", str(self.world.concurrency), "-P", self.world.pool, "-Q", ",".join(queues)]
        self.running[name] = worker = WorkerProcess(site, *options, name=name, app=APP)
        self.workers.append(worker)

    @property
    def joins(self) -> Any:
        """The joins; None if there are none, or the store is shared with others."""
        shared = self.place.shared and not self.world.stores.startswith("redis")
        return None if shared or self.by_messages else self.observer.app.backend.joins

    @property
    def by_messages(self) -> bool:
        """Whether only the caller can read results."""
        return self.place.results.startswith("rpc")

    def close(self) -> None:
        for worker in self.workers:
            for pid in worker.tree() if worker.alive else ():
                kill(pid, signal.SIGCONT)
            worker.end()
        for node in (*self.callers, self.observer):
            node.app.close()


class RealRunning:
    """A case running on *fleet*."""

    def __init__(self, case: Case, fleet: Fleet) -> None:
        self.case = case
        self.fleet = fleet
        self.seen = Seen(case, fleet.record, took=SLOWER)
        self.threads: list[threading.Thread] = []
        self.frozen: dict[Fault, list[int]] = {}
        self.stopping: set[WorkerProcess] = set()
        self.wanted: dict[str, Expected] = {}
        self.errors = list(fleet.record.errors)
        self.ended_at = -RECOVERY
        """When the last fault ended, or the last fault of a server began."""
        self.last = 0.0
        """When the last call, or the end of a fault, was begun."""
        fleet.record.trouble = False
        self.older_joins = 0 if fleet.joins is None else fleet.joins.count()
        """Of earlier cases, whose members were lost."""

    def go(self) -> Seen:
        seen, start = self.seen, time.monotonic()
        self.fleet.note("begins:", self.case)
        with heard("qworker", seen.errors):
            for at, act in sorted(self._events(), key=lambda event: event[0]):
                time.sleep(max(0.0, start + at - time.monotonic()))
                act()
            self.last = time.monotonic()
            self._rest()
            self._look()
        seen.log = self.fleet.log
        seen.seconds = time.monotonic() - start
        return seen

    def _events(self) -> Iterator[tuple[float, Callable[[], None]]]:
        for order in self.case.orders:
            number = next(self.fleet.numbers)
            asked = Asked(order, f"f{number}")
            self.seen.asked.append(asked)
            self.wanted[asked.name] = expected(order.flow, order.given, self.case.world.acks_late)
            yield order.at, lambda asked=asked: self._thread(asked.name, self._order, asked)
            if order.revoke_at is not None:
                yield (
                    order.at + order.revoke_at,
                    lambda asked=asked: self._thread(asked.name, self._revoke, asked),
                )
        for fault in self.case.faults:
            yield fault.at, lambda fault=fault: self._begin(fault)
            if fault.seconds:
                yield fault.at + fault.seconds, lambda fault=fault: self._end(fault)

    def _thread(self, name: str, act: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=act, args=args, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _order(self, asked: Asked) -> None:
        callers = self.fleet.callers
        number = int(asked.name[1:]) % 2
        self.fleet.note(CALLERS[number], "calls", asked.name)
        callers[number].call(asked)
        asked.called = True
        self.fleet.note(asked.name, "is", *(result.id for result in asked.results))
        try:
            callers[number].ask(asked, callers[1 - number])
        except Exception as error:  # noqa: BLE001 - what it means is for the checks
            self.seen.crashed.append(f"{CALLERS[number]}, which asked for {asked.name}: {error!r}")

    def _revoke(self, asked: Asked) -> None:
        asked.revoked = True
        until = time.monotonic() + PATIENCE
        while not asked.called and time.monotonic() < until:
            time.sleep(0.01)
        for result in asked.results:
            try:
                result.revoke()
            except QWorkerError as error:
                self.fleet.note("cannot revoke", error)

    # -- faults --

    def _begin(self, fault: Fault) -> None:
        fleet = self.fleet
        fleet.note("happens:", fault)
        fleet.record.trouble = True
        if fault.kind in OF_WORKERS:
            self._harm(fault, fleet.running[fault.node])
        elif fault.kind in OF_SERVERS and fleet.faults is not None:
            fleet.faults.begin(fault)
            self.ended_at = time.monotonic()  # a cut connection has no end event
        else:
            meddle(fault.kind, fleet.observer.app, fleet.note, all_ids(self.seen.asked))
        self.seen.met.append(Met(fault, self.fleet.record.now()))  # what is called from now on is not lost

    def _harm(self, fault: Fault, worker: WorkerProcess) -> None:
        if fault.kind == "child":
            for pid in worker.pool()[:1]:
                kill(pid)
        elif fault.kind == "freeze":
            self.frozen[fault] = worker.tree()
            for pid in self.frozen[fault]:
                kill(pid, signal.SIGSTOP)
        elif fault.kind == "restart":
            for pid in worker.tree():
                kill(pid, signal.SIGCONT)
            worker.signal(signal.SIGTERM)
            self.stopping.add(worker)
            # In a thread, because it may wait for a server that answers again only after a later event.
            self._thread(worker.name, self._restart, worker)
        else:
            pids = worker.tree()
            self.stopping.discard(worker)
            worker.kill()
            if fault.kind == "kill tree":
                for pid in pids:
                    kill(pid)
            self.fleet.start(fault.node)

    def _restart(self, worker: WorkerProcess) -> None:
        """Start *worker*, which has got SIGTERM, again when it has ended, unless a later fault does."""
        new = (-signal.SIGTERM,) if not READY.search(worker.log) else ()
        try:
            code = worker.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
        if worker in self.stopping:
            if code not in (0, 3, *new):
                self.seen.crashed.append(f"{worker.name} was stopped ({code}): {worker.log[-2000:]}")
            self.fleet.start(worker.name)
        self.stopping.discard(worker)

    def _end(self, fault: Fault) -> None:
        self.fleet.note("ends:", fault)
        self.ended_at = time.monotonic()
        for pid in self.frozen.pop(fault, ()):
            kill(pid, signal.SIGCONT)
        if fault.kind in OF_SERVERS and self.fleet.faults is not None:
            self.fleet.faults.end(fault)

    # -- the end --

    def _rest(self) -> None:
        """Wait until everything is quiet, or PATIENCE is over."""
        until, since = time.monotonic() + PATIENCE, None
        # Not all brokers count what waits in workers for its time, and results show it only if none is lost.
        stable = STABLE + (LONGEST if self.seen.may_lose else 0.0)
        while time.monotonic() < until:
            why = self._busy()
            if why:
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since > stable:
                delays = max(map(delays_of, self.case.orders), default=0.0)
                self.seen.rested = since - self.last - delays - SLOWER
                return
            time.sleep(LOOK)
        self.seen.stuck = self._busy() or "it comes never to rest"
        for thread in self.threads:
            if thread.is_alive():
                self.seen.stuck = f"{thread.name} waits for ever; {self.seen.stuck}"

    def _busy(self) -> str:
        """Return what is still to be done; "" if nothing is."""
        fleet, seen = self.fleet, self.seen
        if time.monotonic() - self.ended_at < RECOVERY:
            return "workers may be without their server"  # their errors would be logged in the next case
        for thread in self.threads:
            if thread.is_alive():
                return f"{thread.name} waits"
        for name, worker in fleet.running.items():
            if not worker.alive and worker not in self.stopping:
                seen.crashed.append(f"{name} ended: {worker.log[-2000:]}")
                fleet.start(name)
        try:
            queues = [
                info
                for info in fleet.observer.app.broker.admin.queues()
                if info.ready or info.delayed or info.leased
                if not fleet.place.shared or info.queue == fleet.place.queue
            ]
            if queues:
                return f"in queues: {queues}"
            joins = self._joins()
            for asked in seen.asked:
                want = self.wanted[asked.name]
                if not want.pending and not seen.may_lose:
                    for result in asked.results:
                        if not is_ready(result, self._app_of(asked)):
                            return f"{asked.name} has not ended"
        except QWorkerError as error:
            return f"nobody can look: {error!r}"
        if joins:
            return f"{joins} joins"
        return "" if seen.may_lose else self._missing()

    def _joins(self) -> int:
        """Return how many joins are left that should not be."""
        joins = self.fleet.joins
        return 0 if joins is None or self.seen.excused else max(0, joins.count() - self.older_joins)

    def _missing(self) -> str:
        """Return a call that has not run yet; "" if there is none. Brokers do not count messages held by
        workers."""
        record = self.fleet.record.read(self.fleet.observer.app)
        for asked in self.seen.asked:
            want = self.wanted[asked.name]
            if asked.revoked or asked.refused or want.refused:
                continue
            calls = len(asked.results)
            ran, heard = record.ran(asked.name), record.told[asked.name]
            for number, runs in want.runs.items():
                if ran[number] < runs * calls:
                    return f"{number} of {asked.name} is to run"
            for number, runs in want.told.items():
                if heard[number] < runs * calls:
                    return f"errback {number} of {asked.name} is to be told"
        return ""

    def _app_of(self, asked: Asked) -> Any:
        fleet = self.fleet
        return fleet.callers[int(asked.name[1:]) % 2].app if fleet.by_messages else fleet.observer.app

    def _look(self) -> None:
        fleet, seen = self.fleet, self.seen
        admin = fleet.observer.app.broker.admin
        seen.record = fleet.record.read(fleet.observer.app)
        if fleet.record.trouble:
            seen.record.unseen.clear()  # a store that was slow is a trouble, too, and no fault of the case
        if fleet.by_messages:
            seen.record.called.clear()  # their results went to the calling workers
            seen.record.unseen.clear()
        names = [repr(asked.name) for asked in seen.asked]  # the record has earlier cases, too
        seen.record.unseen[:] = [text for text in seen.record.unseen if any(name in text for name in names)]
        seen.tasks = sum(len(seen.record.runs[asked.name]) for asked in seen.asked)
        errors = list(fleet.record.errors)
        seen.errors += [text for (text,) in errors[len(self.errors) :]]
        dead = admin.dead(fleet.place.queue if fleet.place.shared else None, 1000)
        seen.left = {"dead": [letter.reason for letter in dead], "joins": self._joins()}
        seen.look(self._app_of)
        admin.dead_discard([letter.tag for letter in dead])


def run_real(case: Case, fleet: Fleet) -> Seen:
    """Run *case* on *fleet*; return what was seen."""
    return RealRunning(case, fleet).go()


@contextmanager
def sailing(world: RealWorld, place: Place, faults: Faults | None = None) -> Iterator[Fleet]:
    """Yield a fleet of *world*, and close it afterwards."""
    fleet = Fleet(world, place, faults)
    try:
        yield fleet
    finally:
        fleet.close()


# -- searching --


class RealSearch:
    """Rounds on servers of the *chosen* kinds. say: called with each line to report."""

    def __init__(self, chosen: Sequence[str], say: Callable[[str], None]) -> None:
        self.chosen = chosen
        self.say = say
        self.servers = Servers()
        self.sums: dict[str, list[float]] = {}
        self.failed: list[str] = []

    def round(self, kind: str, seed: int) -> None:
        """Run the cases of *seed* on one fleet, until one fails."""
        world = world_of(kind, seed)
        directory = Path(tempfile.mkdtemp(prefix="qworker-real-"))
        kept = False
        with (
            self.servers.opened(world.stores, directory) as (place, faults),
            sailing(world, place, faults) as fleet,
        ):
            for number, case in enumerate(cases_of(world, seed, CASES)):
                seen = run_real(case, fleet)
                sums = self.sums.setdefault(world.stores, [0.0] * 4)
                for column, value in enumerate((1, seen.tasks, len(seen.fired), seen.seconds)):
                    sums[column] += value
                if found := problems(seen):
                    kept = True
                    self._tell(kind, seed, number, seen, found, directory)
                    break
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)

    def _tell(
        self, kind: str, seed: int, number: int, seen: Seen, found: Sequence[str], directory: Path
    ) -> None:
        self.failed.append(f"{kind} {seed}, case {number}: {found[0]}")
        (directory / "log").write_text("\n".join(seen.log))
        lines = [
            f"=== seed {seed}, case {number}: python -m tests.simulation --real {kind} --case {seed}",
            *(f"problem: {each}" for each in found),
            *(f"fired: {each!r}" for each in seen.fired),
            f"{seen.case.world!r}; logs and record in {directory}",
        ]
        lines += [
            f"{asked.name}: {asked.order!r}; results {[each.id for each in asked.results]}"
            for asked in seen.asked
            if any(re.search(rf"\b{asked.name}\b", text) for text in found)
        ]
        self.say("\n".join(lines))

    def run(self, seeds: Iterator[int], seconds: float, most: int | None) -> None:
        """Run rounds on the chosen servers in turn for *seconds*, at most *most* of them."""
        start = time.monotonic()
        rounds = 0
        for seed in seeds:
            for kind in self.chosen:
                if time.monotonic() - start > seconds or (most is not None and rounds >= most):
                    return
                try:
                    self.round(kind, seed)
                except Exception:  # noqa: BLE001 - the next rounds are not affected
                    self.failed.append(f"{kind} {seed}: {traceback.format_exc()}")
                    self.say(self.failed[-1])
                rounds += 1
                self.say(f"{time.monotonic() - start:6.0f} s  {self.counted()}")

    def counted(self) -> str:
        cases, tasks = (sum(row[column] for row in self.sums.values()) for column in (0, 1))
        return f"{cases:.0f} cases  {tasks:.0f} tasks  {len(self.failed)} fail"

    def table(self) -> str:
        rows = [f"{'stores':<20}{'cases':>8}{'tasks':>9}{'faults':>9}{'s':>9}"]
        for stores, (cases, tasks, faults, seconds) in sorted(self.sums.items()):
            rows.append(f"{stores:<20}{cases:>8.0f}{tasks:>9.0f}{faults:>9.0f}{seconds:>9.1f}")
        return "\n".join(rows)


def search(names: str, minutes: float, seed: int, only: bool, say: Callable[[str], None]) -> int:
    """Run ``--real NAMES``; return 1 if a case failed. only: run only the round of *seed*."""
    wanted = kinds() if names == "all" else tuple(names.split(","))
    if strange := set(wanted) - set(kinds()):
        raise SystemExit(f"--real takes {', '.join(kinds())}, or all; not {', '.join(sorted(strange))}")
    chosen = []
    for kind in wanted:
        needed = {kind} | {results for broker, results in STORES.values() if broker == kind} & set(kinds())
        absent = next(filter(None, map(missing, needed)), None)
        if absent is None:
            chosen.append(kind)
        else:
            say(f"{kind} is left out: {absent} is not installed")
    say(f"seeds from {seed} on {', '.join(chosen)}; minutes: {minutes:g}")
    found = RealSearch(chosen, say)
    try:
        found.run(count(seed), float("inf") if only else minutes * 60, len(chosen) if only else None)
    except KeyboardInterrupt:
        say("interrupted")
    finally:
        found.servers.close()
    say(found.table())
    for each in found.failed:
        say(f"fails: {each}")
    return bool(found.failed)


__all__ = ["LEASE_SECONDS", "Fleet", "run_real", "sailing", "search"]
