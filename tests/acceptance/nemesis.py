"""Nemesis: random faults under a stream of tasks of all kinds, recovery, and a check of the guarantees.

    python -m tests.acceptance.nemesis --broker redis --seconds 120 --seed 7

Comes from:  brokers.py (a private server and a proxy), invariants.py (what must hold in the end).
Goes to:     a summary on stdout, exit code 1 and the violated invariant if there is one; test_nemesis.py.
Thread:      main injects faults; a Stream sends.

The same seed injects the same faults in the same order, as far as the machine's timing allows.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.brokers import FINAL, Broken, RemoteSite, Stream
from tests.acceptance.harness import WorkerProcess
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.private_servers import BROKERS, serving
from tests.acceptance.processes import kill
from tests.acceptance.proxy import BLACK_HOLE, REFUSE

WORKERS = 2
IN_FLIGHT = 16
"""Runs that one fault may repeat: tasks that are running, or done and not yet acknowledged, in both
workers."""
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


@dataclass
class Reckoning:
    """What happened. harms: how often each fault was injected. repeated: runs beyond one per call and retry.
    unsure: calls that raised. lost: early-acked calls whose worker was killed, which is allowed. slowest:
    seconds of one call."""

    harms: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    unsure: int = 0
    starts: int = 0
    repeated: int = 0
    lost: int = 0
    states: Counter[str] = field(default_factory=Counter)
    """Failures with their reasons."""
    slowest: float = 0.0
    drained: float = 0.0

    def __str__(self) -> str:
        return "\n".join(
            (
                f"harms      {sum(self.harms.values())}: "
                + ", ".join(f"{name} {count}" for name, count in sorted(self.harms.items())),
                f"calls      {self.accepted} accepted, {self.unsure} refused, slowest {self.slowest:.1f} s",
                f"runs       {self.starts}, of which {self.repeated} repeated",
                "ended      " + ", ".join(f"{count} {state}" for state, count in sorted(self.states.items())),
                f"lost       {self.lost} of those acknowledged before they run; none of the others",
                f"drained    {self.drained:.1f} s after the last harm",
            )
        )


class Nemesis:
    """chance: the source of every decision."""

    def __init__(self, broken: Broken, site: RemoteSite, chance: random.Random) -> None:
        self.broken, self.site, self.chance = broken, site, chance
        self.reckoning = Reckoning()
        self._born = 0
        self.broker_deaths: list[float] = []
        """Monotonic times."""

    def run(self, seconds: float) -> Reckoning:
        """Inject faults for that long, recover, drain, and check every invariant; AssertionError if one is
        violated."""
        picks = random.Random(self.chance.random())
        self.replace_the_dead()
        stream = Stream(self.site, 40.0, lambda number: pick(picks, number))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self.chance.uniform(0.0, 2.0))
            self.replace_the_dead()
            harm = self.chance.choice([*HARMS, *OWN_HARMS[type(self.broken.server).__name__]])
            self.reckoning.harms[harm.__name__.replace("_", " ")] += 1
            harm(self)
        self.heal()
        healed = time.monotonic()
        stream.stop()
        self.site.drained(seconds=90.0, but={"once"})
        self.reckoning.drained = time.monotonic() - healed
        self.reckoning.slowest = stream.slowest
        return self.judge()

    def replace_the_dead(self) -> None:
        """Like a supervisor."""
        for _ in range(WORKERS - len(self.living())):
            self._born += 1
            self.site.start(name=f"worker{self._born}", ready=False)

    def living(self) -> list[WorkerProcess]:
        return [worker for worker in self.site.workers if worker.alive]

    def heal(self) -> None:
        self.broken.proxy.heal()
        self.broken.server.thaw()
        if self.broken.server.process is None:
            self.broken.server.start()
        self.broken.server.wait()
        self.replace_the_dead()

    def judge(self) -> Reckoning:
        site, reckoning = self.site, self.reckoning
        lost = {id for id in site.pending() if site.sent[id][0] == "once"}
        for worker in self.living():
            worker.signal(signal.SIGTERM)
        for worker in self.living():
            worker.wait()
        harms = sum(reckoning.harms.values())
        again = self.forgotten()
        check(site, overlaps=True, failures=False, lost=lost, again=again, deliveries=harms + 5)
        starts = [
            (record.id, record.attempt) for record in site.records(kind=STARTED) if record.id in site.sent
        ]
        retries = {id: site.sent[id][1][0] for id in site.sent if site.sent[id][0] == "flaky"}
        reckoning.accepted, reckoning.unsure, reckoning.starts, reckoning.lost = (
            len(site.sent),
            len(site.unsure),
            len(starts),
            len(lost),
        )
        runs = Counter(id for id, _ in starts)
        reckoning.repeated = sum(max(0, count - 1 - retries.get(id, 0)) for id, count in runs.items())
        reckoning.states = Counter(
            f"{state} ({site.error(id)!r:.100})" if state == "FAILURE" else state
            for id, state in site.states().items()
            if state in FINAL
        )
        deaths = sum(1 for id in runs if site.sent[id][0] == "die_once")
        assert reckoning.repeated <= harms * IN_FLIGHT + deaths, f"I-6: {reckoning}"
        return reckoning

    def forgotten(self) -> set[str]:
        """Early-acked tasks that RabbitMQ delivered again because it was killed before the ack was on its
        disk."""
        if type(self.broken.server).__name__ != "RabbitMQ":
            return set()
        starts: dict[str, list[float]] = {}
        for record in self.site.records(kind=STARTED):
            starts.setdefault(record.id, []).append(record.monotonic)
        return {
            id
            for id, times in starts.items()
            if len(times) == 2 and any(times[0] - 1.0 < death < times[1] for death in self.broker_deaths)
        }

    # -- helpers for faults --

    def someone(self) -> WorkerProcess | None:
        living = self.living()
        return self.chance.choice(living) if living else None

    def rest(self, longest: float) -> None:
        time.sleep(self.chance.uniform(0.2, longest))


def pick(chance: random.Random, number: int) -> Call:
    """One call of a random kind."""
    kind = chance.random()
    if kind < 0.45:
        return "work", (number, chance.choice((0.0, 0.0, 0.01, 0.1))), {}
    if kind < 0.6:
        return "work_async", (number, 0.05), {}
    if kind < 0.75:
        return "work", (number,), {"countdown": chance.uniform(0.1, 4.0)}
    if kind < 0.85:
        return "flaky", (chance.randrange(3), 0.1), {}
    if kind < 0.95:
        return (
            "once",
            (number, 0.01),
            {"retry": False},
        )  # if it were sent again after a lost answer, it would run again
    if kind < 0.98:
        return "work", (number, chance.uniform(0.5, 2.0)), {}
    return "die_once", (number,), {}


# -- faults of workers --


def worker_killed(nemesis: Nemesis) -> None:
    if worker := nemesis.someone():
        worker.kill()


def tree_killed(nemesis: Nemesis) -> None:
    if worker := nemesis.someone():
        for pid in worker.tree():
            worker.seen.add(pid)
            kill(pid)
        worker.process.wait(30.0)


def child_killed(nemesis: Nemesis) -> None:
    if (worker := nemesis.someone()) and (pool := worker.pool()):
        kill(nemesis.chance.choice(pool))


def worker_stopped(nemesis: Nemesis) -> None:
    if worker := nemesis.someone():
        worker.signal(signal.SIGTERM)


def worker_frozen(nemesis: Nemesis) -> None:
    if worker := nemesis.someone():
        pids = worker.tree() if nemesis.chance.random() < 0.5 else [worker.pid]
        for pid in pids:
            kill(pid, signal.SIGSTOP)
        nemesis.rest(5.0)
        for pid in pids:
            kill(pid, signal.SIGCONT)


# -- faults of the broker and the network --


def broker_killed(nemesis: Nemesis) -> None:
    nemesis.broken.server.kill()
    nemesis.broker_deaths.append(time.monotonic())
    nemesis.rest(3.0)
    nemesis.broken.server.start()


def broker_frozen(nemesis: Nemesis) -> None:
    nemesis.broken.server.freeze()
    nemesis.rest(6.0)
    nemesis.broken.server.thaw()


def connections_cut(nemesis: Nemesis) -> None:
    for _ in range(nemesis.chance.randrange(1, 4)):
        nemesis.broken.proxy.cut(fin=nemesis.chance.random() < 0.3)
        time.sleep(nemesis.chance.uniform(0.0, 0.3))


def broker_refuses(nemesis: Nemesis) -> None:
    nemesis.broken.proxy.mode = REFUSE
    nemesis.broken.proxy.cut()
    nemesis.rest(3.0)
    nemesis.broken.proxy.heal()


def answers_lost(nemesis: Nemesis) -> None:
    """Requests arrive; the connections are cut before the answers do."""
    nemesis.broken.proxy.down.open = False
    nemesis.rest(5.0)
    nemesis.broken.proxy.cut()
    nemesis.broken.proxy.heal()


def questions_late(nemesis: Nemesis) -> None:
    nemesis.broken.proxy.up.open = False
    nemesis.rest(5.0)
    nemesis.broken.proxy.heal()


def black_hole(nemesis: Nemesis) -> None:
    nemesis.broken.proxy.mode = BLACK_HOLE
    nemesis.broken.proxy.up.lost = nemesis.broken.proxy.down.lost = True
    nemesis.rest(5.0)
    nemesis.broken.proxy.cut()
    nemesis.broken.proxy.heal()


def slow_network(nemesis: Nemesis) -> None:
    for link in (nemesis.broken.proxy.up, nemesis.broken.proxy.down):
        link.delay, link.rate = 0.05, 200_000.0
    nemesis.rest(3.0)
    nemesis.broken.proxy.heal()


def scripts_forgotten(nemesis: Nemesis) -> None:
    nemesis.broken.server.do("SCRIPT", "FLUSH")


def clients_killed(nemesis: Nemesis) -> None:
    nemesis.broken.server.do("CLIENT", "KILL", "TYPE", "normal")
    nemesis.broken.server.do("CLIENT", "KILL", "TYPE", "pubsub")


def backends_terminated(nemesis: Nemesis) -> None:
    nemesis.broken.server.terminate_backends()


def connections_closed(nemesis: Nemesis) -> None:
    nemesis.broken.server.do("close_all_connections", "--global", "nemesis")


Harm = Callable[[Nemesis], None]
HARMS: tuple[Harm, ...] = (
    worker_killed, tree_killed, child_killed, child_killed, worker_stopped, worker_frozen, broker_killed,
    broker_frozen,
    connections_cut, broker_refuses, answers_lost, questions_late, black_hole, slow_network,
)  # fmt: skip
OWN_HARMS: dict[str, tuple[Harm, ...]] = {
    "Redis": (scripts_forgotten, clients_killed),
    "PostgreSQL": (backends_terminated,),
    "RabbitMQ": (connections_closed,),
}


def unleash(broken: Broken, path: Path, seconds: float, seed: int) -> Reckoning:
    """One complete run against *broken*, with all files in *path*."""
    with (
        broken.exposed(),
        RemoteSite(path, broken.url, broken.direct, worker_lease_seconds=3, broker_heartbeat=4) as site,
    ):
        return Nemesis(broken, site, random.Random(seed)).run(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.partition("\n")[0])
    parser.add_argument("--broker", choices=BROKERS, default="redis")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    path = Path(tempfile.mkdtemp(prefix="qworker-nemesis-"))
    print(f"{given.broker}, {given.seconds:g} s, seed {given.seed}; logs and ledger in {path}", flush=True)
    with serving(given.broker) as server:
        try:
            print(unleash(Broken(server), path, given.seconds, given.seed))
        except AssertionError as error:
            print(f"BROKEN: {error}", *getattr(error, "__notes__", ()), sep="\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
