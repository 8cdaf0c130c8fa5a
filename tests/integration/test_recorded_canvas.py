"""A worker runs the recorded messages of each case of Celery's canvas, with Celery's values.

``tests/compat/canvas_recorder.py`` records the file, and compares it with the installed Celery.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from qworker import GroupResult, QWorker
from qworker.results.result import result_from_tuple
from qworker.testing import StepWorker
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "golden" / "celery_canvas_5_7.json").read_text(encoding="utf-8")
)
KEPT_SECONDS = 3600


class Place:
    """One worker on Redis, for all cases."""

    def __init__(self, directory: Path) -> None:
        url, self.prefix = require("redis"), prefix_of(directory)
        self.redis = redis.Redis.from_url(url)
        options = {"global_keyprefix": self.prefix}
        self.app = app = QWorker(
            "recorded",
            broker=url,
            backend=url,
            broker_transport_options=options,
            result_backend_transport_options=options,
            canvas_format="celery",
            set_as_current=False,
        )

        @app.task(name="add")
        def add(x: int, y: int) -> int:
            return x + y

        @app.task(name="mul")
        def mul(x: int, y: int) -> int:
            return x * y

        @app.task(name="xsum")
        def xsum(values: list[int], start: int = 0) -> int:
            return sum(values, start)

        @app.task(name="count")
        def count(values: list[Any]) -> int:
            return len(values)

        self.worker = StepWorker(app, queues=["celery", "far", "near"])

    def put(self, case: dict[str, Any]) -> None:
        """Restore the keys and messages that Celery wrote."""
        for key, value in case["keys"].items():
            self.redis.set(f"{self.prefix}{key}", value, ex=KEPT_SECONDS)
        for queue, messages in case["queues"].items():
            for message in messages:
                packed = {**message, "body": base64.b64encode(message["body"].encode()).decode()}
                self.redis.lpush(f"{self.prefix}{queue}", json.dumps(packed))

    def close(self) -> None:
        self.worker.stop("cold")
        self.app.close()
        self.redis.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("recorded"))
    yield made
    made.close()


def value_of(result: Any) -> Any:
    if isinstance(result, GroupResult):
        return [value_of(each) for each in result.results]
    return result.get(timeout=0.1)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_workflow_has_celerys_value(place: Place, name: str) -> None:
    case = RECORDED[name]
    place.put(case)
    place.worker.run()
    assert value_of(result_from_tuple(case["result"], place.app)) == case["value"]
    assert sum(info.ready + info.leased for info in place.app.broker.admin.queues()) == 0
    assert place.app.broker.admin.dead() == []
    assert place.app.backend.joins.count() == 0
    groups = [f"{place.prefix}{key}" for key in case["keys"]]
    assert not any(place.redis.exists(key) for key in groups if key.endswith(".s"))
