"""A call whose ids are settled, of itself or of what follows it, is made again: all of it runs again. The
same message that is delivered again sends the same calls, so that each body runs once."""

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


class House:
    """An app with its worker. ran: how often each task did."""

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
        """A chord of two whose ids are settled."""
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
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
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
    house = House(**settings)
    yield house
    house.app.close()


CALLS: dict[str, Callable[[House], Callable[[], object]]] = {
    "replaced": lambda house: lambda: house.app.tasks["become"].apply_async(task_id="mine"),
    "replaced by its name": lambda house: lambda: house.app.send_task("become", task_id="mine"),
    "replaced signature": lambda house: house.s("become").set(task_id="mine").delay,
    "replaced after retries": lambda house: lambda: house.app.tasks["retried"].apply_async(task_id="mine"),
    "replaced with its own apply_async": lambda house: (
        lambda: house.app.tasks["own"].apply_async(task_id="mine")
    ),
    "replaced, one of many": lambda house: (
        lambda: house.app.tasks["become"].apply_many([house.app.tasks["become"].s().set(task_id="mine")])
    ),
    "replaced, one of send_many": lambda house: (
        lambda: house.app.send_many([house.app.tasks["become"].s().set(task_id="mine")])
    ),
    "replaced link": lambda house: house.s("give").set(link=house.s("become").set(task_id="mine")).delay,
    "replaced link of a link": lambda house: (
        house.s("give").set(link=house.s("give").set(link=house.s("become").set(task_id="mine"))).delay
    ),
    "chord as link": lambda house: house.s("give").set(link=house.frozen()).delay,
    "chord as link of an option": lambda house: _calling(house.app.tasks["give"], link=house.frozen()),
    "graph as link": lambda house: house.s("give").set(link=house.frozen_graph()).delay,
    "chord as link_error": lambda house: house.s("fail").set(link_error=house.frozen()).delay,
    "graph as link_error": lambda house: house.s("fail").set(link_error=house.frozen_graph()).delay,
    "chord after a step": lambda house: chain(house.s("give"), house.frozen()).delay,
    "chord as a body": lambda house: chord([house.s("give")], house.frozen()).delay,
    "chord as link of a body": lambda house: (
        chord([house.s("give")], house.s("give").set(link=house.frozen())).delay
    ),
    "chord as errback of a chord": lambda house: (
        chord([house.s("fail")], house.s("give").on_error(house.frozen())).delay
    ),
    "chord in a group": lambda house: group(house.frozen(), house.s("give")).delay,
    "replaced body": lambda house: chord([house.s("give")], house.s("become").set(task_id="mine")).delay,
    "chord as link of a call in a transaction": lambda house: _held(house, link=house.frozen()),
}


def _calling(task: Any, **options: Any) -> Callable[[], object]:
    return lambda: task.apply_async(**options)


def _held(house: House, **options: Any) -> Callable[[], object]:
    def call() -> None:
        with holding_back(house.app) as held:
            house.app.tasks["give"].apply_async(**options)
        house.app.broker.sender.push(held)

    return call


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_made_again_runs_again(house: House, name: str) -> None:
    call = CALLS[name](house)
    with StepWorker(house.app) as worker:
        for time in (1, 2, 3):
            call()
            worker.run()
            assert house.ran["gather"] == time


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_made_twice_at_once_runs_twice(house: House, name: str) -> None:
    """In Celery's format the keys of a chord have no room for the run, so both are one there."""
    if not house.app.shared_canvas:
        pytest.skip("the format is Celery's")
    call = CALLS[name](house)
    with StepWorker(house.app) as worker:
        call()
        call()
        worker.run()
        assert house.ran["gather"] == 2


@pytest.mark.parametrize("name", CALLS)
def test_what_is_delivered_again_runs_its_body_once(house: House, name: str) -> None:
    call = CALLS[name](house)
    with StepWorker(house.app) as worker:
        for time in (1, 2):
            with holding_back(house.app) as held:
                call()
            for _ in range(2):
                house.app.broker.sender.push(held)
                worker.run()
            assert house.ran["gather"] == time


@pytest.mark.parametrize("numbered", [False, True])
def test_a_schedule_runs_what_follows_it_once_each_time(house: House, numbered: bool) -> None:
    """Its call may be published twice, by whoever takes over from a beat that died."""
    link = house.frozen()
    entries = [
        Entry(name="a", task="become", schedule=maybe_schedule(60)),
        Entry(name="b", task="give", schedule=maybe_schedule(60), options={"link": [dict(link)]}),
    ]
    with StepWorker(house.app) as worker:
        for time in (1, 2, 3):
            for entry in entries:
                for _ in range(2):
                    found = messages(
                        house.app, entry, 60.0 * time, id_of("", entry.name, 60.0 * time), numbered
                    )
                    house.app.broker.sender.push(found)
                    worker.run()
            assert house.ran["gather"] == 2 * time
