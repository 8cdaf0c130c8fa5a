"""Routing: chooses the queue and the priority of a call.

Comes from:  publishing, with the options of the call and of the task.
Goes to:     the Destination in the Envelope.
Thread:      any; routes are compiled once.

The options of the call override those of the task, which override ``task_routes``, which override the default
queue.
"""

import re
from collections.abc import Callable, Mapping
from copy import copy
from fnmatch import translate
from typing import Any, NamedTuple, Self, cast

from qworker.errors import PublishError, QueueNotFound
from qworker.naming import close_matches, import_object, valid_queue_name

_KEYS = ("queue", "exchange", "routing_key", "priority")


class Destination(NamedTuple):
    """The destination of a message.

    - queue, exchange, routing_key: names.
    - priority: 0 (least urgent) to 9.
    - options: further options set by the route, such as a serializer.
    """

    queue: str
    exchange: str
    routing_key: str
    priority: int
    options: Mapping[str, Any]


class Router:
    """Finds destinations according to task_routes, task_queues, task_default_queue and the priorities.

    constant: no route is a function, so the destination depends only on the name and the options.
    """

    def __init__(self, conf: Any) -> None:
        self._queues: Mapping[str, Mapping[str, Any]] = conf.task_queues
        self._create_missing: bool = conf.task_create_missing_queues
        self._default_queue: str = conf.task_default_queue
        self._default_priority: int = conf.task_default_priority or 0
        self._max_priority: int = conf.task_queue_max_priority
        self._routes = [
            _compile(route) if isinstance(route, Mapping) else _router(route) for route in conf.task_routes
        ]
        self.constant = all(isinstance(route, list) for route in self._routes)

    def without_functions(self) -> Self:
        """Return this router without route functions, which may use arguments that are not known yet."""
        if self.constant:
            return self
        other = copy(self)
        other._routes = [route for route in self._routes if isinstance(route, list)]
        return other

    def route(
        self,
        name: str,
        options: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        task: Any = None,
    ) -> Destination:
        """Return the destination of a call.

        - name: of the task.
        - options: of the call and of the task; None for options that are not given.
        - args, kwargs, task: for route functions.

        Raises QueueNotFound and PublishError, which name the queue or key.
        """
        route = self._find(name, options, args, kwargs, task)
        address = {**route, **{key: options[key] for key in _KEYS if options.get(key) is not None}}
        if options.get("queue") is None and (options.get("routing_key") or options.get("exchange")):
            address.pop("queue", None)  # the call's exchange or key overrides the route's queue
        queue = self._queue(address, name)
        priority = address.get("priority")
        return Destination(
            queue,
            str(address.get("exchange") or ""),
            str(address.get("routing_key") or queue),
            self._default_priority if priority is None else self._priority(priority, name),
            {key: value for key, value in route.items() if key not in _KEYS},
        )

    def _find(
        self,
        name: str,
        options: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        task: Any,
    ) -> Mapping[str, Any]:
        for route in self._routes:
            if isinstance(route, list):
                target_options = next((target for matches, target in route if matches(name)), None)
            else:
                target_options = _options(route(name, args, kwargs, dict(options), task=task))
            if target_options is not None:
                return target_options
        return {}

    def _queue(self, address: Mapping[str, Any], name: str) -> str:
        queue = address.get("queue")
        if queue is not None:
            queue = getattr(queue, "name", queue)  # a kombu.Queue is accepted
        elif address.get("exchange") or address.get("routing_key"):
            queue = self._bound_to(address.get("exchange"), address.get("routing_key"), name)
        else:
            return self._default_queue
        if not valid_queue_name(queue):
            raise PublishError(f"{name}: {queue!r} cannot be the name of a queue")
        if queue not in self._queues and queue != self._default_queue and not self._create_missing:
            raise QueueNotFound(
                f"{name}: queue {queue!r} is not in task_queues, and task_create_missing_queues is "
                f"off.{_did_you_mean(queue, [*self._queues, self._default_queue])}"
            )
        return str(queue)

    def _bound_to(self, exchange: str | None, routing_key: str | None, name: str) -> str:
        """Return the declared queue bound to *exchange* by *routing_key*. Without an exchange, an undeclared
        key is the name of the queue."""
        exchange = getattr(exchange, "name", exchange)  # a kombu.Exchange is accepted
        key = routing_key or exchange or ""
        queues = [
            queue
            for queue, declared in self._queues.items()
            if any(
                (exchange or home) == home and _topic(pattern, key)
                for home, pattern in _bindings(queue, declared)
            )
        ]
        if exchange and len(queues) > 1:
            raise PublishError(
                f"{name}: exchange {exchange!r} and routing key {routing_key!r} match the queues "
                f"{', '.join(queues)}, but a message goes to one queue: name the queue"
            )
        if queues:
            return queues[0]
        if not exchange or exchange == key:
            return key
        raise QueueNotFound(
            f"{name}: no queue in task_queues is bound to exchange {exchange!r} by routing key "
            f"{routing_key!r}: declare one there, or name the queue"
        )

    def _priority(self, priority: Any, name: str) -> int:
        if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= 255:
            raise PublishError(
                f"{name}: priority={priority!r} must be a whole number from 0 to {self._max_priority}"
            )
        return min(priority, self._max_priority)


def _compile(routes: Mapping[Any, Any]) -> list[tuple[Callable[[str], Any], Mapping[str, Any]]]:
    """Return (matcher, options) for each pattern; exact names first, because they are the most specific."""
    exact: list[tuple[Callable[[str], Any], Mapping[str, Any]]] = []
    patterns: list[tuple[Callable[[str], Any], Mapping[str, Any]]] = []
    for pattern, target in routes.items():
        options = _options(target) or {}
        if not isinstance(pattern, str):
            patterns.append((pattern.match, options))
        elif any(character in pattern for character in "*?["):
            patterns.append((re.compile(translate(pattern)).match, options))
        else:
            exact.append((pattern.__eq__, options))
    return exact + patterns


def _router(route: Any) -> Callable[..., Any]:
    """Return the function of a route, given as a function, a dotted name, or an object or class with
    ``route_for_task``."""
    router = import_object(route) if isinstance(route, str) else route
    if not hasattr(router, "route_for_task"):
        return cast(Callable[..., Any], router)
    route_for_task = (router() if isinstance(router, type) else router).route_for_task
    return lambda name, args, kwargs, options, task=None: route_for_task(name, args, kwargs)


def _bindings(queue: str, declared: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the (exchange, routing key) pairs that ``task_queues`` declares for *queue*."""
    several = [(str(exchange), str(key)) for exchange, _, key in declared.get("bindings") or ()]
    return several or [(str(declared.get("exchange") or queue), str(declared.get("routing_key") or queue))]


def _options(target: Any) -> Mapping[str, Any] | None:
    """Return the options of a route, from a queue's name or a mapping; None if it does not apply."""
    if target is None:
        return None
    if isinstance(target, Mapping):
        return dict(target)
    name = getattr(target, "name", target)
    if not isinstance(name, str):
        raise PublishError(
            f"a route in task_routes returned {target!r}: expected a queue name, a mapping, or None"
        )
    return {"queue": name}


def _topic(pattern: str, key: str) -> bool:
    """Return whether *key* matches a binding: '*' matches one word, '#' any number of them."""
    if "*" not in pattern and "#" not in pattern:
        return pattern == key
    words = (
        r"[^.]+" if word == "*" else r".*" if word == "#" else re.escape(word) for word in pattern.split(".")
    )
    expression = r"\.".join(words).replace(r"\..*", r"(\..*)?").replace(r".*\.", r"(.*\.)?")
    return re.fullmatch(expression, key) is not None


def _did_you_mean(name: str, known: list[str]) -> str:
    guesses = close_matches(name, known)
    return f" Did you mean {' or '.join(guesses)}?" if guesses else ""
