"""A Django project in a directory, on one of several brokers; scripts and clusters that run in it.

Comes from:  tests that need separate processes of a project.
Goes to:     a database of the test's own, on SQLite or a server; Redis, under a name of its own; other
             servers, which the caller starts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from tests.servers import require
from tests.support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 90.0

SETTINGS = """
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SECRET_KEY = "of a test, and of nothing else; it is as long as Django wants keys to be"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SILENCED_SYSTEM_CHECKS = ["models.W037", "mysql.W002"]
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "qworker.django", *{apps!r}]
DATABASES = {{"default": {database!r}}}
CACHES = {{
    "default": {{
        "BACKEND": "django.core.cache.backends.filebased.FileBasedCache", "LOCATION": str(HERE / "cache")
    }}
}}
Q_CLUSTER = {cluster!r}
if DATABASES["default"]["ENGINE"].endswith("mysql"):
    import pymysql

    pymysql.version_info = (2, 2, 7, "final", 0)  # Django asks how new the driver is
    pymysql.install_as_MySQLdb()
"""
MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
"""
HEAD = """
import faulthandler
import json
import os
import sys
import time

faulthandler.dump_traceback_later(75, exit=True)
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"

import django

django.setup()

from qworker.django.brokers import get_broker
from qworker.django.models import *
from qworker.django.tasks import *

found = {}


def until(condition):
    end = time.monotonic() + 60
    while not (answer := condition()):
        assert time.monotonic() < end, "never"
        time.sleep(0.02)
    return answer
"""


class DjangoPlace:
    """kind: sqlite, postgresql or mysql, where the broker is in the database; redis, or another with its keys
    of Q_CLUSTER, beside an SQLite file; or custom, with the class of ``Q_CLUSTER['broker_class']``. cluster:
    keys of Q_CLUSTER. apps: more for INSTALLED_APPS."""

    def __init__(
        self, directory: Path, kind: str, modules: dict[str, str], apps: Sequence[str] = (), **cluster: Any
    ) -> None:
        self.directory, self.kind = directory, kind
        self.name = f"qworker_place_{uuid4().hex[:10]}"
        self.environment: dict[str, str] = {}
        given: dict[str, Any] = {"name": self.name, "workers": 2, **cluster}
        if kind == "redis":
            given["redis"] = require("redis")
        self._settings = {"database": self._database(), "cluster": given, "apps": list(apps)}
        for name, text in {"manage": MANAGE, **modules}.items():
            (directory / f"{name}.py").write_text(text)
        self.configure()
        self.manage("migrate")

    def configure(self, **cluster: Any) -> None:
        """Write the settings, adding these keys to Q_CLUSTER."""
        self._settings["cluster"] |= cluster
        (self.directory / "settings.py").write_text(SETTINGS.format(**self._settings))

    def _database(self) -> dict[str, Any]:
        if self.kind not in ("postgresql", "mysql"):
            return {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(self.directory / "project.db"),
                "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
            }
        parts = urlsplit(require(self.kind))
        self._parts = parts
        self._admin(f"CREATE DATABASE {self.name}" + (" CHARACTER SET utf8mb4" * (self.kind == "mysql")))
        return {
            "ENGINE": f"django.db.backends.{self.kind}", "NAME": self.name, "USER": parts.username,
            "HOST": parts.hostname, "PORT": parts.port, "PASSWORD": parts.password or "",
        }  # fmt: skip

    def _admin(self, statement: str) -> None:
        host, port, user = self._parts.hostname, self._parts.port, self._parts.username
        password = self._parts.password or ""
        if self.kind == "postgresql":
            import psycopg

            where = {"dbname": "postgres", "autocommit": True, "password": password}
            with closing(psycopg.connect(host=host, port=port, user=user, **where)) as server:  # type: ignore[arg-type]
                server.execute(statement)
            return
        import pymysql

        login = {"host": host, "port": port or 3306, "user": user, "password": password}
        with closing(pymysql.connect(**login, ssl_disabled=True)) as other:
            other.cursor().execute(statement)

    def clear(self) -> None:
        """Drop the database; a file is deleted with its directory."""
        if self.kind == "postgresql":
            self._admin(f"DROP DATABASE {self.name} WITH (FORCE)")
        elif self.kind == "mysql":
            self._admin(f"DROP DATABASE {self.name}")
        elif self.kind == "redis":
            import redis

            with redis.Redis.from_url(require("redis")) as client:
                keys = list(client.scan_iter(match=f"*{self.name}*", count=10_000))
                if keys:
                    client.unlink(*keys)

    @property
    def surroundings(self) -> dict[str, str]:
        path = f"{REPOSITORY}{os.pathsep}{self.directory}"
        return {**os.environ, "PYTHONPATH": path, **self.environment}

    @property
    def log(self) -> str:
        """The output of the cluster."""
        return self._said("cluster.log")

    def _said(self, log: str) -> str:
        file = self.directory / log
        return file.read_text() if file.exists() else ""

    def start(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments until it exits."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.directory,
            env=self.surroundings,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def manage(self, *words: str) -> str:
        done = self.start("manage.py", *words)
        assert done.returncode == 0, done.stdout + done.stderr + self.log[-4000:]
        return done.stdout

    def script(self, text: str) -> Any:
        """Run *text* in the project; return its variable ``found``."""
        file = self.directory / "script.py"
        file.write_text(f"{HEAD}\n{text}\nprint(json.dumps(found, default=str))\n")
        done = self.start(file.name)
        assert done.returncode == 0, done.stdout + done.stderr + self.log[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    @contextmanager
    def cluster(self, *options: str, log: str = "cluster.log") -> Iterator[subprocess.Popen[bytes]]:
        """A running cluster, with options of qcluster; at the end it is stopped, and must exit cleanly.
        log: the name of the file for its output."""
        with (self.directory / log).open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "manage.py", "qcluster", *options],
                cwd=self.directory,
                env=self.surroundings,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            until(
                lambda: "running." in self._said(log) or process.poll() is not None,
                say=lambda: self._said(log),
            )
            assert process.poll() is None, self._said(log)
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0, self._said(log)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
