"""Reaching: why a server could not be reached, in words that say what to do.

Comes from:  the transports, the result stores and `qworker doctor`, with what their driver said.
Goes to:     the texts of BrokerUnavailable, BackendError and ConfigurationError.
Thread:      any; pure functions.

Each driver wraps what OpenSSL, the resolver or the server said in errors of its own kinds, and all keep the
words; so the words are what is looked at. OpenSSL is not imported for that: most workers need none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from qworker.errors import ConfigurationError


class Spelling(NamedTuple):
    """How a URL is written for one kind of server: login, with a name and a password; and how TLS is.
    authority: the option for the certificates that we trust; own: those for our own certificate and its key;
    by_tls, without: what is written to have TLS, and to have none."""

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
    # What the server says of us comes first: its words hold those of the others.
    (
        r"alert (unknown.ca|bad.certificate|certificate.(expired|revoked|unknown))|tlsv1 alert decrypt",
        "it refuses our certificate: {own} must name one that is valid and signed by an authority that "
        "it knows",
    ),
    (
        r"certificate.required|alert handshake.failure|requires a valid client certificate",
        "it wants a certificate of ours: name it and its key in {own}",
    ),
    (
        r"hostname mismatch|ip address mismatch|does not match host name",
        "its certificate is made for another name: write that name into the URL, or have a certificate made "
        "for this one",
    ),
    (
        r"certificate has expired|certificate is not yet valid",
        "its certificate is not valid today: renew it, and look at the clocks of both machines",
    ),
    (
        r"certificate.verify.failed|certificate verify error",
        "its certificate is signed by no authority that we know: name the file of that authority's "
        "certificate in {authority}",
    ),
    (
        r"wrong.version.number|packet.length.too.long|record.layer.failure|http.request|"
        r"does not support ssl|doesn't support it",
        "it speaks no TLS there: write the port on which it does, or {without} if it is to go unencrypted",
    ),
    (
        r"no answer to TLS",
        "it does not answer by TLS: if it runs, write the port on which it speaks TLS, or {without} if it is "
        "to go unencrypted",
    ),
    (
        r"hung up on TLS",
        "it hung up when it was greeted by TLS: it may want a certificate of ours, or another one, in {own}",
    ),
    (
        r"hung up on plain words",
        "it hung up at our first words: if it wants TLS, write {by_tls}",
    ),
    (
        r"unauthenticated|noauth|no password supplied|authentication required|using password: no",
        "it wants a password and got none: write it into the URL, as in {login}",
    ),
    (
        r"without any password configured",
        "it has no password, and the URL gives one: leave it out, as in {without}HOST",
    ),
    (
        r"wrongpass|invalid username-password|invalid password|authentication failed|access denied "
        r"for user '|"
        r"role .{1,99} does not exist|access.refused",
        "the user name or password is wrong: both stand in the URL, as in {login}, with %40 for @ and so on",
    ),
    (
        r"unknown database|database .{1,99} does not exist|vhost .{1,99} not found|db index is out of range|"
        r"access to vhost .{1,99} refused",
        "there is no such database for this user: make it, or name another at the end of the URL",
    ),
    (
        r"name or service not known|name resolution|nodename nor servname|no address associated|"
        r"failed to resolve host|could not translate host name|getaddrinfo failed",
        "nobody knows this host name: look for a slip in the URL, and at the name service of this machine",
    ),
    (
        r"no master found",
        "no sentinel of the URL answers, or none knows this master: look at their addresses and master_name",
    ),
    (
        r"connection refused|connect call failed|actively refused|connecting to .{1,200} no such file",
        "nobody listens there: start the server, or correct the address in the URL",
    ),
    (
        r"timed out|timeout (connecting|expired)|no route to host|network is unreachable",
        "it cannot be reached: look whether the server runs, whether the host and port in the URL are right, "
        "and for a firewall in between",
    ),
)
_HANGING_UP = re.compile(r"reset by peer|broken pipe|EOF occurred|closed (by|the connection)", re.IGNORECASE)
_WAITING = re.compile(r"in time|timed out|timeout", re.IGNORECASE)
PREPARE_THRESHOLD = "prepare_threshold"
"""What a URL of PostgreSQL may have besides what its library knows: psycopg's own."""
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
"""Parameters of which libpq says only when it connects that their values are wrong."""
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), meaning) for pattern, meaning in _MEANINGS]


def explained(text: str, spelling: Spelling | None = None) -> str:
    """What a driver said on one line, and before it what that means and what to do, where it is known.

    spelling: of URLs of that kind of server; without it, only what needs none is explained.
    """
    line = " ".join(text.split())
    words = {} if spelling is None else spelling._asdict()
    for pattern, meaning in _PATTERNS:
        if (words or "{" not in meaning) and pattern.search(line):
            return f"{meaning.format(**words)} ({line})"
    return line


def while_connecting(text: str, tls: bool) -> str:
    """*text* of an error that came while connecting, marked for explained() where it may be about TLS that
    there is none, or that the server does not like ours. (After a handshake in TLS 1.3 the reason may get
    lost on the way.)"""
    if _HANGING_UP.search(text):
        return f"hung up on {'TLS' if tls else 'plain words'}: {text}"
    return f"no answer to TLS: {text}" if tls and _WAITING.search(text) else text


def unreadable(files: Iterable[tuple[str, str]]) -> str:
    """What is wrong with the first of these (option, path) that cannot be read; "" when all can."""
    for option, path in files:
        try:
            open(path, "rb").close()
        except OSError as error:
            return f"{option} names {path}, which cannot be read: {error.strerror}"
    return ""


def refuse_setting(use_ssl: Any, instead: str) -> None:
    """ConfigurationError when *use_ssl*, the value of broker_use_ssl, asks for TLS to a broker that does
    not go by it: nothing may go unencrypted that was to be encrypted. instead: what is to be written."""
    if use_ssl:
        raise ConfigurationError(
            f"broker_use_ssl is for Redis, RabbitMQ, NATS and IronMQ: {instead}", setting="broker_use_ssl"
        )


def check_libpq(parameters: Mapping[str, Any], setting: str) -> None:
    """ConfigurationError when parameters of PostgreSQL's library have values that it does not take, or name
    files that cannot be read. (A certificate of ours that is not there it would go without.)"""
    for name in _LIBPQ_NUMBERS:
        if not re.fullmatch(r"\s*[+-]?\d+\s*", text := str(parameters.get(name, 0))):
            raise ConfigurationError(
                f"{setting}: {name} is {text!r:.80}, and must be a whole number", setting=setting
            )
    if not _is_finite(text := str(parameters.get("connect_timeout", 0))):  # psycopg rounds it
        raise ConfigurationError(
            f"{setting}: connect_timeout is {text!r:.80}, and must be a number of seconds", setting=setting
        )
    for name, words in _LIBPQ_WORDS.items():
        if (text := str(parameters.get(name, words[0]))) not in words:
            raise ConfigurationError(
                f"{setting}: {name} is {text!r:.80}, and must be one of {', '.join(words)}", setting=setting
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
    """How often psycopg sees a statement before it prepares it: a number, or "none" for never, as poolers may
    want it. ConfigurationError for anything else."""
    if text.lower() in ("none", ""):
        return None
    if text.isdecimal():
        return int(text)
    raise ConfigurationError(
        f"{setting}: {PREPARE_THRESHOLD} is a whole number or none, and not {text!r}", setting=setting
    )


def refuse_parameters(url: str, setting: str) -> None:
    """ConfigurationError when *url*, the value of *setting*, has parameters: it is one of a kind that has
    none."""
    query = url.partition("?")[2].partition("#")[0]
    if query:
        name = query.partition("&")[0].partition("=")[0]
        raise ConfigurationError(
            f"{setting}: {url.partition(':')[0]}:// has no parameters, and the URL has {name!r}: take it "
            "out; a question mark in a path or a password is written %3F",
            setting=setting,
        )
