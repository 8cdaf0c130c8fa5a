"""No connection option is silently dropped: each option of a driver is passed on, is known
to be irrelevant to our connections, or is rejected by name. A new option of a driver fails these tests until
this has been decided."""

from __future__ import annotations

import inspect
import ssl
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings

from qworker import QWorker
from qworker.backends import open_backend
from qworker.backends.sql.tables import connect
from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.django.checks import check_broker, check_connections, check_deployment
from qworker.django.transports import databases
from qworker.django.transports.databases import check_options, url_of
from qworker.django.transports.redis_cache import cache_url
from qworker.django.transports.urls import url_and_options
from qworker.errors import ConfigurationError
from qworker.transports import SCHEMES
from qworker.transports.redis import client_options
from qworker.transports.redis.url import endpoint
from qworker.transports.sql import mysql_options
from qworker.transports.sql.links import connector
from qworker.transports.sql.mysql import MySQLLink, url_options
from qworker.transports.sql.mysql_options import options_of
from qworker.transports.sql.postgresql import PostgreSQLLink, fields_of
from tests.certificates import Certificates

pymysql = pytest.importorskip("pymysql", reason='pip install "qworker-queue[mysql]"')
psycopg = pytest.importorskip("psycopg", reason='pip install "qworker-queue[postgresql]"')
redis = pytest.importorskip("redis", reason='pip install "qworker-queue[redis]"')

Cluster = Callable[..., None]
NEW = "an_option_of_tomorrow"
USUAL = {"NAME": "shop", "USER": "me", "PASSWORD": "p/w", "HOST": "db", "PORT": "", "CONN_MAX_AGE": 0}


class Backend:
    """A stand-in for Django's database wrapper. made: Django's class, which computes the parameters."""

    def __init__(self, vendor: str, settings: dict[str, Any]) -> None:
        self.vendor = vendor
        self.display_name = vendor
        self.settings_dict = {**USUAL, "OPTIONS": {}, **settings}

    def is_in_memory_db(self) -> bool:
        return False

    def get_connection_params(self) -> Any:
        engine = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite3"}[self.vendor]
        # Through the alias, Django imports copies of PyMySQL's submodules and sets them on the package:
        # pymysql.err would no longer have the classes that its connections raise. So restore the attributes.
        own = {**vars(pymysql)}
        pymysql.install_as_MySQLdb()
        try:
            made = import_module(f"django.db.backends.{engine}.base").DatabaseWrapper
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == "MySQLdb"]:
                del sys.modules[name]
            vars(pymysql).update(own)
        return made.get_connection_params(made({**self.settings_dict, "TIME_ZONE": None, "AUTOCOMMIT": True}))


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A function that returns the URL of the database with a vendor and settings."""

    def made(vendor: str, options: dict[str, Any] | None = None, **settings: Any) -> str:
        backend = Backend(vendor, {**settings, "OPTIONS": options or {}})
        monkeypatch.setattr(databases, "connections", {"default": backend})
        return url_of("default")

    return made


def named(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", "args", "kwargs"}


# -- PostgreSQL --


def test_all_libpq_parameters_reach_the_broker_connection(database: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    files = {"sslrootcert", "sslcert", "sslkey"}
    words = {"sslmode": "require", "target_session_attrs": "any"}
    words |= dict.fromkeys(("channel_binding", "gssencmode"), "prefer")
    keywords = {each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults()}
    assert len(keywords) > 30
    address = {"dbname", "user", "password", "host", "port", "client_encoding"}
    for keyword in sorted(keywords - address):
        value = str(file) if keyword in files else words.get(keyword, "1")
        url = database("postgresql", {keyword: value})
        PostgreSQLLink.check(url)
        found = fields_of(url)
        expected = {"dbname": "shop", "user": "me", "password": "p/w", "host": "db", keyword: value}
        assert found == expected, keyword


NO_TEXT: tuple[Any, ...] = (object(), [1], {"a": 1}, (2,))
NO_NUMBER: tuple[Any, ...] = ("soon", 1.5, True, *NO_TEXT)
OF_A_DATABASE = [
    *[(vendor, name, value) for vendor in ("postgresql", "mysql", "sqlite")
      for name in ("NAME", "USER", "PASSWORD", "HOST") for value in NO_TEXT],
    *[(vendor, "PORT", value) for vendor in ("postgresql", "mysql", "sqlite") for value in NO_NUMBER],
    *[(vendor, "OPTIONS", value) for vendor in ("postgresql", "mysql", "sqlite")
      for value in ("x", 1, [], None)],
]  # fmt: skip


@pytest.mark.parametrize(("vendor", "name", "value"), OF_A_DATABASE)
def test_wrong_types_in_database_addresses_are_rejected(
    monkeypatch: pytest.MonkeyPatch, vendor: str, name: str, value: Any
) -> None:
    monkeypatch.setattr(databases, "connections", {"default": Backend(vendor, {name: value})})
    with pytest.raises(ConfigurationError, match=rf"DATABASES\['default'\].*{name}") as caught:
        check_options("default")
    assert caught.value.setting == "DATABASES"
    assert name != "PASSWORD" or repr(value) not in str(caught.value)


TEXTS = ("options", "assume_role", "service", "passfile", "application_name", "sslrootcert")
NUMBERS = (
    "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
    "tcp_user_timeout",
)  # fmt: skip
WORDS = ("sslmode", "target_session_attrs", "channel_binding", "gssencmode")
MYSQL_TEXTS = sorted(
    mysql_options.NAMES
    - {"charset", "collation", "conv", "cursorclass", "db", "passwd", "isolation_level", "database"}
)
MYSQL_NUMBERS = ("connect_timeout", "read_timeout", "write_timeout", "port")
OPTIONS = [
    *[("postgresql", name, value) for name in TEXTS for value in NO_TEXT],
    *[("postgresql", name, value) for name in NUMBERS for value in NO_NUMBER],
    *[("postgresql", "connect_timeout", value) for value in ("soon", "nan", "inf", "", True, *NO_TEXT)],
    *[("postgresql", name, value) for name in WORDS for value in ("sometimes", 1, *NO_TEXT)],
    *[("postgresql", "prepare_threshold", value) for value in NO_NUMBER],
    *[("mysql", name, value) for name in MYSQL_TEXTS for value in NO_TEXT],
    *[("mysql", name, value) for name in MYSQL_NUMBERS for value in ("soon", -1, *NO_TEXT)],
    *[("mysql", "client_flag", value) for value in ("soon", 1.5, *NO_TEXT)],
    *[("mysql", "ssl", value) for value in (1, object(), [1])],
    *[("mysql", "isolation_level", value) for value in (1, *NO_TEXT)],
    *[("sqlite", name, value) for name in ("init_command", "transaction_mode") for value in NO_TEXT],
]


@pytest.mark.parametrize(("vendor", "name", "value"), OPTIONS)
def test_wrong_types_of_database_options_are_rejected(
    monkeypatch: pytest.MonkeyPatch, vendor: str, name: str, value: Any
) -> None:
    backend = Backend(vendor, {"OPTIONS": {name: value}})
    monkeypatch.setattr(databases, "connections", {"default": backend})
    with pytest.raises(ConfigurationError, match=r"DATABASES\['default'\]"):
        check_options("default")


def test_postgresql_options_of_django(database: Any) -> None:
    for seconds in (5, 5.5, "5.5", " 5 ", -1):  # as psycopg takes them
        PostgreSQLLink.check(database("postgresql", {"connect_timeout": seconds}))
    taken = database("postgresql", {"assume_role": "my role", "options": "-c a=b", "pool": True})
    assert fields_of(taken)["options"] == r"-c a=b -c role=my\ role"
    assert fields_of(database("postgresql", {"prepare_threshold": None}))["prepare_threshold"] is None
    assert fields_of(database("postgresql", {"prepare_threshold": 5}))["prepare_threshold"] == 5
    assert "prepare_threshold" not in fields_of(database("postgresql", {"server_side_binding": True}))
    several = fields_of(database("postgresql", HOST="a,b", PORT="1,2"))
    assert (several["host"], several["port"]) == ("a,b", "1,2")
    assert fields_of(database("postgresql", HOST="/run/pg"))["host"] == "/run/pg"
    assert fields_of(database("postgresql", HOST="::1", PORT=5433))["host"] == "::1"


def test_unknown_libpq_parameter_is_rejected(database: Any) -> None:
    with pytest.raises(ConfigurationError, match=NEW):
        PostgreSQLLink.check(database("postgresql", {NEW: "x"}))
    with pytest.raises(ConfigurationError, match=rf"DATABASES\['default'\].*{NEW}"):
        check_options("default")


def test_result_store_accepts_prepare_threshold() -> None:
    engine = connect("db+postgresql+psycopg://h/d?prepare_threshold=none&sslmode=require", made := {}, False)
    assert made["connect_args"]["prepare_threshold"] is None
    assert dict(engine.url.query) == {"sslmode": "require"}


# -- MySQL --

OBJECTS = {"conv", "cursorclass", "auth_plugin_map", "ssl"}
"""Options of PyMySQL that cannot be text."""
TLS_NAMES = {
    "ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password", "ssl_verify_cert", "ssl_verify_identity",
}  # fmt: skip
MYSQLCLIENT = {
    "host", "user", "passwd", "password", "db", "database", "port", "unix_socket", "conv", "connect_timeout",
    "compress", "named_pipe", "init_command", "read_default_file", "read_default_group", "charset",
    "collation", "auth_plugin", "sql_mode", "client_flag", "multi_statements", "ssl_mode", "ssl",
    "cursorclass", "use_unicode", "read_timeout", "write_timeout", "local_infile", "autocommit",
    "binary_prefix", "server_public_key_path",
}  # fmt: skip
"""Parameters of mysqlclient's connect(), from its documentation: it is written in C, without a signature."""


def test_all_mysql_driver_options_are_handled() -> None:
    there = named(pymysql.connections.Connection.__init__) | MYSQLCLIENT
    assert len(there) > 40
    undecided = there - mysql_options.NAMES - TLS_NAMES - OBJECTS
    assert undecided == set(), "pass it on in mysql_options.py, or ignore it there with a reason"
    for name in sorted(TLS_NAMES - {"ssl_key"}):
        options_of([(name, "true")], "broker_url")
    for name in mysql_options.IGNORED:
        assert options_of([(name, "1")], "broker_url") == options_of([], "broker_url")


def test_unknown_and_unsupported_mysql_options_are_rejected(database: Any) -> None:
    url = database("mysql", {NEW: "x"})
    for refuse in (
        lambda: connector(url, 1.0, {}),
        lambda: check_options("default"),
        lambda: connect(f"db+{url}", {}, False),
    ):
        with pytest.raises(ConfigurationError, match=NEW):
            refuse()
    for option in ({"compress": True}, {"named_pipe": 1}, {"auth_plugin": "kerberos"}, {"ssl": object()}):
        with pytest.raises(ConfigurationError, match=next(iter(option))):
            connector(database("mysql", option), 1.0, {})
    with pytest.raises(ConfigurationError, match="no option 'ssl_tls_version'"):
        connector(database("mysql", {"ssl": {"tls_version": "1.3"}}), 1.0, {})
    url_options(database("mysql", {"compress": False, "auth_plugin": "mysql_native_password"}))


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_tls_options_of_django_are_enforced(database: Any, files: Certificates) -> None:
    ca = str(files.authority)
    insisting: list[tuple[dict[str, Any], tuple[str, bool]]] = [
        ({"ssl": {"ca": ca}}, ("CERT_REQUIRED", True)),
        ({"ssl_ca": ca}, ("CERT_REQUIRED", True)),
        ({"ssl": {"capath": str(files.authority.parent)}}, ("CERT_REQUIRED", True)),
        ({"ssl_verify_cert": True}, ("CERT_REQUIRED", True)),
        ({"ssl_verify_identity": True}, ("CERT_REQUIRED", True)),
        ({"ssl_mode": "REQUIRED"}, ("CERT_NONE", False)),
        ({"ssl": True}, ("CERT_NONE", False)),
        ({"client_flag": 2048 | 2}, ("CERT_NONE", False)),
        ({"ssl_mode": "REQUIRED", "ssl": {"ca": ca}}, ("CERT_REQUIRED", False)),
        ({"ssl_mode": "VERIFY_CA", "ssl_ca": ca}, ("CERT_REQUIRED", False)),
        ({"ssl_mode": "VERIFY_IDENTITY"}, ("CERT_REQUIRED", True)),
        ({"ssl": {"ca": ca, "check_hostname": False}}, ("CERT_REQUIRED", False)),
    ]
    for options, expected in insisting:
        asked = url_options(database("mysql", options))
        assert asked.tls is not None, options
        assert (asked.tls.cert_reqs.name, asked.tls.check_hostname) == expected, options
        assert "ssl" in asked.arguments()
    for options in ({}, {"ssl_mode": "PREFERRED"}, {"ssl": {}}):
        asked = url_options(database("mysql", options))
        assert (asked.tls, asked.plain) == (None, False)
    for options in ({"ssl_mode": "DISABLED"}, {"ssl_disabled": True}):
        assert url_options(database("mysql", options)).arguments()["ssl_disabled"] is True
    with pytest.raises(ConfigurationError, match="DISABLED, PREFERRED"):
        url_options(database("mysql", {"ssl_mode": "SOMETIMES"}))
    with pytest.raises(ConfigurationError, match="/no/such"):
        check_options_of(database, {"ssl": {"ca": "/no/such"}})


def check_options_of(database: Any, options: dict[str, Any]) -> None:
    database("mysql", options)
    check_options("default")


def test_mysql_options_reach_pymysql(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    class Recorder:
        def __init__(self, **arguments: Any) -> None:
            made.append(arguments)

        def answer_within(self, seconds: float) -> None:
            pass

    monkeypatch.setattr("qworker.transports.sql.mysql.LimitedConnection", Recorder)
    options = {
        "init_command": "SET a=1; SET b=2",
        "bind_address": "::1",
        "read_timeout": 7,
        "charset": "latin1",
    }
    MySQLLink(database("mysql", options, PORT="3307"), 4.0, {}, False)
    expected = {
        "host": "db", "port": 3307, "user": "me", "password": "p/w", "database": "shop",
        "charset": "utf8mb4", "init_command": "SET a=1; SET b=2", "bind_address": "::1", "connect_timeout": 4,
    }  # fmt: skip
    assert {name: made[0][name] for name in expected} == expected
    MySQLLink(database("mysql", HOST="/run/my.sock"), 4.0, {}, False)
    assert made[1]["unix_socket"] == "/run/my.sock"


def test_option_file_is_read(database: Any, tmp_path: Path) -> None:
    file = tmp_path / "my.cnf"
    file.write_text(
        "[mysql]\nprompt = x\n[client]\nuser=file\npassword = 'a # b'\nhost=there\ndatabase=d\n"
        "default-character-set = utf8mb4\nssl-mode=REQUIRED\nsocket=/run/s\n"
    )
    asked = url_options(f"mysql:///?read_default_file={file}")
    assert {name: asked.fields[name] for name in ("user", "password", "host", "database", "unix_socket")} == {
        "user": "file", "password": "a # b", "host": "there", "database": "d", "unix_socket": "/run/s",
    }  # fmt: skip
    assert asked.tls is not None
    own = url_options(database("mysql", {"read_default_file": str(file)}))
    assert (own.fields["user"], own.fields["host"], own.fields["database"]) == ("me", "db", "shop")
    file.write_text(f"[client]\n{NEW.replace('_', '-')} = 1\n")
    with pytest.raises(ConfigurationError, match=NEW):
        url_options(f"mysql:///?read_default_file={file}")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        url_options("mysql:///?read_default_file=/no/such")


def test_included_option_files_are_read(tmp_path: Path) -> None:
    """Debian's my.cnf has includes, and many projects use it."""
    file, folder, more = tmp_path / "my.cnf", tmp_path / "conf.d", tmp_path / "more"
    folder.mkdir()
    file.write_text(
        f"[client]\nuser=a\nhost=a\nssl-mode=REQUIRED\n!includedir {folder}/\n"
        f"  !include {more}\n[shop]\nhost=shop\n"
    )
    (folder / "1.cnf").write_text("[client]\nuser=b\npassword=b\n")
    (folder / "2.cnf.off").write_text("[client]\nuser=off\n")
    more.write_text("[client]\npassword=c\n")
    asked = url_options(f"mysql:///?read_default_file={file}")
    assert [asked.fields[name] for name in ("user", "password", "host")] == ["b", "c", "a"]
    asked = url_options(f"mysql:///?read_default_file={file}&read_default_group=shop")
    assert [asked.fields[name] for name in ("user", "password", "host")] == ["b", "c", "shop"]
    assert asked.tls is not None
    for wrong, word in (
        (f"!include {file}", "not understood"),
        ("!includes x", "!includes x"),
        ("!include /no/such", "/no/such"),
    ):
        file.write_text(f"{wrong}\n")
        with pytest.raises(ConfigurationError, match=word):
            url_options(f"mysql:///?read_default_file={file}")


# -- SQLite --


def test_sqlite_uri_becomes_its_file(database: Any) -> None:
    assert database("sqlite", NAME="file:/tmp/a%20b.db?mode=rw&cache=shared") == "sqlite:////tmp/a%20b.db"
    for name in ("file:/tmp/a.db?vfs=unix-dotfile", "file:/tmp/a.db?mode=ro", "file:/tmp/a.db?immutable=1"):
        with pytest.raises(ConfigurationError, match=name.partition("?")[2]):
            database("sqlite", NAME=name)
    with pytest.raises(ConfigurationError, match=NEW):
        database("sqlite", {NEW: 1})
    database("sqlite", {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA x=1"})


# -- Redis --


def test_all_redis_py_options_are_handled() -> None:
    there = set().union(
        *(
            named(each.__init__)
            for each in (
                redis.Redis,
                redis.Connection,
                redis.SSLConnection,
                redis.UnixDomainSocketConnection,
                redis.connection.AbstractConnection,
                redis.ConnectionPool,
            )
        )
    )
    assert len(there) > 50
    # Passed by the pool to its connections, and not configured by users.
    there -= {
        "socket_type", "connection_kwargs", "cache_factory", "maint_notifications_pool_handler",
        "maintenance_state", "maintenance_notification_hash", "orig_host_address", "orig_socket_timeout",
        "orig_socket_connect_timeout", "himport_registry",
    }  # fmt: skip
    decided = {*client_options.NAMES, *client_options.IGNORED, *client_options.REFUSED}
    assert there - decided == set(), (
        "pass it on in client_options.py, or ignore or refuse it there with a reason"
    )


def test_each_accepted_redis_option_has_an_effect(files: Certificates) -> None:
    values: dict[str, Any] = {
        "host": "::1", "port": 7, "unix_socket_path": "/run/r", "path": "/run/r", "db": 3, "username": "u",
        "password": "p", "ssl": True, "socket_timeout": 1, "socket_connect_timeout": 2,
        "socket_keepalive": False, "socket_keepalive_options": {1: 2}, "client_name": "c",
        "ssl_ca_certs": str(files.authority), "ssl_ca_path": "/ca", "ssl_ca_data": "PEM",
        "ssl_certfile": str(files.client.certificate), "ssl_keyfile": str(files.client.key),
        "ssl_password": "s", "ssl_cert_reqs": None, "ssl_check_hostname": False, "ssl_ciphers": "HIGH",
    }  # fmt: skip
    assert set(values) == set(client_options.NAMES)
    for name, value in values.items():
        base = {"ssl": True} if name.startswith("ssl_") else {}
        made = client_options.url_of({**base, name: value}, "Q_CLUSTER['redis']")
        assert made != client_options.url_of(base, "Q_CLUSTER['redis']"), name


@pytest.mark.parametrize("mentioned", [ssl.CERT_NONE, "none", None])
def test_ssl_cert_reqs_accepts_the_values_of_redis_py(mentioned: Any) -> None:
    redis.SSLConnection(ssl_cert_reqs=mentioned)
    for url, options in (
        client_options.url_of({"host": "h", "ssl": True, "ssl_cert_reqs": mentioned}, "Q_CLUSTER['redis']"),
        cache("rediss://h/0", CONNECTION_POOL_KWARGS={"ssl_cert_reqs": mentioned}),
    ):
        assert url == "rediss://h:6379/0?ssl_cert_reqs=none" or url == "rediss://h/0?ssl_cert_reqs=none"
        endpoint(url, options)


def refused(value: Any, word: str) -> None:
    with override_settings(Q_CLUSTER={"redis": value}):
        with pytest.raises(ConfigurationError, match=word):
            url_and_options("redis")
        assert [message.id for message in check_broker()] == ["qworker.E002"]


SECONDS: tuple[Any, ...] = ("soon", -1, 0, True, float("nan"), float("inf"), *NO_TEXT)
WRONG: dict[str, tuple[Any, ...]] = {
    "host": ("rediss://x", "db:6379", "a/b", 5, True, b"x", *NO_TEXT),
    "port": ("soon", 0, -1, 65536, 1.5, True, *NO_TEXT),
    "unix_socket_path": (5, True, *NO_TEXT),
    "path": (5, True, *NO_TEXT),
    "db": ("first", -1, 1.5, True, *NO_TEXT),
    "username": (1.5, True, *NO_TEXT),
    "password": (1.5, True, *NO_TEXT),
    "ssl": ("soon", 2, *NO_TEXT),
    "socket_timeout": SECONDS,
    "socket_connect_timeout": SECONDS,
    "socket_keepalive": ("soon", 2, *NO_TEXT),
    "socket_keepalive_options": ("soon", 1, [1], {"a": 1}, {1: "x"}),
    "client_name": (1.5, True, *NO_TEXT),
    "ssl_ca_certs": (5, *NO_TEXT),
    "ssl_ca_path": (5, *NO_TEXT),
    "ssl_ca_data": (1.5, *NO_TEXT),
    "ssl_certfile": (5, *NO_TEXT),
    "ssl_keyfile": (5, *NO_TEXT),
    "ssl_password": (1.5, *NO_TEXT),
    "ssl_cert_reqs": ("soon", 1, *NO_TEXT),
    "ssl_check_hostname": ("soon", 2, *NO_TEXT),
    "ssl_ciphers": (1.5, *NO_TEXT),
}
"""Invalid values of each option of redis-py connections."""


def test_invalid_values_are_listed_for_each_redis_option() -> None:
    assert set(WRONG) == set(client_options.NAMES)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_invalid_values_of_redis_options_are_rejected(name: str, value: Any) -> None:
    base = {"ssl": True} if name.startswith("ssl_") else {}
    refused({**base, name: value}, rf"^Q_CLUSTER\['redis'\]: {name}")
    if name not in client_options.CONNECTION:
        return
    for setting, options in (
        ("broker_url", "broker_transport_options"),
        ("result_backend", "result_backend_transport_options"),
    ):
        with pytest.raises(ConfigurationError, match=f"^{options}: {name}") as caught:
            endpoint("redis://h/0", {name: value}, setting=setting)
        assert caught.value.setting == options


def test_redis_options_accept_text_values() -> None:
    text = {"port": "7", "db": "3", "socket_timeout": "2.5", "socket_keepalive": "no", "ssl": "true"}
    assert client_options.url_of({**text, "host": "", "password": b"p"}, "Q_CLUSTER['redis']") == (
        "rediss://:p@localhost:7/3",
        {"socket_timeout": 2.5, "socket_keepalive": False},
    )


@pytest.mark.parametrize("url", ["redis://[x/0", "redis://h:x/0", "redis://h/first", "sentinel://[x/0"])
def test_invalid_redis_urls_are_rejected(url: str) -> None:
    if url.startswith("redis"):
        refused(url, "redis://")
    with pytest.raises(ConfigurationError, match="://"):
        endpoint(url, {"master_name": "m"})


def test_secret_of_the_wrong_type_is_not_shown() -> None:
    for name in ("password", "ssl_password"):
        with pytest.raises(ConfigurationError) as caught:
            client_options.url_of({"ssl": True, name: ["secret"]}, "Q_CLUSTER['redis']")
        assert "secret" not in str(caught.value)


def test_misspelled_and_unsupported_redis_options_are_rejected() -> None:
    refused({"pasword": "x"}, "did you mean password")
    refused({NEW: 1}, NEW)
    refused(f"redis://h/0?{NEW}=1", NEW)
    refused({"ssl_ca_certs": "/x"}, "ssl: True")
    refused({"ssl": True, "ssl_ca_certs": "/no/such"}, "/no/such")
    refused({"unix_socket_path": "/r", "ssl": True}, "a socket has no TLS")
    for name in client_options.REFUSED:
        refused({"ssl": True, name: object()}, name)
    for name in client_options.IGNORED:
        with override_settings(Q_CLUSTER={"redis": {name: 1}}):
            assert url_and_options("redis") == ("redis://localhost:6379/0", {})


def test_redis_tls_options_reach_the_client(files: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def record(**fields: Any) -> Any:
        made.append(fields)
        return SimpleNamespace(connect=lambda: None, password="x")

    monkeypatch.setattr(redis, "SSLConnection", record)
    given = {
        "host": "::1",
        "ssl": True,
        "ssl_ca_certs": str(files.authority),
        "ssl_certfile": str(files.client.certificate),
        "ssl_keyfile": str(files.client.key),
        "socket_timeout": 4,
    }
    with override_settings(Q_CLUSTER={"redis": given}):
        url, more = url_and_options("redis")
    endpoint(url, more["broker_transport_options"]).connect()
    assert {name: made[0][name] for name in given if name != "ssl"} == {
        name: value for name, value in given.items() if name != "ssl"
    }


@pytest.mark.parametrize(
    "query", [f"{NEW}=1", "host=x", "socket_timeout=soon", "pasword=x", "ssl_version=3", "path=/x"]
)
def test_invalid_redis_url_parameters_are_rejected(query: str) -> None:
    for setting in ("broker_url", "result_backend"):
        with pytest.raises(ConfigurationError, match=query.partition("=")[0]) as caught:
            endpoint(f"redis://h/0?{query}", setting=setting)
        assert caught.value.setting == setting


def cache(location: Any, **options: Any) -> tuple[str, dict[str, Any]]:
    return cache_url("fast", {"fast": {"LOCATION": location, "OPTIONS": options}}, None)


def test_django_redis_cache_options_are_used() -> None:
    assert cache("redis://h/1", PASSWORD="a/b")[0] == "redis://:a%2Fb@h/1"
    assert cache("redis://:own@h/1", PASSWORD="x")[0] == "redis://:own@h/1"
    assert cache("redis://u@h/1", PASSWORD="x")[0] == "redis://u:x@h/1"
    assert cache(
        ["rediss://h/1", "rediss://b/1"],
        SOCKET_TIMEOUT=3,
        CONNECTION_POOL_KWARGS={"ssl_ca_certs": "/ca", "max_connections": 9, "username": "u"},
        CLIENT_CLASS="django_redis.client.DefaultClient",
    ) == ("rediss://u@h/1?ssl_ca_certs=%2Fca", {"socket_timeout": 3})


def test_options_ignored_by_django_redis_are_ignored() -> None:
    kept = {"DB": 3, "MAX_CONNECTIONS": 9, "CONNECTION_POOL_CLASS_KWARGS": {}, "KEY_FUNCTION": "shop.key"}
    assert cache("redis://h/1", **kept) == cache("redis://h/1")


def test_django_redis_sentinels_become_a_sentinel_url() -> None:
    url, options = cache(
        "redis://MyMaster/2",
        SENTINELS=[("a", 1), ("::1", 2)],
        SENTINEL_KWARGS={"password": "q"},
        PASSWORD="s",
        CLIENT_CLASS="django_redis.client.SentinelClient",
    )
    assert url == "sentinel://:s@a:1,[::1]:2/2"
    assert options == {"master_name": "MyMaster", "sentinel_kwargs": {"password": "q"}}
    assert endpoint(url, options).place == ("sentinel", "MyMaster", 2)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({NEW.upper(): 1}, NEW.upper()),
        ({"PASWORD": "x"}, "did you mean 'PASSWORD'"),
        ({"CONNECTION_FACTORY": "shop.redis.Factory"}, "CONNECTION_FACTORY"),
        ({"CONNECTION_POOL_KWARGS": {NEW: 1}}, NEW),
        ({"SENTINELS": "a:1"}, "SENTINELS"),
        ({"SENTINELS": [("a", "soon")]}, "SENTINELS"),
        ({"PASSWORD": [1]}, "password must be text"),
        ({"SOCKET_TIMEOUT": "soon"}, "socket_timeout is 'soon'"),
        ({"SOCKET_CONNECT_TIMEOUT": -1}, "socket_connect_timeout is -1"),
        ({"CONNECTION_POOL_KWARGS": ["x"]}, "CONNECTION_POOL_KWARGS.* must be a mapping"),
        ({"CONNECTION_POOL_KWARGS": {"db": "first"}}, "db is 'first'"),
        ({"SENTINELS": [("a", 1)], "SENTINEL_KWARGS": "x"}, "SENTINEL_KWARGS.* must be a mapping"),
        ({"CLIENT_CLASS": 5}, "CLIENT_CLASS"),
    ],
)
def test_unsupported_django_redis_options_are_rejected(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        cache("redis://h/1", **options)


@pytest.mark.parametrize(
    ("caches", "word"),
    [
        ("x", "must be a mapping"),
        ({"LOCATION": 5}, "LOCATION"),
        ({"LOCATION": [5]}, "LOCATION"),
        ({"LOCATION": "redis://[x"}, "is not a URL"),
        ({"LOCATION": "redis://h/1", "OPTIONS": "x"}, "'OPTIONS' must be a mapping"),
    ],
)
def test_malformed_django_redis_cache_is_rejected(caches: Any, word: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"CACHES\['fast'\].*{word}"):
        cache_url("fast", {"fast": caches}, None)


@pytest.mark.parametrize("kwargs", ["x", {"socket_timeout": "soon"}, {NEW: 1}])
def test_invalid_sentinel_kwargs_are_rejected(kwargs: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"broker_transport_options.*sentinel_kwargs"):
        endpoint("sentinel://h/0", {"master_name": "m", "sentinel_kwargs": kwargs})


# -- SQS --


def test_all_boto3_session_options_are_handled(cluster: Cluster) -> None:
    boto3 = pytest.importorskip("boto3", reason='pip install "qworker-queue[sqs]"')
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
    taken = {"aws_region", "receive_message_wait_time_seconds", "endpoint_url", "region_name", *keys}
    for name in named(boto3.session.Session.__init__) - taken | {NEW, "aws_regoin"}:
        cluster(sqs={**keys, name: "x"})
        with pytest.raises(ConfigurationError, match=name):
            url_and_options("sqs")
        assert [message.id for message in check_broker()] == ["qworker.E002"]
    cluster(sqs={**keys, "region_name": "eu-west-1", "receive_message_wait_time_seconds": 0})
    assert url_and_options("sqs")[1]["broker_transport_options"]["wait_time_seconds"] == 0
    for wrong in ({"aws_access_key_id": "k"}, {"endpoint_url": "http://h/path"}):
        cluster(sqs=wrong)
        with pytest.raises(ConfigurationError, match=r"aws_secret_access_key|endpoint_url"):
            url_and_options("sqs")


WRONG_OF_SQS = [
    *[(name, value) for name in ("aws_region", "region_name", "aws_access_key_id", "aws_secret_access_key",
                                 "endpoint_url") for value in (5, b"x", *NO_TEXT)],
    *[("receive_message_wait_time_seconds", value) for value in (-1, 21, *NO_NUMBER)],
    *[("endpoint_url", value) for value in ("http://[x", "http://h:x", "ftp://h")],
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG_OF_SQS)
def test_invalid_values_of_sqs_options_are_rejected(cluster: Cluster, name: str, value: Any) -> None:
    pytest.importorskip("boto3", reason='pip install "qworker-queue[sqs]"')
    cluster(sqs={"aws_access_key_id": "k", "aws_secret_access_key": "s", name: value})
    with pytest.raises(ConfigurationError, match=name) as caught:
        url_and_options("sqs")
    assert "secret" not in name or repr(value) not in str(caught.value)
    assert [message.id for message in check_broker()] == ["qworker.E002"]


@pytest.mark.parametrize("name", ["host", "port", "username", "maxPoolSize", "connectTimeoutMS", "tls", "w"])
@pytest.mark.parametrize("value", [object(), [1]])
def test_invalid_values_of_mongodb_options_are_rejected(cluster: Cluster, name: str, value: Any) -> None:
    pytest.importorskip("pymongo", reason='pip install "qworker-queue[mongodb]"')
    cluster(mongo={name: value})
    with pytest.raises(ConfigurationError, match=r"Q_CLUSTER\['mongo'\]"):
        url_and_options("mongo")
    assert [message.id for message in check_broker()] == ["qworker.E002"]


@pytest.mark.parametrize("database", [{"OPTIONS": "x"}, {"OPTIONS": None}, {"CONN_MAX_AGE": "soon"}])
def test_checks_survive_malformed_databases(
    monkeypatch: pytest.MonkeyPatch, database: dict[str, Any]
) -> None:
    sqlite = {"ENGINE": "django.db.backends.sqlite3"}
    monkeypatch.setattr(settings, "DATABASES", {"default": {**sqlite, **database}})
    assert check_connections() == []
    assert "qworker.W035" in [message.id for message in check_deployment()]


# -- other brokers and result stores --

URLS = {
    "sqlite": "sqlite:///x.db", "unix": "unix:///run/r", "postgresql": "postgresql://h/d",
    "postgres": "postgres://h/d", "mysql": "mysql://h/d", "mariadb": "mariadb://h/d", "sqs": "sqs://",
    "ironmq": "ironmq://p:t@h", "spool": "spool:///srv/jobs",
}  # fmt: skip


@pytest.mark.parametrize("scheme", [*SCHEMES, "nats"])
def test_unknown_broker_url_parameters_are_rejected(scheme: str) -> None:
    url = f"{URLS.get(scheme, f'{scheme}://h')}?{NEW}=1"
    options = {"master_name": "m"} if scheme == "sentinel" else {}
    app = QWorker("a", broker=url, set_as_current=False, changes={"broker_transport_options": options})
    with pytest.raises(ConfigurationError, match=NEW if scheme != "mongodb" else "parameters"):
        _ = app.broker


RESULTS = (
    "redis://h", "rediss://h", "unix:///run/r", "db+postgresql://h/d", "db+mysql://h/d", "file:///srv/r",
    "cache+memcached://h/", "mongodb://h/d", "sqlite:///x.db",
)  # fmt: skip


@pytest.mark.parametrize("url", RESULTS)
def test_unknown_result_store_url_parameters_are_rejected(url: str) -> None:
    mentioned = "parameters" if url.startswith(("mongodb", "sqlite")) else NEW
    with pytest.raises(ConfigurationError, match=mentioned):
        open_backend(f"{url}?{NEW}=1", Settings({}), SYSTEM_CLOCK)


def test_valid_project_passes_the_broker_check() -> None:
    assert connections["default"].vendor == "sqlite"
    assert check_broker() == []


def test_pymysql_is_not_modified(database: Any) -> None:
    database("mysql")
    assert pymysql.err is sys.modules["pymysql.err"]
    assert issubclass(pymysql.err.OperationalError, pymysql.Error)
