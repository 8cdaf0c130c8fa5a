"""A URL of NATS: the servers, our login, and encryption.

Comes from:  ``broker_url``, ``broker_use_ssl``.
Goes to:     ``broker.py``.
Thread:      any; pure.

``nats://[user:password@ | token@]host[:port][,host2[:port]…][?ssl_ca_certs=…]``, and ``tls://`` with TLS.
"""

from __future__ import annotations

from hashlib import blake2b
from string import ascii_letters, digits
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from qworker.conf.secrets import mask_urls
from qworker.errors import ConfigurationError
from qworker.transports.connect_errors import INVALID_HOST
from qworker.transports.held.port import DEAD, FAILED
from qworker.transports.tls import Tls, divided, tls_of

PORT = 4222


class Host(NamedTuple):
    """The address of a server. tls_name: the name in its certificate."""

    name: str
    port: int
    tls_name: str


class Address(NamedTuple):
    """login: ``user`` and ``password``, or ``token``. shown: the URL without secrets."""

    servers: list[Host]
    login: dict[str, str]
    tls: Tls | None
    shown: str


def read_url(url: str, use_ssl: Any = None) -> Address:
    """Parse *url*. ConfigurationError for an invalid one."""
    scheme, _, rest = url.partition("://")
    address, _, query = rest.partition("?")
    login_text, at, hosts = address.rpartition("@")
    parameters, others = divided(parse_qsl(query))
    hosts = hosts.rstrip("/")
    if others or "/" in hosts:
        wrong = next(iter(others), hosts.partition("/")[2])
        raise ConfigurationError(
            f"broker_url: {scheme}:// only accepts servers and ssl_ options, not {wrong!r}; other options "
            "belong in broker_transport_options",
            setting="broker_url",
        )
    tls = tls_of(scheme, {**({"ssl": True} if scheme == "tls" else {}), **parameters}, use_ssl)
    user, colon, password = login_text.partition(":")
    login: dict[str, str] = {}
    if at:
        login = {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}
    try:
        servers = [host_of(host) for host in (hosts or "127.0.0.1").split(",")]
    except ValueError:
        text = f"broker_url: {mask_urls(url)}: {INVALID_HOST}"
        raise ConfigurationError(text, setting="broker_url") from None
    return Address(
        servers,
        login,
        None if tls is None else tls.checked("broker_url"),
        f"{scheme}://{'********@' if at else ''}{hosts or '127.0.0.1'}",
    )


def host_of(text: str) -> Host:
    """Parse *text*, with or without a port. ValueError for an invalid host."""
    name, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        name, port = text, str(PORT)
    if not name or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} is not the host of a NATS server")
    name = name.removeprefix("[").removesuffix("]")
    return Host(name, int(port), name)


# -- Names in JetStream: streams, subjects, and the consumer of each queue --
# Names of consumers and tokens of subjects may not contain dots, spaces, wildcards or path separators, and
# JetStream makes a directory of a consumer's name. Queues may have any name. So any character except letters,
# digits, "-" and "_" is written as "=" and two hexadecimal digits for each byte; and a name that would be too
# long is shortened and completed with a digest. The description of the consumer contains the queue's name.

_PLAIN = frozenset((ascii_letters + digits + "-_").encode())
LONGEST = 120
"""Maximum characters of a token: file systems limit names to 255 bytes, and JetStream adds to them."""
_DIGEST_BYTES = 16
LETTERS = {DEAD: "dead", FAILED: "failed"}


def token(queue: str) -> str:
    """Return *queue* as a token of a subject, and as the name of a consumer. No two queues have the same
    one."""
    written = "".join(
        chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in queue.encode("utf-8", "surrogatepass")
    )
    if written and len(written) <= LONGEST:
        return written
    digest = blake2b(queue.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{written[: LONGEST - 2 - 2 * _DIGEST_BYTES]}=={digest}"


class Layout(NamedTuple):
    """Our names. stream: the stream of messages, and prefix of the other streams."""

    stream: str

    def letters_stream(self, kind: str) -> str:
        """Return the stream for letters of a *kind*: DEAD, FAILED."""
        return f"{self.stream}_{LETTERS[kind]}"

    @property
    def revoked_stream(self) -> str:
        return f"{self.stream}_revoked"

    @property
    def revoked_subject(self) -> str:
        return f"{self.stream}.revoked"

    def subject(self, queue: str) -> str:
        """Return the subject for messages of *queue*."""
        return f"{self.stream}.queue.{token(queue)}"

    def letter_subject(self, kind: str, queue: str | None) -> str:
        """Return the subject for letters of a *kind* from *queue*; None: from any."""
        return f"{self.stream}.{LETTERS[kind]}.{'*' if queue is None else token(queue)}"

    def consumer(self, queue: str, made: str) -> str:
        """Return the consumer of *queue* in a stream that was *made* then. A server that has lost its data
        counts from one again: under the same name, an old acknowledgement would settle a new message."""
        return f"{token(queue)}-{made}"
