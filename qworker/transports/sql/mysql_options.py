"""The parameters of a MySQL or MariaDB URL, converted for PyMySQL.

Comes from:  ``mysql://…?name=value``, with names of PyMySQL, mysqlclient, the server's own client and its
             option files.
Goes to:     ``mysql.py``, for the broker; ``backends/sql/tables.py``, for the result store.
Thread:      any; pure, except for reading option files.

Each name is converted, ignored (IGNORED says why), or refused: none is dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from configparser import Error as ConfigParserError
from configparser import RawConfigParser
from pathlib import Path
from typing import Any, NamedTuple

from qworker.conf import kinds
from qworker.errors import ConfigurationError
from qworker.naming import close_matches
from qworker.transports.tls import Tls, divided, tls_of


def _whole(value: str) -> int:
    number = int(value)
    if number <= 0:
        raise ValueError
    return number


def _key(path: str) -> bytes:
    return Path(path).expanduser().read_bytes()


_CARRIED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "host": ("host", str),
    "port": ("port", _whole),
    "user": ("user", str),
    "password": ("password", str),
    "passwd": ("password", str),
    "database": ("database", str),
    "db": ("database", str),
    "unix_socket": ("unix_socket", str),
    "charset": ("charset", str),
    "collation": ("collation", str),
    "connect_timeout": ("connect_timeout", _whole),
    "read_timeout": ("read_timeout", _whole),
    "write_timeout": ("write_timeout", _whole),
    "bind_address": ("bind_address", str),
    "program_name": ("program_name", str),
    "init_command": ("init_command", str),
    "server_public_key": ("server_public_key", str.encode),
    "server_public_key_path": ("server_public_key", _key),
}
"""Options → PyMySQL's name, and the function that converts the value."""
_FILE, _GROUP = "read_default_file", "read_default_group"
MOST_INCLUDED = 10
"""Maximum nesting of included option files, as in MySQL."""
IGNORED = {
    "autocommit": "qworker's statements control their own commits",
    "isolation_level": "claims need READ COMMITTED, which qworker sets",
    "sql_mode": "qworker's statements are written for a certain mode, which it sets",
    "use_unicode": "it affects how qworker reads values",
    "binary_prefix": "it affects how qworker writes statements",
    "conv": "it affects how qworker reads values",
    "cursorclass": "it affects how qworker reads rows",
    "client_flag": "it affects the counting of rows; only the flag of TLS is used",
    "multi_statements": "qworker's connection always has them",
    "multi_results": "qworker's connection always has them",
    "local_infile": "qworker never loads a file",
    "max_allowed_packet": "the limit is read from the server",
    "defer_connect": "qworker connects on first use in any case",
}
"""Options that are ignored, and why."""
_SWITCHES = ("compress", "named_pipe")
"""Options that PyMySQL does not support: they may only be off."""
_AUTH = "auth_plugin"
_PLUGINS = (
    "mysql_native_password", "caching_sha2_password", "sha256_password", "mysql_clear_password",
    "client_ed25519", "dialog",
)  # fmt: skip
"""Authentication plugins that PyMySQL supports; the server chooses."""
_MODES: dict[str, dict[str, Any]] = {
    "PREFERRED": {},
    "REQUIRED": {"ssl_cert_reqs": "none"},
    "VERIFY_CA": {"ssl_cert_reqs": "required", "ssl_check_hostname": False},
    "VERIFY_IDENTITY": {"ssl_cert_reqs": "required", "ssl_check_hostname": True},
}
"""The meaning of each ``ssl_mode``, except DISABLED."""
_SSL_FLAG = 2048
"""CLIENT.SSL, among the flags of a client."""
_AUTHORITIES = ("ssl_ca", "ssl_capath", "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data")
NAMES = frozenset((*_CARRIED, _FILE, _GROUP, *IGNORED, *_SWITCHES, _AUTH, "ssl_mode", "ssl_disabled"))
"""Every known name, except those of TLS, which are in ``tls.py``."""
_IN_FILES = {
    "socket": "unix_socket",
    "default_character_set": "charset",
    "default_auth": _AUTH,
    "ssl_verify_server_cert": "ssl_verify_cert",
}
"""Names in option files that are different in URLs; all others are the same, with dashes or underscores."""


class MySQLOptions(NamedTuple):
    """fields: arguments of PyMySQL's connection. tls: None if not requested: then PyMySQL encrypts if the
    server can, without verification. plain: TLS is disabled."""

    fields: dict[str, Any]
    tls: Tls | None
    plain: bool = False

    def arguments(self) -> dict[str, Any]:
        """Return all arguments of PyMySQL's connection. OSError for invalid certificate files."""
        if self.tls is not None:
            return {**self.fields, "ssl": self.tls.context()}
        return {**self.fields, "ssl_disabled": True} if self.plain else self.fields


def options_of(query: Iterable[tuple[str, str]], setting: str) -> MySQLOptions:
    """Return the options in the parameters of a URL, the value of *setting*. Certificate files are not read.

    Raises ConfigurationError for unknown names, invalid values, and option files that cannot be read.
    """
    given = dict(query)
    if _FILE in given or _GROUP in given:
        given = {**_from_file(given, setting), **given}
    parameters, others = divided(given.items())
    if not parameters and _flags(others.get("client_flag", "")) & _SSL_FLAG:
        parameters["ssl_mode"] = "REQUIRED"
    fields: dict[str, Any] = {}
    for name, value in others.items():
        if name in _CARRIED:
            argument, read = _CARRIED[name]
            try:
                fields[argument] = read(value)
            except (ValueError, OSError) as error:
                raise _wrong(setting, f"{name} is {value!r}, which is invalid ({error})") from None
        elif name in _SWITCHES:
            if _is_on(setting, name, value):
                raise _wrong(setting, f"{name} is on, which PyMySQL does not support: remove it")
        elif name == _AUTH:
            if value not in _PLUGINS:
                raise _wrong(
                    setting, f"{name} is {value!r}, but PyMySQL only has {', '.join(_PLUGINS)}: remove it"
                )
        elif name not in (_FILE, _GROUP) and name not in IGNORED:
            hint = close_matches(name, NAMES, 1)
            did_you_mean = f"did you mean {hint[0]}?" if hint else f"use one of {', '.join(sorted(NAMES))}"
            raise _wrong(setting, f"MySQL's connection has no option {name!r}; {did_you_mean}")
    return MySQLOptions(fields, *_tls(parameters, setting))


def _flags(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _tls(parameters: dict[str, str], setting: str) -> tuple[Tls | None, bool]:
    """Return the TLS options, and whether TLS is disabled."""
    given = dict(parameters)
    mode = given.pop("ssl_mode", None)
    off = given.pop("ssl_disabled", None)
    if (mode or "").upper() == "DISABLED" or (off and _is_on(setting, "ssl_disabled", off)):
        return None, True
    if mode is None:
        return tls_of("mysql", given, setting=setting), False
    if mode.upper() not in _MODES:
        raise _wrong(setting, f"ssl_mode is {mode!r}, but must be one of DISABLED, {', '.join(_MODES)}")
    meant = _MODES[mode.upper()]
    if mode.upper() == "REQUIRED" and any(name in given for name in _AUTHORITIES):
        meant = _MODES["VERIFY_CA"]  # like MySQL's own client
    return tls_of("mysql", {**meant, **given}, setting=setting), False


def _from_file(given: dict[str, str], setting: str) -> dict[str, str]:
    """Return the contents of the option file, with the names of URL parameters: the group of every client,
    overridden by the named one, as in MySQL's own library."""
    found: dict[str, str] = {}
    parsers = list(_parsed(Path(given.get(_FILE, "/etc/my.cnf")).expanduser(), setting))
    for group in dict.fromkeys(("client", given.get(_GROUP, "client"))):
        for parser in parsers:
            for written, value in parser.items(group) if parser.has_section(group) else ():
                name = written.replace("-", "_")
                text = "true" if value is None else value.strip().strip("\"'")
                found[_IN_FILES.get(name, name)] = text
    return found


def _parsed(path: Path, setting: str, depth: int = 0) -> Iterator[RawConfigParser]:
    """Return the file *path*, and those that it includes, which come before it."""
    parser = RawConfigParser(allow_no_value=True, strict=False)
    orders: list[list[str]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        orders += [line.split(None, 1) for line in lines if line.lstrip().startswith("!")]
        parser.read_string("\n".join(line for line in lines if not line.lstrip().startswith("!")))
    except (OSError, UnicodeError, ConfigParserError) as error:
        raise _wrong(setting, f"{_FILE}: {path} cannot be read ({error})") from None
    yield parser
    for order in orders:
        where = Path(order[-1].strip())
        if order[0] not in ("!include", "!includedir") or len(order) < 2 or depth == MOST_INCLUDED:
            raise _wrong(setting, f"{_FILE}: {path} has {' '.join(order)}, which is not understood")
        for each in [where] if order[0] == "!include" else sorted(where.glob("*.cnf")):
            yield from _parsed(each, setting, depth + 1)


def _is_on(setting: str, name: str, value: str) -> bool:
    try:
        return value != "" and bool(kinds.BOOLEAN.read(value))
    except ValueError as error:
        raise _wrong(setting, f"{name} {error}") from None


def _wrong(setting: str, text: str) -> ConfigurationError:
    return ConfigurationError(f"{setting}: {text}", setting=setting)
