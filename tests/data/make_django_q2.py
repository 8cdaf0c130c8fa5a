"""How django_q2.sqlite.sql, django_q2.postgresql.sql and django_q2.mysql.sql were made.

In a virtualenv of its own: pip install "django-q2==1.11.*" "Django==5.2.*" "psycopg[binary]" pymysql; then
python make_django_q2.py sqlite, and with postgresql or mysql, where an empty database q2_made must be there.
It is no test, and imports nothing of ours.
"""

import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import django
from django.conf import settings

HERE = Path(__file__).parent
kind = sys.argv[1]
DATABASES = {
    "sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": "q2_made.db"},
    "postgresql": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "q2_made",
        "USER": "postgres",
        "HOST": "127.0.0.1",
    },
    "mysql": {"ENGINE": "django.db.backends.mysql", "NAME": "q2_made", "USER": "root", "HOST": "127.0.0.1"},
}
if kind == "mysql":
    import pymysql

    pymysql.install_as_MySQLdb()
settings.configure(
    SECRET_KEY="a key that only tests of adoption know, and nobody else does",
    USE_TZ=True,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_q"],
    DATABASES={"default": DATABASES[kind]},
    Q_CLUSTER={"name": "default", "orm": "default"},
)
django.setup()

from django.core.management import call_command  # noqa: E402
from django_q.models import OrmQ, Schedule, Task  # noqa: E402
from django_q.signing import SignedPackage  # noqa: E402

call_command("migrate", verbosity=0)
start = datetime(2024, 3, 1, 12, tzinfo=UTC)
for number in range(5):
    Task.objects.create(
        id=f"{number:032x}", name=f"name-{number}", func="math.copysign", hook=None, args=(2, -number),
        kwargs={"word": "django"}, result=[number] if number != 3 else "ValueError: three", group="five",
        cluster="default", started=start, stopped=start + timedelta(seconds=number), success=number != 3,
        attempt_count=1,
    )  # fmt: skip
Schedule.objects.create(
    name="nightly",
    func="math.hypot",
    args="3, 4",
    schedule_type="D",
    next_run=start,
    repeats=-7,
    task=f"{4:032x}",
)
Schedule.objects.bulk_create(
    [Schedule(func="builtins.dict", kwargs="word='django', n=2", schedule_type="C", cron="0 4 * * 1")]
)
for number in range(3):
    package = {
        "id": f"{100 + number:032x}",
        "name": f"waiting-{number}",
        "func": "math.sqrt",
        "args": (number,),
        "kwargs": {},
        "started": start,
    }
    OrmQ.objects.create(
        key="default" if number else "other", payload=SignedPackage.dumps(package), lock=start
    )

dump = HERE / f"django_q2.{kind}.sql"
if kind == "sqlite":
    with sqlite3.connect("q2_made.db") as connection:
        dump.write_text("\n".join(connection.iterdump()) + "\n")
elif kind == "postgresql":
    command = "pg_dump -h 127.0.0.1 -U postgres --no-owner --inserts q2_made"
    dump.write_text(subprocess.check_output(command.split(), text=True))
else:
    command = "mysqldump -h127.0.0.1 -uroot --skip-extended-insert --skip-comments q2_made"
    dump.write_text(subprocess.check_output(command.split(), text=True))
