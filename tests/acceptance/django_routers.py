"""A database router that keeps tasks and schedules in a separate database. Comes from: DATABASE_ROUTERS."""

from __future__ import annotations

from typing import Any


class TasksApart:
    """Tasks and schedules are in the database ``tasks``."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "tasks" if model.__name__ in ("Task", "Success", "Failure", "Schedule") else None

    db_for_write = db_for_read
