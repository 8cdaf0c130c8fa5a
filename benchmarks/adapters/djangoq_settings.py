"""Django's settings for django-q2 on Redis: what its cluster needs, and nothing of a web site."""

from benchmarks.adapters.services import REDIS_URL, directory

SECRET_KEY = "only for benchmarks"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_q"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": directory() / "django.db"}}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
Q_CLUSTER = {
    "name": "qworker_benchmarks",
    "workers": 2,
    "timeout": 60,
    "retry": 120,
    "redis": REDIS_URL,
    "log_level": "WARNING",
    "save_limit": 0,
}
