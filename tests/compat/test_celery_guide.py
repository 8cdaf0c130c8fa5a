"""Snippets of Celery's user guide, run with Celery and with qworker: both give the same.

Each snippet is a function of a side and returns what it observed as plain data. The table in
docs/reference/celery-guide.md names these tests.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery", reason="`tox -e compat-celery` installs it")

import celery

import qworker
from tests.compat.sides import CELERY, QWORKER, Side
from tests.support.shared_tasks import nothing_left_behind

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    with nothing_left_behind():
        yield


def plus(x: int, y: int) -> int:
    return x + y


def same(snippet: Callable[[Side], Any]) -> Any:
    """Run a snippet with both libraries and compare; returns what both observed."""
    theirs, ours = snippet(CELERY), snippet(QWORKER)
    assert ours == theirs
    return ours


# -- Application --


def test_names_of_tasks() -> None:
    def snippet(side: Side) -> Any:
        app = side.App("proj.tasks")

        def add(x: int, y: int) -> int:
            return x + y

        add.__module__ = "__main__"

        class Short(side.base):
            def gen_task_name(self, name: str, module: str) -> str:
                return super().gen_task_name(name, module.removesuffix(".tasks"))

        def work() -> None: ...

        work.__module__ = "feeds.tasks"
        named = app.task(name="sum-of-two-numbers")(plus)
        other = side.App("x", cls=Short).task(work)
        plain = app.task(add)
        return plain.name, named.name, other.name, app.main, sorted(set(app.tasks) & {plain.name, named.name})

    assert same(snippet)[0] == "proj.tasks.add"


def test_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guide_config.py").write_text(
        "enable_utc = True\ntimezone = 'Europe/London'\nunrelated = 5\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("GUIDE_CONFIG_MODULE", "guide_config")

    class Config:
        task_default_queue = "of-class"

    def snippet(side: Side) -> Any:
        seen = []
        for configure in (
            lambda app: app.config_from_object("guide_config"),
            lambda app: app.config_from_object(sys.modules["guide_config"]),
            lambda app: app.config_from_envvar("GUIDE_CONFIG_MODULE"),
            lambda app: app.config_from_envvar("NOT_THERE", silent=True),
            lambda app: app.config_from_object(Config),
            lambda app: app.config_from_object({"CELERY_TIMEZONE": "Asia/Tokyo"}, namespace="CELERY"),
            lambda app: app.conf.update(timezone="Asia/Tokyo", task_default_queue="q"),
            lambda app: setattr(app.conf, "timezone", "Asia/Tokyo"),
            lambda app: app.add_defaults({"timezone": "Asia/Tokyo"}),
            lambda app: app.add_defaults(lambda: {"timezone": "Asia/Tokyo"}),
            lambda app: app.conf.setdefault("timezone", "Asia/Tokyo"),
        ):
            app = side.App()
            answer = configure(app)
            seen.append(
                (
                    answer is False,
                    app.conf.timezone or "UTC",
                    app.conf.task_default_queue,
                    app.conf["timezone"] or "UTC",
                )
            )
        return seen

    same(snippet)


def test_censored_configuration() -> None:
    def snippet(side: Side) -> Any:
        app = side.App(broker="redis://:hunter2@host/1", result_backend="redis://:hunter2@host/2")
        app.conf.update(timezone="Asia/Tokyo")
        shown, table = app.conf.humanize(), app.conf.table()
        everything = app.conf.table(with_defaults=True)
        return (
            "hunter2" in shown, "Asia/Tokyo" in shown, "hunter2" in str(table), table["timezone"],
            everything["task_acks_late"] is not None, "hunter2" in str(app.conf.table(censored=False)),
        )  # fmt: skip

    assert same(snippet) == (False, True, False, "Asia/Tokyo", True, True)


def test_order_of_configuration_and_finalization_signals() -> None:
    def snippet(side: Side) -> Any:
        app, told = side.App(), []
        app.on_configure.connect(lambda **kwargs: told.append("configure"), weak=False)
        app.on_after_configure.connect(
            lambda source, **kwargs: told.append(("configured", source is app.conf)), weak=False
        )
        app.on_after_finalize.connect(lambda **kwargs: told.append("finalized"), weak=False)
        _ = app.conf.timezone
        app.finalize()
        return told

    assert same(snippet) == ["configure", ("configured", True), "finalized"]


def test_current_app_and_current_task() -> None:
    def snippet(side: Side) -> Any:
        app = side.App()

        @side.shared_task(name="who")
        def who(x: int) -> Any:
            return side.current_task.name, side.current_task.request.id, side.current_app.main, x

        app.set_current()
        with side.worker(app) as ended:
            result = ended(who.apply_async((1,), task_id="my-id"))
            return list(result.get()), app.current_task, who.name in app.tasks, bool(side.current_task)

    assert same(snippet) == (["who", "my-id", "proj", 1], None, True, False)


# -- Tasks --


def test_request_of_a_bound_task() -> None:
    def snippet(side: Side) -> Any:
        app = side.App()

        @app.task(bind=True, name="dump")
        def dump(self: Any, x: int, y: int) -> Any:
            request = self.request
            return {
                "id": request.id, "args": list(request.args), "kwargs": dict(request.kwargs),
                "retries": request.retries,
                "task": request.task, "eta": request.eta, "expires": request.expires, "group": request.group,
                "root": request.root_id, "parent": request.parent_id, "eager": request.is_eager,
                "direct": request.called_directly, "header": request.get("tenant"),
                "limits": list(request.timelimit),
                "reply": request.correlation_id, "queue": request.delivery_info["routing_key"],
                "again": bool(request.delivery_info["redelivered"]),
                "shown": (request.argsrepr, request.kwargsrepr), "errbacks": request.errbacks or [],
            }  # fmt: skip

        with side.worker(app) as ended:
            result = dump.apply_async(
                (1,), {"y": 2}, task_id="my-id", headers={"tenant": "acme"}, argsrepr="(<secret>,)",
                time_limit=60,
                soft_time_limit=50,
            )  # fmt: skip
            return ended(result).get(), dump.request.called_directly

    assert same(snippet)[0]["header"] == "acme"


def test_time_limits_of_a_request() -> None:
    def snippet(side: Side) -> Any:
        app = side.App()

        def limits(self: Any) -> Any:
            return self.request.time_limit, self.request.soft_time_limit

        plain = app.task(bind=True, name="plain")(limits)
        limited = app.task(bind=True, name="limited", time_limit=60, soft_time_limit=45)(limits)
        with side.worker(app) as ended:
            calls = [
                plain.delay(), plain.apply_async(time_limit=30), limited.delay(),
                limited.apply_async(soft_time_limit=5), limited.apply_async(time_limit=50, soft_time_limit=5),
            ]  # fmt: skip
            return [tuple(ended(call).get()) for call in calls]

    assert same(snippet) == [(None, None), (30, None), (60, 45), (60, 5), (50, 5)]


def test_task_hooks_are_called_in_the_same_order() -> None:
    def snippet(side: Side) -> Any:
        app, seen = side.App(), []

        class Base(side.Task):
            def before_start(self, task_id: Any, args: Any, kwargs: Any) -> None:
                seen.append(("before_start", task_id, list(args), kwargs))

            def on_success(self, retval: Any, task_id: Any, args: Any, kwargs: Any) -> None:
                seen.append(("on_success", retval, task_id, list(args), kwargs))

            def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
                seen.append(("on_failure", repr(exc), task_id, "KeyError" in str(einfo)))

            def on_retry(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
                seen.append(("on_retry", type(exc).__name__, task_id))

            def after_return(
                self, status: Any, retval: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any
            ) -> None:
                seen.append(("after_return", status, task_id))

        @app.task(base=Base, bind=True, name="work", max_retries=1)
        def work(self: Any, how: str) -> str:
            if how == "fail":
                raise KeyError("no")
            if how == "retry":
                raise self.retry(countdown=0, exc=KeyError("again"))
            return how

        with side.worker(app) as ended:
            for how in ("well", "fail", "retry"):
                ended(work.apply_async((how,), task_id=how))
        return seen

    assert [each[0] for each in same(snippet)][:3] == ["before_start", "on_success", "after_return"]


def test_overridden_call_method() -> None:
    def snippet(side: Side) -> Any:
        app, seen = side.App(), []

        class Debug(side.Task):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                seen.append(("starting", self.name, self.request.id))
                return self.run(*args, **kwargs)

        @app.task(base=Debug, name="add")
        def add(x: int, y: int) -> int:
            return x + y

        with side.worker(app) as ended:
            value = ended(add.apply_async((1, 2), task_id="my-id")).get()
        return value, seen

    assert same(snippet) == (3, [("starting", "add", "my-id")])


def test_argument_checking() -> None:
    def snippet(side: Side) -> Any:
        app, seen = side.App(), []
        add = app.task(name="add")(plus)
        loose = app.task(name="loose", typing=False)(plus)
        for args, kwargs in (((8,), {}), ((1, 2, 3), {}), ((1,), {"z": 2})):
            with pytest.raises(TypeError):
                add.apply_async(args, kwargs)
            seen.append("refused")
        with side.worker(app) as ended:
            seen.append(type(ended(loose.delay(8)).result).__name__)
        return seen

    assert same(snippet) == ["refused"] * 3 + ["TypeError"]


def test_retrying() -> None:
    def snippet(side: Side) -> Any:
        app, seen = side.App(), []

        @app.task(bind=True, name="again", max_retries=2)
        def again(self: Any, how: str, tried: int = 0) -> Any:
            seen.append((how, tried, self.request.retries, self.request.id))
            if how == "exc":
                raise self.retry(exc=KeyError("mine"), countdown=0)
            if how == "none":
                raise self.retry(countdown=0)
            if how == "args" and self.request.retries < 2:
                raise self.retry(args=(how, tried + 1), countdown=0)
            if how == "more":
                raise self.retry(exc=KeyError("mine"), countdown=0, max_retries=3)
            return tried

        with side.worker(app) as ended:
            for how in ("exc", "none", "args", "more"):
                result = ended(again.apply_async((how,), task_id=how))
                seen.append((result.state, type(result.result).__name__))
        return seen

    # The exception has another name in Celery.
    ours = {"MaxRetriesExceeded": "MaxRetriesExceededError"}
    theirs, mine = snippet(CELERY), snippet(QWORKER)
    assert [
        tuple(ours.get(part, part) if isinstance(part, str) else part for part in each) for each in mine
    ] == theirs


def test_automatic_retries() -> None:
    def snippet(side: Side) -> Any:
        app, seen = side.App(), []

        class Base(side.Task):
            autoretry_for = (TypeError,)
            max_retries = 5
            retry_backoff = 0
            default_retry_delay = 0

        @app.task(base=Base, bind=True, name="of-base")
        def of_base(self: Any) -> None:
            seen.append(self.request.retries)
            raise TypeError("always")

        @app.task(
            bind=True,
            autoretry_for=(KeyError,),
            retry_kwargs={"max_retries": 1, "countdown": 0},
            name="given",
        )
        def given(self: Any, kind: str) -> None:
            seen.append(self.request.retries)
            raise KeyError("listed") if kind == "listed" else ValueError("not")

        with side.worker(app) as ended:
            seen.append(repr(ended(of_base.delay()).result))
            seen.append(repr(ended(given.delay("listed")).result))
            seen.append(repr(ended(given.delay("other")).result))
        return seen

    same(snippet)


def test_custom_states_and_ignore() -> None:
    def snippet(side: Side) -> Any:
        app, seen = side.App(), []

        @app.task(bind=True, name="upload")
        def upload(self: Any) -> str:
            self.update_state(state="PROGRESS", meta={"current": 1, "total": 2})
            looked = app.AsyncResult(self.request.id)
            seen.append((looked.state, looked.info, looked.result, looked.ready()))
            return "done"

        @app.task(bind=True, name="tweets")
        def tweets(self: Any) -> None:
            self.update_state(state=side.states.SUCCESS, meta=["timeline"])
            raise side.errors.Ignore()

        with side.worker(app) as ended:
            seen.append(ended(upload.delay()).get())
            result = ended(tweets.delay())
            seen.append((result.state, result.get()))
        return seen

    assert same(snippet)[0] == ("PROGRESS", {"current": 1, "total": 2}, {"current": 1, "total": 2}, False)


def test_exceptions_and_their_traceback() -> None:
    def snippet(side: Side) -> Any:
        app, seen = side.App(), []

        @app.task(name="div", throws=(ZeroDivisionError,))
        def div(x: int, y: int) -> float:
            return x / y

        with side.worker(app) as ended:
            result = ended(div.delay(1, 0))
            seen.append((result.state, repr(result.result), result.failed(), result.successful()))
            seen.append("ZeroDivisionError: division by zero" in result.traceback)
            seen.append(repr(result.get(propagate=False)))
            for look in (result.get, result.maybe_throw, result.maybe_reraise):
                with pytest.raises(ZeroDivisionError):
                    look()
        return seen

    same(snippet)


def test_signals_of_a_run() -> None:
    names = ("before_task_publish", "after_task_publish", "task_prerun", "task_postrun", "task_success",
    "task_failure",
             "task_retry")  # fmt: skip

    def snippet(side: Side) -> Any:
        app, seen = side.App(), []
        receivers = {}
        for name in names:

            def receive(sender: Any = None, name: str = name, **kwargs: Any) -> None:
                seen.append((name, getattr(sender, "name", sender), set(kwargs) - {"signal"}))

            receivers[name] = receive
            getattr(side.signals, name).connect(receive, weak=False)

        @app.task(bind=True, name="work", max_retries=1)
        def work(self: Any, how: str) -> None:
            if how == "fail":
                raise KeyError("no")
            if how == "retry":
                raise self.retry(countdown=0, exc=KeyError("again"))

        try:
            with side.worker(app) as ended:
                for how in ("well", "fail", "retry"):
                    ended(work.delay(how))
        finally:
            for name, receive in receivers.items():
                getattr(side.signals, name).disconnect(receive)
        return seen

    theirs, ours = snippet(CELERY), snippet(QWORKER)
    # Celery publishes in one thread and runs in another, so the order of both is random.
    for kind in ("publish", "task_"):
        one = [each for each in theirs if each[0].endswith("publish") == (kind == "publish")]
        two = [each for each in ours if each[0].endswith("publish") == (kind == "publish")]
        assert [each[:2] for each in two] == [each[:2] for each in one]
        for mine, given in zip(two, one, strict=True):
            assert given[2] <= mine[2], mine[0]


# -- Calling --


def test_links_and_errbacks() -> None:
    def snippet(side: Side) -> Any:
        app, seen = side.App(), []
        add = app.task(name="add")(plus)

        @app.task(name="fail")
        def fail() -> None:
            raise KeyError("no")

        @app.task(name="new")
        def new_style(request: Any, exc: Any, traceback: Any) -> None:
            seen.append(("new", request.id, repr(exc), "KeyError" in str(traceback)))

        @app.task(name="old")
        def old_style(task_id: str) -> None:
            with side.allow_join_result():
                result = app.AsyncResult(task_id)
                seen.append(("old", task_id, repr(result.get(propagate=False))))

        with side.worker(app) as ended:
            first = ended(add.apply_async((2, 2), link=add.s(16)))
            for child in first.children:
                seen.append(ended(child).get())
            both = ended(add.apply_async((1, 1), link=[add.s(10), add.si(5, 5)]))
            seen.append(sorted(number for child in both.children for number in flat(ended(child).get())))
            ended(fail.apply_async(task_id="a", link_error=new_style.s()))
            ended(fail.apply_async(task_id="b", link_error=old_style.s()))
            ended(add.delay(0, 0))
        return sorted(map(repr, seen))

    def flat(value: Any) -> list[Any]:
        return value if isinstance(value, list) else [value]  # Celery calls several links as one group

    same(snippet)


def test_options_of_a_call() -> None:
    def snippet(side: Side) -> Any:
        app = side.App()

        @app.task(name="add", bind=True)
        def add(self: Any, x: int, y: int) -> Any:
            return x + y, self.request.get("tenant"), bool(self.request.expires)

        seen = []
        with side.worker(app) as ended:
            for options in (
                {"countdown": 0.05},
                {"expires": 60},
                {"headers": {"tenant": "acme"}},
                {"serializer": "json", "compression": "gzip"},
                {"retry": False},
                {"retry": True, "retry_policy": {"max_retries": 3, "interval_start": 0, "interval_step": 0.2,
                                                 "interval_max": 1, "retry_errors": None}},
                {"priority": 0},
                {"shadow": "another"},
                {"link": []},
            ):  # fmt: skip
                seen.append(list(ended(add.apply_async((2, 2), **options)).get()))
            ignored = add.apply_async((1, 2), ignore_result=True)
            seen.append((ignored.get(), ignored.ignored))
            seen.append(ended(add.apply_async((1, 2), ignore_result=False)).get()[0])
            seen.append(ended(app.send_task("add", (1, 2))).get()[0])
        return seen

    same(snippet)


def test_connections_and_producers() -> None:
    def snippet(side: Side) -> Any:
        app = side.App()
        add = app.task(name="add")(plus)
        seen = []
        with side.worker(app) as ended:
            with app.pool.acquire(block=True) as connection:
                results = [add.apply_async((i, i), connection=connection) for i in (2, 4, 8, 16)]
            with app.producer_pool.acquire(block=True) as producer:
                results.append(add.apply_async((1, 1), producer=producer))
            with app.producer_or_acquire() as producer, app.connection_or_acquire() as connection:
                results.append(add.apply_async((2, 1), producer=producer))
            seen += [ended(result).get() for result in results]
        with app.connection_for_write() as write, app.connection_for_read() as read:
            write.ensure_connection(max_retries=1)
            seen.append((write.as_uri().partition("://")[1], read.as_uri() == write.as_uri()))
        return seen

    assert same(snippet) == [4, 8, 16, 32, 2, 3, ("://", True)]


# -- Results --


def test_result_trees() -> None:
    def snippet(side: Side) -> Any:
        app = side.App()

        @app.task(name="pow2", trail=True)
        def pow2(i: int) -> int:
            return i**2

        @app.task(name="both", trail=True)
        def both(n: int) -> int:
            for i in range(n):
                pow2.delay(i)
            return n

        with side.worker(app) as ended:
            result = ended(both.delay(3))
            for child in result.children:
                ended(child)
            walked = [(parent and parent.id == result.id, node.get()) for parent, node in result.iterdeps()]
            return (
                walked, [value for child, value in result.collect() if not child.children], result.get_leaf(),
                len(result.children), result.as_tuple() == ((result.id, None), None),
                result.as_list() == [result.id],
            )  # fmt: skip

    assert same(snippet)[1] == [0, 1, 4]


def test_option_of_the_caller_says_whether_its_calls_are_its_children() -> None:
    def snippet(side: Side) -> Any:
        app, canvas = side.App(), celery if side is CELERY else qworker

        @app.task(name="trailed")
        def trailed(*given: Any) -> None:
            calls()

        @app.task(name="untrailed", trail=False)
        def untrailed(*given: Any) -> None:
            calls()

        @app.task(name="leaf")
        def leaf(*given: Any) -> None: ...

        @app.task(name="hidden", trail=False)
        def hidden(*given: Any) -> None: ...

        def calls() -> None:
            for called in (leaf, hidden):
                called.delay()
                called.apply_async(countdown=0)
                (called.s() | called.s()).delay()
                canvas.group(called.s(), called.s()).delay()

        with side.worker(app) as ended:
            results = [
                ended(call.apply_async(link=link.s()))
                for call in (trailed, untrailed)
                for link in (leaf, hidden)
            ]
            return [len(result.children or ()) for result in results]

    assert same(snippet) == [9, 9, 0, 0]


def test_result_attributes() -> None:
    def snippet(side: Side) -> Any:
        app, told = side.App(), []
        add = app.task(name="add")(plus)
        unknown = app.AsyncResult("never-sent")
        with side.worker(app) as ended:
            result = ended(add.apply_async((1, 2), task_id="my-id"))
            seen = [
                result.get(callback=lambda *given: told.append(given)), result.state, result.status,
                result.result,
                result.info, result.ready(), result.successful(), result.failed(), result.traceback,
                str(result),
                result == app.AsyncResult("my-id"), result.date_done is not None, unknown.state,
                unknown.result,
                unknown.ready(), app.backend.get_state("my-id"), app.backend.get_result("my-id"),
                app.backend.get_task_meta("never-sent")["status"],
            ]  # fmt: skip
            result.forget()
            seen.append(app.AsyncResult("my-id").state)
        return seen, told

    same(snippet)


def test_result_backend_methods() -> None:
    def snippet(side: Side) -> Any:
        app, seen = side.App(), []
        store = app.backend
        store.mark_as_started("a", pid=7)
        seen.append((store.get_state("a"), store.get_result("a")))
        store.mark_as_done("a", {"x": 1})
        store.mark_as_failure("b", KeyError("no"), "Traceback: here")
        store.store_result("c", [1], "PROGRESS")
        store.mark_as_revoked("d", "not wanted")
        for task_id in "abcd":
            result = app.AsyncResult(task_id)
            seen.append(
                (
                    result.state,
                    repr(result.result).replace("TaskRevokedError", "TaskRevoked"),
                    result.traceback,
                )
            )
        return seen

    same(snippet)


def test_eager_calls() -> None:
    def snippet(side: Side) -> Any:
        app, seen = side.App(), []

        @app.task(bind=True, name="work", max_retries=2)
        def work(self: Any, how: str) -> Any:
            if how == "fail":
                raise KeyError("no")
            if how == "retry" and self.request.retries < 2:
                raise self.retry(countdown=0)
            return how, self.request.is_eager, self.request.called_directly, self.request.retries

        for how in ("well", "fail", "retry"):
            result = work.apply((how,))
            value = list(result.result) if isinstance(result.result, tuple) else repr(result.result)
            seen.append((result.state, value, result.ready(), result.successful()))
        with pytest.raises(KeyError):
            work.apply(("fail",), throw=True)
        app.conf.task_always_eager = True
        result = work.delay("well")
        seen.append((type(result).__name__, list(result.get())))
        app.conf.task_eager_propagates = True
        with pytest.raises(KeyError):
            work.delay("fail")
        return seen

    same(snippet)


# -- Canvas: signatures --


def test_signatures() -> None:
    def snippet(side: Side) -> Any:
        app, seen = side.App(), []
        app.set_current()

        @app.task(name="add")
        def add(x: int, y: int, debug: bool = False) -> Any:
            return x, y, debug

        def look(call: Any) -> None:
            seen.append(
                {key: call[key] for key in ("task", "args", "kwargs", "options", "subtask_type", "immutable")}
            )

        calls = [
            add.s(2, 2), add.s(2, 2, debug=True), add.signature((2, 2), countdown=10), add.subtask((2,),
            {"y": 1}),
            add.si(2, 2), app.signature("add", args=(2, 2), countdown=10), add.s(2).clone((4,)),
            add.s(2).clone(kwargs={"y": 3}),
            add.s(2, 2).replace(args=(5, 6)), add.signature((2, 2), immutable=True), add.s(2,
            2).set(countdown=1),
        ]  # fmt: skip
        for call in calls:
            look(call)
        call = add.s(2, 2)
        seen.append(call.set(countdown=1) is call)
        look(call)
        call.link(add.s(8))
        call.link_error(add.s(9))
        seen.append((len(call.options["link"]), len(call.options["link_error"])))
        seen.append((add.s(2)(3), add.s(2, 2)(), add.s(2)(3, debug=True), add.si(1, 1)()))
        seen.append(
            (
                add.s(4, debug=True).apply((2,)).get(),
                repr(add.s(2, 2)),
                call.name,
                call.type.name,
            )
        )
        frozen = add.s(1, 1)
        seen.append(frozen.freeze().id == frozen.id == frozen.options["task_id"])
        with side.worker(app) as ended:
            seen.append(list(ended(add.s(4).delay(2, debug=True)).get()))
            seen.append(list(ended(add.s(4).apply_async((2,), countdown=0)).get()))
        return seen

    seen = same(snippet)
    assert (3, 2, False) in seen[-5]


def test_chain_of_a_single_group_of_one() -> None:
    """Alone it is the group's member in both libraries. What follows it with ``|`` gets the value or a
    list of it: in Celery this depends on how the parts before and after are written, in qworker on less."""

    def snippet(side: Side) -> Any:
        app, canvas = side.App(), celery if side is CELERY else qworker

        @app.task(name="note")
        def note(value: Any, name: Any) -> str:
            return f"{name}({value})".replace("'", "")

        def only(value: Any = None) -> Any:
            return canvas.chain(canvas.group([note.s(*([] if value is None else [value]), 1)]))

        then, head = note.s(7), canvas.group([note.s("x", 0)])
        calls = {
            "alone": only("x"),
            "chain | task": only("x") | then,
            "group | chain": head | only(),
            "group | chain | task": head | only() | then,
            "group | chain | chain": head | only() | canvas.chain(then),
            "group | chain | chord": head | only() | canvas.chord([then], note.s(8)),
            "group | chain | chain of a chord": head | only() | canvas.chain(canvas.chord([then], note.s(8))),
            "group | chain | group": head | only() | canvas.group([then, note.s(8)]),
            "task | chain | task": note.s("x", 0) | only() | then,
        }
        with side.worker(app) as ended:
            return {name: ended(call.apply_async()).get() for name, call in calls.items()}

    assert snippet(QWORKER) == {
        "alone": "1(x)",
        "chain | task": "7([1(x)])",
        "group | chain": "1([0(x)])",
        "group | chain | task": "7([1([0(x)])])",
        "group | chain | chain": "7([1([0(x)])])",
        "group | chain | chord": "8([7([1([0(x)])])])",
        "group | chain | chain of a chord": "8([7(1([0(x)]))])",
        "group | chain | group": ["7(1([0(x)]))", "8(1([0(x)]))"],
        "task | chain | task": "7(1(0(x)))",
    }
    assert snippet(CELERY) == snippet(QWORKER) | {
        "group | chain | chain": "7(1([0(x)]))",
        "task | chain | task": "7([1(0(x))])",
    }


def test_result_of_a_group_of_one_chain_that_ends_in_a_group() -> None:
    def snippet(side: Side) -> Any:
        app, canvas = side.App(), celery if side is CELERY else qworker

        @app.task(name="add")
        def add(x: int, y: int) -> int:
            return x + y

        def chain() -> Any:
            return add.s(1, 1) | canvas.group([add.s(1), add.s(2)])

        with side.worker(app) as ended:
            return [
                ended(canvas.group(calls).apply_async()).get() for calls in ([chain()], [chain(), chain()])
            ]

    assert snippet(QWORKER) == [[[3, 4]], [[3, 4], [3, 4]]]
    assert snippet(CELERY) == [[3, 4], [[3, 4], [3, 4]]]


def test_order_of_a_group_in_a_group() -> None:
    def snippet(side: Side) -> Any:
        app, canvas = side.App(), celery if side is CELERY else qworker

        @app.task(name="given")
        def given(x: Any) -> Any:
            return x

        def nested() -> Any:
            inner = canvas.group(given.si(0), given.si(1))
            return canvas.group(canvas.group(inner, given.si(2)), given.si(3))

        with side.worker(app) as ended:
            return [
                ended(call.apply_async()).get()
                for call in (
                    nested(),
                    canvas.chain(given.si(9), nested()),
                    canvas.chord(nested(), given.s()),
                    canvas.chord([given.si(9)], nested()),
                )
            ]

    assert snippet(QWORKER) == [[0, 1, 2, 3]] * 4
    assert snippet(CELERY) == [[0, 1, 2, 3], *[[2, 1, 0, 3]] * 3]


# -- Routing --


def test_routes_by_name() -> None:
    def route_task(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **more: Any) -> Any:
        return {"queue": "by-function"} if name == "myapp.tasks.compress_video" else None

    def snippet(side: Side) -> Any:
        seen = []
        for routes in (
            {"feed.tasks.*": {"queue": "feeds"}},
            {"feed.tasks.*": "feeds"},
            ([("feed.tasks.*", {"queue": "feeds"}), ("web.tasks.*", {"queue": "web"}),
              (re.compile(r"(video|image)\.tasks\..*"), {"queue": "media"})],),
            (route_task,),
            [route_task, {"web.tasks.*": {"queue": "web"}}],
        ):  # fmt: skip
            app = side.App(task_default_queue="plain")
            app.conf.task_routes = routes
            for name in (
                "feed.tasks.x",
                "web.tasks.y",
                "video.tasks.z",
                "myapp.tasks.compress_video",
                "other",
            ):
                seen.append(queue_of(side, app, name))
        return seen

    def queue_of(side: Side, app: Any, name: str) -> str:
        if side is CELERY:
            return str(app.amqp.router.route({}, name)["queue"].name)
        told: list[str] = []
        receive = side.signals.after_task_publish.connect(
            lambda routing_key=None, **kwargs: told.append(routing_key)
        )
        app.send_task(name)
        side.signals.after_task_publish.disconnect(receive)
        return told[0]

    same(snippet)
