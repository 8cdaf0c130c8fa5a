"""Publishing: which messages reach the broker, and what happens if the broker is unavailable."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qworker import Middleware, QWorker, Signature, group, signals
from qworker.clock import from_epoch, to_epoch
from qworker.errors import BrokerUnavailable, EncodeError, PublishError, QueueNotFound
from qworker.message.context import Context, pop, push
from qworker.message.marks import RUN
from qworker.message.protocol import TaskMessage, encode, parse_headers, parse_properties
from qworker.publishing.publisher import MOST_ALIKE
from qworker.tasks.task import Task
from qworker.testing.clock import FakeClock
from tests.support.stores import KeepingStore, Sent, make_app

AddTask = Task[[int, int], int]


def with_add(**settings: Any) -> tuple[QWorker, KeepingStore, AddTask]:
    app, store, _ = make_app(**settings)

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    return app, store, add


@pytest.fixture(autouse=True)
def _no_receivers() -> Iterator[None]:
    yield
    for signal in (signals.before_task_publish, signals.after_task_publish):
        signal.receivers = []


def only(store: KeepingStore) -> Sent:
    (sent,) = store.sent
    return sent


# -- what is sent --


def test_plain_call_sends_a_message() -> None:
    _, store, add = with_add()
    result = add.delay(1, y=2)
    sent = only(store)
    assert (sent.headers["task"], sent.headers["id"], sent.headers["root_id"]) == (
        "add",
        result.id,
        result.id,
    )
    assert (sent.body.args, sent.body.kwargs) == ((1,), {"y": 2})
    assert (sent.envelope.queue, sent.envelope.priority, sent.envelope.due) == ("celery", 0, None)
    assert sent.properties["content_type"] == "application/json"
    assert store.timeouts == [10.0]


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(values, values), st.dictionaries(st.text(min_size=1), values, max_size=2))
def test_delay_and_apply_async_send_the_same_message(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    app, store, _ = make_app()

    @app.task(name="any")
    def anything(*args: Any, **kwargs: Any) -> None: ...

    short = anything.delay(*args, **kwargs)
    long = anything.apply_async(args, kwargs, task_id=short.id)
    first, second = store.sent
    marked = {**first.headers, RUN: second.headers[RUN]}  # the id was given, so it may have been used before
    assert (marked, first.body, first.properties) == (second.headers, second.body, second.properties)
    expected = encode(TaskMessage(task="any", id=long.id, args=args, kwargs=kwargs, ignore_result=False))
    assert first.headers == parse_headers(expected.headers)


def test_all_options_reach_the_message() -> None:
    app, store, clock = make_app()

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    result = add.apply_async(
        (1,), {"y": 2}, task_id="mine", countdown=10, expires=60, queue="far", priority=5,
        headers={"trace": "t1"},
        shadow="alias", time_limit=9, soft_time_limit=timedelta(seconds=8), ignore_result=True,
        link=Signature("after", (1,)), link_error=[Signature("failed")], root_id="r", parent_id="p",
        group_id="g",
        group_index=3, reply_to="q",
    )  # fmt: skip
    sent = only(store)
    assert result.id == "mine"
    assert result.ignored
    headers = {
        "task": "add", "id": "mine", "eta": from_epoch(clock.now() + 10).isoformat(),
        "expires": from_epoch(clock.now() + 60).isoformat(), "shadow": "alias", "timelimit": [9, 8],
        "ignore_result": True, "root_id": "r", "parent_id": "p", "group": "g", "group_index": 3,
        "trace": "t1",
        "retries": 0, "argsrepr": "(1,)", "kwargsrepr": "{'y': 2}",
    }  # fmt: skip
    assert {key: sent.headers[key] for key in headers} == headers
    envelope = sent.envelope
    assert (envelope.queue, envelope.priority, envelope.due, envelope.expires) == (
        "far", 5, clock.now() + 10, clock.now() + 60,
    )  # fmt: skip
    assert [call["task"] for call in sent.body.embed["callbacks"]] == ["after"]
    assert [call["task"] for call in sent.body.embed["errbacks"]] == ["failed"]
    assert sent.properties["reply_to"] == "q"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"serializer": "pickle"}, "not in accept_content"),
        ({"task_id": ""}, "task_id='' must be"),
        ({"task_id": "a\nb"}, "must be printable text"),
        ({"countdown": float("nan")}, "countdown=nan must be"),
    ],
)
def test_calls_that_workers_would_reject_are_not_sent(options: dict[str, Any], words: str) -> None:
    app, store, _ = make_app()
    with pytest.raises(PublishError, match=words):
        app.send_task("work", **options)
    assert store.sent == []


def test_task_options_apply_to_every_call() -> None:
    app, store, clock = make_app(accept_content=["json", "msgpack"])

    @app.task(
        queue="slow", priority=7, expires=30, ignore_result=True, serializer="msgpack", compression="gzip"
    )
    def work() -> None: ...

    assert work.delay().ignored
    sent = only(store)
    assert (sent.envelope.queue, sent.envelope.priority, sent.envelope.expires) == (
        "slow",
        7,
        clock.now() + 30,
    )
    assert sent.properties["content_type"] == "application/x-msgpack"
    assert sent.headers["compression"] == "application/x-gzip"
    work.apply_async(queue="fast", priority=1, expires=5, ignore_result=False)
    envelope = store.sent[1].envelope
    assert (envelope.queue, envelope.priority, envelope.expires) == ("fast", 1, clock.now() + 5)
    app.send_task("work_of_others")
    assert [each.headers["ignore_result"] for each in store.sent] == [True, False, None]


def test_call_made_in_a_task_inherits_from_its_parent() -> None:
    _, store, add = with_add(task_inherit_parent_priority=True)
    context = Context(
        id="parent", root_id="root", called_directly=False, task="other", delivery_info={"priority": 6}
    )
    token = push(context)
    first, second = add.delay(1, 2), add.apply_async((1, 2), queue="q")
    third = add.apply_async((1, 2), queue="q", add_to_parent=False)
    pop(token)
    assert {(sent.headers["root_id"], sent.headers["parent_id"]) for sent in store.sent} == {
        ("root", "parent")
    }
    assert [sent.envelope.priority for sent in store.sent] == [6, 6, 6]
    assert context.children == [first, second]
    assert third not in context.children


@pytest.mark.parametrize(
    "call",
    [
        lambda add: add.delay(1, 2),
        lambda add: add.apply_async((1, 2), countdown=1),
        lambda add: add.apply_many([(1, 2)]),
        lambda add: add.app.send_task("add", (1, 2)),
        lambda add: group(add.s(1, 2)).delay(),
    ],
)
def test_expiry_of_a_route_counts_from_each_call(call: Callable[[Any], Any]) -> None:
    """It counted from the first call in the process, so that later ones expired at once."""
    app, store, clock = make_app(task_routes={"add": {"expires": 60}})
    add = app.task(name="add")(lambda x, y: x + y)
    for _ in range(3):
        call(add)
        sent = store.sent[-1]
        assert sent.envelope.expires == clock.now() + 60
        assert to_epoch(sent.headers["expires"]) == clock.now() + 60
        clock.advance(100)


def test_changed_settings_apply_to_the_next_call() -> None:
    app, store, add = with_add()
    add.delay(1, 2)
    app.conf.task_default_queue = "later"
    app.conf.task_routes = {"add": {"priority": 4}}
    add.delay(1, 2)
    assert [(sent.envelope.queue, sent.envelope.priority) for sent in store.sent] == [
        ("celery", 0),
        ("later", 4),
    ]


def test_message_is_signed_if_a_key_is_set() -> None:
    _, store, add = with_add(security_key="k" * 32)
    add.delay(1, 2)
    assert only(store).headers["signature"].startswith("v1:")


def test_shadow_name_hook_sets_the_shadow_header() -> None:
    app, store, _ = make_app()

    class Named(Task[..., Any]):
        def shadow_name(self, args: Any, kwargs: Any, options: Any) -> str:
            return f"work on {args[0]}"

    @app.task(base=Named)
    def work(x: int) -> None: ...

    work.delay(5)
    assert only(store).headers["shadow"] == "work on 5"


# -- time --


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({"countdown": 5}, 5),
        ({"countdown": 2.5}, 2.5),
        ({"countdown": timedelta(minutes=1)}, 60),
        ({"countdown": -5}, 0),
        ({"eta": datetime(2023, 11, 14, 22, 13, 30, tzinfo=UTC)}, 10),
        ({"eta": datetime(2023, 11, 15, 0, 13, 30, tzinfo=timezone(timedelta(hours=2)))}, 10),
        ({"eta": datetime(2023, 11, 14, 22, 13, 30)}, 10),
        ({"eta": "2023-11-14T22:13:30Z"}, 10),
    ],
)
def test_countdown_and_eta_set_the_due_time(options: dict[str, Any], due: float) -> None:
    app, store, add = with_add()
    add.apply_async((1, 2), **options)
    sent = only(store)
    assert sent.envelope.due == app.clock.now() + due
    assert datetime.fromisoformat(sent.headers["eta"]).timestamp() == pytest.approx(app.clock.now() + due)


@pytest.mark.parametrize(
    "eta", [datetime(2023, 11, 14, 23, 13, 30), "2023-11-14T23:13:30", "2023-11-14T22:13:30+00:00"]
)
def test_naive_eta_is_in_the_timezone_of_the_app(eta: datetime | str) -> None:
    app, store, add = with_add(timezone="Europe/Zurich")
    add.apply_async((1, 2), eta=eta)
    sent = only(store)
    assert sent.envelope.due == app.clock.now() + 10
    assert datetime.fromisoformat(sent.headers["eta"]).timestamp() == app.clock.now() + 10
    assert datetime.fromisoformat(sent.headers["eta"]).tzinfo is not None


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": "soon"},
        {"countdown": float("nan")},
        {"countdown": float("inf")},
        {"countdown": 1e300},
        {"eta": 5},
        {"eta": "tomorrow"},
        {"expires": "never"},
        {"expires": 1e300},
        {"expires": -1},
        {"time_limit": 0},
        {"soft_time_limit": "long"},
        {"headers": ["a"]},
        {"headers": {1: 2}},
        {"headers": {"task": "other"}},
        {"link": "proj.add"},
        {"task_id": 5},
        {"task_id": "a\nb"},
        {"queue": "a b"},
        {"priority": "high"},
        {"priority": -1},
        {"priority": 10},
        {"priority": True},
        {"retry_policy": {"max_retry": 3}},
        {"retry_policy": {"max_retries": -1}},
        {"retry_policy": 3},
        {"time_limit": 5, "soft_time_limit": timedelta(seconds=6)},
    ],
    ids=str,
)
def test_invalid_options_are_rejected_before_publishing(options: dict[str, Any]) -> None:
    _, store, add = with_add()
    with pytest.raises(PublishError) as caught:
        add.apply_async((1, 2), **options)
    assert "add" in str(caught.value) or "task_id" in str(caught.value)
    assert store.tries == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": 12}, "priority=12 must be a whole number from 0 to 5"),
        ({"retry_policy": {"max_retry": 3}}, "retry_policy has no 'max_retry'; did you mean 'max_retries'"),
        ({"time_limit": 5, "soft_time_limit": 6}, r"soft_time_limit \(6 s\) comes after time_limit \(5 s\)"),
    ],
)
def test_message_of_an_invalid_option_tells_the_valid_values(options: dict[str, Any], words: str) -> None:
    app, store, add = with_add(task_queue_max_priority=5)
    with pytest.raises(PublishError, match=words):
        add.apply_async((1, 2), **options)
    with pytest.raises(PublishError, match=words):
        app.send_task("far", **options)
    assert store.tries == 0


def test_soft_and_hard_time_limit_may_be_equal() -> None:
    _, store, add = with_add()
    add.apply_async((1, 2), time_limit=5, soft_time_limit=5)
    assert only(store).headers["timelimit"] == [5, 5]


def test_unknown_option_gets_a_suggestion() -> None:
    _, store, add = with_add()
    with pytest.raises(PublishError, match=r"no option 'cuontdown'. Did you mean countdown"):
        add.apply_async((1, 2), cuontdown=5)
    assert store.tries == 0


# -- arguments --


@pytest.mark.parametrize("call", [lambda add: add.delay(1), lambda add: add.apply_async((1,), queue="q")])
def test_arguments_are_checked_before_publishing(call: Callable[[AddTask], Any]) -> None:
    _, store, add = with_add()
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'y'"):
        call(add)
    with pytest.raises(TypeError):
        add.apply_many([(1, 2), (1,)])
    assert store.tries == 0


def test_typing_false_skips_the_argument_check() -> None:
    app, store, _ = make_app()

    @app.task(typing=False)
    def one(x: int) -> None: ...

    one.apply_async((1, 2, 3))
    assert only(store).body.args == (1, 2, 3)


def test_unserializable_argument_is_named() -> None:
    _, store, add = with_add()
    with pytest.raises(EncodeError, match=r"args\[1\]\['a'\] .*object is not JSON"):
        add.delay(1, {"a": object()})  # type: ignore[arg-type]
    assert store.tries == 0


def test_large_call_is_logged_and_oversized_call_rejected(caplog: pytest.LogCaptureFixture) -> None:
    app, store, _ = make_app(message_max_bytes=4096, message_warn_bytes=1024)

    @app.task(name="work")
    def work(text: str) -> None: ...

    work.delay("x" * 2000)
    assert "a call of work takes 20" in caplog.text
    with pytest.raises(PublishError, match="over the limit of 4,096"):
        work.delay("x" * 5000)
    assert len(store.sent) == 1


def test_oversized_call_is_rejected_below_the_warning_threshold() -> None:
    app, store, _ = make_app(message_max_bytes=2048)

    @app.task(name="work")
    def work(text: str) -> None: ...

    for call in (lambda: work.delay("x" * 3000), lambda: work.apply_many([("x",), ("x" * 3000,)])):
        with pytest.raises(PublishError, match="over the limit of 2,048"):
            call()
    assert store.tries == 0


# -- many calls --


def test_apply_many_pushes_once() -> None:
    _, store, add = with_add()
    results = add.apply_many([(1, 2), [3, 4], {"x": 5, "y": 6}, add.s(7, y=8)])
    assert len(store.pushes) == 1
    assert [(sent.body.args, sent.body.kwargs) for sent in store.sent] == [
        ((1, 2), {}), ((3, 4), {}), ((), {"x": 5, "y": 6}), ((7,), {"y": 8}),
    ]  # fmt: skip
    assert [sent.headers["id"] for sent in store.sent] == [result.id for result in results]


def test_apply_many_with_options() -> None:
    app, store, add = with_add()
    add.apply_many(((number, 1) for number in range(3)), queue="far", countdown=5)
    assert len(store.pushes) == 1
    assert [(sent.envelope.queue, sent.envelope.due) for sent in store.sent] == [
        ("far", app.clock.now() + 5)
    ] * 3


def test_no_calls_push_nothing() -> None:
    app, store, add = with_add()
    assert add.apply_many([]) == []
    assert add.apply_many([], queue="far") == []
    assert app.send_many([]) == []
    assert store.tries == 0


@pytest.mark.parametrize("item", [5, "ab", None, object()])
def test_apply_many_rejects_items_that_are_not_calls(item: Any) -> None:
    _, store, add = with_add()
    with pytest.raises(PublishError, match="is not a call"):
        add.apply_many([(1, 2), item])
    assert store.tries == 0


def test_apply_many_rejects_signatures_of_other_tasks() -> None:
    _, _, add = with_add()
    with pytest.raises(PublishError, match=r"use app\.send_many"):
        add.apply_many([Signature("other")])


def test_send_task_and_send_many_call_tasks_by_name() -> None:
    app, store, _ = with_add()
    result = app.send_task("elsewhere.work", (1,), {"a": 2}, queue="far")
    app.send_many(
        ["a", ("b", (1,)), ("c", [2], {"x": 3}), Signature("d", (4,), options={"priority": 2})], queue="q"
    )
    assert [(sent.headers["task"], sent.body.args, sent.envelope.queue) for sent in store.sent] == [
        ("elsewhere.work", (1,), "far"), ("a", (), "q"), ("b", (1,), "q"), ("c", (2,), "q"), ("d", (4,), "q"),
    ]  # fmt: skip
    assert [sent.envelope.priority for sent in store.sent] == [0, 0, 0, 0, 2]
    assert result.id == store.sent[0].headers["id"]
    assert len(store.pushes) == 2


# -- observers and middleware --


def test_publish_signals_see_the_message_and_can_add_headers() -> None:
    _, store, add = with_add()
    seen: list[tuple[str, Any]] = []

    @signals.before_task_publish.connect
    def before(sender: str, headers: dict[str, Any], body: Any, routing_key: str, **kwargs: Any) -> None:
        headers["trace"] = "t1"
        seen.append((sender, (body[0], routing_key)))

    @signals.after_task_publish.connect(sender="add")
    def after(sender: str, headers: dict[str, Any], **kwargs: Any) -> None:
        seen.append((sender, (headers["trace"], len(store.pushes))))

    add.delay(1, 2)
    add.apply_many([(3, 4)])
    assert [sent.headers["trace"] for sent in store.sent] == ["t1", "t1"]
    assert seen == [
        ("add", ((1, 2), "celery")), ("add", ("t1", 1)), ("add", ((3, 4), "celery")), ("add", ("t1", 2)),
    ]  # fmt: skip


def test_headers_added_by_a_signal_are_signed() -> None:
    app, store, add = with_add(security_key="k" * 32)
    signals.before_task_publish.connect(lambda headers, **kwargs: headers.update(stamps={"a": 1}))
    add.delay(1, 2)
    sent = only(store)
    assert app.signer is not None
    app.signer.verify(sent.headers, sent.envelope.body, sent.properties)


class Recording(Middleware):
    options = ("tenant",)

    def __init__(self) -> None:
        self.steps: list[str] = []

    def publish(self, call_next: Callable[[Any], Any], message: TaskMessage) -> Any:
        from dataclasses import replace

        self.steps.append(f"before {message.task}")
        call_next(replace(message, headers={**message.headers, "tenant": "acme"}))
        self.steps.append("after")


def test_publish_middleware_can_change_each_call() -> None:
    app, store, add = with_add()
    add.delay(1, 2)
    middleware = Recording()
    app.add_middleware(middleware)
    add.delay(1, 2)
    add.apply_many([(1, 2)])
    assert [sent.headers.get("tenant") for sent in store.sent] == [None, "acme", "acme"]
    assert middleware.steps == ["before add", "after", "before add", "after"]


def test_options_declared_by_middleware_are_accepted() -> None:
    app, store, _ = make_app(middleware=["tests.unit.test_publishing.Recording"])

    @app.task(tenant="acme")
    def work() -> None: ...

    work.apply_async(tenant="other")
    assert len(store.sent) == 1


def test_middleware_can_reject_a_call() -> None:
    class Stopping(Middleware):
        def publish(self, call_next: Callable[[Any], Any], message: TaskMessage) -> Any:
            raise PublishError("not today")

    app, store, add = with_add()
    app.add_middleware(Stopping)
    with pytest.raises(PublishError, match="not today"):
        add.delay(1, 2)
    assert store.tries == 0


def test_send_many_publishes_even_with_task_always_eager() -> None:
    app, store, _ = make_app(task_always_eager=True)
    first, second = app.send_many([("far.a",), Signature("far.b", (1,))])
    assert [sent.headers["id"] for sent in store.sent] == [first.id, second.id]


def test_apply_many_keeps_options_of_eager_signatures() -> None:
    app, _, _ = make_app(task_always_eager=True)

    @app.task(bind=True)
    def tell(self: Any) -> Any:
        return self.request.get("tenant"), self.request.delivery_info["priority"]

    calls = [tell.s().set(headers={"tenant": "acme"}), tell.s()]
    assert [result.get() for result in tell.apply_many(calls, priority=4)] == [("acme", 4), (None, 4)]


def test_many_calls_cannot_share_one_id() -> None:
    app, store, add = with_add()
    with pytest.raises(PublishError, match="task_id cannot be shared"):
        add.apply_many([(1, 2), (3, 4)], task_id="same")
    with pytest.raises(PublishError, match="task_id cannot be shared"):
        app.send_many(["a", "b"], task_id="same")
    assert store.tries == 0


def test_settings_changed_while_being_read_apply_to_the_next_call() -> None:
    app, store, _ = make_app()
    app.send_task("work")

    class Changing(dict[str, Any]):
        """Routes that are replaced just after they have been read, as if by another thread."""

        armed = False

        def items(self) -> Any:
            found = list(super().items())
            if self.armed:
                app.conf.task_routes = {"work": "new"}
            return found

    routes = Changing({"work": "old"})
    app.conf.task_routes = [routes]
    routes.armed = True
    app.send_task("work")
    app.send_task("work")
    assert [sent.envelope.queue for sent in store.sent] == ["celery", "old", "new"]


# -- an unavailable broker --


def test_publishing_is_retried_within_the_timeout() -> None:
    app, store, clock = make_app(failures=3)
    result = app.send_task("work")
    assert store.tries == 4
    assert only(store).headers["id"] == result.id
    assert sum(clock.slept) < 10


def test_publishing_fails_after_task_publish_timeout() -> None:
    app, store, clock = make_app(failures=1000, task_publish_timeout=3)
    before = clock.monotonic()
    with pytest.raises(BrokerUnavailable):
        app.send_task("work")
    assert store.tries > 2
    assert clock.monotonic() - before <= 3


def test_publishing_fails_after_max_retries() -> None:
    app, store, _ = make_app(failures=1000, task_publish_timeout=1000)
    with pytest.raises(BrokerUnavailable):
        app.send_task("work", retry_policy={"max_retries": 2})
    assert store.tries == 3


@pytest.mark.parametrize("options", [{"retry": False}, {"retry_policy": {"max_retries": 0}}])
def test_publishing_without_retries_tries_once(options: dict[str, Any]) -> None:
    app, store, _ = make_app(failures=1000)
    with pytest.raises(BrokerUnavailable):
        app.send_task("work", **options)
    assert store.tries == 1


def test_first_attempt_is_bounded_by_the_timeout() -> None:
    class Slow(KeepingStore):
        def push(self, envelopes: Any, timeout: float = 10.0) -> None:
            self.tries += 1
            clock.advance(timeout)
            raise BrokerUnavailable("busy all the time")

    clock = FakeClock()
    app = QWorker("proj", broker=Slow(), clock=clock, set_as_current=False, task_publish_timeout=3)
    before = clock.monotonic()
    with pytest.raises(BrokerUnavailable):
        app.send_task("work")
    assert clock.monotonic() - before < 3.2


def test_undeclared_queue_is_rejected() -> None:
    app, store, _ = make_app(task_queues=["celery"], task_create_missing_queues=False)
    with pytest.raises(QueueNotFound):
        app.send_task("work", queue="unknown")
    assert store.tries == 0


def test_apply_many_keeps_the_options_of_signatures() -> None:
    _, store, add = with_add()
    token = push(context := Context(id="parent", root_id="root", called_directly=False), add)
    try:
        own = add.s(3, 4)
        own.options.update(queue="far", priority=7, task_id="mine")
        results = add.apply_many([(1, 2), own, (5, 6)])
    finally:
        pop(token)
    places = [(sent.envelope.queue, sent.envelope.priority) for sent in store.sent]
    assert places == [("celery", 0), ("far", 7), ("celery", 0)]
    assert [sent.headers["id"] for sent in store.sent] == [result.id for result in results]
    assert {sent.headers["parent_id"] for sent in store.sent} == {"parent"}
    assert results[1].id == "mine"
    assert sorted(child.id for child in context.children) == sorted(result.id for result in results)
    assert store.tries == 1  # all of them, or none
    own.options["no_such"] = 1
    with pytest.raises(PublishError, match="no_such"):
        add.apply_many([(1, 2), own])
    assert store.tries == 1


# -- cost: the bounds are generous, so that only a change of kind fails the test --


def test_plain_call_makes_few_function_calls() -> None:
    """Counted in function calls, which do not depend on the load of the machine; benchmarks measure the
    time."""
    app = QWorker("proj", broker=CountingStore(), set_as_current=False)

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    add.delay(1, 2)
    assert _calls(lambda: add.delay(1, 2)) <= 60
    calls = [(number, 2) for number in range(1000)]
    assert _calls(lambda: add.apply_many(calls)) / len(calls) <= 40


def _calls(work: Callable[[], Any]) -> int:
    """How many functions *work* calls, including those written in C."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


class CountingStore(KeepingStore):
    def push(self, envelopes: Any, timeout: float = 10.0) -> None:
        self.tries += 1


# -- calls with the same options, written from a template --

TIMES = st.none() | st.floats(-5, 10_000) | st.just(timedelta(minutes=5))
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "queue": st.sampled_from(["celery", "far", None]),
        "priority": st.sampled_from([0, 1, 9, None]),
        "ignore_result": st.sampled_from([True, False, None]),
        "time_limit": st.sampled_from([50, 7.5, None]),
        "soft_time_limit": st.sampled_from([1, 7, None]),
        "shadow": st.sampled_from(["other name", None]),
        "countdown": TIMES,
        "expires": TIMES | st.just("2030-01-01T00:00:00"),
        "eta": st.sampled_from([None, datetime(2031, 1, 1, tzinfo=UTC), "2031-01-01T00:00:00"]),
        "add_to_parent": st.booleans() | st.none(),
    },
)
MORE = st.sampled_from(
    [
        {}, {}, {}, {}, {"headers": {"h": 1}}, {"queue": ""}, {"queue": 3}, {"priority": 10},
        {"priority": True}, {"priority": "high"}, {"time_limit": 0}, {"time_limit": -1}, {"time_limit": "x"},
        {"shadow": "a\nb"}, {"shadow": ""}, {"expires": "soon"}, {"eta": "soon"}, {"countdwn": 1},
        {"retry": False}, {"link": Signature("add")}, {"compression": "gzip"},
    ]
)  # fmt: skip


def made(call: Callable[[], Any], store: KeepingStore) -> Any:
    """Return what *call* sends, without its id, or its error."""
    try:
        result = call()
    except (PublishError, TypeError) as error:
        return type(error), str(error)
    sent = store.sent[-1]
    headers = {name: value for name, value in sent.headers.items() if name not in ("id", "root_id")}
    assert (sent.headers["id"], sent.headers["root_id"]) == (result.id, result.id)
    envelope = sent.envelope._replace(headers="", properties=None)
    return envelope, headers, parse_properties(sent.envelope.properties), result.ignored, result._queue


@given(
    options=st.builds(operator.or_, OPTIONS, MORE),
    other=st.builds(operator.or_, OPTIONS, MORE),
    routes=st.sampled_from(
        [{}, {"add": {"queue": "far"}}, {"add": {"expires": 60}}, {"add": {"priority": 2}}]
    ),
    arguments=st.sampled_from([(1, 2), ("x" * 2000, [1, {"a": 2}])]),
)
def test_calls_with_the_same_options_are_alike(
    options: dict[str, Any], other: dict[str, Any], routes: dict[str, Any], arguments: tuple[Any, ...]
) -> None:
    """The first one is written by itself, later ones by a template; with a signal, none is."""
    app, store, _ = make_app(task_routes=routes, task_queues=["celery", "far"])
    add = app.task(name="add")(lambda x, y: x + y)
    ways = [
        *[lambda: add.apply_async(arguments, **options)] * 3,
        lambda: add.s(*arguments).apply_async(**options),
        lambda: add.apply_many([arguments, arguments], **options)[-1],
        lambda: add.apply_many([arguments, add.s(*arguments).set(**options)])[-1],
    ]
    seen = []
    for way in ways:
        seen.append(made(way, store))
        made(lambda: add.apply_async(arguments, **other), store)

    def receiver(**_: Any) -> None: ...

    signals.before_task_publish.connect(receiver)
    try:
        want = made(ways[0], store)
    finally:
        signals.before_task_publish.disconnect(receiver)
    assert seen == [want] * len(ways)


def test_number_of_templates_is_limited() -> None:
    """An application may use a queue for each user."""
    app, store, add = with_add()
    for number in range(3 * MOST_ALIKE):
        for _ in range(2):
            add.apply_async((1, 2), shadow=f"name {number}")
    derived = app.publisher._derived
    assert derived is not None
    assert len(derived.alike) <= len(derived.once) <= MOST_ALIKE
    assert [sent.headers["shadow"] for sent in store.sent[-2:]] == [f"name {number}"] * 2


def test_changed_settings_apply_to_calls_with_options() -> None:
    app, store, add = with_add()
    for _ in range(3):
        add.apply_async((1, 2), priority=3)
    app.conf.task_default_queue = "other"
    add.apply_async((1, 2), priority=3)
    assert [sent.envelope.queue for sent in store.sent] == ["celery"] * 3 + ["other"]


@pytest.mark.parametrize(
    ("valid", "invalid"), [({"priority": 1}, {"priority": True}), ({}, {"queue": ["far"]})]
)
def test_values_of_other_types_are_not_alike(valid: dict[str, Any], invalid: dict[str, Any]) -> None:
    _, _, add = with_add()
    for _ in range(3):
        add.apply_async((1, 2), **valid)
    with pytest.raises(PublishError):
        add.apply_async((1, 2), **invalid)


@pytest.mark.parametrize(
    "call", [lambda add: add.delay(1, 2), lambda add: add.apply_async((1, 2), shadow="s", countdown=1)]
)
def test_changed_options_of_a_task_apply_to_its_next_call(call: Callable[[AddTask], Any]) -> None:
    _, store, add = with_add()
    for _ in range(3):
        call(add)
    add.queue, add.priority, add.ignore_result, add.expires = "far", 7, True, 60
    call(add)
    envelope, headers = store.sent[-1][:2]
    assert (envelope.queue, envelope.priority, headers["ignore_result"]) == ("far", 7, True)
    assert envelope.expires is not None


def test_many_calls_are_retried_as_the_first_that_says_how() -> None:
    """Whether calls are written from templates, as the same ones are later, makes no difference."""
    app, store, add = with_add()
    store.failures = 1000
    lists = ([add.s(1, 2).set(shadow="s"), add.s(1, 2).set(retry=False)], [add.s(1, 2), add.s(3, 4)])
    for calls, options in ((lists[0], {}), (lists[1], {"retry": False})):
        for _ in range(3):
            store.tries = 0
            with pytest.raises(BrokerUnavailable):
                app.send_many(calls, **options)
            assert store.tries == 1


def test_retry_option_of_one_of_many_calls_applies_to_all() -> None:
    _, store, add = with_add()
    store.failures = 1000
    for _ in range(3):
        store.tries = 0
        with pytest.raises(BrokerUnavailable):
            add.apply_many([(1, 2), add.s(3, 4).set(retry=False)])
        assert store.tries == 1


@pytest.mark.parametrize("many", ["apply_many", "send_many"])
def test_many_calls_are_children_in_their_order_once_they_are_sent(many: str) -> None:
    app, store, add = with_add()
    last = add.s(6, 7).set(add_to_parent=False)
    calls = [add.s(0, 1), add.s(2, 3).set(priority=3), add.s(4, 5).set(link=add.s(1)), add.s(6, 7), last]
    for _ in range(3):
        context = Context(id="parent", called_directly=False)
        token = push(context, add)
        try:
            send = add.apply_many if many == "apply_many" else app.send_many
            store.failures = 1000
            with pytest.raises(BrokerUnavailable):
                send([*calls, add.s(1, 2).set(retry=False)])
            store.failures = 0
            assert context.children == []
            sent = send(calls)
            assert [child.id for child in context.children] == [result.id for result in sent[:-1]]
        finally:
            pop(token)


def test_large_one_of_many_calls_has_a_name_each_time() -> None:
    _, _, add = with_add(message_max_bytes=2000)
    for _ in range(3):
        with pytest.raises(PublishError, match="a call of add takes"):
            add.apply_many([("x", 1), ("x" * 3000, 1)], queue="celery")
