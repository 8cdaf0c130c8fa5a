"""TLS options: their names, the arguments given to each driver, and explanations of
errors."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from qworker.conf import Settings
from qworker.errors import ConfigurationError
from qworker.transports import open_broker
from qworker.transports.connect_errors import POSTGRESQL, REDIS, check_libpq, explained, while_connecting
from qworker.transports.tls import Tls, divided, for_kombu, tls_of
from tests.certificates import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize(
    ("scheme", "parameters", "use_ssl"),
    [
        ("rediss", {}, None),
        ("amqps", {}, False),
        ("redis", {}, True),
        ("redis", {}, {"cert_reqs": ssl.CERT_REQUIRED}),
        ("amqp", {"ssl_cert_reqs": "required"}, None),
        ("mysql", {"ssl": "true"}, None),
        ("mysql", {"ssl_verify_cert": "true", "ssl_verify_identity": "true"}, None),
    ],
)
def test_certificate_and_hostname_are_verified_by_default(scheme: str, parameters: Any, use_ssl: Any) -> None:
    assert tls_of(scheme, parameters, use_ssl) == Tls()
    context = Tls().context()
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("parameters", "use_ssl"), [({}, None), ({}, False), ({}, {}), ({"ssl": "false"}, None)]
)
def test_no_tls(parameters: Any, use_ssl: Any) -> None:
    assert tls_of("redis", parameters, use_ssl) is None


def test_alternative_option_names() -> None:
    wanted = Tls(ca_certs="/a", certfile="/c", keyfile="/k", password="p", ciphers="x", ca_path="/d")
    plain = {
        "ca_certs": Path("/a"),
        "certfile": "/c",
        "keyfile": "/k",
        "password": "p",
        "ciphers": "x",
        "ca_path": "/d",
    }
    mysql = {"ca": "/a", "cert": "/c", "key": "/k", "key_password": "p", "cipher": "x", "capath": "/d"}
    assert tls_of("redis", {}, plain) == wanted
    assert tls_of("redis", {}, {f"ssl_{name}": value for name, value in plain.items()}) == wanted
    assert tls_of("mysql", {f"ssl_{name}": value for name, value in mysql.items()}) == wanted
    assert "hidden" not in repr(Tls(password="hidden"))


def test_url_overrides_the_setting() -> None:
    assert tls_of("redis", {"ssl_ca_certs": "/url"}, {"ssl_ca_certs": "/setting", "certfile": "/c"}) == Tls(
        ca_certs="/url", certfile="/c"
    )


@pytest.mark.parametrize("none", [None, ssl.CERT_NONE, 0, "none", "None", "CERT_NONE", "false", False])
def test_verification_can_be_disabled(none: Any) -> None:
    """In all spellings of Celery, redis-py and PyMySQL."""
    requested = tls_of("redis", {}, {"ssl_cert_reqs": none})
    assert requested == Tls(cert_reqs=ssl.CERT_NONE, check_hostname=False)
    assert requested.context().verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize("required", [ssl.CERT_REQUIRED, 2, "required", "CERT_REQUIRED", "true", True])
def test_verification_can_be_required(required: Any) -> None:
    assert tls_of("redis", {}, {"ssl_cert_reqs": required}) == Tls()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ssl_ca_cert": "/a"}, "TLS has no option 'ssl_ca_cert'; did you mean ssl_ca_certs?"),
        ({"nonsense": "/a"}, "TLS has no option 'nonsense'; use one of ca_certs"),
        ({"ssl_cert_reqs": "perhaps"}, "ssl_cert_reqs must be required, optional or none, not 'perhaps'"),
        ({"cert_reqs": 7}, "cert_reqs must be required"),
        ({"ssl_check_hostname": "perhaps"}, "ssl_check_hostname must be true or false"),
    ],
)
def test_invalid_options_are_rejected(options: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^result_backend: ") as caught:
        tls_of("redis", {}, options, "result_backend")
    assert words in str(caught.value)


def test_files_are_checked(certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    empty, own = str(tmp_path / "empty"), certificates.client
    for requested, words in (
        (Tls(ca_certs="/nowhere"), "ssl_ca_certs names /nowhere, which cannot be read: No such file"),
        (Tls(certfile=str(tmp_path)), f"ssl_certfile names {tmp_path}, which cannot be read: Is a directory"),
        (Tls(ca_certs=empty), f"ssl_ca_certs names {empty}, which contains no certificates"),
        (Tls(certfile=empty), f"ssl_certfile names {empty}: these must contain"),
        (Tls(certfile=str(own.certificate), keyfile=str(certificates.server.key)), "these must contain"),
        (Tls(keyfile=str(own.key)), "ssl_keyfile names a key, but ssl_certfile does not"),
        (Tls(ciphers="none such"), "ssl_ciphers names no ciphers"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            requested.checked("broker_url")
        assert words in str(caught.value)
        with pytest.raises(OSError, match=r".") as later:
            requested.context()
        assert str(caught.value) == f"broker_url: {later.value}"
    good = Tls(ca_certs=str(certificates.authority), certfile=str(own.certificate), keyfile=str(own.key))
    assert good.checked("broker_url") is good
    assert len(good.context().get_ca_certs()) == 1


def test_encrypted_key_is_decrypted_with_the_password(certificates: Certificates, tmp_path: Path) -> None:
    """And OpenSSL does not ask for it on the terminal."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(certificates.client.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"opens"),
        )
    )
    own = {"certfile": str(certificates.client.certificate), "keyfile": str(locked)}
    assert Tls(**own, password="opens").problem() == ""
    for wrong in (Tls(**own), Tls(**own, password="wrong")):
        assert "ssl_password" in wrong.problem()


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("postgresql://host/db", "sslmode=verify-full"),
        ("mysql://host/db", "ssl_ca="),
        ("mongodb://host/db", "tls=true"),
        ("sqs+https://host/", "AWS_CA_BUNDLE"),
        ("disque://host", "does not use TLS"),
    ],
)
def test_brokers_without_broker_use_ssl_reject_it(url: str, instead: str) -> None:
    with pytest.raises(ConfigurationError, match="broker_use_ssl is for Redis, ") as refused:
        open_broker(url, Settings({"broker_use_ssl": True}))
    assert instead in str(refused.value)


def test_tls_parameters_of_a_url_are_separated() -> None:
    query = [("ssl_ca_certs", "/a"), ("socket_timeout", "3"), ("ssl", "true"), ("sslmode", "require")]
    assert divided(query) == (
        {"ssl_ca_certs": "/a", "ssl": "true"},
        {"socket_timeout": "3", "sslmode": "require"},
    )


def test_redis_py_arguments_are_explicit() -> None:
    assert Tls().for_redis() == {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    assert Tls(certfile="/c", check_hostname=False).for_redis() == {
        "ssl_certfile": "/c",
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": False,
    }


def test_kombu_arguments(certificates: Certificates) -> None:
    authority = str(certificates.authority)
    strict = {"ca_certs": authority, "cert_reqs": ssl.CERT_REQUIRED}
    url = f"amqps://me@host:5671/v?ssl_ca_certs={authority}&heartbeat=3"
    assert for_kombu(url, None) == (
        "amqps://me@host:5671/v?heartbeat=3",
        {**strict, "server_hostname": "host"},
    )
    named = {"ca_certs": authority, "server_hostname": "other"}
    assert for_kombu("amqp://host/", named) == ("amqp://host/", {**strict, "server_hostname": "other"})
    lax = {"ca_certs": authority, "check_hostname": False}
    assert for_kombu("amqp://host/", lax) == ("amqp://host/", strict)
    by_url = f"amqps://10.0.0.1/?ssl_ca_certs={authority}&ssl_server_hostname=other"
    assert for_kombu(by_url, None) == ("amqps://10.0.0.1/", {**strict, "server_hostname": "other"})
    assert for_kombu("rediss://host/0", None) == ("rediss://host/0", Tls().for_redis())
    assert for_kombu("amqp://host/?heartbeat=3", None) == ("amqp://host/?heartbeat=3", False)
    assert for_kombu("sqs://host/", True) == ("sqs://host/", True)
    with pytest.raises(ConfigurationError, match="/nowhere"):
        for_kombu("amqps://host/?ssl_ca_certs=/nowhere", None)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1)",
            "ssl_ca_certs",
        ),
        ("certificate verify failed: certificate has expired (_ssl.c:1)", "not valid today"),
        ("certificate verify failed: Hostname mismatch, certificate is not valid for 'a'", "another name"),
        (
            "certificate verify failed: IP address mismatch, certificate is not valid for '::1'",
            "another name",
        ),
        (
            "[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] ssl/tls alert certificate expired",
            "refuses our certificate",
        ),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca", "refuses our certificate"),
        ("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required", "client certificate"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "does not use TLS"),
        ("Error -2 connecting to a:1. Name or service not known.", "host name is unknown"),
        (
            "failed to resolve host 'a': [Errno -3] Temporary failure in name resolution",
            "host name is unknown",
        ),
    ],
)
def test_driver_errors_are_explained(text: str, meaning: str) -> None:
    explanation = explained(f"first\n{text}", REDIS)
    assert meaning in explanation
    assert explanation.endswith(f"(first {text})")


def test_unexplained_errors_are_one_line() -> None:
    assert explained("the disk is full\n\tdelete some\n", POSTGRESQL) == "the disk is full delete some"


@pytest.mark.parametrize(
    ("text", "tls", "meaning"),
    [
        (
            "Error while reading from a:1 : (104, 'Connection reset by peer')",
            False,
            "if it requires TLS, write rediss://",
        ),
        ("Connection closed by server.", False, "if it requires TLS, write rediss://"),
        (
            "Error 8 while writing to socket. EOF occurred in violation of protocol",
            True,
            "in ssl_certfile and ssl_keyfile",
        ),
        ("Timeout connecting to server", True, "it does not answer with TLS"),
        (
            "tlsv13 alert certificate required; Connection closed by server.",
            True,
            "it requires a client certificate",
        ),
        ("Timeout connecting to server", False, "check whether the server is running"),
        ("Error 111 connecting to a:1. Connection refused.", True, "nothing listens there"),
        ("LOADING Redis is loading the dataset in memory", True, ""),
    ],
)
def test_errors_while_connecting_mention_tls(text: str, tls: bool, meaning: str) -> None:
    explanation = explained(while_connecting(text, tls), REDIS)
    assert meaning in explanation
    assert (explanation == text) is not bool(meaning)
    assert "TLS" not in explained(text, REDIS) or "alert" in text, (
        "errors on open connections do not mention it"
    )


def test_libpq_certificate_files_are_checked(certificates: Certificates) -> None:
    check_libpq({"sslrootcert": str(certificates.authority), "sslmode": "verify-full"}, "broker_url")
    check_libpq({"sslrootcert": "system", "sslcert": ""}, "broker_url")
    with pytest.raises(
        ConfigurationError, match="result_backend: sslcert names /nowhere, which cannot be read"
    ):
        check_libpq({"sslcert": "/nowhere"}, "result_backend")
