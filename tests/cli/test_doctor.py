"""qworker doctor: each problem is found if it exists, and only then."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

import pytest

from qworker import __version__
from qworker.cli.discovery import find_app
from qworker.cli.doctor import examinations
from qworker.cli.doctor.examinations import unserialisable
from qworker.clock import SYSTEM_CLOCK
from qworker.testing.clock import FakeClock
from qworker.transports.presence import Presence, RunningTask, to_text


def what(result, severity="error"):
    return [finding["what"] for finding in json.loads(result.stdout) if finding["severity"] == severity]


@pytest.fixture
def worker(tasks):
    """Registers workers with the broker, as real workers do."""
    brokers = []

    def register(*queues, text=""):
        app = find_app("tasks").app
        broker = type(app)("other", broker=app.broker.url, set_as_current=False).broker
        broker.consumer.present(text)
        broker.consumer.register(f"w{len(brokers)}@here", queues, 1)
        brokers.append(broker)

    yield register
    for broker in brokers:
        broker.consumer.deregister()
        broker.close()


def test_healthy_project_has_no_findings(tasks, run, worker):
    worker("celery")
    result = run("doctor")
    assert result.exit_code == 0
    assert "0 errors, 0 warnings." in result.stdout
    assert run("doctor", "--strict").exit_code == 0


def test_missing_worker_is_a_warning_until_messages_wait(tasks, run):
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert any("no worker consumes queue 'celery'" in warning for warning in what(result, "warning"))
    assert run("doctor", "--strict").exit_code == 1
    run("call", "add", "1", "2")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert what(result) == ["no worker consumes queue 'celery' (the default), where 1 message waits"]
    assert "start one: qworker start\n" in run("doctor").stdout


def test_queue_without_a_worker_is_an_error_if_others_have_one(project, tasks, run, worker):
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


def test_messages_in_a_queue_without_a_worker_are_an_error(tasks, run, worker):
    worker("celery")
    run("call", "add", "1", "2", "-Q", "forgotten")
    assert what(run("doctor", "--json")) == ["no worker consumes queue 'forgotten', where 1 message waits"]


@pytest.mark.parametrize(
    ("seconds", "calls", "pool", "warned"),
    [(40, 2, (7,), True), (40, 2, (), True), (40, 0, (7,), False), (5, 2, (7,), False)],
)
def test_long_occupied_slots_with_waiting_messages_are_a_warning(
    tasks, run, worker, seconds, calls, pool, warned
):
    running = (RunningTask("stuck", "tasks.add", SYSTEM_CLOCK.now() - seconds, 1, "celery"),)
    presence = Presence(
        "w0@here", 1, ("celery",), 1, 0.0, status="working", busy=1, running=running, pool=pool
    )
    worker("celery", text=to_text(presence))
    for _ in range(calls):
        run("call", "add", "1", "2")
    found = [each for each in json.loads(run("doctor", "--json").stdout) if "no slot" in each["what"]]
    assert len(found) == warned
    for each in found:
        assert each["severity"] == "warning"
        assert re.fullmatch(
            r"w0@here: no slot has been free for 4\d.* s, and 2 messages wait; "
            r"tasks\.add\[stuck\] has run for 4\d.* s, and has no time limit",
            each["what"],
        )
        advice = "end it with: qworker revoke stuck --terminate; " if pool else "restart the worker; "
        assert each["advice"].startswith(advice)
    health = run("health")
    assert health.exit_code == 0
    assert ("tasks.add[stuck] has run for 4" in health.stdout) == (seconds == 40)


def test_notes_are_not_warnings(tasks, run, worker, monkeypatch):
    monkeypatch.setenv("QWORKER_ENABLE_UTC", "false")
    worker("celery")
    result = run("doctor", "--json")
    assert what(result, "warning") == []
    assert any("enable_utc = False has no effect" in each for each in what(result, "ok"))


def test_dead_letters_are_a_warning(tasks, run, worker, dead_letter):
    dead_letter(2)
    worker("celery")
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert what(result, "warning") == ["2 dead letters of queue 'celery'"]


@pytest.mark.parametrize(
    ("shift", "severity", "words"), [(-900, "warning", "is behind"), (900, "error", "in the future")]
)
def test_old_messages_and_clock_skew_are_reported(tasks, run, worker, shift, severity, words):
    worker("celery")
    run("call", "add", "1", "2")
    path = tasks / ".qworker" / "qworker.db"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE message SET sent = sent + ?", (shift,))
    connection.close()
    assert any(words in finding for finding in what(run("doctor", "--json"), severity))


def test_all_wrong_settings_are_reported(project, run):
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


def test_app_without_tasks_is_a_warning(project, run):
    project(**{"tasks.py": "from qworker import QWorker\napp = QWorker('t')"})
    assert "tasks:app has no tasks" in what(run("doctor", "--json"), "warning")


def test_module_that_cannot_be_imported_is_an_error(project, run):
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
        ("broker='sqlite:////dev/null/x.db'", "/dev/null"),
        ("broker='nonsense://h'", "nonsense"),
        ("backend='mongodb://h'", "mongodb"),
        ("backend='nonsense://h'", "nonsense"),
    ],
)
def test_unusable_stores_are_reported_once(project, run, setting, words):
    project(
        **{"tasks.py": f"from qworker import QWorker\napp = QWorker('t', {setting})\n@app.task\ndef f(): ..."}
    )
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert sum(words in error for error in what(result)) == 1
    assert not any("results are not kept" in warning for warning in what(result, "warning"))


def test_unwritable_directory_is_an_error(tmp_path):
    (finding,) = examinations.writable(tmp_path / "missing", SYSTEM_CLOCK)
    assert finding.severity == "error"
    assert "cannot write to" in finding.what
    assert list(examinations.writable(tmp_path, SYSTEM_CLOCK)) == []


def test_old_sqlite_is_an_error(tasks, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    findings = list(examinations.interpreter(find_app("tasks")))
    assert [finding.severity for finding in findings] == ["ok", "error"]
    assert "3.35" in findings[1].advice


def test_return_type_that_cannot_be_stored_is_an_error(project, run):
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
    f"{__name__}.Data": list[Data | Color],
    f"{__name__}.Color": dict[str, Color | int],
    "collections.abc.Iterator": Iterator[int],
    "collections.abc.AsyncIterator": AsyncIterator[int],
    "range": range,
}


@pytest.mark.parametrize(
    "kind",
    [
        *GOOD,
        list[Data | None],
        dict[str, Color],
        Mapping[str, int],
        Sequence[int],
        Literal["a"],
        Point,
        Row,
        Clever,
        Level,
    ],
    ids=repr,
)
def test_storable_types_are_accepted(kind):
    def function(): ...

    function.__annotations__["return"] = kind
    assert unserialisable(function) is None


@pytest.mark.parametrize("name", BAD)
def test_types_that_cannot_be_stored_are_found(name):
    kind = BAD[name]

    def function(): ...

    function.__annotations__["return"] = kind
    assert unserialisable(function) == name


def test_annotations_that_cannot_be_evaluated_are_ignored():
    def function() -> Missing: ...  # noqa: F821

    assert unserialisable(function) is None
    assert unserialisable(lambda: set()) is None


def test_clock_skew_of_the_file_system_is_an_error(tmp_path):
    (finding,) = examinations.writable(tmp_path, FakeClock(1000.0))
    assert finding.severity == "error"
    assert "clock" in finding.what


def test_unrelated_package_of_the_same_name_is_reported(tasks, run, tmp_path, monkeypatch):
    other = tmp_path / "elsewhere" / "qworker-2.0.7.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: qworker\nVersion: 2.0.7\n")
    monkeypatch.syspath_prepend(other.parent)
    (text,) = [text for text in what(run("doctor", "--json")) if "another project" in text]
    assert text.startswith("the package qworker 2.0.7 of another project is installed")


# -- schedules --

SCHEDULED = """
    from qworker import QWorker

    app = QWorker("tasks", beat_schedule={"nightly": {"task": "tasks.add", "schedule": "0 4 * * *"}, **%s})


    @app.task
    def add() -> None: ...
"""


@pytest.fixture
def scheduled(tasks, project, worker):
    def write(more="{}"):
        project(**{"tasks.py": SCHEDULED % more})
        worker("celery")

    return write


def test_missing_scheduler_is_a_warning(scheduled, run):
    scheduled()
    result = run("doctor", "--json")
    assert result.exit_code == 0
    (text,) = what(result, "warning")
    assert text.startswith("no scheduler is running (1 entry, kept in sqlite:///")
    assert "start one: qworker beat, or a worker with --beat" in run("doctor").stdout
    run("beat", "pause", "nightly")
    assert what(run("doctor", "--json"), "warning") == []


def test_running_scheduler_is_shown(scheduled, run, leader):
    scheduled()
    service = leader(find_app("tasks").app)
    result = run("doctor", "--json")
    assert what(result, "warning") == []
    holder = service.leadership.lease.holder
    assert any(
        text.startswith(f"{holder} is the leader of the schedulers (1 entry") for text in what(result, "ok")
    )


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ('{"qworker": "0.0.1", "entries": ""}', ["leads the schedulers with qworker 0.0.1, but this is"]),
        (
            json.dumps({"qworker": __version__, "entries": "x"}),
            ["has other entries in its settings and code"],
        ),
        ("", []),
        ("{", []),
        ("[" * 100_000, []),
        ("[1]", []),
    ],
)
def test_scheduler_with_other_version_or_entries_is_a_warning(scheduled, run, leader, about, words):
    scheduled()
    leader(find_app("tasks").app, about)
    found = what(run("doctor", "--json"), "warning")
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


def test_wrong_entries_are_reported(scheduled, run, leader):
    scheduled(
        "{'bad': {'task': 'tasks.add', 'schedule': 'no'}, 'odd': {'task': 'tasks.gone', 'schedule': 5},"
        " 'typo': {'task': 'tasks.add', 'schedule': 5, 'options': {'qeueu': 'x'}}}"
    )
    run("beat", "add", "mine", "tasks.missing", "--every", "1h", "--disabled")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    errors = what(result)
    assert len(errors) == 2
    assert "entry 'bad': 'no' is not a crontab" in errors[0]
    assert errors[1].startswith("the entry 'typo' cannot be called: calling tasks.add: there is no option")
    warnings = what(result, "warning")
    assert "the entry 'mine' calls 'tasks.missing', which is not a task of this app" in warnings
    assert "the entry 'odd' calls 'tasks.gone', which is not a task of this app" in warnings


@pytest.mark.parametrize(
    ("store", "severity", "words"),
    [
        ("mongodb://x", "error", "mongodb:// cannot store schedules"),
        ("memory://", "warning", "no shared schedule store"),
    ],
)
def test_stores_without_schedule_support_are_reported(scheduled, run, monkeypatch, store, severity, words):
    monkeypatch.setenv("QWORKER_BEAT_STORE", store)
    scheduled()
    assert sum(words in text for text in what(run("doctor", "--json"), severity)) == 1


def test_unreachable_schedule_store_is_an_error(scheduled, run, monkeypatch):
    monkeypatch.setenv("QWORKER_BEAT_STORE", "redis://127.0.0.1:1/0")
    scheduled()
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert len(what(result)) == 1
