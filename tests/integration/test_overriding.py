"""Methods that task classes override are used: in a worker, eagerly, and for every kind of call."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qworker import QWorker, Signature, Task, shared_task
from qworker.errors import ConfigurationError, PublishError
from qworker.message.context import current_context
from qworker.message.protocol import parse_headers
from qworker.testing import FakeClock, MemoryStore, StepWorker

pytestmark = pytest.mark.integration
ASYNC = pytest.mark.parametrize("kind", ["sync", "async"])

inside: contextvars.ContextVar[str | None] = contextvars.ContextVar("inside", default=None)
seen: list[Any] = []


class InContext(Task[..., Any]):
    """Like in Flask's documentation."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = inside.set("app")
        try:
            return self.run(*args, **kwargs)
        finally:
            inside.reset(token)


class InContextBySuper(Task[..., Any]):
    """Like in Flask's older documentation."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = inside.set("app")
        try:
            return super().__call__(*args, **kwargs)
        finally:
            inside.reset(token)


class AsyncInContext(Task[..., Any]):
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = inside.set("app")
        try:
            return await self.run(*args, **kwargs)
        finally:
            inside.reset(token)


class AsyncInContextBySuper(Task[..., Any]):
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = inside.set("app")
        try:
            return await super().__call__(*args, **kwargs)
        finally:
            inside.reset(token)


CONTEXTS = pytest.mark.parametrize(
    "base",
    [InContext, InContextBySuper, AsyncInContext, AsyncInContextBySuper],
    ids=lambda base: base.__name__,
)


class Tenant(Task[..., Any]):
    """Adds a header to every call."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]
        seen.append((self.name, tuple(args or ())))
        options["headers"] = {**(options.get("headers") or {}), "tenant": "acme"}
        return super().apply_async(args, kwargs, **options)


class Env:
    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.app = QWorker(
            "env",
            broker=self.store,
            backend="cache+memory://",
            clock=self.clock,
            set_as_current=False,
            **settings,
        )

    def run(self, seconds: float = 0.0) -> None:
        with StepWorker(self.app) as worker:
            worker.advance(seconds) if seconds else worker.run()

    def headers(self) -> list[dict[str, Any]]:
        return [parse_headers(one.headers) for one in self.store.consumer.lease(["celery"], 100).messages]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    seen.clear()
    yield
    assert inside.get() is None


def report_context(is_async: bool) -> Callable[..., Any]:
    """Return a bound task function that returns its context and request."""

    def report(task: Any, *args: Any) -> list[Any]:
        return [inside.get(), task.request.id, task.request.called_directly, *args]

    async def report_async(task: Any, *args: Any) -> list[Any]:
        return report(task, *args)

    return report_async if is_async else report


# -- __call__ --


@CONTEXTS
def test_worker_uses_an_overridden_call_method(base: type[Task[..., Any]]) -> None:
    env = Env()
    task = env.app.task(name="work", base=base, bind=True)(report_context(base.__name__.startswith("Async")))  # type: ignore[call-overload]
    result = task.delay(1)
    env.run()
    assert result.get() == ["app", result.id, False, 1]


@CONTEXTS
def test_eager_run_uses_an_overridden_call_method(base: type[Task[..., Any]]) -> None:
    env = Env()
    task = env.app.task(name="work", base=base, bind=True)(report_context(base.__name__.startswith("Async")))  # type: ignore[call-overload]
    result = task.apply((1,))
    assert result.get() == ["app", result.id, False, 1]
    env.app.conf.task_always_eager = True
    result = task.delay(2)
    assert result.get() == ["app", result.id, False, 2]


@CONTEXTS
def test_direct_call_sets_called_directly(base: type[Task[..., Any]]) -> None:
    env = Env()
    task = env.app.task(name="work", base=base, bind=True)(report_context(base.__name__.startswith("Async")))  # type: ignore[call-overload]
    answer = task(1)
    if base.__name__.startswith("Async"):
        import asyncio

        answer = asyncio.run(answer)
    assert answer == ["app", None, True, 1]


def test_recursive_call_sets_called_directly() -> None:
    env = Env()

    @env.app.task(name="work", base=InContextBySuper, bind=True)
    def work(self: Any, depth: int) -> list[Any]:
        own = [[self.request.id, self.request.args]]
        return own + (self(depth - 1) if depth else [])

    result = work.delay(2)
    env.run()
    assert result.get() == [[result.id, [2]], [None, [1]], [None, [0]]]


def test_middleware_wraps_an_overridden_call_method() -> None:
    from qworker import Middleware

    class Around(Middleware):
        def execute(self, call_next: Any, context: Any) -> Any:
            seen.append(inside.get())
            return call_next(context)

    env = Env(middleware=[Around()])
    task = env.app.task(name="work", base=InContext)(lambda: inside.get())
    result = task.delay()
    env.run()
    assert (result.get(), seen) == ("app", [None])


def test_flask_task_class_of_its_documentation() -> None:
    flask = pytest.importorskip("flask", reason="pip install flask")
    web = flask.Flask("web")
    web.config["GREETING"] = "hello"

    class FlaskTask(Task[..., Any]):
        def __call__(self, *args: object, **kwargs: object) -> object:
            with web.app_context():
                return self.run(*args, **kwargs)

    env = Env(task_cls=FlaskTask)

    @env.app.task(name="greet")
    def greet(name: str) -> str:
        return f"{flask.current_app.config['GREETING']} {name}"

    result = greet.delay("you")
    env.run()
    assert result.get() == "hello you"


@pytest.mark.parametrize("base", [InContext, AsyncInContext])
def test_sync_and_async_mismatch_is_refused(base: type[Task[..., Any]]) -> None:
    env = Env()
    with pytest.raises(ConfigurationError, match=r"task work is an async def|the class of the task work"):
        env.app.task(name="work", base=base)(report_context(base is InContext))


# -- apply_async --


def calls(task: Task[..., Any], app: QWorker) -> dict[str, Callable[[], Any]]:
    return {
        "delay": lambda: task.delay(1),
        "apply_async": lambda: task.apply_async((1,)),
        "with options": lambda: task.apply_async((1,), priority=3),
        "apply_many": lambda: task.apply_many([(1,), {"x": 1}, task.s(1)]),
        "apply_many with options": lambda: task.apply_many([(1,)], priority=2),
        "send_many": lambda: app.send_many([task.s(1), Signature("work", (1,), app=app)]),
        "a signature": lambda: task.s(1).delay(),
        "its dict": lambda: app.signature(dict(task.s(1))).apply_async(),
    }


@pytest.mark.parametrize("how", list(calls(None, None)))  # type: ignore[arg-type]
def test_every_call_uses_an_overridden_apply_async(how: str) -> None:
    env = Env()
    task = env.app.task(name="work", base=Tenant)(lambda x: x)
    results = calls(task, env.app)[how]()
    count = len(results) if isinstance(results, list) else 1
    assert len(seen) == count
    env.store.consumer.register("here", ["celery"], 1)
    found = env.headers()
    assert [one["tenant"] for one in found] == ["acme"] * count
    ids = [each.id for each in results] if isinstance(results, list) else [results.id]
    assert [one["id"] for one in found] == ids


def test_callbacks_and_errbacks_use_an_overridden_apply_async() -> None:
    env = Env()
    task = env.app.task(name="work", base=Tenant)(lambda x: x)
    plain = env.app.task(name="plain")(lambda x: 1 / x)
    plain.apply_async((1,), link=task.s())
    plain.apply_async((0,), link_error=task.s())
    env.run()
    assert [(name, len(args)) for name, args in seen] == [("work", 1)] * 2


@ASYNC
def test_retry_uses_an_overridden_apply_async(kind: str) -> None:
    env = Env()

    def attempt(self: Any, x: int) -> Any:
        if self.request.retries < 2:
            raise self.retry(countdown=1, headers={"try": self.request.retries})
        return [self.request.id, self.request.headers, self.request.retries, x]

    async def attempt_async(self: Any, x: int) -> Any:
        return attempt(self, x)

    function = attempt if kind == "sync" else attempt_async
    task = env.app.task(name="work", base=Tenant, bind=True)(function)  # type: ignore[call-overload]
    result = task.delay(5)
    env.run(5)
    assert result.get() == [result.id, {"tenant": "acme", "try": 1}, 2, 5]
    assert seen == [("work", (5,))] * 3


def test_automatic_retry_uses_an_overridden_apply_async() -> None:
    env = Env()

    @env.app.task(
        name="work", base=Tenant, bind=True, autoretry_for=(KeyError,), retry_kwargs={"countdown": 1}
    )
    def work(self: Any) -> int:
        if not self.request.retries:
            raise KeyError
        return int(self.request.retries)

    result = work.delay()
    env.run(2)
    assert (result.get(), len(seen)) == (1, 2)


def test_retries_option_is_refused_outside_of_retries() -> None:
    env = Env()
    task = env.app.task(name="work")(lambda: None)
    with pytest.raises(PublishError, match=r"retries of the next attempt"):
        task.apply_async(retries=3)


def test_apply_async_may_return_without_sending() -> None:
    """Like celery-once, which does not send calls that are already running."""

    class Once(Task[..., Any]):
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]
            if args in seen:
                return None
            seen.append(args)
            return super().apply_async(args, kwargs, **options)

    env = Env()
    task = env.app.task(name="work", base=Once)(lambda x: x)
    results = task.apply_many([(1,), (1,), (2,)])
    assert [result is None for result in results] == [False, True, False]
    assert env.store.admin.queues()[0].ready == 2


def test_send_many_is_atomic() -> None:
    env = Env()
    task = env.app.task(name="work", base=Tenant)(lambda x: x)
    plain = env.app.task(name="plain")(lambda x: x)
    with pytest.raises(TypeError):
        env.app.send_many([task.s(1), plain.s(1), task.s(1, 2)])
    assert env.store.admin.queues() == []
    sent = env.app.send_many([task.s(1), plain.s(2), task.s(3)])
    env.run()
    assert [result.get() for result in sent] == [1, 2, 3]


def test_eager_call_uses_an_overridden_apply_async() -> None:
    env = Env(task_always_eager=True)
    task = env.app.task(name="work", base=Tenant, bind=True)(lambda self: self.request.headers)
    assert (task.delay().get(), len(seen)) == ({"tenant": "acme"}, 1)


# -- the class of an app's tasks --


class Audited(Task[..., Any]):
    max_retries = 9
    db: str | None = None

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        seen.append((self.name, self.db))


def by_argument() -> Env:
    return Env(task_cls=Audited)


def by_name() -> Env:
    return Env(task_cls=f"{__name__}:Audited")


def by_attribute() -> Env:
    env = Env()
    env.app.Task = Audited
    return env


@pytest.mark.parametrize("make", [by_argument, by_name, by_attribute])
def test_task_class_of_an_app(make: Callable[[], Env]) -> None:
    env = make()
    assert env.app.Task is Audited
    one = env.app.task(name="one")(lambda: 1)
    other = env.app.task(name="other", base=InContext, max_retries=2)(lambda: 2)
    strict = env.app.task(name="strict", max_retries=1, db="main")(lambda: 3)
    for task in (one, other, strict):
        task.delay()
    env.run()
    assert seen == [("one", None), ("strict", "main")]
    assert (one.max_retries, other.max_retries, strict.max_retries) == (9, 2, 1)


def test_app_subclass_can_set_task_cls() -> None:
    class App(QWorker):
        task_cls = Audited

    assert isinstance(App("own", set_as_current=False).task(name="one")(lambda: 1), Audited)


def test_existing_tasks_get_the_task_class() -> None:
    """Flask's application factory sets the class after tasks were created."""
    env = Env()
    one = env.app.task(name="one", max_retries=1)(lambda: 1)

    async def two() -> int:
        return 2

    second = env.app.task(name="two")(two)
    hooked = env.app.task(name="hooked", on_success=lambda self, *rest: seen.append("hook"))(lambda: 3)
    env.app.Task = Audited
    results = [task.delay() for task in (one, second, hooked)]
    env.run()
    assert [result.get() for result in results] == [1, 2, 3]
    assert sorted(map(str, seen)) == ["('one', None)", "('two', None)", "hook"]
    assert (one.max_retries, second.max_retries) == (1, 9)


def test_shared_tasks_get_the_task_class() -> None:
    from qworker.tasks import registry

    before = list(registry.shared)
    try:
        shared_task(name="shared")(lambda: 1)
        env = Env(task_cls=Audited)
        assert isinstance(env.app.tasks["shared"], Audited)
    finally:
        registry.shared[:] = before


def test_invalid_or_late_task_class_is_refused() -> None:
    env = Env()
    env.app.finalize()
    with pytest.raises(ConfigurationError, match=r"app\.Task is set too late"):
        env.app.Task = Audited
    with pytest.raises(ConfigurationError, match=r"must be a subclass of qworker.Task"):
        Env(task_cls=dict)
    with pytest.raises(ConfigurationError, match=r"task_cls=.*must be a subclass"):
        Env().app.Task = dict  # type: ignore[assignment]


def test_class_based_task_can_be_registered_as_a_class() -> None:
    class Double(Task[..., Any]):
        """Twice as much."""

        name = "double"
        rate_limit = 10

        async def run(self, x: int) -> int:
            return 2 * x

    env = Env()
    task = env.app.register_task(Double)
    result = task.delay(4)
    env.run()
    assert (result.get(), task.rate_limit, task.__doc__, task.origin()[1]) == (
        8,
        "10/s",
        "Twice as much.",
        Double.__qualname__,
    )


def test_on_bound_gets_the_app() -> None:
    class Bound(Task[..., Any]):
        @classmethod
        def on_bound(cls, app: QWorker) -> None:
            seen.append(app)

    env = Env(task_cls=Bound)
    env.app.task(name="one")(lambda: 1)
    env.app.finalize()
    assert seen
    assert all(app is env.app for app in seen)


# -- annotations --


def failed(self: Any, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
    seen.append((self.name, repr(exc)))


def began(self: Any, task_id: str, args: Any, kwargs: Any) -> None:
    seen.append((self.name, args))


class Annotate:
    """Celery's example."""

    def annotate(self, task: Task[..., Any]) -> dict[str, Any] | None:
        return {"rate_limit": "10/s"} if task.name.startswith("tasks.") else None

    def annotate_any(self) -> dict[str, Any]:
        return {"max_retries": 4}


ANNOTATED: Any = Annotate()


@pytest.mark.parametrize(
    "annotations",
    [
        {"*": {"on_failure": failed}},
        {"boom": {"on_failure": failed}},
        [{"x": {}}, {"*": {"on_failure": failed}}],
    ],
)
def test_annotations_can_set_hooks(annotations: Any) -> None:
    env = Env(task_annotations=annotations)
    env.app.task(name="boom")(lambda: 1 / 0).delay()
    env.run()
    assert seen == [("boom", "ZeroDivisionError('division by zero')")]


def test_annotations_can_set_several_hooks_and_call() -> None:
    def call(self: Any, *args: Any) -> Any:
        return ["called", self.run(*args)]

    env = Env(task_annotations={"*": {"before_start": began, "__call__": call}})
    result = env.app.task(name="one")(lambda x: x).delay(3)
    env.run()
    assert (result.get(), seen) == (["called", 3], [("one", (3,))])


@pytest.mark.parametrize(
    "annotations", [ANNOTATED, [ANNOTATED, {"other": {}}], f"{__name__}:Annotate", [Annotate]]
)
def test_annotations_can_be_objects(annotations: Any) -> None:
    env = Env(task_annotations=annotations)
    one, other = (env.app.task(name=name)(lambda: 1) for name in ("tasks.one", "other"))
    env.app.finalize()
    assert (one.rate_limit, one.max_retries, other.rate_limit, other.max_retries) == ("10/s", 4, None, 4)


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"*": {"on_failure": "proj.hooks.failed"}}, "on_failure='proj.hooks.failed' must be a function"),
        ({"*": {"retires": 3}}, "no task option 'retires'"),
        ({"*": {"@run": failed}}, "no task option '@run'"),
        ([5], "task_annotations has 5"),
        ({"*": 5}, "has 5, which is not a mapping"),
        ("nowhere.to.be.found", "nowhere"),
    ],
)
def test_invalid_annotations_are_refused(annotations: Any, words: str) -> None:
    env = Env(task_annotations=annotations)
    env.app.task(name="one")(lambda: 1)
    with pytest.raises(ConfigurationError, match=words):
        env.app.finalize()


def test_hooks_can_be_given_to_the_decorator() -> None:
    env = Env()
    env.app.task(name="one", before_start=began)(lambda x: x).delay(5)
    env.run()
    assert seen == [("one", (5,))]
    assert current_context() is None


def test_shadow_name_can_be_given_to_the_decorator() -> None:
    """Celery's documentation of shadow_name."""
    env = Env()
    named = env.app.task(name="map", shadow_name=lambda task, args, kwargs, options: args[0])(lambda *x: x)
    named.delay("what it maps")
    env.store.consumer.register("here", ["celery"], 1)
    assert env.headers()[0]["shadow"] == "what it maps"
