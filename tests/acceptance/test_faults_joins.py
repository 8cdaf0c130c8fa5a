"""Workers are killed at each crash point of a join; each body runs once."""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from qworker import chain, graph, group
from qworker.backends.joins import Join
from qworker.canvas.chords import chord
from qworker.canvas.plan import SEGMENT
from qworker.canvas.signatures import Signature
from qworker.errors import ChordError
from qworker.message.marks import JOINS
from qworker.naming import task_id
from tests.acceptance.harness import REPOSITORY, Site
from tests.acceptance.ledger import STARTED, messages_run
from tests.support.cases import cases

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

CALL = re.compile(r"""crash_point\("([^"]+)"\)""")
OWN = ("components/ending/joiner.py", "transports/sql/embedded/join_rows.py", "backends/sql/joins.py")
POINTS = sorted(
    {name for path in OWN for name in CALL.findall((REPOSITORY / "qworker" / path).read_text())}
    - {"body-sent"}  # used if messages are elsewhere
)
MEMBERS = 12


def open_join(site: Site, *members: Signature) -> str:
    """Send *members* of a join with a body; returns the body's id."""
    name, body = task_id(), Signature("gather", options={"task_id": task_id()}, app=site.client)
    site.client.backend.joins.open([Join(name, len(members), json.dumps(body).encode())])
    called = [member.clone(headers={JOINS: [[name, n]]}) for n, member in enumerate(members)]
    site.client.send_many(called)
    return str(body.id)


def work(site: Site, number: int) -> Signature:
    return Signature("work", (number,), app=site.client)


def starts(site: Site, task_id: str) -> int:
    return len([record for record in site.records(kind=STARTED) if record.id == task_id])


def test_expected_crash_points_exist() -> None:
    assert {"join-claimed", "body-made", "finishing-join", "join-finished", "parts-recorded"} <= set(POINTS)


@pytest.mark.parametrize("point", POINTS)
def test_crash_at_point(site: Site, point: str) -> None:
    """Every body runs once, with the values of all members in order, although some members ran twice."""
    site.settings.update(worker_lease_seconds=2, task_max_deliveries=8)
    bodies = [open_join(site, *(work(site, number) for number in range(MEMBERS))) for _ in range(10)]
    hit = site.path / "hit"
    worker = site.start(ready=False, environment={"QWORKER_CRASH_AT": f"{point}@{hit}"})
    site.until(hit.exists, "the crash")
    site.until(lambda: not worker.alive, "the worker to be dead")
    again = site.start(name="again")
    site.until(lambda: all(site.client.AsyncResult(body).ready() for body in bodies), "the bodies to end")
    site.drained()
    again.stop()
    for body in bodies:
        assert site.client.AsyncResult(body).get(timeout=5) == list(range(MEMBERS))
        assert starts(site, body) == 1
    assert site.client.backend.joins.count() == 0
    assert site.left() == []


def nested_workflows(site: Site) -> dict[str, tuple[Any, object]]:
    """Workflows of many joins, each with its value. Their bodies are close(), which returns its argument;
    a call of work() may be sent again with the task before it."""
    close, step = Signature("close", app=site.client), Signature("work", app=site.client)
    inner = chord([work(site, 1), work(site, 2)], close, app=site.client)
    fan = chain(work(site, 3), group(step, step), close, app=site.client)
    nodes = {"a": work(site, 1), "b": work(site, 2), **dict.fromkeys(("c", "d", "e"), close)}
    after = {"c": {"x": "a", "y": "b"}, "d": {"x": "a"}, "e": {"x": "c", "y": "d"}}
    c, d = {"x": 1, "y": 2}, {"x": 1}
    return {
        "nested": (chord([inner, fan, work(site, 4)], close, app=site.client), [[1, 2], [3, 3], 4]),
        "graph": (
            graph(nodes, after=after, app=site.client),
            {"a": 1, "b": 2, "c": c, "d": d, "e": {"x": c, "y": d}},
        ),
        "segments": (
            chain(work(site, 5), *(step if n % SEGMENT else close for n in range(1, 2 * SEGMENT + 3))),
            5,
        ),
    }


@pytest.mark.parametrize("kind", cases(["nested", "graph", "segments"], ["nested"]))
@pytest.mark.parametrize("point", POINTS)
def test_crash_within_a_nested_workflow(site: Site, point: str, kind: str) -> None:
    """Each body gets one message, however deeply nested."""
    site.settings.update(worker_lease_seconds=2, task_max_deliveries=8)
    results = []
    for _ in range(3 if kind == "segments" else 8):
        flow, value = nested_workflows(site)[kind]
        results.append(flow.apply_async())
    hit = site.path / "hit"
    worker = site.start(ready=False, environment={"QWORKER_CRASH_AT": f"{point}@{hit}"})
    site.until(hit.exists, "the crash")
    site.until(lambda: not worker.alive, "the worker to be dead")
    again = site.start(name="again")
    assert [result.get(timeout=60) for result in results] == [value] * len(results)
    site.drained()
    again.stop()
    assert {len(tags) for tags in messages_run(site.path / "bodies").values()} == {1}
    assert site.client.backend.joins.count() == 0
    assert site.left() == []


@pytest.mark.parametrize("point", ["joins-opened", "calls-sent"])
def test_chord_started_by_a_crashing_task_runs_its_body_once(site: Site, point: str) -> None:
    """The task is redelivered, and starts the chord again."""
    site.settings.update(worker_lease_seconds=2, task_max_deliveries=8)
    header = group(work(site, 7).set(immutable=True) for _ in range(3))
    results = [chain(work(site, 1), header, Signature("gather", app=site.client))() for _ in range(4)]
    hit = site.path / "hit"
    worker = site.start(environment={"QWORKER_CRASH_AT": f"{point}@{hit}"})
    site.until(hit.exists, "the crash")
    site.until(lambda: all(site.client.AsyncResult(each.id).ready() for each in results), "the bodies to end")
    site.drained()
    worker.stop()
    assert [site.client.AsyncResult(each.id).get(timeout=5) for each in results] == [[7, 7, 7]] * 4
    assert [starts(site, str(each.id)) for each in results] == [1] * 4
    assert (site.client.backend.joins.count(), site.left()) == (0, [])


@pytest.mark.parametrize("point", ["replacement-sent", "replacement-made"])
def test_replaced_task_that_crashes_is_replaced_by_the_same_calls(site: Site, point: str) -> None:
    """It is redelivered and sends the same calls again; its chord counts it once."""
    site.settings.update(worker_lease_seconds=2, task_max_deliveries=8)
    spread = [Signature("spread", (number,), app=site.client) for number in (0, 10, 20)]
    bodies = [chord([*spread, work(site, 30)])(Signature("gather", app=site.client)) for _ in range(4)]
    bodies.append((spread[0] | Signature("gather", app=site.client))())
    hit = site.path / "hit"
    worker = site.start(environment={"QWORKER_CRASH_AT": f"{point}@{hit}"})
    site.until(hit.exists, "the crash")
    site.until(lambda: all(site.client.AsyncResult(body.id).ready() for body in bodies), "the bodies to end")
    site.drained()
    worker.stop()
    values = [[0, 1, 2], [10, 11, 12], [20, 21, 22], 30]
    assert [site.client.AsyncResult(body.id).get(timeout=5) for body in bodies] == [*[values] * 4, values[0]]
    runs = [starts(site, str(body.id)) for body in bodies]
    assert runs[:4] == [1] * 4
    # 13 replaced tasks, their 39 calls, 4 other members, 5 bodies: none has two ids.
    assert len({record.id for record in site.records(kind=STARTED)}) == 13 + 39 + 4 + 5
    assert site.client.backend.joins.count() == 0
    assert site.left() == []


def test_task_that_crashes_in_add_to_chord_adds_the_same_member(site: Site) -> None:
    site.settings.update(worker_lease_seconds=2, task_max_deliveries=8)
    header = [Signature("widen", (0,), app=site.client), work(site, 10)]
    bodies = [chord(header)(Signature("gather", app=site.client)) for _ in range(4)]
    hit = site.path / "hit"
    worker = site.start(environment={"QWORKER_CRASH_AT": f"chord-grown@{hit}"})
    site.until(hit.exists, "the crash")
    site.until(lambda: all(site.client.AsyncResult(body.id).ready() for body in bodies), "the bodies to end")
    site.drained()
    worker.stop()
    assert [site.client.AsyncResult(body.id).get(timeout=5) for body in bodies] == [[0, 10, 1]] * 4
    assert [starts(site, str(body.id)) for body in bodies] == [1] * 4
    assert site.client.backend.joins.count() == 0
    assert site.left() == []


def test_member_whose_process_is_killed_fails_the_body_once(site: Site) -> None:
    site.settings.update(task_max_deliveries=1)
    errback = Signature("work", (7,), options={"task_id": task_id()}, immutable=True, app=site.client)
    name, body = task_id(), Signature("gather", options={"task_id": task_id()}, app=site.client)
    body.link_error(errback)
    site.client.backend.joins.open([Join(name, 2, json.dumps(body).encode())])
    for number, member in enumerate((work(site, 1), Signature("die_once", app=site.client))):
        member.clone(headers={JOINS: [[name, number]]}).apply_async()
    worker = site.start()
    result = site.client.AsyncResult(str(body.id))
    site.until(result.ready, "the body to fail")
    site.drained()
    worker.stop()
    assert result.state == "FAILURE"
    assert (starts(site, str(body.id)), starts(site, str(errback.id))) == (0, 1)
    assert site.client.backend.joins.count() == 0


@pytest.mark.parametrize("how", ["die", "outlast"])
@pytest.mark.parametrize("body", ["call", "group"])
def test_body_keeps_the_error_of_its_chord_when_an_errback_ends_its_process(
    site: Site, body: str, how: str
) -> None:
    """Even an error with values that marshal does not support, which the calls of a group get."""
    site.settings.update(task_max_deliveries=1)
    calls = [work(site, number).set(time_limit=1, immutable=True) for number in range(2)]
    path = site.path / "errors"
    calls[0].link_error(Signature("errback_once", (str(path), how), app=site.client))
    header = [Signature("fail_with_values", app=site.client), work(site, 1)]
    worker = site.start()
    ended = group(calls, app=site.client) if body == "group" else calls[0]
    sent = chord(header, ended, app=site.client).apply_async()
    results = sent.results if body == "group" else [sent]
    site.until(lambda: all(result.ready() for result in results), "the body to fail")
    assert site.client.AsyncResult(site.send("work", 5)).get(timeout=20) == 5
    worker.stop()
    errors = [result.get(propagate=False) for result in results]
    values = (uuid.UUID(int=7), datetime(2030, 1, 2, 3, tzinfo=UTC), Decimal("1.5"))
    if body == "group":
        assert [(type(error).__name__, error.args) for error in errors] == [("LookupError", values)] * 2
    else:
        assert [type(error).__name__ for error in errors] == ["ChordError"]
    assert path.read_text() == f"{errors[0]!r}\n" * 2


def test_errback_that_kills_each_worker_with_threads_is_not_called_forever(site: Site) -> None:
    """As often as one that kills processes: by each delivery, and twice later."""
    site.settings.update(task_max_deliveries=1)
    path = site.path / "errors"
    call = work(site, 1).set(immutable=True)
    call.link_error(Signature("errback_always", (str(path),), app=site.client))
    result = chord([Signature("fail_with_values", app=site.client)], call, app=site.client).apply_async()
    for _ in range(3):
        site.start("--pool", "threads", ready=False).wait()
    worker = site.start("--pool", "threads")
    site.drained()
    assert isinstance(result.get(propagate=False), ChordError)
    assert len(path.read_text().splitlines()) == 3
    worker.stop()


@pytest.mark.parametrize("how", ["die", "outlast"])
def test_errback_is_called_again_while_the_worker_stops(site: Site, how: str) -> None:
    site.settings.update(task_max_deliveries=1)
    path = site.path / "errors"
    body = work(site, 0).set(time_limit=1, immutable=True)
    body.link_error(Signature("errback_once", (str(path), how), app=site.client))
    header = [Signature("fail_with_values", app=site.client), work(site, 1)]
    worker = site.start()
    chord(header, body, app=site.client).apply_async()
    site.until(path.exists, "the errback to be called")
    worker.stop()
    assert len(path.read_text().splitlines()) == 2
