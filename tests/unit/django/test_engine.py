"""What Q_CLUSTER becomes: settings of qworker's worker, and the URL of its broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings

from qworker.django.clusters.engine import settings_of
from qworker.django.transports.opening import url_and_options

Cluster = Callable[..., None]


@pytest.mark.parametrize(
    ("keys", "setting", "value"),
    [
        ({"workers": 3}, "worker_concurrency", 3),
        ({"workers": 4}, "worker_prefetch_multiplier", 4),  # the square of the workers in all
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
def test_a_cache_of_django_redis_names_the_server(cluster: Cluster, location: Any) -> None:
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


def test_sqs_takes_its_credentials_from_where_boto_finds_them(cluster: Cluster) -> None:
    cluster(sqs={"endpoint_url": "https://queue.example:9324"})
    url, options = url_and_options("sqs")
    assert url == "sqs://queue.example:9324"
    assert options["broker_transport_options"] == {"visibility_timeout": 60, "is_secure": True}
