"""A script that migrates repeatedly: interrupted before each statement, and started again.

Comes from:  tests of migrations, which start it with one argument:
             '{"app": …, "database": {…}, "dump": …, "route": [[words of migrate], …], "each": true}'
Goes to:     Django, on any database; standard output: the contents of the tables after each repetition.

The last migration of the way is interrupted. each: every round starts from the dump and is interrupted before
its first writing statement, in the second round before the second, and so on. Otherwise it
is repeated on one database: each repetition is interrupted once it has committed something that none before
it had, so that it is restarted from every state that a crash can leave behind.
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

Statement = tuple[str, str]
READING = ("SELECT", "SHOW", "PRAGMA", "SAVEPOINT", "RELEASE", "SET ")
MOST = 200


CUT = 9
"""The exit code of an interrupted process."""


class Cutter:
    """Exits the process before the writing statement with this number, and writes the statement to *told*."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.told = -1

    def __call__(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        text = str(sql).lstrip()
        if not text.upper().startswith(READING) and self.ends(text, repr(params), context["connection"]):
            os.write(self.told, json.dumps([text[:1000], self.done()]).encode())
            os._exit(CUT)
        return execute(sql, params, many, context)

    def ends(self, text: str, params: str, connection: Any) -> bool:
        self.left -= 1
        return self.left == 0

    def done(self) -> list[Statement]:
        return []


class StepCutter(Cutter):
    """Exits the process once it has committed a statement that is not in *before*."""

    def __init__(self, before: set[Statement]) -> None:
        super().__init__(0)
        self.before = before
        self.fresh: list[Statement] = []

    def ends(self, text: str, params: str, connection: Any) -> bool:
        if self.fresh and not in_transaction(connection):
            return True
        if text != "BEGIN" and (text, params) not in self.before:
            self.fresh.append((text, params))
        return False

    def done(self) -> list[Statement]:
        return self.fresh


def in_transaction(connection: Any) -> bool:
    """Whether the server would roll back the last statement."""
    driver = connection.connection
    if connection.vendor == "sqlite":
        return bool(driver.in_transaction)
    if connection.vendor == "postgresql":
        return bool(driver.info.transaction_status.name != "IDLE")
    return bool(driver.server_status & 1)


def main(order: dict[str, Any]) -> list[Any]:
    configure(order, [order["app"]])
    from django.db import connection

    return (each_alone if order["each"] else one_after_another)(connection, order["dump"], *order["route"])


def each_alone(connection: Any, dump: str | None, *way: list[str]) -> list[Any]:
    *before, last = way
    found: list[Any] = []
    for number in range(1, MOST):
        begin(connection, dump, before)
        statement, _ = cut_short(connection, Cutter(number), last)
        if statement:
            call("migrate", *last)
        found.append([statement, tables(connection), rows(connection)])
        if not statement:
            return found
    raise AssertionError("there is no end")


def one_after_another(connection: Any, dump: str | None, *way: list[str]) -> list[Any]:
    *before, last = way
    cuts: list[str] = []
    done: set[Statement] = set()
    begin(connection, dump, before)
    for _ in range(MOST):
        statement, fresh = cut_short(connection, StepCutter(done), last)
        if not statement:
            break
        cuts.append(statement)
        done |= {(text, params) for text, params in fresh}
    else:
        raise AssertionError("there is no end")
    cut = [tables(connection), rows(connection)]
    begin(connection, dump, before)
    call("migrate", *last)
    return [*([statement, *cut] for statement in cuts), ["", tables(connection), rows(connection)]]


def cut_short(connection: Any, cutter: Cutter, words: list[str]) -> tuple[str, list[Statement]]:
    """Run an interrupted migration in a process; return the statement it was interrupted before, "" if it
    finished, and the statements that were done."""
    connection.close()
    heard, cutter.told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with connection.execute_wrapper(cutter):
                call("migrate", *words)
        except BaseException:  # noqa: BLE001 - nothing of the parent's may run here
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(cutter.told)
    with open(heard, "rb") as file:
        told = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (CUT if told else 0), code
    return json.loads(told) if told else ("", [])


def begin(connection: Any, dump: str | None, before: list[list[str]]) -> None:
    """Drop everything, execute *dump*, and migrate as *before* says."""
    empty(connection, dump)
    for words in before:
        call("migrate", *words)


def empty(connection: Any, dump: str | None) -> None:
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
    """The ids of all waiting packages, in either queue table, oldest first."""
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
