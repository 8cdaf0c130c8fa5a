"""search: looks for failing cases, with many seeds in several processes.

Comes from:  the command line: ``python -m tests.simulation``; ``make simulate``.
Goes to:     a report on the terminal and, with ``--out``, in a file.
Thread:      one here; each worker process runs one case after another.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import os
import re
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count, islice, repeat
from random import SystemRandom
from typing import Any

from qworker.components.pool.zygote import PR_SET_PDEATHSIG
from tests.simulation.case import Case
from tests.simulation.checks import problems
from tests.simulation.covering import Covered, Label, labels
from tests.simulation.crashing import points
from tests.simulation.drawing import BLOCK, CHOICES, case_of, is_django
from tests.simulation.program import Record
from tests.simulation.run import Seen, run
from tests.simulation.shrinking import SECONDS, Shrunk, as_test, kind_of, shrunk
from tests.simulation.stores import STORES
from tests.simulation.timetables import scheduled_of
from tests.simulation.tracing import Trace

PATIENCE = 120
"""CPU seconds in which a case must end; not wall time, since the machine may be busy."""
MOST_SHRUNK = 2
"""Cases to report and shrink for each kind of problem; of others, only the first problem is reported."""
MOST_TRACED = 400
MOST_MISSING = 40
"""Pairs to list."""
ENOUGH = 1000
"""Cases after which the report lists what they never had; after a few, that is nearly everything."""
NAME = re.compile(r"(?<![\w-])(?:[fj]\d+(?=:)|e\d+(?![\w-]))")
"""The name of an order, a job or an entry in a problem."""
EPILOG = """examples:
  python -m tests.simulation --minutes 30 --jobs 2        fresh seeds for half an hour
  python -m tests.simulation --case 4711                  one case, with the log of what failed in it
  python -m tests.simulation --case 4711 --log            the same, with the log of all that it did
  python -m tests.simulation --world stores=sqlite workers=1 --orders 25"""


@dataclass(frozen=True)
class Found:
    """The summary of a run, sent by its process."""

    seed: int
    problems: tuple[str, ...]
    labels: frozenset[Label]
    tasks: int
    turns: int
    seconds: float
    """CPU seconds."""
    points: tuple[str, ...] = ()
    """The crash points at which a node died."""
    faults: tuple[str, ...] = ()
    """The kinds of the faults that occurred."""

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(map(kind_of, self.problems))


@dataclass(frozen=True)
class Drawing:
    """How a seed becomes a case; a negative one becomes schedules. orders: how many; None for a random
    number. only: "django" or "schedules" for cases of one kind."""

    world: tuple[tuple[str, Any], ...] = ()
    orders: int | None = None
    only: str = ""

    def seeds(self, first: int) -> Iterator[int]:
        """Yield the seeds from *first*, and after every fifth a case of schedules."""
        for seed in count(first):
            if self.only == "schedules":
                yield -seed
            elif self.only != "django" or is_django(seed):
                yield seed
            if not self.only and seed and seed % 5 == 0:
                yield -seed

    def case(self, seed: int) -> Case:
        dimensions = dict(self.world)
        return case_of(seed, self.orders, **dimensions) if seed >= 0 else scheduled_of(-seed, **dimensions)

    def again(self, seed: int) -> str:
        """Return the command that runs the case of *seed*."""
        words = ["python", "-m", "tests.simulation", "--case", str(seed)]
        if self.orders is not None:
            words += ["--orders", str(self.orders)]
        if self.world:
            words += ["--world", *(f"{name}={value}" for name, value in self.world)]
        return shlex.join(words)


class TooLong(BaseException):
    """A case did not end in time."""


@contextmanager
def _patience(seconds: int) -> Iterator[None]:
    def over(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def look(case: Case) -> tuple[Seen, list[str]]:
    """Run *case*; return what was seen and its problems, which may include that it does not end."""
    try:
        with _patience(PATIENCE):
            seen = run(case)
    except TooLong:
        seen = Seen(case, Record(), broken=f"the case does not end within {PATIENCE} s of the processor")
    return seen, problems(seen)


def _die_with_parent() -> None:
    with suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def find(drawing: Drawing, seed: int) -> Found:
    """Run the case of *seed*."""
    case = drawing.case(seed)
    start = time.process_time()
    seen, found = look(case)
    return Found(
        seed,
        tuple(found),
        labels(case, seen.fired),
        seen.tasks,
        seen.turns,
        time.process_time() - start,
        tuple(fault.method for fault in seen.fired if fault.kind == "die"),
        tuple(fault.kind for fault in seen.fired),
    )


def report(drawing: Drawing, found: Found, seconds: float) -> str:
    """Return a report of a failing case: its problems, the case, made smaller in *seconds*, and its log."""
    case = drawing.case(found.seed)
    if seconds:
        smallest = shrunk(case, seconds, lambda case: look(case)[0], tuple(found.kinds))
        how = f"made smaller by {smallest.runs} runs"
        how += "" if smallest.finished else f"; after {seconds:g} CPU seconds it may not be the smallest"
    else:
        smallest, how = Shrunk(case, found.problems), "as drawn"
    traced = trace(smallest.case, smallest.problems)
    return "\n".join(
        [
            f"=== seed {found.seed}",
            f"again: {drawing.again(found.seed)}",
            f"world: {case.world!r}",
            *(f"problem: {each}" for each in found.problems),
            "",
            f"--- {how}",
            *(f"problem: {each}" for each in smallest.problems if seconds),
            "",
            printed(smallest.case, found.seed),
            "--- the log of what failed in it",
            *traced,
            "",
        ]
    )


def printed(case: Case, seed: int, how: str = "Found by the simulator with") -> str:
    """Return *case*, which comes from *seed*, as a test."""
    name = f"seed_{seed}".replace("-", "of_schedules_")
    return as_test(case, name, f"{how} seed {seed}.")


def trace(case: Case, found: Sequence[str], most: int = MOST_TRACED) -> list[str]:
    """Return *most* log lines of *case* about the orders, jobs and entries named in *found*, or about all if
    it names none."""
    told = Trace()
    try:
        with _patience(PATIENCE):
            seen = run(case, told)
    except TooLong:
        return ["it does not end"]
    names = dict.fromkeys(name for each in found for name in NAME.findall(each))
    every = names or {*told.orders.values(), *(asked.name for asked in seen.asked)}
    lines = told.lines(seen.log, *every)
    more = len(lines) - most
    return lines if more <= 0 else [*lines[:most], f"and {more} more lines"]


def one(drawing: Drawing, seed: int, shrink: float, log: bool, say: Callable[[str], None]) -> bool:
    """Run the case of *seed*; return whether it failed. log: report its whole log, and do not shrink it."""
    case, found = drawing.case(seed), find(drawing, seed)
    if not found.problems:
        say(printed(case, seed, "Drawn from"))
    if log:
        say("\n".join(["--- the whole log", *trace(case, (), sys.maxsize), ""]))
    say(f"tasks: {found.tasks}, turns: {found.turns}, CPU seconds: {found.seconds:.2f}")
    say(report(drawing, found, 0) if found.problems else "all is well")
    if found.problems and shrink and not log:
        say(report(drawing, found, shrink))
    return bool(found.problems)


class Search:
    """Runs cases in *jobs* processes. say: called with each line to report."""

    def __init__(self, drawing: Drawing, jobs: int, shrink: float, say: Callable[[str], None]) -> None:
        self.drawing = drawing
        self.jobs = jobs
        self.shrink = shrink
        self.say = say
        self.covered = Covered()
        self.failed: list[Found] = []
        self.per_store: dict[str, list[float]] = {}
        self.cases = 0
        self.points: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._shrunk: dict[frozenset[str], int] = {}
        self._told = 0.0

    def run(self, seeds: Iterator[int], seconds: float) -> None:
        """Run the cases of *seeds* for *seconds*, and shrink those that fail."""
        start = time.monotonic()
        with ProcessPoolExecutor(self.jobs, initializer=_die_with_parent) as pool:
            waiting: dict[Future[Any], int] = {}
            while True:
                while len(waiting) < 2 * self.jobs and time.monotonic() - start < seconds:
                    seed = next(seeds, None)
                    if seed is None:
                        break
                    waiting[pool.submit(find, self.drawing, seed)] = seed
                if not waiting:
                    return
                done, _ = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in done:
                    waiting.pop(future)
                    result = future.result()
                    if isinstance(result, str):
                        self.say(result)
                    else:
                        self._add(result)
                        if result.problems and self._failed(result):
                            for most in (0, self.shrink) if self.shrink else (0,):
                                waiting[pool.submit(report, self.drawing, result, most)] = result.seed
                self._progress(time.monotonic() - start)

    def _add(self, found: Found) -> None:
        self.cases += 1
        self.covered.add(found.labels)
        self.points.update(found.points)
        self.faults.update(found.faults)
        store = next(value for _, name, value in found.labels if name == "stores")
        sums = self.per_store.setdefault(ast.literal_eval(store), [0.0] * 4)
        for place, value in enumerate((1, found.tasks, found.turns, found.seconds)):
            sums[place] += value

    def _failed(self, found: Found) -> bool:
        """Report the first problem of *found*; return whether to report the rest, and to shrink it."""
        self.failed.append(found)
        self.say(f"seed {found.seed} fails: {found.problems[0]}")
        count = self._shrunk[found.kinds] = self._shrunk.get(found.kinds, 0) + 1
        return count <= MOST_SHRUNK

    def _progress(self, passed: float) -> None:
        if (passed - self._told >= 1.0 and sys.stderr.isatty()) or passed - self._told >= 60.0:
            self._told = passed
            tasks = sum(sums[1] for sums in self.per_store.values())
            end = "\r" if sys.stderr.isatty() else "\n"
            print(
                f"{passed:6.0f} s  {self.cases} cases  {tasks:.0f} tasks  {len(self.failed)} fail  ",
                end=end,
                file=sys.stderr,
                flush=True,
            )

    def table(self) -> str:
        """Return a table of the speed and the coverage."""
        rows = [
            "turns: how often a part of a node had something to do; /s: in each CPU second",
            f"{'stores':<20}{'cases':>8}{'tasks':>9}{'turns':>10}{'cpu s':>8}{'cases/s':>9}{'tasks/s':>9}",
        ]
        sums = sorted(self.per_store.items())
        sums.append(
            ("all", [sum(column) for column in zip(*self.per_store.values(), strict=True)] or [0.0] * 4)
        )
        for store, (cases, tasks, turns, seconds) in sums:
            rate = max(seconds, 1e-9)
            rows.append(
                f"{store:<20}{cases:>8.0f}{tasks:>9.0f}{turns:>10.0f}{seconds:>8.1f}"
                f"{cases / rate:>9.1f}{tasks / rate:>9.0f}"
            )
        died = [f"{point} {self.points[point]}" for point in sorted(self.points)]
        never = sorted(
            {*chain(*map(points, STORES, repeat("worker")), points("sqlite", "beat"))} - {*self.points}
        )
        met = [f"{kind} {self.faults[kind]}" for kind in sorted(self.faults)]
        rows += ["", f"faults that occurred: {', '.join(met) or 'none'}"]
        rows += ["", f"crash points at which nodes died: {', '.join(died) or 'none'}"]
        if self.cases < ENOUGH:
            return "\n".join(
                [*rows, "", self.covered.table(), f"(what never met is listed after {ENOUGH} cases)"]
            )
        return "\n".join([*rows, f"at none: {', '.join(never)}", "", self.covered.table(MOST_MISSING)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a case failed."""
    options = parsed(arguments)
    if options.only == "schedules" and options.case is not None:
        options.case = -abs(options.case)
    drawing = Drawing(tuple(options.world), options.orders, options.only)
    out = open(options.out, "w", encoding="utf-8") if options.out else None  # noqa: SIM115

    def say(text: str) -> None:
        print(text, flush=True)
        if out is not None:
            print(text, file=out, flush=True)

    try:
        if options.real:
            from tests.simulation.real import search  # needs the servers' drivers

            first = options.case if options.seed is None else options.seed
            seed = SystemRandom().randrange(10**7) if first is None else first
            return search(options.real, options.minutes, seed, options.case is not None, say)
        if options.case is not None:
            return one(drawing, options.case, options.shrink, options.log, say)
        seed = SystemRandom().randrange(10**7) * BLOCK if options.seed is None else options.seed
        say(f"seeds from {seed}; processes: {options.jobs}; minutes: {options.minutes:g}")
        search = Search(drawing, options.jobs, options.shrink, say)
        seeds = islice(drawing.seeds(seed), options.cases)
        try:
            search.run(seeds, options.minutes * 60)
        except KeyboardInterrupt:
            say("interrupted")
        say(search.table())
        for found in search.failed:
            say(f"seed {found.seed} fails: {found.problems[0]}\n  again: {drawing.again(found.seed)}")
        say(f"{len(search.failed)} of {search.cases} cases fail")
        return bool(search.failed)
    finally:
        if out is not None:
            out.close()


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.simulation",
        description="Run simulated fleets of workers, with faults, and look for what goes wrong.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="for how long (default: 1)")
    parser.add_argument("--seed", type=int, help="the first seed (default: a fresh one)")
    parser.add_argument("--case", type=int, metavar="SEED", help="run the case of this seed only")
    parser.add_argument(
        "--log", action="store_true", help="with --case: show all that it did, and do not make it smaller"
    )
    parser.add_argument("--cases", type=int, help="how many cases at most")
    parser.add_argument(
        "--real",
        metavar="SERVERS",
        help="run on private servers, in real time: redis,postgresql,mariadb,rabbitmq,nats, or all",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--only", choices=("django", "schedules"), default="", help="cases of one kind (default: all)"
    )
    parser.add_argument("--orders", type=int, help="calls in each case (default: as drawn)")
    parser.add_argument(
        "--world", nargs="+", type=_dimension, default=[], metavar="NAME=VALUE", help="set a dimension: "
        f"{', '.join(CHOICES)}"
    )  # fmt: skip
    parser.add_argument(
        "--shrink",
        type=float,
        default=SECONDS,
        metavar="SECONDS",
        help="CPU seconds to make each failing case smaller (default: 60; 0: never)",
    )
    parser.add_argument("--out", help="a file for the report")
    return parser.parse_args(arguments)


def _dimension(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if name not in CHOICES:
        raise argparse.ArgumentTypeError(f"a world has no dimension {name!r}, but {', '.join(CHOICES)}")
    try:
        made: Any = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        made = value
    choices = tuple(STORES) if name == "stores" else tuple(dict.fromkeys(CHOICES[name]))
    if made not in choices:
        raise argparse.ArgumentTypeError(f"{name} is one of {', '.join(map(repr, choices))}, not {made!r}")
    return name, choices[choices.index(made)]


def same_hashes() -> None:
    """Restart this process with fixed hashes, so that logs are the same in each process."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
