"""Invariants: what must hold after every fault, read from the ledger, the database and the logs.

I-1  no loss: each accepted call ended, or has a terminal state that says why not
I-2  once: a task that is acked early was never started twice
I-3  terminal: each accepted call has one terminal state
I-5  truth: SUCCESS has an end in the ledger; no FAILURE if every start has its end
I-6  bounded repeats: no more starts than deliveries and retries are allowed
I-7  no overlap: no two processes run the same message at the same time
I-8  on time: no start before the ETA
I-11 bounded: no process outlives its worker
I-13 unaltered: every run was sent, with the same arguments
I-14 logged: each death of a process and each dead letter is logged once
I-15 clean: no message, owner, notification pipe or lock is left

(I-4, I-9, I-10 and I-12 are checked in the tests that concern them.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from qworker.components.pool.child_handle import MAX_JOBS
from qworker.components.receiving.fetch_window import MAX_WINDOW
from tests.acceptance.harness import Site, until
from tests.acceptance.ledger import ENDED, STARTED, Record, digest
from tests.acceptance.processes import gone

MAX_DELIVERIES = 5
TERMINAL = {"SUCCESS", "FAILURE", "REVOKED"}
SLACK = 0.05
MOST_HELD = MAX_WINDOW + 2 * MAX_JOBS + 64
"""The number of very short tasks that a worker of two processes may hold: prefetched, in its children, and
ended but not acked. All of them may have run when the worker is killed, if acks are slow."""
ONCE = {"once"}


def check(
    site: Site,
    *,
    overlaps: bool = False,
    lost: Collection[str] = (),
    without_result: Collection[str] = (),
    again: Collection[str] = (),
    failures: bool = True,
    clean: bool = True,
    deliveries: int = MAX_DELIVERIES,
) -> None:
    """Assert every invariant, when all workers have stopped.

    overlaps: a worker was frozen or its disk was full, so the same call may have run twice at a time.
    lost: ids of early-acked tasks whose process was killed. without_result: ids that need no state. again:
    ids of early-acked tasks whose acks were lost when the server was killed. failures: whether I-5's
    second half holds (a killed worker may have run a task to its end unseen). deliveries: how often one
    call may have been delivered, including deliveries that the broker does not count.
    """
    starts, ends = _by_id(site, STARTED), _by_id(site, ENDED)
    states, dead = site.states(), site.dead()
    for id, (task, args, _) in site.sent.items():
        about = (
            f"{task}{args} [{id}]: {len(starts[id])} starts, {len(ends[id])} ends, {states.get(id)}, "
            f"{dead.get(id)}"
        )
        started = len(starts[id])
        if id in lost:
            assert task in ONCE, f"I-1 {about}"
        else:
            assert ends[id] or states.get(id) in ("REVOKED", "FAILURE") or id in dead, f"I-1 {about}"
            if id not in without_result:
                assert states.get(id) in TERMINAL, f"I-3 {about}"
        if task in ONCE:
            assert started <= (2 if id in again else 1), f"I-2 {about}"
        if states.get(id) == "SUCCESS":
            assert ends[id], f"I-5 {about}"
        if states.get(id) == "FAILURE" and failures and started and not task.startswith("misbehave"):
            assert len(ends[id]) < started, f"I-5 {about}"
        retries = max((record.attempt for record in starts[id]), default=0) if task == "flaky" else 0
        assert started <= deliveries + retries, f"I-6 {about}"
        for record in starts[id]:
            assert record.digest == digest(args), f"I-13 {about}"
            if id in site.due:
                assert record.wall >= site.due[id] - SLACK, f"I-8 {about}"
        # An attempt that was killed after sending the next one runs again: then two messages have the same
        # id.
        if not overlaps and not (task == "flaky" and started > args[0] + 1):
            _check_overlap(starts[id], ends[id], about)
    assert set(starts) <= {*site.sent, *site.unsure}, "I-13: something ran that was never sent"
    if clean:
        check_clean(site)


def check_clean(site: Site) -> None:
    """Nothing is left in the database, and no process of any worker lives."""
    for worker in site.workers:
        assert not worker.alive, f"I-11 {worker.name} still runs"
        for pid in worker.seen:
            until(lambda pid=pid: gone(pid), f"process {pid} of {worker.name} to end", worker, seconds=5)
    left = site.left()
    assert not left, f"I-15 {left}"


def _check_overlap(starts: list[Record], ends: list[Record], about: str) -> None:
    for end in ends:
        begin = max(
            (start for start in starts if start.pid == end.pid and start.monotonic <= end.monotonic),
            key=lambda start: start.monotonic,
            default=None,
        )
        if begin is None:
            continue  # a copy that the task had forked
        inside = [
            start
            for start in starts
            if start.pid != end.pid and begin.monotonic <= start.monotonic < end.monotonic
        ]
        assert not inside, f"I-7 {about}"


def _by_id(site: Site, kind: str) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in site.records(kind=kind):
        found[record.id].append(record)
    return found
