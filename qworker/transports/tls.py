"""TLS: the options of a connection, in all notations, and their conversion for each driver.

Comes from:  parameters of URLs (``ssl_ca_certs=…``), and the settings ``broker_use_ssl`` and
             ``redis_backend_use_ssl``.
Goes to:     redis-py, py-amqp, PyMySQL and kombu. (libpq reads its own parameters.)
Thread:      any; a Tls is never changed.

The names are Celery's, redis-py's and MySQL's, with or without ``ssl_``. Certificates and host names are
verified unless that is disabled. Files are read again at every connect, so that they may be renewed.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from qworker.conf import kinds
from qworker.errors import ConfigurationError
from qworker.naming import close_matches
from qworker.transports.connect_errors import unreadable

_NAMES = {
    "ca": "ca_certs",
    "capath": "ca_path",
    "cert": "certfile",
    "key": "keyfile",
    "key_password": "password",
    "cipher": "ciphers",
    "verify_cert": "cert_reqs",
    "verify_identity": "check_hostname",
}
"""MySQL's names for options → ours, which are those of redis-py and of Python's ssl module."""
_PLAIN = ("ca_certs", "ca_path", "ca_data", "certfile", "keyfile", "password", "ciphers")
_OPTIONS = (*_PLAIN, "cert_reqs", "check_hostname")
_VERIFY = {
    "none": ssl.CERT_NONE,
    "false": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
    "true": ssl.CERT_REQUIRED,
}
_SCHEMES = ("rediss", "valkeys", "amqps")
_AMQP = ("amqp", "amqps", "pyamqp")
_SPELLED = tuple(f"ssl_{name}" for name in (*_OPTIONS, "server_hostname"))
_KOMBU = ("heartbeat", "login_method", "connect_timeout")
"""Parameters of kombu's RabbitMQ URLs that our own transport has as settings."""
_REDIS = ("redis", "rediss", "valkey", "valkeys", "sentinel")


@dataclass(frozen=True)
class Tls:
    """ca_certs, ca_path, ca_data: trusted authorities; none: the system's. certfile, keyfile, password: our
    own certificate.
    cert_reqs: whether the server's certificate is verified; check_hostname: whether its name is, too."""

    ca_certs: str | None = None
    ca_path: str | None = None
    ca_data: str | bytes | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: str | bytes | None = field(default=None, repr=False)
    ciphers: str | None = None
    cert_reqs: ssl.VerifyMode = ssl.CERT_REQUIRED
    check_hostname: bool = True

    def problem(self) -> str:
        """Return the problem with the certificate files, and what to do; "" if they are usable."""
        named = (
            ("ssl_ca_certs", self.ca_certs),
            ("ssl_certfile", self.certfile),
            ("ssl_keyfile", self.keyfile),
        )
        wrong = unreadable((option, path) for option, path in named if path)
        if wrong:
            return f"{wrong}; name a file that the user of this process may read"
        if self.keyfile and not self.certfile:
            return "ssl_keyfile names a key, but ssl_certfile does not name its certificate"
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            self._load_authorities(bare)
        except (OSError, ValueError) as error:
            return (
                f"ssl_ca_certs names {self.ca_certs or self.ca_path}, which contains no certificates in "
                f"PEM format ({error})"
            )
        try:
            self._load_own(bare)
        except (OSError, ValueError) as error:
            key = f" and ssl_keyfile {self.keyfile}" if self.keyfile else ""
            return (
                f"ssl_certfile names {self.certfile}{key}: these must contain a certificate and its key in "
                f"PEM format; ssl_password must decrypt the key if it is encrypted ({error})"
            )
        try:
            if self.ciphers:
                bare.set_ciphers(self.ciphers)
        except ssl.SSLError as error:
            return f"ssl_ciphers names no ciphers of OpenSSL: {self.ciphers} ({error})"
        return ""

    def checked(self, setting: str) -> Tls:
        """Return self if its files are valid; ConfigurationError otherwise."""
        wrong = self.problem()
        if wrong:
            raise ConfigurationError(f"{setting}: {wrong}", setting=setting)
        return self

    def context(self) -> ssl.SSLContext:
        """Return the context for Python's ssl. OSError when our files have become unusable."""
        wrong = self.problem()
        if wrong:
            raise OSError(wrong)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.check_hostname
        context.verify_mode = self.cert_reqs
        self._load_authorities(context)
        self._load_own(context)
        if self.ciphers:
            context.set_ciphers(self.ciphers)
        if self.cert_reqs != ssl.CERT_NONE and not (self.ca_certs or self.ca_path or self.ca_data):
            context.load_default_certs()
        return context

    def _load_authorities(self, context: ssl.SSLContext) -> None:
        if self.ca_certs or self.ca_path or self.ca_data:
            context.load_verify_locations(self.ca_certs, self.ca_path, self.ca_data)

    def _load_own(self, context: ssl.SSLContext) -> None:
        if self.certfile:
            # Without a function OpenSSL would ask for the password of a locked key on the terminal.
            context.load_cert_chain(self.certfile, self.keyfile, lambda: self.password or "")

    def for_redis(self) -> dict[str, Any]:
        """Return the arguments of redis-py's SSLConnection, in every release."""
        given = {f"ssl_{name}": value for name in _PLAIN if (value := getattr(self, name)) is not None}
        required = self.cert_reqs.name.removeprefix("CERT_").lower()
        return {**given, "ssl_cert_reqs": required, "ssl_check_hostname": self.check_hostname}

    def for_py_amqp(self, host: str) -> dict[str, Any]:
        """Return what kombu passes to py-amqp."""
        known = ("ca_certs", "certfile", "keyfile", "ciphers")
        given: dict[str, Any] = {name: value for name in known if (value := getattr(self, name)) is not None}
        given["cert_reqs"] = self.cert_reqs
        return given | ({"server_hostname": host} if self.check_hostname else {})


def divided(query: Iterable[tuple[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the parameters of a URL: those of TLS, and the others."""
    asked: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in query:
        (asked if name == "ssl" or name.startswith("ssl_") else others)[name] = value
    return asked, others


def tls_of(
    scheme: str, parameters: Mapping[str, Any], use_ssl: Any = None, setting: str = "broker_url"
) -> Tls | None:
    """Return the TLS options for a URL of *scheme* with these parameters, which override *use_ssl*, a
    setting's value; None without TLS. Files are not read. ConfigurationError for unknown options."""
    switch = parameters.get("ssl")
    named = {name: value for name, value in parameters.items() if name != "ssl"}
    if not (scheme in _SCHEMES or use_ssl or named or (switch and _truth("ssl", switch, setting))):
        return None
    given: dict[str, Any] = {}
    for options in (use_ssl if isinstance(use_ssl, Mapping) else {}, named):
        for name, value in options.items():
            option = name.removeprefix("ssl_")
            option = _NAMES.get(option, option)
            if option not in _OPTIONS:
                guesses = close_matches(option, _OPTIONS)
                hint = f"did you mean ssl_{guesses[0]}?" if guesses else f"use one of {', '.join(_OPTIONS)}"
                raise ConfigurationError(f"{setting}: TLS has no option {name!r}; {hint}", setting=setting)
            if option == "cert_reqs":
                given[option] = _verify(name, value, setting)
            elif option == "check_hostname":
                given[option] = _truth(name, value, setting)
            elif value is not None:
                given[option] = value if isinstance(value, bytes) else str(value)
    if given.get("cert_reqs") == ssl.CERT_NONE:
        given["check_hostname"] = False
    return Tls(**given)


def own_name(use_ssl: Any, host: str) -> tuple[Any, str]:
    """Return *use_ssl* without ``server_hostname``, and the name expected in the server's certificate: the
    value of that option, or *host*."""
    if not isinstance(use_ssl, Mapping):
        return use_ssl, host
    rest = {name: value for name, value in use_ssl.items() if name.removeprefix("ssl_") != "server_hostname"}
    names = [value for name, value in use_ssl.items() if name not in rest and value]
    return rest or bool(use_ssl), str(names[0]) if names else host


def of_rabbitmq(url: str, use_ssl: Any, host: str) -> tuple[Tls | None, str, dict[str, str]]:
    """Return the options for a URL of RabbitMQ on *host*: TLS, the name in its certificate, and other
    parameters. ConfigurationError for unknown ones."""
    start, _, query = url.partition("?")
    asked, others = divided(parse_qsl(query))
    for name in others:
        if name not in _KOMBU:
            guesses = close_matches(name, (*_SPELLED, *_KOMBU))
            hint = (
                f"did you mean {guesses[0]}?" if guesses else f"use one of {', '.join((*_SPELLED, *_KOMBU))}"
            )
            raise ConfigurationError(
                f"broker_url: RabbitMQ's URL has no parameter {name!r}; {hint}", setting="broker_url"
            )
    use_ssl, certified = own_name(use_ssl, host)
    certified = asked.pop("ssl_server_hostname", certified)
    return tls_of(start.partition(":")[0], asked, use_ssl), certified, others


def for_kombu(url: str, use_ssl: Any) -> tuple[str, Any]:
    """Return *url* and *use_ssl* for kombu's Connection, with the same meaning as for our own transports."""
    start, _, query = url.partition("?")
    scheme = start.partition(":")[0]
    if scheme not in (*_AMQP, *_REDIS):
        return url, use_ssl or False
    name = urlsplit(start).hostname or "127.0.0.1"
    if scheme in _AMQP:
        tls, name, others = of_rabbitmq(url, use_ssl, name)
    else:
        parameters, others = divided(parse_qsl(query))
        tls = tls_of(scheme, parameters, use_ssl)
    if tls is None:
        return url, False
    tls.checked("broker_url")
    asked = tls.for_py_amqp(name) if scheme in _AMQP else tls.for_redis()
    return f"{start}?{urlencode(others)}" if others else start, asked


def _verify(name: str, value: Any, setting: str) -> ssl.VerifyMode:
    if value is None:
        return ssl.CERT_NONE  # as in Celery
    if isinstance(value, int) and not isinstance(value, bool):
        value = ssl.VerifyMode(value).name if value in list(ssl.VerifyMode) else value
    found = _VERIFY.get(str(value).lower().removeprefix("cert_"))
    if found is None:
        raise ConfigurationError(
            f"{setting}: {name} must be required, optional or none, not {value!r}", setting=setting
        )
    return found


def _truth(name: str, value: Any, setting: str) -> bool:
    try:
        return bool(kinds.BOOLEAN.read(value))
    except ValueError as error:
        raise ConfigurationError(f"{setting}: {name} {error}", setting=setting) from None
