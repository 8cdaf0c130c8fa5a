"""doctor: each thing it looks for is found when it is there, and not when it is not."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

import pytest

from qworker.cli import examinations
from qworker.cli.discovery import find_app
from qworker.cli.return_types import unserialisable
from qworker.clock import SYSTEM_CLOCK
from qworker.testing.clock import FakeClock


def what(result, severity="error"):
    return [finding["what"] for finding in json.loads(result.stdout) if finding["severity"] == severity]


@pytest.fixture
def worker(tasks):
    """Enlists workers, as they do themselves."""
    brokers = []

    def register(*queues):
        app = find_app("tasks").app
        broker = type(app)("other", broker=app.broker.url, set_as_current=False).broker
        broker.consumer.register(f"w{len(brokers)}@here", queues, 1)
        brokers.append(broker)

    yield register
    for broker in brokers:
        broker.consumer.deregister()
        broker.close()


def test_a_project_in_order(tasks, run, worker):
    worker("celery")
    result = run("doctor")
    assert result.exit_code == 0
    assert "0 errors, 0 warnings." in result.stdout
    assert run("doctor", "--strict").exit_code == 0


def test_no_worker_at_all_is_a_warning_until_messages_wait(tasks, run):
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert any("no worker works on queue 'celery'" in warning for warning in what(result, "warning"))
    assert run("doctor", "--strict").exit_code == 1
    run("call", "add", "1", "2")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert what(result) == ["no worker works on queue 'celery' (the default), where 1 message waits"]
    assert "start one: qworker start -Q celery" in run("doctor").stdout


def test_a_queue_without_worker_beside_others_is_an_error(project, tasks, run, worker):
    project(
        **{
            "tasks.py": """
            from qworker import QWorker
            app = QWorker("tasks", task_routes={"tasks.mail_*": "mail"}, task_queues=["celery", "slow"])
            @app.task(queue="video")
            def cut(): ...
            """
        }
    )
    worker("celery")
    assert [line.split("'")[1] for line in what(run("doctor", "--json"))] == ["mail", "slow", "video"]
    worker("mail", "slow", "video")
    assert what(run("doctor", "--json")) == []


def test_messages_in_a_queue_nobody_names(tasks, run, worker):
    worker("celery")
    run("call", "add", "1", "2", "-Q", "forgotten")
    assert what(run("doctor", "--json")) == ["no worker works on queue 'forgotten', where 1 message waits"]


def test_dead_letters_are_a_warning(tasks, run, worker, dead_letter):
    dead_letter(2)
    worker("celery")
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert what(result, "warning") == ["2 dead letters of queue 'celery'"]


@pytest.mark.parametrize(
    ("shift", "severity", "words"), [(-900, "warning", "is behind"), (900, "error", "in the future")]
)
def test_old_messages_and_skewed_clocks(tasks, run, worker, shift, severity, words):
    worker("celery")
    run("call", "add", "1", "2")
    path = tasks / ".qworker" / "qworker.db"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE message SET sent = sent + ?", (shift,))
    connection.close()
    assert any(words in finding for finding in what(run("doctor", "--json"), severity))


def test_all_wrong_settings_are_told_and_nothing_crashes(project, run):
    project(
        **{
            "tasks.py": "from qworker import QWorker\napp = QWorker('t', worker_concurrency=0, "
            "task_time_limit='x')"
        }
    )
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert sum("worker_concurrency" in error for error in what(result)) >= 1
    assert sum("task_time_limit" in error for error in what(result)) >= 1


def test_an_app_without_tasks(project, run):
    project(**{"tasks.py": "from qworker import QWorker\napp = QWorker('t')"})
    assert "tasks:app has no tasks" in what(run("doctor", "--json"), "warning")


def test_modules_that_cannot_be_imported(project, run):
    project(
        **{
            "tasks.py": "from qworker import QWorker\napp = QWorker('t', imports=['more'])",
            "more.py": "1 / 0",
        }
    )
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in what(result)[0]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("broker='sqlite:////proc/nowhere/x.db'", "/proc/nowhere"),
        ("broker='nonsense://h'", "nonsense"),
        ("backend='mongodb://h'", "mongodb"),
        ("backend='nonsense://h'", "nonsense"),
    ],
)
def test_stores_that_cannot_be_used_are_told_once(project, run, setting, words):
    project(
        **{"tasks.py": f"from qworker import QWorker\napp = QWorker('t', {setting})\n@app.task\ndef f(): ..."}
    )
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert sum(words in error for error in what(result)) == 1


def test_a_directory_that_cannot_be_written(tmp_path):
    (finding,) = examinations.writable(tmp_path / "missing", SYSTEM_CLOCK)
    assert finding.severity == "error"
    assert "cannot write to" in finding.what
    assert list(examinations.writable(tmp_path, SYSTEM_CLOCK)) == []


def test_an_old_sqlite(tasks, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    findings = list(examinations.interpreter(find_app("tasks")))
    assert [finding.severity for finding in findings] == ["ok", "error"]
    assert "3.35" in findings[1].advice


def test_a_result_that_cannot_be_stored(project, run):
    project(
        **{
            "tasks.py": """
            from qworker import QWorker
            app = QWorker("tasks")
            @app.task
            def unique(x: list[int]) -> set[int]: ...
            @app.task(ignore_result=True)
            def ignored() -> set[int]: ...
            """
        }
    )
    (error,) = what(run("doctor", "--json"))
    assert error.startswith("tasks.unique returns set, which json cannot store")


class Point(NamedTuple):
    x: int


class Row(TypedDict):
    x: int


@dataclasses.dataclass
class Data:
    x: int


class Clever:
    def __json__(self): ...


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


T = TypeVar("T")
GOOD = (
    int,
    None,
    Any,
    object,
    T,
    str | None,
    list[dict[str, float]],
    tuple[int, ...],
    bytes,
    datetime.datetime,
    decimal.Decimal,
)
BAD = {
    "set": set[int],
    "complex": complex,
    f"{__name__}.Data": list[Data | None],
    f"{__name__}.Color": dict[str, Color],
    "collections.abc.Iterator": Iterator[int],
    "collections.abc.AsyncIterator": AsyncIterator[int],
    "range": range,
}


@pytest.mark.parametrize(
    "kind", [*GOOD, Mapping[str, int], Sequence[int], Literal["a"], Point, Row, Clever, Level], ids=repr
)
def test_types_that_can_be_stored(kind):
    def function(): ...

    function.__annotations__["return"] = kind
    assert unserialisable(function) is None


@pytest.mark.parametrize("name", BAD)
def test_types_that_cannot_be_stored(name):
    kind = BAD[name]

    def function(): ...

    function.__annotations__["return"] = kind
    assert unserialisable(function) == name


def test_annotations_that_cannot_be_evaluated_are_let_be():
    def function() -> Missing: ...  # noqa: F821

    assert unserialisable(function) is None
    assert unserialisable(lambda: set()) is None


def test_the_clock_of_the_directory(tmp_path):
    (finding,) = examinations.writable(tmp_path, FakeClock(1000.0))
    assert finding.severity == "error"
    assert "clock" in finding.what


def test_a_package_of_a_stranger_in_our_place(tasks, run, tmp_path, monkeypatch):
    other = tmp_path / "elsewhere" / "qworker-2.0.7.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: qworker\nVersion: 2.0.7\n")
    monkeypatch.syspath_prepend(other.parent)
    (text,) = [text for text in what(run("doctor", "--json")) if "another project's" in text]
    assert text.startswith("the package qworker 2.0.7 is installed")
