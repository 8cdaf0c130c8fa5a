"""The parts of the kombu transport that need no server: URLs, options and bindings of exchanges."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu import Connection
from kombu.transport import TRANSPORT_ALIASES

from qworker.conf import Settings
from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports import SCHEMES, broker_urls, open_broker, register
from qworker.transports.as_kombu.exchanges import KNOWN_SECONDS, LIFE_SECONDS, Exchanges, matching
from qworker.transports.as_kombu.shared_state import SharedState
from qworker.transports.as_kombu.transport import max_deliveries_of, settings_of, url_of
from qworker.transports.capabilities import KNOWN
from qworker.transports.redis.client_options import CONNECTION
from qworker.transports.redis.envelope import layout
from qworker.transports.redis.url import endpoint
from qworker.transports.registry import LocalRegistry

register()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("qworker+postgresql://user:word@host:5432/name?sslmode=require", None),
        ("qworker+redis://host:6379/3", None),
        ("qworker+sqlite:///a/b.db", None),
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
    ],
)
def test_connection_url_gives_the_broker_url(url: str, expected: str | None) -> None:
    assert url_of(Connection(url)) == (expected or url.removeprefix("qworker+"))


def test_connection_switches_to_the_next_url() -> None:
    second = "qworker+postgresql://user:word@other:5433/name"
    connection = Connection(f"qworker+redis://host:6379/3;{second}")
    assert url_of(connection) == "redis://host:6379/3"
    connection.switch(second)
    assert url_of(connection) == second.removeprefix("qworker+")
    assert "other" in connection.as_uri()
    assert "word" not in connection.as_uri()
    connection.switch("qworker+redis://host:6379/3")
    assert url_of(connection) == "redis://host:6379/3"


def test_amqp_url_is_refused_with_advice() -> None:
    with pytest.raises(ConfigurationError, match="kombu itself supports RabbitMQ"):
        url_of(Connection("qworker+amqp://host//"))


def test_password_is_not_shown() -> None:
    connection = Connection("qworker+postgresql://user:secret@host/name")
    assert "secret" not in connection.as_uri()
    assert connection.as_uri(include_password=True) == "qworker+postgresql://user:secret@host/name"


@pytest.mark.parametrize(
    "url",
    [
        "qworker+postgresql://user:secr%40et@host/name?sslmode=require",
        "qworker+redis://:secret@host/3",
        "qworker+mongodb://user:secret@one,two/name?replicaSet=rs",
        "qworker+nats://secret@host:4222",
        "qworker+nats://secret@one,secret@two",
        "qworker+nats://host:4222",
        "redis://host/3",
    ],
)
def test_connection_info_keeps_the_password_separate(url: str) -> None:
    """Celery's worker shows all other parts in its statistics."""
    connection = Connection(url, transport="qworker" if "+" not in url else None)
    copies = [connection, connection.clone(), pickle.loads(pickle.dumps(connection)).clone()]
    for copy in copies:
        shown = {name: value for name, value in copy.info().items() if name != "password"}
        assert "secr" not in str(shown)
        assert url_of(copy) == url.removeprefix("qworker+")
        assert copy.as_uri(include_password=True).removeprefix("qworker+") == url.removeprefix("qworker+")


def test_transport_options_set_settings_and_broker_options() -> None:
    options = {
        "lease_seconds": 30,
        "synchronous": "NORMAL",
        "visibility_timeout": 5,
        "max_retries": 3,
        "prepare_threshold": 7,
    }
    connection = Connection("qworker+postgresql://host/name", transport_options=options, connect_timeout=7)
    conf = settings_of(connection, "postgresql://host/name")
    assert (conf.worker_lease_seconds, conf.embedded_synchronous) == (30.0, "NORMAL")
    assert conf.broker_connection_timeout == 7.0
    assert conf.broker_transport_options == {"prepare_threshold": 7}
    conf = settings_of(connection, "redis://host")
    assert conf.broker_transport_options["visibility_timeout"] == 5


@pytest.mark.parametrize(
    ("url", "has"),
    [
        (
            "sqlite:///a.db",
            "dead_letter_expires, dead_letter_max, lease_seconds, max_deliveries, synchronous",
        ),
        ("postgresql://host/name", "max_deliveries, pooler, prepare_threshold, synchronous"),
        ("redis://host/3", "client_name, db, dead_letter_expires"),
    ],
)
def test_unknown_option_is_logged_once(url: str, has: str, caplog: pytest.LogCaptureFixture) -> None:
    options = {"lease_secs": 30, "max_retries": 3, "visibility_timeout": 5, "max_deliveries": 2}
    for _ in range(2):
        settings_of(Connection(f"qworker+{url}", transport_options=options), url)
    (message,) = caplog.messages
    scheme = url.partition("://")[0]
    assert message.startswith(f"broker_transport_options: {scheme}:// does not use lease_secs; it has ")
    assert has in message


def test_known_redis_options_are_those_that_are_read() -> None:
    """The table of known options equals the options that the code reads."""
    asked: set[str] = set()

    class RecordingOptions(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return super().get(name, default)

    layout(endpoint("redis://host"), RecordingOptions(), {})
    assert asked | {*CONNECTION, "db", "master_name", "sentinel_kwargs"} == KNOWN["redis"]
    for name in (*CONNECTION, "db"):
        with pytest.raises(ConfigurationError, match=name):
            endpoint("redis://host", options={name: object()})
    with pytest.raises(ConfigurationError, match="master_name"):
        endpoint("sentinel://host:26379")


@pytest.mark.parametrize("given", ["three", -1, 2.5])
def test_invalid_max_deliveries_is_refused(given: object) -> None:
    options = {"max_deliveries": given}
    with pytest.raises(ConfigurationError, match="max_deliveries must be a whole number"):
        max_deliveries_of(Connection("qworker+redis://host", transport_options=options))


def test_order_is_cancelled_when_its_caller_times_out() -> None:
    shared_state = SharedState(lambda: None)
    with pytest.raises(BrokerUnavailable, match="did not answer"):
        shared_state.ask(lambda: None, seconds=0.0)
    _, [(_, answer)] = shared_state.orders()
    assert answer.cancelled()


def test_forked_child_does_not_renew_queues_of_its_parent() -> None:
    registry, clock = LocalRegistry(), Clock()
    exchanges = Exchanges(registry, clock)
    exchanges.declare("mine", temporary=True)
    with exchanges._lock:  # held by a thread of the parent, which the child does not have
        exchanges.after_fork()
        assert not exchanges.has_ours()


def test_every_scheme_is_registered_with_kombu() -> None:
    assert {f"qworker+{scheme}" for scheme in SCHEMES} <= TRANSPORT_ALIASES.keys()


def test_qworker_accepts_kombu_urls() -> None:
    assert broker_urls("qworker+redis://a;qworker+redis://b") == ["redis://a", "redis://b"]
    assert open_broker("qworker+sqlite:////tmp/x.db", Settings()).url == "sqlite:////tmp/x.db"


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_temporary_queue_expires_unless_renewed() -> None:
    registry, clock = LocalRegistry(), Clock()
    ours, other = Exchanges(registry, clock), Exchanges(registry, clock)
    ours.declare("mine", temporary=True)
    ours.bind("events", "#", "", "mine")
    ours.declare("stays", temporary=False)
    assert other.table_now("events") == [("#", "", "mine")]
    clock.now += LIFE_SECONDS - 1
    ours.renew()
    clock.now += LIFE_SECONDS - 1
    assert other.table_now("events") == [("#", "", "mine")]
    clock.now += 2
    assert other.table_now("events") == []
    purged: list[str] = []
    assert ours.tidy(purged.append) == []  # it does not delete its own queues
    assert other.tidy(purged.append) == []
    ours.declare("mine", temporary=True)
    clock.now += LIFE_SECONDS + 1
    assert other.tidy(purged.append) == ["mine"]
    assert purged == ["mine"]
    assert other.has("stays")


def test_forgotten_queue_is_purged_again() -> None:
    registry, clock = LocalRegistry(), Clock()
    exchanges = Exchanges(registry, clock)
    exchanges.declare("q", temporary=False)
    exchanges.bind("e", "k", "", "q")
    exchanges.forget("q")
    assert not exchanges.has("q")
    assert exchanges.table("e") == []
    clock.now += 2 * KNOWN_SECONDS
    assert exchanges.tidy(lambda queue: None) == ["q"]
    assert registry.entries() == {}


@settings(max_examples=50)
@given(entry=st.text(), expires=st.none() | st.floats(0, 2e9))
def test_foreign_registry_entries_are_ignored(entry: str, expires: float | None) -> None:
    registry = LocalRegistry()
    registry.put({entry: expires, '["queue", 1, 2]': None, "[]": None, "{}": math.inf})
    exchanges = Exchanges(registry, Clock())
    assert exchanges.table("e") == []
    exchanges.tidy(lambda queue: None)
    exchanges.forget("q")


def test_auto_delete_queue_waits_for_its_first_consumer_and_ends_with_the_last() -> None:
    registry, clock = LocalRegistry(), Clock()
    sender, first, second, other = (Exchanges(registry, clock) for _ in range(4))
    sender.declare_until_left("q", None, exclusive=False)
    sender.bind("e", "k", "", "q")
    clock.now += 365 * 86400.0
    assert other.tidy(lambda queue: None) == []
    assert other.table_now("e") == [("k", "", "q")]
    for one in (first, second):
        one.declare_until_left("q", None, exclusive=False)
        one.bind("e", "k", "", "q")
        one.consume("q")
        assert one.ours() == ["q"]
    assert not first.leave("q")
    assert other.table_now("e") == [("k", "", "q")]
    clock.now += LIFE_SECONDS + 1  # the second consumer has died
    assert other.table_now("e") == []
    assert other.tidy(lambda queue: None) == ["q"]
    assert registry.entries() == {}


def test_unused_auto_delete_queue_expires_after_its_declared_time() -> None:
    registry, clock = LocalRegistry(), Clock()
    sender, other = Exchanges(registry, clock), Exchanges(registry, clock)
    sender.declare_until_left("q", 1000.0, exclusive=False)
    sender.bind("e", "k", "", "q")
    clock.now += 999
    assert other.tidy(lambda queue: None) == []
    clock.now += 2
    assert other.tidy(lambda queue: None) == ["q"]
    assert registry.entries() == {}


def test_durable_queue_remains_when_a_consumer_leaves() -> None:
    registry, clock = LocalRegistry(), Clock()
    durable, passing = Exchanges(registry, clock), Exchanges(registry, clock)
    durable.declare("q", temporary=False)
    passing.declare_until_left("q", None, exclusive=False)
    passing.consume("q")
    assert not passing.leave("q")
    assert durable.has("q")


def test_invalid_pattern_binds_nothing() -> None:
    registry = LocalRegistry()
    exchanges = Exchanges(registry, Clock())
    registry.put({'["binding", "e", "k", "(", "q", ""]': None})
    exchanges.bind("e", "a.*", r"^a\.[^\.]+$", "q")
    assert matching(exchanges.table("e"), "a.b") == ["q"]
    assert exchanges.table("e") == [("a.*", r"^a\.[^\.]+$", "q")]
