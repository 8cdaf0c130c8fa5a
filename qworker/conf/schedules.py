"""Settings of schedules: the entries, and where is kept what becomes of them.

Comes from:  nothing; see `settings`.
Goes to:     `settings`, which collects them.
Thread:      built once at import, never changed.
"""

from typing import Any

from qworker.conf import kinds
from qworker.conf.setting import declare


class ScheduleSettings:
    """Names and types; the declarations are in `settings.SETTINGS`."""

    beat_schedule: dict[str, Any] = declare(
        kinds.MAPPING,
        {},
        "What is called when: entries by their names, each with `task`, `schedule` and whatever else an "
        "entry has; see the guide to periodic tasks.",
        nullable=True,
    )
    beat_store: str | None = declare(
        kinds.TEXT,
        None,
        "Where schedules are kept: `sqlite:///path`, `postgresql://…`, `mysql://…`, `redis://…`, or "
        "`memory://` for nowhere. None: with the messages where that is one of these; else with the results; "
        "else nowhere.",
    )
    beat_scope: str | None = declare(
        kinds.TEXT,
        None,
        "Whose schedules these are, where several projects keep theirs in one place. None: the app's name.",
    )
    beat_history_expires: float = declare(
        kinds.DURATION,
        3 * 86400.0,
        "How long it is remembered which due times were called. A due time that is forgotten could be called "
        "again by a clock that is set back so far.",
        minimum=3600.0,
    )
