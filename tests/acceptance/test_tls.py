"""TLS to brokers and result backends: a round trip, and one clear message for each possible mistake."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.errors import BackendError, BrokerUnavailable, ConfigurationError
from qworker.transports.amqp.link import Link, address_of
from tests.acceptance.harness import TASKS, Site, opened, until
from tests.acceptance.private_servers import serving
from tests.acceptance.tls_servers import SECURE, Secure
from tests.certificates import Certificates

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

STRANGE = "its certificate is not signed by a known authority"
OTHER_NAME = "its certificate is for another name"
NO_TLS = "it does not use TLS on that port"
NO_HOST = "the host name is unknown"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def servers(certificates: Certificates) -> Iterator[Callable[[str], Any]]:
    """A function that returns the server of a kind, started on first use and kept."""
    with ExitStack() as stack:
        running: dict[str, Any] = {}

        def get(kind: str) -> Any:
            if kind not in running:
                running[kind] = stack.enter_context(serving(kind, SECURE[kind], certificates=certificates))
            return running[kind]

        yield get


@pytest.fixture(params=SECURE)
def server(request: pytest.FixtureRequest, servers: Callable[[str], Any]) -> Any:
    return servers(request.param)


redis_only = pytest.mark.parametrize("server", ["redis"], indirect=True)
rabbitmq_only = pytest.mark.parametrize("server", ["rabbitmq"], indirect=True)
postgresql_only = pytest.mark.parametrize("server", ["postgresql"], indirect=True)


def site_of(path: Path, server: Secure, url: str, **settings: object) -> Any:
    return opened(path, broker=url, result_backend=server.results(url), **settings)


def refusal(url: str, **settings: Any) -> str:
    """The error for a client that publishes to *url*."""
    app = QWorker("client", broker=url, task_publish_retry=False, set_as_current=False, **settings)
    try:
        with pytest.raises(BrokerUnavailable) as caught:
            app.send_task("work")
    finally:
        app.close()
    said = str(caught.value)
    assert "\n" not in said
    return said


def ask(site: Site, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qworker", *command, "-A", TASKS],
        cwd=site.path,
        env=site.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_task_round_trip(server: Secure, tmp_path: Path) -> None:
    """`qworker health` and `qworker doctor` also work with TLS."""
    with site_of(tmp_path, server, server.tls_url()) as site:
        worker = site.start()
        results = [site.client.send_task("work", (number,)) for number in range(20)]
        assert [result.get(timeout=30) for result in results] == list(range(20))
        later = site.client.send_task("work", ("x" * 200_000,), countdown=0.2)
        assert later.get(timeout=30) == "x" * 200_000
        health = ask(site, "health")
        assert "one@test consumes from" in health.stdout, health.stdout + health.stderr
        doctor = ask(site, "doctor", "--json")
        findings = json.loads(doctor.stdout)
        assert [one for one in findings if one["severity"] == "error"] == []
        assert any("answers at" in one["what"] for one in findings if one["severity"] == "ok"), findings
        worker.stop()
        assert worker.log.count("ERROR") == worker.log.count("WARNING") == 0, worker.log


def test_certificate_of_an_unknown_authority_is_refused(
    server: Secure, certificates: Certificates, tmp_path: Path
) -> None:
    """When publishing, in a worker, when getting a result and in doctor: the same message, which says what
    to do."""
    url = server.tls_url(certificates.stranger)
    said = refusal(url)
    assert STRANGE in said
    assert f"in {server.authority} (" in said
    with site_of(tmp_path, server, url, broker_connection_retry_on_startup=False) as site:
        worker = site.start(ready=False)
        assert worker.wait() == 1
        assert worker.log.count(STRANGE) == 1, worker.log
        assert "Traceback" not in worker.log
        errors = [
            one["what"]
            for one in json.loads(ask(site, "doctor", "--json").stdout)
            if one["severity"] == "error"
        ]
        assert [error for error in errors if STRANGE not in error] == []
        assert errors
        if server.results(url) != "rpc://":
            with pytest.raises(BackendError, match=STRANGE):
                site.client.AsyncResult("none").get(timeout=5)


def test_worker_waits_for_a_valid_certificate(
    server: Secure, certificates: Certificates, tmp_path: Path
) -> None:
    """Like for a server that is down: the authority's file is read again at each attempt."""
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(certificates.stranger.read_bytes())
    with site_of(tmp_path, server, server.tls_url(trusted)) as site:
        worker = site.start(ready=False)
        until(lambda: STRANGE in worker.log, "the worker to say so", worker)
        trusted.write_bytes(certificates.authority.read_bytes())
        worker.wait_ready()
        assert site.client.send_task("work", (1,)).get(timeout=30) == 1
        worker.stop()


def test_certificate_for_another_name_is_refused(server: Secure) -> None:
    assert OTHER_NAME in refusal(server.tls_url(host="127.0.0.1"))


def test_host_name_check_can_be_disabled(server: Secure) -> None:
    lax = {"sslmode": "verify-ca"} if server.binary == "postgres" else {"ssl_check_hostname": "false"}
    app = QWorker("client", broker=server.tls_url(host="127.0.0.1", **lax), set_as_current=False)
    app.send_task("elsewhere", queue="elsewhere")
    app.broker.admin.purge("elsewhere")
    app.close()


def test_unknown_host_is_reported(server: Secure) -> None:
    assert NO_HOST in refusal(server.tls_url(host="nowhere.invalid"))


def test_missing_certificate_file_is_reported(server: Secure, tmp_path: Path) -> None:
    """At once, when publishing and by doctor, without connecting."""
    url = server.tls_url(tmp_path / "gone.pem")
    words = f"{server.authority if server.binary == 'postgres' else 'ssl_ca_certs'} names {tmp_path}/gone.pem"
    app = QWorker("client", broker=url, set_as_current=False)
    with pytest.raises(
        ConfigurationError, match=re.escape(f"broker_url: {words}, which cannot be read: No such file")
    ):
        app.send_task("work")
    with opened(tmp_path, broker=url, result_backend="disabled://") as site:
        worker = site.start(ready=False)
        assert worker.wait() == 1
        assert worker.log.count(words) == 1, worker.log
        assert "Traceback" not in worker.log
        doctor = ask(site, "doctor", "--json")
        (error,) = [one["what"] for one in json.loads(doctor.stdout) if one["severity"] == "error"]
        assert words in error
    if server.results(url) != "rpc://":
        app = QWorker("client", backend=server.results(url), set_as_current=False)
        with pytest.raises(ConfigurationError, match=re.escape(f"result_backend: {words}")):
            app.backend.get("none")


@pytest.mark.parametrize("server", ["redis", "rabbitmq"], indirect=True)
def test_port_without_tls_is_reported(server: Secure) -> None:
    said = refusal(server.unencrypted(), broker_connection_timeout=1)
    if server.binary == "redis-server":  # which parses our TLS greeting as the beginning of a command
        assert "it does not answer with TLS: if it is running, use its TLS port, or redis://" in said
    else:
        assert f"{NO_TLS}: use its TLS port, or amqp://" in said


@pytest.mark.parametrize("server", ["redis", "rabbitmq"], indirect=True)
def test_url_without_tls_for_a_tls_port_is_reported(server: Secure) -> None:
    url = server.tls_url().partition("?")[0].replace("rediss://", "redis://").replace("amqps://", "amqp://")
    said = refusal(url)
    wanted = "rediss://" if server.binary == "redis-server" else "amqps://"
    assert f"it closed the connection at the first message: if it requires TLS, write {wanted}" in said


@postgresql_only
def test_postgresql_without_tls_is_reported(server: Any) -> None:
    def switched(to: str) -> None:
        server.do(f"ALTER SYSTEM SET ssl = {to}")
        server.do("SELECT pg_reload_conf()")
        until(lambda: server.do("SHOW ssl") == [(to,)], f"ssl to be {to}")

    switched("off")
    try:
        assert NO_TLS in refusal(server.tls_url())
    finally:
        switched("on")


def test_mysql_without_tls_is_reported(certificates: Certificates) -> None:
    """It is sent neither the password nor anything else."""
    heard = b""

    def serve() -> None:
        nonlocal heard
        connection, _ = listener.accept()
        with connection:
            # HandshakeV10 without the capability flag for TLS (0x800).
            greeting = (
                b"\x0a8.0.36\0" + bytes(4) + b"8 bytes.\0" + struct.pack("<HBHHB", 0xF7FF, 45, 2, 0x0008, 21)
            )
            greeting += bytes(10) + b"12 bytes....\0" + b"mysql_native_password\0"
            connection.sendall(len(greeting).to_bytes(3, "little") + b"\0" + greeting)
            while data := connection.recv(4096):
                heard += data

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        said = refusal(f"mysql://me:secret@127.0.0.1:{port}/test?ssl_ca={certificates.authority}")
        thread.join(30)
    assert NO_TLS in said
    assert heard == b""


@redis_only
def test_server_that_requires_a_client_certificate(
    server: Any, certificates: Certificates, tmp_path: Path
) -> None:
    own = {"ssl_certfile": certificates.client.certificate, "ssl_keyfile": certificates.client.key}
    bad = {"ssl_certfile": certificates.intruder.certificate, "ssl_keyfile": certificates.intruder.key}
    with server.demanding():
        # In TLS 1.3 the alert comes after the handshake, and may get lost if we write before reading it.
        said = refusal(server.tls_url())
        assert re.search(
            r"it (requires a client|may require a .different.) certificate.* in ssl_certfile and ssl_keyfile",
            said,
        ), said
        said = refusal(server.tls_url(**bad))
        assert re.search(
            r"(refuses our certificate: |\(different\) certificate in )ssl_certfile and ssl_keyfile", said
        ), said
        with site_of(tmp_path, server, server.tls_url(**own)) as site:
            worker = site.start()
            assert site.client.send_task("work", (2,)).get(timeout=30) == 2
            worker.stop()


@pytest.mark.parametrize("server", ["redis", "rabbitmq"], indirect=True)
@pytest.mark.parametrize("prefix", ["ssl_", ""])
def test_options_in_the_settings(
    server: Any, certificates: Certificates, tmp_path: Path, prefix: str
) -> None:
    """With Celery's names for Redis and for RabbitMQ, each accepted for both; as JSON in the environment."""
    url = server.tls_url().partition("?")[0]
    use_ssl = json.dumps(
        {f"{prefix}ca_certs": str(certificates.authority), f"{prefix}cert_reqs": "CERT_REQUIRED"}
    )
    settings = {"broker_use_ssl": use_ssl, "redis_backend_use_ssl": use_ssl}
    with opened(tmp_path, broker=url, result_backend=server.results(url), **settings) as site:
        worker = site.start()
        assert site.client.send_task("work", (3,)).get(timeout=30) == 3
        worker.stop()
    assert STRANGE in refusal(url), "without them"
    assert STRANGE not in refusal(
        server.tls_url(host="127.0.0.1").partition("?")[0], broker_use_ssl=json.loads(use_ssl)
    )


@rabbitmq_only
def test_expected_host_name_can_be_configured(server: Any, certificates: Certificates) -> None:
    url = server.tls_url(host="127.0.0.1").partition("?")[0]
    use_ssl = {"ca_certs": str(certificates.authority), "server_hostname": "localhost"}
    app = QWorker("client", broker=url, broker_use_ssl=use_ssl, set_as_current=False)
    app.send_task("elsewhere", queue="elsewhere")
    app.broker.admin.purge("elsewhere")
    app.close()


@rabbitmq_only
def test_connection_to_a_frozen_server_is_dropped_at_once(server: Any) -> None:
    """Waiting for the answer to TLS's close_notify could take long."""
    link = Link(address_of(server.tls_url()), 5.0)
    server.freeze()
    try:
        began = time.monotonic()
        link.drop()
        assert time.monotonic() - began < 2.0
    finally:
        server.thaw()
        server.wait()


def test_databases_take_tls_options_in_the_url(tmp_path: Path) -> None:
    for url in ("postgresql://localhost/x", "mysql://localhost/x"):
        app = QWorker("client", broker=url, broker_use_ssl=True, set_as_current=False)
        with pytest.raises(ConfigurationError, match="sslmode=verify-full"):
            app.send_task("work")


@redis_only
def test_second_broker_is_used_if_the_first_has_an_unknown_certificate(
    server: Any, certificates: Certificates
) -> None:
    urls = [server.tls_url(certificates.stranger), server.tls_url()]
    app = QWorker("client", broker=urls, set_as_current=False)
    app.send_task("elsewhere", queue="elsewhere")
    app.broker.admin.purge("elsewhere")
    app.close()


@redis_only
def test_errors_do_not_contain_passwords(server: Any, certificates: Certificates) -> None:
    url = server.tls_url(certificates.stranger, ssl_password="hidden").replace(
        "rediss://", "rediss://me:hidden@"
    )
    assert "hidden" not in refusal(url)
