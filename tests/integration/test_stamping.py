"""Stamps on their way: from a signature to the requests of its tasks, to what follows, and to results."""

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


class Rooms:
    """An app that notes the stamps of what runs."""

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
        """The stamps of what *call* runs."""
        self.seen.clear()
        with StepWorker(self.app) as worker:
            call.apply_async()
            worker.run()
        return self.seen


ME = (["by"], {"by": "me"})


@pytest.fixture
def rooms() -> Rooms:
    return Rooms()


def test_a_task_finds_its_stamps_in_its_request(rooms: Rooms) -> None:
    call = rooms.s("add", 1)
    assert call.stamp(by="me") is call
    assert (call.options["by"], call.options["stamped_headers"]) == ("me", ["by"])
    assert rooms.run(call) == {"add": [ME]}
    assert rooms.run(rooms.s("add", 1)) == {"add": [(None, {})]}
    assert rooms.run(rooms.s("again").stamp(by="me")) == {"again": [ME, ME]}


def test_a_workflow_is_stamped_as_a_whole(rooms: Rooms) -> None:
    """Also the body of a chord, where Celery wants a visitor for that; and what is linked."""
    work = chain(
        rooms.s("add", 1), group(rooms.s("add", 1), rooms.s("add", 2)), rooms.s("total"), rooms.s("add", 1)
    )
    work.link(rooms.s("total").set(immutable=True).clone(kwargs={"values": []}))
    assert rooms.run(work.stamp(by="me")) == {"add": [ME] * 4, "total": [ME]}
    failing = chord([rooms.s("fail")], rooms.s("total"))
    failing.link_error(rooms.s("add").set(shadow="told", immutable=False))
    found = rooms.run(failing.stamp(by="me"))
    assert found == {"fail": [ME], "told": [ME]}


def test_a_graph_is_stamped_as_a_group_is(rooms: Rooms) -> None:
    """And what follows it; and a graph that follows what is stamped."""
    nodes = {"x": rooms.s("add", 1), "y": rooms.s("add", 1), "sum": rooms.s("add")}
    work = graph(nodes, after={"sum": ["x", "y"]}, app=rooms.app)
    whole = work | rooms.app.tasks["add"].si(1).set(shadow="next")
    assert rooms.run(whole.stamp(by="me")) == {"add": [ME] * 3, "next": [ME]}
    assert "by" not in nodes["x"].options

    class Grouped(canvas.StampingVisitor):
        def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
            return {"name": sig.task}

        def on_group_start(self, group: Any, **headers: Any) -> dict[str, Any]:
            return {"of": group.task}

    found = rooms.run(work.clone().stamp(Grouped()))["add"]
    assert [stamps for _, stamps in found] == [{"of": "qworker.graph", "name": "add"}] * 3
    call = rooms.s("add", 1).set(shadow="first").stamp(by="me")
    call.link(graph({"x": rooms.s("add", 1), "y": rooms.s("add").clone(kwargs={"y": 1})}, app=rooms.app))
    assert rooms.run(call) == {"first": [ME], "add": [ME] * 2}


def test_what_it_was_made_of_is_not_stamped(rooms: Rooms) -> None:
    one, callback = rooms.s("add", 1), rooms.s("add", 2)
    one.link(callback)
    work = chord([one], rooms.s("total"))
    work.stamp(by="me")
    assert "by" not in one.options
    assert "by" not in callback.options


def test_what_was_not_stamped_itself_gets_the_stamps_of_what_it_follows(rooms: Rooms) -> None:
    """As a callback that is given with the call. What a task calls of its own accord does not."""
    call = rooms.s("add", 1).stamp(by="me")
    linked = rooms.s("add", 2).set(shadow="linked") | group(rooms.s("add", 1).set(shadow="member"))
    stamped = rooms.s("add", 2).set(shadow="stamped").stamp(by="you")
    bare = rooms.s("add", 2).set(shadow="bare").stamp()
    call.link(linked)
    call.link(stamped)
    call.link(bare)
    found = rooms.run(call)
    assert (found["linked"], found["member"]) == ([ME], [ME])
    assert found["stamped"] == [(["by"], {"by": "you"})]
    assert found["bare"] == [([], {})]
    assert rooms.run(rooms.s("other").stamp(by="me")) == {"other": [ME], "add": [(None, {})]}


def test_what_replaces_a_task_gets_its_stamps(rooms: Rooms) -> None:
    found = rooms.run(rooms.s("spread").stamp(by="me"))
    assert found == {"spread": [ME], "add": [ME, (["own"], {"own": 1})]}


def test_on_replace_may_stamp_it(rooms: Rooms) -> None:
    class Replaced(canvas.StampingVisitor):
        def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
            return {"instead_of": "stamping", "by": "visitor"}

    class Stamping(Task[Any, Any]):
        def on_replace(self, sig: Any) -> Any:
            sig.stamp(Replaced(), append_stamps=True)
            return super().on_replace(sig)

    @rooms.app.task(name="stamping", base=Stamping, bind=True)
    def stamping(this: Any) -> Any:
        return this.replace(rooms.s("add", 1))

    found = rooms.run(chain(stamping.s(), rooms.s("add", 1)).stamp(by="me"))
    both = {"instead_of": "stamping", "by": ["visitor", "me"]}
    assert [stamps for _, stamps in found["add"]] == [both, both]


def test_options_given_later_leave_the_stamps(rooms: Rooms) -> None:
    call = rooms.s("add", 1).stamp(by="me", queue="celery")
    assert call.clone(by="you", queue="far", stamped_headers=[], priority=3).options == {
        "by": "me", "queue": "celery", "stamped_headers": ["by", "queue"], "priority": 3,
    }  # fmt: skip


def test_stamps_may_be_given_with_the_call(rooms: Rooms) -> None:
    found = rooms.run(rooms.s("add", 1).set(by="me", stamped_headers=["by"]))
    assert found == {"add": [ME]}
    with pytest.raises(PublishError, match="there is no option 'by'"):
        rooms.s("add", 1).set(by="me").delay()
    with pytest.raises(PublishError, match="cannot hold 'id'"):
        rooms.s("add", 1).stamp(id=5).delay()


@pytest.mark.parametrize("given", [{"by": "me"}, {"stamps": {"by": "me"}}])
def test_stamps_that_are_given_with_the_call_go_through_a_long_chain(
    rooms: Rooms, given: dict[str, Any]
) -> None:
    """Also past the steps where another message begins."""
    steps = [rooms.s("add", 1) for _ in range(2 * SEGMENT + 1)]
    steps[SEGMENT + 3].stamp(by="you")
    found = rooms.run(chain(*steps).set(stamped_headers=["by"], **given))["add"]
    assert found == [ME] * (SEGMENT + 3) + [(["by"], {"by": "you"})] + [ME] * (SEGMENT - 3)


@pytest.mark.parametrize("names", [5, "by", [[]], {"by": 1}, ["nobody"]])
def test_names_that_are_none_break_nothing(rooms: Rooms, names: Any) -> None:
    """From a message that a stranger has made: the task runs, or what follows it is not sent."""
    hostile = {"task": "add", "args": [1], "kwargs": {}, "options": {"stamped_headers": names}}
    rooms.run(rooms.s("add", 1).stamp(by="me").set(link=[hostile]))
    assert rooms.seen["add"][0] == ME


def test_eager_calls_have_the_same(rooms: Rooms) -> None:
    rooms.app.conf.task_always_eager = True
    work = chain(rooms.s("add", 1), group(rooms.s("add", 1), rooms.s("add", 2)), rooms.s("total")).stamp(
        by="me"
    )
    assert work.delay().get() == 5
    assert rooms.seen == {"add": [ME] * 3, "total": [ME]}


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgresql", "mysql", "redis"])
def test_extended_results_have_them(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = {"memory": "cache+memory://", "sqlite": f"db+sqlite:///{tmp_path}/results.db"}.get(store)
    if store in PLACES:  # the tables of others may have no room for what is extended
        place = PLACES[store](tmp_path)
        request.addfinalizer(place.clear)
        url = f"db+{place.url}"
    url = url or require(store)
    for extended in (True, False):
        rooms = Rooms(backend=url, result_extended=extended)
        call = rooms.s("add", 1).stamp(by="me", of=[1, 2], status="mine")
        with StepWorker(rooms.app) as worker:
            result = call.delay()
            worker.run()
            assert result.get(timeout=10) == 1
        meta = rooms.app.backend.get_task_meta(result.id)
        assert meta["status"] == "SUCCESS", "no stamp stands in the place of what is ours"
        if extended:
            assert (meta["by"], meta["of"], sorted(meta["stamped_headers"])) == (
                "me",
                [1, 2],
                ["by", "of", "status"],
            )
        else:
            assert not meta.keys() & {"by", "of", "stamped_headers"}
        result.forget()
        rooms.app.close()
