"""What a process does that migrates again and again: cut short before each statement, and repeated.

Comes from:  tests of migrations, which start it with one argument:
             '{"app": …, "database": {…}, "dump": …, "way": [[words of migrate], …]}'
Goes to:     Django, on any database; standard output: what was in the tables after each repetition.

Each round begins with the dump alone. The last migration of the way is cut short: before its first writing
statement in the first round, before its second in the second, until there is none left.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.django_migrating import call, configure

READING = ("SELECT", "SHOW", "PRAGMA", "SAVEPOINT", "RELEASE", "SET ")
MOST = 200


CUT = 9
"""The exit code of a process that was cut short."""


class Cutter:
    """Ends the process before the writing statement of this number, which it writes to *told*."""

    def __init__(self, number: int, told: int) -> None:
        self.left = number
        self.told = told

    def __call__(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if not str(sql).lstrip().upper().startswith(READING):
            self.left -= 1
            if self.left == 0:
                os.write(self.told, str(sql).encode()[:1000])
                os._exit(CUT)
        return execute(sql, params, many, context)


def main(order: dict[str, Any]) -> list[Any]:
    configure(order, [order["app"]])
    from django.db import connection

    *before, last = order["way"]
    found: list[Any] = []
    for number in range(1, MOST):
        begin(connection, order["dump"])
        for words in before:
            call("migrate", *words)
        statement = cut_short(connection, number, last)
        if statement:
            call("migrate", *last)
        found.append([statement, tables(connection), rows(connection)])
        if not statement:
            return found
    raise AssertionError("there is no end")


def cut_short(connection: Any, number: int, words: list[str]) -> str:
    """Have a process migrate that is cut short; return before which statement, "" if it came to its end."""
    connection.close()
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with connection.execute_wrapper(Cutter(number, told)):
                call("migrate", *words)
        except BaseException:  # noqa: BLE001 - nothing of the parent's may run here
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(told)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(heard, "rb") as file:
        statement = file.read().decode()
    assert code == (CUT if statement else 0), code
    return statement


def begin(connection: Any, dump: str | None) -> None:
    """Drop everything, and execute *dump*."""
    connection.close()
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        Path(name).unlink(missing_ok=True)
        with closing(sqlite3.connect(name)) as file:
            file.executescript(Path(dump).read_text() if dump else "")
        return
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("DROP SCHEMA public CASCADE")
            cursor.execute("CREATE SCHEMA public")
            if dump:
                connection.connection.execute(Path(dump).read_text())
        else:
            cursor.execute(f"DROP DATABASE {name}")
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
            cursor.execute(f"USE {name}")
            for statement in Path(dump).read_text().split(";\n") if dump else ():
                if statement.strip():
                    cursor.execute(statement)
    connection.close()


def tables(connection: Any) -> list[str]:
    """The names of all tables and views, and of the indexes of tables."""
    with connection.cursor() as cursor:
        found = connection.introspection.get_table_list(cursor)
        names = sorted(f"{each.name} {each.type}" for each in found)
        for each in found:
            if each.type == "t" and each.name != "django_migrations":
                names += sorted(
                    f"{each.name}.{name}"
                    for name, index in connection.introspection.get_constraints(cursor, each.name).items()
                    if index["index"]
                )
    return sorted(names)


def rows(connection: Any) -> list[Any]:
    """What waits, wherever it does: the id of each package, oldest first."""
    from qworker.django.signing import SignedPackage
    from qworker.django.transports.packages import text_of

    found: list[Any] = []
    key = connection.ops.quote_name("key")
    with connection.cursor() as cursor:
        there = set(connection.introspection.table_names(cursor))
        for table in sorted(there & {"message", "qworker_message"}):
            cursor.execute(f"SELECT queue, body FROM {table} ORDER BY tag")
            found += [
                [table, queue, SignedPackage.loads(text_of(bytes(body)))["id"]] for queue, body in cursor
            ]
        for table in sorted(there & {"django_q_ormq"}):
            cursor.execute(f"SELECT {key}, payload FROM {table} ORDER BY id")
            found += [[table, queue, SignedPackage.loads(text)["id"]] for queue, text in cursor]
    return found


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1])), default=str))
