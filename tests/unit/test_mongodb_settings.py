"""``mongodb_backend_settings``: Celery's names for the location of results in MongoDB."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.backends.mongodb import located
from qworker.errors import ConfigurationError

URL = "mongodb://me:word@one:1,two/results?replicaSet=rs0"


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, URL),
        ({"host": "db"}, "mongodb://me:word@db:27017/results?replicaSet=rs0"),
        ({"port": 27018}, "mongodb://me:word@localhost:27018/results?replicaSet=rs0"),
        ({"host": ["a", "b:5"], "port": 7}, "mongodb://me:word@a:7,b:5/results?replicaSet=rs0"),
        ({"mongo_host": ["a:1", "b:2"]}, "mongodb://me:word@a:1,b:2/results?replicaSet=rs0"),
        ({"host": "mongodb://other/else"}, "mongodb://other/else"),
    ],
)
def test_hosts_of_the_settings_take_precedence_over_the_url(settings: dict[str, Any], url: str) -> None:
    assert located(URL, settings).url == url


def test_collection_names_and_client_options() -> None:
    names = {"database": "d", "taskmeta_collection": "t", "groupmeta_collection": "g"}
    client = {"user": "u", "password": "p", "max_pool_size": 3, "tls": True, "options": {"appname": "a"}}
    where = located("mongodb://", names | client)
    assert (where.url, where.database, where.results, where.groups) == ("mongodb://localhost", "d", "t", "g")
    known = {"username": "u", "password": "p", "maxPoolSize": 3, "tls": True, "appname": "a"}
    assert where.options == known
    usual = located(URL, {})
    assert (usual.results, usual.groups, usual.options) == ("celery_taskmeta", "celery_groupmeta", {})


def test_place_is_equal_for_equivalent_urls() -> None:
    here = located("mongodb://localhost/results", {}).place
    assert located("mongodb://me:word@127.0.0.1:27017/other", {"database": "results"}).place == here
    assert located("mongodb://127.0.0.1", {}).place != here


@pytest.mark.parametrize(
    "settings", [{"database": 3}, {"taskmeta_collection": ""}, {"host": 5}, {"host": [1]}, {"options": "tls"}]
)
def test_invalid_setting_is_named_in_the_error(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"mongodb_backend_settings: {next(iter(settings))!r}"):
        located(URL, settings)
