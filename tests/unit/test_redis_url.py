"""Redis URLs: the connections they give, and errors for invalid ones."""

from __future__ import annotations

import re
import socket
import threading
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis", reason='pip install "qworker-queue[redis]"')

import redis.sentinel
from redis.crc import key_slot

from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports.redis.connection import REQUIRED, Link
from qworker.transports.redis.envelope import layout
from qworker.transports.redis.url import Endpoint, endpoint, hash_tag
from tests.certificates import Certificates
from tests.conftest import REPOSITORY


def made(url: str, monkeypatch: pytest.MonkeyPatch, **given: Any) -> tuple[str, dict[str, Any]]:
    """The redis-py connection class and its arguments for *url*."""
    found: list[tuple[str, dict[str, Any]]] = []
    for name in ("Connection", "SSLConnection", "UnixDomainSocketConnection"):

        class Recorder:
            kind = name
            password = "asked for nothing more"

            def __init__(self, **fields: Any) -> None:
                found.append((self.kind, fields))

            def connect(self) -> None:
                pass

        monkeypatch.setattr(redis, name, Recorder)
    endpoint(url, **given).connect(2.0)
    return found[0]


def test_plain_url(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, fields = made("redis://user:p%40ss@[::1]:7000/3", monkeypatch)
    assert kind == "Connection"
    assert {
        "host": "::1",
        "port": 7000,
        "db": 3,
        "username": "user",
        "password": "p@ss",
    }.items() <= fields.items()
    assert fields["socket_timeout"] == fields["socket_connect_timeout"] == 2.0
    assert fields["socket_keepalive"] is True


def test_unix_socket_url_of_celery(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, fields = made("redis+socket:///run/redis.sock?virtual_host=4", monkeypatch)
    assert (kind, fields["path"], fields["db"]) == ("UnixDomainSocketConnection", "/run/redis.sock", 4)


def test_tls_options_in_url_and_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    kind, fields = made(
        f"rediss://host/0?ssl_cert_reqs=CERT_NONE&ssl_ca_certs={certificates.authority}", monkeypatch
    )
    assert kind == "SSLConnection"
    assert {
        "ssl_cert_reqs": "none",
        "ssl_ca_certs": str(certificates.authority),
        "ssl_check_hostname": False,
    }.items() <= fields.items()
    own = {"ssl_certfile": certificates.client.certificate, "ssl_keyfile": certificates.client.key}
    kind, fields = made("redis://host", monkeypatch, use_ssl=own)
    assert (kind, fields["ssl_certfile"]) == ("SSLConnection", str(certificates.client.certificate))
    assert (fields["ssl_cert_reqs"], fields["ssl_check_hostname"]) == ("required", True)
    assert made("redis://host", monkeypatch, use_ssl=True)[0] == "SSLConnection"
    assert made("redis://host", monkeypatch, use_ssl=False)[0] == "Connection"
    assert made("valkeys://host", monkeypatch)[0] == "SSLConnection"


def test_missing_certificate_file_is_reported_on_connect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    where = endpoint(f"rediss://host?ssl_ca_certs={certificates.authority}")
    certificates.authority.unlink()
    with pytest.raises(BrokerUnavailable, match=f"ssl_ca_certs names {certificates.authority}"):
        Link(where).ask(b"", 1, 1.0)


def test_incompatible_redis_py_is_rejected_with_the_requirement() -> None:
    class ForeignConnection:
        closed = False

        def disconnect(self) -> None:
            self.closed = True

    foreign = ForeignConnection()
    link = Link(Endpoint("redis://host", 0, (), lambda timeout: foreign))
    with pytest.raises(ConfigurationError, match=re.escape(REQUIRED)):
        link.ask(b"", 1, 1.0)
    assert foreign.closed


def test_named_requirement_matches_the_redis_extra() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["redis"][0] == REQUIRED
    assert REQUIRED in project["optional-dependencies"]["pythons"]


def test_passwords_are_masked() -> None:
    assert "secret" not in repr(endpoint("redis://user:secret@host/0").safe_url)
    assert "secret" not in repr(endpoint("rediss://host/0?ssl_password=secret").safe_url)
    with pytest.raises(ConfigurationError) as caught:
        endpoint("redis://:secret@host:port/0")
    assert "secret" not in str(caught.value)


def test_equivalent_urls_give_the_same_place() -> None:
    assert endpoint("redis://host").place == endpoint("redis://:pw@host:6379/0").place
    assert endpoint("redis://host/1").place != endpoint("redis://host/0").place


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("redis://host/name", "number"),
        ("redis+socket://", "socket"),
        ("http://host", "redis://"),
        ("sentinel://host:26379", "master_name"),
        ("redis+cluster://host/1", "global_keyprefix"),
        ("redis+cluster://host?db=1", "global_keyprefix"),
        ("sentinel+cluster://host", "rediss"),
        ("unix+cluster:///run/redis.sock", "rediss"),
        ("redis+cluster://host:7000,host:port", "host"),
    ],
)
def test_invalid_urls_are_rejected(url: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        endpoint(url)


@pytest.mark.parametrize("options", [{"master_name": "mine"}, {"sentinel_kwargs": {"password": "x"}}])
def test_cluster_with_sentinels_is_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"result_backend_transport_options: {next(iter(options))}"):
        endpoint("redis+cluster://host", options, setting="result_backend")


@pytest.mark.parametrize(
    ("given", "prefix", "tag"),
    [
        ("", "{qworker}", "qworker"),
        ("shop:", "{shop:}", "shop:"),
        ("{shop}.orders.", "{shop}.orders.", "shop"),
        ("a{", "{a{}", "a{"),
        ("{}a", "{{}a}", "{"),
        ("}a", "{qworker}}a", "qworker"),
    ],
)
def test_prefix_on_a_cluster_has_a_hash_tag(given: str, prefix: str, tag: str) -> None:
    options = {"global_keyprefix": given}
    where = endpoint("redis+cluster://host", options)
    assert where.key_prefix(options) == prefix
    assert hash_tag(prefix) == tag
    assert {key_slot(f"{prefix}{name}".encode()) for name in ("a", "{b}", "}")} == {key_slot(tag.encode())}
    assert endpoint("redis://host", options).key_prefix(options) == given


def test_place_on_a_cluster_is_of_its_nodes_and_the_slot() -> None:
    one = endpoint("redis+cluster://a:1,b:2")
    assert one.place == endpoint("valkeys+cluster://me:secret@b:2,a:1/0").place
    assert one.place != endpoint("redis+cluster://a:1").place
    assert one.place != endpoint("redis+cluster://a:1,b:2", {"global_keyprefix": "x:"}).place
    assert "secret" not in endpoint("redis+cluster://me:secret@b:2,a:1").safe_url


def test_results_in_another_slot_are_not_stored_by_the_broker() -> None:
    options, others = {"global_keyprefix": "{x}a."}, {"global_keyprefix": "{y}."}
    where = endpoint("redis+cluster://host", options)
    assert layout(where, options, {"global_keyprefix": "{x}b."}).has_results
    assert not layout(where, options, others).has_results
    assert layout(endpoint("redis://host"), options, others).has_results


def test_unresponsive_sentinel_is_asked_once() -> None:
    """By default redis-py asks ten times, for up to half a minute, before it asks the next sentinel."""
    connections = []

    def hang_up() -> None:
        with suppress(OSError):
            while True:
                connection, address = listening.accept()
                connections.append(address)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=hang_up)
        thread.start()
        url = f"sentinel://127.0.0.1:{listening.getsockname()[1]}/0"
        with pytest.raises(redis.sentinel.MasterNotFoundError):
            endpoint(url, options={"master_name": "mine"}).connect(2.0)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(connections) == 1


@pytest.mark.parametrize(
    "options", [{"priority_scale": "amqp"}, {"priority_steps": ["a"]}, {"visibility_timeout": "soon"}]
)
def test_invalid_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        layout(endpoint("redis://host"), options, {})
