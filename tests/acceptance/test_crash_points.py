"""F-20: a kill at each crash point between claim and ack; afterwards every guarantee holds.

The points are read from the source, so new ones are tested automatically. Each kills one process, once: a
child, which the worker replaces, or the worker, which is restarted here.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.harness import REPOSITORY, Site
from tests.acceptance.invariants import check
from tests.acceptance.ledger import ENDED

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

CALL = re.compile(r"""crash_point\("([^"]+)"\)""")
EVERYTHING = [
    path for path in sorted((REPOSITORY / "qworker").rglob("*.py")) if path.name != "crash_points.py"
]
SOURCES = [
    path
    for path in EVERYTHING
    if path.name not in ("join_rows.py", "joiner.py", "joins.py", "replacement.py", "workflows.py")
    and not path.name.endswith("_joins.py")
    and not {"beat", "django", "spooler"} & set(path.parts)
    and ("transports" not in path.parts or path.parent.name == "embedded" or path.match("sql/reclaim.py"))
]
"""Other brokers have points of the same names at the same steps; the nemesis kills their workers. Points
of workflows, joins and replacements are tested in test_faults_joins.py, those of joins also in
tests/contract/test_joins.py with every backend, those of schedules in test_faults_schedules.py and
test_django_schedules.py, those of spool files in test_spool_crashes.py."""
POINTS = sorted(name for path in SOURCES for name in CALL.findall(path.read_text(encoding="utf-8")))


def test_crash_points_have_unique_names() -> None:
    assert len(POINTS) == len(set(POINTS)) > 20


def test_crash_points_left_out_here_are_tested_elsewhere() -> None:
    there = {name for path in EVERYTHING for name in CALL.findall(path.read_text(encoding="utf-8"))}
    others = [path for path in (REPOSITORY / "tests").rglob("*.py") if path != Path(__file__)]
    named = "".join(path.read_text(encoding="utf-8") for path in others)
    assert {name for name in there - set(POINTS) if not re.search(rf'"{name}["@]', named)} == set()


def leave_a_dead_worker(site: Site) -> None:
    """Leaves a message to reclaim."""
    never = site.path / "never"
    id = site.send("until_file", str(never))
    site.started(id)
    site.workers[-1].kill()
    never.touch()


def send_everything(site: Site) -> None:
    """Calls that use every path through the worker: plain, async, delayed, early-acked, retried, tracked,
    killing their process, undecodable."""
    for number in range(8):
        site.send("work", number)
        site.send("work_async", number, 0.005)
        site.send("once", number)
        site.send("work", number, countdown=1.2)
    site.send("flaky", 2)
    site.send("tracked", 1, 0.01)
    site.send("die_once", 1)
    site.send("misbehave", "SystemExit")
    site.insert("{", None, b"")
    site.client.send_task("no_such_task")


@pytest.mark.parametrize("point", POINTS)
def test_crash_at_point(site: Site, point: str) -> None:
    site.settings.update(
        task_unknown_delays="0.05", worker_eta_window=0.5, worker_lease_seconds=2, task_max_deliveries=8
    )
    site.start(name="zero")
    leave_a_dead_worker(site)
    send_everything(site)
    hit = site.path / "hit"
    worker = site.start(ready=False, environment={"QWORKER_CRASH_AT": f"{point}@{hit}"})

    def done() -> bool:
        return not worker.alive or (site.waiting() == 0 and bool(site.states()))

    site.until(lambda: hit.exists() or done(), "the crash, or the end of the work")
    for number in range(40):  # for points that are only reached by a worker that is otherwise idle
        if hit.exists() or not worker.alive:
            break
        alone = site.send("work", number)
        site.until(lambda alone=alone: hit.exists() or site.records(alone, ENDED), "a lone call to end")
    if not hit.exists():  # for points of the shutdown or of a longer run
        slow = [site.send("work", number, 0.8) for number in range(6)]
        site.send("work", 1, countdown=0.7)
        site.until(lambda: hit.exists() or site.records(slow[0], ENDED), "the first of them to end")
        worker.signal(signal.SIGTERM)
        site.until(lambda: not worker.alive, "the worker to end")
    assert hit.exists(), f"{point} was never reached"
    site.until(done, "the work to end, or the worker")
    if worker.alive:
        worker.stop()
    again = site.start(name="again")
    site.drained()
    site.until(
        lambda: set(site.states()) >= {id for id, call in site.sent.items() if call[0] != "once"}, "results"
    )
    again.stop()
    assert "Traceback" not in again.log.replace("SystemExit", "").partition("raised after")[0]
    states = site.states()
    untold = [id for id, call in site.sent.items() if call[0] == "once" and id not in states]
    assert len(untold) <= 8
    check(site, lost=untold, failures=False)
    assert len(site.dead()) == 2, "the unreadable and the unknown, once each"


PRODUCER = """
import sys
from qworker import QWorker
app = QWorker("producer", broker=sys.argv[1])
for number in range(3):
    print(app.send_task("work", (number,)).id, flush=True)
"""


@pytest.mark.parametrize("point", ["publishing", "published"])
def test_producer_crash_at_point(site: Site, point: str) -> None:
    """F-51: before the commit the message does not exist; after it, it does, although the caller got no
    answer."""
    hit = site.path / "hit"
    ended = subprocess.run(
        [sys.executable, "-c", PRODUCER, site.url],
        env=site.environment() | {"QWORKER_CRASH_AT": f"{point}@{hit}"},
        cwd=site.path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == ""
    assert site.waiting() == (1 if point == "published" else 0)
    assert site.query("PRAGMA integrity_check") == [("ok",)]


def test_crash_points_do_nothing_without_the_variable(tmp_path: Path) -> None:
    code = (
        "from qworker.process.crash_points import CRASHING, crash_point; crash_point('ran'); print(CRASHING)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert ended.stdout == "False\n"
