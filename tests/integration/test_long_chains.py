"""Chains of more steps than go into one message, in a worker that is stepped, for each result store that has
joins, and without any."""

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


class House:
    """An app whose messages are in a SQLite file. results: where they are kept; None: beside the messages.
    ran: the tasks that were called, and with what."""

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

        @task(name="told", bind=True)
        def told(this: Any, failed: Any) -> None:
            self.ran.append(("told", failed))

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
        """That many additions of 1, after a first step."""
        return [self.s("add", 1) for _ in range(count)]

    def ended(self, flow: Any, revoked: str | None = None) -> Any:
        """The result of *flow*, after a worker has run all that there is."""
        with StepWorker(self.app) as worker:
            result = flow()
            if revoked is not None:
                self.app.control.revoke(revoked)
            worker.run()
            return result


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.app.close()


STORES = ["beside", "sql", "redis", "files", "memory"]


@pytest.fixture(params=STORES)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    (tmp_path / "results").mkdir()
    url = {
        "beside": lambda: None,
        "sql": lambda: f"db+sqlite:///{tmp_path}/results.db",
        "redis": lambda: require("redis"),
        "files": lambda: f"file://{tmp_path}/results",
        "memory": lambda: "cache+memory://",
    }[request.param]()
    options = {"global_keyprefix": prefix_of(tmp_path)} if request.param == "redis" else {}
    house = House(tmp_path, url, result_backend_transport_options=options)
    yield house
    house.app.close()


def test_a_long_chain_gives_each_value_to_the_next_and_leaves_no_join(anywhere: House) -> None:
    result = anywhere.ended(chain(anywhere.s("add", 0, 1), *anywhere.steps(LONG - 1)))
    assert result.get(timeout=5) == LONG
    assert [each.get(timeout=5) for each in line(result)] == list(range(LONG, 0, -1))
    assert anywhere.ran == [("add", number, 1) for number in range(LONG)]
    assert anywhere.app.backend.joins.count() == 0


@pytest.mark.parametrize("place", [0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT - 1, LONG - 1])
def test_a_failure_anywhere_ends_all_that_would_have_followed_and_is_told_once(
    anywhere: House, place: int
) -> None:
    steps = [anywhere.s("add", 0, 1), *anywhere.steps(LONG - 1)]
    steps[place] = anywhere.s("fail")
    result = anywhere.ended(chain(*steps, link_error=anywhere.s("told")))
    states = [each.state for each in line(result)][::-1]
    assert states == ["SUCCESS"] * place + ["FAILURE"] * (LONG - place)
    with pytest.raises(ValueError, match=r"^no$"):
        result.get(timeout=5, follow_parents=False)
    failed = list(line(result))[::-1][place].id
    assert [each for each in anywhere.ran if each[0] == "told"] == [("told", failed)]
    assert anywhere.app.backend.joins.count() == 0


def sent_again(house: House, place: int) -> None:
    """A chain whose step at *place* fails the first time goes on to its end when that is sent again."""
    down = [True]

    @house.app.task(name="gated")
    def gated(x: int, y: int) -> int:
        if down:
            down.pop()
            raise LookupError("down")
        return x + y

    steps = [house.s("add", 0, 1), *house.steps(LONG - 1)]
    steps[place] = house.s("gated", *([0, 1] if place == 0 else [1])).set(argsrepr="(hidden)")
    result = house.ended(lambda: chain(*steps, link=house.s("told"))())
    assert (result.state, len(house.ran)) == ("FAILURE", place)
    (kept,) = house.app.failed
    assert house.ended(house.app.failed.retry).number == 1
    assert house.app.AsyncResult(result.id).get(timeout=5) == LONG
    assert [each.state for each in line(house.app.AsyncResult(result.id))][:1] == ["SUCCESS"]
    assert house.ran[-1] == ("told", LONG)
    assert len(house.ran) == LONG
    assert (kept.args, house.app.backend.joins.count(), list(house.app.failed)) == ("(hidden)", 0, [])


@pytest.mark.parametrize("place", [0, SEGMENT - 1, SEGMENT, LONG - 1])
def test_a_failed_step_that_is_sent_again_goes_on_to_the_end(anywhere: House, place: int) -> None:
    sent_again(anywhere, place)


def test_a_failed_step_of_a_signed_chain_goes_on_to_the_end(tmp_path: Path) -> None:
    house = House(tmp_path, security_key="0123456789abcdef0123456789abcdef")
    sent_again(house, SEGMENT + 3)
    house.app.close()


@pytest.mark.parametrize("how", ["revoked", "expired"])
@pytest.mark.parametrize("place", [3, SEGMENT - 1, SEGMENT])
def test_a_step_that_does_not_come_to_run_ends_the_chain(house: House, how: str, place: int) -> None:
    steps = [house.s("add", 0, 1), *house.steps(LONG - 1)]
    steps[place].set(task_id="bad")
    if how == "expired":
        steps[place].set(expires="2001-01-01T00:00:00Z")
    result = house.ended(chain(*steps), revoked="bad" if how == "revoked" else None)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=5, follow_parents=False)
    assert len(house.ran) == place
    assert house.app.backend.joins.count() == 0


def test_all_that_may_stand_in_a_chain_may_stand_in_a_long_one(house: House) -> None:
    add, total = house.s("add", 1), house.s("total")
    for place in (0, 1, SEGMENT - 2, SEGMENT - 1, SEGMENT, SEGMENT + 1):
        steps = [house.s("add", 0, 1), *house.steps(2 * SEGMENT)]
        # A chord whose header has chains and chords, then a retry, and one that takes no value.
        inner = group(add, add | add, chord([add, add], total))
        steps[place + 1 : place + 1] = [inner, total, house.s("again")]
        value = place + 1
        value = (value + 1) + (value + 2) + 2 * (value + 1) + 1
        result = house.ended(chain(*steps))
        assert result.get(timeout=5) == value + 2 * SEGMENT - place
        result = house.ended(chain(*steps, house.app.signature("add", (7, 7), immutable=True)))
        assert result.get(timeout=5) == 14
    assert house.app.backend.joins.count() == 0


def test_a_long_chain_may_end_in_a_group_and_stand_in_a_header(house: House) -> None:
    long = chain(house.s("add", 0, 1), *house.steps(LONG - 1))
    result = house.ended(long | group(house.s("add", 1), house.s("add", 2)))
    assert result.get(timeout=5) == [LONG + 1, LONG + 2]
    result = house.ended(chord([long, house.s("add", 1, 1), long], house.s("total")))
    assert result.get(timeout=5) == 2 * LONG + 2
    result = house.ended(group([house.s("add", 0, 0)] * 2) | house.s("total") | chain(*house.steps(LONG)))
    assert result.get(timeout=5) == LONG
    assert house.app.backend.joins.count() == 0


@pytest.mark.parametrize("steps", [SEGMENT, SEGMENT + 1, 2 * SEGMENT + 1])
def test_the_last_step_of_a_chain_in_a_header_counts_wherever_it_is_cut(anywhere: House, steps: int) -> None:
    long = chain(anywhere.s("add", 0, 1), *anywhere.steps(steps - 1))
    result = anywhere.ended(chord([long, long], anywhere.s("total")))
    assert result.get(timeout=5) == 2 * steps
    assert anywhere.app.backend.joins.count() == 0


def test_a_long_chain_of_chords(house: House) -> None:
    flow = house.s("add", 0, 1)
    for _ in range(2 * SEGMENT + 2):
        flow = flow | group(house.s("add", 1), house.s("add", -1)) | house.s("total")
    assert house.ended(flow).get(timeout=5) == 2 ** (2 * SEGMENT + 2)
    assert house.app.backend.joins.count() == 0


def test_the_callback_of_a_long_chain_is_called_with_its_value(house: House) -> None:
    house.ended(chain(house.s("add", 0, 1), *house.steps(LONG), link=house.s("told")))
    assert house.ran[-1] == ("told", LONG + 1)


def test_every_step_knows_the_first_and_the_one_before(house: House) -> None:
    steps = [house.s("add", 0, 1), *house.steps(SEGMENT - 1), house.s("line"), house.s("line")]
    result = house.ended(chain(*steps))
    first = list(line(result))[-1].id
    assert result.get(timeout=5) == [first, result.parent.id]
    assert result.parent.get(timeout=5) == [first, result.parent.parent.id]


def test_a_step_whose_result_is_ignored_hands_its_value_on_all_the_same(house: House) -> None:
    steps = [house.s("add", 0, 1), *(house.s("forgotten", 1) for _ in range(LONG)), house.s("add", 1)]
    assert house.ended(chain(*steps)).get(timeout=5) == LONG + 2
    # By an app that does not know of it.
    stranger = QWorker(broker=house.app.broker.url, clock=house.clock, set_as_current=False)
    result = chain(*(stranger.signature(each["task"], each["args"]) for each in steps), app=stranger)
    assert house.ended(result).get(timeout=5) == LONG + 2
    stranger.close()


def test_the_time_of_each_segment_is_the_life_of_a_result(house: House) -> None:
    house.app.conf.result_expires = 100
    with StepWorker(house.app) as worker:
        steps = [house.s("add", 0, 1), *house.steps(LONG - 1)]
        for place in (1, SEGMENT + 1, 2 * SEGMENT + 1, 3 * SEGMENT + 1):
            steps[place].set(countdown=90)
        result = chain(*steps)()
        worker.run()
        for _ in range(4):
            worker.advance(91)
        assert result.get(timeout=5) == LONG


def test_an_ignored_step_leaves_no_joins(house: House) -> None:
    with StepWorker(house.app) as worker:
        result = chain(house.s("ignore"), *house.steps(LONG))()
        worker.run()
        assert house.app.backend.joins.count() == 0
        with pytest.raises(ChordError):
            result.get(timeout=5, follow_parents=False)


def written_bytes(house: House) -> Callable[[], tuple[int, int]]:
    """Count what is written of messages and joins from here on: all bytes, and those of the largest row."""
    connection = sqlite3.connect(house.file)
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
    house = House(directory, **conf)
    house.app.backend.store("made", house.app.backend.meta("made", "SUCCESS", None))  # the file is there
    count = written_bytes(house)
    result = house.ended(chain(house.s("add", 0, 1), *house.steps(steps - 1)))
    assert result.get(timeout=5) == steps
    house.app.close()
    return count()


def test_bytes_grow_with_the_steps_and_not_with_their_square(tmp_path: Path) -> None:
    few, largest_of_few = bytes_of_a_chain(tmp_path / "few", 200)
    many, largest_of_many = bytes_of_a_chain(tmp_path / "many", 400)
    assert 1.9 < many / few < 2.1
    # No message is larger for the length of the chain, nor than that of a segment's steps.
    assert abs(largest_of_many - largest_of_few) < 100
    assert largest_of_many < SEGMENT * 500


def test_without_joins_a_chain_goes_as_one_message(tmp_path: Path) -> None:
    house = House(tmp_path, "disabled://")
    with StepWorker(house.app) as worker:
        chain(house.s("add", 0, 1), *house.steps(LONG - 1))()
        worker.run()
    assert house.ran == [("add", number, 1) for number in range(LONG)]
    house.app.close()


def test_eager_mode_runs_all_steps_in_turn(house: House) -> None:
    house.app.conf.task_always_eager = True
    result = chain(house.s("add", 0, 1), *house.steps(LONG - 1))()
    assert result.get() == LONG
    assert len(house.ran) == LONG
