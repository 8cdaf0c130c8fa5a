"""qworker move and delayed: output, confirmation, errors and effects."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time

import pytest

from qworker.cli.discovery import find_app
from qworker.transports import open_broker
from tests.support.messages import call, ids
from tests.support.receiving import everything


@pytest.fixture
def old(tasks):
    """A broker with two ready messages and a delayed one."""
    app = find_app("tasks").app
    store = open_broker("sqlite:///old.db", app.conf)
    store.sender.push([call("1"), call("2"), call("3", due=time.time() + 3600)])
    yield store
    store.close()


def everything_in(url):
    store = open_broker(url, find_app("tasks").app.conf)
    taken = everything(store)
    store.close()
    return dict(zip(ids(taken), taken, strict=True))


MOVE = ("move", "sqlite:///old.db", "sqlite:///new.db")


def test_dry_run_shows_and_moves_nothing(old, run):
    result = run(*MOVE, "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.split() == [
        "queue",
        "ready",
        "delayed",
        "running",
        "dead",
        "celery",
        "2",
        "1",
        "0",
        "0",
    ]
    assert len(everything_in("sqlite:///old.db")) == 3


def test_move_transfers_ready_and_delayed_messages(old, run):
    result = run(*MOVE, "--yes")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "Moved 3 messages.")
    assert everything_in("sqlite:///new.db").keys() == {"1", "2", "3"}
    assert everything_in("sqlite:///new.db")["3"].due > time.time() + 3000
    again = run(*MOVE, "--yes")
    assert again.stdout == "There is nothing to move.\n"


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_progress_bar_needs_a_terminal_with_a_cursor(old, environment, terminal):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "qworker", *MOVE, "--yes"]
    environment = {**environment, "TERM": terminal}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        try:
            while more := os.read(ours, 65536):
                seen += more
        except OSError:
            pass  # the end, on Linux
        assert process.communicate()[0].splitlines()[-1] == b"Moved 3 messages."
    os.close(ours)
    assert (b"Moving" in seen, b"\x1b" in seen) == (terminal == "xterm",) * 2


def test_move_needs_confirmation(old, run):
    assert run(*MOVE).exit_code == 2
    assert len(everything_in("sqlite:///old.db")) == 3


def test_same_broker_twice_is_refused(old, run):
    result = run("move", "sqlite:///old.db", "sqlite:///./old.db", "--yes")
    assert result.exit_code == 1
    assert "are the same place" in result.stderr


def test_unknown_broker_is_refused(old, run):
    result = run("move", "sqlite:///old.db", "nonsense://h", "--yes")
    assert result.exit_code == 1
    assert "nonsense" in result.stderr
    assert len(everything_in("sqlite:///old.db")) == 3


def test_running_workers_are_reported(old, run):
    worker = open_broker("sqlite:///old.db", find_app("tasks").app.conf)
    worker.consumer.register("w1@here", ["celery"], 2)
    worker.consumer.lease(["celery"], 1)
    result = run(*MOVE, "--yes")
    assert "Warning: 1 worker is running on the old broker (w1@here)" in result.stderr
    assert "Left in queue 'celery': 0 ready, 0 delayed, 1 running." in result.stderr
    assert "Moved 2 messages." in result.stdout
    worker.close()


def test_dead_letters_are_moved_only_on_request(tasks, run, dead_letter):
    dead_letter(2)
    url = find_app("tasks").app.broker.url
    result = run("move", url, "sqlite:///new.db", "--dry-run")
    assert "2 dead letters will stay; --dead moves them too." in result.stderr
    result = run("move", url, "sqlite:///new.db", "--dead", "--yes")
    assert result.stdout.endswith("Moved 0 messages and 2 dead letters.\n")
    store = open_broker("sqlite:///new.db", find_app("tasks").app.conf)
    assert [letter.reason for letter in store.admin.dead()] == ["it never runs"] * 2
    store.close()


def test_delayed_list_counts_messages_per_queue(existing_broker, run):
    assert run("delayed", "list").stdout == "There are no delayed messages.\n"
    run("call", "add", "1", "2", "--countdown", "2h")
    run("call", "add", "1", "2", "--countdown", "5h")
    run("call", "add", "1", "2", "-Q", "other")
    (row,) = json.loads(run("delayed", "list", "--json").stdout)
    assert (row["queue"], row["delayed"]) == ("celery", 2)
    assert 7000 < row["next_due"] - time.time() <= 7200
    assert run("delayed", "list").stdout.splitlines()[1].split() == ["celery", "2", "2", "h"]


def test_delayed_flush_makes_messages_ready(existing_broker, run):
    assert run("delayed", "flush").stdout == "There are no delayed messages.\n"
    run("call", "add", "1", "2", "--countdown", "2h")
    run("call", "add", "1", "2", "--countdown", "2h", "-Q", "other")
    assert run("delayed", "flush").exit_code == 2
    assert run("delayed", "flush", "-Q", "other", "--yes").stdout == "Moved 1 message.\n"
    broker = find_app("tasks").app.broker
    assert {info.queue: (info.ready, info.delayed) for info in broker.admin.queues()} == {
        "celery": (0, 1),
        "other": (1, 0),
    }
    broker.consumer.register("reader", ["other"], 1)
    (leased,) = broker.consumer.lease(["other"], 10).messages
    assert leased.due is None
    assert json.loads(leased.headers)["eta"], "the message still says when it is meant to run"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sqlite:///odl.db", "sqlite:///new.db", "there is no "),
        ("spool:///nowhere/spool", "sqlite:///new.db", "there is no /nowhere/spool"),
        ("old.db", "sqlite:///new.db", "must be a URL"),
        ("sqlite:///", "new.db", "must be a URL"),
        ("redis://127.0.0.1:1", "sqllite:///new.db", "did you mean sqlite://?"),
        ("redsi://localhost", "sqlite:///new.db", "did you mean redis://?"),
    ],
)
def test_url_with_a_typo_creates_no_files(tasks, run, old, new, words):
    before = sorted(tasks.iterdir())
    result = run("move", old, new, "--yes")
    assert (result.exit_code in (1, 2), words in result.stderr) == (True, True), result.stderr
    assert sorted(tasks.iterdir()) == before


def test_empty_source_creates_no_target(tasks, run):
    old = open_broker("sqlite:///old.db", find_app("tasks").app.conf)
    old.sender.push([call("1")])
    old.admin.purge("celery")
    assert run(*MOVE, "--yes").stdout == "There is nothing to move.\n"
    assert not list(tasks.glob("new.db*"))
