"""config check and doctor: settings that do not fit the broker, and problems that servers report."""

from __future__ import annotations

import json
import sys
import time

import pytest

from qworker.cli.servers import redis_facts, skew, version
from tests.servers import require

TASKS = """
from qworker import QWorker
app = QWorker("tasks", {settings})
@app.task({options})
def f(): ...
"""


@pytest.fixture
def check(project, run, monkeypatch):
    """Checks an app with these settings and this task; returns severity, setting and message of problems."""

    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def of(settings, options="", *arguments):
        project(**{"tasks.py": TASKS.format(settings=settings, options=options)})
        sys.modules.pop("tasks", None)  # from an earlier call
        result = run("config", "check", "--json", *arguments)
        return [
            (problem["severity"], problem["setting"], problem["message"])
            for problem in json.loads(result.stdout)
        ]

    return of


def about(problems, severity, words):
    return [message for found, _, message in problems if found == severity and words in message]


PLAIN = "broker='filesystem://', backend='disabled://'"
REDIS = "broker='redis://h', backend='redis://h'"
RABBITMQ = "broker='amqp://h', backend='disabled://'"


def test_embedded_broker_supports_everything(check):
    assert check("", "priority=3, autoretry_for=(ValueError,)") == []


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ("", "priority=3", "priorities are used (tasks.f)"),
        (", task_default_priority=2", "", "priorities are used (task_default_priority)"),
        (", task_routes={'a.*': {'queue': 'q', 'priority': 4}}", "", "priorities are used (task_routes a.*)"),
        ("", "autoretry_for=(ValueError,)", "retries are used, and each has a countdown (tasks.f)"),
    ],
)
def test_feature_that_the_broker_lacks_is_a_warning(check, settings, options, words):
    assert about(check(PLAIN + settings, options), "warning", words)
    assert not about(check(PLAIN), "warning", words)
    assert not about(check(REDIS + settings, options), "warning", words)


@pytest.mark.parametrize("url", ["redis://h", "postgresql://h/n", "sqlite:///q.db", "disque://h"])
def test_unused_transport_option_is_a_warning(check, url):
    given = f"broker='{url}', backend='disabled://', broker_transport_options="
    assert about(check(f"{given}{{'visibility_timout': 3}}"), "warning", "does not use visibility_timout")
    assert not about(check(f"{given}{{}}"), "warning", "does not use")


def test_missing_features_that_may_be_unused_are_notes(check):
    problems = check(PLAIN)
    assert about(problems, "note", "revoking tasks on Files")
    assert about(problems, "note", "countdown, ETA and retries on Files")


def test_priorities_on_rabbitmq_need_max_priority(check):
    assert about(check(RABBITMQ, "priority=3"), "warning", "task_queue_max_priority = 9")
    assert not about(check(RABBITMQ), "warning", "task_queue_max_priority")
    assert not about(check(RABBITMQ + ", task_queue_max_priority=9", "priority=3"), "warning", "priorities")


def test_missing_result_backend_is_a_note(check):
    words = "set result_backend"
    assert about(check("broker='nats://h'"), "note", words)
    assert not about(check("broker='nats://h', task_ignore_result=True"), "note", words)
    for url in ("sqlite:///x.db", "redis://h", "postgresql://h/d", "mysql://h/d"):
        assert not about(check(f"broker='{url}'"), "note", words)


def test_results_only_for_the_caller_are_a_note(check):
    words = "chords and graphs are refused"
    assert about(check("broker='amqp://h'"), "note", words)
    assert about(check("broker='amqp://h', backend='rpc://'"), "note", words)
    assert not about(check("broker='amqp://h', backend='redis://h'"), "note", words)
    assert not about(check("broker='amqp://h', task_ignore_result=True"), "note", words)


def test_unknown_stores_are_errors(check):
    assert about(check("broker='nonsense://h'"), "error", "nonsense://")
    assert about(check("broker='redis://h', backend='nonsense://h'"), "error", "nonsense://")
    assert about(check("broker='redis://h/words'"), "error", "the database is a number")


@pytest.mark.parametrize(
    ("limit", "told"), [("", False), (", task_time_limit=50", False), (", task_time_limit=61", True)]
)
def test_visibility_timeout_shorter_than_a_task_is_a_warning(check, limit, told):
    options = ", broker_transport_options={'visibility_timeout': 60}"
    assert bool(about(check(REDIS + options + limit), "warning", "visibility_timeout is 60 s")) is told
    assert about(check(REDIS + options, "time_limit=90"), "warning", "a task may run for 90 s")


def test_tls_without_verification_is_a_warning(check):
    words = "without verifying the certificate"
    assert about(check("broker='rediss://h?ssl_cert_reqs=none', backend='disabled://'"), "warning", words)
    use = ", broker_use_ssl={'ssl_cert_reqs': 'CERT_NONE'}"
    assert about(check("broker='rediss://h', backend='disabled://'" + use), "warning", words)
    assert not about(check("broker='rediss://h', backend='disabled://'"), "warning", words)


def test_unencrypted_password_is_a_note(check):
    problems = check("broker='redis://:secret@far/0', backend='disabled://'")
    (message,) = about(problems, "note", "unencrypted")
    assert "secret" not in message
    assert not about(
        check("broker='redis://:secret@localhost/0', backend='disabled://'"), "note", "unencrypted"
    )
    assert not about(check("broker='rediss://:secret@far/0', backend='disabled://'"), "note", "unencrypted")


def test_unreachable_server_is_an_error_with_connect(check):
    settings = "broker='redis://:secret@127.0.0.1:1/0', backend='disabled://'"
    assert not about(check(settings), "error", "")
    (message,) = about(check(settings, "", "--connect"), "error", "")
    assert "is unavailable" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("server", "product"),
    [
        ("redis", "Redis"),
        ("rabbitmq", "RabbitMQ"),
        ("postgresql", "PostgreSQL"),
        ("mysql", ("MariaDB", "MySQL")),
    ],
)
def test_real_servers_are_described(project, run, server, product):
    from qworker.cli.discovery import find_app
    from qworker.cli.servers import facts

    url = require(server)
    project(**{"tasks.py": TASKS.format(settings="", options="")})
    found = list(facts(url, "broker_url", find_app("tasks").app.conf))
    assert found[0].severity == "ok"
    assert found[0].what.startswith(product)
    assert not [fact for fact in found if fact.severity == "error"]


GOOD = {"redis_version": "7.0.15", "maxmemory_policy": "noeviction", "aof_enabled": "1", "role": "master"}


@pytest.mark.parametrize(
    ("info", "save", "allowed", "expected"),
    [
        ({}, "", False, []),
        ({"redis_version": "4.0.1"}, "", False, [("error", "too old")]),
        ({"valkey_version": "8.0.1", "redis_version": "7.2.4"}, "", False, []),
        ({"maxmemory_policy": "allkeys-lru"}, "", False, [("error", "it deletes messages")]),
        ({"maxmemory_policy": "allkeys-lru"}, "", True, [("warning", "it deletes messages")]),
        ({"maxmemory_policy": "volatile-ttl"}, "", False, [("warning", "it deletes results")]),
        ({"aof_enabled": "0"}, "", False, [("warning", "messages are only in memory")]),
        ({"aof_enabled": "0"}, "3600 1", False, [("warning", "snapshots only (save 3600 1)")]),
        ({"aof_enabled": "0"}, None, False, []),
        ({"role": "slave"}, "", False, [("error", "is a replica")]),
    ],
)
def test_redis_configuration_problems_are_reported(info, save, allowed, expected):
    found = [fact for fact in redis_facts("redis://h", GOOD | info, save, allowed) if fact.severity != "ok"]
    assert [fact.severity for fact in found] == [severity for severity, _ in expected]
    assert all(words in fact.what for fact, (_, words) in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("shift", "words"), [(0, None), (1.5, None), (5, "ahead of"), (-5, "behind"), (-7200, "2 h behind")]
)
def test_clock_skew_is_reported(shift, words):
    now = time.time()
    found = list(skew("h", now + shift, now - 0.1, now + 0.1))
    assert ([words in fact.what for fact in found] == [True]) if words else found == []


def test_unusual_version_numbers_are_parsed():
    for text, severity in (
        ("3.7.9", "error"),
        ("3.8", "ok"),
        ("3.12.1-rc.1", "ok"),
        ("", "ok"),
        ("odd", "ok"),
    ):
        assert [fact.severity for fact in version("h", "RabbitMQ", text, (3, 8))] == [severity]


@pytest.mark.parametrize(
    ("settings", "severity"),
    [("", "warning"), (", backend='disabled://'", "ok"), (", task_ignore_result=True", "ok")],
)
def test_doctor_reports_missing_results(project, run, settings, severity):
    project(**{"tasks.py": TASKS.format(settings=f"broker='nats://127.0.0.1:1'{settings}", options="")})
    findings = json.loads(run("doctor", "--json").stdout)
    assert [
        found["severity"]
        for found in findings
        if "no results" in found["what"] or "keeps none" in found["what"]
    ] == [severity]


def test_doctor_reports_an_unreachable_server_once(project, run):
    project(
        **{
            "tasks.py": TASKS.format(
                settings="broker='redis://127.0.0.1:1/0', backend='disabled://'", options=""
            )
        }
    )
    result = run("doctor", "--json")
    assert result.exit_code == 1
    errors = [found for found in json.loads(result.stdout) if found["severity"] == "error"]
    assert len(errors) == 1
    assert "127.0.0.1:1" in errors[0]["what"]


def test_doctor_on_a_broker_that_does_not_report_workers(project, run):
    project(**{"tasks.py": TASKS.format(settings="broker='memory://', backend='disabled://'", options="")})
    result = run("doctor", "--json")
    findings = [found["what"] for found in json.loads(result.stdout)]
    assert "this broker does not report its workers" in findings
    assert not [what for what in findings if what.startswith("no worker consumes")]
    assert result.exit_code == 0


# -- schedules --

SCHEDULE = "beat_schedule={'a': {'task': 'tasks.f', 'schedule': 5}%s}"


def test_valid_schedules_have_no_problems(check):
    assert check(SCHEDULE % "") == []


def test_wrong_entries_are_reported(check):
    found = check(SCHEDULE % ", 'b': {'task': 'tasks.f'}, 'c': {'task': 'tasks.g', 'schedule': '@daily'}")
    assert [(severity, setting) for severity, setting, _ in found] == [
        ("error", "beat_schedule"),
        ("warning", "beat_schedule"),
    ]
    assert "entry 'b' has no schedule" in found[0][2]
    assert "the entry 'c' calls 'tasks.g', which is not a task of this app" in found[1][2]


def test_schedule_stores_that_are_not_shared_are_reported(check):
    assert about(check(f"{PLAIN}, {SCHEDULE % ''}"), "warning", "no shared schedule store")
    assert not about(check(PLAIN), "warning", "no shared schedule store")
    explicit = check(f"{SCHEDULE % ''}, beat_store='memory://'")
    assert [severity for severity, _, _ in explicit] == ["note"]
    wrong = check("beat_store='mongodb://user:secret@h'")
    assert [(severity, setting) for severity, setting, _ in wrong] == [("error", "beat_store")]
    assert "secret" not in wrong[0][2]


def test_problem_found_by_two_checks_is_reported_once(check):
    settings = "broker='mongodb://127.0.0.1:1/db', backend='disabled://', broker_use_ssl=True"
    assert len(about(check(settings, "", "--connect"), "error", "broker_use_ssl is for")) == 1


def test_directory_for_counting_worker_deaths_on_rabbitmq_must_exist(check, monkeypatch, tmp_path):
    words = "how often a task killed its whole worker"
    rabbitmq = "broker='amqp://h', backend='redis://h'"
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert about(check(rabbitmq), "note", words)
    assert not about(check(REDIS), "note", words)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert not about(check(rabbitmq), "note", words)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert about(check(rabbitmq), "warning", words)
