"""The request that a task sees in an eager apply() is the same as with Celery."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery import Celery

from qworker import QWorker


def requests_of(app: Any) -> list[dict[str, Any]]:
    """The requests that tasks of *app* see."""
    seen: list[dict[str, Any]] = []

    def note(task: Any) -> None:
        names = ("timelimit", "ignore_result", "group", "parent_id")
        links = {name: getattr(task.request, name) for name in ("callbacks", "errbacks")}
        seen.append(
            {name: getattr(task.request, name) for name in names}
            | {name: each and [dict(link)["task"] for link in each] for name, each in links.items()}
        )

    def nothing() -> None:
        pass

    plain = app.task(bind=True, name="plain")(note)
    limited = app.task(bind=True, name="limited", ignore_result=True, time_limit=5, soft_time_limit=3)(note)
    other = app.task(name="other")(nothing)
    plain.apply()
    plain.apply(link=other.si(), link_error=other.si(), ignore_result=True)
    limited.apply()
    limited.apply(ignore_result=False)
    return seen


def test_request_of_an_eager_run_equals_celerys() -> None:
    settings = {"broker": "memory://", "backend": "cache+memory://", "set_as_current": False}
    ours = requests_of(QWorker("ours", **settings))
    assert ours == requests_of(Celery("theirs", **settings))
    assert [(each["callbacks"], each["timelimit"], each["ignore_result"]) for each in ours] == [
        (None, None, False),
        (["other"], None, True),
        (None, [5, 3], True),
        (None, [5, 3], False),
    ]


def test_limits_of_an_eager_call_override_those_of_the_task() -> None:
    app = QWorker("ours", broker="memory://", set_as_current=False)
    task = app.task(bind=True, time_limit=5, soft_time_limit=3)(lambda self: self.request.timelimit)
    assert task.apply(time_limit=9).get() == [9, 3]
    assert task.apply(time_limit=timedelta(seconds=9)).get() == [9, 3]
