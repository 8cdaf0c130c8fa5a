"""Django's settings for one of the two packages that are Django-Q, on the broker that BENCHMARK_BROKER names.

Everything is the package's default, but for what the benchmark says: two workers, and how many successes are
kept. Results are in the database: PostgreSQL where that is the broker, else a file of the cell's directory.
"""

import os
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.adapters import own_database
from benchmarks.adapters.services import BROKER, REDIS_URL, directory

APP = os.environ["BENCHMARK_APP"]
"""What INSTALLED_APPS names: qworker.django or django_q."""


def _database() -> dict[str, Any]:
    if BROKER != "PostgreSQL":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": directory() / "django.db"}
    parts = urlsplit(own_database.url())
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.strip("/"),
        "HOST": parts.hostname,
        "PORT": parts.port or 5432,
        "USER": unquote(parts.username or "postgres"),
        "PASSWORD": unquote(parts.password or ""),
    }


SECRET_KEY = "only for benchmarks"
INSTALLED_APPS = ["django.contrib.contenttypes", APP]
DATABASES = {"default": _database()}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
Q_CLUSTER = {
    "name": "benchmarks",
    "workers": 2,
    "timeout": 60,
    "retry": 120,
    "log_level": "WARNING",
    "save_limit": int(os.environ.get("BENCHMARK_SAVE_LIMIT", "250")),
    **({"redis": REDIS_URL} if BROKER == "Redis" else {"orm": "default"}),
}
