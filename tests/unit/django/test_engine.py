"""Conversion of Q_CLUSTER to the settings of a worker and the URL of its broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings

from qworker.django.clusters.engine import settings_of
from qworker.django.transports.opening import url_and_options
from qworker.errors import ConfigurationError

Cluster = Callable[..., None]


@pytest.mark.parametrize(
    ("keys", "setting", "value"),
    [
        ({"workers": 3}, "worker_concurrency", 3),
        ({"workers": 4}, "worker_prefetch_multiplier", 4),  # the square of the number of workers in total
        ({"workers": 4, "queue_limit": 50}, "worker_prefetch_multiplier", 13),
        ({"workers": 4, "queue_limit": 1}, "worker_prefetch_multiplier", 1),
        ({"recycle": 7}, "worker_max_tasks_per_child", 7),
        ({}, "worker_max_tasks_per_child", 500),
        ({"max_rss": 100_000}, "worker_max_memory_per_child", 100_000),
        ({}, "worker_max_memory_per_child", None),
        ({"timeout": 60}, "task_time_limit", 60),
        ({}, "task_time_limit", None),
        ({"name": "shop"}, "task_default_queue", "shop"),
    ],
)
def test_keys_become_settings(cluster: Cluster, keys: dict[str, Any], setting: str, value: Any) -> None:
    cluster(**keys)
    assert settings_of()[setting] == value


@pytest.mark.parametrize(
    ("redis", "url"),
    [
        ({}, "redis://localhost:6379/0"),
        ({"host": "cache", "port": 6380, "db": 2}, "redis://cache:6380/2"),
        ({"password": "a/b"}, "redis://:a%2Fb@localhost:6379/0"),
        ({"username": "me", "password": "x", "ssl": True}, "rediss://me:x@localhost:6379/0"),
        ({"unix_socket_path": "/run/redis.sock", "db": 1}, "redis+socket:///run/redis.sock?virtual_host=1"),
        ({"socket_timeout": None, "charset": "utf-8", "errors": "strict"}, "redis://localhost:6379/0"),
        ("redis://cache:6379/3", "redis://cache:6379/3"),
    ],
)
def test_options_of_redis_become_a_url(cluster: Cluster, redis: Any, url: str) -> None:
    cluster(redis=redis)
    assert url_and_options("redis") == (url, {})


@pytest.mark.parametrize("location", ["redis://cache:6379/1", ["redis://cache:6379/1", "redis://b:6379/1"]])
def test_django_redis_cache_names_the_server(cluster: Cluster, location: Any) -> None:
    cluster(django_redis="fast")
    with override_settings(
        CACHES={"fast": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}}
    ):
        assert url_and_options("redis")[0] == "redis://cache:6379/1"


def test_options_of_sqs_become_a_url_and_options(cluster: Cluster) -> None:
    keys = {"aws_access_key_id": "me", "aws_secret_access_key": "a/b"}
    cluster(sqs={"aws_region": "us-east-1", "receive_message_wait_time_seconds": 20, **keys}, retry=90)
    url, options = url_and_options("sqs")
    assert url == "sqs://me:a%2Fb@"
    assert options["broker_transport_options"] == {
        "visibility_timeout": 90, "region": "us-east-1", "wait_time_seconds": 20
    }  # fmt: skip


def test_sqs_credentials_are_left_to_boto3(cluster: Cluster) -> None:
    cluster(sqs={"endpoint_url": "https://queue.example:9324"})
    url, options = url_and_options("sqs")
    assert url == "sqs://queue.example:9324"
    assert options["broker_transport_options"] == {"visibility_timeout": 60, "is_secure": True}


# -- MongoDB --


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, "mongodb://localhost/django-q"),
        ({"host": "127.0.0.1", "port": 27018}, "mongodb://127.0.0.1:27018/django-q"),
        ({"host": ["a", "b:2", "[::1]"], "port": 1}, "mongodb://a:1,b:2,[::1]:1/django-q"),
        ({"host": ["mongodb://a,b/shop?w=1"]}, "mongodb://a,b/shop?w=1"),
        ({"host": "mongodb://a/shop", "port": 1}, "mongodb://a:1/shop"),
        ({"host": "mongodb+srv://a.example", "port": 1}, "mongodb+srv://a.example/django-q"),
        ({"host": "/run/mongodb.sock", "port": 1}, "mongodb://%2Frun%2Fmongodb.sock/django-q"),
        ({"username": "me", "password": "a/b@c"}, "mongodb://me:a%2Fb%40c@localhost/django-q?authSource=admin"),
        ({"host": "mongodb://u:p@a"}, "mongodb://u:p@a/django-q?authSource=admin"),
        ({"host": "mongodb://u:p@a/shop"}, "mongodb://u:p@a/shop?authSource=shop"),
        ({"host": "mongodb://u:p@a/shop", "password": "x"}, "mongodb://u:x@a/shop?authSource=shop"),
        ({"host": "mongodb://u:p@a/?authSource=b&w=1"}, "mongodb://u:p@a/django-q?authSource=b&w=1"),
        ({"host": "mongodb://u:p@a", "authSource": "b"}, "mongodb://u:p@a/django-q"),
        ({"host": "mongodb://u@a/?authMechanism=MONGODB-X509"}, "mongodb://u@a/django-q?authMechanism=MONGODB-X509"),
        (
            {"username": "u", "password": "p", "authMechanism": "PLAIN"},
            "mongodb://u:p@localhost/django-q?authSource=$external",
        ),
    ],
)  # fmt: skip
def test_options_of_mongo_become_a_url_with_a_database(
    cluster: Cluster, given: dict[str, Any], url: str
) -> None:
    cluster(mongo=given)
    assert url_and_options("mongo")[0] == url


def test_mongo_db_overrides_the_database_but_not_the_auth_source(cluster: Cluster) -> None:
    cluster(mongo={"host": "mongodb://u:p@a/shop"}, mongo_db="queues")
    assert url_and_options("mongo")[0] == "mongodb://u:p@a/queues?authSource=shop"


def test_other_mongo_options_are_passed_to_pymongo(cluster: Cluster) -> None:
    left = {"tls": True, "replicaSet": "rs", "serverSelectionTimeoutMS": 5000}
    cluster(mongo={"connect": False, "tz_aware": True, "appname": None, **left})
    assert url_and_options("mongo")[1] == {"broker_transport_options": left}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hosts": "a"}, "Unknown option: hosts"),
        ({"maxPoolSize": "many"}, "maxPoolSize must be an integer"),
        ({"port": 99999}, "between 0 and 65535"),
        ({"host": "mongodb://u:hunter2:x@a"}, "must be escaped"),
        ({"host": ""}, "Empty host"),
        ({"host": ["mongodb://a", "mongodb://u:hunter2@b"]}, "which contains all hosts"),
        ({"host": "http://u:hunter2@a"}, "must be one mongodb:// or"),
        ({"host": 5}, "'host' must be a name"),
        ({"tlsCAFile": "/nowhere.pem", "password": "hunter2", "username": "u"}, "nowhere.pem"),
    ],
)
def test_invalid_mongo_options_are_rejected(cluster: Cluster, given: dict[str, Any], words: str) -> None:
    cluster(mongo=given)
    with pytest.raises(ConfigurationError, match=words) as caught:
        url_and_options("mongo")
    assert str(caught.value).startswith("Q_CLUSTER['mongo']: ")
    assert caught.value.setting == "mongo"
    assert "hunter2" not in str(caught.value)


# -- Disque and IronMQ --


def test_nodes_of_disque_become_a_url_and_options(cluster: Cluster) -> None:
    cluster(disque_nodes=["127.0.0.1:7711", "b"], disque_auth="a/b", disque_fastack=True, retry=1.5)
    url, options = url_and_options("disque")
    assert url == "disque://:a%2Fb@127.0.0.1:7711,b"
    assert options["broker_transport_options"] == {"retry": 2, "ttl": 30 * 86400, "fastack": True}
    cluster(disque_nodes=["a"], retry=30 * 86400)
    url, options = url_and_options("disque")
    assert url == "disque://a"
    assert options["broker_transport_options"]["ttl"] == 4 * 30 * 86400


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"host": "mq-aws-us-east-1.iron.io"}, "ironmq://p:a%2Fb@mq-aws-us-east-1.iron.io"),
        ({}, "ironmq://p:a%2Fb@"),
        ({"host": "h", "port": 8080, "protocol": "http", "api_version": 3}, "ironmq+http://p:a%2Fb@h:8080"),
    ],
)
def test_options_of_ironmq_become_a_url_and_options(cluster: Cluster, given: Any, url: str) -> None:
    cluster(iron_mq={"project_id": "p", "token": "a/b", **given}, retry=90)
    assert url_and_options("ironmq") == (url, {"broker_transport_options": {"visibility_timeout": 90}})


def test_ironmq_credentials_can_come_from_the_environment(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(iron_mq={"token": "hunter2", "host": "h"})
    with pytest.raises(ConfigurationError, match=r"Q_CLUSTER\['iron_mq'\] needs 'project_id'") as caught:
        url_and_options("ironmq")
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("IRON_MQ_PROJECT_ID", "p")
    assert url_and_options("ironmq")[0] == "ironmq://:hunter2@h"
