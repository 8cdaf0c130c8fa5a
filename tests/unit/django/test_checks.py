"""System checks: each reports its mistake, and nothing else."""

from __future__ import annotations

import sys

import pytest
from django.apps import apps
from django.conf import settings
from django.core.checks import run_checks
from django.core.checks.registry import registry
from django.test import override_settings

from qworker.django.checks import register

register()
DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
SHARED = {"default": {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "cache"}}


def ids(deploy: bool = False) -> list[str]:
    return sorted(message.id for message in run_checks(tags=["qworker"], include_deployment_checks=deploy))


def test_valid_project_has_no_messages(cluster, monkeypatch):
    cluster()
    assert ids() == []
    cluster(name="shop", workers=2, timeout=50, retry=60, orm="default", ALT_CLUSTERS={"mail": {"bulk": 5}})
    immediate = {**DATABASE, "OPTIONS": {"transaction_mode": "IMMEDIATE"}}
    monkeypatch.setattr(settings, "DATABASES", {"default": immediate})
    assert ids(deploy=True) == []


def test_checks_are_registered_once():
    before = len(registry.registered_checks)
    register()
    assert len(registry.registered_checks) == before


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"workers": 0}, ["E001"]),
        ({"ALT_CLUSTERS": {"a": {"workers": 0}}}, ["E001"]),
        ({"ALT_CLUSTERS": 5}, ["E001"]),
        ({"redis": 5}, ["E001"]),
        ({"broker_class": "no"}, ["E001"]),
        ({"timeout": 0, "retry": "x", "error_reporter": 5, "cached": "x"}, ["E001"] * 4),
        ({"redis": {}, "sqs": {}}, ["W004"]),
        ({"disque_nodes": ["h:1"]}, []),
        ({"disque_nodes": ["h:1", "h:x"]}, ["E001"]),
        ({"disque_auth": "x"}, ["E002"]),
        ({"iron_mq": {"project_id": "p", "token": "t"}, "bulk": 100}, []),
        ({"iron_mq": {"project_id": "p", "token": "t"}, "bulk": 101}, ["E011"]),
        ({"iron_mq": {"project_id": "p"}}, ["E002"]),
        ({"iron_mq": {"projet_id": "p"}}, ["E001"]),
        ({"mongo": {"hosts": "h"}}, ["E002"]),
        ({"mongo": {"host": ["mongodb://h", "mongodb://i"]}}, ["E002"]),
        ({"mongo": {"host": "redis://h"}}, ["E002"]),
        ({"broker_class": "nowhere.Broker"}, ["E002"]),
        ({"broker_class": "os.path.Broker"}, ["E002"]),
        ({"broker_class": "os.path"}, ["E002"]),
        ({"broker_class": "collections.OrderedDict"}, ["E002"]),
        ({"broker_class": "qworker.django.brokers.Broker", "redis": {}, "sqs": {}}, []),
        ({"ALT_CLUSTERS": {"a": {"mongo": {}}}}, []),
        ({"ALT_CLUSTERS": {"a": {"mongo": {}, "redis": {}}}}, ["W004"]),
        ({"orm": "replica"}, ["E004"]),
        ({"cache": "fast"}, ["E004"]),
        ({"retry": 60, "timeout": 60, "sqs": {}}, ["E010"]),
        ({"retry": 60, "timeout": 60, "disque_nodes": ["localhost:7711"]}, ["E010"]),
        ({"retry": 60, "timeout": 60, "iron_mq": {"token": "t", "project_id": "p"}}, ["E010"]),
        ({"retry": 60, "timeout": 90, "orm": "default"}, []),
        ({"retry": 60, "timeout": 90, "redis": {}}, []),
        ({"timeout": 90}, []),
        ({"timeout": 50, "retry": 60, "sqs": {}, "ALT_CLUSTERS": {"a": {"timeout": 100}}}, ["E010"]),
        ({"sqs": {}, "bulk": 11}, ["E011"]),
        ({"sqs": {}, "bulk": 10}, []),
        ({"error_reporter": {"nobodys": {}}}, ["E014"]),
        ({"cached": True}, ["E015"]),
        ({"wrokers": 1}, ["W001"]),
        ({"ALT_CLUSTERS": {"a": {"wrokers": 1}}}, ["W001"]),
        ({"ack_failure": True}, ["W002"]),
        ({"ALT_CLUSTERS": {"a": {"name": "b"}}}, ["W003"]),
    ],
)
def test_invalid_settings_are_reported(cluster, keys, found):
    cluster(**keys)
    assert ids() == [f"qworker.{name}" for name in found]


def test_setting_that_is_not_a_mapping_is_one_error():
    with override_settings(Q_CLUSTER=[]):
        assert set(ids()) == {"qworker.E001"}


def test_unknown_key_gets_a_suggestion(cluster):
    cluster(retyr=5)
    (message,) = run_checks(tags=["qworker"])
    assert message.msg == "Q_CLUSTER has the unknown key 'retyr'; did you mean 'retry'?"


def test_missing_client_library_is_named(cluster, monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    cluster(sqs={})
    (message,) = run_checks(tags=["qworker"])
    assert message.id == "qworker.E002"
    assert "Q_CLUSTER['sqs'] needs the package boto3: pip install" in message.msg


def test_broker_class_with_a_failing_import_is_reported(cluster, project):
    project(**{"my_broker.py": "import a_module_that_is_not_there\nclass Mine: pass\n"})
    cluster(broker_class="my_broker.Mine")
    assert ids() == ["qworker.E002"]


def test_installed_django_q_is_an_error(cluster, project):
    project(**{"django_q.py": ""})
    cluster()
    with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "django_q"]):
        assert apps.is_installed("django_q")
        assert ids() == ["qworker.E003"]


def test_cached_results_need_a_shared_cache(cluster):
    cluster(cached=60)
    with override_settings(CACHES=SHARED):
        assert ids() == []
    with override_settings(CACHES={"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}):
        assert ids() == ["qworker.E015"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, []),
        ({"CONN_MAX_AGE": 0}, []),
        ({"CONN_MAX_AGE": 60}, ["qworker.W013"]),
        ({"CONN_MAX_AGE": None}, ["qworker.W013"]),
        ({"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}, []),
        ({"OPTIONS": {"pool": True}}, ["qworker.W013"]),
        ({"OPTIONS": {"pool": {"min_size": 2}}, "CONN_HEALTH_CHECKS": True}, []),
        ({"OPTIONS": {"pool": False}}, []),
    ],
)
def test_persistent_connections_should_have_health_checks(cluster, monkeypatch, options, found):
    cluster()
    monkeypatch.setattr(settings, "DATABASES", {"default": {**DATABASE, **options}})
    assert ids() == found


def test_deployment_checks(cluster):
    cluster(sync=True, save_limit=0)
    assert ids() == []
    assert ids(deploy=True) == ["qworker.W033", "qworker.W034", "qworker.W035"]
    with override_settings(DEBUG=True):
        assert ids(deploy=True) == ["qworker.W034", "qworker.W035"]


@pytest.mark.parametrize(
    ("database", "found"),
    [
        (DATABASE, ["qworker.W035"]),
        ({**DATABASE, "OPTIONS": {"transaction_mode": "DEFERRED"}}, ["qworker.W035"]),
        ({**DATABASE, "OPTIONS": {"transaction_mode": "exclusive"}}, []),
        ({"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}, []),
    ],
)
def test_sqlite_transaction_mode_is_checked(cluster, monkeypatch, database, found):
    cluster()
    monkeypatch.setattr(settings, "DATABASES", {"default": database})
    assert ids(deploy=True) == found


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ["does not set 'ack_failures'", "does not configure a broker"]),
        ({"ack_failures": True}, ["does not configure a broker"]),
        ({"orm": "default"}, ["does not set 'ack_failures'"]),
        ({"ack_failures": False, "redis": {}}, []),
    ],
)
def test_changed_defaults_are_reported_to_django_q2_projects(cluster, monkeypatch, keys, expected):
    cluster(**keys)
    assert "qworker.W006" not in ids()
    monkeypatch.setattr(apps.get_app_config("qworker"), "label", "django_q")
    messages = [each.msg for each in run_checks(tags=["qworker"]) if each.id == "qworker.W006"]
    assert [part in message for part, message in zip(expected, messages, strict=True)] == [True] * len(
        expected
    )
