"""Options of redis-py's client, converted to a URL and our transport options.

Comes from:  ``Q_CLUSTER['redis']``, the ``OPTIONS`` of a django-redis cache; parameters of URLs with the same
             names.
Goes to:     ``url.py``, which connects.
Thread:      any; pure.

Each name is converted, ignored (IGNORED says why), or refused: none is dropped silently.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from ssl import VerifyMode
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from qworker.conf.kinds import BOOLEAN, INTEGER
from qworker.conf.secrets import mask_urls
from qworker.errors import ConfigurationError
from qworker.naming import close_matches
from qworker.safe_repr import safe_repr

_ADDRESS = ("host", "port", "unix_socket_path", "path", "db", "username", "password", "ssl")
CONNECTION = (
    "socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options", "client_name",
)  # fmt: skip
"""Names that are also our transport options."""
IGNORED: dict[str, str] = {
    **dict.fromkeys(
        ("encoding", "encoding_errors", "decode_responses", "charset", "errors", "parser_class",
         "command_packer", "protocol", "legacy_responses", "socket_read_size"),
        "it concerns the encoding of commands and replies, which qworker does itself",
    ),
    **dict.fromkeys(
        ("retry", "retry_on_timeout", "retry_on_error", "health_check_interval",
         "maint_notifications_config", "oss_cluster_maint_notifications_handler"),
        "it concerns reconnecting, which qworker does itself",
    ),
    **dict.fromkeys(
        ("max_connections", "timeout", "single_connection_client", "auto_close_connection_pool",
         "event_dispatcher"),
        "it concerns a pool of redis-py, which qworker does not use",
    ),
    **dict.fromkeys(("cache", "cache_config"), "qworker does not repeat commands"),
    **dict.fromkeys(
        ("lib_name", "lib_version", "driver_info"), "it is the library's own name, shown by the server"
    ),
}  # fmt: skip
"""Names without a meaning for our connection, and why."""
REFUSED: dict[str, str] = {
    "connection_pool": "use host, port and so on",
    "connection_class": "use host, port, ssl and so on",
    "credential_provider": "use username and password",
    "redis_connect_func": "its changes to a connection cannot be applied to ours",
    **dict.fromkeys(
        ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled", "ssl_ocsp_context", "ssl_ocsp_expected_cert",
         "ssl_min_version", "ssl_include_verify_flags", "ssl_exclude_verify_flags"),
        "OpenSSL's own configuration, named by OPENSSL_CONF in the environment, can do the same",
    ),
}  # fmt: skip
"""Names that would change a connection, but that ours does not support; and what to do."""
_TLS = (
    "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password",
    "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers",
)  # fmt: skip
NAMES = (*_ADDRESS, *CONNECTION, *_TLS)
"""Every name that is converted."""
_NO_HOST = frozenset("/?#@[] ")
_LAST_PORT = 65535


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError("must be text")
    return str(value)


def _host(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be the name or address of a server")
    if "://" in value:
        raise ValueError("must be the name of a server and not a URL, which replaces all options")
    if ":" in value and not _is_address(value):
        raise ValueError("must be the name or address of a server; its port is the option port")
    if set(value) & _NO_HOST:
        raise ValueError("must be the name or address of a server")
    return value


def _is_address(value: str) -> bool:
    try:
        ip_address(value)
    except ValueError:
        return False
    return True


def _path(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ValueError("must be a path")
    return os.fsdecode(value)


def _port(value: Any) -> int:
    return _between(value, 1, _LAST_PORT)


def _database(value: Any) -> int:
    return _between(value, 0, math.inf)


def _between(value: Any, least: int, most: float) -> int:
    try:
        number: int = INTEGER.read(value)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        upper = "or more" if most == math.inf else f"to {most}"
        raise ValueError(f"must be a whole number, {least} {upper}")
    return number


def _seconds(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError("must be a number of seconds, more than 0")
    return number if isinstance(value, str) else value


def _socket_options(value: Any) -> dict[int, Any]:
    if not isinstance(value, Mapping) or not all(
        isinstance(name, int) and isinstance(option, int | bytes) for name, option in value.items()
    ):
        raise ValueError("must be a mapping of socket options, such as {socket.TCP_KEEPIDLE: 30}")
    return dict(value)


def _verification(value: Any) -> Any:
    if value is not None and not isinstance(value, str | bool | VerifyMode):
        raise ValueError('must be "none", "optional" or "required"')
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        ("username", "password", "client_name", "ssl_ca_data", "ssl_password", "ssl_ciphers"), _text
    ),
    **dict.fromkeys(
        ("unix_socket_path", "path", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"), _path
    ),
    **dict.fromkeys(("ssl", "socket_keepalive", "ssl_check_hostname"), BOOLEAN.read),
    **dict.fromkeys(("socket_timeout", "socket_connect_timeout"), _seconds),
    "host": _host,
    "port": _port,
    "db": _database,
    "socket_keepalive_options": _socket_options,
    "ssl_cert_reqs": _verification,
}
"""The conversion of each value."""
_SECRET = ("password", "ssl_password", "ssl_ca_data")


def checked(given: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """Return those of *given* that are converted; None and "" count as not given.

    Raises ConfigurationError for a name that is unknown or refused, and for a value of the wrong type. Names
    without an effect are allowed.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in NAMES:
            if value not in (None, "") or name == "ssl_cert_reqs":
                found[name] = read(name, value, setting)
        elif name in REFUSED:
            if value:
                raise _wrong(setting, f"{name} is not supported: {REFUSED[name]}")
        elif name not in IGNORED:
            hint = close_matches(str(name), (*NAMES, *IGNORED), 1)
            did_you_mean = f"did you mean {hint[0]}?" if hint else f"use one of {', '.join(NAMES)}"
            raise _wrong(setting, f"redis-py's connection has no option {name!r}; {did_you_mean}")
    return found


def read(name: str, value: Any, setting: str) -> Any:
    """Return the converted *value* of the option *name*; ConfigurationError for an invalid one."""
    try:
        return _READERS[name](value)
    except ValueError as error:
        shown = "" if name in _SECRET else f" is {mask_urls(safe_repr(value, 80))}, but"
        raise _wrong(setting, f"{name}{shown} {error}") from None


def split(url: str, setting: str) -> SplitResult:
    """Return the parts of *url*. Raises ConfigurationError for an invalid URL."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise _wrong(setting, f"{mask_urls(url)} is not a URL ({error})") from None


def url_of(given: Mapping[str, Any], setting: str) -> tuple[str, dict[str, Any]]:
    """Return the URL and the transport options for options of redis-py's client.

    Raises ConfigurationError for options that are not supported.
    """
    options = checked(given, setting)
    path = options.pop("unix_socket_path", None) or options.pop("path", None)
    host, port = options.pop("host", "localhost"), options.pop("port", 6379)
    if path:
        options["virtual_host"] = options.pop("db", 0)
        return merged(f"redis+socket://{quote(path)}", options, setting)
    host = f"[{host}]" if ":" in host else host
    scheme = "rediss" if options.get("ssl") else "redis"
    return merged(f"{scheme}://{host}:{port}/{options.pop('db', 0)}", options, setting)


def merged(url: str, given: Mapping[str, Any], setting: str) -> tuple[str, dict[str, Any]]:
    """Return *url* merged with *given*, options of redis-py's client for the same server, and the remaining
    transport options. The URL takes precedence. Raises like url_of()."""
    options = checked({name: value for name, value in given.items() if name != "virtual_host"}, setting)
    parts = split(url, setting)
    is_socket = parts.scheme in ("redis+socket", "redis+unix", "unix")
    login, at, where = parts.netloc.rpartition("@")
    written = dict(parse_qsl(parts.query, keep_blank_values=True))
    user, colon, secret = login.partition(":")
    if not colon and options.get("password") and "password" not in written:
        secret, colon = quote(options["password"], safe=""), ":"
    if not user and options.get("username") and "username" not in written:
        user = quote(options["username"], safe="")
    at = "@" if user or colon else at
    query = {name: str(value) for name, value in _tls(parts.scheme, options, is_socket, setting).items()}
    if "virtual_host" in given:
        query["virtual_host"] = str(given["virtual_host"])
    path = parts.path
    if not is_socket and not path.strip("/") and "db" in options and "db" not in written:
        path = f"/{options['db']}"
    text = urlencode({**query, **written})
    left = {name: options[name] for name in CONNECTION if name in options and name not in written}
    start = f"{parts.scheme}://{user}{colon}{secret}{at}{where}{path}"
    return f"{start}?{text}" if text else start, left


def _tls(scheme: str, options: Mapping[str, Any], is_socket: bool, setting: str) -> dict[str, Any]:
    asked = {name: options[name] for name in _TLS if name in options}
    switch = options.get("ssl")
    if switch is False:
        return {}  # redis-py's client also accepts this
    if is_socket and (switch or asked):
        raise _wrong(setting, f"a socket has no TLS, requested by {', '.join(asked) or 'ssl'}")
    if asked and not switch and scheme not in ("rediss", "valkeys"):
        raise _wrong(
            setting, f"{', '.join(asked)} requests TLS, and ssl does not: set ssl: True, or remove it"
        )
    named = {name: _written(value) for name, value in asked.items()}
    return {"ssl": True, **named} if switch and scheme not in ("rediss", "valkeys") else named


def _written(value: Any) -> Any:
    """Return a TLS option as written in a URL; the verification may be one of Python's own constants."""
    if value is None:
        return "none"
    return value.name.removeprefix("CERT_").lower() if isinstance(value, VerifyMode) else value


def _wrong(setting: str, text: str) -> ConfigurationError:
    return ConfigurationError(f"{setting}: {text}", setting=setting)
