"""mongo_url: converts options of pymongo's client to a URL with a database, and the remaining options.

Comes from:  ``Q_CLUSTER['mongo']`` and ``['mongo_db']``.
Goes to:     ``urls.py``.
Thread:      any; functions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from qworker.conf.secrets import mask_urls
from qworker.errors import ConfigurationError

DATABASE = "django-q"
"""Used if neither a key nor the URL names one."""
_OF_DOCUMENTS = frozenset({"connect", "document_class", "tz_aware", "type_registry"})
"""Options for the application's documents, which do not apply here."""
_SOURCES = {"SCRAM-SHA-1": "admin", "SCRAM-SHA-256": "admin", "DEFAULT": "admin", "PLAIN": "$external"}
"""The user's database for each mechanism, if neither the URL nor an option sets it. Other mechanisms need
none."""


class Parts(NamedTuple):
    """The parts of a MongoDB URL, as written; "" if missing."""

    scheme: str
    login: str
    hosts: str
    database: str
    query: str


def mongo_url(given: Mapping[str, Any], database: str | None) -> tuple[str, dict[str, Any]]:
    """Return the URL for the options *given*, and the remaining options.

    database: the name; None for the one in the URL. Raises ConfigurationError for an invalid address.
    """
    options = {
        name: value for name, value in given.items() if value is not None and name not in _OF_DOCUMENTS
    }
    parts = _parts(options.pop("host", "localhost"))
    hosts = _with_port(parts, options.pop("port", None))
    login = _login(parts.login, options.pop("username", None), options.pop("password", None))
    query = parts.query
    if login:
        source = _source(parts, options)
        query = "&".join(filter(None, [query, source and f"authSource={quote(source, safe='$')}"]))
    name = quote(database or unquote(parts.database) or DATABASE, safe="")
    url = f"{parts.scheme}://{login}{'@' * bool(login)}{hosts}/{name}{'?' * bool(query)}{query}"
    return url, options


def check_with_pymongo(url: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if pymongo refuses the options. Does not connect or look up names: for a URL
    with ``+srv``, only the options are checked."""
    from pymongo import MongoClient
    from pymongo.errors import PyMongoError

    srv = url.startswith("mongodb+srv:")
    asked = {name: value for name, value in options.items() if not (srv and name.lower().startswith("srv"))}
    try:
        MongoClient("localhost" if srv else url, connect=False, **asked).close()
    except (PyMongoError, ValueError, TypeError, OSError) as error:
        raise _wrong(f"pymongo does not accept it: {error}") from None


def _parts(host: Any) -> Parts:
    places = [host] if isinstance(host, str) else host
    if not isinstance(places, Sequence) or not places or not all(isinstance(one, str) for one in places):
        raise _wrong("'host' must be a name, a list of names, or a mongodb:// or mongodb+srv:// URL")
    if "://" not in ",".join(places):
        plain = [quote(one, safe="") if one.startswith("/") else one for one in places]
        return Parts("mongodb", "", ",".join(plain), "", "")
    scheme, _, rest = places[0].partition("://")
    if len(places) > 1 or scheme not in ("mongodb", "mongodb+srv"):
        raise _wrong("a URL as 'host' must be one mongodb:// or mongodb+srv:// URL, which contains all hosts")
    rest, _, query = rest.partition("?")
    login, _, rest = rest.rpartition("@")
    hosts, _, name = rest.partition("/")
    return Parts(scheme, login, hosts, name.partition(".")[0], query)


def _with_port(parts: Parts, port: Any) -> str:
    """Return the hosts, adding *port* to those without one."""
    if port is None or parts.scheme != "mongodb":
        return parts.hosts
    return ",".join(
        host if ":" in host.rpartition("]")[2] or host.startswith("%2F") else f"{host}:{port}"
        for host in parts.hosts.split(",")
    )


def _login(written: str, user: Any, password: Any) -> str:
    """Return the login. written: the URL's; separate values take precedence, as in pymongo."""
    known, colon, secret = written.partition(":")
    if user is not None:
        known = quote(str(user), safe="")
    if password is not None:
        colon, secret = ":", quote(str(password), safe="")
    return f"{known}{colon}{secret}"


def _source(parts: Parts, options: Mapping[str, Any]) -> str | None:
    """Return the user's database if it must be set, since the URL names another database; else None."""
    stated = {name.lower(): value for name, value in options.items()}
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        stated.setdefault(name.lower(), unquote(value))
    if "authsource" in stated:
        return None
    default = _SOURCES.get(str(stated.get("authmechanism", "DEFAULT")).upper())
    return default and (unquote(parts.database) or default)


def _wrong(what: str) -> ConfigurationError:
    return ConfigurationError(f"Q_CLUSTER['mongo']: {mask_urls(what)}", setting="mongo")
