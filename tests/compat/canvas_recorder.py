"""Records what Celery writes to Redis for each canvas case.

Comes from:  canvas_cases, called with the installed Celery.
Goes to:     integration/golden/celery_canvas_5_7.json, which our workers run in tests: ``python -m
             tests.compat.canvas_recorder``.
Thread:      the caller's.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import celery
import redis
from celery import canvas as celery_canvas

from tests.compat.canvas_cases import ALL, app_in_use, namespace
from tests.servers import URLS, forget_keys, new_prefix

FILE = Path(__file__).parents[1] / "integration" / "golden" / "celery_canvas_5_7.json"
UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
QUEUES = ("celery", "far", "near")
ORIGIN = re.compile('"origin": "gen[^"]*"')


class Recorder:
    """A Celery client on the tests' Redis, with its own key prefix."""

    def __init__(self) -> None:
        self._prefix = new_prefix()
        self._redis = redis.Redis.from_url(URLS["redis"], decode_responses=True)
        options = {"global_keyprefix": self._prefix}
        app = celery.Celery("proj", broker=URLS["redis"], backend=URLS["redis"], set_as_current=False)
        app.conf.broker_transport_options = app.conf.result_backend_transport_options = options
        self._side = namespace(app, celery_canvas)

    def record(self, name: str) -> dict[str, Any]:
        """The keys and messages in Redis after calling the case *name*.

        Returns ``{"queues": {queue: messages}, "keys": {key of the result store: value}, "result": its
        as_tuple(), "value": the final value}``. A message is a dict as kombu writes it, with its body as
        text. Ids are numbered by first appearance.
        """
        build, args = ALL[name]
        app = self._side.app
        with app_in_use(app):
            result = build(self._side).delay(*args)
            app.conf.task_always_eager = True
            value = build(self._side).delay(*args).get()
            app.conf.task_always_eager = False
        found: dict[str, Any] = {"queues": {}, "keys": {}, "result": result.as_tuple(), "value": value}
        for queue in QUEUES:
            key = f"{self._prefix}{queue}"
            if messages := self._redis.lrange(key, 0, -1)[::-1]:  # the oldest is the last
                found["queues"][queue] = [_opened(text) for text in messages]
            self._redis.delete(key)
        for id in sorted(set(UUID.findall(json.dumps(found)))):
            for key in (f"celery-taskset-meta-{id}", f"celery-taskset-meta-{id}.s"):
                if (kept := self._redis.getdel(f"{self._prefix}{key}")) is not None:
                    found["keys"][key] = kept
        text = ORIGIN.sub('"origin": "gen1@sender"', json.dumps(found))
        start = [*ALL].index(name) << 16
        names: dict[str, str] = {}
        for id in UUID.findall(text):
            names.setdefault(id, str(uuid.UUID(int=start + len(names), version=4)))
        named: dict[str, Any] = json.loads(UUID.sub(lambda id: names[id.group()], text))
        return {**named, "keys": dict(sorted(named["keys"].items()))}

    def close(self) -> None:
        self._side.app.close()
        self._redis.close()


def _opened(text: str) -> dict[str, Any]:
    """The message in *text*, with its body decoded from base64."""
    message: dict[str, Any] = json.loads(text)
    assert message["properties"]["body_encoding"] == "base64"
    return {**message, "body": base64.b64decode(message["body"]).decode()}


@contextmanager
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    try:
        yield made
    finally:
        made.close()


def main() -> None:
    """Write the file."""
    with recorder() as made:
        lines = [f"{json.dumps(name)}: {json.dumps(made.record(name))}" for name in ALL]
    forget_keys()
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
