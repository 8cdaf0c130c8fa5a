"""The address of a Redis or Valkey server: a URL and options, converted to a function that connects.

Comes from:  ``broker_url``, ``result_backend`` and their options.
Goes to:     ``connection.py``. redis-py makes the connection (TLS, passwords, sentinels).
Thread:      any; an Endpoint is immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from qworker.conf.secrets import mask_urls
from qworker.errors import ConfigurationError
from qworker.naming import install_command
from qworker.transports.connect_errors import INVALID_HOST, while_connecting
from qworker.transports.redis.client_options import CONNECTION, NAMES, checked, read, split
from qworker.transports.tls import Tls, divided, tls_of

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.cluster import ClusterNode, RedisCluster
    from redis.exceptions import RedisClusterException
    from redis.retry import Retry
    from redis.sentinel import Sentinel
except ImportError as error:
    raise ConfigurationError(
        f"{error.name or 'redis'} is not installed, which redis:// needs: {install_command('redis')}",
        setting="broker_url",
    ) from error

_IN_THE_ADDRESS = {"host", "port", "path", "unix_socket_path", "socket_keepalive_options"}
"""Options of redis-py's connection that are not parameters of a URL."""
_OPTIONS = {"broker_url": "broker_transport_options", "result_backend": "result_backend_transport_options"}
"""Settings with URLs → those with transport options."""
Address = tuple[str, int]
SOCKET_TIMEOUT = 10.0
CONNECT_TIMEOUT = 5.0
CLUSTER = "+cluster"
"""What the scheme of a cluster ends with."""
DEFAULT_TAG = "qworker"
"""The hash tag of our keys on a cluster without a ``global_keyprefix``."""


@dataclass(frozen=True)
class Endpoint:
    """The address of a server. safe_url: without passwords. place: equal for URLs of the same database of the
    same server. cluster: whether it is a node of a cluster, the one that has our keys."""

    safe_url: str
    db: int
    place: tuple[Any, ...]
    connect: Callable[..., Any]
    """connect(timeout) returns a connected redis-py connection; no step of it takes longer than *timeout*
    seconds."""
    cluster: bool = False

    def key_prefix(self, options: Mapping[str, Any]) -> str:
        """Return the prefix of all keys for *options*: ``global_keyprefix``, on a cluster as a hash tag."""
        prefix = str(options.get("global_keyprefix") or "")
        return _tagged(prefix) if self.cluster else prefix

    def has(self, prefix: str) -> bool:
        """Return whether keys with *prefix*, from key_prefix(), are on this server: on a cluster, in the same
        slot as the keys of this endpoint."""
        return not self.cluster or hash_tag(prefix) == self.place[-1]


def hash_tag(key: str) -> str:
    """Return the part of *key* that determines its slot on a cluster; "" if that is the whole key."""
    return key.partition("{")[2].partition("}")[0] if "}" in key.partition("{")[2] else ""


def _tagged(prefix: str) -> str:
    """Return *prefix* with a hash tag, so that all keys which start with it are in one slot."""
    if hash_tag(prefix):
        return prefix
    tagged = f"{{{prefix or DEFAULT_TAG}}}"
    return tagged if hash_tag(tagged) else f"{{{DEFAULT_TAG}}}{prefix}"


def endpoint(
    url: str,
    options: Mapping[str, Any] | None = None,
    use_ssl: Any = None,
    setting: str = "broker_url",
) -> Endpoint:
    """Return the endpoint of *url*, the value of *setting*, with the transport options and the TLS settings,
    not connected yet.

    Raises ConfigurationError for an invalid URL, or unusable files of certificates.
    """
    named = _OPTIONS.get(setting, setting)
    options = {
        name: read(name, value, named) if name in (*CONNECTION, "db") and value is not None else value
        for name, value in (options or {}).items()
    }
    scheme, _, _ = url.partition("://")
    if scheme == "sentinel":
        return _sentinel(url, options, use_ssl, setting)
    if scheme.endswith(CLUSTER):
        return _cluster(url, options, use_ssl, setting)
    parts = split(url, setting)
    asked, fields = _query(parts.query, setting)
    tls: Tls | None = None
    if scheme in ("redis+socket", "unix", "redis+unix"):
        kind: Any = redis.UnixDomainSocketConnection
        fields["path"] = unquote(parts.path)
        if asked or use_ssl:
            raise ConfigurationError(f"{setting}: a socket has no TLS, which was requested", setting=setting)
        if not fields["path"]:
            raise _wrong(url, "it names no socket: write redis+socket:///path/to/redis.sock?virtual_host=0")
    elif scheme in ("redis", "rediss", "valkey", "valkeys"):
        kind = redis.Connection
        fields["host"], fields["port"] = _address(url, parts.netloc.rpartition("@")[2], 6379)
        if parts.path.strip("/"):
            fields.setdefault("db", unquote(parts.path.strip("/")))
        tls = _tls(scheme, asked, use_ssl, setting)
        if tls is not None:
            kind = redis.SSLConnection
            fields |= tls.for_redis()
    else:
        raise _wrong(
            url,
            "write redis://host:6379/0, rediss://…, redis+socket:///path, sentinel://host:26379 or "
            "redis+cluster://host:6379",
        )
    fields = _common(url, fields | _login(parts.netloc), options)
    place = (fields.get("path") or (fields["host"], fields["port"]), fields["db"])

    def connect(timeout: float = SOCKET_TIMEOUT) -> Any:
        return _connected(kind(**_within(timeout, fields)), tls)

    return Endpoint(mask_urls(url), fields["db"], place, connect)


def _sentinel(url: str, options: Mapping[str, Any], use_ssl: Any, setting: str) -> Endpoint:
    """``sentinel://host:26379;sentinel://host2:26379/0``: the master is determined at every connect."""
    name = options.get("master_name")
    if not name:
        raise ConfigurationError(
            'sentinel:// needs the name of the master: broker_transport_options = {"master_name": '
            '"mymaster"}',
            setting="broker_transport_options",
        )
    addresses: list[Address] = []
    asked: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for part in url.split(";"):
        parts = split(part if "://" in part else f"sentinel://{part}", setting)
        addresses += _addresses(url, parts.netloc, 26379)
        fields |= _login(parts.netloc)
        asked_here, fields_here = _query(parts.query, setting)
        asked |= asked_here
        fields |= fields_here
        if parts.path.strip("/"):
            fields["db"] = parts.path.strip("/")
    tls = _tls("sentinel", asked, use_ssl, setting)
    kind: Any = redis.Connection if tls is None else redis.SSLConnection
    fields = _common(url, fields | (tls.for_redis() if tls is not None else {}), options)
    sentinel = _client_of(addresses, options.get("sentinel_kwargs") or {}, _OPTIONS.get(setting, setting))

    def connect(timeout: float = SOCKET_TIMEOUT) -> Any:
        host, port = sentinel.discover_master(name)
        return _connected(kind(host=host, port=port, **_within(timeout, fields)), tls)

    return Endpoint(mask_urls(url), fields["db"], ("sentinel", name, fields["db"]), connect)


def _client_of(addresses: list[Address], given: Any, setting: str) -> Any:
    """Return redis-py's client for sentinels. given: options of its connections to them. Each sentinel is
    tried once: redis-py would try an unavailable one ten times, for up to half a minute, before the next."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{setting}: sentinel_kwargs must be a mapping", setting=setting)
    fields = {
        name: read(name, value, f"{setting}: sentinel_kwargs")
        if name in NAMES and value is not None
        else value
        for name, value in given.items()
    }
    fields = {"socket_timeout": CONNECT_TIMEOUT, "retry": Retry(NoBackoff(), 0), **fields}
    try:
        return Sentinel(addresses, sentinel_kwargs=fields)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{setting}: sentinel_kwargs: {error}", setting=setting) from None


def _cluster(url: str, options: Mapping[str, Any], use_ssl: Any, setting: str) -> Endpoint:
    """``redis+cluster://host:6379,host2:6379``: the node of our keys is determined at every connect."""
    scheme = url.partition("://")[0].removesuffix(CLUSTER)
    if scheme not in ("redis", "rediss", "valkey", "valkeys"):
        raise _wrong(url, "a cluster is redis+cluster://host:6379 or rediss+cluster://host:6379")
    if sentinels := sorted({"master_name", "sentinel_kwargs"} & {name for name in options if options[name]}):
        raise ConfigurationError(
            f"{_OPTIONS.get(setting, setting)}: {', '.join(sentinels)} is for sentinel://; a cluster knows "
            "its masters itself",
            setting=setting,
        )
    parts = split(url, setting)
    addresses = _addresses(url, parts.netloc, 6379)
    asked, fields = _query(parts.query, setting)
    if parts.path.strip("/"):
        fields.setdefault("db", unquote(parts.path.strip("/")))
    tls = _tls(scheme, asked, use_ssl, setting)
    kind: Any = redis.Connection if tls is None else redis.SSLConnection
    common = _common(url, fields | _login(parts.netloc), options)
    if common.pop("db"):
        raise _wrong(
            url, "a cluster has no numbered databases: remove the number, and set global_keyprefix instead"
        )
    tag = hash_tag(_tagged(str(options.get("global_keyprefix") or "")))
    search = common if tls is None else {**common, **tls.for_redis(), "ssl": True}
    common |= {} if tls is None else tls.for_redis()
    known = list(addresses)

    def connect(timeout: float = SOCKET_TIMEOUT) -> Any:
        try:
            known[:], (host, port) = _located(tag, known, addresses, _within(timeout, search))
        except RedisClusterException as error:
            alone = "Cluster mode is not enabled" in str(error)
            text = f"it is not a cluster: use {scheme}://" if alone else str(error)
            raise redis.ConnectionError(text) from error
        return _connected(kind(host=host, port=port, **_within(timeout, common)), tls)

    return Endpoint(mask_urls(url), 0, ("cluster", *sorted(addresses), tag), connect, cluster=True)


def _located(
    tag: str, known: Sequence[Address], given: Sequence[Address], fields: Mapping[str, Any]
) -> tuple[list[Address], Address]:
    """Return the addresses of a cluster's nodes, and of the master that has the keys with *tag*.

    known: the nodes by the last answer, given: those in the URL. They are asked one after the other, because
    redis-py would shuffle several with the random numbers of the program. Raises RedisClusterException when
    none answers.
    """
    failure = RedisClusterException("no node is known")
    for host, port in dict.fromkeys((*known, *given)):
        try:
            node: Any = ClusterNode(host, port)  # type: ignore[no-untyped-call]
            client: Any = RedisCluster(startup_nodes=[node], **fields)
        except RedisClusterException as error:
            failure = error
            continue
        try:
            master = client.get_node_from_key(tag)
            return [(each.host, each.port) for each in client.get_nodes()], (master.host, master.port)
        finally:
            client.close()
    raise failure


def _query(text: str, setting: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the parameters of a URL for TLS, and the rest. Raises ConfigurationError for an unknown one, or
    an invalid value."""
    asked, others = divided(parse_qsl(text))
    if "virtual_host" in others:
        others["db"] = others.pop("virtual_host")
    if elsewhere := _IN_THE_ADDRESS & others.keys():
        text = ", ".join(sorted(elsewhere))
        raise ConfigurationError(f"{setting}: {text} belongs in the address of a URL", setting=setting)
    return asked, checked(others, setting)


def _tls(scheme: str, asked: Mapping[str, str], use_ssl: Any, setting: str) -> Tls | None:
    tls = tls_of(scheme, asked, use_ssl, setting)
    return None if tls is None else tls.checked(setting)


def _check_login(connection: Any) -> None:
    """Raise redis.AuthenticationError when the server requires a password and we have none. The server only
    says so for a short command: for a long one it mentions lengths, for a subscription it says nothing."""
    connection.send_command("PING")
    try:
        connection.read_response()
    except redis.AuthenticationError:
        raise
    except redis.ResponseError:  # a user with the permissions that we need, but not this one
        pass


def _connected(connection: Any, tls: Tls | None) -> Any:
    wrong = "" if tls is None else tls.problem()
    if wrong:  # the files were valid at the start
        raise OSError(wrong)
    try:
        connection.connect()
        if not connection.password:
            _check_login(connection)
    except (redis.ConnectionError, redis.TimeoutError) as error:
        marked = while_connecting(str(error), tls is not None)
        if marked == str(error):
            raise
        raise redis.ConnectionError(marked) from error
    return connection


def _common(url: str, fields: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        db = int(fields.get("db", options.get("db", 0)))
    except ValueError:
        raise _wrong(url, f"the database is a number, not {fields['db']!r}") from None
    common: dict[str, Any] = {
        "socket_timeout": options.get("socket_timeout") or SOCKET_TIMEOUT,
        "socket_connect_timeout": options.get("socket_connect_timeout") or CONNECT_TIMEOUT,
        "client_name": options.get("client_name"),
        **fields,
        "db": db,
        "protocol": 2,
    }
    if "path" not in fields:
        common["socket_keepalive"] = fields.get("socket_keepalive", options.get("socket_keepalive", True))
        if options.get("socket_keepalive_options"):
            common["socket_keepalive_options"] = options["socket_keepalive_options"]
    return common


def _within(timeout: float, fields: dict[str, Any]) -> dict[str, Any]:
    limits = {name: min(timeout, fields[name]) for name in ("socket_timeout", "socket_connect_timeout")}
    if "ssl_cert_reqs" in fields:
        limits["socket_timeout"] = min(limits.values())  # the handshake is part of connecting
    return fields | limits


def _login(netloc: str) -> dict[str, str]:
    user, _, password = netloc.rpartition("@")[0].partition(":")
    found = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in found.items() if value}


def _addresses(url: str, netloc: str, port: int) -> list[Address]:
    return [_address(url, host, port) for host in netloc.rpartition("@")[2].split(",")]


def _address(url: str, text: str, port: int) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        return parts.hostname or "127.0.0.1", parts.port or port
    except ValueError:
        raise _wrong(url, INVALID_HOST) from None


def _wrong(url: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"{mask_urls(url)} does not name a Redis server: {why}", setting="broker_url")
