"""migrated: checks whether the project's databases have the tables that a cluster needs.

Comes from:  the commands, when they start.
Goes to:     Django's connections.
Thread:      main.
"""

from __future__ import annotations

from django.db import DatabaseError, connections, router

from qworker.django.conf import conf
from qworker.django.models import Part, Schedule, Task
from qworker.django.transports.databases import is_in_memory, url_of
from qworker.django.transports.opening import broker_alias
from qworker.errors import BackendError, ConfigurationError

QUEUE = {"sqlite": "message", "postgresql": "qworker_message", "mysql": "qworker_message"}
"""The queue's table, by kind of database."""


def require_tables() -> None:
    """Check that all tables exist.

    Raises ConfigurationError for missing tables, with the command to run, and for a database that cannot be
    the broker; BackendError if a database does not answer.
    """
    if conf.broker == "orm" and not is_in_memory(broker_alias()):  # a cluster reports it
        url_of(broker_alias())
    for alias, tables in _needed().items():
        lacking = sorted(tables - _tables(alias))
        if not lacking:
            continue
        option = "" if alias == "default" else f" --database={alias}"
        raise ConfigurationError(
            f"the database {alias!r} has no table {', '.join(lacking)}: run manage.py migrate{option}"
        )


def _tables(alias: str) -> set[str]:
    """Return all tables of the database *alias*, with one query."""
    try:
        return set(connections[alias].introspection.table_names())
    except DatabaseError as error:
        raise BackendError(f"the database {alias!r} does not answer: {error}") from error


def _needed() -> dict[str, set[str]]:
    """Return the required tables by database alias."""
    found: dict[str, set[str]] = {}
    for model in (Task, Schedule, Part):
        found.setdefault(router.db_for_write(model), set()).add(model._meta.db_table)
    if conf.broker == "orm":
        alias = broker_alias()
        found.setdefault(alias, set()).add(QUEUE[connections[alias].vendor])
    return found
