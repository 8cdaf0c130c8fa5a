"""Two workers on one broker: what holds of them, whichever broker it is.

Comes from:  the fault tests, with their site.
Goes to:     the site's workers and ledger.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from tests.acceptance.harness import Site
from tests.acceptance.invariants import check
from tests.acceptance.ledger import ENDED, STARTED
from tests.acceptance.processes import gone, kill


def two_workers_share_a_queue(site: Site) -> None:
    """No message twice, and both work."""
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


def another_takes_over_from_who_is_killed(site: Site) -> None:
    """Well before the lease of 15 s is over."""
    first = site.start(name="one")
    go = site.path / "go"
    ids = [site.send("until_file", str(go)) for _ in range(2)]
    site.started(*ids)
    second = site.start(name="two")
    killed = time.monotonic()
    first.kill()
    again = site.started(*ids, times=2)
    assert max(record.monotonic for record in again) - killed < 5.0
    go.touch()
    site.drained()
    second.stop()
    check(site)


def nobody_waits_behind_a_long_task(site: Site) -> None:
    """What a busy worker has fetched ahead is given up to one that is idle; what runs is not known to be
    long."""
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


def little_is_lost_that_must_not_run_twice(site: Site) -> None:
    """Tasks with acks_late=False: a kill loses what runs and no more than could start at once."""
    first = site.start("-c", "4", name="one")
    ids = site.send_many("once", [(number, 0.03) for number in range(120)])
    site.until(lambda: len(site.records(kind=STARTED)) >= 40, "tasks to run")
    first.kill()
    for pid in first.seen:
        site.until(lambda pid=pid: gone(pid), "the children to go with their worker")
    started = [record.id for record in site.records(kind=STARTED)]
    second = site.start("-c", "4", name="two")
    site.ended(site.send("work", 1))  # which comes last
    site.until(lambda: not site.waiting(), "the rest to be taken")
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


def who_wakes_after_its_lease_starts_nothing(
    site: Site, freeze: Callable[[Site, list[int]], None] = freeze_all
) -> None:
    """Frozen with work fetched ahead, and awake again when another has done it: it starts nothing of that.
    Its processes were not frozen, so that they ask for more as soon as it wakes."""
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
    assert first.wait() in (0, 3)  # 3: what it had run was told only now that others had it
    second.stop()
    check(site, overlaps=True)
    starts = site.records(kind=STARTED)
    late = [one for one in starts if one.pid in pool and one.monotonic > thawed and one.id in ids]
    assert late == [], "others had these, and ran them"
