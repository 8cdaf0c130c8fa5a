"""conf: defaults, sources of values, errors, the Conf of Django-Q, and masking of secrets."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import combinations

import pytest
from django.conf import settings
from django.test import override_settings
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from qworker.django.conf import Conf, conf, logger, prepare_logger, shown
from qworker.django.settings.cluster import CHOICES, choose
from qworker.django.settings.keys import FALLBACK_WORKERS, KEYS, SPELLINGS, processors
from qworker.django.settings.layers import masked, unknown_keys, wrong_values
from qworker.errors import ConfigurationError

MANUAL = {
    "name": "default",
    "cluster_name": "default",
    "workers": os.cpu_count(),
    "daemonize_workers": True,
    "recycle": 500,
    "timeout": None,
    "retry": 60,
    "ack_failures": True,
    "max_attempts": 0,
    "compress": False,
    "save_limit": 250,
    "save_limit_per": None,
    "guard_cycle": 0.5,
    "sync": False,
    "queue_limit": (os.cpu_count() or FALLBACK_WORKERS) ** 2,
    "label": "Django Q",
    "catch_up": True,
    "redis": None,
    "django_redis": None,
    "disque_nodes": None,
    "disque_auth": None,
    "disque_fastack": False,
    "iron_mq": None,
    "sqs": None,
    "orm": None,
    "mongo": None,
    "mongo_db": None,
    "broker_class": None,
    "bulk": 1,
    "poll": 0.2,
    "cache": "default",
    "cached": False,
    "scheduler": True,
    "error_reporter": {},
    "rollbar": None,
    "cpu_affinity": 0,
    "max_rss": None,
    "log_level": "INFO",
    "testing": False,
    "time_zone": "Europe/Amsterdam",
    "alt_clusters": {},
}


def test_defaults_match_the_manual(cluster):
    cluster()
    assert {name: getattr(conf, name) for name in KEYS} == MANUAL


@override_settings()
def test_missing_setting_means_defaults():
    del settings.Q_CLUSTER
    conf.reset()
    assert (conf.name, conf.retry) == ("default", 60)


def test_derived_defaults_follow_their_sources(cluster):
    cluster(name="shop", workers=3)
    assert (conf.cluster_name, conf.prefix, conf.queue_limit) == ("shop", "shop", 9)
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        assert conf.time_zone == "Asia/Tokyo"
    assert conf.time_zone == "Europe/Amsterdam"


def test_mutable_defaults_are_not_shared(cluster):
    cluster()
    conf.error_reporter["x"] = 1
    conf.reset()
    assert conf.error_reporter == {}


def test_values_are_cached_until_the_setting_changes(cluster):
    cluster(workers=2, ALT_CLUSTERS={"mail": {"retry": 70}})
    other = conf.of("mail")
    assert (conf.workers, other.workers, other.retry) == (2, 2, 70)
    assert vars(conf)["workers"] == 2
    with override_settings(Q_CLUSTER={"workers": 5}):
        assert (conf.workers, other.workers, other.retry) == (5, 5, 60)
    assert (conf.workers, other.retry) == (2, 70)


def test_changes_of_other_settings_keep_the_cache(cluster):
    cluster(workers=2)
    assert conf.workers == 2
    with override_settings(DEBUG=True):
        assert "workers" in vars(conf)


def test_unknown_attribute_raises_attribute_error():
    with pytest.raises(AttributeError, match="no 'worker'; did you mean 'workers'"):
        _ = conf.worker
    assert not hasattr(conf, "zzzzz")


def test_number_of_processors_has_fallbacks():
    def ignorant() -> None:
        return None

    def unable() -> int:
        raise NotImplementedError

    assert processors([ignorant, unable, lambda: 7, lambda: 8]) == 7
    assert processors([ignorant, unable]) == 4
    assert processors() == os.cpu_count()


# -- several clusters --


def test_alternative_cluster_overrides_values(cluster):
    cluster(name="shop", timeout=30, retry=40, ALT_CLUSTERS={"long": {"timeout": 3600, "retry": 4000}})
    long = conf.of("long")
    assert (long.timeout, long.retry, long.cluster_name, long.name) == (3600, 4000, "long", "shop")
    assert (conf.timeout, conf.cluster_name) == (30, "shop")
    assert conf.of("long") is long
    assert conf.of(None) is conf
    assert conf.is_given("timeout")
    assert not conf.is_given("workers")


def test_undeclared_cluster_differs_only_in_its_queue(cluster):
    cluster(name="shop", timeout=30)
    assert (conf.of("mail").cluster_name, conf.of("mail").timeout) == ("mail", 30)


def test_all_clusters_share_one_salt(cluster):
    cluster(name="shop", ALT_CLUSTERS={"long": {"name": "other", "cluster_name": "third"}})
    assert (conf.of("long").prefix, conf.of("long").name, conf.of("long").cluster_name) == (
        "shop",
        "shop",
        "long",
    )


def test_environment_variable_selects_the_cluster(cluster, monkeypatch):
    cluster(name="shop", cluster_name="front", timeout=30, ALT_CLUSTERS={"long": {"timeout": 3600}})
    assert (conf.cluster_name, conf.timeout) == ("front", 30)
    monkeypatch.setenv("Q_CLUSTER_NAME", "long")
    assert conf.cluster_name == "front"
    conf.reset()
    assert (conf.cluster_name, conf.timeout, conf.prefix) == ("long", 3600, "shop")
    assert conf.of("mail").timeout == 30


# -- values of keys --


@pytest.mark.parametrize(
    ("key", "given", "read"),
    [
        ("workers", "8", 8),
        ("timeout", timedelta(minutes=2), 120),
        ("timeout", "2.5", 2.5),
        ("timeout", None, None),
        ("guard_cycle", 59.9, 59.9),
        ("save_limit", -1, -1),
        ("cached", 60, 60),
        ("cached", True, True),
        ("cached", 0, False),
        ("redis", "rediss://host/1", "rediss://host/1"),
        ("redis", {"host": "h"}, {"host": "h"}),
        ("log_level", "debug", "DEBUG"),
        ("log_level", 15, 15),
        ("time_zone", "UTC", "UTC"),
        ("disque_nodes", "a:1,b:2", ("a:1", "b:2")),
        ("disque_nodes", ["[::1]:7711", "b"], ("[::1]:7711", "b")),
        ("iron_mq", {"host": None, "token": "x", "port": "443"}, {"token": "x", "port": "443"}),
        ("sync", "yes", True),
        ("broker_class", "myapp.broker.CustomBroker", "myapp.broker.CustomBroker"),
    ],
)
def test_valid_values_are_converted(cluster, key, given, read):
    cluster(**{key: given})
    assert getattr(conf, key) == read
    assert type(getattr(conf, key)) is type(read)
    assert wrong_values() == []


@pytest.mark.parametrize(
    ("key", "given", "takes"),
    [
        ("workers", 0, "a whole number, 1 or more"),
        ("workers", True, "a whole number, 1 or more"),
        ("workers", None, "a whole number, 1 or more"),
        ("recycle", 0, "1 or more"),
        ("timeout", 0, "seconds, more than 0"),
        ("timeout", -1, "seconds, more than 0"),
        ("retry", "soon", "seconds, more than 0"),
        ("retry", float("nan"), "seconds, more than 0"),
        ("guard_cycle", 60, "less than 60"),
        ("guard_cycle", 0, "more than 0"),
        ("save_limit", -2, "-1 or more"),
        ("save_limit_per", "hook", '"group", "name" or "func"'),
        ("save_limit_per", [], '"group", "name" or "func"'),
        ("queue_limit", 1.5, "whole number"),
        ("cached", "forever", "true, false, or the seconds"),
        ("cached", 0.5, "true, false, or the seconds"),
        ("redis", "http://host", "a redis://, rediss:// or unix:// URL"),
        ("redis", 5, "a redis://, rediss:// or unix:// URL"),
        ("disque_nodes", [], "a list of nodes"),
        ("disque_nodes", [""], "a list of nodes"),
        ("disque_nodes", ["h:0"], "a list of nodes"),
        ("disque_nodes", ["h:99999"], "a list of nodes"),
        ("disque_nodes", ["disque://h:1"], "a list of nodes"),
        ("mongo_db", "a.b", "must be a name"),
        ("mongo_db", "x" * 64, "must be a name"),
        ("log_level", "LOUD", "a logging level"),
        ("log_level", True, "a logging level"),
        ("time_zone", "Mars/Olympus", "a time zone"),
        ("broker_class", "CustomBroker", "the dotted path of a class"),
        ("broker_class", "my app.Broker", "the dotted path of a class"),
        ("ALT_CLUSTERS", {"a": 1}, "a mapping of names to mappings"),
        ("error_reporter", "rollbar", "a mapping of names to mappings"),
        ("sync", "perhaps", "true or false"),
        ("label", "", "a non-empty string"),
    ],
)
def test_invalid_value_is_rejected_with_key_and_value(cluster, key, given, takes):
    cluster(**{key: given})
    with pytest.raises(ConfigurationError) as caught:
        getattr(conf, key.lower())
    assert str(caught.value).startswith(f"Q_CLUSTER['{key}'] is {given!r}, but must be ")
    assert takes in str(caught.value)
    assert caught.value.setting == key
    assert [mistake.key for mistake in wrong_values()] == [key]
    assert conf.bulk == 1  # other keys are unaffected


@pytest.mark.parametrize(
    ("key", "given", "words"),
    [
        ("disque_nodes", [":hunter2@h:1"], "the password in disque_auth"),
        ("iron_mq", 5, "but must be a mapping with host, port"),
        (
            "iron_mq",
            {"projectid": "p", "token": "hunter2"},
            "has the unknown option 'projectid'; did you mean 'project_id'",
        ),
        ("iron_mq", {"config_file": "x"}, "it can have host, port, protocol, project_id, token"),
        ("iron_mq", {"host": "https://h"}, "'host' must be a host name"),
        ("iron_mq", {"port": "x"}, "'port' must be a port number"),
        ("iron_mq", {"protocol": "ftp"}, '\'protocol\' must be "https" or "http"'),
        ("iron_mq", {"token": 5}, "'token' must be text"),
        ("iron_mq", {"api_version": 1}, "'api_version' must be 3"),
    ],
)
def test_errors_in_broker_options_hide_secrets(cluster, key, given, words):
    cluster(**{key: given})
    with pytest.raises(ConfigurationError, match=re.escape(words)) as caught:
        getattr(conf, key)
    assert str(caught.value).startswith(f"Q_CLUSTER['{key}'] is ")
    assert "hunter2" not in str(caught.value)
    assert caught.value.setting == key


def test_invalid_value_of_an_alternative_cluster_names_it(cluster):
    cluster(ALT_CLUSTERS={"long": {"retry": 0}})
    assert conf.retry == 60
    with pytest.raises(ConfigurationError, match=r"Q_CLUSTER\['ALT_CLUSTERS'\]\['long'\]\['retry'\] is 0"):
        _ = conf.of("long").retry
    assert [mistake.key for mistake in wrong_values()] == ["retry"]


@pytest.mark.parametrize("given", [[("workers", 2)], "workers=2", 5])
def test_setting_that_is_not_a_mapping_is_rejected(given):
    with override_settings(Q_CLUSTER=given):
        with pytest.raises(ConfigurationError, match="must be a mapping"):
            _ = conf.workers
        assert [mistake.key for mistake in wrong_values()] == ["Q_CLUSTER"]


def test_invalid_secret_is_not_shown(cluster):
    cluster(disque_auth=["hunter2"])
    with pytest.raises(ConfigurationError) as caught:
        _ = conf.disque_auth
    assert "hunter2" not in str(caught.value)


def test_label_can_be_lazily_translated(cluster):
    label = gettext_lazy("Tasks")
    cluster(label=label)
    assert conf.label is label
    assert shown()["LABEL"] == "Tasks"


values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()))


@given(st.sampled_from(sorted(KEYS)), values)
def test_arbitrary_values_are_accepted_or_rejected_with_a_message(name, given):
    key = KEYS[name]
    with override_settings(Q_CLUSTER={key.name: given}):
        mistakes = wrong_values()
        if not mistakes:
            getattr(conf, name)
            return
        with pytest.raises(ConfigurationError, match=f"{key.name}.* must "):
            getattr(conf, name)
        assert [mistake.key for mistake in mistakes] == [key.name]


# -- unknown keys --


def test_unknown_keys_are_logged_once_with_suggestions(cluster, caplog):
    keys = {"wokrers": 2, "TIMEOUT": 5, "qqqq": 1, "ALT_CLUSTERS": {"a": {"retyr": 1}}}
    with caplog.at_level(logging.WARNING, "django-q"):
        cluster(**keys)
        assert conf.workers == os.cpu_count()
        assert conf.bulk == 1
        cluster(**keys, bulk=2)
        assert conf.bulk == 2
    assert caplog.messages == [
        "Q_CLUSTER has the unknown key 'wokrers'; did you mean 'workers'?",
        "Q_CLUSTER has the unknown key 'TIMEOUT'; did you mean 'timeout'?",
        "Q_CLUSTER has the unknown key 'qqqq'",
        "Q_CLUSTER['ALT_CLUSTERS']['a'] has the unknown key 'retyr'; did you mean 'retry'?",
    ]
    assert [mistake.key for mistake in unknown_keys()] == ["wokrers", "TIMEOUT", "qqqq", "retyr"]


def test_alternative_spellings_are_accepted(cluster):
    cluster(compressed=True, ack_failure=False, alt_clusters={"a": {"bulk": 2}})
    assert (conf.compress, conf.ack_failures, conf.of("a").bulk) == (True, False, 2)
    assert unknown_keys() == []
    cluster(compressed=True, compress=False)
    assert conf.compress is False
    assert set(SPELLINGS.values()) <= {key.name for key in KEYS.values()}


# -- brokers --


@pytest.mark.parametrize(
    ("keys", "broker"),
    [
        ({}, "orm"),
        ({"orm": "other"}, "orm"),
        ({"redis": {}}, "redis"),
        ({"redis": None}, "orm"),
        ({"redis": "redis://h"}, "redis"),
        ({"django_redis": "default"}, "redis"),
        ({"sqs": {}}, "sqs"),
        ({"disque_nodes": ["h:1"], "disque_auth": "x", "disque_fastack": True}, "disque"),
        ({"iron_mq": {}}, "ironmq"),
        ({"mongo": {}, "mongo_db": "queues"}, "mongo"),
        ({"mongo_db": None, "disque_auth": None, "disque_fastack": False}, "orm"),
        ({"broker_class": "a.B", "mongo_db": "mine"}, "custom"),
        ({"broker_class": "a.B"}, "custom"),
        ({"broker_class": "a.B", "redis": {}, "sqs": {}}, "custom"),
    ],
)
def test_configured_broker_is_chosen(cluster, keys, broker):
    cluster(**keys)
    assert conf.broker == broker


VALUES = {
    "orm": "default", "redis": {"host": "h"}, "django_redis": "default", "sqs": {"aws_region": "r"},
    "disque_nodes": ["h:1"], "iron_mq": {"host": "h"}, "mongo": {"host": "h"},
}  # fmt: skip
ORDER_OF_DJANGO_Q2 = ("disque_nodes", "iron_mq", "sqs", "orm", "mongo", "django_redis", "redis")


@pytest.mark.parametrize(("first", "second"), list(combinations(ORDER_OF_DJANGO_Q2, 2)))
def test_order_of_brokers_is_that_of_django_q2(cluster, first, second):
    assert set(ORDER_OF_DJANGO_Q2) == {choice.key for choice in CHOICES} == VALUES.keys()
    for keys in ((first, second), (second, first)):
        cluster(**{key: VALUES[key] for key in keys})
        assert choose(conf).key == first


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"iron_mq": {}, "orm": "default"}, "orm"),
        ({"mongo": {}, "redis": {"host": "h"}}, "redis"),
        ({"mongo": {}, "redis": {}}, "mongo"),
        ({"sqs": {}, "orm": "default"}, "sqs"),
        ({"orm": "default", "mongo": {"host": "h"}, "mongo_db": "queues"}, "orm"),
    ],
)
def test_empty_mapping_has_lower_precedence_as_in_django_q2(cluster, keys, key):
    cluster(**keys)
    assert choose(conf).key == key


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({"mongo_db": "queues"}, "mongo_db", "the broker is Django's database: set 'mongo' to use MongoDB"),
        ({"disque_auth": "hunter2", "redis": {}}, "disque_auth", "the broker is Redis: set 'disque_nodes'"),
        ({"disque_fastack": True, "mongo": {}}, "disque_fastack", "remove 'disque_fastack'"),
    ],
)
def test_key_of_another_broker_is_rejected(cluster, keys, key, words):
    cluster(**keys)
    with pytest.raises(ConfigurationError, match=words) as caught:
        _ = conf.broker
    assert caught.value.setting == key
    assert "hunter2" not in str(caught.value)


def test_all_brokers_have_a_key():
    assert {choice.key for choice in CHOICES} <= KEYS.keys()


# -- the Conf of Django-Q --


def test_conf_has_upper_case_attributes(cluster):
    cluster(name="shop", workers=3, compress=True)
    assert (Conf.WORKERS, Conf.QUEUE_LIMIT, Conf.PREFIX, Conf.CLUSTER_NAME) == (3, 9, "shop", "shop")
    assert (Conf.COMPRESSED, Conf.RETRY, Conf.SAVE_LIMIT, Conf.REDIS) == (True, 60, 250, {})
    assert (Conf.Q_STAT, Conf.SECRET_KEY) == ("django_q:shop:cluster", settings.SECRET_KEY)
    assert Conf.conf == {"name": "shop", "workers": 3, "compress": True}
    assert (Conf.IDLE, Conf.STOPPED) == ("Idle", "Stopped")
    assert Conf.SIGNAL_NAMES[signal.SIGTERM] == "SIGTERM"
    assert {name for name in KEYS if not hasattr(Conf, name.upper())} == set()


def test_conf_has_no_other_attributes():
    for name in ("workers", "ZZZ", "Workers"):
        with pytest.raises(AttributeError, match=name):
            getattr(Conf, name)


def test_attribute_set_on_conf_holds_until_it_is_deleted(cluster):
    cluster(name="shop", workers=3, ALT_CLUSTERS={"mail": {"workers": 1}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Conf, "WORKERS", 2)
        patch.setattr(Conf, "PREFIX", "other")
        patch.setattr(Conf, "COMPRESSED", True)
        patch.setattr(Conf, "SECRET_KEY", "OOPS")
        assert (Conf.WORKERS, conf.workers, conf.of("mail").workers, Conf.QUEUE_LIMIT) == (2, 2, 2, 4)
        assert (conf.prefix, conf.compress, conf.secret_key) == ("other", True, "OOPS")
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Conf, "WORKERS", 9)
            assert conf.workers == 9
        assert conf.workers == 2
    assert (Conf.WORKERS, conf.workers, conf.of("mail").workers) == (3, 3, 1)
    assert (conf.prefix, conf.compress, conf.secret_key) == ("shop", False, settings.SECRET_KEY)
    Conf.SYNC = True
    assert conf.sync
    del Conf.SYNC
    assert not Conf.SYNC


# -- the log --


@contextmanager
def bare() -> Iterator[None]:
    """Reset the logger as in a project whose LOGGING does not mention it, without the handlers of pytest."""
    before = (logger.level, logger.handlers[:], logger.propagate)
    logger.setLevel(logging.NOTSET)
    logger.handlers[:] = []
    logger.propagate = False
    try:
        yield
    finally:
        logger.setLevel(before[0])
        logger.handlers[:], logger.propagate = before[1:]


def test_logger_gets_a_console_handler_by_default(cluster):
    cluster(log_level="WARNING")
    with bare():
        prepare_logger()
        prepare_logger()
        assert logger.level == logging.WARNING
        (console,) = logger.handlers
    assert type(console) is logging.StreamHandler
    record = logging.LogRecord("django-q", logging.INFO, "f", 1, "%s ready", ("it is",), None)
    line = console.format(record)
    assert line[2] == line[5] == ":"
    assert line[8:] == " [Q] INFO it is ready"


def test_configured_logger_is_not_changed(cluster):
    cluster(log_level="WARNING")
    own = logging.NullHandler()
    with bare():
        logger.addHandler(own)
        logger.setLevel(logging.DEBUG)
        prepare_logger()
        assert (logger.handlers, logger.level) == ([own], logging.DEBUG)


# -- masking --


def test_secrets_are_masked(cluster):
    cluster(
        redis={"host": "h", "password": "s-one", "pool": object()},
        sqs={"aws_region": "eu", "aws_secret_access_key": "s-two", "aws_session_token": 3333},
        iron_mq={"token": "s-four", "host": "h"},
        mongo={"host": "mongodb://u:s-five@h/db"},
        disque_auth="s-six",
        rollbar={"access_token": "s-seven", "environment": "test"},
        error_reporter={"sentry": {"dsn": "https://s-eight@host/1", "api_key": b"s-nine"}},
    )
    visible = shown()
    text = repr(visible)
    assert "s-" not in text
    assert "3333" not in text
    assert settings.SECRET_KEY not in text
    assert visible["REDIS"] == {"host": "h", "password": "********", "pool": "<object>"}
    assert visible["ROLLBAR"]["environment"] == "test"
    assert visible["MONGO"] == {"host": "mongodb://u:********@h/db"}
    assert visible["SECRET_KEY"] == "********"
    assert visible["RETRY"] == 60
    assert visible["BROKER"].startswith("(Q_CLUSTER")
    assert list(visible) == sorted(visible)
    assert {name.upper() for name in KEYS} <= visible.keys()


def test_password_of_a_redis_url_is_masked(cluster):
    cluster(redis="redis://user:hunter2@host/0")
    assert shown()["REDIS"] == "redis://user:********@host/0"


def test_other_values_are_not_masked():
    assert masked("sync", False) is False
    assert masked("disque_auth", None) is None
    assert masked("disque_nodes", ("a:1", "b:2")) == ["a:1", "b:2"]


def test_password_before_an_address_is_masked():
    assert masked("disque_nodes", ["hunter2@a:1"]) == ["********@a:1"]
    assert masked("mongo", {"host": ["u:p@ss@a"]}) == {"host": ["********@a"]}
