"""A script that migrates: its steps are given on the command line, and it prints JSON.

Comes from:  tests of migrations, which start it with one argument: '{"app": …, "database": {…}, "do": […]}'
Goes to:     Django, under either label and on any database; standard output.

Each step is a list: "call" and the words of a command of Django; "tables" (the existing ones), "model" with a
name (all its rows), "queue" (the waiting packages, by the model), "send" (a task), or "release", which
updates and deletes through the view.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import django
from django.conf import settings


def main(order: dict[str, Any]) -> list[Any]:
    configure(order, ["django.contrib.contenttypes", "django.contrib.auth", order["app"]])
    return [DO[what](*words) for what, *words in order["do"]]


def configure(order: dict[str, Any], apps: list[str]) -> None:
    if order["database"]["ENGINE"].endswith("mysql"):
        import pymysql

        pymysql.version_info = (
            2,
            2,
            7,
            "final",
            0,
        )  # Django checks the version of the driver
        pymysql.install_as_MySQLdb()
    settings.configure(
        SECRET_KEY="a key that only tests of adoption know, and nobody else does",
        USE_TZ=True,
        INSTALLED_APPS=apps,
        DATABASES={"default": order["database"]},
        SILENCED_SYSTEM_CHECKS=["models.W037", "mysql.W002"],
        Q_CLUSTER={"name": "default", "orm": order.get("orm", "default")},
    )
    django.setup()


def call(*words: str) -> str:
    from io import StringIO

    from django.core.management import call_command

    told = StringIO()
    try:
        call_command(*words, stdout=told, stderr=told)
    except SystemExit as end:
        return f"exit {end.code}: {told.getvalue()}"
    return told.getvalue()


def tables() -> list[str]:
    from django.db import connection

    with connection.cursor() as cursor:
        found = connection.introspection.get_table_list(cursor)
    return sorted(
        f"{table.name} {table.type}" for table in found if "qworker" in table.name or len(table.name) < 12
    )


def model(name: str) -> list[dict[str, Any]]:
    from qworker.django import models

    return list(getattr(models, name).objects.order_by("pk").values())


def queue() -> list[list[Any]]:
    from qworker.django.models import OrmQ

    return [[row.key, row.name(), row.args(), row.lock] for row in OrmQ.objects.all()]


def release() -> list[Any]:
    from datetime import UTC, datetime

    from qworker.django.models import OrmQ

    first, second, _third = OrmQ.objects.all()
    first.lock = datetime(2030, 1, 1, tzinfo=UTC)
    first.key = "moved"
    first.save()
    second.delete()
    changed = OrmQ.objects.filter(key="default").update(key="rest")
    return [changed, OrmQ.objects.filter(key="rest").delete()[0], *queue()]


def send() -> str:
    from qworker.django.tasks import async_task

    return async_task("math.sqrt", 16)


DO = {"send": send, "call": call, "tables": tables, "model": model, "queue": queue, "release": release}

if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1])), default=str))
