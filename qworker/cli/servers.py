"""Servers: availability, version, clock and disk, for `qworker doctor`.

Comes from:  doctor, `qworker config check --connect`.
Goes to:     one short connection, with the driver from the server's extra.
Thread:      main. Nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from qworker.cli.output import age
from qworker.conf import mask_urls
from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.naming import install_command
from qworker.transports.connect_errors import MYSQL, POSTGRESQL, RABBITMQ, REDIS, explained

LARGEST_SKEW = 2.0  # seconds
TIMEOUT = 5.0  # seconds, for a connection and for one answer


class Fact(NamedTuple):
    """A fact about a server.

    - severity: "error", "warning" or "ok".
    - what: the fact.
    - advice: what to do; "" for nothing.
    """

    severity: str
    what: str
    advice: str = ""


def facts(url: str, setting: str, conf: Any) -> Iterator[Fact]:
    """Return facts about a server; nothing if the URL names no server.

    - url, setting: its URL, and the setting it comes from.
    - conf: the settings of the app.

    Raises BrokerUnavailable when it is unavailable, and ConfigurationError when its driver is missing.
    """
    scheme = url.removeprefix("db+").partition(":")[0].partition("+")[0]
    ask = _ASK.get(scheme)
    if ask is None:
        return
    try:
        yield from ask(url, setting, conf)
    except ImportError as error:
        raise ConfigurationError(
            f"{setting}: {error.name} is not installed, which {scheme}:// needs: "
            f"{install_command(_EXTRAS.get(scheme, scheme))}",
            setting=setting,
        ) from None
    except ConfigurationError:
        raise
    except Exception as error:  # each driver has its own errors
        answers = " ".join(str(error).split())
        # Our errors have an explanation already.
        why = (
            answers
            if isinstance(error, BrokerUnavailable)
            else explained(answers, _SPELLINGS.get(scheme, REDIS))
        )
        if why == answers:
            why += "; is the server running, and is the address right?"
        raise BrokerUnavailable(f"{setting}: {mask_urls(url)} is unavailable: {mask_urls(why)}") from error


def skew(where: str, server: float, before: float, after: float) -> Iterator[Fact]:
    """Compare a server's clock with ours. server: its epoch seconds, read between *before* and *after* on our
    clock."""
    off = server - min(max(server, before), after)
    if abs(off) > LARGEST_SKEW:
        ahead = "ahead of" if off > 0 else "behind"
        what = f"the clock of {where} is {age(abs(off))} {ahead} ours"
        yield Fact(
            "error", what, "set the clocks of all machines by NTP; ETAs, expiry and leases depend on them"
        )


def version(where: str, product: str, text: str, oldest: tuple[int, ...]) -> Iterator[Fact]:
    numbers = tuple(int(part) for part in text.split("-")[0].split(".")[:3] if part.isdecimal())
    if numbers and numbers < oldest:
        wanted = ".".join(map(str, oldest))
        yield Fact("error", f"{product} {text} at {where} is too old", f"use {product} {wanted} or newer")
    else:
        yield Fact("ok", f"{product} {text} answers at {where}")


# -- Redis --


def redis_facts(where: str, info: dict[str, str], save: str | None, allow_eviction: bool) -> Iterator[Fact]:
    """info: the fields of INFO. save: the value of ``CONFIG GET save``, None if unknown."""
    product = "Valkey" if "valkey_version" in info else "Redis"
    text = info.get("valkey_version") or info.get("redis_version", "")
    yield from version(where, product, text, (5, 0))
    policy = info.get("maxmemory_policy", "noeviction")
    advice = "CONFIG SET maxmemory-policy noeviction"
    if policy.startswith("allkeys-"):
        severity = "warning" if allow_eviction else "error"
        yield Fact(severity, f"{where} has maxmemory-policy {policy}: it deletes messages when its memory is "
                             "full", advice)  # fmt: skip
    elif policy.startswith("volatile-"):
        yield Fact("warning", f"{where} has maxmemory-policy {policy}: it deletes results when its memory is "
                              "full", advice)  # fmt: skip
    appends = info.get("aof_enabled") == "1"
    on = "CONFIG SET appendonly yes, and in redis.conf"
    if not appends and save == "":
        what = f'{where} writes nothing to its disk (appendonly no, save ""): messages are only in memory'
        yield Fact("warning", f"{what}, and a restart loses all of them", on)
    elif not appends and save is not None:
        what = f"{where} keeps snapshots only (save {save}): a crash loses what came after the last one"
        yield Fact("warning", what, on)
    if info.get("role") == "slave":
        yield Fact(
            "error",
            f"{where} is a replica, which accepts no messages",
            "name the primary, or use sentinel://",
        )


def _ask_redis(url: str, setting: str, conf: Any) -> Iterator[Fact]:
    from qworker.transports.redis.url import endpoint

    mine = setting == "broker_url"
    options = dict(conf.broker_transport_options if mine else conf.result_backend_transport_options)
    options = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT, **options}
    use_ssl = conf.broker_use_ssl if mine else conf.redis_backend_use_ssl
    where = endpoint(url, options, use_ssl, setting)
    connection = where.connect()

    def ask(*words: str) -> Any:
        connection.send_command(*words)
        return connection.read_response()

    try:
        before = time.time()
        whole, parts = ask("TIME")
        after = time.time()
        text = ask("INFO")
        try:
            save = ask("CONFIG", "GET", "save")[1].decode()
        except Exception:  # noqa: BLE001 - often forbidden by hosting providers
            save = None
    finally:
        connection.disconnect()
    info = dict(line.split(":", 1) for line in text.decode("utf-8", "replace").splitlines() if ":" in line)
    yield from redis_facts(where.safe_url, info, save, bool(options.get("allow_eviction")) or not mine)
    yield from skew(where.safe_url, int(whole) + int(parts) / 1e6, before, after)


# -- databases --


def _ask_postgresql(url: str, setting: str, conf: Any) -> Iterator[Fact]:
    import psycopg

    postgresql = import_module("qworker.transports.sql.postgresql")
    scheme, _, rest = url.removeprefix("db+").partition("://")
    where = mask_urls(url)
    plain = f"{scheme.partition('+')[0]}://{rest}"
    fields = {**postgresql.fields_of(plain), "connect_timeout": int(TIMEOUT)}
    with psycopg.connect(autocommit=True, **fields) as connection:
        before = time.time()
        row = connection.execute(
            "SELECT extract(epoch FROM clock_timestamp())::float, current_setting('server_version'), "
            "current_setting('synchronous_commit'), pg_is_in_recovery()"
        ).fetchone()
        after = time.time()
    assert row is not None
    now, text, synchronous, standby = row
    yield from version(where, "PostgreSQL", text.split()[0], (9, 5))
    yield from skew(where, now, before, after)
    if synchronous == "off":
        what = f"{where} has synchronous_commit off: a crash loses the last messages that were accepted"
        yield Fact("warning", what, "set synchronous_commit = on for this database")
    if standby:
        yield Fact("error", f"{where} is a standby, which accepts no messages", "name the primary")


def _ask_mysql(url: str, setting: str, conf: Any) -> Iterator[Fact]:
    mysql = import_module("qworker.transports.sql.mysql")
    where = mask_urls(url)
    arguments = mysql.url_options(url.removeprefix("db+")).arguments()
    timeouts = {"connect_timeout": int(TIMEOUT), "read_timeout": int(TIMEOUT)}
    database = arguments["database"] or None
    connection = import_module("pymysql").connect(**{**arguments, **timeouts, "database": database})
    try:
        with connection.cursor() as cursor:
            before = time.time()
            cursor.execute(
                "SELECT unix_timestamp(sysdate(6)), version(), @@innodb_flush_log_at_trx_commit, @@read_only"
            )
            row = cursor.fetchone()
            after = time.time()
    finally:
        connection.close()
    assert row is not None
    now, text, flush, read_only = row
    maria = "MariaDB" in text
    product = "MariaDB" if maria else "MySQL"
    yield from version(where, product, text.split("-")[0], (10, 6) if maria else (8, 0, 1))
    yield from skew(where, float(now), before, after)
    if flush != 1:
        what = (
            f"{where} has innodb_flush_log_at_trx_commit {flush}: a crash loses the last messages that were "
            "accepted"
        )
        yield Fact("warning", what, "set it to 1")
    if read_only:
        yield Fact("error", f"{where} is read-only, and accepts no messages", "name the primary")


# -- RabbitMQ --


def _ask_rabbitmq(url: str, setting: str, conf: Any) -> Iterator[Fact]:
    amqp = import_module("qworker.transports.amqp.link")
    where = mask_urls(url)
    link = amqp.Link(amqp.address_of(url, conf.broker_use_ssl), TIMEOUT)
    try:
        properties = dict(link.connection.server_properties)  # its clock is not available
    finally:
        link.close()
    yield from version(
        where, str(properties.get("product", "AMQP")), str(properties.get("version", "")), (3, 8)
    )


_SPELLINGS = {
    **dict.fromkeys(("postgresql", "postgres"), POSTGRESQL),
    **dict.fromkeys(("mysql", "mariadb"), MYSQL),
    **dict.fromkeys(("amqp", "amqps", "pyamqp"), RABBITMQ),
}
_EXTRAS = {
    "postgres": "postgresql",
    "mariadb": "mysql",
    **dict.fromkeys(("rediss", "valkey", "valkeys", "unix", "sentinel"), "redis"),
}
_ASK: dict[str, Callable[[str, str, Any], Iterator[Fact]]] = {
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "unix", "sentinel"), _ask_redis),
    **dict.fromkeys(("postgresql", "postgres"), _ask_postgresql),
    **dict.fromkeys(("mysql", "mariadb"), _ask_mysql),
    **dict.fromkeys(("amqp", "amqps", "pyamqp"), _ask_rabbitmq),
}
