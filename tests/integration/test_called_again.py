"""A call with fixed ids that is made again runs again completely. A redelivered message sends the same calls
again, so each body runs once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, Task, chain, chord, graph, group
from qworker.beat.calls import id_of, messages
from qworker.beat.entry import Entry
from qworker.beat.kinds import maybe_schedule
from qworker.publishing.transactions import holding_back
from qworker.testing import StepWorker
from qworker.testing.store import MemoryStore
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration


class Env:
    """An app with tasks. ran: how often each task ran."""

    def __init__(self, **settings: Any) -> None:
        self.app = app = QWorker("again", set_as_current=False, **settings)
        self.ran: Counter[str] = Counter()

        @app.task(name="give")
        def give(*values: Any) -> Any:
            self.ran["give"] += 1
            return 1

        @app.task(name="gather")
        def gather(*values: Any) -> Any:
            self.ran["gather"] += 1
            return 2

        @app.task(name="fail")
        def fail(*values: Any) -> None:
            raise ValueError("no")

        @app.task(name="become", bind=True)
        def become(this: Any, *values: Any) -> Any:
            this.replace(chord([give.si(), give.si()], gather.s()))

        @app.task(name="retried", bind=True)
        def retried(this: Any) -> Any:
            if this.request.retries < 2:
                raise this.retry(countdown=0)
            this.replace(chord([give.si(), give.si()], gather.s()))

        class Own(Task):
            def apply_async(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
                return super().apply_async(args, kwargs, **options)

        @app.task(name="own", bind=True, base=Own)
        def own(this: Any, *values: Any) -> Any:
            if this.request.retries < 1:
                raise this.retry(countdown=0)
            this.replace(chord([give.si(), give.si()], gather.s()))

    def s(self, name: str, *args: Any) -> Any:
        return self.app.tasks[name].si(*args)

    def frozen(self) -> Any:
        """Return a frozen chord of two."""
        work = chord([self.s("give"), self.s("give")], self.app.tasks["gather"].s(), app=self.app)
        work.freeze()
        return work

    def frozen_graph(self) -> Any:
        work = graph(
            {"a": self.s("give"), "b": self.s("give"), "c": self.s("gather")}, after={"c": ["a", "b"]}
        )
        work.freeze()
        return work


@pytest.fixture(params=["memory", "sqlite", "sqlite, files", "redis, shared", "redis, celery"])
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    settings: dict[str, Any] = {"broker": f"sqlite:///{tmp_path}/q.db"}
    if request.param == "memory":
        settings = {"broker": MemoryStore(), "backend": "cache+memory://"}
    elif request.param == "sqlite, files":
        settings["backend"] = f"file://{tmp_path}/results"
    elif request.param != "sqlite":
        options = {"global_keyprefix": prefix_of(tmp_path)}
        settings = {
            "broker": require("redis"),
            "backend": require("redis"),
            "broker_transport_options": options,
            "result_backend_transport_options": options,
            "canvas_format": request.param.partition(", ")[2],
        }
    env = Env(**settings)
    yield env
    env.app.close()


CALLS: dict[str, Callable[[Env], Callable[[], object]]] = {
    "replaced": lambda env: lambda: env.app.tasks["become"].apply_async(task_id="mine"),
    "replaced by its name": lambda env: lambda: env.app.send_task("become", task_id="mine"),
    "replaced signature": lambda env: env.s("become").set(task_id="mine").delay,
    "replaced after retries": lambda env: lambda: env.app.tasks["retried"].apply_async(task_id="mine"),
    "replaced with its own apply_async": lambda env: lambda: env.app.tasks["own"].apply_async(task_id="mine"),
    "replaced, one of many": lambda env: (
        lambda: env.app.tasks["become"].apply_many([env.app.tasks["become"].s().set(task_id="mine")])
    ),
    "replaced, one of send_many": lambda env: (
        lambda: env.app.send_many([env.app.tasks["become"].s().set(task_id="mine")])
    ),
    "replaced link": lambda env: env.s("give").set(link=env.s("become").set(task_id="mine")).delay,
    "replaced link of a link": lambda env: (
        env.s("give").set(link=env.s("give").set(link=env.s("become").set(task_id="mine"))).delay
    ),
    "chord as link": lambda env: env.s("give").set(link=env.frozen()).delay,
    "chord as link of an option": lambda env: _calling(env.app.tasks["give"], link=env.frozen()),
    "graph as link": lambda env: env.s("give").set(link=env.frozen_graph()).delay,
    "chord as link_error": lambda env: env.s("fail").set(link_error=env.frozen()).delay,
    "graph as link_error": lambda env: env.s("fail").set(link_error=env.frozen_graph()).delay,
    "chord after a step": lambda env: chain(env.s("give"), env.frozen()).delay,
    "chord as a body": lambda env: chord([env.s("give")], env.frozen()).delay,
    "chord as link of a body": lambda env: chord([env.s("give")], env.s("give").set(link=env.frozen())).delay,
    "chord as errback of a chord": lambda env: (
        chord([env.s("fail")], env.s("give").on_error(env.frozen())).delay
    ),
    "chord in a group": lambda env: group(env.frozen(), env.s("give")).delay,
    "replaced body": lambda env: chord([env.s("give")], env.s("become").set(task_id="mine")).delay,
    "chord as link of a call in a transaction": lambda env: _held(env, link=env.frozen()),
}


def _calling(task: Any, **options: Any) -> Callable[[], object]:
    return lambda: task.apply_async(**options)


def _held(env: Env, **options: Any) -> Callable[[], object]:
    def call() -> None:
        with holding_back(env.app) as held:
            env.app.tasks["give"].apply_async(**options)
        env.app.broker.sender.push(held)

    return call


@pytest.mark.parametrize("name", CALLS)
def test_repeated_call_runs_again(env: Env, name: str) -> None:
    call = CALLS[name](env)
    with StepWorker(env.app) as worker:
        for time in (1, 2, 3):
            call()
            worker.run()
            assert env.ran["gather"] == time


@pytest.mark.parametrize("name", CALLS)
def test_call_made_twice_at_once_runs_twice(env: Env, name: str) -> None:
    """In Celery's format the keys of a chord do not contain the run, so both are one."""
    if not env.app.shared_canvas:
        pytest.skip("the format is Celery's")
    call = CALLS[name](env)
    with StepWorker(env.app) as worker:
        call()
        call()
        worker.run()
        assert env.ran["gather"] == 2


@pytest.mark.parametrize("name", CALLS)
def test_redelivered_message_runs_its_body_once(env: Env, name: str) -> None:
    call = CALLS[name](env)
    with StepWorker(env.app) as worker:
        for time in (1, 2):
            with holding_back(env.app) as held:
                call()
            for _ in range(2):
                env.app.broker.sender.push(held)
                worker.run()
            assert env.ran["gather"] == time


@pytest.mark.parametrize("numbered", [False, True])
def test_scheduled_call_runs_its_successors_once_per_due_time(env: Env, numbered: bool) -> None:
    """Its call may be published twice, by the successor of a beat that died."""
    link = env.frozen()
    entries = [
        Entry(name="a", task="become", schedule=maybe_schedule(60)),
        Entry(name="b", task="give", schedule=maybe_schedule(60), options={"link": [dict(link)]}),
    ]
    with StepWorker(env.app) as worker:
        for time in (1, 2, 3):
            for entry in entries:
                for _ in range(2):
                    found = messages(
                        env.app, entry, 60.0 * time, id_of("", entry.name, 60.0 * time), numbered
                    )
                    env.app.broker.sender.push(found)
                    worker.run()
            assert env.ran["gather"] == 2 * time
