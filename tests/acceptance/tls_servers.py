"""Private TLS servers: those of private_servers.py, each with a certificate for ``localhost``.

Comes from:  test_tls.py.
Goes to:     the servers' own binaries.
Thread:      the test's.

Redis and RabbitMQ have a second port without TLS; the databases have one port for both.
"""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

from tests.acceptance.private_servers import (
    MariaDB,
    PostgreSQL,
    RabbitMQ,
    Redis,
    Server,
    free_port,
    unprivileged,
)
from tests.certificates import Certificates


class Secure(Server):
    """authority: the name of the URL parameter for the trusted authority; always: further parameters."""

    authority: ClassVar[str] = "ssl_ca_certs"
    always: ClassVar[dict[str, str]] = {}

    def __init__(self, certificates: Certificates, **options: object) -> None:
        self.certificates = certificates
        self.tls_port = free_port()
        super().__init__(**options)

    @property
    @abstractmethod
    def base(self) -> str:
        """The URL without parameters, with {host} for the host."""

    def tls_url(self, authority: Path | None = None, host: str = "localhost", **more: object) -> str:
        """authority: trusted by the client; None: the one that signed the server's certificate."""
        trusted = {self.authority: authority or self.certificates.authority}
        return f"{self.base.format(host=host)}?{urlencode({**self.always, **trusted, **more})}"

    def results(self, url: str) -> str:
        """The result backend that goes with the broker at *url*."""
        return url

    def unencrypted(self) -> str:
        """A URL that asks for TLS on the port without it."""
        return self.tls_url().replace(str(self.tls_port), str(self.port))


class SecureRedis(Secure, Redis):
    @property
    def base(self) -> str:
        return f"rediss://{{host}}:{self.tls_port}/0"

    def prepare(self) -> None:
        self.options = {
            "tls-port": str(self.tls_port),
            "tls-cert-file": str(self.certificates.server.certificate),
            "tls-key-file": str(self.certificates.server.key),
            "tls-ca-cert-file": str(self.certificates.authority),
            "tls-auth-clients": "no",
            **self.options,
        }
        super().prepare()

    @contextmanager
    def demanding(self) -> Iterator[None]:
        """Within the block clients need a certificate of the authority."""
        self.do("CONFIG", "SET", "tls-auth-clients", "yes")
        try:
            yield
        finally:
            self.do("CONFIG", "SET", "tls-auth-clients", "no")


class SecureRabbitMQ(Secure, RabbitMQ):
    @property
    def base(self) -> str:
        return f"amqps://guest:guest@{{host}}:{self.tls_port}//"

    def prepare(self) -> None:
        self.options = {
            "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
            "ssl_options.cacertfile": str(self.certificates.authority),
            "ssl_options.certfile": str(self.certificates.server.certificate),
            "ssl_options.keyfile": str(self.certificates.server.key),
            "ssl_options.verify": "verify_none",
            **self.options,
        }
        super().prepare()

    def results(self, url: str) -> str:
        return "rpc://"


class SecurePostgreSQL(Secure, PostgreSQL):
    authority = "sslrootcert"
    always: ClassVar[dict[str, str]] = {"sslmode": "verify-full"}

    @property
    def base(self) -> str:
        return f"postgresql://postgres@{{host}}:{self.port}/test"

    def prepare(self) -> None:
        """The server requires that others cannot read its key."""
        own = self.certificates.server
        certificate, key = self.directory / "server.pem", self.directory / "server.key"
        self.options = {
            "ssl": "on",
            "ssl_cert_file": str(certificate),
            "ssl_key_file": str(key),
            **self.options,
        }
        super().prepare()
        shutil.copy(own.certificate, certificate)
        shutil.copy(own.key, key)
        key.chmod(0o600)
        user = unprivileged()
        if user is not None:
            for path in (certificate, key):
                os.chown(path, user.pw_uid, user.pw_gid)

    def results(self, url: str) -> str:
        return f"db+{url}"


class SecureMariaDB(Secure, MariaDB):
    authority = "ssl_ca"

    @property
    def base(self) -> str:
        return f"mysql://root@{{host}}:{self.port}/test"

    def prepare(self) -> None:
        self.options = {
            "ssl-ca": str(self.certificates.authority),
            "ssl-cert": str(self.certificates.server.certificate),
            "ssl-key": str(self.certificates.server.key),
            **self.options,
        }
        super().prepare()

    def results(self, url: str) -> str:
        return f"db+{url}"


SECURE: dict[str, type[Any]] = {
    "redis": SecureRedis,
    "rabbitmq": SecureRabbitMQ,
    "postgresql": SecurePostgreSQL,
    "mariadb": SecureMariaDB,
}
