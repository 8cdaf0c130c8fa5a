"""Workflows that a Celery client freezes once and calls several times: each call runs completely, as with
Celery's workers, although all ids are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="`tox -e compat-celery` installs it")

from celery import canvas  # noqa: E402

from qworker import group  # noqa: E402
from qworker.testing import StepWorker  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY, Pair, queue_on, redis_results  # noqa: E402

pytestmark = BESIDE_CELERY


class Both(Pair):
    """Celery's app as the client, ours as the worker. ran: the arguments of the last call of each run."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.ran: list[Any] = []

        @self.ours.task(name="give")
        def give(value: Any) -> Any:
            return value

        @self.ours.task(name="twice", bind=True)
        def twice(this: Any, value: Any) -> Any:
            return this.replace(group(give.s(value), give.s(value)))

        @self.ours.task(name="last")
        def last(value: Any) -> None:
            self.ran.append(value)

    def s(self, name: str, *args: Any) -> Any:
        return self.theirs.signature(name, args, app=self.theirs)

    def group(self, *names: Any) -> Any:
        return canvas.group([self.s(*name) for name in names], app=self.theirs)


@pytest.fixture(params=["redis", "rabbitmq"])
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    with queue_on(request.param) as queue:
        results = redis_results()
        if request.param == "redis":
            results["result_backend_transport_options"] = queue["broker_transport_options"]
        both = Both(**queue, **results)
        if request.param == "rabbitmq":  # so that messages are in the queue when publishing returns
            both.theirs.conf.broker_transport_options = {"confirm_publish": True}
        yield both
        both.close()


GIVEN = (("give", 1), ("give", 2))
FLOWS: dict[str, tuple[Callable[[Both], Any], Any]] = {
    "chord": (lambda both: canvas.chord(both.group(*GIVEN), both.s("last")), [1, 2]),
    "a chord in a chain": (
        lambda both: canvas.chain(both.s("give", 1), both.group(["give"], ["give"]), both.s("last")),
        [1, 1],
    ),
    "a chord as a body": (
        lambda both: canvas.chord(
            both.group(*GIVEN), canvas.chord(both.group(["give"], ["give"]), both.s("last"))
        ),
        [[1, 2], [1, 2]],
    ),
    "a body that is replaced": (
        lambda both: canvas.chord(both.group(*GIVEN), canvas.chain(both.s("twice"), both.s("last"))),
        [[1, 2], [1, 2]],
    ),
}


@pytest.mark.parametrize("name", FLOWS)
def test_each_call_of_a_frozen_workflow_runs_all_of_it(both: Both, name: str) -> None:
    make, expected = FLOWS[name]
    work = make(both)
    work.freeze()
    with StepWorker(both.ours) as worker:
        for calls in (1, 2, 3):
            work.apply_async()
            worker.run()
            assert both.ran == [expected] * calls
