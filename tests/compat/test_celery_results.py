"""Results between Celery and qworker: each reads what the other stores or sends."""

from __future__ import annotations

import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery", reason="the test extra installs it")

from qworker.message.context import Context
from qworker.results.result import AsyncResult
from tests.compat.fleet import PATIENCE, Fleet
from tests.support.beside_celery import BESIDE_CELERY, Pair, queue_on, redis_results, results_in

pytestmark = BESIDE_CELERY
VALUES = [None, 0, "Übermaß", [1, [2.5, None]], {"a": {"b": True}}]


@pytest.fixture(params=["redis", "sqlite", "postgresql"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with (
        results_in(request.param, tmp_path) as results,
        closing(Pair(broker_url="memory://", **results)) as pair,
    ):
        yield pair


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_celery_reads_our_results(pair: Pair, value: Any) -> None:
    backend, task_id = pair.ours.backend, str(uuid.uuid4())
    context = Context(id=task_id, task="t", children=[AsyncResult("child")])
    row = backend.row(task_id, backend.meta(task_id, "SUCCESS", value, context=context))
    assert row is not None
    backend.store_rows([row])
    result = pair.theirs.AsyncResult(task_id)
    assert result.get(timeout=10) == value
    assert result.state == "SUCCESS"
    assert [child.id for child in result.children] == ["child"]
    assert result.date_done is not None


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_celery_results_are_read(pair: Pair, value: Any) -> None:
    task_id = str(uuid.uuid4())
    pair.theirs.backend.store_result(task_id, value, "SUCCESS")
    result = pair.ours.AsyncResult(task_id)
    assert result.get(timeout=10) == value
    assert result.state == "SUCCESS"
    assert result.date_done is not None


def test_celery_raises_our_exceptions(pair: Pair) -> None:
    task_id = str(uuid.uuid4())
    backend = pair.ours.backend
    error = {"exc_type": "KeyError", "exc_message": ["no"], "exc_module": "builtins"}
    backend.store(task_id, backend.meta(task_id, "FAILURE", error, traceback="Traceback…"))
    result = pair.theirs.AsyncResult(task_id)
    with pytest.raises(KeyError, match="no"):
        result.get(timeout=10)
    assert result.traceback == "Traceback…"


def test_celery_exceptions_are_raised(pair: Pair) -> None:
    task_id = str(uuid.uuid4())
    pair.theirs.backend.mark_as_failure(task_id, KeyError("no"), traceback="Traceback…")
    result = pair.ours.AsyncResult(task_id)
    with pytest.raises(KeyError, match="no"):
        result.get(timeout=10)
    assert result.traceback == "Traceback…"


def test_success_is_not_overwritten_by_the_other_library(pair: Pair) -> None:
    one, two = str(uuid.uuid4()), str(uuid.uuid4())
    backend = pair.ours.backend
    pair.theirs.backend.store_result(one, 1, "SUCCESS")
    assert not backend.store(one, backend.meta(one, "FAILURE", {}))
    backend.store(two, backend.meta(two, "SUCCESS", 2))
    if not pair.theirs.conf.result_backend.startswith("db+"):  # where Celery itself checks before it writes
        pair.theirs.backend.mark_as_failure(two, KeyError("no"))
    assert [pair.theirs.AsyncResult(one).get(timeout=10), pair.ours.AsyncResult(two).get(timeout=10)] == [
        1,
        2,
    ]


def test_saved_groups_are_read_by_the_other_library(pair: Pair) -> None:
    described = [["g", None], [[["a", None], None], [["b", None], None]]]
    pair.ours.backend.save_group("g", described)
    group = pair.theirs.GroupResult.restore("g", backend=pair.theirs.backend)
    assert [child.id for child in group.children] == ["a", "b"]
    theirs = pair.theirs.GroupResult("h", [pair.theirs.AsyncResult("c")])
    theirs.save(backend=pair.theirs.backend)
    found = pair.ours.backend.get_group("h")
    assert [child[0][0] for child in found[1]] == ["c"]


def test_redis_waiters_are_woken_by_the_other_library() -> None:
    pair = Pair(broker_url="memory://", **redis_results())
    backend, waiting = pair.ours.backend, pair.theirs.AsyncResult("x")
    pair.theirs.backend.add_pending_result(waiting)
    timers = [
        threading.Timer(0.3, lambda: backend.store("x", backend.meta("x", "SUCCESS", 1))),
        threading.Timer(0.3, lambda: pair.theirs.backend.store_result("y", 2, "SUCCESS")),
    ]
    for timer in timers:
        timer.start()
    assert waiting.get(timeout=10) == 1
    assert pair.ours.AsyncResult("y").get(timeout=10) == 2
    for timer in timers:
        timer.join()
    pair.close()


@pytest.mark.parametrize("ending", ["", "1", "_", ".", ":", "-"])
def test_redis_key_prefixes_are_read_like_celery_does(ending: str) -> None:
    pair = Pair(broker_url="memory://", **redis_results("x" + ending))
    pair.theirs.backend.store_result("x", 1, "SUCCESS")
    pair.ours.backend.store("y", pair.ours.backend.meta("y", "SUCCESS", 2))
    assert pair.ours.AsyncResult("x").get(timeout=0) == 1
    assert pair.theirs.AsyncResult("y").get(timeout=0) == 2
    pair.close()


# -- rpc:// --

RPC_TASKS = """
@app.task(name="proj.add")
def add(x, y):
    return x + y

@app.task(name="proj.fail")
def fail():
    raise KeyError("no")
"""
RPC_APPS = {
    "celery": "from celery import Celery\napp = Celery('proj')\napp.conf.update({settings!r})\n" + RPC_TASKS,
    "qworker": "from qworker import QWorker\napp = QWorker('proj', **{settings!r})\n" + RPC_TASKS,
}
COMMANDS = {
    "celery": ["celery", "-A", "proj_celery", "worker", "-P", "solo", "--without-mingle", "--without-gossip"],
    "qworker": ["qworker", "-A", "proj_qworker:app", "start", "-c", "1"],
}


@pytest.fixture(params=["rabbitmq", "redis"])
def settings(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    with queue_on(request.param) as settings:
        yield {**settings, "result_backend": "rpc://"}


@pytest.fixture(params=["celery", "qworker"])
def worker(request: pytest.FixtureRequest, settings: dict[str, Any], tmp_path: Path) -> Iterator[str]:
    name = str(request.param)
    (tmp_path / f"proj_{name}.py").write_text(RPC_APPS[name].format(settings=settings))
    fleet = Fleet(tmp_path)
    process = fleet.start(*COMMANDS[name])
    yield name
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    fleet.kill()
    if "Traceback" in fleet.logs().replace("KeyError", ""):
        print(fleet.logs())


def check_rpc_calls(app: Any) -> None:
    assert app.send_task("proj.add", (1, 2)).get(timeout=PATIENCE) == 3
    results = [app.send_task("proj.add", (n, n)) for n in range(20)]
    assert [result.get(timeout=PATIENCE) for result in results] == [2 * n for n in range(20)]
    with pytest.raises(KeyError):
        app.send_task("proj.fail").get(timeout=PATIENCE)


def test_celery_client_gets_rpc_results(settings: dict[str, Any], worker: str) -> None:
    with closing(Pair(**settings)) as pair:
        check_rpc_calls(pair.theirs)


def test_our_client_gets_rpc_results(settings: dict[str, Any], worker: str) -> None:
    with closing(Pair(**settings)) as pair:
        check_rpc_calls(pair.ours)
