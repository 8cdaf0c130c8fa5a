"""Brokers and stores that do not exist yet: read-only commands do not create them, and say that they are
missing."""

from __future__ import annotations

import json

import pytest

from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.support.commands import COMMANDS

LOOKS: dict[str, tuple[str, ...]] = {
    "beat list": (),
    "beat preview": ("hourly",),
    "beat show": ("hourly",),
    "config check": ("--connect",),
    "config show": (),
    "dead list": (),
    "dead show": ("1",),
    "delayed list": (),
    "doctor": (),
    "failed list": (),
    "failed show": ("1",),
    "graph": ("some-id",),
    "health": (),
    "init": ("systemd",),
    "move": ("{broker}", "sqlite:///new.db", "--dry-run"),
    "queues": ("-Q", "celery,mail"),
    "report": (),
    "result": ("some-id",),
    "spool ls": ("spool",),
    "spool show": ("spool", "job"),
    "spool watch": ("spool",),
    "tasks": (),
    "workers": (),
}
"""Commands that change nothing, with their arguments."""
CHANGES_EXISTING: dict[str, tuple[str, ...]] = {
    "dead discard": ("--all", "--yes"),
    "dead retry": ("--all",),
    "delayed flush": ("--yes",),
    "failed discard": ("--all", "--yes"),
    "failed retry": ("--all",),
    "purge": ("--yes",),
    "revoke": ("some-id",),
    "spool move": ("spool", "job", "elsewhere"),
    "spool retry": ("spool", "job"),
    "spool rm": ("spool", "job", "--yes"),
}
"""Commands that only change existing messages; without any, they have nothing to change."""
CREATES = {
    *("start", "call", "shell", "spool add", "spool run", "spool send"),
    *(
        "beat add",
        "beat pause",
        "beat remove",
        "beat reset",
        "beat resume",
        "beat run",
        "beat set",
        "beat sign",
    ),
}
"""Commands that send, store or run something, and create the place for it."""
REPORTS_MISSING = {
    *("dead list", "dead show", "delayed list", "failed list", "failed show", "health", "move", "queues"),
    *("tasks", "workers", *(name for name in CHANGES_EXISTING if not name.startswith("spool"))),
}

URLS = {
    "default": {},
    "sqlite": {"broker_url": "sqlite:///no/such/q.db"},
    "spool": {"broker_url": "spool://{here}/queues"},
    "files": {"result_backend": "file://{here}/results"},
    "another-file": {"result_backend": "sqlite:///results.db"},
    "sqlalchemy": {"result_backend": "db+sqlite:///results.db"},
    "schedules": {"broker_url": "spool://{here}/queues", "beat_store": "sqlite:///beat.db"},
    "kombus-files": {"broker_url": "filesystem://"},
}
TASKS = """
from qworker import QWorker

hourly = {{"task": "tasks.add", "schedule": 3600, "args": [1, 2]}}
app = QWorker("tasks", beat_schedule={{"hourly": hourly}}, **{settings})


@app.task
def add(x, y):
    return x + y
"""


def test_every_command_is_in_one_of_the_tables():
    tables = [set(LOOKS), set(CHANGES_EXISTING), CREATES]
    assert set.union(*tables) == set(COMMANDS)
    assert sum(map(len, tables)) == len(COMMANDS)


@pytest.fixture
def at(project):
    """Makes a project whose broker and stores do not exist."""

    def make(place):
        directory = project()
        settings = {name: value.format(here=directory) for name, value in URLS[place].items()}
        project(**{"tasks.py": TASKS.format(settings=settings)})
        return directory, settings

    return make


def files(directory):
    return {
        str(path.relative_to(directory)) for path in directory.rglob("*") if "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("place", URLS)
@pytest.mark.parametrize("command", [*LOOKS, *CHANGES_EXISTING])
def test_command_creates_no_files(at, run, command, place):
    directory, settings = at(place)
    before = files(directory)
    words = LOOKS.get(command) or CHANGES_EXISTING.get(command, ())
    broker = settings.get("broker_url", "sqlite:///.qworker/qworker.db")
    result = run(*command.split(), *(word.format(broker=broker) for word in words))
    assert files(directory) == before
    assert "Traceback" not in result.stderr
    if command in REPORTS_MISSING and place != "kombus-files":
        assert result.exit_code == 1
        assert "there is no" in result.stderr + result.stdout


@pytest.fixture(params=[PostgreSQLPlace, MySQLPlace], ids=["postgresql", "mysql"])
def empty_database(request, tmp_path_factory):
    """A database without tables."""
    place = request.param(tmp_path_factory.mktemp("database"))
    yield place
    place.clear()


@pytest.mark.parametrize(
    "command", [name for name in [*LOOKS, *CHANGES_EXISTING] if not name.startswith("spool")]
)
def test_command_creates_no_tables(empty_database, project, run, command):
    settings = {"broker_url": empty_database.url, "beat_store": empty_database.url}
    project(**{"tasks.py": TASKS.format(settings=settings)})
    words = LOOKS.get(command) or CHANGES_EXISTING.get(command, ())
    result = run(*command.split(), *(word.format(broker=empty_database.url) for word in words))
    assert empty_database.tables() == []
    assert "Traceback" not in result.stderr
    if command in REPORTS_MISSING:
        assert result.exit_code == 1
        assert "there is no table of qworker in" in result.stderr + result.stdout


def test_app_methods_create_no_tables(empty_database, project):
    from qworker.cli.discovery import find_app

    project(**{"tasks.py": TASKS.format(settings={"broker_url": empty_database.url})})
    app = find_app("tasks").app
    assert (app.queues(), app.workers(), app.peek(), app.failed.list()) == ([], [], [], [])
    assert app.AsyncResult("some-id").state == "PENDING"
    assert app.broker.missing
    assert app.failed.retry().number == app.failed.discard() == app.broker.admin.purge("celery") == 0
    assert empty_database.tables() == []
    app.send_task("tasks.add", (1, 2))
    assert app.broker.missing is None
    assert [info.ready for info in app.queues()] == [1]
    app.close()


@pytest.mark.parametrize("place", ["default", "sqlite", "spool"])
def test_error_names_the_missing_broker_and_the_setting(at, run, place):
    directory, settings = at(place)
    path = directory / {"default": ".qworker/qworker.db", "sqlite": "no/such/q.db", "spool": "queues"}[place]
    source = "QWorker(…)" if settings else "default"
    assert run("queues", "--json").stderr.splitlines()[-1] == (
        f"Error: there is no {path}: nothing has been sent there yet. If something has, correct broker_url "
        f"({source}); sending the first task creates it"
    )


def test_result_reports_a_missing_result_backend(at, run):
    directory, _ = at("files")
    said = run("result", "some-id")
    assert (said.exit_code, said.stdout) == (1, "")
    assert f"there is no {directory}/results: no result has been stored there yet" in said.stderr
    assert "correct result_backend (QWorker(…))" in said.stderr


def test_doctor_reports_a_missing_broker_once_as_a_warning(at, run):
    directory, _ = at("sqlite")
    result = run("doctor", "--json")
    assert result.exit_code == 0
    found = [each for each in json.loads(result.stdout) if "there is no" in each["what"]]
    assert found == [
        {
            "severity": "warning",
            "what": f"there is no {directory}/no/such/q.db: nothing has been sent there yet",
            "advice": "correct broker_url (QWorker(…)), unless nothing has been sent yet",
        }
    ]


def test_doctor_reports_a_broker_that_cannot_be_created(project, run):
    directory = project(wall="no directory")
    settings = {"broker_url": f"spool://{directory}/wall/queues"}
    project(**{"tasks.py": TASKS.format(settings=settings)})
    result = run("doctor", "--json")
    assert result.exit_code == 1
    errors = [each["what"] for each in json.loads(result.stdout) if each["severity"] == "error"]
    assert errors == [f"there is no {directory}/wall/queues, and it cannot be created"]


def test_app_methods_create_no_files(at):
    from qworker.cli.discovery import find_app

    directory, _ = at("sqlite")
    before = files(directory)
    app = find_app("tasks").app
    assert (app.queues(), app.workers(), app.peek(), app.failed.list()) == ([], [], [], [])
    assert app.AsyncResult("some-id").state == "PENDING"
    assert files(directory) == before
    app.close()
