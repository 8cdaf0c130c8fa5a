"""Results with their parents and children, and messages seen while waiting."""

from __future__ import annotations

from typing import Any

import pytest

from qworker import QWorker
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.errors import ControlError, IncompleteStream, NotAvailable, PublishError, ResultTimeout
from qworker.message.exceptions import exception_to_dict
from qworker.results.group_result import GroupResult
from qworker.results.result import AsyncResult
from tests.support.stores import KeepingStore, make_app


def end(app: QWorker, task_id: str, value: Any = None, children: tuple[str, ...] = ()) -> AsyncResult[Any]:
    failed = isinstance(value, BaseException)
    meta = app.backend.meta(
        task_id,
        "FAILURE" if failed else "SUCCESS",
        exception_to_dict(value) if failed else value,
        children=[((child, None), None) for child in children],
    )
    app.backend.store(task_id, meta)
    return app.AsyncResult(task_id)


def tree() -> tuple[QWorker, KeepingStore]:
    """a called b and c; b called d."""
    app, store, _ = make_app()
    end(app, "a", 1, children=("b", "c"))
    end(app, "b", 2, children=("d",))
    end(app, "c", 3)
    end(app, "d", 4)
    return app, store


# -- children --


def test_iterdeps_walks_level_by_level() -> None:
    app, _ = tree()
    root = app.AsyncResult("a")
    assert [(parent and parent.id, node.id) for parent, node in root.iterdeps()] == [
        (None, "a"), ("a", "b"), ("a", "c"), ("b", "d"),
    ]  # fmt: skip
    assert [(node.id, value) for node, value in root.collect()] == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert [value for node, value in root.collect() if not node.children] == [3, 4]
    assert root.get_leaf() == 4


def test_iterdeps_raises_at_an_unfinished_task() -> None:
    app, _ = tree()
    end(app, "e", 5, children=("unknown",))
    walk = app.AsyncResult("e").iterdeps()
    assert [next(walk)[1].id, next(walk)[1].id] == ["e", "unknown"]
    with pytest.raises(IncompleteStream, match="task unknown has not ended"):
        next(walk)
    assert len(list(app.AsyncResult("e").iterdeps(intermediate=True))) == 2
    with pytest.raises(ResultTimeout):
        list(app.AsyncResult("e").collect(timeout=0))


def test_collect_raises_errors_unless_propagate_is_false() -> None:
    app, _ = tree()
    end(app, "e", KeyError("no"))
    with pytest.raises(KeyError):
        app.AsyncResult("e").get_leaf()
    assert [repr(value) for _, value in app.AsyncResult("e").collect(propagate=False)] == ["KeyError('no')"]


def test_collect_of_an_eager_result() -> None:
    app, _, _ = make_app()
    result = app.task(name="add")(lambda x, y: x + y).apply((1, 2))
    assert [(node.id, value) for node, value in result.collect()] == [(result.id, 3)]
    assert result.exists()


# -- parents --


def test_get_raises_a_parent_failure_at_once() -> None:
    app, _ = tree()
    end(app, "failed", KeyError("first"))
    between = AsyncResult("between", app=app, parent=app.AsyncResult("failed"))
    last: AsyncResult[Any] = AsyncResult("last", app=app, parent=between)
    with pytest.raises(KeyError, match="first"):
        last.get(timeout=5)
    with pytest.raises(ResultTimeout):
        last.get(timeout=0, follow_parents=False)
    with pytest.raises(ResultTimeout):
        last.get(timeout=0, propagate=False)
    assert last.as_list() == ["last", "between", "failed"]


def test_get_raises_a_parent_failure_while_waiting() -> None:
    app, _ = tree()
    last: AsyncResult[Any] = AsyncResult("last", app=app, parent=app.AsyncResult("first"))
    with pytest.raises(KeyError, match="late"):
        last.get(timeout=5, on_interval=lambda: end(app, "first", KeyError("late")))


def test_forget_includes_parents() -> None:
    app, _ = tree()
    result: AsyncResult[Any] = AsyncResult("a", app=app, parent=app.AsyncResult("b"))
    assert result.exists()
    result.forget()
    assert not result.exists()
    assert not app.AsyncResult("b").exists()
    assert app.AsyncResult("c").exists()


def test_revoke_and_forget_include_the_parent_of_a_nested_group() -> None:
    """Once, only the members of the inner group were revoked and forgotten, and the task before them ran."""
    app, store = tree()
    result = GroupResult(
        "outer", [GroupResult("inner", [app.AsyncResult("a")], app.AsyncResult("b"), app)], None, app
    )
    result.revoke()
    ((ids, *_),) = store.revoked
    assert sorted(ids) == ["a", "b"]
    result.forget()
    assert not app.AsyncResult("b").exists()


# -- messages while waiting --


def test_on_message_gets_each_new_state() -> None:
    app, _ = tree()
    seen: list[Any] = []
    steps = iter(
        [
            lambda: None,
            lambda: app.backend.store_result("run", {"done": 1}, "PROGRESS"),
            lambda: app.backend.store_result("run", {"done": 1}, "PROGRESS"),
            lambda: app.backend.store_result("run", {"done": 2}, "PROGRESS"),
            lambda: end(app, "run", "all"),
        ]
    )
    result = app.AsyncResult("run")
    assert (
        result.get(timeout=10, interval=0.01, on_message=seen.append, on_interval=lambda: next(steps)())
        == "all"
    )
    assert [(meta["status"], meta["result"]) for meta in seen] == [
        ("PROGRESS", {"done": 1}), ("PROGRESS", {"done": 2}), ("SUCCESS", "all"),
    ]  # fmt: skip
    assert {meta["task_id"] for meta in seen} == {"run"}


def test_on_message_gets_the_final_state_of_a_failure() -> None:
    app, _ = tree()
    end(app, "e", KeyError("no"))
    seen: list[Any] = []
    assert repr(app.AsyncResult("e").get(on_message=seen.append, propagate=False)) == "KeyError('no')"
    assert [(meta["status"], meta["result"]["exc_type"]) for meta in seen] == [("FAILURE", "KeyError")]


def test_maybe_throw_passes_the_value_to_the_callback() -> None:
    app, _ = tree()
    seen: list[Any] = []
    assert app.AsyncResult("d").maybe_throw(callback=lambda *given: seen.append(given)) == 4
    assert seen == [("d", 4)]


def test_graph_reads_each_level_at_once() -> None:
    app, _, clock = make_app()
    reads: list[Any] = []

    class Counting(MemoryBackend):
        def read_many(self, ids: Any) -> Any:
            reads.append(sorted(ids))
            return super().read_many(ids)

        def get(self, task_id: str) -> Any:
            if not reads:
                reads.append([task_id])
            return super().get(task_id)

    backend = Counting("cache+memory://", app.conf, clock)
    app = QWorker("proj", broker=KeepingStore(), backend=backend, clock=clock, set_as_current=False)
    end(app, "a", children=("b", "c"))
    for each in "bc":
        end(app, each, children=(f"{each}1", f"{each}2"))
        end(app, f"{each}1")
        end(app, f"{each}2")
    assert len(app.AsyncResult("a").graph) == 7
    assert reads == [["a"], ["b", "c"], ["b1", "b2", "c1", "c2"]]


# -- rejected calls --


def test_result_with_another_store_is_rejected() -> None:
    with pytest.raises(NotAvailable, match="an app has one result store for all tasks"):
        AsyncResult("a", backend=make_app()[0].backend)


@pytest.mark.parametrize("name", ["revoke_by_stamped_headers", "on_ready", "throw"])
def test_unavailable_attributes_explain_themselves(name: str) -> None:
    app, _, _ = make_app()
    with pytest.raises(NotAvailable, match=rf"AsyncResult\.{name} is not in qworker: "):
        getattr(app.AsyncResult("a"), name)


def test_revoke_accepts_the_arguments_of_celery() -> None:
    app, store, _ = make_app()
    app.AsyncResult("a").revoke(None, True, "SIGKILL")
    app.AsyncResult("b").revoke(app.connection(), terminate=False)
    with pytest.raises(PublishError, match=r"revoke.*connection=True is not a connection"):
        app.AsyncResult("c").revoke(True)
    assert store.revoked == [(["a"], True, "SIGKILL"), (["b"], False, "SIGTERM")]


def test_revoke_rejects_destinations_and_replies() -> None:
    """The second argument of Celery's revoke() names workers: as *terminate* it would kill the task."""
    app, store, _ = make_app()
    for destination in (["worker@host"], True):
        with pytest.raises(ControlError, match=r"destination=.* the request goes to all"):
            app.control.revoke("a", destination)  # type: ignore[arg-type]
        with pytest.raises(ControlError, match=r"destination=.* the request goes to all"):
            app.control.terminate("a", destination)  # type: ignore[arg-type]
    for options in ({"reply": True}, {"timeout": 1}):
        with pytest.raises(ControlError, match="workers do not answer"):
            app.control.revoke("a", **options)  # type: ignore[arg-type]
    app.control.revoke("a", None, True, "SIGKILL")
    app.control.terminate("b", None, "SIGKILL", connection=app.connection())
    assert store.revoked == [(["a"], True, "SIGKILL"), (["b"], True, "SIGKILL")]
