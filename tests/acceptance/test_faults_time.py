"""Time: delayed, expired and revoked tasks, and clocks that jump."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.harness import Site
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.processes import gone, kill

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

HOUR, DAY = 3600.0, 86400.0


# -- ETA --


def test_eta_is_respected(site: Site) -> None:
    """I-8: never early, and hardly late, with other tasks running all the time."""
    worker = site.start()
    for number in range(100):
        site.send("work", number, countdown=0.2 + number * 0.01)
        site.send("work", number)
    site.drained()
    worker.stop()
    check(site)
    late = [
        record.wall - site.due[record.id] for record in site.records(kind=STARTED) if record.id in site.due
    ]
    assert len(late) == 100
    assert sorted(late)[50] < 0.5, "on a busy machine, half of them within half a second"


def test_tasks_with_a_distant_eta_stay_in_the_broker(site: Site) -> None:
    """The worker only holds tasks that are due soon; the others use no memory and do not delay its
    shutdown."""
    worker = site.start()
    site.send_many("work", [(number,) for number in range(2000)], countdown=HOUR)
    near = [site.send("work", number, countdown=0.5) for number in range(5)]
    plain = [site.send("work", number) for number in range(20)]
    site.finished(*near, *plain)
    assert site.query("SELECT count(*) FROM message WHERE owner IS NOT NULL") == [(0,)]
    worker.stop()
    assert site.query("SELECT count(*), min(state), max(state) FROM message") == [(2000, 1, 1)]
    assert len(site.records(kind=STARTED)) == 25


def test_plain_tasks_do_not_wait_behind_delayed_ones(site: Site) -> None:
    """Three thousand tasks that are due soon fill the worker's schedule, but do not block the pool."""
    worker = site.start()
    site.send_many("work", [(number,) for number in range(3000)], countdown=60.0)
    site.send_many("work", [(number,) for number in range(1500)], countdown=4.0)
    site.until(
        lambda: site.query("SELECT count(*) FROM message WHERE owner IS NOT NULL")[0][0] > 100, "a fetch"
    )
    asked = time.time()
    ids = [site.send("work", number) for number in range(20)]
    site.finished(*ids)
    assert max(record.wall for id in ids for record in site.records(id, STARTED)) < asked + 2.0
    site.until(lambda: len(site.records(kind=STARTED)) == 1520, "those that are due")
    worker.stop()
    assert site.query("SELECT count(*) FROM message") == [(3000,)]


def test_many_tasks_due_at_the_same_time(site: Site) -> None:
    """F-62: more than the worker's schedule holds."""
    worker = site.start(worker_eta_task_limit=100)
    due = datetime.now(UTC) + timedelta(seconds=2)
    ids = site.send_many("work", [(number,) for number in range(1000)], eta=due)
    for id in ids:
        site.due[id] = due.timestamp()
    site.drained()
    worker.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == 1000


def test_unusual_etas(site: Site) -> None:
    worker = site.start()
    past = site.client.send_task("work", (1,), eta=datetime(1970, 1, 2, tzinfo=UTC)).id
    naive = site.client.send_task("work", (2,), eta=datetime.now(UTC).replace(tzinfo=None)).id
    never = site.client.send_task("work", (3,), eta=datetime(9999, 12, 31, 23, 59, tzinfo=UTC)).id
    site.finished(past, naive)
    assert site.query("SELECT count(*) FROM message WHERE owner IS NULL") == [(1,)]
    site.client.AsyncResult(never).revoke()
    worker.stop()
    assert never not in site.states()


def test_delayed_tasks_survive_a_kill_of_the_worker(site: Site) -> None:
    """F-58: in the worker's heap or in the broker, they run once, on time, in the next worker."""
    first = site.start()
    ids = [site.send("work", number, countdown=3.0 + number * 0.02) for number in range(100)]
    site.until(
        lambda: site.query("SELECT count(*) FROM message WHERE owner IS NOT NULL")[0][0] > 50, "a fetch"
    )
    first.kill()
    second = site.start(name="two")
    site.finished(*ids)
    site.drained()
    second.stop()
    check(site)
    starts = site.records(kind=STARTED)
    assert len(starts) == 100
    assert {record.attempt for record in starts} == {1}, "waiting is not running"


# -- expiry --


def test_expired_tasks_do_not_run(site: Site) -> None:
    """F-63: expired on arrival, while waiting for their ETA, or while waiting for a free slot."""
    worker = site.start("-c", "1")
    go = site.path / "go"
    site.started(site.send("until_file", str(go)))
    late = [
        site.send("work", 1, expires=datetime.now(UTC) - timedelta(seconds=5)),
        site.send("work", 2, expires=0.3),
        site.send("work", 3, countdown=1.5, expires=0.5),
    ]
    good = [site.send("work", 4, expires=60.0), site.send("work", 5, countdown=0.5, expires=60.0)]
    time.sleep(0.4)
    go.touch()
    site.finished(*late, *good)
    site.drained()
    worker.stop()
    check(site)
    assert {site.state(id) for id in late} == {"REVOKED"}
    assert {type(site.error(id)).__name__ for id in late} <= {"TaskExpired", "TaskRevoked"}
    assert {site.state(id) for id in good} == {"SUCCESS"}
    assert {record.id for record in site.records(kind=STARTED)} == {*good, *list(site.sent)[:1]}


# -- revocation --


def test_revoked_task_does_not_run(site: Site) -> None:
    """F-72: revoked before any worker runs, while waiting for a free slot, or while waiting for its ETA."""
    early = site.send("work", 1)
    site.client.AsyncResult(early).revoke()
    worker = site.start("-c", "1")
    site.finished(early)
    go = site.path / "go"
    blocker = site.send("until_file", str(go))
    site.started(blocker)
    waiting = [site.send("work", number) for number in range(10)]
    soon = site.send("work", 20, countdown=1.0)
    far = site.send("work", 21, countdown=HOUR)
    for id in (waiting[0], waiting[5], soon, far):
        site.client.AsyncResult(id).revoke()
    go.touch()
    site.finished(blocker, *waiting, soon)
    worker.stop()
    revoked = {early, waiting[0], waiting[5], soon}
    assert {id for id, state in site.states().items() if state == "REVOKED"} == revoked
    ran = {record.id for record in site.records()}
    assert ran == {blocker, *waiting} - revoked
    assert site.waiting() == 1, "the far one is settled when its time comes"


def test_revocations_survive_workers(site: Site) -> None:
    """They are stored in the broker: workers that start later, even after a kill, know them."""
    first = site.start()
    ids = [site.send("work", number, countdown=1.5) for number in range(4)]
    for id in ids[:2]:
        site.client.AsyncResult(id).revoke()
    first.kill()
    second = site.start(name="two")
    site.finished(*ids)
    second.stop()
    check(site)
    assert [site.state(id) for id in ids] == ["REVOKED", "REVOKED", "SUCCESS", "SUCCESS"]
    assert {record.id for record in site.records()} == set(ids[2:])


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_running_task_is_revoked_only_with_terminate(site: Site, signal: str) -> None:
    """Its process is ended and replaced; others are not affected."""
    worker = site.start()
    go = site.path / "go"
    left, ended = (site.send("until_file", str(go)) for _ in range(2))
    pids = {record.id: record.pid for record in site.started(left, ended)}
    site.client.AsyncResult(left).revoke()
    site.client.AsyncResult(ended).revoke(terminate=True, signal=signal)
    site.finished(ended)
    assert site.state(ended) == "REVOKED"
    assert gone(pids[ended])
    assert not gone(pids[left])
    worker.wait_pool()
    go.touch()
    site.finished(left)
    assert site.state(left) == "SUCCESS", "without terminate a running task is left alone"
    site.drained()
    worker.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == 2


def test_many_revocations_while_tasks_run(site: Site) -> None:
    """Every second of hundreds of tasks is revoked: each one ran to its end or never started."""
    worker = site.start()
    ids = site.send_many("work", [(number, 0.002) for number in range(400)])
    for id in ids[::2]:
        site.client.AsyncResult(id).revoke()
    site.drained()
    worker.stop()
    check(site)
    states, ran = site.states(), {record.id for record in site.records()}
    for id in ids:
        assert (states[id] == "SUCCESS") == (id in ran)
    assert all(states[id] == "SUCCESS" for id in ids[1::2])


# -- at most once --


def test_early_acked_tasks_never_run_twice(site: Site) -> None:
    """acks_late=False, while children and workers are killed: tasks may be lost, but not repeated."""
    ids = site.send_many("once", [(number, 0.01) for number in range(300)])
    for name in ("one", "two", "three"):
        worker = site.start(name=name)
        goal = len(site.records()) + 80
        site.until(lambda goal=goal: len(site.records()) > goal or not site.waiting(), "some to run")
        for pid in worker.pool():
            kill(pid)
        worker.kill()
    last = site.start(name="last")
    site.drained()  # they are acked before they run
    site.until(lambda: time.monotonic() - site.records()[-1].monotonic > 1.0, "the last of them to run")
    last.stop()
    done = {record.id for record in site.records(kind="E")}
    states = site.states()
    untold = [id for id in ids if id not in states]
    check(site, lost=[id for id in untold if id not in done], without_result=untold)
    assert len(done) >= 300 - 3 * (2 + 64), "what a worker had acked but not run is bounded"


# -- clocks --

JUMPING = """
import os, time

real, path = time.time, os.environ["CLOCK_FILE"]

def jumping():
    try:
        with open(path) as file:
            return real() + float(file.read())
    except (OSError, ValueError):
        return real()

time.time = jumping
"""


class Clock:
    """The wall clock of workers that are started with ``environment``; set() makes it jump."""

    def __init__(self, path: Path) -> None:
        self._file = path / "clock"
        (path / "jumping").mkdir()
        (path / "jumping" / "sitecustomize.py").write_text(JUMPING)
        self.set(0)
        self.environment = {
            "CLOCK_FILE": str(self._file),
            "PYTHONPATH": f"{path / 'jumping'}:{Path(__file__).resolve().parents[2]}",
        }

    def set(self, seconds: float) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._file)


@pytest.mark.parametrize("jump", [HOUR, -HOUR, DAY, -DAY, 365 * DAY])
def test_wall_clock_jumps_do_not_affect_leases_and_limits(site: Site, jump: float) -> None:
    """F-59: running tasks continue, and new ones run at once."""
    clock = Clock(site.path)
    site.settings["worker_lease_seconds"] = 1
    site.client.conf.update(result_expires=1000 * DAY)  # results do expire by the wall clock
    site.settings["result_expires"] = 1000 * DAY
    workers = [site.start(name=name, environment=clock.environment) for name in ("one", "two")]
    go = site.path / "go"
    running = site.send("until_file", str(go))
    limited = site.send("work", 0, 60.0, time_limit=2)
    site.started(running, limited)
    clock.set(jump)
    plain = [site.send("work", number) for number in range(50)]
    again = site.send("die_once", 1)
    site.finished(*plain, again, limited)
    assert type(site.error(limited)).__name__ == "TimeLimitExceeded"
    time.sleep(1.5)  # longer than the lease, by the monotonic clock
    assert len(site.records(running)) == 1, "nobody took it for lost"
    go.touch()
    site.finished(running)
    site.drained()
    for worker in workers:
        worker.stop()
        assert "is dead" not in worker.log
        assert "silent" not in worker.log
    check(site)


def test_etas_follow_the_wall_clock(site: Site) -> None:
    """If it is set forward, tasks that are due run within a second; if it is set back, they wait."""
    clock = Clock(site.path)
    worker = site.start(environment=clock.environment)
    soon = site.client.send_task("work", (1,), countdown=HOUR).id
    later = site.client.send_task("work", (2,), countdown=2 * HOUR).id
    site.finished(site.send("work", 0))
    assert site.waiting() == 2
    clock.set(1.5 * HOUR)
    site.finished(soon)
    assert later not in site.states()
    clock.set(0)
    site.finished(site.send("work", 3))
    assert later not in site.states()
    clock.set(3 * HOUR)
    site.finished(later)
    worker.stop()


def test_clock_set_back_while_a_task_waits_in_the_worker(site: Site) -> None:
    """It waits longer: its ETA is a wall clock time."""
    clock = Clock(site.path)
    worker = site.start(environment=clock.environment)
    id = site.client.send_task("work", (1,), countdown=1.0).id
    site.until(lambda: site.query("SELECT owner FROM message") != [(None,)], "the worker to hold it")
    clock.set(-30.0)
    site.finished(*(site.send("work", number) for number in range(5)))
    time.sleep(1.0)
    assert id not in site.states()
    clock.set(5.0)
    site.finished(id)
    worker.stop()
