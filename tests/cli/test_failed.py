"""qworker failed: listing and retrying failed tasks, and the commands' errors."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from qworker.cli.discovery import find_app
from qworker.transports.lease import DeadLetter, Envelope

WHY = "ValueError('odd \x1b[2J')\nTraceback:\n  in add \x1b[2J"


@pytest.fixture
def fail(tasks):
    """Lets calls of tasks.add fail, as reported by a worker."""

    def fail(*ids, task="tasks.add", why=WHY):
        app = find_app("tasks").app
        headers = [json.dumps({"task": task, "id": id, "retries": 2, "argsrepr": "(1, '***')"}) for id in ids]
        app.broker.sender.push([Envelope("celery", text, None, b"[[1],{},{}]") for text in headers])
        generation = app.broker.consumer.register("w@here", ["celery"], 1)
        leased = app.broker.consumer.lease(["celery"], 100).messages
        orders = [DeadLetter(message.tag, why, failed=True) for message in leased]
        app.broker.consumer.settle(generation, orders)
        app.broker.consumer.deregister()

    return fail


def test_failed_tasks_are_listed_and_shown(existing_broker, run, fail):
    assert run("failed", "list").stdout == "There are no failed tasks.\n"
    fail("one", "two")
    listed = run("failed", "list")
    assert listed.stdout.splitlines()[0].split() == ["tag", "queue", "task", "attempts", "age", "error"]
    assert "\x1b" not in listed.stdout
    assert "qworker failed show TAG" in listed.stderr
    (newest, _) = json.loads(run("failed", "list", "--json").stdout)
    assert (newest["task"], newest["attempts"], newest["args"]) == ("tasks.add", 3, "(1, '***')")
    shown = run("failed", "show", str(newest["tag"])).stdout
    assert "\x1b" not in shown
    assert "  in add \\x1b[2J" in shown
    assert json.loads(run("failed", "show", str(newest["tag"]), "--json").stdout) == newest
    assert run("dead", "list").stdout == "There are no dead letters.\n"


def test_failed_tasks_are_retried_and_discarded(tasks, run, fail):
    fail("one", "two", "three")
    fail("four", task="tasks.other", why="KeyError(4)")
    tag = str(json.loads(run("failed", "list", "--error", "odd", "--json").stdout)[0]["tag"])
    assert run("failed", "retry", tag, "--args", "[4, 5]").stdout == "Sent 1 task again.\n"
    assert run("failed", "retry", "--task", "tasks.other").stdout == "Sent 1 task again.\n"
    app = find_app("tasks").app
    app.broker.consumer.register("w@here", ["celery"], 1)
    sent = app.broker.consumer.lease(["celery"], 10).messages
    assert [json.loads(message.body)[0] for message in sent] == [[4, 5], [1]]
    assert all("retries" not in message.headers or '"retries":0' in message.headers for message in sent)
    assert "--yes" in run("failed", "discard", "--all").stderr
    assert run("failed", "discard", "--all", "--yes").stdout == "Deleted 2 failed tasks.\n"


def test_times_in_json_have_the_documented_format(existing_broker, run, fail, dead_letter, succeed):
    page = Path(__file__).parents[2].joinpath("docs", "reference", "cli.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith("Times in `--json`"))
    numbers, texts = (set(re.findall("`([a-z]+)`", part)) for part in line.split("ISO 8601"))
    dead_letter(1)
    fail("one")
    succeed("good", status="SUCCESS", result=5, date_done="2026-03-01T08:00:00+00:00")
    run("call", "add", "1", "2")
    run("call", "add", "1", "2", "--countdown", "1h")
    find_app("tasks").app.broker.consumer.register("w@here", [], 1)
    Path("jobs").mkdir()
    run("spool", "add", "jobs", "a=b")
    run("beat", "add", "hourly", "tasks.add", "--every", "1h")
    moments = {
        "queues": (["queues"], lambda found: found[0]["oldest"]),
        "tasks": (["tasks"], lambda found: found[0]["sent"]),
        "workers": (["workers"], lambda found: found[0]["started"]),
        "delayed": (["delayed", "list"], lambda found: found[0]["next_due"]),
        "spool": (["spool", "ls", "jobs"], lambda found: found[0]["due"]),
        "dead": (["dead", "list"], lambda found: found[0]["died_at"]),
        "failed": (["failed", "list"], lambda found: found[0]["failed_at"]),
        "result": (["result", "good"], lambda found: found["date_done"]),
        "beat": (["beat", "list"], lambda found: found["entries"][0]["next_due"]),
    }
    assert moments.keys() == numbers | texts
    for name, (arguments, read) in moments.items():
        moment = read(json.loads(run(*arguments, "--json").stdout))
        assert isinstance(moment, float if name in numbers else str), name
        if name in texts:
            assert datetime.fromisoformat(moment).tzinfo


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("retry", 2, "--all"),
        ("retry 1 --all", 2, "--all"),
        ("retry --all --args []", 2, "for one failed task"),
        ("retry 999", 1, "no failed task 999"),
        ("show 999", 1, "no failed task 999"),
        ("discard x", 1, "no failed task x"),
        ("discard --yes --error=", 2, "--error is empty"),
    ],
)
def test_wrong_arguments_are_refused(tasks, run, fail, arguments, code, words):
    fail("one")
    result = run("failed", *arguments.split())
    assert (result.exit_code, words in result.stderr) == (code, True)
    assert len(json.loads(run("failed", "list", "--json").stdout)) == 1


def test_failed_task_can_be_named_by_task_id(tasks, run, fail):
    fail("one")
    fail("two")
    first, second = json.loads(run("failed", "list", "--json").stdout)
    assert json.loads(run("failed", "show", first["id"], "--json").stdout) == first
    assert run("failed", "retry", first["id"], "--args", "[1, 2]").stdout == "Sent 1 task again.\n"
    assert run("failed", "discard", second["id"], str(second["tag"])).stdout == "Deleted 1 failed task.\n"


def test_reason_for_refusing_a_retry_is_printed_once(tasks, run, fail, monkeypatch):
    monkeypatch.setenv("QWORKER_SECURITY_KEY", "k" * 32)
    fail("one")  # without a signature
    (listed,) = json.loads(run("failed", "list", "--json").stdout)
    refused = run("failed", "retry", "--all")
    assert (refused.exit_code, refused.stdout) == (1, "Sent 0 tasks again.\n")
    assert refused.stderr.count(f"failed task {listed['tag']} is refused, and its body is not read: ") == 1
    assert "by its tag" not in refused.stderr


def test_tasks_that_are_too_large_to_send_are_named(tasks, run, fail, monkeypatch):
    monkeypatch.setenv("QWORKER_MESSAGE_MAX_BYTES", "1024")
    fail("one")
    (listed,) = json.loads(run("failed", "list", "--json").stdout)
    refused = run("failed", "retry", "--task", "tasks.add", "--kwargs", json.dumps({"x": "x" * 2000}))
    assert refused.exit_code == 2, "other arguments are for one"
    refused = run("failed", "retry", str(listed["tag"]), "--kwargs", json.dumps({"x": "x" * 2000}))
    assert (refused.exit_code, "over the limit of 1,024 (message_max_bytes)" in refused.stderr) == (1, True)
    app = find_app("tasks").app
    app.broker.sender.push([Envelope("celery", '{"task": "tasks.add", "id": "two"}', None, b" " * 2000)])
    generation = app.broker.consumer.register("w@here", ["celery"], 1)
    (leased,) = app.broker.consumer.lease(["celery"], 1).messages
    app.broker.consumer.settle(generation, [DeadLetter(leased.tag, WHY, failed=True)])
    app.broker.consumer.deregister()
    refused = run("failed", "retry", "--all")
    assert (refused.exit_code, refused.stdout) == (0, "Sent 1 task again.\n")
    tag = json.loads(run("failed", "list", "--json").stdout)[0]["tag"]
    assert (
        f"Error: failed task {tag} was not sent again: the message takes 2,000 bytes, over " in refused.stderr
    )


def test_task_option_accepts_short_names_and_suggests_corrections(tasks, run, fail):
    fail("one")
    (listed,) = json.loads(run("failed", "list", "--json").stdout)
    short = listed["task"].rpartition(".")[2]
    assert json.loads(run("failed", "list", "--task", short, "--json").stdout) == [listed]
    typo = run("failed", "list", "--task", f"{listed['task']}x")
    assert typo.stdout == "No failed task matches.\n"
    assert f"Did you mean '{listed['task']}'?" in typo.stderr
    assert run("failed", "retry", "--task", short).stdout == "Sent 1 task again.\n"


NOWHERE = """
from qworker import QWorker
app = QWorker("tasks", broker={broker!r}, backend={backend!r})
@app.task
def add(x, y):
    return x + y
"""


@pytest.mark.parametrize("backend", [None, "disabled://", "cache+memory://"])
def test_call_wait_without_a_result_backend_is_refused_before_sending(project, run, backend):
    project(**{"tasks.py": NOWHERE.format(broker="sqs://nowhere", backend=backend)})
    for arguments in (["call", "add", "1", "2", "--wait"], ["result", "some-id"]):
        result = run(*arguments)  # no server listens there: sending would fail with another error
        assert (result.exit_code, "set result_backend" in result.stderr) == (1, True)


def test_broker_without_failed_tasks_explains_itself(project, run):
    project(**{"tasks.py": NOWHERE.format(broker="disque://nowhere", backend=None)})
    result = run("failed", "list")
    assert (result.exit_code, "task_acks_on_failure_or_timeout" in result.stderr) == (1, True)


def test_tag_cannot_be_combined_with_filters(existing_broker, run):
    result = run("failed", "retry", "1", "--task", "one")
    assert result.exit_code == 2
    assert "A tag cannot be combined with --task, --error or --queue." in result.stderr
