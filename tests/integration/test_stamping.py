"""Stamps: from a signature to the requests of its tasks, to callbacks, and to results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, Task, canvas, chain, chord, graph, group
from qworker.canvas.plan import SEGMENT
from qworker.errors import PublishError
from qworker.testing import MemoryStore, StepWorker
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.servers import require

PLACES = {"postgresql": PostgreSQLPlace, "mysql": MySQLPlace}

pytestmark = pytest.mark.integration


class Env:
    """An app that records the stamps of tasks that run."""

    def __init__(self, **settings: Any) -> None:
        given = {"broker": MemoryStore(), "backend": "cache+memory://", **settings}
        self.app = app = QWorker("stamps", set_as_current=False, **given)
        self.seen: dict[str, list[Any]] = {}

        class Noting(Task[Any, Any]):
            def __call__(this, *args: Any, **kwargs: Any) -> Any:
                request = this.request
                found = (request.stamped_headers, request.stamps)
                self.seen.setdefault(str(request.shadow or this.name), []).append(found)
                return super().__call__(*args, **kwargs)

        @app.task(name="add", base=Noting)
        def add(x: int, y: int = 0) -> int:
            return x + y

        @app.task(name="total", base=Noting)
        def total(values: list[int]) -> int:
            return sum(values)

        @app.task(name="fail", base=Noting)
        def fail(*args: Any) -> None:
            raise ValueError("no")

        @app.task(name="again", base=Noting, bind=True)
        def again(this: Any) -> int:
            if not this.request.retries:
                raise this.retry(countdown=0)
            return 1

        @app.task(name="spread", base=Noting, bind=True)
        def spread(this: Any) -> Any:
            return this.replace(group(add.s(1), add.s(2).stamp(own=1)))

        @app.task(name="other", base=Noting, bind=True)
        def other(this: Any) -> None:
            add.delay(1)

    def s(self, name: str, *args: Any) -> Any:
        return self.app.tasks[name].s(*args)

    def run(self, call: Any) -> dict[str, list[Any]]:
        """Run *call*; return the stamps of all tasks by name."""
        self.seen.clear()
        with StepWorker(self.app) as worker:
            call.apply_async()
            worker.run()
        return self.seen


ME = (["by"], {"by": "me"})


@pytest.fixture
def env() -> Env:
    return Env()


def test_request_has_the_stamps(env: Env) -> None:
    call = env.s("add", 1)
    assert call.stamp(by="me") is call
    assert (call.options["by"], call.options["stamped_headers"]) == ("me", ["by"])
    assert env.run(call) == {"add": [ME]}
    assert env.run(env.s("add", 1)) == {"add": [(None, {})]}
    assert env.run(env.s("again").stamp(by="me")) == {"again": [ME, ME]}


def test_stamp_applies_to_the_whole_workflow(env: Env) -> None:
    """Including callbacks, and the body of a chord, which requires a visitor in Celery."""
    work = chain(env.s("add", 1), group(env.s("add", 1), env.s("add", 2)), env.s("total"), env.s("add", 1))
    work.link(env.s("total").set(immutable=True).clone(kwargs={"values": []}))
    assert env.run(work.stamp(by="me")) == {"add": [ME] * 4, "total": [ME]}
    failing = chord([env.s("fail")], env.s("total"))
    failing.link_error(env.s("add").set(shadow="told", immutable=False))
    found = env.run(failing.stamp(by="me"))
    assert found == {"fail": [ME], "told": [ME]}


def test_graph_is_stamped_like_a_group(env: Env) -> None:
    """Including its successors, and graphs as callbacks of stamped tasks."""
    nodes = {"x": env.s("add", 1), "y": env.s("add", 1), "sum": env.s("add")}
    work = graph(nodes, after={"sum": ["x", "y"]}, app=env.app)
    whole = work | env.app.tasks["add"].si(1).set(shadow="next")
    assert env.run(whole.stamp(by="me")) == {"add": [ME] * 3, "next": [ME]}
    assert "by" not in nodes["x"].options

    class Grouped(canvas.StampingVisitor):
        def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
            return {"name": sig.task}

        def on_group_start(self, group: Any, **headers: Any) -> dict[str, Any]:
            return {"of": group.task}

    found = env.run(work.clone().stamp(Grouped()))["add"]
    assert [stamps for _, stamps in found] == [{"of": "qworker.graph", "name": "add"}] * 3
    call = env.s("add", 1).set(shadow="first").stamp(by="me")
    call.link(graph({"x": env.s("add", 1), "y": env.s("add").clone(kwargs={"y": 1})}, app=env.app))
    assert env.run(call) == {"first": [ME], "add": [ME] * 2}


def test_stamping_does_not_change_the_original_signatures(env: Env) -> None:
    one, callback = env.s("add", 1), env.s("add", 2)
    one.link(callback)
    work = chord([one], env.s("total"))
    work.stamp(by="me")
    assert "by" not in one.options
    assert "by" not in callback.options


def test_callbacks_without_stamps_inherit_them(env: Env) -> None:
    """Calls made by the task itself do not."""
    call = env.s("add", 1).stamp(by="me")
    linked = env.s("add", 2).set(shadow="linked") | group(env.s("add", 1).set(shadow="member"))
    stamped = env.s("add", 2).set(shadow="stamped").stamp(by="you")
    bare = env.s("add", 2).set(shadow="bare").stamp()
    call.link(linked)
    call.link(stamped)
    call.link(bare)
    found = env.run(call)
    assert (found["linked"], found["member"]) == ([ME], [ME])
    assert found["stamped"] == [(["by"], {"by": "you"})]
    assert found["bare"] == [([], {})]
    assert env.run(env.s("other").stamp(by="me")) == {"other": [ME], "add": [(None, {})]}


def test_replacement_inherits_the_stamps(env: Env) -> None:
    found = env.run(env.s("spread").stamp(by="me"))
    assert found == {"spread": [ME], "add": [ME, (["own"], {"own": 1})]}


def test_on_replace_can_add_stamps(env: Env) -> None:
    class Replaced(canvas.StampingVisitor):
        def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
            return {"instead_of": "stamping", "by": "visitor"}

    class Stamping(Task[Any, Any]):
        def on_replace(self, sig: Any) -> Any:
            sig.stamp(Replaced(), append_stamps=True)
            return super().on_replace(sig)

    @env.app.task(name="stamping", base=Stamping, bind=True)
    def stamping(this: Any) -> Any:
        return this.replace(env.s("add", 1))

    found = env.run(chain(stamping.s(), env.s("add", 1)).stamp(by="me"))
    both = {"instead_of": "stamping", "by": ["visitor", "me"]}
    assert [stamps for _, stamps in found["add"]] == [both, both]


def test_later_options_do_not_replace_stamps(env: Env) -> None:
    call = env.s("add", 1).stamp(by="me", queue="celery")
    assert call.clone(by="you", queue="far", stamped_headers=[], priority=3).options == {
        "by": "me", "queue": "celery", "stamped_headers": ["by", "queue"], "priority": 3,
    }  # fmt: skip


def test_stamps_can_be_given_with_the_call(env: Env) -> None:
    found = env.run(env.s("add", 1).set(by="me", stamped_headers=["by"]))
    assert found == {"add": [ME]}
    with pytest.raises(PublishError, match="there is no option 'by'"):
        env.s("add", 1).set(by="me").delay()
    with pytest.raises(PublishError, match="cannot hold 'id'"):
        env.s("add", 1).stamp(id=5).delay()


@pytest.mark.parametrize("given", [{"by": "me"}, {"stamps": {"by": "me"}}])
def test_stamps_of_a_call_apply_to_a_long_chain(env: Env, given: dict[str, Any]) -> None:
    """Including steps in later segments."""
    steps = [env.s("add", 1) for _ in range(2 * SEGMENT + 1)]
    steps[SEGMENT + 3].stamp(by="you")
    found = env.run(chain(*steps).set(stamped_headers=["by"], **given))["add"]
    assert found == [ME] * (SEGMENT + 3) + [(["by"], {"by": "you"})] + [ME] * (SEGMENT - 3)


@pytest.mark.parametrize("names", [5, "by", [[]], {"by": 1}, ["nobody"]])
def test_invalid_stamped_headers_are_harmless(env: Env, names: Any) -> None:
    """In a foreign message: the callback runs, or is not sent."""
    hostile = {"task": "add", "args": [1], "kwargs": {}, "options": {"stamped_headers": names}}
    env.run(env.s("add", 1).stamp(by="me").set(link=[hostile]))
    assert env.seen["add"][0] == ME


def test_eager_calls_have_the_same_stamps(env: Env) -> None:
    env.app.conf.task_always_eager = True
    work = chain(env.s("add", 1), group(env.s("add", 1), env.s("add", 2)), env.s("total")).stamp(by="me")
    assert work.delay().get() == 5
    assert env.seen == {"add": [ME] * 3, "total": [ME]}


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgresql", "mysql", "redis"])
def test_extended_results_contain_stamps(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = {"memory": "cache+memory://", "sqlite": f"db+sqlite:///{tmp_path}/results.db"}.get(store)
    if store in PLACES:  # existing tables may lack the columns of extended results
        place = PLACES[store](tmp_path)
        request.addfinalizer(place.clear)
        url = f"db+{place.url}"
    url = url or require(store)
    for extended in (True, False):
        env = Env(backend=url, result_extended=extended)
        call = env.s("add", 1).stamp(by="me", of=[1, 2], status="mine")
        with StepWorker(env.app) as worker:
            result = call.delay()
            worker.run()
            assert result.get(timeout=10) == 1
        meta = env.app.backend.get_task_meta(result.id)
        assert meta["status"] == "SUCCESS", "stamps do not replace other fields"
        if extended:
            assert (meta["by"], meta["of"], sorted(meta["stamped_headers"])) == (
                "me",
                [1, 2],
                ["by", "of", "status"],
            )
        else:
            assert not meta.keys() & {"by", "of", "stamped_headers"}
        result.forget()
        env.app.close()
