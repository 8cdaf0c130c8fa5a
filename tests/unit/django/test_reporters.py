"""Error reporters: plugins and Rollbar get errors, and their own failures do not affect tasks."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from qworker.django.execution.reporters import make_reporters, report_error, reporter_class
from qworker.errors import ConfigurationError

PLUGIN = """
import sys
MADE, TOLD = [], []
class Reporter:
    def __init__(self, **options):
        if options.get("broken"):
            raise RuntimeError("no such project")
        MADE.append(options)
        self.options = options
    def report(self):
        TOLD.append((self.options, sys.exc_info()[1]))
        if self.options.get("fails"):
            raise OSError("unreachable")
"""


@pytest.fixture
def plugin(project):
    """An installed package that provides three reporters."""
    directory = project(**{"a_reporter.py": PLUGIN})
    info = directory / "a_reporter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-reporter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[djangoq.errorreporters]\n"
        "one = a_reporter:Reporter\ntwo = a_reporter:Reporter\ngone = a_reporter:Nothing\n"
    )
    importlib.invalidate_caches()
    return importlib.import_module("a_reporter")


@pytest.fixture
def rollbar(monkeypatch):
    """A fake rollbar package that records the calls."""
    module = ModuleType("rollbar")
    module.__spec__ = ModuleSpec("rollbar", None)
    module.reports = []
    module.init = lambda *args, **options: module.reports.append((args, options))
    module.report_exc_info = lambda: module.reports.append(sys.exc_info()[1])
    monkeypatch.setitem(sys.modules, "rollbar", module)
    return module


def failing() -> ValueError:
    """Report an error while it is handled."""
    try:
        raise ValueError("what the task raised")
    except ValueError as error:
        report_error()
        return error


def test_no_reporters(cluster, caplog):
    cluster()
    failing()
    assert make_reporters() == ()
    assert caplog.messages == []


def test_all_plugins_get_the_error(cluster, plugin, caplog):
    cluster(error_reporter={"one": {"dsn": "a"}, "two": {"dsn": "b"}})
    errors = [failing(), failing()]
    assert [({"dsn": dsn}, error) for error in errors for dsn in "ab"] == plugin.TOLD
    assert plugin.MADE == [{"dsn": "a"}, {"dsn": "b"}]
    assert caplog.messages == []
    cluster(error_reporter={"one": {"dsn": "c"}})
    failing()
    assert plugin.MADE[2:] == [{"dsn": "c"}]


def test_failing_plugin_is_logged_and_others_get_the_error(cluster, plugin, caplog):
    cluster(error_reporter={"one": {"fails": True}, "two": {"dsn": "b"}})
    failing()
    assert [options for options, _ in plugin.TOLD] == [{"fails": True}, {"dsn": "b"}]
    assert caplog.messages == ["the error reporter Reporter failed"]


def test_plugin_that_cannot_be_created_is_logged_once_and_skipped(cluster, plugin, caplog):
    cluster(error_reporter={"tow": {}, "one": {"broken": True}, "gone": {}, "two": {"dsn": "b"}})
    failing()
    failing()
    assert len(plugin.TOLD) == 2
    assert [line.partition(" cannot")[0] for line in caplog.messages] == [
        "the error reporter tow",
        "the error reporter one",
        "the error reporter gone",
    ]
    assert "did you mean 'two'?" in caplog.messages[0]


def test_invalid_configuration_is_only_logged(cluster, caplog):
    cluster(error_reporter="sentry")
    failing()
    assert caplog.messages[0].startswith("errors are not reported: Q_CLUSTER['error_reporter'] is 'sentry'")


def test_rollbar_gets_errors_through_its_package(cluster, rollbar):
    cluster(rollbar={"access_token": "secret", "environment": "Django-Q", "root": "/srv"})
    error = failing()
    assert rollbar.reports == [(("secret", "Django-Q"), {"root": "/srv"}), error]


def test_rollbar_can_be_an_error_reporter(cluster, rollbar):
    cluster(error_reporter={"rollbar": {"access_token": "secret"}})
    error = failing()
    assert rollbar.reports == [(("secret", "production"), {}), error]


def test_missing_rollbar_package_is_logged(cluster, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "rollbar", None)
    cluster(rollbar={"access_token": "another"})
    failing()
    assert caplog.messages == [
        "the error reporter rollbar cannot be used: errors cannot be reported to Rollbar without its "
        "package: pip install rollbar"
    ]


def test_unknown_reporter_is_rejected():
    with pytest.raises(ConfigurationError, match=r"provides the error reporter 'rolbar'.* mean 'rollbar'"):
        reporter_class("rolbar")
