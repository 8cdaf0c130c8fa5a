"""The default result store of each broker: the table, and the URLs and options derived from it."""

from __future__ import annotations

from typing import Any

import pytest

from qworker import QWorker
from qworker.backends.place import PLACES, result_place
from qworker.cli.worker_process import where_results_go
from qworker.transports import SCHEMES


def place(**settings: Any) -> Any:
    return result_place(QWorker("proj", set_as_current=False, **settings).conf)


@pytest.mark.parametrize(
    ("broker", "url"),
    [
        ("redis://:secret@h:1/3", "redis://:secret@h:1/3"),
        ("qworker+rediss://h/0", "rediss://h/0"),
        ("redis+socket:///run/redis.sock", "redis+socket:///run/redis.sock"),
        ("sentinel://a;sentinel://b", "sentinel://a;sentinel://b"),
        ("mongodb+srv://h/d", "mongodb+srv://h/d"),
        ("mariadb://u:p@h/d", "db+mariadb://u:p@h/d"),
        ("mysql://u:a%40b@h/d?charset=utf8mb4", "db+mysql://u:a%40b@h/d?charset=utf8mb4"),
        ("postgres://u@h:1/d?sslmode=require", "db+postgresql://u@h:1/d?sslmode=require"),
        ("postgresql+psycopg://h/d", "db+postgresql://h/d"),
        ("postgresql://u@a:1,b/d", "db+postgresql://u@/d?host=a:1&host=b"),
        ("postgresql://%2Frun%2Fpg/d?options=-c+x", "db+postgresql:///d?host=%2Frun%2Fpg&options=-c%2Bx"),
        ("amqps://h//", "rpc://"),
    ],
)
def test_default_result_store_of_brokers(broker: str, url: str) -> None:
    found = place(broker=broker)
    assert (found.url, found.why_none) == (url, "")
    assert found.with_broker is not found.replies
    assert found.replies is (url == "rpc://")


def test_all_brokers_but_these_have_a_default_result_store() -> None:
    assert SCHEMES.keys() - PLACES.keys() == {"sqs", "ironmq", "disque", "spool"}


@pytest.mark.parametrize("broker", ["sqs://", "nats://h", "ironmq://h", "consul://h", "redis://a;redis://b"])
def test_broker_without_a_result_store_names_the_setting(broker: str) -> None:
    found = place(broker=broker)
    assert (found.url, found.with_broker) == ("disabled://", False)
    assert "set result_backend" in found.why_none
    assert place(broker=broker, backend="redis://h").why_none == ""


def test_result_backend_setting_overrides_the_default() -> None:
    assert place(broker="redis://h", backend="file:///there").url == "file:///there"
    assert place(broker="redis://h", backend="redis://h").with_broker is False
    assert "disabled://" in place(broker="redis://h", backend="disabled://").why_none


def test_broker_options_apply_to_its_result_store() -> None:
    found = place(
        broker="redis://h",
        broker_transport_options={"global_keyprefix": "a:", "client_name": "w"},
        result_backend_transport_options={"global_keyprefix": "b:"},
        broker_use_ssl={"ssl_cert_reqs": "required"},
    )
    assert found.conf.result_backend_transport_options == {"global_keyprefix": "b:", "client_name": "w"}
    assert found.conf.redis_backend_use_ssl == {"ssl_cert_reqs": "required"}
    assert found.conf.result_expires == 86400.0
    pooled = place(broker="postgresql://h/d", broker_transport_options={"prepare_threshold": None})
    assert pooled.conf.database_engine_options == {"connect_args": {"prepare_threshold": None}}


def test_result_store_can_be_given_as_an_instance() -> None:
    backend = QWorker("other", backend="cache+memory://", set_as_current=False).backend
    app = QWorker("proj", broker="amqp://nowhere", backend=backend, set_as_current=False)
    assert app.backend is backend
    assert not app.stores.sends_results
    assert app.stores.reply_to is None


@pytest.mark.parametrize(
    ("settings", "description"),
    [
        ({"broker": "sqlite:///q.db"}, "beside the messages"),
        ({"broker": "redis://h/0"}, "beside the messages"),
        ({"broker": "amqp://h"}, "sent to the caller (rpc://)"),
        ({"broker": "amqp://h", "backend": "rpc://"}, "sent to the caller (rpc://)"),
        ({"broker": "amqp://h", "backend": "redis://:secret@h/1"}, "redis://:********@h/1"),
        ({"broker": "amqp://h", "backend": "disabled://"}, "not kept"),
        ({"broker": "nats://h"}, "not kept"),
    ],
)
def test_description_of_the_result_store(settings: dict[str, str], description: str) -> None:
    assert where_results_go(QWorker("proj", set_as_current=False, **settings)) == description
