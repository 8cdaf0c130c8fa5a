"""migrated: whether the project's databases have the tables that a cluster needs.

Comes from:  the commands, before they begin.
Goes to:     Django's connections.
Thread:      main.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.db import DatabaseError, connections, router

from qworker.django.conf import conf
from qworker.django.databases import url_of
from qworker.django.models import Schedule, Task
from qworker.django.transport import broker_alias
from qworker.errors import BackendError, ConfigurationError

QUEUE = {"sqlite": "message", "postgresql": "qworker_message", "mysql": "qworker_message"}
"""The table of the queue, by the kind of database."""


def require_tables() -> None:
    """Do nothing where all tables are there.

    Raises ConfigurationError where some are not, which says what to run, or where a database cannot be the
    broker at all; BackendError where a database does not answer.
    """
    if conf.broker == "orm":
        url_of(broker_alias())
    lacking: dict[str, list[str]] = {}
    for alias, table in _needed():
        try:
            there = connections[alias].introspection.table_names()
        except DatabaseError as error:
            raise BackendError(f"the database {alias!r} does not answer: {error}") from error
        if table not in there:
            lacking.setdefault(alias, []).append(table)
    for alias, tables in lacking.items():
        option = "" if alias == "default" else f" --database={alias}"
        raise ConfigurationError(
            f"the database {alias!r} has no table {', '.join(tables)}: run manage.py migrate{option}"
        )


def _needed() -> Iterator[tuple[str, str]]:
    """Each database and a table that is to be in it."""
    for model in (Task, Schedule):
        yield router.db_for_write(model), model._meta.db_table
    if conf.broker == "orm":
        alias = broker_alias()
        yield alias, QUEUE[connections[alias].vendor]
