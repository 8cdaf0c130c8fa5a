"""Tests of single and several workers that apply to every broker.

Comes from:  the fault tests, with their site.
Goes to:     the site's workers and ledger.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from tests.acceptance.brokers import RemoteSite, Stream
from tests.acceptance.harness import PATIENCE, Site, WorkerProcess
from tests.acceptance.invariants import MOST_HELD, check, check_clean
from tests.acceptance.ledger import ENDED, STARTED
from tests.acceptance.private_servers import Server
from tests.acceptance.processes import gone, kill

A_DAY = 86400
"""Seconds. For a lease: no test waits until it expires."""


def repeated(site: Site) -> int:
    """The number of runs beyond one for each call."""
    starts = [record.id for record in site.records(kind=STARTED)]
    return len(starts) - len(set(starts))


def everything_runs_exactly_once(site: Site, calls: int = 300, later: float = 0.5) -> None:
    """The baseline without faults. calls: of the plainest task. later: seconds until some others are due."""
    worker = site.start()
    site.send_many("work", [(number,) for number in range(calls)])
    site.send_many("work_async", [(number, 0.01) for number in range(calls // 6)])
    for number in range(10):
        site.send("work", number, 0.01)
        site.send("work", number, countdown=later)
        site.send("flaky", 2)
        site.send("once", number)
    site.drained()
    site.ended(*site.sent)  # early-acked tasks are not in the broker while they run
    worker.stop()
    check(site)
    check_no_faults(site, worker)


def check_no_faults(site: Site, worker: WorkerProcess) -> None:
    """Each call has succeeded, at its only start unless it is retried. *worker* has logged no warning."""
    per_id = [len(site.records(id, STARTED)) for id in site.sent if site.sent[id][0] != "flaky"]
    assert per_id == [1] * len(per_id)
    assert worker.log.count("ERROR") == worker.log.count("WARNING") == 0, worker.log
    assert set(site.states().values()) == {"SUCCESS"}


def long_task_is_not_repeated(site: Site, seconds: float) -> None:
    """A live worker keeps tasks that run longer than its lease, also while it stops."""
    first = site.start()
    ids = [site.send("work", number, seconds) for number in range(2)]
    site.started(*ids)
    second = site.start(name="two")
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    site.drained()
    second.stop()
    check(site)
    assert repeated(site) == 0


def stop_returns_unstarted_tasks(site: Site, within: float = PATIENCE) -> int:
    """A worker is stopped before it has run everything. Returns the number of messages it has not started.
    within: as in stops()."""
    ids = [site.send("work", number, 1.0) for number in range(8)]
    worker = site.start()
    site.until(lambda: len(site.records(kind=STARTED)) == 2, "tasks to start")
    stops(worker, within)
    ran = len(site.records(kind=STARTED))
    assert ran < len(ids)
    return len(ids) - ran


def stops(worker: WorkerProcess, within: float) -> None:
    """Stop the worker within *within* seconds."""
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < within, "it does not wait for the end of a long poll"


def work_continues_after_a_restart(site: Site, worker: WorkerProcess, server: Server) -> None:
    """*server* was killed and has lost its data. *worker* runs what is sent after its restart."""
    site.until(lambda: "does not answer" in worker.log, "it to notice")
    server.start()
    site.client.broker.close()
    site.ended(site.send("work", 2))
    site.drained()
    worker.stop()


def killed_server_loses_nothing(
    site: RemoteSite, kill_it: Callable[[], None], start_it: Callable[[], None]
) -> None:
    """Under load; the server keeps its data. Running tasks continue, and no accepted call is lost."""
    worker = site.start()
    go = site.path / "go"
    later = site.send("work", 1, countdown=6.0)
    running = site.send("until_file", str(go))
    site.started(running)
    stream = Stream(site)
    site.until(lambda: len(site.records(kind=STARTED)) > 20, "tasks to start")
    kill_it()
    time.sleep(0.5)  # the server stays down
    start_it()
    known = len(site.sent)
    site.until(lambda: len(site.sent) > known + 20, "calls to be accepted again")
    stream.stop()
    go.touch()
    site.ended(later, site.send("work", 99))
    site.drained()
    worker.stop()
    check(site)


def few_tasks_repeat_when_workers_are_killed_at_full_speed(site: Site) -> None:
    """Three times: batches of acks may be lost with the process, but no message."""
    site.send_many("work", [(number,) for number in range(6000)])
    names = ("one", "two", "three")
    for name in names:
        worker = site.start(name=name)
        goal = len(site.records()) + 600
        site.until(lambda goal=goal: len(site.records()) >= goal or not site.waiting(), "some tasks to run")
        worker.kill()
    last = site.start(name="last")
    site.drained(120.0)
    last.stop()
    check(site)
    assert repeated(site) <= len(names) * MOST_HELD, (
        "what a worker had done but not acked is bounded by what it holds"
    )


def two_workers_share_a_queue(site: Site) -> None:
    """No message runs twice, and both get some."""
    workers = [site.start(name=name) for name in ("one", "two")]
    site.send_many("work", [(number, 0.01) for number in range(400)])
    site.drained()
    pools = [{*worker.pool()} for worker in workers]
    for worker in workers:
        worker.stop()
    check(site)
    ran = [record.pid for record in site.records(kind=STARTED)]
    assert len(ran) == 400
    shares = [sum(pid in pool for pid in ran) for pool in pools]
    assert min(shares) > 40, shares


def killed_worker_is_taken_over_by_another(site: Site) -> None:
    """Whatever its lease."""
    site.settings["worker_lease_seconds"] = A_DAY
    first = site.start(name="one")
    go = site.path / "go"
    ids = [site.send("until_file", str(go)) for _ in range(2)]
    site.started(*ids)
    second = site.start(name="two")
    first.kill()
    site.started(*ids, times=2)
    go.touch()
    site.drained()
    second.stop()
    check(site)


def short_tasks_do_not_wait_behind_a_long_one(site: Site) -> None:
    """A busy worker gives prefetched messages to an idle one; it is not known whether the running tasks
    are long."""
    first = site.start(name="one")
    go = site.path / "go"
    ids = [site.send("until_file", str(go)) for _ in range(6)]
    site.until(lambda: len(site.records(kind=STARTED)) == 2, "the first worker to be busy")
    others = [site.start(name=name) for name in ("two", "three")]
    site.started(*ids)
    assert site.records(kind=ENDED) == []
    go.touch()
    site.drained()
    for worker in (first, *others):
        worker.stop()
    check(site)
    assert {record.attempt for record in site.records()} == {1}


def few_early_acked_tasks_are_lost(site: Site) -> None:
    """Tasks with acks_late=False: a kill only loses running tasks and those that could have started at
    once."""
    first = site.start("-c", "4", name="one")
    ids = site.send_many("once", [(number, 0.03) for number in range(120)])
    site.until(lambda: len(site.records(kind=STARTED)) >= 40, "tasks to run")
    first.kill()
    for pid in first.seen:
        site.until(lambda pid=pid: gone(pid), "the children to go with their worker")
    started = [record.id for record in site.records(kind=STARTED)]
    second = site.start("-c", "4", name="two")
    site.until(lambda: not site.waiting(), "the rest to be taken")
    # It resends messages that it has acked but not started when it stops: the last one makes the others start
    # first.
    site.ended(site.send("once", 120, 0.3))
    second.stop()
    ran = [record.id for record in site.records(kind=STARTED)]
    assert len(ran) == len(set(ran))
    unseen = set(started) - set(site.states())
    never = set(ids) - set(ran)
    assert len(never) <= 4, f"{len(never)} were lost that had not started"
    cut = set(started) - {record.id for record in site.records(kind=ENDED)}
    check(site, lost=never | cut, without_result=unseen)


def freeze_all(site: Site, pids: list[int]) -> None:
    for pid in pids:
        kill(pid, signal.SIGSTOP)


def worker_thawed_after_its_lease_starts_nothing(
    site: Site, freeze: Callable[[Site, list[int]], None] = freeze_all
) -> None:
    """Frozen with prefetched messages, and thawed after another worker has run them. Only the main process
    is frozen, so its children ask for more tasks as soon as it is thawed."""
    site.settings["worker_lease_seconds"] = 2
    first = site.start("-c", "4", name="one")
    ids = set(site.send_many("work", [(number, 0.02) for number in range(200)]))
    site.until(lambda: len(site.records(kind=STARTED)) >= 40, "tasks to run")
    freeze(site, [first.pid])
    pool = {record.pid for record in site.records(kind=STARTED)}
    second = site.start("-c", "4", name="two")
    site.drained()
    thawed = time.monotonic()
    first.signal(signal.SIGCONT)
    site.until(lambda: "silent" in first.log or "lease was lost" in first.log, "it to notice")
    site.ended(site.send("work", 1), site.send("work", 2))
    first.signal(signal.SIGTERM)
    assert first.wait() in (0, 3)  # 3: it learned only now that others ran its tasks
    second.stop()
    check(site, overlaps=True)
    starts = site.records(kind=STARTED)
    late = [one for one in starts if one.pid in pool and one.monotonic > thawed and one.id in ids]
    assert late == [], "others had these, and ran them"


def frozen_worker_blocks_no_others(site: Site, point: str) -> None:
    """It is frozen within a transaction, at *point*, and has locked rows of its messages and of a join: other
    workers start and run tasks. It is thawed after they have run its own."""
    site.settings["worker_lease_seconds"] = 3
    hold = site.path / "hold"
    first = site.start("-c", "2", name="one", environment={"QWORKER_HOLD_AT": f"{point}@{hold}"})
    spread = site.send_many("spread", [(number, 20) for number in range(5)])
    site.until(hold.exists, "the worker to settle")
    kill(first.pid, signal.SIGSTOP)
    frozen = time.monotonic()
    second = site.start("-c", "2", name="two")
    site.ended(site.send("work", 1))
    assert time.monotonic() - frozen < 15, "it waited for the frozen one"
    site.drained()
    assert "lease was lost" not in second.log
    hold.write_text("go on")
    first.signal(signal.SIGCONT)
    site.until(lambda: "silent" in first.log or "lease was lost" in first.log, "it to notice")
    site.ended(site.send("work", 1), site.send("work", 2))
    second.stop()
    first.stop()
    values = [site.client.AsyncResult(id).get(timeout=5) for id in spread]
    assert values == [list(range(number, number + 20)) for number in range(5)]
    check_clean(site)


def worker_frozen_while_dispatching_starts_nothing(
    site: Site, point: str, whole: bool, freeze: Callable[[Site, list[int]], None] = freeze_all
) -> None:
    """Its lease was valid when checked, and has expired when the pool gets the tasks: others have them.

    point: where one of its threads is held meanwhile. whole: its children are frozen, too. Then the thread
    continues before the worker can notice; otherwise when it has a new lease, unless this thread must
    renew it.
    """
    site.settings["worker_lease_seconds"] = 2
    hold = site.path / "hold"
    first = site.start(name="one", environment={"QWORKER_HOLD_AT": f"{point}@{hold}"})
    pool = first.wait_pool()
    ids = set(site.send_many("work", [(number,) for number in range(1 if point == "offering" else 20)]))
    site.until(hold.exists, "the worker to give out a task")
    frozen = first.tree() if whole else [first.pid]
    freeze(site, frozen)
    second = site.start(name="two")
    site.drained()
    thawed = time.monotonic()
    if whole or point == "offering":
        hold.write_text("go on")
    for pid in frozen:
        kill(pid, signal.SIGCONT)
    site.until(lambda: "silent" in first.log or "lease was lost" in first.log, "it to notice")
    hold.write_text("go on")
    second.stop()
    site.ended(site.send("work", 1), site.send("work", 2))
    first.stop()
    check(site, overlaps=True)
    starts = [one for one in site.records(kind=STARTED) if one.id in ids]
    assert [one for one in starts if one.pid in pool and one.monotonic > thawed] == []
    assert len(starts) == len(ids)
