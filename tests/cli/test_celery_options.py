"""Command lines written for Celery: which options are accepted, and which are refused with an explanation."""

from __future__ import annotations

import pytest

from qworker.conf.unsupported import COMMANDS, OPTIONS_WITHOUT_EFFECT, WORKER_OPTIONS


@pytest.mark.parametrize("names", WORKER_OPTIONS)
def test_unsupported_worker_option_is_refused(tasks, run, names):
    for name in names.split("/"):
        for value in ((), ("2",)):
            result = run("worker", name, *value)
            assert result.exit_code == 2
            assert f"There is no {names} in qworker: {WORKER_OPTIONS[names]}." in result.stderr


@pytest.mark.parametrize("names", OPTIONS_WITHOUT_EFFECT)
def test_worker_option_without_effect_is_accepted(tasks, run, names):
    value = ("fair",) if OPTIONS_WITHOUT_EFFECT[names] else ()
    result = run("worker", names.split("/")[0], *value, "-A", "nowhere_at_all")
    assert "there is no module 'nowhere_at_all'" in result.stderr  # parsing succeeded
    assert names.split("/")[0] not in run("start", "--help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_celery_command_names_its_replacement(run, name):
    result = run(name)
    assert result.exit_code == 2
    assert f"There is no command '{name}' in qworker: {COMMANDS[name]}." in result.stderr


@pytest.mark.parametrize(
    ("setting", "code", "severity"), [("beat_scheduler", 1, "warning"), ("beat_sync_every", 0, "note")]
)
def test_config_check_fails_for_schedulers_that_are_not_supported(
    tasks, run, monkeypatch, setting, code, severity
):
    monkeypatch.setenv(f"QWORKER_{setting.upper()}", "django_celery_beat.schedulers:DatabaseScheduler")
    result = run("config", "check")
    assert (result.exit_code, f"{severity}: {setting} has no effect: " in result.stdout) == (code, True)


def test_gevent_pool_is_refused(tasks, run):
    assert "'gevent' is not one of" in run("worker", "-P", "gevent").stderr
