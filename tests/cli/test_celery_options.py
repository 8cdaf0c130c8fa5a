"""Command lines that were written for Celery: what is taken, and what is refused in a sentence."""

from __future__ import annotations

import pytest

from qworker.conf.unsupported import COMMANDS, OPTIONS_WITHOUT_EFFECT, WORKER_OPTIONS


@pytest.mark.parametrize("names", WORKER_OPTIONS)
def test_an_option_that_would_change_something_is_refused(tasks, run, names):
    for name in names.split("/"):
        for value in ((), ("2",)):
            result = run("worker", name, *value)
            assert result.exit_code == 2
            assert f"There is no {names} in qworker: {WORKER_OPTIONS[names]}." in result.stderr


@pytest.mark.parametrize("names", OPTIONS_WITHOUT_EFFECT)
def test_an_option_that_asks_for_what_is_so_anyhow_is_taken(tasks, run, names):
    value = ("fair",) if OPTIONS_WITHOUT_EFFECT[names] else ()
    result = run("worker", names.split("/")[0], *value, "-A", "nowhere_at_all")
    assert "there is no module 'nowhere_at_all'" in result.stderr  # it came as far as that
    assert names.split("/")[0] not in run("start", "--help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_of_celerys_says_what_there_is_instead(run, name):
    result = run(name)
    assert result.exit_code == 2
    assert f"There is no command '{name}' in qworker: {COMMANDS[name]}." in result.stderr


@pytest.mark.parametrize(
    ("setting", "code", "severity"), [("beat_scheduler", 1, "warning"), ("beat_sync_every", 0, "note")]
)
def test_config_check_fails_where_schedules_would_never_be_looked_at(
    tasks, run, monkeypatch, setting, code, severity
):
    monkeypatch.setenv(f"QWORKER_{setting.upper()}", "django_celery_beat.schedulers:DatabaseScheduler")
    result = run("config", "check")
    assert (result.exit_code, f"{severity}: {setting} has no effect: " in result.stdout) == (code, True)


def test_a_pool_of_greenlets_is_refused(tasks, run):
    assert "'gevent' is not one of" in run("worker", "-P", "gevent").stderr
