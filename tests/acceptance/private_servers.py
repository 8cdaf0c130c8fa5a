"""Private servers: a Redis, PostgreSQL, MariaDB or RabbitMQ for one test, which can be killed, frozen and
restarted.

Comes from:  fault tests, which start one on a free port with its data in a new directory.
Goes to:     the server's own binaries, run as this user (PostgreSQL refuses root, so as ``postgres`` then).
Thread:      the test's; the kernel kills a server if the test's process dies.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests import servers
from tests.acceptance.processes import descendants, gone, kill, state
from tests.support.waiting import until

PATIENCE = 60.0
"""Seconds that a server may take to start or end on a busy machine."""
PORTS = [port for port in range(15000, 32000) if port not in servers.PORTS.values()]
"""Below the ephemeral ports: while a server is down, a client that retries could otherwise connect to
itself, if its own port is the server's. Connections to the usual ports of servers are refused."""
_PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",
    "/usr/lib/rabbitmq/bin",
    "/usr/sbin",
)


class Server(ABC):
    """One server process, started when constructed. options: lines of its configuration, by name."""

    binary: str
    polite = signal.SIGTERM
    """The signal for a clean shutdown."""

    def __init__(self, **options: object) -> None:
        self.options = {name: str(value) for name, value in options.items()}
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix=f"qworker-{self.binary}-"))
        self.process: subprocess.Popen[bytes] | None = None
        self._frozen: list[int] = []
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    @abstractmethod
    def url(self) -> str:
        """For clients."""

    @abstractmethod
    def prepare(self) -> None:
        """Create what it needs before its first start."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command that runs it in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it accepts clients."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def start(self, wait: bool = True) -> None:
        """Start it on its existing data; return when it accepts clients (wait=False: at once)."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.command()],
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until it accepts clients."""
        deadline = time.monotonic() + PATIENCE
        while not self.answers():
            assert self.process is not None
            assert self.process.poll() is None, f"{self.binary} ended at its start:\n{self.log[-4000:]}"
            assert time.monotonic() < deadline, f"{self.binary} does not answer:\n{self.log[-4000:]}"
            time.sleep(0.02)

    def tree(self) -> list[int]:
        return [self.process.pid, *descendants(self.process.pid)] if self.process else []

    def kill(self) -> None:
        """kill -9 of all its processes; returns when they are dead. Its data is kept."""
        pids = self.tree()
        if self.process is None:
            return
        for pid in pids:
            kill(pid)
        self.process.wait(PATIENCE)
        self.process = None
        self._frozen = []
        self._until(lambda: all(gone(pid) for pid in pids), "die")

    def stop(self) -> None:
        """Shut it down cleanly."""
        if self.process is not None:
            self.process.send_signal(self.polite)
            self.process.wait(PATIENCE)
        self.kill()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, and get no answers."""
        self._frozen = self.tree()
        for pid in self._frozen:
            kill(pid, signal.SIGSTOP)
        self._until(lambda: all(state(pid) in "TZX" for pid in self._frozen), "freeze")

    def thaw(self) -> None:
        for pid in self._frozen:
            kill(pid, signal.SIGCONT)
        self._frozen = []

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        until(condition, PATIENCE, lambda: f"for {self.binary} to {what}")

    def close(self) -> None:
        """Remove everything, including its data. May be called twice."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class Redis(Server):
    """Every write is in its file before it is answered; override with ``appendfsync="everysec"`` and other
    lines of redis.conf."""

    binary = "redis-server"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        self.options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            **self.options,
        }

    def command(self) -> list[str]:
        lines = [word for name, value in self.options.items() for word in (f"--{name}", value)]
        return [binary(self.binary), *lines]

    def answers(self) -> bool:
        import redis

        client = redis.Redis(port=self.port, socket_timeout=5.0)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    def do(self, *words: Any) -> Any:
        """One command, on a new connection."""
        import redis

        client = redis.Redis(port=self.port, socket_timeout=PATIENCE)
        try:
            return client.execute_command(*words)
        finally:
            client.close()


class PostgreSQL(Server):
    """A cluster with a database ``test``. Commits survive a kill of the server, but not a crash of the
    machine."""

    binary = "postgres"
    polite = signal.SIGINT  # SIGTERM would wait until all clients have disconnected

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/test"

    def prepare(self) -> None:
        data = self.directory / "data"
        user = unprivileged()
        if user is not None:
            os.chown(self.directory, user.pw_uid, user.pw_gid)
        initdb = [binary("initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync", "-E",
        "UTF8", "--locale=C"]  # fmt: skip
        subprocess.run([*_as(user), *initdb], check=True, stdout=subprocess.DEVNULL, cwd=self.directory)
        lines = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "16MB",
            "dynamic_shared_memory_type": "mmap",  # elsewhere, a kill would leave segments behind
            **self.options,
        }
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in lines.items())

    def command(self) -> list[str]:
        return [*_as(unprivileged(), "--pdeathsig", "KILL"), binary(self.binary), "-D",
        str(self.directory / "data")]  # fmt: skip

    def start(self, wait: bool = True) -> None:
        first = self.process is None and not (self.directory / "log").exists()
        super().start(wait)
        if first:
            self.do("CREATE DATABASE test", database="postgres")

    def answers(self) -> bool:
        import psycopg

        try:
            self.do("SELECT 1", database="postgres")
        except psycopg.OperationalError:
            return False
        return True

    def do(self, statement: str, database: str = "test") -> list[Any]:
        """One statement, committed at once; returns its rows."""
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=database, autocommit=True,
            connect_timeout=5
        ) as connection:  # fmt: skip
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def terminate_backends(self) -> int:
        """Close every connection except this one; return how many."""
        return len(
            self.do(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        )


class PgBouncer(Server):
    """In transaction mode, before the PostgreSQL at the URL *server*, which it does not own."""

    binary = "pgbouncer"

    def __init__(self, server: str, **options: object) -> None:
        self.server = server
        super().__init__(**options)

    @property
    def url(self) -> str:
        parts = urlsplit(self.server)
        return parts._replace(netloc=f"{parts.username}@127.0.0.1:{self.port}").geturl()

    def prepare(self) -> None:
        parts = urlsplit(self.server)
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": self.directory / "users",
            "auth_user": parts.username,  # asks PostgreSQL for the others
            "pool_mode": "transaction",
            "max_client_conn": 1000,
            "server_round_robin": 1,  # each transaction gets another connection, as it would beside others
            "server_login_retry": 0,
            "server_idle_timeout": 5,
            **self.options,
        }
        (self.directory / "users").write_text(f'"{parts.username}" "{parts.password or ""}"\n')
        (self.directory / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={parts.hostname} port={parts.port or 5432}\n[pgbouncer]\n"
            + "".join(f"{name} = {value}\n" for name, value in lines.items())
        )
        if os.geteuid() == 0:  # it refuses to run as root
            for path in (self.directory, *self.directory.iterdir()):
                shutil.chown(path, "nobody")

    def command(self) -> list[str]:
        user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        return [
            *_as(user, "--pdeathsig", "KILL"), binary(self.binary), str(self.directory / "pgbouncer.ini")
        ]  # fmt: skip

    def answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


class MariaDB(Server):
    """With a database ``test`` and a root user without a password. Commits survive a kill of the server."""

    binary = "mariadbd"

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/test"

    def prepare(self) -> None:
        data, user = str(self.directory / "data"), pwd.getpwuid(os.geteuid()).pw_name
        # A server deletes other servers' temporary tables in its temporary directory when it starts.
        temporary = self.directory / "temporary"
        temporary.mkdir()
        install = [binary("mariadb-install-db"), "--no-defaults", f"--datadir={data}", f"--user={user}"]
        subprocess.run(
            [*install, f"--tmpdir={temporary}", "--skip-test-db", "--auth-root-authentication-method=normal"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.directory,
        )
        self.options = {
            "datadir": data,
            "tmpdir": str(temporary),
            "user": user,
            "bind-address": "127.0.0.1",
            "port": str(self.port),
            "socket": str(self.directory / "socket"),
            "pid-file": str(self.directory / "pid"),
            "innodb-buffer-pool-size": "16M",
            "innodb-flush-log-at-trx-commit": "2",
            **self.options,
        }

    def command(self) -> list[str]:
        return [
            binary(self.binary),
            "--no-defaults",
            *(f"--{name}={value}" for name, value in self.options.items()),
        ]

    def answers(self) -> bool:
        import pymysql

        try:
            self.do("CREATE DATABASE IF NOT EXISTS test", database=None)
        except pymysql.err.OperationalError:
            return False
        return True

    def do(self, statement: str, database: str | None = "test") -> list[Any]:
        """One statement, committed at once; returns its rows."""
        import pymysql

        with (
            pymysql.connect(
                host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True,
                connect_timeout=5, ssl_disabled=True
            ) as connection,
            connection.cursor() as cursor,
        ):  # fmt: skip
            cursor.execute(statement)
            return list(cursor.fetchall())


class RabbitMQ(Server):
    """A single node with its own epmd. Starting takes some seconds."""

    binary = "rabbitmq-server"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def prepare(self) -> None:
        self._epmd_port, self._peer_port = free_port(), free_port()
        self._epmd = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", binary("epmd"), "-port", str(self._epmd_port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        (self.directory / "enabled_plugins").write_text("[].\n")
        lines = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "log.console": "true",
            "log.file": "false",
            "log.console.level": "warning",
            "vm_memory_high_watermark.absolute": "1GB",
            "disk_free_limit.absolute": "1MB",
            **self.options,
        }
        (self.directory / "rabbitmq.conf").write_text(
            "".join(f"{name} = {value}\n" for name, value in lines.items())
        )

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": f"qworker{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._peer_port),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "logs"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "no-environment"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
            # The CPUs are shared with the workers, so the node must not busy-wait. As the guide advises,
            # messages dead-lettered to a queue that was just deleted are resent soon.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none "
            "-rabbit dead_letter_worker_publisher_confirm_timeout 2000",
        }

    def command(self) -> list[str]:
        return [binary(self.binary)]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5.0) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(connection.recv(1))
        except OSError:
            return False

    def do(self, *words: str) -> str:
        """One rabbitmqctl command; returns its output."""
        done = subprocess.run(
            [binary("rabbitmqctl"), "--quiet", *words],
            env=self.environment(),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"rabbitmqctl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def close(self) -> None:
        super().close()
        self._epmd.kill()
        self._epmd.wait(PATIENCE)


SERVERS: dict[str, type[Server]] = {
    "redis": Redis,
    "postgresql": PostgreSQL,
    "pgbouncer": PgBouncer,
    "mariadb": MariaDB,
    "rabbitmq": RabbitMQ,
}
BROKERS = ("redis", "postgresql", "rabbitmq")
"""Brokers for the fault tests."""


def missing(kind: str) -> str | None:
    """The missing binary for a server of *kind*; None if there are all."""
    wanted: dict[str, list[str]] = {
        "redis": ["redis-server"],
        "postgresql": ["postgres", "initdb"],
        "rabbitmq": ["rabbitmq-server", "rabbitmqctl", "epmd"],
        "mariadb": ["mariadbd", "mariadb-install-db"],
        "nats": ["nats-server"],
        "pgbouncer": ["pgbouncer"],
    }
    return next((name for name in ["setpriv", *wanted[kind]] if _find(name) is None), None)


@contextmanager
def serving(kind: str, make: Callable[..., Server] | None = None, **options: object) -> Iterator[Any]:
    """A new server of *kind* (made by *make*), gone afterwards. Without its binaries the test is skipped;
    where CI is set it fails."""
    absent = missing(kind)
    if absent is not None:
        message = f"no {absent} here: install the server package of {kind}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    server = (make or SERVERS[kind])(**options)
    try:
        yield server
    finally:
        server.close()


def free_port() -> int:
    """A free port that is not ephemeral."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def binary(name: str) -> str:
    found = _find(name)
    assert found is not None, f"{name} is not installed"
    return found


def _find(name: str) -> str | None:
    """The server's own directories first: a distribution's wrapper may switch to another user."""
    for place in _PLACES:
        for path in sorted(Path("/").glob(f"{place[1:]}/{name}"), reverse=True):
            return str(path)
    return shutil.which(name)


def unprivileged() -> pwd.struct_passwd | None:
    """The user for a server that refuses to run as root; None if we are not root."""
    return pwd.getpwnam("postgres") if os.geteuid() == 0 else None


def _as(user: pwd.struct_passwd | None, *options: str) -> list[str]:
    if user is None:
        return []
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *options, "--"]
