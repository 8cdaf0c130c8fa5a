"""call, result, queues, dead, revoke, purge, config, shell, report: output, effects and errors."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from qworker.cli.discovery import find_app
from qworker.conf import SETTINGS
from qworker.testing import StepWorker

# -- call --


def test_call_sends_a_task_and_prints_its_id(tasks, run):
    result = run("call", "tasks.add", "2", "3")
    assert result.exit_code == 0
    (leased,) = sent()
    assert json.loads(leased.headers)["id"] == result.stdout.strip()
    assert json.loads(leased.body)[0] == [2, 3]
    assert "Using tasks:app: tasks.py" in result.stderr
    assert "No worker consumes queue 'celery' now. Start one with: qworker start\n" in result.stderr


def sent(queue="celery"):
    broker = find_app("tasks").app.broker
    broker.consumer.register("reader@here", [queue], 1)
    try:
        return broker.consumer.lease([queue], 100).messages
    finally:
        broker.consumer.deregister()


@pytest.mark.parametrize(
    ("arguments", "args", "kwargs"),
    [
        (["1", "two"], [1, "two"], {}),
        (["-a", "[1, 2]"], [1, 2], {}),
        (["-k", '{"x": 1, "y": 2}'], [], {"x": 1, "y": 2}),
        (["-a", "[1]", "-k", '{"y": null}'], [1], {"y": None}),
    ],
)
def test_call_accepts_arguments_in_several_forms(tasks, run, arguments, args, kwargs):
    assert run("call", "add", *arguments).exit_code == 0
    body = json.loads(sent()[0].body)
    assert (body[0], body[1]) == (args, kwargs)


VALUES = """
    import dataclasses, datetime, enum, uuid

    from qworker import QWorker

    app = QWorker("tasks")


    class Color(enum.Enum):
        RED = "red"


    @dataclasses.dataclass
    class Order:
        number: uuid.UUID
        wait: datetime.timedelta
        color: Color = Color.RED


    @app.task
    def bill(order: Order, at: datetime.datetime) -> Order:
        assert isinstance(at, datetime.datetime)
        return dataclasses.replace(order, wait=order.wait * 2)
"""


def test_unknown_value_tag_is_refused(tasks, run):
    tagged = '{"__type__": "invoice", "__value__": 3}'
    for arguments in (("add", tagged, "1"), ("add", "--args", f"[{tagged}, 1]")):
        refused = run("call", *arguments)
        assert refused.exit_code == 2
        assert "a value tagged with __type__ cannot be read" in refused.stderr


def test_call_accepts_typed_values_as_json_and_result_shows_them(project, monkeypatch, run):
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    project(**{"tasks.py": VALUES})
    order = '{"number": "00000000-0000-0000-0000-000000000007", "wait": "PT1M"}'
    at = '{"__type__": "datetime", "__value__": "2030-01-02T03:04:05+00:00"}'
    called = run("call", "bill", order, at)
    wrong = run("call", "bill", '{"number": 1}', at)
    with StepWorker(find_app("tasks").app) as worker:
        worker.run()
    shown = run("result", called.stdout.strip(), "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["result"]) == (
        0,
        {"number": "00000000-0000-0000-0000-000000000007", "wait": 120, "color": "red"},
    )
    failed = run("result", wrong.stdout.strip())
    assert failed.exit_code == 1
    missing = "tasks.bill does not take the argument order: Order needs the field 'wait', which is missing"
    assert failed.stdout == f"FAILURE: InvalidValue: {missing}\n"
    listed = run("failed", "list", "--json")
    (tag,) = [each["tag"] for each in json.loads(listed.stdout)]
    assert run("failed", "retry", str(tag), "--args", f"[{order}, {at}]").exit_code == 0
    with StepWorker(find_app("tasks").app) as worker:
        worker.run()
    assert run("result", wrong.stdout.strip()).exit_code == 0


def test_call_options_reach_the_message(tasks, run):
    options = [
        "--task-id",
        "mine",
        "--countdown",
        "1h",
        "--expires",
        "2h",
        "--priority",
        "7",
        "--queue",
        "other",
        "--json",
    ]
    result = run("call", "add", "1", "2", *options)
    assert json.loads(result.stdout) == {"id": "mine", "task": "tasks.add"}
    assert "qworker start -Q other" in result.stderr
    (info,) = find_app("tasks").app.broker.admin.queues()
    assert (info.queue, info.ready, info.delayed) == ("other", 0, 1)


def test_call_by_name_sends_an_unknown_task(tasks, run):
    assert run("call", "elsewhere.task", "--by-name").exit_code == 0
    assert json.loads(sent()[0].headers)["task"] == "elsewhere.task"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ad"], 1, "did you mean 'tasks.add'"),
        (["nothing.like.it"], 1, "no task named"),
        (["add", "1"], 2, "missing 1 required positional argument: 'y'"),
        (["add", "-a", "{1"], 2, "not JSON"),
        (["add", "-a", '{"x": 1}'], 2, "'[2, 3]'"),
        (["add", "-k", "[1]"], 2, """'{"x": 2}'"""),
        (["add", "1", "2", "-a", "[1]"], 2, "not both"),
        (["add", "1", "2", "--countdown", "soon"], 2, "duration"),
        (["add", "1", "2", "--eta", "yesterday"], 2, "2027-01-31T08:00:00+01:00"),
        (["add", "1", "2", "--expires", "never"], 2, "2027-01-31T08:00:00+01:00"),
        (["add", "1", "2", "--priority", "10"], 2, "0<=x<=9"),
        (["add", "1", "2", "-Q", "a b"], 2, "'a b' must be a queue name of letters, digits"),
        (["add", "1", "2", "--serializer", "nonsense"], 1, "nonsense"),
        ([], 2, "Missing argument 'TASK'"),
    ],
)
def test_call_refuses_wrong_arguments_and_options(tasks, run, arguments, code, words):
    result = run("call", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert sent() == []


def test_call_reports_a_missing_worker_once(tasks, run, monkeypatch, caplog):
    monkeypatch.setattr("qworker.results.waiting.HINT_AFTER", 0.01)
    result = run("call", "add", "1", "2", "--wait", "--timeout", "0.2")
    assert (result.exit_code, (result.stderr + caplog.text).count("No worker")) == (3, 1)


def test_call_reports_a_timeout_while_waiting(tasks, run):
    result = run("call", "add", "1", "2", "--wait", "--timeout", "0.05")
    assert result.exit_code == 3
    assert "ask later: qworker result" in result.stderr


# -- result --


def test_result_shows_states_with_exit_codes(tasks, run, succeed):
    succeed("good", status="SUCCESS", result=5)
    succeed("half", status="PROGRESS", result={"done": 3})
    error = {"exc_type": "ValueError", "exc_message": ["no luck"], "exc_module": "builtins"}
    succeed(
        "bad",
        status="FAILURE",
        result=error,
        traceback="Traceback…\nValueError: no luck",
        date_done="2026-01-02T03:04:05+00:00",
    )
    for task_id, code, text in (
        ("good", 0, "5\n"),
        ("half", 3, "PROGRESS: {'done': 3}\n"),
        ("bad", 1, "FAILURE: ValueError: no luck\n"),
        ("unknown", 3, "PENDING\n"),
    ):
        result = run("result", task_id)
        assert (result.exit_code, result.stdout) == (code, text)
    assert "Traceback…" in run("result", "bad", "--traceback").stdout
    shown = json.loads(run("result", "bad", "--json").stdout)
    assert (shown["state"], shown["result"]) == ("FAILURE", {"type": "ValueError", "message": "no luck"})
    assert shown["date_done"] == "2026-01-02T03:04:05+00:00"
    assert run("result", "good", "--wait").exit_code == 0
    late = run("result", "unknown", "--wait", "--timeout", "0.05")
    assert (late.exit_code, "no result after" in late.stderr) == (3, True)


def test_result_shows_several_results(tasks, run, succeed):
    for number in range(3):
        succeed(str(number), status="SUCCESS", result=number)
    succeed("bad", status="REVOKED", result=None)
    for ids, code, text in (
        (["0", "2"], 0, "0  0\n2  2\n"),
        (["0", "unknown"], 3, "0  0\nunknown  PENDING\n"),
        (["unknown", "bad", "1"], 1, "unknown  PENDING\nbad  REVOKED: TaskRevoked: revoked\n1  1\n"),
    ):
        result = run("result", *ids)
        assert (result.exit_code, result.stdout) == (code, text)
    shown = run("result", "1", "unknown", "--json")
    assert shown.exit_code == 3
    assert [(each["id"], each["state"]) for each in json.loads(shown.stdout)] == [
        ("1", "SUCCESS"),
        ("unknown", "PENDING"),
    ]
    assert run("result", "0", "1", "--wait").exit_code == 0
    late = run("result", "0", "unknown", "--wait", "--timeout", "0.05")
    assert (late.exit_code, late.stderr.count("no result after")) == (3, 1)


def test_unreadable_result_is_shown_beside_the_others(tasks, run, succeed):
    succeed("good", status="SUCCESS", result=5)
    find_app("tasks").app.backend.store_rows([("torn", "SUCCESS", b"[1, 2", None)])
    for wait in ([], ["--wait"]):
        shown = run("result", *wait, "torn", "good")
        lines = shown.stdout.splitlines()
        assert (shown.exit_code, lines[1]) == (1, "good  5")
        assert lines[0].startswith("torn  UNREADABLE: DamagedResult: ")
        assert "the stored result of task torn cannot be read as json" in lines[0]
    torn, good = json.loads(run("result", "torn", "good", "--json").stdout)
    assert (torn["state"], torn["result"]["type"]) == ("UNREADABLE", "DamagedResult")
    assert (good["state"], good["result"]) == ("SUCCESS", 5)
    assert run("result", "torn").exit_code == 1


# -- queues, purge --


def test_queues_show_depth_and_age(existing_broker, run):
    assert "are empty" in run("queues").stdout
    run("call", "add", "1", "2")
    run("call", "add", "1", "2", "--countdown", "1h")
    head, row = run("queues").stdout.splitlines()
    assert head.split() == ["queue", "ready", "delayed", "running", "dead", "oldest", "workers"]
    assert row.split()[:5] == ["celery", "1", "1", "0", "0"]
    (info,) = json.loads(run("queues", "--json").stdout)
    assert (info["queue"], info["ready"], info["delayed"], info["workers"]) == ("celery", 1, 1, 0)
    assert 0 <= info["oldest_age"] < 60


def test_workers_are_shown_with_their_status(existing_broker, run):
    assert "No worker is running on sqlite:" in run("workers").stdout
    assert json.loads(run("workers", "--json").stdout) == []
    broker = find_app("tasks").app.broker
    broker.consumer.present('{"host":"far","status":"working","busy":1,"waiting":7,"totals":{"finished":5}}')
    broker.consumer.register("w@far", ["celery", "mail"], 2)
    head, row, more = run("workers").stdout.splitlines()
    assert more == "… and 1 more task"
    assert head.split()[:8] == ["name", "host", "pid", "status", "queues", "running", "waiting", "finished"]
    assert row.split()[:8] == ["w@far", "far", str(os.getpid()), "working", "celery,mail", "1/2", "7", "5"]
    (found,) = json.loads(run("workers", "--json").stdout)
    shown = found["name"], found["queues"], found["concurrency"], found["totals"], found["running"]
    assert shown == ("w@far", ["celery", "mail"], 2, {"finished": 5}, [])
    broker.consumer.deregister()


def test_workers_are_not_reported_by_some_brokers(tasks, run):
    Path("plain.py").write_text(
        "from qworker import QWorker\napp = QWorker('plain', broker_url='memory://')\n"
    )
    assert "does not report its workers" in run("workers", "-A", "plain").stdout


def test_queue_details_that_a_broker_does_not_report_are_null(tasks, run):
    folders = dict.fromkeys(("data_folder_in", "data_folder_out", "control_folder"), "messages")
    Path("messages").mkdir()
    Path("plain.py").write_text(
        "from qworker import QWorker\n"
        f"app = QWorker('plain', broker_url='filesystem://', broker_transport_options={folders})\n"
    )
    assert run("queues", "-A", "plain").stdout == (
        "No message is ready in any queue of filesystem://. This broker does not report delayed or "
        "running messages.\n"
    )
    assert run("call", "-A", "plain", "--by-name", "anything").exit_code == 0
    (info,) = json.loads(run("queues", "-A", "plain", "--json").stdout)
    assert (info["queue"], info["ready"], info["dead"]) == ("celery", 1, 0)
    assert (info["delayed"], info["leased"], info["oldest_age"], info["workers"]) == (None, None, None, None)


def test_purge_needs_confirmation(tasks, run):
    run("call", "add", "1", "2")
    run("call", "add", "1", "2", "--queue", "other")
    refused = run("purge")
    assert (refused.exit_code, "use --yes" in refused.stderr) == (2, True)
    assert run("purge", "-Q", "other", "--yes").stdout == "Removed 1 message.\n"
    assert run("purge", "-X", "celery", "-f").stdout == "There is nothing to remove.\n"
    assert run("purge", "--yes").stdout == "Removed 1 message.\n"
    assert sent() == []


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 1), (b"y\n", 0)])
def test_purge_asks_at_a_terminal(tasks, run, environment, answer, left):
    run("call", "add", "1", "2")
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "qworker", "purge", "-A", "tasks"]
    with subprocess.Popen(
        command, env=environment, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        os.write(master, answer)
        output = process.communicate(timeout=30)[0].decode()
    os.close(slave)
    os.close(master)
    assert "Remove 1 message of celery" in output
    assert process.returncode == left
    assert ("Nothing was done." in output, "Interrupted" in output) == (bool(left), False)
    assert len(sent()) == left


@pytest.mark.parametrize("queues", ["", "a,,b", "a b", "x" * 300, "a\nb", "a*"])
def test_queue_names_are_checked(tasks, run, queues):
    result = run("purge", "-Q", queues)
    assert result.exit_code == 2
    assert "name" in result.stderr


# -- dead --


def test_dead_letters_can_be_listed_shown_retried_and_discarded(existing_broker, run, dead_letter):
    assert run("dead", "list").stdout == "There are no dead letters.\n"
    dead_letter(3)
    letters = json.loads(run("dead", "list", "--json").stdout)
    assert {letter["reason"] for letter in letters} == {"it never runs"}
    first, second, third = (str(letter["tag"]) for letter in letters)
    head, *rows = run("dead", "list", "--limit", "2").stdout.splitlines()
    assert head.split() == ["tag", "queue", "task", "deliveries", "age", "reason"]
    assert [row.split()[:3] for row in rows] == [
        [first, "celery", "tasks.add"],
        [second, "celery", "tasks.add"],
    ]
    assert run("dead", "list", "-Q", "other").stdout == "Queue 'other' has no dead letters.\n"
    shown = run("dead", "show", first).stdout
    for words in ("reason: it never runs", '  task: "tasks.add"', "body (10 bytes): [[],{},{}]"):
        assert words in shown
    assert run("dead", "retry", first).stdout == "Put 1 message back.\n"
    assert len(sent()) == 1
    assert run("dead", "discard", second, second).stdout == "Deleted 1 dead letter.\n"
    assert [letter["tag"] for letter in json.loads(run("dead", "list", "--json").stdout)] == [int(third)]


def test_dead_letter_can_be_named_by_task_id(tasks, run, dead_letter):
    dead_letter(1)
    (letter,) = json.loads(run("dead", "list", "--json").stdout)
    assert letter["id"] == "abc"
    assert json.loads(run("dead", "show", "abc", "--json").stdout) == letter
    assert run("dead", "retry", "abc", str(letter["tag"])).stdout == "Put 1 message back.\n"


def test_dead_letter_that_disappears_during_the_lookup(tasks, run, dead_letter, monkeypatch):
    dead_letter(1)
    monkeypatch.setattr("qworker.cli.letters.numbers_of", lambda *given: [999])
    gone = run("dead", "show", "abc")
    assert gone.exit_code == 1
    assert "there is no dead letter 999" in gone.stderr


def test_dead_letter_tag_takes_precedence_over_an_equal_task_id(tasks, run, dead_letter):
    dead_letter(1)
    (letter,) = json.loads(run("dead", "list", "--json").stdout)
    dead_letter(1, headers=json.dumps({"task": "tasks.add", "id": str(letter["tag"])}))
    assert run("dead", "discard", str(letter["tag"])).stdout == "Deleted 1 dead letter.\n"
    assert [each["id"] for each in json.loads(run("dead", "list", "--json").stdout)] == [str(letter["tag"])]


def test_all_dead_letters_can_be_retried_or_discarded(tasks, run, dead_letter):
    dead_letter(2)
    refused = run("dead", "discard", "--all")
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    assert run("dead", "retry", "--all").stdout == "Put 2 messages back.\n"
    assert run("dead", "discard", "--all", "--yes").stdout == "Deleted 0 dead letters.\n"


def test_unsigned_dead_letters_are_retried_only_with_sign(tasks, run, dead_letter, monkeypatch):
    monkeypatch.setenv("QWORKER_SECURITY_KEY", "k" * 32)
    dead_letter(1)
    (letter,) = json.loads(run("dead", "list", "--json").stdout)
    tag = str(letter["tag"])
    for chosen in (tag, "--all"):
        refused = run("dead", "retry", chosen)
        assert (refused.exit_code, refused.stdout) == (1, "Put 0 messages back.\n")
        assert (
            f"Error: dead letter {tag} was not put back: the message is not signed, and this app has a sec"
            in refused.stderr
        )
        assert "qworker dead retry TAG --sign" in refused.stderr
        assert "qworker dead discard TAG" in refused.stderr
    assert run("dead", "retry", tag, "--yes").exit_code == 2
    assert run("dead", "retry", tag, "--sign").exit_code == 2, "nobody can be asked"
    assert [each["tag"] for each in json.loads(run("dead", "list", "--json").stdout)] == [letter["tag"]]
    done = run("dead", "retry", tag, "--sign", "--yes")
    assert (done.exit_code, done.stdout) == (0, f"{tag}: tasks.add, queue celery\nPut 1 message back.\n")
    (message,) = sent()
    assert "signature" in json.loads(message.headers)


def test_signing_needs_a_key(tasks, run, dead_letter):
    dead_letter(1)
    refused = run("dead", "retry", "--all", "--sign", "--yes")
    assert (refused.exit_code, "--sign needs a security_key" in refused.stderr) == (2, True)


@pytest.mark.parametrize("command", ["show", "retry", "discard"])
def test_unknown_dead_letter(tasks, run, dead_letter, command):
    dead_letter(1)
    for arguments, code, words in (
        (["999"], 1, "no dead letter 999"),
        (["x"], 1, "no dead letter x"),
        ([], 2, ""),
    ):
        result = run("dead", command, *arguments)
        assert (result.exit_code, words in result.stderr) == (code, True)
    assert len(json.loads(run("dead", "list", "--json").stdout)) == 1


def test_control_characters_of_messages_are_escaped(tasks, run, dead_letter):
    dead_letter(1, reason="bad \x1b[2J", headers="\x1b]0;title", body=b"\xff\x1b[2J")
    (letter,) = json.loads(run("dead", "list", "--json").stdout)
    for result in (run("dead", "list"), run("dead", "show", str(letter["tag"]))):
        assert result.exit_code == 0
        assert "\x1b" not in result.stdout
        assert "\\x1b" in result.stdout


# -- revoke --


def test_revoke_reaches_the_broker(existing_broker, run):
    assert run("revoke", "abc", "def", "--terminate", "-s", "kill").stdout == "Revoked 2 tasks.\n"
    broker = find_app("tasks").app.broker
    broker.consumer.register("reader@here", ["celery"], 1)
    _, revocations = broker.consumer.revoked_since(0)
    broker.consumer.deregister()
    assert [tuple(one) for one in revocations] == [("abc", True, "SIGKILL"), ("def", True, "SIGKILL")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing"),
        ([""], "not a task id"),
        (["a b"], "not a task id"),
        (["x" * 300], "not a task id"),
        (["a", "-s", "NOPE"], "not a signal"),
    ],
)
def test_revoke_refuses_invalid_ids_and_signals(tasks, run, arguments, words):
    result = run("revoke", *arguments)
    assert (result.exit_code, words in result.stderr) == (2, True)


# -- config --


def test_config_show_prints_values_and_sources(project, run, monkeypatch):
    secret = "k" * 40
    project(
        **{
            "tasks.py": f"from qworker import QWorker\napp = QWorker('t', security_key={secret!r}, "
            "broker='redis://:hunter2@h')"
        }
    )
    monkeypatch.setenv("QWORKER_WORKER_CONCURRENCY", "3")
    shown = json.loads(run("config", "show", "--json").stdout)
    assert set(shown) == set(SETTINGS)
    assert shown["worker_concurrency"] == {
        "value": 3,
        "source": "environment variable QWORKER_WORKER_CONCURRENCY",
    }
    assert shown["task_serializer"]["source"] == "default"
    text = run("config", "show").stdout
    assert "hunter2" not in text
    assert secret not in text
    changed = run("config", "show", "--changed").stdout.splitlines()
    assert [line.split()[0] for line in changed] == [
        "setting",
        "broker_url",
        "security_key",
        "worker_concurrency",
    ]
    assert len(run("config", "show", "task_serializer").stdout.splitlines()) == 2
    wrong = run("config", "show", "task_serialiser")
    assert (wrong.exit_code, "did you mean task_serializer" in wrong.stderr) == (1, True)


def test_config_check_reports_all_problems(project, run):
    project(
        **{
            "tasks.py": "from qworker import QWorker\napp = QWorker('t', worker_concurrency=0, "
            "changes={'task_serialiser': 'json', 'own': 1}, worker_pool='gevent')"
        }
    )
    result = run("config", "check")
    assert result.exit_code == 1
    for words in (
        "error: worker_concurrency",
        "error: worker_pool",
        "error: unknown setting 'task_serialiser'; did you mean task_serializer?",
        "warning: unknown setting 'own'",
        "4 problems.",
    ):
        assert words in result.stdout
    assert len(json.loads(run("config", "check", "--json").stdout)) == 4
    assert run("config", "show").exit_code == 0


def test_config_check_of_valid_settings(tasks, run):
    result = run("config", "check")
    assert (result.exit_code, result.stdout) == (0, "The settings are valid.\n")


def test_other_commands_report_all_wrong_settings(project, run):
    project(
        **{
            "tasks.py": "from qworker import QWorker\napp = QWorker('t', worker_concurrency=0, "
            "task_time_limit='x')"
        }
    )
    result = run("queues")
    assert result.exit_code == 1
    assert "2 settings are invalid" in result.stderr


# -- shell, report --


def test_shell_runs_code_with_the_tasks_defined(tasks, run):
    assert (
        run("shell", "-c", "print(add(1, 2), app.main, sorted(tasks)[-2:])").stdout
        == "3 tasks ['tasks.add', 'tasks.fail']\n"
    )


def test_shell_reads_code_from_standard_input(tasks, shell):
    assert shell("shell", stdin=None, input="print(add(2, 2))").stdout == "4\n"


def test_report_contains_versions_and_masked_settings(project, run):
    project(
        **{
            "tasks.py": "from qworker import QWorker\napp = QWorker('t', broker='redis://:hunter2@h', "
            "changes={'own': 1})"
        }
    )
    text = run("report").stdout
    assert "hunter2" not in text
    for words in (
        "qworker: ",
        "python: 3.",
        "sqlite: ",
        "kombu: ",
        "broker_url: 'redis://:********@h'",
        "unknown setting 'own'",
    ):
        assert words in text
    assert json.loads(run("report", "--json").stdout)["app"].startswith("tasks:app")


def test_report_works_without_an_app(project, run):
    project(README="")
    result = run("report")
    assert result.exit_code == 0
    assert "app: none: found no app" in result.stdout


# -- refused calls --


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("add", "-1", "2"), 2, "qworker call TASK -- -1 2"),
        (("add", "--nonsense"), 2, "No such option"),
        (("add", "-a", "[NaN, 1]"), 2, "it has no NaN"),
        (("add", "-k", '{"x": -Infinity}'), 2, "it has no -Infinity"),
        (
            ("add", "1", "2", "--serializer", "pickle"),
            1,
            "serializer='pickle' is not in accept_content ['json']",
        ),
        (("add", "1", "2", "--serializer", "jsno"), 1, "did you mean 'json'?"),
        (("add", "1", "2", "--task-id", ""), 1, "task_id='' must be printable text"),
        (("add", "1", "2", "--task-id", "a\nb"), 1, "must be printable text"),
        (("add", "1", "2", "--eta", "nan"), 2, "'nan' is not a time"),
        (("add", "1", "2", "--expires", "nan"), 2, "'nan' is not a time"),
    ],
)
def test_call_that_could_not_run_is_not_sent(existing_broker, run, arguments, code, words):
    result = run("call", *arguments)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
    assert run("queues", "--json").stdout.strip() == "[]"


def test_negative_arguments_go_after_two_dashes(tasks, run):
    assert run("call", "add", "--", "-1", "2").exit_code == 0


def test_result_explains_an_unknown_id(tasks, run, succeed):
    succeed("known", status="SUCCESS", result=float("nan"))
    result = run("result", "unknown")
    assert (result.exit_code, result.stdout) == (3, "PENDING\n")
    assert (
        "Nothing is stored for 'unknown': it is waiting or running, its result was ignored or has expired"
        in result.stderr
    )
    known = run("result", "known", "--json")
    assert json.loads(known.stdout, parse_constant=pytest.fail)["result"] is None
    assert "Nothing is stored" not in known.stderr
    assert run("result", " ").exit_code == 2


@pytest.mark.parametrize("settings", ["", ", task_ignore_result=True"])
@pytest.mark.parametrize("by_name", [[], ["--by-name"]])
def test_waiting_for_an_ignored_result_is_refused_before_sending(project, tasks, run, settings, by_name):
    option = "" if settings else "(ignore_result=True)"
    project(
        **{
            "tasks.py": f"""
            from qworker import QWorker
            app = QWorker("tasks"{settings})
            @app.task{option}
            def quiet(): ...
            """
        }
    )
    result = run("call", "tasks.quiet", "--wait", *by_name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "tasks.quiet ignores its result" in result.stderr
    assert find_app("tasks").app.queues() == []
    assert run("call", "tasks.quiet").exit_code == 0
