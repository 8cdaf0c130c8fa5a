"""Connection errors: why a server could not be reached, and what to do.

Comes from:  the transports, the result stores and `qworker doctor`, with the texts of their drivers.
Goes to:     the texts of BrokerUnavailable, BackendError and ConfigurationError.
Thread:      any; pure functions.

Each driver wraps errors of OpenSSL, the resolver or the server in its own classes, but keeps the texts; so
the texts are examined. OpenSSL is not imported for that: most workers do not need it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from qworker.conf.secrets import MASK
from qworker.errors import ConfigurationError

INVALID_HOST = (
    'its host or port is not valid; in a password "/" is written %2F, "?" %3F, "#" %23, ":" %3A and "@" %40'
)
"""Replaces Python's error, which quotes the invalid port: that may be part of a password."""


class Spelling(NamedTuple):
    """The URL syntax for one kind of server: login, with a name and a password; and TLS.
    authority: the option for trusted certificates; own: the options for our own certificate and its key;
    by_tls, without: the syntax with and without TLS."""

    authority: str
    own: str
    by_tls: str
    without: str
    login: str


REDIS = Spelling(
    "ssl_ca_certs", "ssl_certfile and ssl_keyfile", "rediss://", "redis://", "redis://:PASSWORD@HOST"
)
RABBITMQ = Spelling(
    "ssl_ca_certs", "ssl_certfile and ssl_keyfile", "amqps://", "amqp://", "amqp://USER:PASSWORD@HOST/VHOST"
)
POSTGRESQL = Spelling(
    "sslrootcert",
    "sslcert and sslkey",
    "sslmode=verify-full",
    "sslmode=disable",
    "postgresql://USER:PASSWORD@HOST/DATABASE",
)
MYSQL = Spelling(
    "ssl_ca",
    "ssl_cert and ssl_key",
    "ssl_ca",
    "a URL with no ssl_ parameters",
    "mysql://USER:PASSWORD@HOST/DATABASE",
)
NATS = Spelling(
    "ssl_ca_certs", "ssl_certfile and ssl_keyfile", "tls://", "nats://", "nats://USER:PASSWORD@HOST"
)
IRONMQ = Spelling(
    "ssl_ca_certs",
    "ssl_certfile and ssl_keyfile",
    "ironmq://",
    "ironmq+http://",
    "ironmq://PROJECT:TOKEN@HOST",
)

_MEANINGS = (
    # What the server says about our certificate comes first: those texts match later patterns, too.
    (
        r"alert (unknown.ca|bad.certificate|certificate.(expired|revoked|unknown))|tlsv1 alert decrypt",
        "it refuses our certificate: {own} must name a valid one, signed by an authority that it trusts",
    ),
    (
        r"certificate.required|alert handshake.failure|requires a valid client certificate",
        "it requires a client certificate: name it and its key in {own}",
    ),
    (
        r"hostname mismatch|ip address mismatch|does not match host name",
        "its certificate is for another name: use that name in the URL, or create a certificate for this one",
    ),
    (
        r"certificate has expired|certificate is not yet valid",
        "its certificate is not valid today: renew it, and check the clocks of both machines",
    ),
    (
        r"certificate.verify.failed|certificate verify error",
        "its certificate is not signed by a known authority: name the file of that authority's certificate "
        "in {authority}",
    ),
    (
        r"wrong.version.number|packet.length.too.long|record.layer.failure|http.request|"
        r"does not support ssl|doesn't support it",
        "it does not use TLS on that port: use its TLS port, or {without} for an unencrypted connection",
    ),
    (
        r"no answer to TLS",
        "it does not answer with TLS: if it is running, use its TLS port, or {without} for an unencrypted "
        "connection",
    ),
    (
        r"hung up on TLS",
        "it closed the connection at the start of TLS: it may require a (different) certificate in {own}",
    ),
    (
        r"hung up on plain text",
        "it closed the connection at the first message: if it requires TLS, write {by_tls}",
    ),
    (
        r"unauthenticated|noauth|no password supplied|authentication required|using password: no",
        "it requires a password and got none: add it to the URL, as in {login}",
    ),
    (
        r"without any password configured",
        "it has no password, and the URL contains one: leave it out, as in {without}HOST",
    ),
    (
        r"wrongpass|invalid username-password|invalid password|authentication failed|access denied "
        r"for user '|"
        r"role .{1,99} does not exist|access.refused",
        "the user name or password is wrong: both are in the URL, as in {login}, with %40 for @ and so on",
    ),
    (
        r"unknown database|database .{1,99} does not exist|vhost .{1,99} not found|db index is out of range|"
        r"access to vhost .{1,99} refused",
        "there is no such database for this user: create it, or name another at the end of the URL",
    ),
    (
        r"name or service not known|name resolution|nodename nor servname|no address associated|"
        r"failed to resolve host|could not translate host name|getaddrinfo failed",
        "the host name is unknown: check the URL for mistakes, and the name service of this machine",
    ),
    (
        r"no master found",
        "no sentinel of the URL answers, or none knows this master: check their addresses and master_name",
    ),
    (
        r"connection refused|connect call failed|actively refused|connecting to .{1,200} no such file",
        "nothing listens there: start the server, or correct the address in the URL",
    ),
    (
        r"timed out|timeout (connecting|expired)|no route to host|network is unreachable",
        "it cannot be reached: check whether the server is running, whether the host and port in the URL "
        "are right, and for a firewall in between",
    ),
)
_HANGING_UP = re.compile(r"reset by peer|broken pipe|EOF occurred|closed (by|the connection)", re.IGNORECASE)
_WAITING = re.compile(r"in time|timed out|timeout", re.IGNORECASE)
PREPARE_THRESHOLD = "prepare_threshold"
"""A parameter of PostgreSQL URLs besides those of its library: psycopg's own."""
_LIBPQ_FILES = ("sslrootcert", "sslcert", "sslkey")
_LIBPQ_NUMBERS = (
    "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
    "tcp_user_timeout",
)  # fmt: skip
_LIBPQ_WORDS = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
}
"""Parameters whose wrong values libpq only reports when it connects."""
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), meaning) for pattern, meaning in _MEANINGS]


def explained(text: str, spelling: Spelling | None = None) -> str:
    """Return a driver's text on one line, preceded by an explanation and advice, if known.

    spelling: the URL syntax for this kind of server; None: errors whose advice needs it are not explained.
    """
    line = " ".join(text.split())
    words = {} if spelling is None else spelling._asdict()
    for pattern, meaning in _PATTERNS:
        if (words or "{" not in meaning) and pattern.search(line):
            return f"{meaning.format(**words)} ({line})"
    return line


def while_connecting(text: str, tls: bool) -> str:
    """Return the *text* of a connection error, marked for explained() if the cause may be missing TLS, or TLS
    that the server does not accept. (After a TLS 1.3 handshake the reason may be lost.)"""
    if _HANGING_UP.search(text):
        return f"hung up on {'TLS' if tls else 'plain text'}: {text}"
    return f"no answer to TLS: {text}" if tls and _WAITING.search(text) else text


def unreadable(files: Iterable[tuple[str, str]]) -> str:
    """Return what is wrong with the first of these (option, path) that cannot be read; "" if all can."""
    for option, path in files:
        try:
            open(path, "rb").close()
        except OSError as error:
            return f"{option} names {path}, which cannot be read: {error.strerror}"
    return ""


def refuse_setting(use_ssl: Any, instead: str) -> None:
    """ConfigurationError when *use_ssl*, the value of broker_use_ssl, requests TLS to a broker that ignores
    it: a connection must not silently be unencrypted. instead: what to write."""
    if use_ssl:
        raise ConfigurationError(
            f"broker_use_ssl is for Redis, RabbitMQ, NATS and IronMQ: {instead}", setting="broker_use_ssl"
        )


def check_libpq(parameters: Mapping[str, Any], setting: str) -> None:
    """ConfigurationError when parameters of PostgreSQL's library have invalid values, or name files that
    cannot be read. (libpq ignores a missing client certificate.)"""
    for name in _LIBPQ_NUMBERS:
        if not re.fullmatch(r"\s*[+-]?\d+\s*", text := str(parameters.get(name, 0))):
            raise ConfigurationError(
                f"{setting}: {name} is {text!r:.80}, but must be a whole number", setting=setting
            )
    if not _is_finite(text := str(parameters.get("connect_timeout", 0))):  # psycopg rounds it
        raise ConfigurationError(
            f"{setting}: connect_timeout is {text!r:.80}, but must be a number of seconds", setting=setting
        )
    for name, words in _LIBPQ_WORDS.items():
        if (text := str(parameters.get(name, words[0]))) not in words:
            raise ConfigurationError(
                f"{setting}: {name} is {text!r:.80}, but must be one of {', '.join(words)}", setting=setting
            )
    named = ((name, str(parameters[name])) for name in _LIBPQ_FILES if parameters.get(name))
    wrong = unreadable((name, path) for name, path in named if (name, path) != ("sslrootcert", "system"))
    if wrong:
        raise ConfigurationError(
            f"{setting}: {wrong}; name a file that the user of this process may read", setting=setting
        )


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def prepare_threshold_of(text: str, setting: str) -> int | None:
    """Return how often psycopg sees a statement before it prepares it: a number, or "none" for never, as some
    poolers require. ConfigurationError for anything else."""
    if text.lower() in ("none", ""):
        return None
    if text.isdecimal():
        return int(text)
    raise ConfigurationError(
        f"{setting}: {PREPARE_THRESHOLD} must be a whole number or none, not {text!r}", setting=setting
    )


def refuse_parameters(url: str, setting: str) -> None:
    """ConfigurationError when *url*, the value of *setting*, has parameters, which its kind does not
    support."""
    query = url.partition("?")[2].partition("#")[0]
    if query:
        # With an "@" it may be the rest of a password.
        name = MASK if "@" in query else query.partition("&")[0].partition("=")[0]
        raise ConfigurationError(
            f"{setting}: {url.partition(':')[0]}:// has no parameters, and the URL has {name!r}: remove it; "
            "a question mark in a path or a password is written %3F",
            setting=setting,
        )
