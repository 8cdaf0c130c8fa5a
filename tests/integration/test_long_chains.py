"""Chains of more steps than fit into one message, on a StepWorker, with each result store that has joins, and
without any."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import Ignore, QWorker, chain, chord, group
from qworker.canvas.plan import SEGMENT
from qworker.errors import ChordError, TaskRevokedError
from qworker.results.tree import line
from qworker.testing import FakeClock, StepWorker
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration

LONG = 3 * SEGMENT + 5


class Env:
    """An app with an SQLite file as broker. results: URL of the result store; None: in the broker. ran: the
    tasks that ran, with their arguments."""

    def __init__(self, directory: Path, results: str | None = None, **conf: Any) -> None:
        self.file = directory / "queue.db"
        self.clock = FakeClock()
        self.app = QWorker(
            "chains",
            broker=f"sqlite:///{self.file}",
            backend=results,
            clock=self.clock,
            set_as_current=False,
            **conf,
        )
        self.ran: list[Any] = []
        task = self.app.task

        @task(name="add")
        def add(x: int, y: int) -> int:
            self.ran.append(("add", x, y))
            return x + y

        @task(name="total")
        def total(values: list[int]) -> int:
            return sum(values)

        @task(name="notified", bind=True)
        def notified(this: Any, failed: Any) -> None:
            self.ran.append(("notified", failed))

        @task(name="fail")
        def fail(*given: Any) -> None:
            raise ValueError("no")

        @task(name="ignore")
        def ignore(*given: Any) -> None:
            raise Ignore

        @task(name="again", bind=True, max_retries=1, default_retry_delay=0)
        def again(this: Any, x: int) -> int:
            if this.request.retries == 0:
                raise this.retry()
            return x + 1

        @task(name="forgotten", ignore_result=True)
        def forgotten(x: int, y: int) -> int:
            return x + y

        @task(name="line", bind=True)
        def where(this: Any, x: Any) -> list[Any]:
            return [this.request.root_id, this.request.parent_id]

    def s(self, name: str, *args: Any, **options: Any) -> Any:
        return self.app.signature(name, args).set(**options)

    def steps(self, count: int) -> list[Any]:
        """Return *count* steps that add 1."""
        return [self.s("add", 1) for _ in range(count)]

    def result_of(self, flow: Any, revoked: str | None = None) -> Any:
        """Call *flow* and run all tasks; return the result."""
        with StepWorker(self.app) as worker:
            result = flow()
            if revoked is not None:
                self.app.control.revoke(revoked)
            worker.run()
            return result


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Env]:
    env = Env(tmp_path)
    yield env
    env.app.close()


STORES = ["same", "sql", "redis", "files", "memory"]


@pytest.fixture(params=STORES)
def any_env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    (tmp_path / "results").mkdir()
    url = {
        "same": lambda: None,
        "sql": lambda: f"db+sqlite:///{tmp_path}/results.db",
        "redis": lambda: require("redis"),
        "files": lambda: f"file://{tmp_path}/results",
        "memory": lambda: "cache+memory://",
    }[request.param]()
    options = {"global_keyprefix": prefix_of(tmp_path)} if request.param == "redis" else {}
    env = Env(tmp_path, url, result_backend_transport_options=options)
    yield env
    env.app.close()


def test_long_chain_passes_values_on(any_env: Env) -> None:
    result = any_env.result_of(chain(any_env.s("add", 0, 1), *any_env.steps(LONG - 1)))
    assert result.get(timeout=5) == LONG
    assert [each.get(timeout=5) for each in line(result)] == list(range(LONG, 0, -1))
    assert any_env.ran == [("add", number, 1) for number in range(LONG)]
    assert any_env.app.backend.joins.count() == 0


@pytest.mark.parametrize("place", [0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT - 1, LONG - 1])
def test_failed_step_ends_the_chain_and_errback_runs_once(any_env: Env, place: int) -> None:
    steps = [any_env.s("add", 0, 1), *any_env.steps(LONG - 1)]
    steps[place] = any_env.s("fail")
    result = any_env.result_of(chain(*steps, link_error=any_env.s("notified")))
    states = [each.state for each in line(result)][::-1]
    assert states == ["SUCCESS"] * place + ["FAILURE"] * (LONG - place)
    with pytest.raises(ValueError, match=r"^no$"):
        result.get(timeout=5, follow_parents=False)
    failed = list(line(result))[::-1][place].id
    assert [each for each in any_env.ran if each[0] == "notified"] == [("notified", failed)]
    assert any_env.app.backend.joins.count() == 0


def check_retry_of_failed_step(env: Env, place: int) -> None:
    """Check that a chain whose step at *place* fails once continues to its end when the step is retried."""
    down = [True]

    @env.app.task(name="gated")
    def gated(x: int, y: int) -> int:
        if down:
            down.pop()
            raise LookupError("down")
        return x + y

    steps = [env.s("add", 0, 1), *env.steps(LONG - 1)]
    steps[place] = env.s("gated", *([0, 1] if place == 0 else [1])).set(argsrepr="(hidden)")
    result = env.result_of(lambda: chain(*steps, link=env.s("notified"))())
    assert (result.state, len(env.ran)) == ("FAILURE", place)
    (kept,) = env.app.failed
    assert env.result_of(env.app.failed.retry).number == 1
    assert env.app.AsyncResult(result.id).get(timeout=5) == LONG
    assert [each.state for each in line(env.app.AsyncResult(result.id))][:1] == ["SUCCESS"]
    assert env.ran[-1] == ("notified", LONG)
    assert len(env.ran) == LONG
    assert (kept.args, env.app.backend.joins.count(), list(env.app.failed)) == ("(hidden)", 0, [])


@pytest.mark.parametrize("place", [0, SEGMENT - 1, SEGMENT, LONG - 1])
def test_retried_step_continues_the_chain(any_env: Env, place: int) -> None:
    check_retry_of_failed_step(any_env, place)


def test_retried_step_of_a_signed_chain_continues_the_chain(tmp_path: Path) -> None:
    env = Env(tmp_path, security_key="0123456789abcdef0123456789abcdef")
    check_retry_of_failed_step(env, SEGMENT + 3)
    env.app.close()


@pytest.mark.parametrize("how", ["revoked", "expired"])
@pytest.mark.parametrize("place", [3, SEGMENT - 1, SEGMENT])
def test_revoked_or_expired_step_ends_the_chain(env: Env, how: str, place: int) -> None:
    steps = [env.s("add", 0, 1), *env.steps(LONG - 1)]
    steps[place].set(task_id="bad")
    if how == "expired":
        steps[place].set(expires="2001-01-01T00:00:00Z")
    result = env.result_of(chain(*steps), revoked="bad" if how == "revoked" else None)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=5, follow_parents=False)
    assert len(env.ran) == place
    assert env.app.backend.joins.count() == 0


def test_long_chain_can_contain_any_workflow(env: Env) -> None:
    add, total = env.s("add", 1), env.s("total")
    for place in (0, 1, SEGMENT - 2, SEGMENT - 1, SEGMENT, SEGMENT + 1):
        steps = [env.s("add", 0, 1), *env.steps(2 * SEGMENT)]
        # A chord whose header has chains and chords, then a retry, and an immutable step.
        inner = group(add, add | add, chord([add, add], total))
        steps[place + 1 : place + 1] = [inner, total, env.s("again")]
        value = place + 1
        value = (value + 1) + (value + 2) + 2 * (value + 1) + 1
        result = env.result_of(chain(*steps))
        assert result.get(timeout=5) == value + 2 * SEGMENT - place
        result = env.result_of(chain(*steps, env.app.signature("add", (7, 7), immutable=True)))
        assert result.get(timeout=5) == 14
    assert env.app.backend.joins.count() == 0


def test_long_chain_with_a_group_at_its_end_or_in_a_header(env: Env) -> None:
    long = chain(env.s("add", 0, 1), *env.steps(LONG - 1))
    result = env.result_of(long | group(env.s("add", 1), env.s("add", 2)))
    assert result.get(timeout=5) == [LONG + 1, LONG + 2]
    result = env.result_of(chord([long, env.s("add", 1, 1), long], env.s("total")))
    assert result.get(timeout=5) == 2 * LONG + 2
    result = env.result_of(group([env.s("add", 0, 0)] * 2) | env.s("total") | chain(*env.steps(LONG)))
    assert result.get(timeout=5) == LONG
    assert env.app.backend.joins.count() == 0


@pytest.mark.parametrize("steps", [SEGMENT, SEGMENT + 1, 2 * SEGMENT + 1])
def test_long_chain_in_a_header_for_any_segmentation(any_env: Env, steps: int) -> None:
    long = chain(any_env.s("add", 0, 1), *any_env.steps(steps - 1))
    result = any_env.result_of(chord([long, long], any_env.s("total")))
    assert result.get(timeout=5) == 2 * steps
    assert any_env.app.backend.joins.count() == 0


def test_long_chain_of_chords(env: Env) -> None:
    flow = env.s("add", 0, 1)
    for _ in range(2 * SEGMENT + 2):
        flow = flow | group(env.s("add", 1), env.s("add", -1)) | env.s("total")
    assert env.result_of(flow).get(timeout=5) == 2 ** (2 * SEGMENT + 2)
    assert env.app.backend.joins.count() == 0


def test_callback_of_a_long_chain_gets_its_value(env: Env) -> None:
    env.result_of(chain(env.s("add", 0, 1), *env.steps(LONG), link=env.s("notified")))
    assert env.ran[-1] == ("notified", LONG + 1)


def test_steps_know_their_root_and_parent(env: Env) -> None:
    steps = [env.s("add", 0, 1), *env.steps(SEGMENT - 1), env.s("line"), env.s("line")]
    result = env.result_of(chain(*steps))
    first = list(line(result))[-1].id
    assert result.get(timeout=5) == [first, result.parent.id]
    assert result.parent.get(timeout=5) == [first, result.parent.parent.id]


def test_step_with_ignored_result_passes_its_value_on(env: Env) -> None:
    steps = [env.s("add", 0, 1), *(env.s("forgotten", 1) for _ in range(LONG)), env.s("add", 1)]
    assert env.result_of(chain(*steps)).get(timeout=5) == LONG + 2
    # Called by an app that does not know the option.
    other = QWorker(broker=env.app.broker.url, clock=env.clock, set_as_current=False)
    result = chain(*(other.signature(each["task"], each["args"]) for each in steps), app=other)
    assert env.result_of(result).get(timeout=5) == LONG + 2
    other.close()


def test_result_expires_applies_to_each_segment(env: Env) -> None:
    env.app.conf.result_expires = 100
    with StepWorker(env.app) as worker:
        steps = [env.s("add", 0, 1), *env.steps(LONG - 1)]
        for place in (1, SEGMENT + 1, 2 * SEGMENT + 1, 3 * SEGMENT + 1):
            steps[place].set(countdown=90)
        result = chain(*steps)()
        worker.run()
        for _ in range(4):
            worker.advance(91)
        assert result.get(timeout=5) == LONG


def test_ignored_step_leaves_no_joins(env: Env) -> None:
    with StepWorker(env.app) as worker:
        result = chain(env.s("ignore"), *env.steps(LONG))()
        worker.run()
        assert env.app.backend.joins.count() == 0
        with pytest.raises(ChordError):
            result.get(timeout=5, follow_parents=False)


def written_bytes(env: Env) -> Callable[[], tuple[int, int]]:
    """Return a function that returns the bytes of messages and joins written since: in total, and of the
    largest row."""
    connection = sqlite3.connect(env.file)
    connection.execute("CREATE TABLE written (bytes INTEGER)")
    for table, columns in (("message", ("headers", "properties", "body")), ("joins", ("id", "body"))):
        total = " + ".join(f"ifnull(length(CAST(new.{column} AS BLOB)), 0)" for column in columns)
        connection.execute(
            f"CREATE TRIGGER count_{table} AFTER INSERT ON {table} "
            f"BEGIN INSERT INTO written VALUES ({total}); END"
        )
    connection.commit()

    def count() -> tuple[int, int]:
        (found,) = connection.execute("SELECT sum(bytes), max(bytes) FROM written")
        connection.execute("DROP TABLE written")
        for table in ("message", "joins"):
            connection.execute(f"DROP TRIGGER count_{table}")
        connection.commit()
        connection.close()
        return found

    return count


def bytes_of_a_chain(directory: Path, steps: int, **conf: Any) -> tuple[int, int]:
    directory.mkdir()
    env = Env(directory, **conf)
    env.app.backend.store("made", env.app.backend.meta("made", "SUCCESS", None))  # creates the file
    count = written_bytes(env)
    result = env.result_of(chain(env.s("add", 0, 1), *env.steps(steps - 1)))
    assert result.get(timeout=5) == steps
    env.app.close()
    return count()


def test_written_bytes_are_linear_in_the_steps(tmp_path: Path) -> None:
    few, largest_of_few = bytes_of_a_chain(tmp_path / "few", 200)
    many, largest_of_many = bytes_of_a_chain(tmp_path / "many", 400)
    assert 1.9 < many / few < 2.1
    # The size of a message does not depend on the length of the chain, only on that of a segment.
    assert abs(largest_of_many - largest_of_few) < 100
    assert largest_of_many < SEGMENT * 500


def test_without_joins_a_chain_is_one_message(tmp_path: Path) -> None:
    env = Env(tmp_path, "disabled://")
    with StepWorker(env.app) as worker:
        chain(env.s("add", 0, 1), *env.steps(LONG - 1))()
        worker.run()
    assert env.ran == [("add", number, 1) for number in range(LONG)]
    env.app.close()


def test_eager_mode_runs_all_steps(env: Env) -> None:
    env.app.conf.task_always_eager = True
    result = chain(env.s("add", 0, 1), *env.steps(LONG - 1))()
    assert result.get() == LONG
    assert len(env.ran) == LONG
