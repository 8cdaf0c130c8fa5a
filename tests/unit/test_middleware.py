"""compose(): the order of middleware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qworker.middleware import Middleware, compose, overrides


class RecordingMiddleware(Middleware):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def execute(self, call_next: Callable[[Any], Any], context: Any) -> Any:
        self.notes.append(f"{self.name} before {context}")
        result = call_next(context)
        self.notes.append(f"{self.name} after {result}")
        return result + 1


def test_first_middleware_is_the_outermost() -> None:
    notes: list[str] = []
    run = compose(
        [RecordingMiddleware("outer", notes), RecordingMiddleware("inner", notes)],
        "execute",
        lambda context: context * 10,
    )
    assert run(1) == 12
    assert notes == ["outer before 1", "inner before 1", "inner after 10", "outer after 11"]


def test_methods_without_overrides_are_not_wrapped() -> None:
    def final(message: Any) -> Any:
        return message

    assert compose([], "execute", final) is final
    assert compose([Middleware(), RecordingMiddleware("x", [])], "publish", final) is final


def test_middleware_can_skip_call_next_or_change_its_argument() -> None:
    class Stop(Middleware):
        def publish(self, call_next: Callable[[Any], Any], message: Any) -> Any:
            return "stopped" if message == "bad" else call_next(message.upper())

    publish = compose([Stop()], "publish", lambda message: f"sent {message}")
    assert publish("bad") == "stopped"
    assert publish("good") == "sent GOOD"


def test_override_on_the_instance_counts() -> None:
    middleware = Middleware()
    middleware.publish = lambda call_next, message: "mine"  # type: ignore[method-assign]
    assert overrides(middleware, "publish")
    assert not overrides(middleware, "execute")
    assert compose([middleware], "publish", lambda message: message)(1) == "mine"


def test_base_methods_call_next() -> None:
    assert Middleware().publish(lambda message: message + 1, 1) == 2
    assert Middleware().execute(lambda context: context + 1, 1) == 2
