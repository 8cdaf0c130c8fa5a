"""Routing: the call wins over the task, the task over task_routes, and those over the default queue."""

from __future__ import annotations

import re
from typing import Any

import pytest

from qworker.conf import Settings
from qworker.errors import PublishError, QueueNotFound
from qworker.publishing.routing import Router


def router(**values: Any) -> Router:
    return Router(Settings(values, environ={}))


def queue_of(options: dict[str, Any] | None = None, name: str = "proj.add", **values: Any) -> str:
    return router(**values).route(name, options or {}, (), {}).queue


def test_default_queue() -> None:
    destination = router().route("proj.add", {}, (), {})
    assert (destination.queue, destination.routing_key, destination.exchange, destination.priority) == (
        "celery", "celery", "", 0,
    )  # fmt: skip
    assert queue_of(task_default_queue="mine") == "mine"


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ({"proj.add": "exact"}, "exact"),
        ({"proj.add": {"queue": "exact"}}, "exact"),
        ({"proj.*": "glob"}, "glob"),
        ({"*": "all", "proj.add": "exact"}, "exact"),
        ({"other.*": "other"}, "celery"),
        ([("proj.a*", "pair")], "pair"),
        ([(re.compile(r".*\.add"), {"queue": "expression"})], "expression"),
        ([{"other.*": "other"}, {"proj.*": "second"}], "second"),
        ([lambda name, args, kwargs, options, task=None: "called" if name == "proj.add" else None], "called"),
        ([lambda *args, **kwargs: None, {"proj.add": "after"}], "after"),
        ({"proj.add": {"routing_key": "by.key"}}, "by.key"),
        # Celery's list of pairs, as one router.
        (([("feed.*", {"queue": "feeds"}), ("proj.*", {"queue": "pairs"})],), "pairs"),
        (
            (
                [
                    ("feed.*", {"queue": "feeds"}),
                    (re.compile(r"(proj|x)\..*"), {"queue": "three"}),
                    ("web", "w"),
                ],
            ),
            "three",
        ),
        (([("proj.*", "one")],), "one"),
        ((("proj.*", "one"),), "one"),
        (([["proj.*", "json"], ["web", "w"]],), "json"),
        ([[]], "celery"),
        ("tests.unit.test_routing.Old", "old"),
        (["tests.unit.test_routing:Old"], "old"),
        ("tests.unit.test_routing.route_by_name", "by-name"),
    ],
)
def test_routes(routes: Any, expected: str) -> None:
    assert queue_of(task_routes=routes) == expected


def test_route_given_by_dotted_name() -> None:
    assert queue_of(task_routes=["tests.unit.test_routing.route_by_argument"]) == "celery"
    found = router(task_routes=["tests.unit.test_routing.route_by_argument"]).route("t", {}, ("far",), {})
    assert found.queue == "far"


def route_by_argument(name: str, args: tuple[Any, ...], kwargs: Any, options: Any, task: Any = None) -> Any:
    return {"queue": args[0]} if args else None


def route_by_name(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **more: Any) -> Any:
    return "by-name"


class Old:
    """A router class as in Celery before 4.0."""

    def route_for_task(self, task: str, args: Any = None, kwargs: Any = None) -> Any:
        return {"queue": "old"} if task == "proj.add" else None


def test_routers_can_be_objects() -> None:
    class New:
        def __call__(self, name: str, args: Any, kwargs: Any, options: Any, task: Any = None) -> Any:
            return "new" if args else None

    assert queue_of(task_routes=Old()) == queue_of(task_routes=[New(), Old()]) == "old"
    assert router(task_routes=[New(), Old()]).route("proj.add", {}, (1,), {}).queue == "new"


def test_routes_set_other_options() -> None:
    found = router(task_routes={"t": {"queue": "q", "priority": 7, "serializer": "pickle"}}).route(
        "t", {}, (), {}
    )
    assert (found.priority, found.options) == (7, {"serializer": "pickle"})


def test_call_options_override_routes() -> None:
    routes = {"proj.add": {"queue": "routed", "priority": 3}}
    found = router(task_routes=routes).route("proj.add", {"queue": "asked", "priority": 9}, (), {})
    assert (found.queue, found.priority) == ("asked", 9)
    assert queue_of({"routing_key": "asked"}, task_routes=routes) == "asked"
    assert queue_of({"queue": None}, task_routes=routes) == "routed"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"exchange": "media", "routing_key": "media.video"}, "video"),
        ({"exchange": "media", "routing_key": "media.image.small"}, "image"),
        ({"routing_key": "media.video"}, "video"),
        ({"exchange": "plain"}, "plain"),
        ({"routing_key": "elsewhere"}, "elsewhere"),
    ],
)
def test_exchange_and_routing_key_select_the_bound_queue(options: dict[str, Any], expected: str) -> None:
    queues = {
        "video": {"exchange": "media", "routing_key": "media.video"},
        "image": {"exchange": "media", "routing_key": "media.image.#"},
        "plain": {},
    }
    assert queue_of(options, task_queues=queues) == expected


def test_kombu_queues_keep_their_bindings() -> None:
    from kombu import Exchange, Queue, binding

    media = Exchange("media")
    queues = [
        Queue(
            "media", [binding(media, routing_key="media.video"), binding(media, routing_key="media.image")]
        ),
        Queue("feeds", [binding(Exchange("feeds", type="topic"), routing_key="feed.#")]),
        Queue("web", Exchange("web"), routing_key="web.page"),
    ]
    for exchange, key, expected in [
        (media, "media.video", "media"),
        ("media", "media.image", "media"),
        ("feeds", "feed.import", "feeds"),
        ("web", "web.page", "web"),
    ]:
        assert queue_of({"exchange": exchange, "routing_key": key}, task_queues=queues) == expected
    with pytest.raises(QueueNotFound, match="bound to exchange 'media'"):
        queue_of({"exchange": "media", "routing_key": "media.sound"}, task_queues=queues)


def test_routing_key_matching_several_queues_is_rejected() -> None:
    """With Celery, the broker copies the message into each of them."""
    queues = {"a": {"exchange": "x", "routing_key": "x.#"}, "b": {"exchange": "x", "routing_key": "x.y"}}
    with pytest.raises(PublishError, match="match the queues a, b, but a message goes to one"):
        queue_of({"exchange": "x", "routing_key": "x.y"}, task_queues=queues)
    assert queue_of({"queue": "b"}, task_queues=queues) == "b"


def test_unbound_routing_key_is_rejected() -> None:
    with pytest.raises(QueueNotFound, match="no queue in task_queues is bound to exchange 'media'"):
        queue_of({"exchange": "media", "routing_key": "none"}, task_queues={"a": {}})


def test_undeclared_queue_is_rejected() -> None:
    values = {"task_queues": ["emails", "celery"], "task_create_missing_queues": False}
    assert queue_of({"queue": "emails"}, **values) == "emails"
    assert queue_of(**values) == "celery"
    with pytest.raises(QueueNotFound, match=r"'email' is not in task_queues.*Did you mean emails"):
        queue_of({"queue": "email"}, **values)


@pytest.mark.parametrize("queue", ["a b", "", "x'; DROP TABLE message; --", "a" * 300, 5, "a\nb"])
def test_invalid_queue_names_are_rejected(queue: Any) -> None:
    with pytest.raises(PublishError, match="cannot be the name of a queue"):
        queue_of({"queue": queue})


def test_queue_option_can_be_a_kombu_queue() -> None:
    from kombu import Queue

    assert queue_of({"queue": Queue("mine")}) == "mine"


@pytest.mark.parametrize(("given", "expected"), [(0, 0), (9, 9), (12, 9), (255, 9), (None, 4)])
def test_priority_is_capped_and_has_a_default(given: int | None, expected: int) -> None:
    assert router(task_default_priority=4).route("t", {"priority": given}, (), {}).priority == expected


@pytest.mark.parametrize("priority", [-1, 256, "high", 1.5, True])
def test_invalid_priorities_are_rejected(priority: Any) -> None:
    with pytest.raises(PublishError, match="whole number from 0 to 9"):
        router().route("t", {"priority": priority}, (), {})


def test_invalid_route_is_rejected() -> None:
    with pytest.raises(PublishError, match="a route in task_routes returned 5"):
        queue_of(task_routes=[lambda *args, **kwargs: 5])


def test_router_is_constant_without_function_routes() -> None:
    assert router(task_routes={"a.*": "q"}).constant
    assert not router(task_routes=[route_by_argument]).constant
