"""What follows a call that was killed, where its task hears of that."""

from __future__ import annotations

from typing import Any

from qworker import QWorker, Task, states
from qworker.context import Context
from qworker.message.protocol import TaskMessage, decode_body, encode, parse_headers, parse_properties
from qworker.tasks import aftermath
from qworker.tasks.outcome import NOT_STARTED, RETRY, TIME_LIMIT, Outcome
from qworker.testing import FakeClock, MemoryStore


class Persistent(Task[Any, Any]):
    """Has what was killed run again."""

    hears_of_ends = True

    def heard_of_end(self, context: Context, state: str, error: dict[str, Any]) -> None:
        raise self.retry(exc=LookupError(state), countdown=7, throw=False)


class Bench:
    """A task that hears of its ends, and of one of them."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.app = QWorker(
            "bench",
            broker=self.store,
            backend="cache+memory://",
            clock=self.clock,
            set_as_current=False,
            **settings,
        )

    def tell(self) -> Outcome:
        app = self.app
        task = app.task(name="work", base=Persistent, acks_late=True)(lambda: None)
        app.finalize()
        encoded = encode(TaskMessage(task="work", id="id-1"))
        headers, properties = parse_headers(encoded.headers), parse_properties(encoded.properties)
        body = decode_body(encoded.body, headers, properties, frozenset({"json"}))
        context = Context.from_message(headers, body, properties=properties, hostname="w@h", task=task)
        error = {"exc_type": "TimeLimitExceeded", "exc_message": [3]}
        return aftermath.tell(app, task, context, TIME_LIMIT, "killed", states.FAILURE, error)


def test_a_task_that_hears_of_its_end_may_have_another_attempt() -> None:
    bench = Bench()
    outcome = bench.tell()
    assert (outcome.kind, outcome.runtime) == (RETRY, None)
    assert outcome.text == "Retry in 7s: LookupError('FAILURE')"
    assert outcome.row is not None
    assert outcome.row[:2] == ("id-1", states.RETRY)
    assert bench.store.admin.next_due(["celery"]) == bench.clock.now() + 7
    assert bench.store.messages == 1


def test_an_attempt_that_cannot_be_sent_now_is_asked_for_again() -> None:
    bench = Bench(task_publish_retry=False)
    bench.store.away = True
    assert bench.tell() == NOT_STARTED
    assert bench.clock.slept == [aftermath.AGAIN_SECONDS]
